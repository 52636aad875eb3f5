//! What comes twice: published twice, or delivered twice. Each test owns its servers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trellara_local::StopMode;
use trellara_testkit::broker;
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::proxy::{Direction, Proxy, Side};
use trellara_testkit::soak::chaos::publish_again;

use crate::restart::{KEYLESS, ground};
use crate::scenario::{WITHIN, run};

const STREAM: &str = "TRELLARA_cases";

#[tokio::test]
async fn b38_no_duplicate_when_the_brokers_window_is_over() -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(2);
    let ground = Ground::start(&GroundOptions::version(15))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    flow.setup().await?;
    let nats = ground.nats.url();
    broker::set_duplicate_window(&nats, STREAM, WINDOW).await?;
    let proxy = Proxy::to_port(ground.nats.port()).await?;
    let direct = flow.places.nats_url.clone();
    // The daemons get it in their environment: the relay alone goes through the proxy.
    flow.places.nats_url = proxy.url(&direct);
    flow.start_relay()?;
    flow.places.nats_url = direct;
    flow.start_applier()?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'a')"]).await?;
    flow.caught_up(WITHIN).await?;

    // A transaction is stored and its acknowledgement is lost; the relay asks again only when the
    // broker has forgotten the message's id.
    let last = broker::last_sequence(&nats, STREAM).await?;
    proxy.hold(Direction::ToClient);
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'b')"]).await?;
    stored_behind(&nats, last).await?;
    let stored = Instant::now();
    tokio::time::sleep(WINDOW + Duration::from_secs(1)).await;
    proxy.cut(Side::Both);
    proxy.heal();
    flow.converges(WITHIN).await?;
    ensure!(stored.elapsed() > WINDOW, "the window was still open");

    // And twice in the stream whatever the relay does: as one without memory would.
    flow.relay.as_mut().context("relay")?.kill()?;
    let repeated = publish_again(&flow).await?;
    ensure!(repeated > 0, "nothing was published again");
    flow.start_relay()?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'c')"]).await?;
    flow.converges(WITHIN).await?;
    let applier = flow.applier.as_ref().context("applier")?;
    let duplicates = applier.counter("duplicate_transactions").await;
    ensure!(
        duplicates == Some(repeated),
        "{repeated} transactions were published again, {duplicates:?} were met as duplicates"
    );
    Ok(())
}

/// The flow's last transaction was a large one. Published again with what came before it, it is
/// still the last, by which the relay knows a source that fell back in a crash (C02).
#[tokio::test]
async fn a_large_transaction_published_again_is_still_the_last() -> Result<()> {
    let options = GroundOptions::version(18).source("logical_decoding_work_mem", "64kB");
    let (mut ground, mut flow) = ground(options, KEYLESS, "source.acknowledge: published").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'small')"]).await?;
    flow.caught_up(WITHIN).await?;
    let large = "INSERT INTO log SELECT g, repeat('x', 200) FROM generate_series(1, 3000) AS g";
    run(&flow.source_admin, &[large]).await?;
    flow.caught_up(WITHIN).await?;
    flow.relay.as_mut().context("relay")?.kill()?;
    // The slot comes back where the last checkpoint saw it.
    ground.source.stop(StopMode::Immediate)?;
    ground.source.start_again()?;
    let repeated = publish_again(&flow).await?;
    ensure!(repeated >= 2, "only {repeated} were published again");
    flow.start_relay()?;
    // Nothing new is written: what the relay is sent first is what it has published before.
    flow.converges(WITHIN).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'after')"]).await?;
    flow.converges(WITHIN).await
}

/// Waits until a transaction is stored behind this sequence.
async fn stored_behind(nats: &str, last: u64) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let stored = broker::messages(nats, STREAM).await?;
        let new =
            |message: &broker::Stored| message.sequence > last && message.subject.contains(".tx.");
        if stored.iter().any(new) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "nothing was stored");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn b48_a_locked_table_delays_and_doubles_nothing() -> Result<()> {
    let (ground, flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    let nats = ground.nats.url();
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (0, 'before')"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    broker::set_ack_wait(&nats, STREAM, "applier", Duration::from_secs(1)).await?;
    let blocker = compare::connect(&flow.target_admin).await?;
    blocker
        .batch_execute("BEGIN; LOCK TABLE public.log")
        .await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO log VALUES (1, 'a')",
            "INSERT INTO log VALUES (2, 'b')",
        ],
    )
    .await?;
    // The server takes the applier's silence for a loss, and sends them again.
    let deadline = Instant::now() + WITHIN;
    while broker::redelivered(&nats, STREAM, "applier").await? == 0 {
        ensure!(Instant::now() < deadline, "nothing was delivered again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    blocker.batch_execute("COMMIT").await?;
    flow.converges(WITHIN).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'c')"]).await?;
    flow.converges(WITHIN).await
}
