//! `soak [seconds] [seed] [postgres version] [nats version] [configuration]`: one soak, its report,
//! exit 1 when the oracle objects or the soak met too little to prove anything.

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
        .with_env_filter("off,trellara_testkit=info")
        .with_ansi(false)
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
        rate_per_client: 40,
        extra: argument(4, ""),
    };
    println!("soak of {:?}, seed {}", options.duration, options.seed);
    let report = soak(&options).await?;
    print!("{report}");
    if !report.passed() {
        std::process::exit(1);
    }
    Ok(())
}
