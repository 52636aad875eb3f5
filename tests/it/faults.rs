//! What the target does to the applier, each fault injected for real and with its promised end: what
//! passes goes on by itself and leaves nothing behind; what does not fit stops the lane in front of
//! it until it fits; and only what is about the rows is held.

mod halting;
mod held;
mod passing;
pub(crate) mod space;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trellara_testkit::flow::Flow;

use crate::scenario::{run, value};

/// For whatever is tried again only every half a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// How many transactions the target has ever held.
async fn held(flow: &Flow) -> Result<String> {
    value(&flow.target_admin, "SELECT count(*) FROM trellara.held").await
}

/// Lets go of the applier's session.
async fn disconnect(flow: &Flow) -> Result<()> {
    let sql = "SELECT pg_terminate_backend(holder_pid) FROM trellara.lane";
    run(&flow.target_admin, &[sql]).await
}

/// Waits until the applier says that it stands in front of something, under that code.
async fn halted(flow: &Flow, code: &str) -> Result<serde_json::Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let applier = flow.applier.as_ref().context("an applier")?;
        let status = applier.status().await.unwrap_or_default();
        let halt = &status["daemons"][0]["halt"];
        if halt["code"] == code {
            return Ok(halt.clone());
        }
        ensure!(Instant::now() < deadline, "{status}\n{}", flow.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the applier has logged it.
async fn logged(flow: &mut Flow, needle: &str) -> Result<()> {
    let applier = flow.applier.as_mut().context("an applier")?;
    applier.logged(needle, PATIENCE).await
}

/// Waits until the applier waits for somebody else's lock.
async fn waits_for_a_lock(flow: &Flow) -> Result<()> {
    let sql = "SELECT count(*) FROM trellara.lane JOIN pg_stat_activity ON pid = holder_pid \
                WHERE wait_event_type = 'Lock'";
    let deadline = Instant::now() + PATIENCE;
    while value(&flow.target_admin, sql).await? != "1" {
        ensure!(Instant::now() < deadline, "{}", flow.logs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Everything arrives, and nothing of it was ever set aside.
async fn went_on(flow: &Flow) -> Result<()> {
    flow.converges(PATIENCE).await?;
    let held = held(flow).await?;
    ensure!(held == "0", "{held} were held\n{}", flow.logs());
    Ok(())
}
