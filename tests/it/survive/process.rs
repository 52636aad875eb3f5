//! Signals, limits of the system, and daemons that are told to stop under load (F21, F22, F29).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::compare;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::ground::GroundOptions;

use super::{both_run, rows};
use crate::bad_input::bare;
use crate::restart::{KEYLESS, ground};
use crate::scenario::WITHIN;

#[tokio::test]
async fn f21_told_to_stop_under_load_each_part_ends_in_order() -> Result<()> {
    let (_ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    let url = flow.source_admin.clone();
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let load = tokio::spawn(async move {
        let client = compare::connect(&url).await?;
        let mut id = 0;
        while stopped.try_recv().is_err() {
            id += 1;
            let sql = format!("INSERT INTO public.log VALUES ({id}, 'x')");
            client.batch_execute(&sql).await?;
        }
        Ok::<_, anyhow::Error>(())
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for verb in ["relay", "applier"] {
            let daemon = match verb {
                "relay" => flow.relay.as_mut(),
                _ => flow.applier.as_mut(),
            };
            let daemon = daemon.context(verb)?;
            let began = Instant::now();
            let status = daemon.terminate(WITHIN)?;
            ensure!(status.code() == Some(0), "{status}: {}", daemon.log());
            ensure!(
                began.elapsed() < Duration::from_secs(10),
                "{}",
                daemon.log()
            );
        }
        flow.start_relay()?;
        flow.start_applier()?;
    }
    let _ = stop.send(());
    load.await??;
    flow.converges(WITHIN).await
}

/// What is in flight cannot end: the second signal does not wait for it.
#[tokio::test]
async fn f22_a_second_signal_ends_at_once() -> Result<()> {
    let (_ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    rows(&flow, 0..2).await?;
    flow.caught_up(WITHIN).await?;
    let locker = compare::connect(&flow.target_admin).await?;
    locker
        .batch_execute("BEGIN; LOCK TABLE public.log IN ACCESS EXCLUSIVE MODE")
        .await?;
    rows(&flow, 2..4).await?;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'trellara%'";
    crate::restart::until(&flow.target_admin, waits, "1", WITHIN).await?;
    let applier = flow.applier.as_mut().context("applier")?;
    applier.signal(Signal::SIGTERM)?;
    applier
        .logged("waiting for what is in flight", WITHIN)
        .await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(applier.is_running(), "it did not wait");
    let began = Instant::now();
    applier.signal(Signal::SIGINT)?;
    applier.wait(Duration::from_secs(5))?;
    ensure!(began.elapsed() < Duration::from_secs(2));
    locker.batch_execute("COMMIT").await?;
    flow.start_applier()?;
    flow.converges(WITHIN).await
}

/// Hardly any file descriptors: said, tried again, no panic; and it works when there are some.
#[tokio::test]
async fn f29_too_few_file_descriptors_are_named_and_end_nobody() -> Result<()> {
    let (_ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    rows(&flow, 0..2).await?;
    flow.caught_up(WITHIN).await?;
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    rows(&flow, 2..10).await?;
    for verb in ["relay", "applier"] {
        let log = flow.folder().join(format!("{verb}-few.log"));
        let broker = [("TRELLARA__NATS__URL", bare(&flow.places.nats_url))];
        for few in [14, 17, 20] {
            let mut daemon = Daemon::start_limited(&flow.config(), &[verb], &log, &broker, few)?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(
                !daemon.log().contains("panicked"),
                "{few}: {}",
                daemon.log()
            );
            daemon.kill()?;
        }
    }
    flow.start_relay()?;
    flow.start_applier()?;
    flow.converges(WITHIN).await?;
    both_run(&mut flow)
}
