//! Rows that the *source* loses when the snapshot of a fresh slot is read too early.

use std::time::Duration;

use anyhow::{Result, ensure};
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::race::{RaceOptions, RaceReport, Reading, race};

/// Until the raw reading has lost something, at most so often.
const TRIES: usize = 8;

async fn raced(ground: &Ground, number: usize, reading: Reading) -> Result<RaceReport> {
    let name = format!("race{number}");
    let create = format!("CREATE DATABASE {name}");
    trellara_testkit::compare::connect(&ground.source.url("postgres"))
        .await?
        .batch_execute(&create)
        .await?;
    let options = RaceOptions {
        clients: 16,
        length: Duration::from_secs(3),
        reading,
    };
    let report = race(&ground.source.url(&name), options).await?;
    eprintln!("{report}");
    Ok(report)
}

/// Minor releases differ: some wait before they hand the snapshot out. What is promised is that
/// nothing is lost behind the barrier; what is measured before says how much that means here.
async fn barrier_protects_the_source(version: u32) -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(version))?;
    let mut raw_lost = 0;
    for number in 0..TRIES {
        raw_lost = raced(&ground, number, Reading::AtOnce).await?.lost();
        if raw_lost > 0 {
            break;
        }
    }
    if raw_lost == 0 {
        eprintln!("this server hands no snapshot out before it may be read");
    }
    let behind = raced(&ground, TRIES, Reading::BehindTheBarrier).await?;
    ensure!(behind.slots > 0, "{behind}");
    ensure!(behind.lost() == 0, "{behind}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slots_snapshot_read_behind_the_barrier_loses_nothing_on_15() -> Result<()> {
    barrier_protects_the_source(15).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slots_snapshot_read_behind_the_barrier_loses_nothing_on_18() -> Result<()> {
    barrier_protects_the_source(18).await
}
