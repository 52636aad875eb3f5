//! The desk while the target is to stand as it does.

use anyhow::{Result, ensure};
use trellara_testkit::flow::Flow;

use super::{PASSED, ROWS, mend, quarantine, refused, said};
use crate::restart::until;
use crate::scenario::{WITHIN, run, value};

/// As a verify run that armed the fence leaves it there, for longer than this test takes.
const FENCE: &str = "INSERT INTO trellara.fence (flow, lane, run, cap, lease_until) \
     SELECT flow, lane, 'judge', '0/1', clock_timestamp() + interval '100 s' FROM trellara.lane";
const ARMED: &str = "SELECT count(*) FROM trellara.fence WHERE armed_at IS NOT NULL";
const PAUSE: &str = "INSERT INTO trellara.pause (flow, lane, reason, operator, host) \
     SELECT flow, lane, 'an upgrade', 'anna', 'a-host' FROM trellara.lane";

/// Both orders are turned away, and it is said why, until when, and where that is written.
async fn turned_away(flow: &Flow, id: &str, why: &[&str]) -> Result<()> {
    for words in [
        &["replay", id][..],
        &["discard", id, "--reason", "x", "--yes"],
    ] {
        let done = quarantine(flow, words).await?;
        ensure!(done.code == 13, "{words:?}: {done:?}\n{}", flow.logs());
        ensure!(done.stdout.is_empty(), "{words:?}: {done:?}");
        for part in why {
            ensure!(done.stderr.contains(part), "{words:?}: {done:?}");
        }
        let page = "hint: docs/operating/quarantine.md";
        ensure!(done.stderr.contains(page), "{words:?}: {done:?}");
        // That page is about two appliers.
        ensure!(!done.stderr.contains("FENCED"), "{words:?}: {done:?}");
    }
    let open = said(flow, &["list"], 0).await?;
    ensure!(open[0]["state"] == "held", "{open}");
    Ok(())
}

/// C53: whoever holds the lane turns them away, and so does the command that takes it itself.
#[tokio::test]
async fn c53_the_desk_is_turned_away_while_a_verify_run_holds_the_lane() -> Result<()> {
    let mut flow = refused(18, "judged", PASSED).await?;
    mend(&flow).await?;
    let id = said(&flow, &["list"], 0).await?[0]["id"].to_string();
    let wake = format!("SELECT pg_notify('trellara_{}', 'fence')", flow.name);
    run(&flow.target_admin, &[FENCE, &wake]).await?;
    until(&flow.target_admin, ARMED, "1", WITHIN).await?;
    let judge = ["verify run judge holds the lane", "when it has ended"];
    turned_away(&flow, &id, &judge).await?;
    // What is only looked at, and rolled back, is no harm.
    let tried = quarantine(&flow, &["replay", &id, "--dry-run"]).await?;
    ensure!(tried.code == 0, "{tried:?}");

    flow.applier = None;
    let over = "DELETE FROM trellara.fence";
    run(&flow.target_admin, &[over, FENCE]).await?;
    turned_away(&flow, &id, &judge).await?;
    run(&flow.target_admin, &[over, PAUSE]).await?;
    turned_away(&flow, &id, &["is paused", "an upgrade", "trellara resume"]).await?;
    ensure!(value(&flow.target_admin, ROWS).await? == "1x");

    run(&flow.target_admin, &["DELETE FROM trellara.pause"]).await?;
    let done = quarantine(&flow, &["replay", &id]).await?;
    ensure!(done.code == 0, "{done:?}");
    flow.start_applier()?;
    flow.converges(WITHIN).await
}
