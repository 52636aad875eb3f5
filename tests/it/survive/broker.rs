//! What happens to the broker and its stream while a flow lives.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trellara_testkit::broker;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{begun, both_run, count, rows};
use crate::faults::space::SmallDisk;
use crate::restart::{KEYLESS, ground, until};
use crate::scenario::{WITHIN, run, value};

const STREAM: &str = "TRELLARA_cases";

/// Lame duck: clients are sent away, then the server ends; another start takes its place.
#[tokio::test]
async fn f32_a_broker_that_says_good_bye_is_come_back_to() -> Result<()> {
    let (mut ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    ground.nats.set_extra_config(&format!(
        "{}\nlame_duck_duration: \"30s\"\nlame_duck_grace_period: \"1s\"\n",
        trellara_local::shared::nats().extra_config
    ))?;
    ground.nats.stop()?;
    ground.nats.start_again()?;
    rows(&flow, 0..20).await?;
    let pid = ground.nats.pid().context("it runs")?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGUSR2)?;
    rows(&flow, 20..40).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ground.nats.kill()?;
    ground.nats.start_again()?;
    rows(&flow, 40..60).await?;
    flow.converges(WITHIN).await?;
    both_run(&mut flow)
}

/// The stream takes nothing more: the relay waits by name, the source keeps its WAL, and it goes on
/// when there is room (B42).
#[tokio::test]
async fn f37_b42_a_full_stream_is_waited_for() -> Result<()> {
    let extra = "nats.max_bytes: 16MiB\nsource.acknowledge: published";
    let (ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, extra).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    for round in 0..24 {
        let sql = format!(
            "INSERT INTO log SELECT g, repeat(md5(g::text), 30) FROM generate_series({}, {}) g",
            round * 1000,
            round * 1000 + 999
        );
        run(&flow.source_admin, &[&sql]).await?;
    }
    let relay = flow.relay.as_ref().context("relay")?;
    let deadline = std::time::Instant::now() + WITHIN;
    loop {
        if let Some(failing) = relay.failing().await
            && failing.to_string().contains("room in the stream")
        {
            break;
        }
        ensure!(std::time::Instant::now() < deadline, "{}", relay.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let behind = "SELECT pg_current_wal_lsn() - confirmed_flush_lsn > 1000000 FROM pg_replication_slots WHERE slot_name = 'trellara_cases'";
    ensure!(value(&flow.source_admin, behind).await? == "t");
    // Reading alone makes no room: what is applied is kept for nats.history, and that gives way.
    flow.start_applier()?;
    broker::set_max_bytes(&ground.nats.url(), STREAM, 256 << 20).await?;
    flow.converges(WITHIN).await?;
    both_run(&mut flow)
}

/// Somebody makes the stream throw away old messages: both daemons stop before one is missed.
#[tokio::test]
async fn f38_b41_a_stream_that_may_lose_messages_is_refused_while_it_runs() -> Result<()> {
    let (ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    rows(&flow, 0..5).await?;
    flow.caught_up(WITHIN).await?;
    let mut settings = broker::stream_settings(&ground.nats.url(), STREAM)
        .await?
        .context("a stream")?;
    settings.discard = broker::DiscardPolicy::Old;
    broker::update_stream(&ground.nats.url(), settings).await?;
    let checked = flow.command(&["check"]).await?;
    ensure!(checked.code == 11, "{checked:?}");
    // At the next connect at the latest; a restart is one.
    for daemon in ["relay", "applier"] {
        let started = match daemon {
            "relay" => flow.start_relay()?,
            _ => flow.start_applier()?,
        };
        started.logged("discard", WITHIN).await?;
        ensure!(started.log().contains("hint="), "{}", started.log());
    }
    Ok(())
}

/// The broker's disk is full: said with the broker's own words, waited for, and gone on from.
#[tokio::test]
async fn f50_b42_a_brokers_full_disk_is_waited_for() -> Result<()> {
    let disk = SmallDisk::mount_of(24, Path::new("/tmp"))?;
    let mut options = GroundOptions::version(18);
    options.nats.store_dir = Some(disk.path().join("store"));
    let extra = "nats.max_bytes: 1GiB\nsource.acknowledge: published";
    let (mut ground, mut flow) = ground(options, KEYLESS, extra).await?;
    rows(&flow, 0..2).await?;
    flow.caught_up(WITHIN).await?;
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![0u8; 16 << 20])?;
    let big = "INSERT INTO log SELECT g, repeat(md5(random()::text), 100) FROM generate_series(10, 4000) g";
    run(&flow.source_admin, &[big]).await?;
    let relay = flow.relay.as_ref().context("relay")?;
    let deadline = std::time::Instant::now() + WITHIN;
    while relay.ready().await != Some(false) {
        ensure!(std::time::Instant::now() < deadline, "{}", relay.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    std::fs::remove_file(&ballast)?;
    disk.grow(256)?;
    // A server whose store failed to write stands still until it is started again.
    ground.nats.kill()?;
    ground.nats.start_again()?;
    flow.converges(Duration::from_secs(60)).await?;
    both_run(&mut flow)
}

/// A right is taken away while the daemons run: the subject that was refused is named.
#[tokio::test]
async fn f51_rights_that_go_while_it_runs_are_named_and_waited_for() -> Result<()> {
    let (mut ground, mut flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    rows(&flow, 0..2).await?;
    flow.caught_up(WITHIN).await?;
    let rights = trellara_local::shared::nats().extra_config;
    let less = rights.replacen("\"trellara.*.>\"", "\"trellara-nothing\"", 1);
    ensure!(less != rights, "the right is spelled otherwise");
    ground.nats.set_extra_config(&less)?;
    ground.nats.reload()?;
    rows(&flow, 2..4).await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("code=RIGHTS", WITHIN).await?;
    ensure!(relay.log().contains("trellara.cases."), "{}", relay.log());
    ground.nats.set_extra_config(&rights)?;
    ground.nats.reload()?;
    flow.converges(Duration::from_secs(80)).await?;
    both_run(&mut flow)
}

/// The files of a stream's messages.
fn blocks(store: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![store.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "blk")
                && path.to_string_lossy().contains(STREAM)
            {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// One bit of an unread transaction is flipped on the broker's disk: nothing of it is applied, and
/// with `applied` the operator's word brings it back from the source (F45, B53).
#[tokio::test]
async fn f45_b53_a_bit_flipped_in_the_store_is_never_applied() -> Result<()> {
    let mut ground = Ground::start(&GroundOptions::version(18))?;
    let extra = "source.acknowledge: applied";
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, extra).await?;
    begun(&mut flow).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    rows(&flow, 1..30).await?;
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (77, 'needle in the store')"],
    )
    .await?;
    rows(&flow, 30..40).await?;
    let received =
        "SELECT count(*) FROM pg_stat_replication WHERE write_lsn >= pg_current_wal_lsn()";
    until(&ground.source.url("postgres"), received, "1", WITHIN).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ground.nats.stop()?;
    flow.relay.take().context("relay")?.kill()?;
    let needle = b"needle in the store";
    let mut flipped = 0;
    for file in blocks(ground.nats.store_dir())? {
        let mut bytes = std::fs::read(&file)?;
        let at = bytes.windows(needle.len()).position(|w| w == needle);
        if let Some(at) = at {
            bytes[at] ^= 1;
            std::fs::write(&file, bytes)?;
            flipped += 1;
        }
    }
    ensure!(flipped == 1, "{flipped} files hold it");
    ground.nats.start_again()?;
    flow.start_relay()?;
    flow.start_applier()?;
    let deadline = std::time::Instant::now() + WITHIN;
    loop {
        let log = flow.logs();
        if ["CORRUPT", "GAP", "NO_STREAM", "STREAM_REPLACED"]
            .iter()
            .any(|code| log.contains(&format!("code={code}")))
            || flow.caught_up(Duration::from_secs(1)).await.is_ok()
        {
            break;
        }
        ensure!(std::time::Instant::now() < deadline, "{log}");
    }
    let wrong = "SELECT count(*) FROM log WHERE id = 77 AND note <> 'needle in the store'";
    ensure!(value(&flow.target_admin, wrong).await? == "0");
    // Nothing behind the damage either, unless the damage was mended from the source.
    let behind = "SELECT count(*) FILTER (WHERE id BETWEEN 30 AND 39) = 0 OR count(*) FILTER (WHERE id = 77) = 1 FROM log";
    ensure!(
        value(&flow.target_admin, behind).await? == "t",
        "{}",
        flow.logs()
    );
    flow.relay = None;
    flow.applier = None;
    if flow.command(&["wait", "--timeout", "1s"]).await?.code != 0 {
        broker::delete_stream(&ground.nats.url(), STREAM).await?;
        let done = flow.command(&["setup", "--new-stream", "--yes"]).await?;
        ensure!(done.code == 0, "{done:?}");
    }
    flow.start_relay()?;
    flow.start_applier()?;
    flow.converges(WITHIN).await?;
    ensure!(count(&flow).await? == 41);
    Ok(())
}
