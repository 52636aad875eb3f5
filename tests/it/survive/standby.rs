//! Standbys take over within ten seconds from what was killed and from what was stopped, and who
//! wakes up afterwards writes nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{begun, rows};
use crate::bad_input::bare;
use crate::restart::until;
use crate::scenario::{WITHIN, prepared, value};

/// What an operator is promised.
const TAKEOVER: Duration = Duration::from_secs(10);

const LOG: &[&str] = &["CREATE TABLE log (id int PRIMARY KEY, v text)"];

async fn flowing(version: u32, name: &str) -> Result<Flow> {
    let mut flow = prepared(version, name, LOG, LOG, "halt: exit").await?;
    begun(&mut flow).await?;
    Ok(flow)
}

fn standby(flow: &Flow, verb: &str, log: &str) -> Result<Daemon> {
    let log = flow.folder().join(log);
    let broker = [("TRELLARA__NATS__URL", bare(&flow.places.nats_url))];
    Daemon::start_with(&flow.config(), &[verb, "--standby"], &log, &broker)
}

/// Writes a row and says how long it took to arrive.
async fn arrives(flow: &Flow, id: u32, since: Instant) -> Result<Duration> {
    rows(flow, id..id + 1).await?;
    let all = (id + 1).to_string();
    until(
        &flow.target_admin,
        "SELECT count(*) FROM log",
        &all,
        TAKEOVER,
    )
    .await?;
    Ok(since.elapsed())
}

#[expect(clippy::print_stdout, reason = "the figures of a run")]
fn in_time(name: &str, after_kill: Duration, after_stop: Duration) -> Result<()> {
    println!("{name}: {after_kill:?} after SIGKILL, {after_stop:?} after SIGSTOP");
    ensure!(after_kill < TAKEOVER && after_stop < TAKEOVER);
    Ok(())
}

/// A daemon that was taken over from, awake again: it leaves as fenced, or waits behind the other.
async fn is_harmless(daemon: &mut Daemon) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    loop {
        if !daemon.is_running() {
            let status = daemon.wait(WITHIN)?;
            ensure!(status.code() == Some(13), "{status}: {}", daemon.log());
            return Ok(());
        }
        if let Some(status) = daemon.status().await
            && status["daemons"][0]["state"] == "standby"
        {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "still at work: {}", daemon.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// `first` is killed and `second` takes over; then that one is stopped and a third takes over. Who was
/// stopped, and who works now.
async fn succeed(
    flow: &Flow,
    verb: &str,
    (mut first, second): (Daemon, Daemon),
) -> Result<(Daemon, Daemon)> {
    let killed = Instant::now();
    first.kill()?;
    let after_kill = arrives(flow, 1, killed).await?;

    let mut third = standby(flow, verb, "third.log")?;
    third.logged("waiting as a standby", WITHIN).await?;
    let stopped = Instant::now();
    second.signal(Signal::SIGSTOP)?;
    let after_stop = arrives(flow, 2, stopped).await;
    let after_stop = after_stop.with_context(|| third.log())?;
    ensure!(third.log().contains("fallen silent"), "{}", third.log());
    in_time(verb, after_kill, after_stop)?;
    Ok((second, third))
}

/// Who was stopped wakes up behind the one who works, and writes nothing.
async fn wakes_up(flow: &Flow, stopped: &mut Daemon, works: &mut Daemon) -> Result<()> {
    stopped.signal(Signal::SIGCONT)?;
    rows(flow, 3..20).await?;
    is_harmless(stopped).await?;
    ensure!(works.is_running(), "{}", works.log());
    Ok(())
}

async fn relay_takes_over(version: u32, name: &str) -> Result<()> {
    let mut flow = flowing(version, name).await?;
    let mut second = standby(&flow, "relay", "second.log")?;
    second.logged("waiting as a standby", WITHIN).await?;
    ensure!(second.ready().await == Some(true), "{}", second.log());
    let first = flow.relay.take().context("relay")?;
    let (mut second, mut third) = succeed(&flow, "relay", (first, second)).await?;
    wakes_up(&flow, &mut second, &mut third).await?;
    flow.relay = Some(third);
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn f23_f25_a_standby_relay_takes_over_from_the_killed_and_the_stopped_on_15() -> Result<()> {
    relay_takes_over(15, "relay_standby").await
}

#[tokio::test]
async fn f23_f25_a_standby_relay_takes_over_from_the_killed_and_the_stopped_on_18() -> Result<()> {
    relay_takes_over(18, "relay_standby").await
}

async fn applier_takes_over(version: u32, name: &str) -> Result<()> {
    let mut flow = flowing(version, name).await?;
    let mut second = standby(&flow, "applier", "second.log")?;
    second.logged("waiting as a standby", WITHIN).await?;
    let first = flow.applier.take().context("applier")?;
    let (mut second, mut third) = succeed(&flow, "applier", (first, second)).await?;
    let epoch = value(&flow.target_admin, "SELECT epoch FROM trellara.lane").await?;
    wakes_up(&flow, &mut second, &mut third).await?;
    flow.applier = Some(third);
    flow.converges(WITHIN).await?;
    let now = value(&flow.target_admin, "SELECT epoch FROM trellara.lane").await?;
    ensure!(now == epoch, "the lane was taken again: {epoch}, {now}");
    Ok(())
}

#[tokio::test]
async fn f24_c34_a_standby_applier_takes_over_from_the_killed_and_the_stopped_on_15() -> Result<()>
{
    applier_takes_over(15, "applier_standby").await
}

#[tokio::test]
async fn f24_c34_a_standby_applier_takes_over_from_the_killed_and_the_stopped_on_18() -> Result<()>
{
    applier_takes_over(18, "applier_standby").await
}

/// A walsender that decodes a large transaction, of which the flow has nothing, takes in no status
/// updates meanwhile: its relay is not taken for dead. The publication's filter takes its time.
#[tokio::test]
async fn f25_a_standby_leaves_a_relay_alone_whose_walsender_is_busy() -> Result<()> {
    let options = GroundOptions::version(18).source("wal_sender_timeout", "60s");
    let ground = Ground::start(&options)?;
    let filtered = format!(
        "{}; ALTER TABLE log REPLICA IDENTITY FULL; CREATE PUBLICATION slow FOR TABLE log \
         WHERE (id < 10 OR length(repeat(v, 2000000)) < 0)",
        LOG[0]
    );
    let extra = "halt: exit\nsource.publication: slow";
    let mut flow = ground.flow("decoding", &filtered, LOG[0], extra).await?;
    begun(&mut flow).await?;
    let mut second = standby(&flow, "relay", "second.log")?;
    second.logged("waiting as a standby", WITHIN).await?;
    let reader = "SELECT active_pid FROM pg_replication_slots WHERE active";
    let before = value(&flow.source_admin, reader).await?;
    let began = Instant::now();
    let large = "INSERT INTO log SELECT g, 'decoded' FROM generate_series(10, 600) g";
    crate::scenario::run(&flow.source_admin, &[large]).await?;
    rows(&flow, 1..2).await?;
    let two = until(&flow.target_admin, "SELECT count(*) FROM log", "2", WITHIN);
    two.await?;
    ensure!(
        began.elapsed() > Duration::from_secs(7),
        "it was decoded too quickly to prove anything: {:?}",
        began.elapsed()
    );
    ensure!(!second.log().contains("taking over"), "{}", second.log());
    ensure!(value(&flow.source_admin, reader).await? == before);
    Ok(())
}

/// Long work of the one that holds the lane is no silence: a statement that takes longer than any
/// limit, and a lane on which nothing happens at all.
#[tokio::test]
async fn f26_a_standby_leaves_an_applier_alone_that_is_busy_or_idle() -> Result<()> {
    let flow = flowing(18, "busy").await?;
    let epoch = value(&flow.target_admin, "SELECT epoch FROM trellara.lane").await?;
    let mut second = standby(&flow, "applier", "second.log")?;
    second.logged("waiting as a standby", WITHIN).await?;
    let locker = trellara_testkit::compare::connect(&flow.target_admin).await?;
    locker
        .batch_execute("BEGIN; LOCK TABLE public.log IN ACCESS EXCLUSIVE MODE")
        .await?;
    rows(&flow, 1..2).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    locker.batch_execute("COMMIT").await?;
    let two = until(&flow.target_admin, "SELECT count(*) FROM log", "2", WITHIN);
    two.await?;
    // Idle for longer than the limit.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let now = value(&flow.target_admin, "SELECT epoch FROM trellara.lane").await?;
    ensure!(now == epoch, "{}", second.log());
    ensure!(!second.log().contains("taking over"), "{}", second.log());
    flow.converges(WITHIN).await
}
