//! How much is looked at, under what load, and what is kept of a run.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::compare::connect;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::ground::GroundOptions;

use super::{SCHEMA, equal, table, verify};
use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run, started};

/// It says whom it waits for, and when it is told to stop, it leaves no slot that waits on.
#[tokio::test]
async fn an_interrupted_judge_leaves_no_slot_that_waits() -> Result<()> {
    const SLOTS: &str =
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'trellara\\_verify%'";
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
