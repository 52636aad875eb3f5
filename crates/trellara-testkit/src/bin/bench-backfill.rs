//! A first copy beside `psql COPY OUT | psql COPY IN`: times, CPU, memory, bars, verdicts.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use trellara_testkit::bench::backfill::{BackfillBenchOptions, FULL_ROWS, bench_backfill};

const USAGE: &str = "bench-backfill: copies 30 tables, one half of all rows in the first, into an \
empty database, in turn by one psql pipe, by several, and by relay and applier; exits with 1 when a \
bar is missed

  --rows N        of all tables together; 10000000, which the bars are about
  --rounds N      turns of each way, 1 to 9; the median counts; 3
  --workers N     workers of the copy, and pipes; 2
  --postgres N    major version of both PostgreSQL servers; 18
  --output FORM   text or json, on stdout; progress goes to stderr; text";

/// The options, and whether JSON is wanted. Plain words: only the program itself knows clap.
fn arguments(mut words: impl Iterator<Item = String>) -> Result<(BackfillBenchOptions, bool)> {
    let mut options = BackfillBenchOptions {
        version: 18,
        rows: FULL_ROWS,
        rounds: 3,
        workers: 2,
    };
    let mut json = false;
    while let Some(word) = words.next() {
        if word == "--help" {
            println!("{USAGE}");
            std::process::exit(0);
        }
        let value = words.next();
        let value = value.with_context(|| format!("{word} without a value\n{USAGE}"))?;
        match word.as_str() {
            "--rows" => options.rows = value.parse().context("--rows")?,
            "--rounds" => options.rounds = value.parse().context("--rounds")?,
            "--workers" => options.workers = value.parse().context("--workers")?,
            "--postgres" => options.version = value.parse().context("--postgres")?,
            "--output" if value == "json" => json = true,
            "--output" if value == "text" => json = false,
            _ => bail!("{word} {value} is not known\n{USAGE}"),
        }
    }
    ensure!((1..=9).contains(&options.rounds), "--rounds is 1 to 9");
    ensure!((1..=30).contains(&options.workers), "--workers is 1 to 30");
    Ok((options, json))
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Not the servers' notices.
        .with_env_filter("trellara_testkit=info")
        .with_target(false)
        .init();
    let (options, json) = arguments(std::env::args().skip(1))?;
    let report = bench_backfill(&options).await?;
    if json {
        let text = serde_json::to_string_pretty(&report.json()).context("rendering JSON")?;
        println!("{text}");
    } else {
        print!("{report}");
    }
    Ok(if report.is_met() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}
