//! `heavy [megabytes] [postgres version]`: one transaction of that size whose last change the target
//! refuses, under either policy, and once of more rows than a held one may have keys; exit 1 when it is
//! not kept as promised, not replayed equal, or takes more memory than is allowed.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use trellara_testkit::poisoning::heavy::{HeavyOptions, heavy};

/// Of relay, applier and command each.
const MEMORY_LIMIT: u64 = 256 << 20;
const ROW_BYTES: u64 = 10_240;
/// Beyond the default of `quarantine.max_keys`.
const MANY_ROWS: u64 = 600_000;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        let text = arguments.get(at);
        text.map_or(Ok(default), |text| text.parse())
    };
    let rows = number(0, 512).context("megabytes")? * (1 << 20) / ROW_BYTES;
    let version = number(1, 18).context("PostgreSQL version")? as u32;
    for (hold_dependents, rows, row_bytes) in [
        (false, rows, ROW_BYTES),
        (true, rows, ROW_BYTES),
        (true, MANY_ROWS, 32),
    ] {
        let report = heavy(&HeavyOptions {
            version,
            rows,
            row_bytes,
            hold_dependents,
            patience: Duration::from_secs(600),
        })
        .await?;
        println!("{report}");
        for (who, peak) in [
            ("relay", report.relay_peak),
            ("applier", report.applier_peak),
            ("command", report.command_peak),
        ] {
            ensure!(
                peak <= MEMORY_LIMIT,
                "the {who} took {} MiB where {} are allowed",
                peak >> 20,
                MEMORY_LIMIT >> 20
            );
        }
    }
    Ok(())
}
