//! Exactly one effect, whatever the identity cache holds, and what the ledger is asked.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_local::StopMode;
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::pgbench;
use trellara_testkit::ground::{Ground, GroundOptions};

use crate::restart::KEYLESS;
use crate::scenario::{WITHIN, run, started, value};

mod kills;
mod told;
mod two_flows;

/// How many identities too many the ledger holds: those that stand in one flow's twice.
const TWICE: &str = "\
SELECT coalesce(sum(n - 1), 0) FROM (\
  SELECT count(*) AS n FROM trellara.applied, \
         LATERAL generate_series(0, length(hashes) / 16 - 1) AS g WHERE length(hashes) > 0 \
   GROUP BY flow, substring(hashes FROM g * 16 + 1 FOR 16)) AS i";
/// What the running applier says in its status.
async fn applier(flow: &Flow) -> Result<Value> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let daemon = flow.applier.as_ref().context("applier")?;
        if let Some(status) = daemon.status().await {
            return Ok(status["daemons"][0].clone());
        }
        ensure!(Instant::now() < deadline, "no status: {}", daemon.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn counter(applier: &Value, name: &str) -> Result<u64> {
    applier["counters"][name]
        .as_u64()
        .with_context(|| format!("{name} in {applier}"))
}

type Load = tokio::task::JoinHandle<Result<()>>;

/// Single inserts from four sessions for some seconds.
fn load(flow: &Flow, version: u32, seconds: u32) -> Result<Load> {
    load_of(
        flow,
        version,
        seconds,
        "INSERT INTO log VALUES (:client_id, 'x');",
    )
}

fn load_of(flow: &Flow, version: u32, seconds: u32, transaction: &str) -> Result<Load> {
    let script = flow.folder().join("load.sql");
    std::fs::write(&script, transaction)?;
    let url = flow.source_admin.clone();
    Ok(tokio::task::spawn_blocking(move || {
        let seconds = seconds.to_string();
        let script = script.to_string_lossy();
        let words = ["-n", "-c", "4", "-T", &seconds, "-R", "800", "-f", &script];
        pgbench(version, &url, &words).map(drop)
    }))
}

/// Warm: the ledger is written and never asked.
#[tokio::test]
async fn the_steady_state_under_load_runs_no_probe() -> Result<()> {
    let flow = started(18, "steady", &[KEYLESS], "").await?;
    load(&flow, 18, 4)?.await??;
    flow.converges(WITHIN).await?;
    let seen = applier(&flow).await?;
    ensure!(counter(&seen, "probes")? == 0, "{seen}");
    ensure!(counter(&seen, "applied_probed")? == 0, "{seen}");
    ensure!(counter(&seen, "applied_vouched")? > 500, "{seen}");
    ensure!(seen["details"]["cache"] == "vouching", "{seen}");
    Ok(())
}

/// Source and broker come back together from copies of their storage, the target does not. What the
/// source does from then on has the places of what the target has, and is something else (C02).
#[tokio::test]
async fn c33_source_and_broker_from_a_storage_snapshot_have_diverged() -> Result<()> {
    let mut ground = Ground::start(&GroundOptions::version(18))?;
    let mut flow = ground
        .flow("snapshot", KEYLESS, KEYLESS, "halt: exit")
        .await?;
    flow.start().await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'both')"]).await?;
    flow.caught_up(WITHIN).await?;
    let stopped = |ground: &mut Ground, flow: &mut Flow| -> Result<()> {
        for daemon in [flow.relay.take(), flow.applier.take()] {
            daemon.context("it was started")?.terminate(WITHIN)?;
        }
        ground.source.stop(StopMode::Fast)?;
        Ok(ground.nats.stop()?)
    };
    stopped(&mut ground, &mut flow)?;
    let kept = tempfile::tempdir()?;
    let places = [
        (ground.source.data_dir(), kept.path().join("source")),
        (ground.nats.store_dir().to_owned(), kept.path().join("nats")),
    ];
    for (data, copy) in &places {
        copied(data, copy)?;
    }
    ground.source.start_again()?;
    ground.nats.start_again()?;
    flow.start_relay()?;
    flow.start_applier()?;
    let then = "INSERT INTO log SELECT g, 'first course' FROM generate_series(10, 19) g";
    run(&flow.source_admin, &[then, then, then]).await?;
    flow.caught_up(WITHIN).await?;
    let before = value(&flow.target_admin, "SELECT count(*) FROM log").await?;
    ensure!(before == "31", "{before}");
    stopped(&mut ground, &mut flow)?;

    for (data, copy) in &places {
        std::fs::remove_dir_all(data)?;
        copied(copy, data)?;
    }
    ground.source.start_again()?;
    ground.nats.start_again()?;
    let other = "INSERT INTO log SELECT g, 'other course' FROM generate_series(10, 19) g";
    run(&flow.source_admin, &[other, other, other]).await?;
    flow.start_relay()?;
    let applier = flow.start_applier()?;
    let status = applier.wait(WITHIN)?;
    let log = applier.log();
    ensure!(status.code() == Some(10), "{status}: {log}");
    ensure!(log.contains("error: DIVERGED: "), "{log}");
    ensure!(log.contains("another course of events"), "{log}");
    let after = value(&flow.target_admin, "SELECT count(*) FROM log").await?;
    ensure!(after == before, "{after} rows: something was applied");
    Ok(())
}

fn copied(from: &Path, to: &Path) -> Result<()> {
    let copy = Command::new("cp").arg("-a").args([from, to]).status()?;
    ensure!(copy.success(), "cp ended with {copy}");
    Ok(())
}

#[tokio::test]
async fn a_rewind_is_asked_for_and_answered() -> Result<()> {
    let mut flow = started(15, "rewind", &[KEYLESS], "").await?;
    let inserts: Vec<String> = (0..300)
        .map(|id| format!("INSERT INTO log VALUES ({id}, 'x')"))
        .collect();
    let inserts: Vec<&str> = inserts.iter().map(String::as_str).collect();
    run(&flow.source_admin, &inserts).await?;
    flow.caught_up(WITHIN).await?;
    let done = flow
        .command(&["rewind", "--to", "oldest", "--output", "json"])
        .await?;
    ensure!(done.code == 0, "{done:?}");
    let report: Value = serde_json::from_str(&done.stdout)?;
    ensure!(report["transactions"] == 300, "{report}");
    ensure!(report["skipped"] == 300, "{report}");
    ensure!(report["rows_written"] == 0, "{report}");
    let seen = applier(&flow).await?;
    ensure!(counter(&seen, "duplicate_transactions")? >= 300, "{seen}");
    // As a table for people.
    let done = flow.command(&["rewind", "--to", "oldest"]).await?;
    ensure!(
        done.code == 0 && done.stdout.contains("rows written"),
        "{done:?}"
    );
    flow.converges(WITHIN).await?;
    // A place where nobody has been, and nobody who would hear it.
    let done = flow.command(&["rewind", "--to", "99999999"]).await?;
    ensure!(
        done.code == 64 && done.stderr.contains("is beyond the applied place"),
        "{done:?}"
    );
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let done = flow
        .command(&["rewind", "--to", "oldest", "--timeout", "300ms"])
        .await?;
    ensure!(
        done.code == 20 && done.stderr.contains("no applier"),
        "{done:?}"
    );
    Ok(())
}
