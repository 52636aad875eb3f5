//! `cargo bench -p trellara-dedup --bench counts [-- --record]`: instructions of the hot paths,
//! counted by callgrind and compared with `counts.txt`.
//!
//! They are the same on a busy machine, so a regression shows where times do not. Ends with 1 when
//! a path takes more than [`TOLERANCE`] beyond its record; without valgrind there is a line and
//! nothing to compare.

#![expect(clippy::print_stdout, reason = "a bench prints")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs};

use trellara_dedup::{Binding, Cache, Identity, Moment, Ordinal, Ring, Settings, Stamp};

mod shared;

use shared::{ABSENT, identity};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/counts.txt");

/// Other versions of the compiler and the standard library move a count by this much at most.
const TOLERANCE: f64 = 0.05;

/// Enough for four generations, the newest partly merged.
const RESIDENT: u64 = 400_000;

/// How often each path is run; the run with none is subtracted.
const PATHS: [(&str, u64); 5] = [
    ("probe absent alone", 50_000),
    ("probe absent in batches of 1000", 50_000),
    ("verify absent in batches of 1000", 50_000),
    ("append", 100_000),
    ("hydrate", 100_000),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().collect();
    if let [_, path, times] = &arguments[..]
        && let Ok(times) = times.parse()
    {
        run(path, times);
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed: no instructions counted");
        return ExitCode::SUCCESS;
    }
    let recorded = fs::read_to_string(RECORD).unwrap_or_default();
    let (mut record, mut worse) = (String::new(), false);
    for (path, times) in PATHS {
        let each = (count(path, times) - count(path, 0)) as f64 / times as f64;
        let before = recorded.lines().find_map(|line| line.strip_prefix(path));
        let before: Option<f64> = before.and_then(|text| text.trim().parse().ok());
        let more = before.map(|before| each / before - 1.0);
        let shown = more.map_or("no record".to_owned(), |more| {
            format!("{:+.1} %", more * 100.0)
        });
        println!("{path:<34}{each:>8.1} instructions   {shown}");
        writeln!(record, "{path:<34}{each:>8.1}").expect("memory");
        worse |= more.is_some_and(|more| more > TOLERANCE);
    }
    if arguments.iter().any(|argument| argument == "--record") {
        fs::write(RECORD, record).expect("the record is written");
        return ExitCode::SUCCESS;
    }
    ExitCode::from(u8::from(worse))
}

/// Instructions of a whole run.
fn count(path: &str, times: u64) -> u64 {
    let program = env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([path, &times.to_string()])
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected :"));
    let collected = collected.and_then(|(_, count)| count.trim().parse().ok());
    collected.unwrap_or_else(|| panic!("callgrind collected nothing:\n{text}"))
}

fn run(path: &str, times: u64) {
    match path {
        "hydrate" => hydrate(times),
        "append" => drop(append(RESIDENT + times)),
        "verify absent in batches of 1000" => verify(times),
        other => probe(other, times),
    }
}

fn append(upto: u64) -> Ring {
    let mut ring = Ring::new(16 << 20);
    for at in 0..upto {
        ring.append(Ordinal(at as i64), &[identity(at)], Stamp(0));
    }
    black_box(ring)
}

/// Made in both runs, so that making them is not counted.
fn absent() -> Vec<Identity> {
    (0..50_000).map(|at| identity(ABSENT + at)).collect()
}

fn probe(path: &str, times: u64) {
    let (ring, absent) = (append(RESIDENT), absent());
    let absent = &absent[..times as usize];
    if path == "probe absent alone" {
        for identity in absent {
            black_box(ring.contains(black_box(*identity)));
        }
    } else {
        let mut hits = Vec::new();
        for batch in absent.chunks(1000) {
            black_box(ring.probe(black_box(batch), &mut hits));
        }
    }
}

fn hydrated(upto: u64) -> Cache<u32> {
    let cache = Cache::new(Settings::default());
    let window = Duration::from_secs(3600);
    let binding = Binding {
        epoch: 1,
        history: 1,
        identity: 1,
        window,
    };
    let mut hydration = cache
        .hydrate(&0, &binding, Some(upto), Moment(0))
        .expect("room");
    let rows: Vec<_> = (1..=upto).map(identity).collect();
    for (at, row) in rows.chunks(120).enumerate() {
        let first = Ordinal(at as i64 * 120 + 1);
        hydration.push(first, row, Stamp(0)).expect("contiguous");
    }
    cache
        .finish(hydration, Ordinal(0), Ordinal(upto as i64), Moment(0))
        .expect("complete");
    cache
}

fn hydrate(times: u64) {
    black_box(hydrated(RESIDENT + times));
}

fn verify(times: u64) {
    let (cache, absent) = (hydrated(RESIDENT), absent());
    for batch in absent[..times as usize].chunks(1000) {
        black_box(cache.verify(&0, black_box(batch), Ordinal(0), Moment(0)));
    }
}
