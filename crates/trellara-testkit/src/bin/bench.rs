//! Trellara beside native logical replication: rates, CPU per process, bars, verdicts.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use trellara_testkit::bench::{BenchOptions, Kind, bench};

/// Drains the same backlogs through native logical replication and through Trellara, in turn, on
/// the same servers, and judges the ratios. Exits with 1 when a bar is missed.
#[derive(Debug, Parser)]
struct Arguments {
    /// A tenth of each workload; for a look, not for a verdict.
    #[arg(long, conflicts_with = "scale")]
    quick: bool,
    /// Part of the full workloads (W1 200000, W3 1000, W4 500000 transactions).
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Drains per contender and workload; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    rounds: u32,
    /// Workloads, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "W1,W3,W4")]
    only: Vec<String>,
    /// Major version of both PostgreSQL servers.
    #[arg(long, default_value_t = 18)]
    postgres: u32,
    /// Form of the report on stdout; progress goes to stderr.
    #[arg(long, default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Not the servers' notices.
        .with_env_filter("trellara_testkit=info")
        .with_target(false)
        .init();
    let arguments = Arguments::parse();
    let kinds: Result<Vec<Kind>> = arguments
        .only
        .iter()
        .map(|name| Kind::parse(name))
        .collect();
    let options = BenchOptions {
        version: arguments.postgres,
        kinds: kinds?,
        scale: if arguments.quick {
            0.1
        } else {
            arguments.scale
        },
        rounds: arguments.rounds,
    };
    let report = bench(&options).await?;
    match arguments.output {
        Output::Text => print!("{report}"),
        Output::Json => {
            let text = serde_json::to_string_pretty(&report.json()).context("rendering JSON")?;
            println!("{text}");
        }
    }
    Ok(if report.is_met() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}
