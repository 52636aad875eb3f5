//! No progress although there is something to do: `/readyz` turns red, and says what is waited for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;

use crate::scenario::{WITHIN, run, started};

/// Waits until the applier is as wanted; what it says then.
async fn applier_is(flow: &Flow, wanted: bool) -> Result<serde_json::Value> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let applier = flow.applier.as_ref().context("an applier")?;
        let said = applier.failing().await;
        if let Some(failing) = &said
            && (failing == &serde_json::json!([])) == wanted
        {
            return Ok(failing.clone());
        }
        ensure!(Instant::now() < deadline, "it still says {said:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_lock_on_the_target_turns_readyz_red_by_name_and_green_again() -> Result<()> {
    let schema = ["CREATE TABLE t (id int PRIMARY KEY, v text)"];
    let extra = "stall_timeout: 2s\nsource.acknowledge: applied";
    let mut flow = started(18, "stall", &schema, extra).await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'before')"]).await?;
    flow.converges(WITHIN).await?;
    applier_is(&flow, true).await?;

    let locker = compare::connect(&flow.target_admin).await?;
    locker
        .batch_execute("BEGIN; LOCK TABLE public.t IN SHARE MODE")
        .await?;
    let row = locker.query_one("SELECT pg_backend_pid()", &[]).await?;
    let holder = format!("held by pid {} (", row.get::<_, i32>(0));
    run(&flow.source_admin, &["INSERT INTO t VALUES (2, 'behind')"]).await?;
    // Red by the timeout alone; who holds it up is known about then.
    let said = applier_is(&flow, false).await?;
    let reason = said[0]["reason"].as_str().unwrap_or_default();
    ensure!(
        reason.starts_with("no progress for ") && reason.contains("applying 1 transaction"),
        "{said}"
    );
    let deadline = Instant::now() + WITHIN;
    loop {
        let said = applier_is(&flow, false).await?.to_string();
        if said.contains(&holder) {
            break;
        }
        ensure!(Instant::now() < deadline, "no {holder:?} in {said}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The command asks the target itself, wherever the applier runs.
    let status = flow.command(&["status"]).await?;
    ensure!(
        status.stdout.contains("waits for a lock on the target") && status.stdout.contains(&holder),
        "{status:?}"
    );

    locker.batch_execute("COMMIT").await?;
    applier_is(&flow, true).await?;
    flow.converges(WITHIN).await?;

    // So does a relay whose target says nothing any more: nothing may be confirmed.
    flow.applier.take();
    run(&flow.source_admin, &["INSERT INTO t VALUES (3, 'alone')"]).await?;
    let relay = flow.relay.as_ref().context("a relay")?;
    let deadline = Instant::now() + WITHIN;
    loop {
        let said = relay.failing().await;
        if let Some(failing) = said.as_ref().and_then(|said| said.get(0)) {
            ensure!(
                failing["reason"] == "a position report of the registered target",
                "{failing}"
            );
            ensure!(failing["waiting_seconds"].is_number(), "{failing}");
            break;
        }
        ensure!(Instant::now() < deadline, "it still says {said:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    flow.start_applier()?;
    flow.converges(WITHIN).await
}
