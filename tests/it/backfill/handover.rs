//! First copies under sixteen writing sessions. `make soak-handover` runs more of them.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use trellara_testkit::handover::{
    Handover, HandoverOptions, KillPlan, SHAPES, Shape, ground, handover, handover_beside,
};

/// Whose peak memory is bounded, whatever is copied.
const MOST_MEMORY: u64 = 256 << 20;

fn options() -> HandoverOptions {
    let seed = rand::random();
    eprintln!("seed {seed}");
    HandoverOptions {
        clients: 16,
        rows: 3000,
        // Less than in `make soak-handover`: other tests run beside it.
        rate_per_client: 15,
        seed,
        kills: None,
        burst: 0,
        extra: String::new(),
        patience: Duration::from_secs(90),
    }
}

/// No id is missing and none is there twice, in tables with and without a key (B56). All at once, on
/// the same servers: most of a hand-over's time is somebody waiting for somebody else.
async fn repeated(version: u32) -> Result<()> {
    const REPEATS: usize = 5;
    // Each lasts longer beside the others, and writes as much as alone.
    const RATE: u32 = 6;
    let ground = ground(version)?;
    let one = async |number: usize| {
        let name = format!("copy{number}");
        let shape = SHAPES[number % SHAPES.len()];
        let options = HandoverOptions {
            rate_per_client: RATE,
            ..options()
        };
        let done = handover_beside(&ground, &name, shape, &options).await?;
        eprintln!("{done}");
        ensure!(done.copying.rows > 0 && done.totals.committed > 0, "{done}");
        anyhow::Ok(())
    };
    try_join_all((0..REPEATS).map(one)).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn b56_snapshot_and_stream_are_everything_and_nothing_twice_on_15() -> Result<()> {
    repeated(15).await
}

#[tokio::test(flavor = "multi_thread")]
async fn b56_snapshot_and_stream_are_everything_and_nothing_twice_on_18() -> Result<()> {
    repeated(18).await
}

async fn killed(version: u32, shape: Shape) -> Result<Handover> {
    let options = HandoverOptions {
        rows: 8000,
        kills: Some(KillPlan::Random {
            most: 4,
            apart: 600,
        }),
        extra: "backfill: {max_bytes: 4MiB}".to_owned(),
        ..options()
    };
    let mut ground = ground(version)?;
    let done = handover(&mut ground, "killed", shape, &options).await?;
    eprintln!("{done}");
    ensure!(!done.kills.is_empty(), "nothing was killed: {done}");
    Ok(done)
}

#[tokio::test(flavor = "multi_thread")]
async fn b57_whatever_is_killed_during_the_copy_goes_on_on_15() -> Result<()> {
    killed(15, Shape::Given).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn b57_whatever_is_killed_during_the_copy_goes_on_on_18() -> Result<()> {
    killed(18, Shape::Leaf).await.map(drop)
}

/// Relay, applier and broker in turn die in front of the first part, behind every fourth and behind
/// the last, while a third of the copy fits into its stream; `make soak-handover` has each of them die behind every one.
async fn killed_behind_parts(version: u32, shape: Shape) -> Result<()> {
    const BEFORE_AND_BEHIND: u32 = 2;
    let options = HandoverOptions {
        clients: 4,
        rows: 12_000,
        kills: Some(KillPlan::Boundaries {
            victim: None,
            every: 4,
        }),
        extra: "backfill: {max_bytes: 4MiB}".to_owned(),
        ..options()
    };
    let mut ground = ground(version)?;
    let done = handover(&mut ground, "behind", shape, &options).await?;
    eprintln!("{done}");
    let killed: u32 = done.kills.values().sum();
    ensure!(killed > BEFORE_AND_BEHIND, "{done}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn b57_who_dies_behind_a_part_has_lost_none_on_15() -> Result<()> {
    killed_behind_parts(15, Shape::Root).await
}

#[tokio::test(flavor = "multi_thread")]
async fn b57_who_dies_behind_a_part_has_lost_none_on_18() -> Result<()> {
    killed_behind_parts(18, Shape::Given).await
}

/// The copy is several times what its stream holds, and so is what is written meanwhile; neither may
/// wait for the other.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_hold_a_part_of_the_copy_and_of_the_load_lock_nothing_up() -> Result<()> {
    let options = HandoverOptions {
        rows: 20_000,
        burst: 16,
        extra: "nats.max_bytes: 8MiB\nbackfill: {max_bytes: 8MiB}".to_owned(),
        ..options()
    };
    let mut ground = ground(15)?;
    let done = handover(&mut ground, "small", Shape::Leaf, &options).await?;
    eprintln!("{done}");
    for peak in done.peaks {
        ensure!(peak <= MOST_MEMORY, "{done}");
    }
    Ok(())
}
