//! What a flow survives by itself, and what it names instead of going on: second daemons that take
//! over, a broker that forgets, a source that fails over or is set back.

mod broker;
mod cluster;
mod crash;
mod failover;
mod loops;
mod network;
mod process;
mod rollback;
mod source;
mod standby;

use anyhow::{Context, Result, ensure};
use trellara_testkit::flow::Flow;

use crate::scenario::{WITHIN, run, value};

/// Rows with these ids, each in a transaction of its own.
async fn rows(flow: &Flow, ids: std::ops::Range<u32>) -> Result<()> {
    let script: Vec<String> = ids
        .map(|id| format!("INSERT INTO log VALUES ({id}, 'row {id}')"))
        .collect();
    let script: Vec<&str> = script.iter().map(String::as_str).collect();
    run(&flow.source_admin, &script).await
}

/// How many rows the target has.
async fn count(flow: &Flow) -> Result<u64> {
    let rows = value(&flow.target_admin, "SELECT count(*) FROM log").await?;
    rows.parse().context("a number")
}

/// Fails unless both daemons still run.
fn both_run(flow: &mut Flow) -> Result<()> {
    for daemon in [&mut flow.relay, &mut flow.applier].into_iter().flatten() {
        ensure!(daemon.is_running(), "ended: {}", daemon.log());
    }
    Ok(())
}

/// Setup, both daemons, and one row that came through.
async fn begun(flow: &mut Flow) -> Result<()> {
    flow.start().await?;
    rows(flow, 0..1).await?;
    flow.caught_up(WITHIN).await
}

/// Who may come in, for servers with standbys of their own.
fn replicating() -> String {
    let hba = trellara_local::shared::HBA;
    format!("host replication postgres all trust\n{hba}")
}
