//! Runs a range of seeds of the simulation: `sim FROM..TO`.
//!
//! Prints what happened how often; a seed that fails is made as small as it goes and named. Ends
//! with 1 when one failed, or when something that has to happen sometimes never did.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use trellara_testkit::simulation::{Counters, Plan, run, shrink};

fn range(text: &str) -> Option<(u64, u64)> {
    let (from, to) = text.split_once("..")?;
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from < to).then_some((from, to))
}

/// Whether the plan fails, and how; a panic of a machine is a failure too.
fn failure(plan: Plan, counters: &mut Counters) -> Option<String> {
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(plan, counters)));
    match lived {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why),
        Err(panic) => Some(
            panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_else(|| "a panic".to_owned()),
        ),
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command")]
fn main() -> ExitCode {
    let Some((from, to)) = std::env::args().nth(1).as_deref().and_then(range) else {
        eprintln!("usage: sim FROM..TO");
        return ExitCode::from(64);
    };
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let next = AtomicU64::new(from);
    let all = Mutex::new((Counters::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut counters = Counters::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        break;
                    }
                    if let Some(why) = failure(Plan::of(seed), &mut counters) {
                        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                        all.1.push((seed, why));
                    }
                }
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.0.add(&counters);
            });
        }
    });
    let (counters, mut failed) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort();
    let seconds = began.elapsed().as_secs_f64();
    let each_ms = seconds * threads as f64 * 1000.0 / (to - from) as f64;
    println!(
        "seeds {from}..{to} on {threads} threads: {seconds:.1} s, {each_ms:.2} ms of a core each"
    );
    print!("{counters}");
    for (seed, why) in failed.iter().take(5) {
        let least = shrink(Plan::of(*seed));
        println!("seed {seed} failed: {why}\n  least: {least:?}");
        if let Some(why) = failure(least, &mut Counters::default()) {
            println!("  which: {why}");
        }
    }
    let never = counters.never();
    for what in &never {
        println!("never happened: {what}");
    }
    println!("{} of {} seeds failed", failed.len(), to - from);
    match failed.is_empty() && never.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
