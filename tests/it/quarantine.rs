//! A transaction that the target refuses, from outside: what the daemon, its endpoint and
//! `trellara status` say, under both policies, and how it ends at the desk.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::flow::Flow;

use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, value};

const SOURCE: &[&str] = &[
    "CREATE TABLE parent (id bigint PRIMARY KEY, v text NOT NULL)",
    "CREATE TABLE child (id bigint PRIMARY KEY, parent bigint REFERENCES parent, v text)",
];
const TARGET: &[&str] = &[
    "CREATE TABLE parent (id bigint PRIMARY KEY, v text NOT NULL, \
         CONSTRAINT short CHECK (length(v) < 10))",
    "CREATE TABLE child (id bigint PRIMARY KEY, parent bigint REFERENCES parent, v text)",
];
const LONG: &str = "INSERT INTO parent VALUES (2, 'much too long')";

/// The applier's own report; nothing before its endpoint is there.
async fn applier(flow: &Flow) -> Result<Value> {
    let daemon = flow.applier.as_ref().context("applier")?;
    let status = daemon.status().await.unwrap_or_default();
    Ok(status["daemons"][0].clone())
}

/// Waits until the applier says so.
async fn said(flow: &Flow, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let began = Instant::now();
    loop {
        let report = applier(flow).await?;
        if wanted(&report) {
            return Ok(report);
        }
        ensure!(
            began.elapsed() < WITHIN,
            "never {what}: {report}\n{}",
            flow.logs()
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn metric(flow: &Flow, name: &str) -> Result<f64> {
    let daemon = flow.applier.as_ref().context("applier")?;
    let metrics = daemon.metrics().await.context("metrics")?;
    let line = metrics.lines().find(|line| line.starts_with(name));
    let line = line.with_context(|| format!("no {name} in {metrics}"))?;
    let number = line.rsplit(' ').next().context("a number")?;
    Ok(number.parse()?)
}

/// Under `halt` the lane stands in front of it, red, and says where to look; replayed once the
/// cause is gone, it goes on in the same process.
#[tokio::test]
async fn under_halt_a_refused_transaction_is_held_named_and_replayed() -> Result<()> {
    for version in [15, 18] {
        let mut flow = prepared(version, "refused", SOURCE, TARGET, "").await?;
        flow.start().await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO parent VALUES (1, 'a')",
                LONG,
                "INSERT INTO parent VALUES (3, 'c')",
            ],
        )
        .await?;
        let report = said(&flow, "halted", |report| report["state"] == "halted").await?;
        let halt = &report["halt"];
        ensure!(
            halt["code"] == "APPLY_FAILED" && halt["exit_code"] == 12,
            "{report}"
        );
        let reason = halt["reason"].as_str().unwrap_or_default();
        let hint = halt["hint"].as_str().unwrap_or_default();
        ensure!(
            reason.contains("is held (1)") && reason.contains("23514"),
            "{report}"
        );
        ensure!(hint.contains("trellara quarantine show 1"), "{report}");
        ensure!(!hint.contains("restart"), "{report}");
        let report = said(&flow, "in front of it", |report| {
            report["quarantine"]["stands_in_front_of"] == 1
        })
        .await?;
        let held = &report["quarantine"];
        ensure!(held["policy"] == "halt" && held["open"] == 1, "{report}");
        ensure!(held["passed"] == 0 && held["note"].is_null(), "{report}");
        ensure!(held["oldest_seconds"].as_f64().is_some(), "{report}");
        let daemon = flow.applier.as_ref().context("applier")?;
        ensure!(daemon.ready().await == Some(false), "it is not ready");
        ensure!(metric(&flow, "trellara_quarantined_transactions").await? == 1.0);
        ensure!(metric(&flow, "trellara_quarantine_oldest_timestamp_seconds").await? > 1e9);
        ensure!(metric(&flow, "trellara_quarantine_bytes").await? > 100.0);
        ensure!(metric(&flow, "trellara_applier_halted").await? == 1.0);
        let status = flow.command(&["status"]).await?;
        for line in [
            "held     1 transaction, ",
            "transaction 1 is held: trellara quarantine show 1",
        ] {
            ensure!(status.stdout.contains(line), "{status:?}");
        }
        ensure!(
            value(
                &flow.target_admin,
                "SELECT string_agg(id::text, ' ') FROM parent"
            )
            .await?
                == "1"
        );

        let refused = flow.command(&["quarantine", "replay", "1"]).await?;
        ensure!(refused.code == 12, "{refused:?}");
        run(
            &flow.target_admin,
            &["ALTER TABLE parent DROP CONSTRAINT short"],
        )
        .await?;
        let replayed = flow.command(&["quarantine", "replay", "1"]).await?;
        ensure!(replayed.code == 0, "{replayed:?}\n{}", flow.logs());
        flow.converges(WITHIN).await?;
        said(&flow, "running", |report| report["state"] == "running").await?;
        ensure!(metric(&flow, "trellara_quarantined_transactions").await? == 0.0);
        ensure!(
            metric(&flow, "trellara_applier_halted").await? == 0.0,
            "the gauge goes back"
        );
        let again = flow.command(&["quarantine", "replay", "1"]).await?;
        ensure!(
            again.code == 0 && again.stdout.contains("already replayed"),
            "{again:?}"
        );
        flow.tells_no_secret()?;
        ensure!(!flow.logs().contains("much too long"), "a value in a log");
    }
    Ok(())
}

/// A process that is to leave leaves with the code, and its successor goes on by itself once the
/// cause is gone.
#[tokio::test]
async fn a_process_that_halts_leaves_with_12_and_the_next_one_tries_once() -> Result<()> {
    let mut flow = prepared(18, "leaves", SOURCE, TARGET, "halt: exit").await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &["INSERT INTO parent VALUES (1, 'a')", LONG],
    )
    .await?;
    for _ in 0..2 {
        let daemon = flow.applier.as_mut().context("applier")?;
        let status = daemon.wait(WITHIN)?;
        ensure!(status.code() == Some(12), "{status}: {}", daemon.log());
        flow.start_applier()?;
    }
    let daemon = flow.applier.as_mut().context("applier")?;
    daemon.wait(WITHIN)?;
    let attempts = "SELECT attempts FROM trellara.held";
    ensure!(value(&flow.target_admin, attempts).await? == "3");
    run(
        &flow.target_admin,
        &["ALTER TABLE parent DROP CONSTRAINT short"],
    )
    .await?;
    flow.start_applier()?;
    flow.converges(WITHIN).await?;
    let deeds = "SELECT string_agg(action, ', ' ORDER BY id) FROM trellara.audit";
    let deeds = value(&flow.target_admin, deeds).await?;
    ensure!(deeds == "held, held, held, retried at start", "{deeds}");
    Ok(())
}

/// Under `hold_dependents` what touches it waits, through a foreign key of the target as well; the
/// rest goes on, ready and named; and `replay --all` makes both sides equal.
#[tokio::test]
async fn under_hold_dependents_only_what_touches_it_waits_until_all_is_replayed() -> Result<()> {
    for version in [15, 18] {
        let extra = "quarantine: {policy: hold_dependents}";
        let mut flow = prepared(version, "waits", SOURCE, TARGET, extra).await?;
        flow.start().await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO parent VALUES (1, 'a')",
                LONG,
                "INSERT INTO child VALUES (10, 1, 'of 1')",
                "INSERT INTO child VALUES (20, 2, 'of 2')",
                "UPDATE parent SET v = 'short' WHERE id = 2",
                "INSERT INTO parent VALUES (3, 'c')",
                "UPDATE child SET v = 'mine' WHERE id = 20",
                "UPDATE parent SET v = 'd' WHERE id = 1",
            ],
        )
        .await?;
        let last = "SELECT v FROM parent WHERE id = 1";
        until(&flow.target_admin, last, "d", WITHIN).await?;
        let rows = "SELECT (SELECT string_agg(id::text, ' ' ORDER BY id) FROM parent) || '; ' || \
                           (SELECT string_agg(id::text, ' ' ORDER BY id) FROM child)";
        let rows = value(&flow.target_admin, rows).await?;
        ensure!(rows == "1 3; 10", "{rows}");
        let held = "SELECT string_agg(reason, ' ' ORDER BY id) FROM trellara.held";
        let held = value(&flow.target_admin, held).await?;
        ensure!(held == "poisoned dependent dependent dependent", "{held}");
        let report = said(&flow, "held", |report| report["quarantine"]["open"] == 4).await?;
        ensure!(
            report["ready"] == true && report["state"] == "running",
            "{report}"
        );
        ensure!(
            report["quarantine"]["note"] == "the target may show a state the source never had",
            "{report}"
        );
        let status = flow.command(&["status"]).await?;
        ensure!(
            status
                .stdout
                .contains("4 held and passed; the target may show a state"),
            "{status:?}"
        );

        // Whoever was killed knows what waits.
        flow.applier.as_mut().context("applier")?.kill()?;
        run(
            &flow.source_admin,
            &["UPDATE child SET v = 'again' WHERE id = 20"],
        )
        .await?;
        flow.start_applier()?;
        run(
            &flow.source_admin,
            &["UPDATE parent SET v = 'e' WHERE id = 1"],
        )
        .await?;
        until(&flow.target_admin, last, "e", WITHIN).await?;
        ensure!(value(&flow.target_admin, "SELECT count(*) FROM trellara.held").await? == "5");

        run(
            &flow.target_admin,
            &["ALTER TABLE parent DROP CONSTRAINT short"],
        )
        .await?;
        let replayed = flow.command(&["quarantine", "replay", "--all"]).await?;
        ensure!(replayed.code == 0, "{replayed:?}\n{}", flow.logs());
        flow.converges(WITHIN).await?;
        flow.verified().await?;
    }
    Ok(())
}
