//! How much is looked at, under what load, and what is kept of a run.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::compare::connect;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::ground::GroundOptions;

use super::{SCHEMA, SLOTS, equal, table, verify};
use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run, started, value};

/// It says whom it waits for, and when it is told to stop, it leaves no slot that waits on.
#[tokio::test]
async fn an_interrupted_judge_leaves_no_slot_that_waits() -> Result<()> {
    let (_ground, flow) = ground(GroundOptions::version(18), SCHEMA, "").await?;
    let open = connect(&flow.source_admin).await?;
    open.batch_execute("BEGIN; INSERT INTO public.kept VALUES (1, 'open', 1)")
        .await?;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let log = flow.folder().join(format!("{signal}.log"));
        let mut judge = Daemon::start(&flow.config(), &["verify"], &log)?;
        until(&flow.source_admin, SLOTS, "1", WITHIN).await?;
        judge
            .logged("waiting for open transactions on the source", WITHIN)
            .await?;
        judge.signal(signal)?;
        let ended = judge.wait(WITHIN)?;
        ensure!(
            ended.code() == Some(4),
            "{signal}: {ended:?} {}",
            judge.log()
        );
        // The transaction that it waited for is still open.
        until(&flow.source_admin, SLOTS, "0", WITHIN).await?;
        run(
            &flow.source_admin,
            &["INSERT INTO log VALUES (1, 'goes on')"],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
    }
    open.batch_execute("COMMIT").await?;
    equal(&flow).await.map(drop)
}

/// Half a table is no difference: while a copy is not in nothing is compared, and its name is said.
#[tokio::test]
async fn b91_nothing_is_compared_while_a_copy_is_not_in() -> Result<()> {
    let flow = started(18, "copying", &[SCHEMA], "").await?;
    run(
        &flow.target_admin,
        &[
            "UPDATE trellara.backfill SET state = 'failed', reason = 'as if', initial = false \
            WHERE table_name = 'kept'",
        ],
    )
    .await?;
    run(&flow.source_admin, &["INSERT INTO kept VALUES (1, 'a', 1)"]).await?;
    for mode in ["exact", "rolling"] {
        let (code, document, stderr) = verify(&flow, &["--mode", mode]).await?;
        ensure!(code == 4, "{mode} ended with {code}: {stderr}");
        let said = format!("{stderr} {}", document.unwrap_or_default());
        ensure!(
            said.contains("the copy of public.kept is not in (failed: as if)"),
            "{mode}: {said}"
        );
    }
    run(
        &flow.target_admin,
        &["UPDATE trellara.backfill SET state = 'done' WHERE table_name = 'kept'"],
    )
    .await?;
    equal(&flow).await.map(drop)
}

/// A quick look finds other numbers of rows, says nothing of what it did not look at, and reads
/// nothing while the target is behind.
#[tokio::test]
async fn a_quick_look_counts_and_never_says_equal() -> Result<()> {
    let flow = started(18, "quick", &[SCHEMA], "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 3000) AS g"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let quick = [
        "--mode",
        "quick",
        "--pause-lag",
        "64MiB",
        "--max-rate",
        "1GiB",
    ];
    let (code, document, stderr) = verify(&flow, &quick).await?;
    ensure!(code == 4, "verify ended with {code}: {stderr}");
    let document = document.context("a document")?;
    ensure!(document["verdict"] == "no difference found", "{document}");
    ensure!(table(&document, "public.kept")?["source_rows"] == 3000);
    run(&flow.target_admin, &["DELETE FROM kept WHERE id > 2990"]).await?;
    let (code, document, stderr) = verify(&flow, &quick).await?;
    ensure!(code == 3, "verify ended with {code}: {stderr}");
    let document = document.context("a document")?;
    ensure!(table(&document, "public.kept")?["target_rows"] == 2990);
    // One table that is equal says nothing of the other.
    let (code, document, stderr) = verify(&flow, &["--tables", "log"]).await?;
    ensure!(code == 4, "verify ended with {code}: {stderr}");
    let document = document.context("a document")?;
    ensure!(document["left_out"][0] == "public.kept", "{document}");
    Ok(())
}

/// What a run found is kept in the target, without values; a target that keeps nothing changes no
/// verdict.
#[tokio::test]
async fn what_a_run_found_is_kept() -> Result<()> {
    let mut flow = started(18, "kept", &[SCHEMA], "").await?;
    let newest = |what: &str| {
        format!("SELECT {what} FROM trellara.verify_run ORDER BY started_at DESC LIMIT 1")
    };
    run(
        &flow.source_admin,
        &["INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 50) AS g"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    equal(&flow).await?;
    let what = newest("concat_ws(' ', state, mode, lane, verdict, report->>'verdict', flow)");
    let row = value(&flow.target_admin, &what).await?;
    let expected = format!("finished exact row64 equal equal {}", flow.name);
    ensure!(row == expected, "{row}");
    let tables = "SELECT string_agg(concat_ws(' ', table_name, outcome, source_rows, done), '; ' \
                  ORDER BY table_name) FROM trellara.verify_table";
    let rows = value(&flow.target_admin, tables).await?;
    ensure!(rows == "kept equal 50 t; log equal 0 t", "{rows}");
    let old = format!(
        "INSERT INTO trellara.verify_run (run, flow, mode, lane, seed, options, state, reason, \
                operator, version, started_at, finished_at) \
         SELECT 'old' || g, '{}', 'exact', 'row64', 1, '', 'failed', '', '', '', \
                now() - interval '1 day', now() FROM generate_series(1, 150) AS g",
        flow.name
    );
    let secret = "UPDATE kept SET v = 'a secret' WHERE id = 7";
    run(&flow.target_admin, &[secret, &old]).await?;
    let (code, document, stderr) = verify(&flow, &["--values"]).await?;
    ensure!(code == 3, "verify ended with {code}: {stderr}");
    ensure!(document.is_some_and(|document| document.to_string().contains("a secret")));
    let report = value(&flow.target_admin, &newest("report")).await?;
    ensure!(
        report.contains("\"changed\"") && !report.contains("a secret"),
        "{report}"
    );
    let kept = "SELECT count(*) FROM trellara.verify_run";
    ensure!(value(&flow.target_admin, kept).await? == "100");
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let (code, _, stderr) = verify(&flow, &["--timeout", "1s"]).await?;
    ensure!(code == 4, "verify ended with {code}: {stderr}");
    let failed = value(&flow.target_admin, &newest("state || ': ' || reason")).await?;
    ensure!(
        failed.starts_with("failed: ") && failed.contains("did not answer"),
        "{failed}"
    );
    flow.start_applier()?;
    run(
        &flow.target_admin,
        &[
            "DROP TABLE trellara.verify_table, trellara.verify_run",
            "UPDATE kept SET v = 'v7' WHERE id = 7",
        ],
    )
    .await?;
    let (code, _, stderr) = verify(&flow, &[]).await?;
    ensure!(
        code == 0 && stderr.contains("setup --print-sql"),
        "{code}: {stderr}"
    );
    Ok(())
}

/// With the rights that `config/postgres` gives, and no more: the sequence of a serial column is
/// judged, and one that is not granted is said to be so.
#[tokio::test]
async fn sequences_are_judged_with_the_shipped_rights() -> Result<()> {
    let schema = "CREATE TABLE counted (id bigserial PRIMARY KEY)";
    let flow = started(18, "counted", &[schema], "").await?;
    let rows = "INSERT INTO counted SELECT FROM generate_series(1, 5)";
    run(&flow.source_admin, &[rows]).await?;
    flow.caught_up(WITHIN).await?;
    let one = |state: &'static str, document: &serde_json::Value| {
        let found = &document["sequences"];
        let is = found[0]["id"] == "public.counted_id_seq" && found[0]["state"] == state;
        ensure!(is, "{state} in {found}");
        Ok(())
    };
    one("behind", &equal(&flow).await?)?;
    let set = "SELECT setval('counted_id_seq', 5)";
    run(&flow.target_admin, &[set]).await?;
    one("ready", &equal(&flow).await?)?;
    let (sequence, role) = ("public.counted_id_seq", flow.roles.capture());
    let revoke = format!("REVOKE ALL ON SEQUENCE {sequence} FROM {role}");
    run(&flow.source_admin, &[&revoke]).await?;
    one("not readable on the source", &equal(&flow).await?)
}
