//! A daemon that slept while its flow became another one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::broker;

use crate::restart::{KEYLESS, ground};
use crate::scenario::{WITHIN, run};
use trellara_testkit::ground::GroundOptions;

const STREAM: &str = "TRELLARA_cases";

/// Its checkpoint names a sequence of the stream before: in the new one nobody has applied so far.
#[tokio::test]
async fn c24_an_applier_that_slept_through_a_new_setup_trims_nothing_of_it() -> Result<()> {
    // More than a quarter of the stream, so that it is looked at every second: it slept longer.
    let history = "nats.history: 3s or 1GiB\nnats.max_bytes: 1GiB";
    let (ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, history).await?;
    for id in 0..150 {
        let insert = format!("INSERT INTO log VALUES ({id}, 'before')");
        run(&flow.source_admin, &[&insert]).await?;
    }
    flow.caught_up(WITHIN).await?;
    let passed = broker::last_sequence(&ground.nats.url(), STREAM).await?;
    ensure!(passed > 60, "too few frames to trim by: {passed}");

    // It looks once, and what it sees now is old enough to go when it wakes.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let slept = Instant::now();
    let asleep = flow.applier.take().context("applier")?;
    asleep.signal(Signal::SIGSTOP)?;
    flow.relay.as_mut().context("relay")?.kill()?;
    let removed = flow.command(&["remove", "--yes"]).await?;
    ensure!(removed.code == 0, "{removed:?}");
    for client in [&flow.source_admin, &flow.target_admin] {
        run(client, &["TRUNCATE log"]).await?;
    }
    flow.setup().await?;
    flow.start_relay()?;
    for id in 0..40 {
        let insert = format!("INSERT INTO log VALUES ({id}, 'after')");
        run(&flow.source_admin, &[&insert]).await?;
    }
    let whole = "INSERT INTO log SELECT g, repeat('x', 2000) FROM generate_series(1, 3000) AS g";
    run(&flow.source_admin, &[whole]).await?;
    tokio::time::sleep(Duration::from_secs(4).saturating_sub(slept.elapsed())).await;
    asleep.signal(Signal::SIGCONT)?;
    flow.applier = Some(asleep);
    flow.converges(WITHIN).await
}
