//! A source that fails over, comes back as it was, or is another one (F69–F74, B08, B10, B11).

use anyhow::{Context, Result, ensure};
use trellara_local::{PostgresServer, StopMode};
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::kept::KeptData;

use super::{begun, both_run, count, replicating, rows};
use crate::restart::{KEYLESS, until};
use crate::scenario::{WITHIN, run, value};

const SLOT: &str = "trellara_cases";

/// A primary and, once the flow has begun, its standby.
struct Pair {
    ground: Ground,
    standby: PostgresServer,
    flow: Flow,
}

impl Pair {
    /// The flow knows both hosts, the primary first.
    async fn start(
        mut options: GroundOptions,
        extra: &str,
        standby: &[(&str, &str)],
    ) -> Result<Self> {
        options.hba = replicating();
        let ground = Ground::start(&options)?;
        let mut flow = ground.flow("cases", KEYLESS, KEYLESS, extra).await?;
        flow.setup().await?;
        let standby = ground.source.standby("replica", standby)?;
        let (one, two) = (ground.source.port(), standby.port());
        let hosts = format!("127.0.0.1:{one},127.0.0.1:{two}");
        let only = format!("127.0.0.1:{one}");
        flow.places.source_url = flow.places.source_url.replacen(&only, &hosts, 1);
        flow.write_config()?;
        flow.start_relay()?;
        flow.start_applier()?;
        rows(&flow, 0..1).await?;
        flow.caught_up(WITHIN).await?;
        Ok(Self {
            ground,
            standby,
            flow,
        })
    }

    /// Waits until the standby has replayed what the primary has written.
    async fn replayed(&self) -> Result<()> {
        let at = value(&self.flow.source_admin, "SELECT pg_current_wal_lsn()").await?;
        let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'");
        until(&self.standby.url("postgres"), &sql, "t", WITHIN)
            .await
            .with_context(|| std::fs::read_to_string(self.standby.log_path()).unwrap_or_default())
    }

    /// The primary dies, the standby takes its place.
    fn fail_over(&mut self) -> Result<()> {
        self.ground.source.kill()?;
        self.standby.psql("postgres", "SELECT pg_promote()")?;
        self.flow.source_admin = self.standby.url("cases");
        Ok(())
    }
}

/// What a source needs for slots that survive it, and what its standby needs.
fn synchronised() -> GroundOptions {
    GroundOptions::version(18).source("synchronized_standby_slots", "replica")
}
const SYNCHRONISING: [(&str, &str); 3] = [
    ("sync_replication_slots", "on"),
    ("hot_standby_feedback", "on"),
    ("synchronized_standby_slots", ""),
];

/// The promoted standby has everything that was published, and its slot is behind: it sends what was
/// published before once more, on another timeline, and none of it is applied twice. The old
/// primary, back on its feet, is no source any more.
#[tokio::test]
async fn f72_c01_c11_b11_a_promoted_standby_with_a_synchronised_slot_goes_on() -> Result<()> {
    let mut pair = Pair::start(synchronised(), "", &SYNCHRONISING).await?;
    let synced = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND synced AND NOT temporary"
    );
    // A slot is synchronised for good once the source's slot has moved beyond the standby's horizon.
    for id in 1..40 {
        rows(&pair.flow, id..id + 1).await?;
        run(
            &pair.flow.source_admin,
            &["CHECKPOINT", "SELECT pg_log_standby_snapshot()"],
        )
        .await?;
        pair.flow.caught_up(WITHIN).await?;
        if value(&pair.standby.url("postgres"), &synced).await? == "1" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let there = value(&pair.standby.url("postgres"), &synced).await?;
    ensure!(there == "1", "the slot was not synchronised");
    let checked = pair.flow.command(&["check"]).await?;
    ensure!(checked.code == 0, "{checked:?}");
    ensure!(
        checked.stdout.contains("SOURCE_STANDBY_SLOT"),
        "{checked:?}"
    );
    for warned in [
        "SOURCE_STANDBY_BEHIND",
        "SOURCE_STANDBY_ABSENT",
        "SLOT_NO_FAILOVER",
    ] {
        ensure!(!checked.stdout.contains(warned), "{checked:?}");
    }
    // From here on it is behind.
    pair.standby.set("sync_replication_slots", "off")?;
    rows(&pair.flow, 100..140).await?;
    pair.flow.caught_up(WITHIN).await?;
    pair.replayed().await?;
    let before = count(&pair.flow).await?;
    pair.fail_over()?;
    rows(&pair.flow, 200..220).await?;
    pair.flow.converges(WITHIN).await?;
    ensure!(count(&pair.flow).await? == before + 20);
    both_run(&mut pair.flow)?;

    // The old primary comes back, and is the first host of the list.
    pair.standby.stop(StopMode::Fast)?;
    pair.ground.source.start_again()?;
    let relay = pair.flow.relay.as_mut().context("relay")?;
    relay.logged("code=STALE_PRIMARY", WITHIN).await
}

/// The standby lacks transactions that were published: the target has rows that the new primary
/// never had.
#[tokio::test]
async fn f73_b10_a_promoted_standby_that_lacks_published_transactions_diverged() -> Result<()> {
    for version in [15, 18] {
        let options = GroundOptions::version(version);
        let mut pair = Pair::start(options, "", &[]).await?;
        pair.replayed().await?;
        let warned = match version {
            15 => "SOURCE_FAILOVER_COPIES",
            _ => "SOURCE_STANDBY_BEHIND",
        };
        let checked = pair.flow.command(&["check"]).await?;
        ensure!(checked.stdout.contains(warned), "{checked:?}");
        pair.standby.stop(StopMode::Fast)?;
        rows(&pair.flow, 1..20).await?;
        pair.flow.caught_up(WITHIN).await?;
        pair.ground.source.kill()?;
        pair.standby.start_again()?;
        pair.fail_over()?;
        let make = format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')");
        run(&pair.flow.source_admin, &[&make]).await?;
        rows(&pair.flow, 100..110).await?;
        let relay = pair.flow.relay.as_mut().context("relay")?;
        relay.logged("code=DIVERGED", WITHIN).await?;
        ensure!(relay.log().contains("trellara inspect"), "{}", relay.log());
        ensure!(
            count(&pair.flow).await? == 20,
            "something of the new primary was applied"
        );
    }
    Ok(())
}

/// A standby without the slot: nothing is made by itself, and a slot made by hand begins too late.
#[tokio::test]
async fn f68_f69_b11_a_promoted_standby_without_the_slot_is_refused() -> Result<()> {
    let extra = "source.acknowledge: published";
    let mut pair = Pair::start(GroundOptions::version(15), extra, &[]).await?;
    rows(&pair.flow, 1..10).await?;
    pair.flow.caught_up(WITHIN).await?;
    pair.replayed().await?;
    pair.fail_over()?;
    let relay = pair.flow.relay.as_mut().context("relay")?;
    relay.logged("code=SLOT_LOST", WITHIN).await?;
    rows(&pair.flow, 100..110).await?;
    let make = format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')");
    run(&pair.flow.source_admin, &[&make]).await?;
    rows(&pair.flow, 110..120).await?;
    pair.flow
        .start_relay()?
        .logged("code=STREAM_LOST_TAIL", WITHIN)
        .await?;
    ensure!(count(&pair.flow).await? == 10);
    Ok(())
}

/// System, timeline, xid and LSN are the same as of what was published; only the commit times and
/// the rows are not.
async fn c02(version: u32, written_before_it_is_seen: u32) -> Result<()> {
    let mut ground = Ground::start(&GroundOptions::version(version))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    begun(&mut flow).await?;
    let snapshot = KeptData::of(&mut ground.source)?;
    flow.caught_up(WITHIN).await?;
    rows(&flow, 1..6).await?;
    flow.caught_up(WITHIN).await?;
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    snapshot.put_back(&mut ground.source)?;
    let other = 500..500 + written_before_it_is_seen;
    rows(&flow, other).await?;
    let relay = flow.start_relay()?;
    relay.logged("code=SOURCE_REWOUND", WITHIN).await?;
    ensure!(relay.log().contains("hint="), "{}", relay.log());
    rows(&flow, 600..610).await?;
    ensure!(
        count(&flow).await? == 6,
        "a row of the second history is in"
    );
    Ok(())
}

#[tokio::test]
async fn c02_b10_a_source_from_a_storage_snapshot_is_named_on_15() -> Result<()> {
    c02(15, 0).await?;
    c02(15, 40).await
}

#[tokio::test]
async fn c02_b10_a_source_from_a_storage_snapshot_is_named_on_18() -> Result<()> {
    c02(18, 0).await?;
    c02(18, 40).await
}

/// Another cluster under the same name, with a slot and a publication of the same names.
#[tokio::test]
async fn f74_another_cluster_under_the_same_name_is_named() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    begun(&mut flow).await?;
    let other = Ground::start(&GroundOptions::version(18))?;
    let beside = other.flow("cases", KEYLESS, KEYLESS, "").await?;
    beside.setup().await?;
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    flow.places.source_url = flow.places.source_url.replace(
        &ground.source.port().to_string(),
        &other.source.port().to_string(),
    );
    flow.write_config()?;
    rows(&beside, 10..20).await?;
    flow.start_relay()?
        .logged("code=DIFFERENT_SOURCE", WITHIN)
        .await?;
    ensure!(count(&flow).await? == 1);
    Ok(())
}
