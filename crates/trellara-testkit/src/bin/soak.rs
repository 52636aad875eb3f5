//! `soak [seconds] [seed] [postgres version] [nats version]`: one soak, its report, exit 1 when
//! the oracle objects.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's report"
)]

use std::time::Duration;

use anyhow::{Context, Result};
use trellara_testkit::soak::{SoakOptions, soak};

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| {
        arguments
            .get(at)
            .cloned()
            .unwrap_or_else(|| default.to_owned())
    };
    let options = SoakOptions {
        duration: Duration::from_secs(argument(0, "60").parse().context("seconds")?),
        seed: match argument(1, "random").as_str() {
            "random" => rand::random(),
            text => text.parse().context("seed")?,
        },
        version: argument(2, "15").parse().context("PostgreSQL version")?,
        nats_version: argument(3, "2.15.1"),
        clients: 16,
        extra: String::new(),
    };
    println!("soak of {:?}, seed {}", options.duration, options.seed);
    let report = soak(&options).await?;
    println!("{}", report.verdict);
    println!(
        "committed to clients: {}; faults: {:?}",
        report.committed, report.faults
    );
    println!(
        "duplicates delivered: {}; converged in {:?}",
        report.duplicates, report.convergence
    );
    if !report.verdict.holds() {
        std::process::exit(1);
    }
    Ok(())
}
