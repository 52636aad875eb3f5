//! `cargo bench -p trellara-dedup --bench dedup [-- 1m 10m 100m ring seed set filter]`: what remembering and asking cost, beside a
//! hash set and a published filter, with the bars of the design. Ends with 1 when a bar is missed.
//!
//! Times are nanoseconds of this thread on a processor (Linux counts them), so that waiting for one
//! is not counted; a busy neighbour still shows in them. The worst single append is real time.

#![expect(clippy::print_stdout, reason = "a bench prints")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::process::ExitCode;

#[path = "../shared/mod.rs"]
mod shared;

mod clock;
mod heap;
mod subjects;

use subjects::Subject;

/// Identities, bytes per identity, nanoseconds alone, and in batches of 1000.
const BARS: [(u64, Option<f64>, f64, f64); 2] = [
    (1_000_000, None, 60.0, 40.0),
    (100_000_000, Some(18.3), 500.0, 300.0),
];

/// No allocation of a ring may be larger than a block.
const LARGEST: u64 = 64 << 10;

/// What was measured of one subject.
pub(crate) struct Figures {
    bytes: f64,
    append: f64,
    worst_append: Option<f64>,
    alone: f64,
    batch: f64,
    known: f64,
    maybes: f64,
    filters: usize,
    largest: u64,
}

fn main() -> ExitCode {
    heap::watch();
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let asked: Vec<u64> = arguments.iter().filter_map(|text| size(text)).collect();
    let named = |subject: &Subject| arguments.iter().any(|text| text == subject.key());
    let mut subjects: Vec<_> = subjects::ALL.into_iter().filter(named).collect();
    if subjects.is_empty() {
        subjects = subjects::ALL.to_vec();
    }
    let sizes = match asked.is_empty() {
        true => vec![1_000_000, 10_000_000, 100_000_000],
        false => asked,
    };
    let mut missed = Vec::new();
    for size in sizes {
        println!("\n{} million identities", size as f64 / 1e6);
        println!(
            "{:<22}{:>8}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>11}",
            "",
            "B/hash",
            "append",
            "worst",
            "absent",
            "in 1000",
            "known",
            "maybes",
            "filters",
            "largest"
        );
        println!(
            "{:<22}{:>8}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>11}",
            "", "", "ns", "µs", "ns", "ns", "ns", "%", "", "KiB"
        );
        for subject in subjects.iter().copied() {
            let figures = subjects::measure(subject, size);
            print(subject.name(), &figures);
            if subject == Subject::Ring {
                missed.extend(judge(size, &figures));
            }
        }
        let hydration = subjects::hydrate(size);
        println!("hydration {hydration:.0} ms per million");
        let (all, worst) = subjects::expire(size);
        println!("expiry {all:.2} ms per million, at most {worst:.2} ms at once");
    }
    for miss in &missed {
        println!("MISSED {miss}");
    }
    ExitCode::from(u8::from(!missed.is_empty()))
}

/// `10m` is ten million.
fn size(text: &str) -> Option<u64> {
    let millions: f64 = text.strip_suffix('m')?.parse().ok()?;
    Some((millions * 1e6) as u64)
}

fn print(name: &str, figures: &Figures) {
    let worst = figures
        .worst_append
        .map_or("-".to_owned(), |worst| format!("{worst:.0}"));
    println!(
        "{name:<22}{:>8.2}{:>8.0}{worst:>9}{:>9.1}{:>9.1}{:>9.0}{:>9.3}{:>9}{:>11.1}",
        figures.bytes,
        figures.append,
        figures.alone,
        figures.batch,
        figures.known,
        figures.maybes,
        figures.filters,
        figures.largest as f64 / 1024.0,
    );
}

fn judge(size: u64, figures: &Figures) -> Vec<String> {
    let mut missed = Vec::new();
    let mut bar = |what: &str, is: f64, at_most: f64| {
        if is > at_most {
            missed.push(format!("{what} at {size}: {is:.2}, bar {at_most}"));
        }
    };
    bar("largest allocation", figures.largest as f64, LARGEST as f64);
    for (at, bytes, alone, batch) in BARS {
        if at == size {
            bar(
                "bytes per hash",
                figures.bytes,
                bytes.unwrap_or(f64::INFINITY),
            );
            bar("absent alone", figures.alone, alone);
            bar("absent in batches", figures.batch, batch);
        }
    }
    missed
}
