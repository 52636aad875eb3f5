//! `large [rows] [postgres version]`: one transaction of that many rows, streamed, with relay and
//! applier killed in its middle; exit 1 when it does not arrive equal within the memory bound.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use trellara_testkit::large::{LargeOptions, large};

/// Of relay and applier each.
const MEMORY_LIMIT: u64 = 256 << 20;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        let text = arguments.get(at);
        text.map_or(Ok(default), |text| text.parse())
    };
    let rows = number(0, 5_000_000).context("rows")?;
    let options = LargeOptions {
        rows,
        version: number(1, 15).context("PostgreSQL version")? as u32,
        // A source with its defaults keeps less than that wholly in memory until it commits.
        decoding_memory: (rows < 2_000_000).then_some("1MB"),
        patience: Duration::from_secs(600),
    };
    let report = large(&options).await?;
    println!("{report}");
    for (who, peak) in [
        ("relay", report.relay_peak),
        ("applier", report.applier_peak),
    ] {
        ensure!(
            peak <= MEMORY_LIMIT,
            "the {who} took {} MiB where {} are allowed",
            peak >> 20,
            MEMORY_LIMIT >> 20
        );
    }
    Ok(())
}
