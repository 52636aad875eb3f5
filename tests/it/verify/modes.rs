//! How much is looked at, under what load, and what is kept of a run.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::compare::connect;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::ground::GroundOptions;

use super::{SCHEMA, equal};
use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run};

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
