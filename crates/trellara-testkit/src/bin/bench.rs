//! Trellara beside native logical replication: rates, CPU per process, bars, verdicts.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use trellara_testkit::bench::{BenchOptions, Kind, bench};

const USAGE: &str =
    "bench: drains the same backlogs through native logical replication and through \
Trellara, in turn, on the same servers, and judges the ratios; exits with 1 when a bar is missed

  --quick         a tenth of each workload; for a look, not for a verdict
  --scale PART    part of the full workloads (W1 200000, W3 1000, W4 500000 transactions); 1
  --rounds N      drains per contender and workload, 1 to 9; the median counts; 3
  --only LIST     workloads, separated by commas; W1,W3,W4
  --postgres N    major version of both PostgreSQL servers; 18
  --output FORM   text or json, on stdout; progress goes to stderr; text";

/// The options, and whether JSON is wanted. Plain words: only the program itself knows clap.
fn arguments(mut words: impl Iterator<Item = String>) -> Result<(BenchOptions, bool)> {
    let mut options = BenchOptions {
        version: 18,
        kinds: ["W1", "W3", "W4"]
            .map(Kind::parse)
            .into_iter()
            .collect::<Result<_>>()?,
        scale: 1.0,
        rounds: 3,
    };
    let mut json = false;
    while let Some(word) = words.next() {
        if word == "--help" {
            println!("{USAGE}");
            std::process::exit(0);
        }
        if word == "--quick" {
            options.scale = 0.1;
            continue;
        }
        let value = words
            .next()
            .with_context(|| format!("{word} without a value\n{USAGE}"))?;
        match word.as_str() {
            "--scale" => options.scale = value.parse().context("--scale")?,
            "--rounds" => options.rounds = value.parse().context("--rounds")?,
            "--only" => options.kinds = value.split(',').map(Kind::parse).collect::<Result<_>>()?,
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
    let report = bench(&options).await?;
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
