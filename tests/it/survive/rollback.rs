//! A broker that comes back with an earlier copy of its store, or without the stream (F33, F34,
//! B35): what it had acknowledged is gone, and its sequences are given out a second time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use trellara_testkit::broker;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::kept::KeptStore;

use super::{begun, both_run, count, rows};
use crate::restart::{KEYLESS, until};
use crate::scenario::{WITHIN, run};

const STREAM: &str = "TRELLARA_cases";

/// Where the stream's messages are in a store, without its consumers.
fn messages(store: &Path) -> Result<PathBuf> {
    let mut folders = vec![store.to_owned()];
    while let Some(folder) = folders.pop() {
        if folder.ends_with(Path::new(STREAM).join("msgs")) {
            return Ok(folder.strip_prefix(store)?.to_owned());
        }
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    anyhow::bail!("no messages of {STREAM} in the store")
}

/// A flow whose broker forgot the second half of what it had acknowledged and the target has.
async fn rolled_back(extra: &str, whole: bool) -> Result<(Ground, Flow, u64, u64)> {
    let mut ground = Ground::start(&GroundOptions::version(18))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, extra).await?;
    begun(&mut flow).await?;
    rows(&flow, 1..500).await?;
    flow.caught_up(WITHIN).await?;
    let before = broker::last_sequence(&ground.nats.url(), STREAM).await?;
    let kept = KeptStore::of(&ground.nats)?;
    rows(&flow, 500..1000).await?;
    flow.caught_up(WITHIN).await?;
    let last = broker::last_sequence(&ground.nats.url(), STREAM).await?;
    ensure!(last > before, "{last} and {before}");
    let within = match whole {
        true => PathBuf::new(),
        false => messages(&kept.path())?,
    };
    kept.put_back(&mut ground.nats, &within)?;
    Ok((ground, flow, before, last))
}

#[tokio::test]
async fn f33_b35_a_broker_that_was_rolled_back_heals_by_itself_with_applied() -> Result<()> {
    let (ground, mut flow, kept, lost) = rolled_back("source.acknowledge: applied", true).await?;
    heals(&ground, &mut flow, kept, lost).await
}

/// The stream's messages alone are those of before; consumers and everything else are newer.
#[tokio::test]
async fn f34_b35_a_broker_that_lost_the_end_of_its_messages_heals_by_itself_with_applied()
-> Result<()> {
    let (ground, mut flow, kept, lost) = rolled_back("source.acknowledge: applied", false).await?;
    heals(&ground, &mut flow, kept, lost).await
}

async fn heals(ground: &Ground, flow: &mut Flow, kept: u64, lost: u64) -> Result<()> {
    rows(flow, 1000..1400).await?;
    flow.converges(WITHIN).await?;
    ensure!(count(flow).await? == 1400, "{}", flow.logs());
    both_run(flow)?;
    // The same numbers were given out again, for other frames.
    let reused = broker::messages(&ground.nats.url(), STREAM).await?;
    let again = reused.iter().filter(|m| m.sequence > kept).count();
    ensure!(again > 0, "nothing was stored behind {kept}, up to {lost}");
    Ok(())
}

/// What the broker lost is in the target, and in no stream any more; a source whose slot falls back
/// behind it sends it once more, and that is no other course of events.
#[tokio::test]
async fn f33_f65_what_a_broker_lost_may_be_sent_again_by_the_source() -> Result<()> {
    let mut ground = Ground::start(&GroundOptions::version(18))?;
    let extra = "source.acknowledge: applied";
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, extra).await?;
    begun(&mut flow).await?;
    let kept = KeptStore::of(&ground.nats)?;
    run(&ground.source.url("postgres"), &["CHECKPOINT"]).await?;
    rows(&flow, 1..50).await?;
    flow.caught_up(WITHIN).await?;
    let all = "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = 'trellara_cases'";
    until(&flow.source_admin, all, "t", WITHIN).await?;
    kept.put_back(&mut ground.nats, Path::new(""))?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("begins again", WITHIN).await?;
    // Marked once more, and nothing behind the mark.
    flow.start_relay()?.logged("took the slot", WITHIN).await?;
    ground.source.stop(trellara_local::StopMode::Immediate)?;
    ground.source.start_again()?;
    rows(&flow, 50..60).await?;
    flow.converges(WITHIN).await?;
    ensure!(count(&flow).await? == 60, "{}", flow.logs());
    both_run(&mut flow)
}

#[tokio::test]
async fn f33_b35_a_broker_that_was_rolled_back_halts_published_by_name() -> Result<()> {
    let extra = "source.acknowledge: published";
    let (_ground, mut flow, kept, _) = rolled_back(extra, true).await?;
    rows(&flow, 1000..1010).await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("code=STREAM_LOST_TAIL", WITHIN).await?;
    let log = relay.log();
    let line = log.lines().find(|line| line.contains("STREAM_LOST_TAIL"));
    let line = line.context("the line")?;
    let positions = line.matches("0/").count();
    ensure!(positions >= 2, "the range is not named: {line}");
    ensure!(line.contains("hint="), "{line}");
    ensure!(relay.ready().await == Some(false));
    ensure!(kept > 0);
    // Nothing of what came later is in, and nothing is applied twice.
    ensure!(count(&flow).await? == 1000, "{}", flow.logs());
    Ok(())
}

/// Without the stream both modes stop; the operator's word takes `applied` on from the slot, and is
/// not enough where the source has already forgotten.
async fn without_stream(extra: &str) -> Result<(Ground, Flow)> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, extra).await?;
    begun(&mut flow).await?;
    rows(&flow, 1..100).await?;
    flow.caught_up(WITHIN).await?;
    broker::delete_stream(&ground.nats.url(), STREAM).await?;
    rows(&flow, 100..110).await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("code=NO_STREAM", WITHIN).await?;
    ensure!(relay.ready().await == Some(false));
    let there = broker::stream_settings(&ground.nats.url(), STREAM).await?;
    ensure!(there.is_none(), "somebody made the stream");
    flow.relay = None;
    flow.applier = None;
    Ok((ground, flow))
}

#[tokio::test]
async fn f36_b37_a_deleted_stream_is_replaced_on_an_operators_word_with_applied() -> Result<()> {
    let (_ground, mut flow) = without_stream("source.acknowledge: applied").await?;
    let done = flow.command(&["setup", "--new-stream", "--yes"]).await?;
    ensure!(done.code == 0, "{done:?}");
    flow.start_relay()?;
    flow.start_applier()?;
    rows(&flow, 110..120).await?;
    flow.converges(WITHIN).await?;
    ensure!(count(&flow).await? == 120);
    Ok(())
}

#[tokio::test]
async fn f36_b37_a_deleted_stream_is_not_replaced_where_the_source_has_forgotten() -> Result<()> {
    let (ground, flow) = without_stream("source.acknowledge: published").await?;
    let refused = flow.command(&["setup", "--new-stream", "--yes"]).await?;
    ensure!(refused.code != 0, "{refused:?}");
    let words = format!("{}{}", refused.stdout, refused.stderr);
    ensure!(words.contains("hint:"), "{words}");
    let there = broker::stream_settings(&ground.nats.url(), STREAM).await?;
    ensure!(there.is_none(), "the stream was made: {words}");
    Ok(())
}
