//! `judge [runs] [seed] [postgres version] [transactions per second]`: `trellara verify` under load
//! while the applier is killed; exit 1 when one verdict is wrong or too many are missing.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program's report"
)]

use anyhow::{Context, Result};
use trellara_testkit::judging::{JudgingOptions, judging};

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter("off,trellara_testkit=info")
        .with_ansi(false)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| {
        let given = arguments.get(at).cloned();
        given.unwrap_or_else(|| default.to_owned())
    };
    let options = JudgingOptions {
        runs: argument(0, "200").parse().context("runs")?,
        seed: match argument(1, "random").as_str() {
            "random" => rand::random(),
            text => text.parse().context("seed")?,
        },
        version: argument(2, "18").parse().context("PostgreSQL version")?,
        clients: 16,
        rate: argument(3, "400")
            .parse()
            .context("transactions per second")?,
    };
    println!(
        "{} runs under {} clients, {} transactions/s, seed {}",
        options.runs, options.clients, options.rate, options.seed
    );
    let report = judging(&options).await?;
    print!("{report}");
    if !report.passed() {
        std::process::exit(1);
    }
    Ok(())
}
