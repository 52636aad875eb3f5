//! `trellara verify` beside other ways of comparing two tables: times, CPU, bars, verdicts.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use trellara_testkit::bench::verify::{FULL_ROWS, VerifyBenchOptions, bench_verify};

const USAGE: &str =
    "bench-verify: compares two equal tables of nine columns on two servers, in turn by trellara \
verify, by MD5 sums, by ordered SHA-256 blocks and by copying them out; exits with 1 when a bar is missed

  --rows N        of each table; 2000000, which the bars are about
  --rounds N      turns of each way, 1 to 9; the median counts; 3
  --postgres N    major version of both PostgreSQL servers; 18
  --output FORM   text or json, on stdout; progress goes to stderr; text";

/// The options, and whether JSON is wanted. Plain words: only the program itself knows clap.
fn arguments(mut words: impl Iterator<Item = String>) -> Result<(VerifyBenchOptions, bool)> {
    let mut options = VerifyBenchOptions {
        version: 18,
        rows: FULL_ROWS,
        rounds: 3,
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
            "--postgres" => options.version = value.parse().context("--postgres")?,
            "--output" if value == "json" => json = true,
            "--output" if value == "text" => json = false,
            _ => bail!("{word} {value} is not known\n{USAGE}"),
        }
    }
    ensure!((1..=9).contains(&options.rounds), "--rounds is 1 to 9");
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
    let report = bench_verify(&options).await?;
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
