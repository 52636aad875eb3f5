//! Every crash point (F01–F19, F30): the process dies there, fails there, or stands still there;
//! afterwards everything is in, once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_crashpoints::{ALL, Point, VARIABLE};
use trellara_testkit::broker;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::rows;
use crate::restart::KEYLESS;
use crate::scenario::{WITHIN, run, value};

/// Rows that are there before the flow is, so that they are copied.
const BEFORE: &str = "INSERT INTO log SELECT -g, 'before' FROM generate_series(1, 500) g";
/// WAL of which the flow carries nothing.
const OTHER: &str = "SELECT pg_logical_emit_message(false, 'elsewhere', repeat('x', 1000))";
/// More than a frame: it travels in chunks.
const LARGE: &str =
    "INSERT INTO log SELECT g, repeat(md5(g::text), 8) FROM generate_series(10000, 16000) g";
/// So that applied frames go at once.
const EXTRA: &str = "nats.history: \"100ms or 1MiB\"\nsource.acknowledge: applied";

/// Points that a daemon comes by.
fn of_daemons() -> impl Iterator<Item = Point> {
    let commands =
        |point: &Point| point.name().starts_with("setup") || point.name().starts_with("remove");
    ALL.iter().copied().filter(move |point| !commands(point))
}

/// Starts both daemons, the one that comes by the point with the word for it.
fn start(flow: &mut Flow, point: Point, action: &str) -> Result<()> {
    let word = (VARIABLE, format!("{}={action}", point.name()));
    let relay = point.name().starts_with("relay.");
    flow.environment = if relay {
        vec![word.clone()]
    } else {
        Vec::new()
    };
    flow.start_relay()?;
    flow.environment = if relay { Vec::new() } else { vec![word] };
    flow.start_applier()?;
    flow.environment = Vec::new();
    Ok(())
}

async fn write(flow: &Flow, from: u32) -> Result<()> {
    rows(flow, from..from + 10).await?;
    run(&flow.source_admin, &[OTHER]).await
}

/// A flow that comes by the point once, and what becomes of it.
async fn comes_by(ground: &Ground, point: Point, action: &str) -> Result<()> {
    let name = format!("{}_{action}", point.name().replace('.', "_"));
    let name = &name[..name.len().min(23)];
    let schema = format!("{KEYLESS}; {BEFORE}");
    let mut flow = ground.flow(name, &schema, KEYLESS, EXTRA).await?;
    flow.setup().await?;
    start(&mut flow, point, action)?;
    write(&flow, 0).await?;
    run(&flow.source_admin, &[LARGE]).await?;
    let reached = format!("crash point {} reached", point.name());
    let relay = point.name().starts_with("relay.");
    let daemon = match relay {
        true => flow.relay.as_mut(),
        false => flow.applier.as_mut(),
    };
    let daemon = daemon.context("it was started")?;
    let deadline = std::time::Instant::now() + WITHIN;
    while !daemon.log().contains(&reached) {
        ensure!(
            std::time::Instant::now() < deadline,
            "never: {}",
            daemon.log()
        );
        // Positions move, heartbeats come, frames are trimmed: all of it by writing on.
        run(&flow.source_admin, &[OTHER]).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    match action {
        "abort" => {
            daemon.wait(WITHIN)?;
            match relay {
                true => flow.start_relay()?,
                false => flow.start_applier()?,
            };
        }
        "pause" => {
            tokio::time::sleep(Duration::from_millis(700)).await;
            daemon.signal(Signal::SIGCONT)?;
        }
        _ => {}
    }
    write(&flow, 20).await?;
    flow.converges(WITHIN).await?;
    // Once in effect: without a key a row that came twice would be there twice.
    let twice = "SELECT count(*) FROM (SELECT FROM log GROUP BY id HAVING count(*) > 1) AS twice";
    ensure!(value(&flow.target_admin, twice).await? == "0");
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    Ok(())
}

async fn every_point(action: &str) -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    for point in of_daemons() {
        comes_by(&ground, point, action)
            .await
            .with_context(|| format!("{} {action}", point.name()))?;
    }
    Ok(())
}

#[tokio::test]
async fn f01_f17_whoever_dies_at_a_crash_point_has_lost_and_doubled_nothing() -> Result<()> {
    every_point("abort").await
}

#[tokio::test]
async fn f01_f17_what_fails_at_a_crash_point_is_done_again() -> Result<()> {
    every_point("error").await
}

#[tokio::test]
async fn f01_f17_whoever_stands_still_at_a_crash_point_goes_on() -> Result<()> {
    every_point("pause").await
}

/// Nothing half alive: who panics ends, and says so by its code.
#[tokio::test]
async fn f30_a_panic_ends_the_process_and_the_next_one_goes_on() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    for (name, point) in [
        ("relay_panics", trellara_crashpoints::RELAY_STORED),
        ("applier_panics", trellara_crashpoints::APPLIER_FETCHED),
        ("copy_panics", trellara_crashpoints::COPY_PART_LOADED),
    ] {
        let schema = format!("{KEYLESS}; {BEFORE}");
        let mut flow = ground.flow(name, &schema, KEYLESS, EXTRA).await?;
        flow.setup().await?;
        start(&mut flow, point, "panic")?;
        write(&flow, 0).await?;
        let daemon = match name {
            "relay_panics" => flow.relay.as_mut(),
            _ => flow.applier.as_mut(),
        };
        let status = daemon.context("it was started")?.wait(WITHIN)?;
        ensure!(
            status.code() == Some(70),
            "{name}: {status}: {}",
            flow.logs()
        );
        match name {
            "relay_panics" => flow.start_relay()?,
            _ => flow.start_applier()?,
        };
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

/// Setup is cut off, or fails, behind each of its steps in turn; the same command goes on.
#[tokio::test]
async fn f09_setup_goes_on_from_behind_each_of_its_steps() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    for action in ["abort", "error"] {
        let mut steps = 0;
        for at in 1..30 {
            let name = format!("setup_{action}_{at}");
            let schema = format!("{KEYLESS}; {BEFORE}");
            let mut flow = ground.flow(&name, &schema, KEYLESS, EXTRA).await?;
            flow.grant().await?;
            let word = format!(
                "{}={action}@{at}",
                trellara_crashpoints::SETUP_BETWEEN.name()
            );
            flow.environment = vec![(VARIABLE, word)];
            let cut = flow.command(&["setup", "--yes"]).await?;
            flow.environment = Vec::new();
            if cut.code == 0 {
                break;
            }
            steps += 1;
            ensure!(cut.stderr.contains("crash point"), "{cut:?}");
            flow.setup()
                .await
                .with_context(|| format!("{action} behind step {at}"))?;
            flow.start_relay()?;
            flow.start_applier()?;
            write(&flow, 0).await?;
            flow.converges(WITHIN).await?;
            let removed = flow.command(&["remove", "--yes"]).await?;
            ensure!(removed.code == 0, "{removed:?}");
        }
        ensure!(steps >= 6, "setup has {steps} steps only");
    }
    Ok(())
}

/// The same of the command that takes everything away.
#[tokio::test]
async fn f09_remove_goes_on_from_behind_each_of_its_steps() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    for point in ALL
        .iter()
        .filter(|point| point.name().starts_with("remove"))
    {
        for action in ["abort", "error"] {
            let name = format!("{}_{action}", point.name().replace('.', "_"));
            let mut flow = ground.flow(&name, KEYLESS, KEYLESS, EXTRA).await?;
            flow.setup().await?;
            flow.environment = vec![(VARIABLE, format!("{}={action}", point.name()))];
            let cut = flow.command(&["remove", "--yes"]).await?;
            flow.environment = Vec::new();
            ensure!(
                cut.code != 0 && cut.stderr.contains("crash point"),
                "{cut:?}"
            );
            let done = flow.command(&["remove", "--yes"]).await?;
            ensure!(done.code == 0, "{done:?}");
            let slots = format!(
                "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'trellara_{name}'"
            );
            ensure!(value(&flow.source_admin, &slots).await? == "0");
            let stream = format!("TRELLARA_{name}");
            let there = broker::stream_settings(&ground.nats.url(), &stream).await?;
            ensure!(there.is_none(), "the stream is there");
            // Nothing is in the way of another one of that name.
            flow.setup().await?;
        }
    }
    Ok(())
}
