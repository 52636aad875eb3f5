//! `trellara verify`: says "equal" only of what is, while everything goes on, and finds what is not.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use trellara_local::StopMode;
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::pgbench;
use trellara_testkit::ground::GroundOptions;

use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run, started, value};

mod cases;
mod doubled;
mod held;
mod hostile;
mod modes;
mod repair;
mod reports;
mod rolling;
mod tied;

/// Temporary slots of judges, in the flow's source.
const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots \
     WHERE slot_name LIKE 'trellara\\_verify%' AND database = current_database()";
const SCHEMA: &str = "\
    CREATE TABLE kept (id bigint PRIMARY KEY, v text, n numeric);\
    CREATE TABLE log (id bigint, note text); ALTER TABLE log REPLICA IDENTITY FULL";

/// Runs it; its exit code and its document, when it printed one.
async fn verify(flow: &Flow, more: &[&str]) -> Result<(i32, Option<Value>, String)> {
    let mut words = vec!["verify", "--output", "json"];
    words.extend_from_slice(more);
    let finished = flow.command(&words).await?;
    let document = serde_json::from_str(&finished.stdout).ok();
    Ok((finished.code, document, finished.stderr))
}

/// It said that both are equal.
async fn equal(flow: &Flow) -> Result<Value> {
    let (code, document, stderr) = verify(flow, &[]).await?;
    ensure!(code == 0, "verify ended with {code}: {document:?} {stderr}");
    let document = document.context("a document")?;
    ensure!(document["verdict"] == "equal", "{document}");
    Ok(document)
}

fn table<'a>(document: &'a Value, name: &str) -> Result<&'a Value> {
    document["tables"]
        .as_array()
        .and_then(|tables| tables.iter().find(|table| table["id"] == name))
        .with_context(|| format!("{name} in {document}"))
}

#[tokio::test]
async fn equal_is_said_of_an_idle_flow_on_15() -> Result<()> {
    idle(15, "judged15").await
}

#[tokio::test]
async fn equal_is_said_of_an_idle_flow_on_18() -> Result<()> {
    idle(18, "judged18").await
}

/// Nothing is written while it runs: the relay's heartbeats alone bring the applier to the
/// consistent point (C09).
async fn idle(version: u32, name: &str) -> Result<()> {
    let flow = started(version, name, &[SCHEMA], "").await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO kept SELECT g, 'v' || g, g / 7.0 FROM generate_series(1, 5000) AS g",
            "INSERT INTO log SELECT g % 100, 'n' FROM generate_series(1, 1000) AS g",
        ],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let began = Instant::now();
    let document = equal(&flow).await?;
    ensure!(table(&document, "public.kept")?["source_rows"] == 5000);
    ensure!(table(&document, "public.log")?["target_rows"] == 1000);
    ensure!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    // Nothing stays behind: no fence, no slot.
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM trellara.fence").await? == "0");
    ensure!(value(&flow.source_admin, SLOTS).await? == "0");
    Ok(())
}

/// A row planted on the target is found with its key and kind, and counted, whatever goes on.
#[tokio::test]
async fn what_was_changed_behind_its_back_is_found_under_load() -> Result<()> {
    let flow = started(18, "planted", &[SCHEMA], "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 3000) AS g"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let load = load(&flow, 18, 6)?;
    let document = equal(&flow).await?;
    ensure!(
        document["applier_held_seconds"]
            .as_f64()
            .is_some_and(|held| held < 5.0),
        "{document}"
    );
    run(
        &flow.target_admin,
        &[
            "UPDATE kept SET v = 'other' WHERE id = 17",
            "DELETE FROM kept WHERE id = 1200",
            "INSERT INTO kept VALUES (999999, 'nobody''s', 1)",
        ],
    )
    .await?;
    let (code, document, stderr) = verify(&flow, &[]).await?;
    ensure!(code == 3, "verify ended with {code}: {stderr}");
    let document = document.context("a document")?;
    let kept = table(&document, "public.kept")?;
    let found = |kind: &str| kept[kind].as_u64();
    ensure!(
        found("changed") == Some(1) && found("missing") == Some(1) && found("extra") == Some(1),
        "{kept}"
    );
    let rows: Vec<String> = kept["differences"]
        .as_array()
        .context("differences")?
        .iter()
        .map(|row| {
            format!(
                "{} {} {}",
                row["id"].as_str().unwrap_or(""),
                row["kind"].as_str().unwrap_or(""),
                row["columns"]
            )
        })
        .collect();
    for wanted in [
        "id=17 changed [\"v\"]",
        "id=1200 missing []",
        "id=999999 extra []",
    ] {
        ensure!(rows.iter().any(|row| row == wanted), "{wanted} in {rows:?}");
    }
    ensure!(
        !document.to_string().contains("nobody's"),
        "a value without --values"
    );
    load.await??;
    flow.caught_up(WITHIN).await
}

/// Inserts and updates from eight sessions for some seconds.
fn load(flow: &Flow, version: u32, seconds: u32) -> Result<tokio::task::JoinHandle<Result<()>>> {
    let script = flow.folder().join("load.sql");
    std::fs::write(
        &script,
        "\\set id random(2000, 2900)\n\
         BEGIN; UPDATE kept SET n = n + 1 WHERE id = :id; \
         INSERT INTO log VALUES (:client_id, 'x'); COMMIT;\n",
    )?;
    let url = flow.source_admin.clone();
    Ok(tokio::task::spawn_blocking(move || {
        let seconds = seconds.to_string();
        let script = script.to_string_lossy();
        let words = ["-n", "-c", "8", "-T", &seconds, "-f", &script];
        pgbench(version, &url, &words).map(drop)
    }))
}

/// No run under load says "different" of what is equal, also while the applier is killed.
#[tokio::test]
async fn under_load_and_kills_equal_is_never_called_different() -> Result<()> {
    let mut flow = started(15, "judgedload", &[SCHEMA], "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 3000) AS g"],
    )
    .await?;
    let load = load(&flow, 15, 8)?;
    let (mut said_equal, mut said_nothing) = (0, 0);
    while !load.is_finished() {
        let killed = (said_equal + said_nothing) % 2 == 1;
        if killed {
            flow.applier.as_mut().context("applier")?.kill()?;
            flow.start_applier()?;
        }
        let (code, document, stderr) = verify(&flow, &[]).await?;
        match code {
            0 => said_equal += 1,
            4 => said_nothing += 1,
            _ => anyhow::bail!("verify ended with {code}: {document:?} {stderr}"),
        }
    }
    load.await??;
    ensure!(said_equal > 0, "{said_nothing} runs, none with a verdict");
    equal(&flow).await?;
    flow.converges(WITHIN).await
}

/// A judge that is killed at its fence holds the flow up for no longer than its lease.
#[tokio::test]
async fn a_judge_killed_at_its_fence_lets_the_flow_go_on() -> Result<()> {
    let flow = started(18, "killedjudge", &[SCHEMA], "").await?;
    // As a judge that armed the fence leaves it behind.
    run(
        &flow.target_admin,
        &[
            "INSERT INTO trellara.fence (flow, lane, run, cap, lease_until) \
             SELECT flow, lane, 'dead', '0/1', clock_timestamp() + interval '5 s' \
               FROM trellara.lane",
            "CREATE TABLE public.lease AS SELECT lease_until FROM trellara.fence",
            "SELECT pg_notify('trellara_killedjudge', 'fence')",
        ],
    )
    .await?;
    let armed = "SELECT count(*) FROM trellara.fence WHERE armed_at IS NOT NULL";
    until(&flow.target_admin, armed, "1", WITHIN).await?;
    run(
        &flow.source_admin,
        &["INSERT INTO kept VALUES (1, 'held', 1)"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let waited = "SELECT min(applied_at) - (SELECT lease_until FROM public.lease) \
                         BETWEEN '0' AND interval '3 s' \
                    FROM trellara.applied WHERE length(hashes) > 0";
    ensure!(
        value(&flow.target_admin, waited).await? == "t",
        "not by the lease's end"
    );
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM kept").await? == "1");
    equal(&flow).await.map(drop)
}

/// Real ones, killed anywhere between their start and their end, under load.
#[tokio::test]
async fn judges_killed_anywhere_cost_no_transaction() -> Result<()> {
    let seed = rand::random();
    eprintln!("seed {seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let flow = started(15, "killedjudges", &[SCHEMA], "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 3000) AS g"],
    )
    .await?;
    let load = load(&flow, 15, 8)?;
    let mut left_behind = 0;
    while !load.is_finished() {
        let alive = Duration::from_millis(chance.random_range(20..700));
        // Its future dropped, the process is killed.
        let ended = tokio::time::timeout(alive, verify(&flow, &[])).await;
        let fences = value(&flow.target_admin, "SELECT count(*) FROM trellara.fence").await?;
        left_behind += u32::from(ended.is_err() && fences == "1");
        if left_behind > 0 && chance.random_bool(0.5) {
            // The next one meets a fence whose lease lasts.
            continue;
        }
        until(
            &flow.target_admin,
            "SELECT count(*) FROM trellara.fence",
            "0",
            WITHIN,
        )
        .await?;
    }
    load.await??;
    ensure!(left_behind > 0, "no judge was killed at its fence");
    flow.converges(WITHIN).await
}

/// A transaction that stays open on the source is named, and the flow goes on (C53).
#[tokio::test]
async fn an_open_transaction_on_the_source_is_named() -> Result<()> {
    // It holds up every slot of its server.
    let (_ground, flow) = ground(GroundOptions::version(18), SCHEMA, "").await?;
    let open = trellara_testkit::compare::connect(&flow.source_admin).await?;
    open.batch_execute("BEGIN; INSERT INTO public.kept VALUES (1, 'open', 1)")
        .await?;
    let (code, _, stderr) = verify(&flow, &[]).await?;
    ensure!(code == 4, "verify ended with {code}: {stderr}");
    ensure!(
        stderr.contains("backend ") && stderr.contains("open for"),
        "{stderr}"
    );
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (1, 'goes on')"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    open.batch_execute("COMMIT").await?;
    equal(&flow).await.map(drop)
}

/// Without a relay or an applier there is no verdict, and it says what is missing.
#[tokio::test]
async fn without_an_applier_there_is_no_verdict() -> Result<()> {
    let mut flow = started(18, "alone", &[SCHEMA], "").await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let (code, document, stderr) = verify(&flow, &["--timeout", "2s"]).await?;
    ensure!(
        code == 4 && document.is_none(),
        "verify ended with {code}: {stderr}"
    );
    ensure!(stderr.contains("did not answer"), "{stderr}");
    flow.start_applier()?;
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    run(&flow.source_admin, &["INSERT INTO kept VALUES (1, 'a', 1)"]).await?;
    let (code, _, stderr) = verify(&flow, &["--timeout", "2s"]).await?;
    ensure!(code == 4, "verify ended with {code}: {stderr}");
    flow.start_relay()?;
    equal(&flow).await.map(drop)
}

/// A server that goes away in the middle of the comparison: no verdict, never "equal".
#[tokio::test]
async fn a_target_that_restarts_in_the_middle_is_no_verdict() -> Result<()> {
    let (mut ground, flow) = ground(GroundOptions::version(18), SCHEMA, "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO kept SELECT g, repeat('v', 200), g FROM generate_series(1, 300000) AS g"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let (ended, seen) = tokio::join!(verify(&flow, &[]), async {
        // Its readers are at work.
        let reads = "SELECT count(*) > 0 FROM pg_stat_activity \
                      WHERE application_name LIKE 'trellara-verify/%' AND query LIKE '%hash_record%' \
                        AND state = 'active'";
        let deadline = Instant::now() + WITHIN;
        while value(&flow.target_admin, reads).await? != "t" {
            ensure!(Instant::now() < deadline, "it never read the target");
        }
        ground.target.stop(StopMode::Immediate)?;
        ground.target.start_again()?;
        Ok(())
    });
    seen?;
    let (code, document, stderr) = ended?;
    ensure!(
        code == 4 && document.is_none(),
        "verify ended with {code}: {document:?} {stderr}"
    );
    flow.caught_up(WITHIN).await?;
    equal(&flow).await.map(drop)
}
