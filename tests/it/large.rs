//! A large transaction, streamed, with the parts killed in its middle. `make soak` runs the same
//! with five million rows, and `make soak-quarantine` the one that is held with half a gigabyte.

use std::time::Duration;

use anyhow::{Result, ensure};
use trellara_testkit::large::{LargeOptions, large};
use trellara_testkit::poisoning::heavy::{HeavyOptions, heavy};

const MEMORY_LIMIT: u64 = 256 << 20;

#[tokio::test]
async fn b30_a_large_transaction_survives_the_parts_killed_in_its_middle() -> Result<()> {
    let report = large(&LargeOptions {
        version: 15,
        rows: 300_000,
        // So that half of it is far more than the source holds back.
        decoding_memory: Some("1MB"),
        patience: Duration::from_secs(120),
    })
    .await?;
    eprintln!("{report}");
    ensure!(
        report.relay_peak.max(report.applier_peak) <= MEMORY_LIMIT,
        "more than {} MiB: {report}",
        MEMORY_LIMIT >> 20
    );
    Ok(())
}

#[tokio::test]
async fn a_large_transaction_is_held_and_replayed_after_the_stream_has_let_it_go() -> Result<()> {
    let report = heavy(&HeavyOptions {
        version: 15,
        rows: 4000,
        row_bytes: 10_240,
        hold_dependents: true,
        patience: Duration::from_secs(120),
    })
    .await?;
    eprintln!("{report}");
    for peak in [report.applier_peak, report.command_peak] {
        ensure!(
            peak <= MEMORY_LIMIT,
            "more than {} MiB: {report}",
            MEMORY_LIMIT >> 20
        );
    }
    Ok(())
}
