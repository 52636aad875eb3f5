//! `trellara pause` and `trellara resume`, under load and across restarts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;

use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, started, value};

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text)";

/// Writes to the source until it is told to stop; how many transactions.
fn load(flow: &Flow, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<Result<u64>> {
    let (url, stop) = (flow.source_admin.clone(), stop.clone());
    tokio::spawn(async move {
        let client = compare::connect(&url).await?;
        let mut written = 0;
        while !stop.load(Relaxed) {
            let sql = format!(
                "INSERT INTO public.t VALUES ({written}, 'x'); \
                 UPDATE public.t SET v = 'y' WHERE id = {written} / 2"
            );
            client.batch_execute(&sql).await?;
            written += 1;
        }
        Ok(written)
    })
}

const MANY: &str = "SELECT count(*) > 50 FROM t";
const APPLIED: &str =
    "SELECT end_lsn::text FROM trellara.applied ORDER BY first_ordinal DESC LIMIT 1";

async fn paused(flow: &Flow, words: &[&str]) -> Result<Value> {
    let words: Vec<&str> = ["pause", "--output", "json"]
        .iter()
        .chain(words)
        .copied()
        .collect();
    let done = flow.command(&words).await?;
    ensure!(done.code == 0, "{done:?}\n{}", flow.logs());
    Ok(serde_json::from_str(&done.stdout)?)
}

async fn resumed(flow: &Flow) -> Result<Value> {
    let done = flow.command(&["resume", "--output", "json"]).await?;
    ensure!(done.code == 0, "{done:?}");
    Ok(serde_json::from_str(&done.stdout)?)
}

/// The applier is killed and started again under the pause, and the relay goes on: nothing moves in
/// the target until somebody resumes, and then everything is there.
#[tokio::test]
async fn f116_a_pause_under_load_loses_nothing() -> Result<()> {
    for version in [15, 18] {
        let mut flow = started(version, "paused", &[SCHEMA], "").await?;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = load(&flow, &stop);
        until(&flow.target_admin, MANY, "t", WITHIN).await?;
        let said = paused(&flow, &["--reason", "an index build"]).await?;
        let lane = &said["lanes"][0];
        ensure!(
            lane["already"] == false && lane["reason"] == "an index build",
            "{said}"
        );
        let at = value(&flow.target_admin, APPLIED).await?;
        ensure!(lane["lsn"] == at.as_str(), "{at}: {said}");
        let forecast = &said["forecast"];
        let rate = |field: &str| forecast[field].as_f64().unwrap_or_default();
        ensure!(
            rate("wal_bytes_per_second") > 0.0 && rate("stream_bytes_per_second") > 0.0,
            "{said}"
        );
        ensure!(rate("stream_full_in_seconds") > 0.0, "{said}");

        let epoch = value(&flow.target_admin, "SELECT epoch FROM trellara.lane").await?;
        flow.applier.as_mut().context("applier")?.kill()?;
        flow.start_applier()?;
        // Not the word of the one that was killed.
        let stands = format!(
            "SELECT p.stands_epoch = l.epoch AND l.epoch > {epoch} \
               FROM trellara.pause AS p, trellara.lane AS l"
        );
        until(&flow.target_admin, &stands, "t", WITHIN).await?;
        // The source goes on meanwhile, by much.
        let far = value(&flow.source_admin, "SELECT count(*) FROM t").await?;
        let further = format!("SELECT count(*) > {far} + 200 FROM t");
        until(&flow.source_admin, &further, "t", WITHIN).await?;
        ensure!(value(&flow.target_admin, APPLIED).await? == at, "it moved");
        told_everywhere(&flow).await?;

        let said = resumed(&flow).await?;
        let lane = &said["lanes"][0];
        ensure!(
            lane["was_paused"] == true && lane["reason"] == "an index build",
            "{said}"
        );
        stop.store(true, Relaxed);
        let written = writer.await??;
        flow.converges(WITHIN).await?;
        let rows = value(&flow.target_admin, "SELECT count(*) FROM t").await?;
        ensure!(rows == written.to_string(), "{rows} of {written}");
        let audit = "SELECT string_agg(action || ' ' || reason || (lsn > '0/0')::text, ',' ORDER BY id) \
                       FROM trellara.audit";
        let audit = value(&flow.target_admin, audit).await?;
        ensure!(audit == "paused an index buildtrue,resumed true", "{audit}");
    }
    Ok(())
}

/// Whoever looks learns that the flow is paused, by whom and why.
async fn told_everywhere(flow: &Flow) -> Result<()> {
    let applier = flow.applier.as_ref().context("applier")?;
    ensure!(applier.ready().await == Some(true), "/readyz is not green");
    let ready = applier.get("/readyz").await.context("an answer")?;
    ensure!(
        ready.contains("\"paused\"") && ready.contains("an index build"),
        "{ready}"
    );
    let metrics = applier.metrics().await.unwrap_or_default();
    let gauge = metrics
        .lines()
        .find(|line| line.starts_with("trellara_applier_paused{"));
    ensure!(gauge.is_some_and(|line| line.ends_with(" 1")), "{gauge:?}");
    let status = flow.command(&["status"]).await?;
    ensure!(status.code == 0, "{status:?}");
    for named in [
        "an index build",
        "stands still",
        "WAL ",
        "grows by",
        "the flow is paused since",
    ] {
        ensure!(
            status.stdout.contains(named),
            "{named} is not in {}",
            status.stdout
        );
    }
    // A judge does not wait for what cannot come.
    for mode in ["exact", "rolling"] {
        let began = Instant::now();
        let words = ["verify", "--mode", mode, "--timeout", "10m"];
        let judged = flow.command(&words).await?;
        ensure!(judged.code == 4, "{judged:?}");
        let said = format!("{}{}", judged.stdout, judged.stderr);
        ensure!(
            said.contains("paused since") && said.contains("trellara resume"),
            "{said}"
        );
        ensure!(began.elapsed() < WITHIN, "it waited");
    }
    Ok(())
}

#[tokio::test]
async fn a_pause_without_an_applier_holds_for_the_one_that_comes() -> Result<()> {
    let mut flow = started(18, "early", &[SCHEMA], "").await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'x')"]).await?;
    flow.caught_up(WITHIN).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let said = paused(&flow, &["--reason", "first"]).await?;
    let lane = &said["lanes"][0];
    ensure!(lane["lsn"].is_null() && lane["applier"].is_null(), "{said}");
    // Nobody's reason is written over, and nothing is recorded that did not happen.
    let said = paused(&flow, &["--reason", "second", "--lane", "0"]).await?;
    let lane = &said["lanes"][0];
    ensure!(
        lane["already"] == true && lane["reason"] == "first",
        "{said}"
    );
    let count = "SELECT count(*) FROM trellara.audit";
    ensure!(value(&flow.target_admin, count).await? == "1");
    run(&flow.source_admin, &["INSERT INTO t VALUES (2, 'x')"]).await?;
    flow.start_applier()?.logged("paused", WITHIN).await?;
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM t").await? == "1");
    resumed(&flow).await?;
    flow.converges(WITHIN).await?;
    let said = resumed(&flow).await?;
    ensure!(said["lanes"][0]["was_paused"] == false, "{said}");
    ensure!(value(&flow.target_admin, count).await? == "2");
    Ok(())
}

/// An applier that waits for somebody's lock has not come to stand: the pause holds, and the command
/// says that it does not know.
#[tokio::test]
async fn a_pause_that_the_applier_has_not_come_to_times_out_and_holds() -> Result<()> {
    let flow = started(18, "late", &[SCHEMA], "").await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'x')"]).await?;
    flow.caught_up(WITHIN).await?;
    let locker = compare::connect(&flow.target_admin).await?;
    let lock = "BEGIN; LOCK TABLE public.t IN SHARE MODE";
    locker.batch_execute(lock).await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (2, 'x')"]).await?;
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass";
    until(&flow.target_admin, waits, "1", WITHIN).await?;
    let words = ["pause", "--reason", "x", "--timeout", "1s"];
    let done = flow.command(&words).await?;
    ensure!(
        done.code == 20 && done.stderr.contains("the pause is in force"),
        "{done:?}"
    );
    locker.batch_execute("COMMIT").await?;
    let said = paused(&flow, &["--reason", "x"]).await?;
    ensure!(said["lanes"][0]["lsn"].is_string(), "{said}");
    // What it had in hand is in.
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM t").await? == "2");
    resumed(&flow).await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn a_pause_that_makes_no_sense_is_refused() -> Result<()> {
    let flow = prepared(18, "senseless", &[SCHEMA], &[SCHEMA], "").await?;
    flow.grant().await?;
    let pause = ["pause", "--reason", "x"];
    for words in [&pause[..], &["resume"]] {
        let done = flow.command(words).await?;
        ensure!(
            done.code == 11 && done.stderr.contains("run trellara setup"),
            "{done:?}"
        );
    }
    flow.setup().await?;
    for words in [
        &["pause"][..],
        &["pause", "--reason", " "],
        &["pause", "--reason", "x", "--lane", "7"],
        &["resume", "--lane", "7"],
    ] {
        let done = flow.command(words).await?;
        ensure!(done.code == 64, "{words:?}: {done:?}");
    }
    let rows =
        "SELECT (SELECT count(*) FROM trellara.pause) + (SELECT count(*) FROM trellara.audit)";
    ensure!(value(&flow.target_admin, rows).await? == "0");
    // A target of the version before.
    run(&flow.target_admin, &["DROP TABLE trellara.pause"]).await?;
    for words in [&pause[..], &["resume"]] {
        let done = flow.command(words).await?;
        ensure!(
            done.code == 11 && done.stderr.contains("older than pauses"),
            "{done:?}"
        );
    }
    Ok(())
}

/// A lane that stands in front of a held transaction can be paused; the desk waits for the end of the
/// pause like everything else, and says so.
#[tokio::test]
async fn the_desk_waits_for_the_end_of_a_pause() -> Result<()> {
    let flow = started(18, "desked", &[SCHEMA], "").await?;
    run(&flow.target_admin, &["INSERT INTO t VALUES (2, 'eve')"]).await?;
    for id in 1..4 {
        let row = format!("INSERT INTO t VALUES ({id}, 'x')");
        run(&flow.source_admin, &[&row]).await?;
    }
    let held = "SELECT count(*) FROM trellara.held WHERE state = 'held' AND reason = 'blocking'";
    until(&flow.target_admin, held, "1", WITHIN).await?;
    let said = paused(&flow, &["--reason", "looking at it"]).await?;
    ensure!(said["lanes"][0]["lsn"].is_string(), "{said}");
    run(&flow.target_admin, &["DELETE FROM t WHERE id = 2"]).await?;
    let turned_away = flow.command(&["quarantine", "replay", "--all"]).await?;
    ensure!(
        turned_away.code == 13 && turned_away.stderr.contains("is paused since"),
        "{turned_away:?}"
    );
    let ids = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t";
    ensure!(value(&flow.target_admin, ids).await? == "1");
    ensure!(value(&flow.target_admin, held).await? == "1");
    resumed(&flow).await?;
    let replayed = flow.command(&["quarantine", "replay", "--all"]).await?;
    ensure!(replayed.code == 0, "{replayed:?}");
    flow.converges(WITHIN).await
}
