//! Flows one behind the other, and flows that would bite their own tail (B122).

use anyhow::{Result, ensure};
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{begun, rows};
use crate::restart::{KEYLESS, until};
use crate::scenario::{WITHIN, run};

/// From A to B, and what arrived there on to C; our own books are not carried along.
#[tokio::test]
async fn b122_a_chain_of_flows_carries_everything_on() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let mut first = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    begun(&mut first).await?;
    run(&ground.source.url("postgres"), &["CREATE DATABASE chain"]).await?;
    run(&ground.source.url("chain"), &[KEYLESS]).await?;
    let places = trellara_testkit::flow::Places {
        source_url: ground.target.url("cases"),
        target_url: ground.source.url("chain"),
        nats_url: ground.nats.url(),
        nats_monitor_url: Some(ground.nats.monitor_url()),
    };
    let mut second = trellara_testkit::flow::Flow::new("chain", places, "")?;
    second.start().await?;
    rows(&first, 1..50).await?;
    first.converges(WITHIN).await?;
    until(
        &ground.source.url("chain"),
        "SELECT count(*) FROM log",
        "50",
        WITHIN,
    )
    .await
}

#[tokio::test]
async fn b122_a_flow_that_would_carry_everything_back_is_refused() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let mut there = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    begun(&mut there).await?;
    let places = trellara_testkit::flow::Places {
        source_url: ground.target.url("cases"),
        target_url: ground.source.url("cases"),
        nats_url: ground.nats.url(),
        nats_monitor_url: Some(ground.nats.monitor_url()),
    };
    let back = trellara_testkit::flow::Flow::new("back", places, "")?;
    back.grant().await?;
    // Without the right to look it can only be feared.
    let checked = back.command(&["check"]).await?;
    ensure!(checked.stdout.contains("FLOW_LOOP_UNKNOWN"), "{checked:?}");
    let look = "GRANT USAGE ON SCHEMA trellara TO PUBLIC; GRANT SELECT ON trellara.lane TO PUBLIC";
    run(&ground.target.url("cases"), &[look]).await?;
    let refused = back.command(&["setup", "--yes"]).await?;
    ensure!(refused.code == 11, "{refused:?}");
    let words = format!("{}{}", refused.stdout, refused.stderr);
    ensure!(words.contains("FLOW_LOOP"), "{words}");
    Ok(())
}
