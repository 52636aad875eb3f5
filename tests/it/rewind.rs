//! `trellara rewind`, judged by what the target itself says of its rows.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;

use trellara_testkit::daemon::Daemon;

use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, started, value};
use trellara_testkit::flow::Flow;

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text)";

#[tokio::test]
async fn a_rewind_leaves_every_row_version_of_the_target_as_it_was() -> Result<()> {
    for version in [15, 18] {
        let flow = started(version, "rewound", &[SCHEMA], "").await?;
        let mut script: Vec<String> = (0..150)
            .map(|id| format!("INSERT INTO t VALUES ({id}, 'x')"))
            .collect();
        script.extend((0..150).map(|id| format!("UPDATE t SET v = 'y' WHERE id = {id}")));
        script.extend((0..50).map(|id| format!("DELETE FROM t WHERE id = {id}")));
        let script: Vec<&str> = script.iter().map(String::as_str).collect();
        run(&flow.source_admin, &script).await?;
        flow.caught_up(WITHIN).await?;

        let target = compare::connect(&flow.target_admin).await?;
        let written = async || {
            // Progress without transactions is written down every ten seconds, whatever happens.
            let ledger =
                compare::row_versions(&target, "trellara.applied", "length(hashes) > 0").await?;
            let rows = compare::row_versions(&target, "public.t", "true").await?;
            Ok::<_, anyhow::Error>((rows, ledger))
        };
        let before = written().await?;
        let words = ["rewind", "--to", "oldest", "--output", "json"];
        let done = flow.command(&words).await?;
        ensure!(done.code == 0, "{done:?}");
        ensure!(written().await? == before, "rows were written");
        let report: Value = serde_json::from_str(&done.stdout)?;
        for (field, wanted) in [
            ("transactions", 350),
            ("skipped", 350),
            ("confirmed_in_ledger", 350),
            ("below_watermark", 0),
            ("rows_written", 0),
        ] {
            ensure!(report[field] == wanted, "{field} in {report}");
        }
        let oldest = report["first_sequence"].as_u64().context("a sequence")?;
        places(&flow, oldest).await?;
        ensure!(written().await? == before, "rows were written");
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

/// To the sequence and to the position where the target stands: one frame, or a few behind it.
async fn places(flow: &Flow, oldest: u64) -> Result<()> {
    let stands = "SELECT stream_sequence || ' ' || end_lsn FROM trellara.applied \
                   WHERE length(hashes) > 0 ORDER BY first_ordinal DESC LIMIT 1";
    let stands = value(&flow.target_admin, stands).await?;
    let (sequence, lsn) = stands.split_once(' ').context("both")?;
    for to in [sequence, lsn] {
        let words = ["rewind", "--to", to, "--output", "json"];
        let done = flow.command(&words).await?;
        ensure!(done.code == 0, "{done:?}");
        let report: Value = serde_json::from_str(&done.stdout)?;
        let first = report["first_sequence"].as_u64().context("a sequence")?;
        ensure!(first == sequence.parse::<u64>()?, "{to}: {report}");
        ensure!(first > oldest && report["rows_written"] == 0, "{report}");
        ensure!(report["transactions"].as_u64() >= Some(1), "{report}");
    }
    for (to, named) in [
        ("99999999", "is beyond the applied place"),
        ("F/0", "F/0 is beyond"),
    ] {
        let done = flow.command(&["rewind", "--to", to]).await?;
        ensure!(done.code == 64 && done.stderr.contains(named), "{done:?}");
    }
    for nonsense in ["newest", "0", "-1", "1/", "1/2/3"] {
        let done = flow.command(&["rewind", "--to", nonsense]).await?;
        ensure!(done.code == 64, "{done:?}");
    }
    Ok(())
}

/// NOTIFY reaches whoever listens at the moment, and an applier that is starting does not yet.
#[tokio::test]
async fn a_rewind_that_was_asked_for_before_the_applier_listens_is_done() -> Result<()> {
    let mut flow = started(18, "early", &[SCHEMA], "").await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'x')"]).await?;
    flow.caught_up(WITHIN).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let words = ["rewind", "--to", "oldest", "--timeout", "40s"];
    let log = flow.folder().join("rewind.log");
    let mut rewind = Daemon::start(&flow.config(), &words, &log)?;
    let asked = "SELECT count(*) > 0 FROM pg_stat_activity \
                  WHERE datname = current_database() AND query LIKE 'SELECT pg_notify%'";
    until(&flow.target_admin, asked, "t", WITHIN).await?;
    flow.start_applier()?;
    let ended = rewind.wait(WITHIN)?;
    ensure!(ended.success(), "{ended}: {}", rewind.log());
    // Each second it was asked again, and it was done once.
    let applier = flow.applier.as_ref().context("applier")?.log();
    let times = applier.matches("rewinding, as asked for").count();
    ensure!(times == 1, "{times} times: {applier}");
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn what_is_asked_before_setup_is_answered_by_name() -> Result<()> {
    let flow = prepared(18, "unset", &[SCHEMA], &[SCHEMA], "").await?;
    flow.grant().await?;
    for (words, code) in [
        (&["wait", "--timeout", "20s"][..], 11),
        (&["rewind", "--to", "oldest"][..], 11),
        (&["status"][..], 1),
    ] {
        let done = flow.command(words).await?;
        let told = format!("{}{}", done.stdout, done.stderr);
        ensure!(
            done.code == code && told.contains("is not set up in this target"),
            "{words:?} ended with {}: {told}",
            done.code
        );
        ensure!(told.contains("run trellara setup"), "{words:?}: {told}");
        ensure!(!told.contains("42P01"), "{words:?}: {told}");
    }
    Ok(())
}
