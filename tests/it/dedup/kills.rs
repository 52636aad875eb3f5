//! SIGKILL around apply, in each state that the identity cache can be in. Every test reads from the
//! appliers it kills that they were in that state, and that they met duplicates.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio_postgres::Client;
use trellara_testkit::compare;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;
use trellara_testkit::soak::chaos::publish_again;

use super::told::{Kind, Told};
use super::{KEYLESS, load};
use crate::scenario::{WITHIN, run, started};

/// What an applier logs when its cache was filled.
const HYDRATED: &str = "read the ledger into the identity cache";
/// Identities of nobody behind the newest row, as if so many transactions had been applied.
const CROWD: &str = "\
INSERT INTO trellara.applied (flow, lane, first_ordinal, last_ordinal, source_system, \
    source_timeline, end_lsn, transaction_end_lsn, lowest_end_lsn, highest_end_lsn, epoch, stream, \
    stream_created, stream_sequence, incarnation, frame_ordinal, frame_digest, hashes) \
SELECT a.flow, a.lane, a.last_ordinal + r * 120 + 1, a.last_ordinal + r * 120 + 120, \
       a.source_system, a.source_timeline, a.end_lsn, a.transaction_end_lsn, a.transaction_end_lsn, \
       a.transaction_end_lsn, a.epoch, a.stream, a.stream_created, a.stream_sequence, a.incarnation, \
       a.frame_ordinal, a.frame_digest, \
       (SELECT string_agg(decode(md5((r * 120 + n)::text), 'hex'), NULL) \
          FROM generate_series(1, 120) AS n) \
  FROM (SELECT * FROM trellara.applied ORDER BY first_ordinal DESC LIMIT 1) AS a, \
       generate_series(0, $ROWS - 1) AS r";
/// A row of somebody else's behind the newest one: progress without transactions.
const PROGRESS: &str = "\
INSERT INTO trellara.applied (flow, lane, first_ordinal, last_ordinal, source_system, \
    source_timeline, end_lsn, transaction_end_lsn, epoch, stream, stream_created, stream_sequence, \
    incarnation, frame_ordinal, frame_digest, hashes) \
SELECT a.flow, a.lane, a.last_ordinal + 1, a.last_ordinal + 1, a.source_system, \
       a.source_timeline, a.end_lsn, a.transaction_end_lsn, a.epoch, a.stream, a.stream_created, \
       a.stream_sequence, a.incarnation, a.frame_ordinal, a.frame_digest, '' \
  FROM trellara.applied AS a ORDER BY a.first_ordinal DESC LIMIT 1";
/// Whether a session of the applier has a target transaction open that wrote something.
const APPLYING: &str = "\
SELECT EXISTS (SELECT FROM pg_stat_activity \
                WHERE datname = current_database() AND usename = $1 AND backend_xid IS NOT NULL)";

/// Chance, with its seed printed.
pub(super) fn dice() -> StdRng {
    let seed = rand::random();
    eprintln!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// Waits for a moment to kill: any, and every other time one with a target transaction open. Says
/// whether it is such a one.
async fn moment(chance: &mut StdRng, told: &Told, target: &Client, flow: &Flow) -> Result<bool> {
    // Before it is connected, while it fills its cache, in the midst of applying.
    let pause = Duration::from_millis(chance.random_range(20..600));
    tokio::time::sleep(pause).await;
    if told.kills.is_multiple_of(2) {
        return Ok(false);
    }
    applying(target, flow, Duration::from_millis(500)).await
}

/// Waits until the applier has a target transaction open that has written; `false` when it did not
/// within that time.
pub(super) async fn applying(target: &Client, flow: &Flow, within: Duration) -> Result<bool> {
    let deadline = Instant::now() + within;
    while Instant::now() < deadline {
        let row = target.query_one(APPLYING, &[&flow.roles.apply()]).await?;
        if row.get(0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Kills the relay, and has what is in the stream published once more before it comes back.
pub(super) async fn doubled(flow: &mut Flow) -> Result<u64> {
    flow.relay.as_mut().context("relay")?.kill()?;
    let repeated = publish_again(flow).await?;
    flow.start_relay()?;
    Ok(repeated)
}

fn start(flow: &mut Flow, kind: Kind) -> Result<()> {
    match kind {
        Kind::Shipped => drop(flow.start_applier()?),
        Kind::Memory(bytes) => {
            flow.applier = None;
            flow.applier = Some(flow.start_bare_applier("applier", bytes, false)?);
        }
    }
    Ok(())
}

/// Waits until the last duplicates were met and everything is equal, then hears the last applier.
async fn settled(flow: &mut Flow, told: &mut Told, kind: Kind) -> Result<()> {
    told.repeated += doubled(flow).await?;
    // Behind the duplicates: what was waited for so far stands before them.
    run(&flow.source_admin, &["INSERT INTO log VALUES (-1, 'last')"]).await?;
    flow.converges(WITHIN).await?;
    told.hear(kind, flow.applier.as_ref().context("applier")?)
        .await;
    Ok(())
}

/// A flow whose applier is killed again and again while it applies; `crowd` are rows of identities
/// of nobody that stand in the ledger before.
async fn killed_under_load(
    version: u32,
    name: &str,
    extra: &str,
    kind: Kind,
    crowd: Option<u32>,
) -> Result<(Flow, Told)> {
    let mut chance = dice();
    let mut flow = started(version, name, &[KEYLESS], extra).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (0, 'first')"]).await?;
    flow.caught_up(WITHIN).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    if let Some(rows) = crowd {
        let crowd = CROWD.replace("$ROWS", &rows.to_string());
        run(&flow.target_admin, &[&crowd]).await?;
    }
    start(&mut flow, kind)?;
    let target = compare::connect(&flow.target_admin).await?;
    let mut told = Told::default();
    let load = load(&flow, version, 6)?;
    while !load.is_finished() {
        let in_apply = moment(&mut chance, &told, &target, &flow).await?;
        let applier = flow.applier.as_mut().context("applier")?;
        if matches!(kind, Kind::Shipped) && !in_apply {
            told.ask(applier).await;
        }
        applier.kill()?;
        told.kills += 1;
        told.in_apply += u32::from(in_apply);
        if matches!(kind, Kind::Memory(_)) {
            told.read(applier);
        }
        if chance.random_bool(0.3) {
            told.repeated += doubled(&mut flow).await?;
        }
        start(&mut flow, kind)?;
    }
    load.await??;
    settled(&mut flow, &mut told, kind).await?;
    told.one_effect(&flow).await?;
    Ok((flow, told))
}

#[tokio::test]
async fn an_applier_killed_with_a_warm_cache_has_one_effect() -> Result<()> {
    let (_flow, told) = killed_under_load(18, "warm", "", Kind::Shipped, None).await?;
    ensure!(told.saw("vouching") > 0, "{told:?}");
    ensure!(told.count("applied_vouched") > 0, "{told:?}");
    ensure!(told.count("applied_probed") == 0, "{told:?}");
    Ok(())
}

#[tokio::test]
async fn an_applier_killed_with_a_cache_too_small_has_one_effect() -> Result<()> {
    let extra = "dedup: {memory: 1MiB}";
    let (flow, told) = killed_under_load(15, "small", extra, Kind::Shipped, Some(1000)).await?;
    let status = super::applier(&flow).await?;
    let identities = status["details"]["cache_identities"].as_str();
    let identities: u64 = identities.context("cache_identities")?.parse()?;
    ensure!(identities < 120_000, "all of it fits: {status}");
    ensure!(told.saw("vouching") > 0, "{told:?}");
    Ok(())
}

/// Cold for good: a process without a cache asks the ledger about every transaction.
#[tokio::test]
async fn an_applier_killed_without_a_cache_has_one_effect() -> Result<()> {
    let (_flow, told) = killed_under_load(15, "off", "", Kind::Memory(0), None).await?;
    ensure!(told.saw("off") > 0 && told.saw("vouching") == 0, "{told:?}");
    ensure!(told.count("applied_vouched") == 0, "{told:?}");
    ensure!(told.count("applied_probed") > 500, "{told:?}");
    ensure!(told.count("probes") > 0, "{told:?}");
    Ok(())
}

/// Suppressed from its first moment on: its budget does not even hold an empty lane.
#[tokio::test]
async fn an_applier_killed_with_a_suppressed_cache_has_one_effect() -> Result<()> {
    let (_flow, told) = killed_under_load(18, "suppressed", "", Kind::Memory(256), None).await?;
    ensure!(told.saw("suppressed") > 0, "{told:?}");
    ensure!(told.saw("vouching") == 0, "{told:?}");
    ensure!(told.count("applied_vouched") == 0, "{told:?}");
    ensure!(told.count("applied_probed") > 500, "{told:?}");
    ensure!(told.count("probes") > 0, "{told:?}");
    Ok(())
}

/// Cold because it is still being filled: half of the appliers die in the midst of that, the others
/// once they have begun to apply.
#[tokio::test]
async fn an_applier_killed_while_its_cache_is_filled_has_one_effect() -> Result<()> {
    /// 360,000 identities.
    const ROWS: u32 = 3000;
    let mut chance = dice();
    let mut flow = started(18, "cold", &[KEYLESS], "").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (0, 'first')"]).await?;
    flow.caught_up(WITHIN).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let crowd = CROWD.replace("$ROWS", &ROWS.to_string());
    run(&flow.target_admin, &[&crowd]).await?;
    flow.start_applier()?;
    let target = compare::connect(&flow.target_admin).await?;
    let mut told = Told::default();
    let mut half_filled = 0;
    let load = load(&flow, 18, 6)?;
    while !load.is_finished() {
        let applier = flow.applier.as_mut().context("applier")?;
        let mut in_apply = false;
        if told.kills % 4 < 2 {
            being_filled(applier).await?;
            let pause = Duration::from_millis(chance.random_range(0..60));
            tokio::time::sleep(pause).await;
        } else {
            applier.logged(HYDRATED, WITHIN).await?;
            in_apply = moment(&mut chance, &told, &target, &flow).await?;
        }
        let applier = flow.applier.as_mut().context("applier")?;
        if !in_apply {
            told.ask(applier).await;
        }
        applier.kill()?;
        half_filled += u32::from(!applier.log().contains(HYDRATED));
        told.kills += 1;
        told.in_apply += u32::from(in_apply);
        if chance.random_bool(0.3) {
            told.repeated += doubled(&mut flow).await?;
        }
        flow.start_applier()?;
    }
    load.await??;
    settled(&mut flow, &mut told, Kind::Shipped).await?;
    eprintln!("{half_filled} died half filled");
    told.one_effect(&flow).await?;
    ensure!(half_filled > 0, "none died half filled: {told:?}");
    ensure!(told.saw("rebuild wanted") > 0, "{told:?}");
    let status = super::applier(&flow).await?;
    let identities = status["details"]["cache_identities"].as_str();
    let identities: u32 = identities.context("cache_identities")?.parse()?;
    ensure!(identities > ROWS * 120, "not all was read: {status}");
    Ok(())
}

/// Waits until an applier says that its cache is not there yet.
async fn being_filled(applier: &mut Daemon) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let status = applier.status().await;
        if status.is_some_and(|status| status["daemons"][0]["details"]["cache"] == "rebuild wanted")
        {
            return Ok(());
        }
        // It was filled in no time; so be it.
        if applier.log().contains(HYDRATED) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{}", applier.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// While whoever applies waits for the table, a row of somebody else's comes in behind the newest:
/// where its own was to stand.
async fn overtaken(target: &Client, flow: &Flow) -> Result<()> {
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity \
                  WHERE datname = current_database() AND usename = $1 AND wait_event_type = 'Lock')";
    let mut holder = compare::connect(&flow.target_admin).await?;
    let holding = holder.transaction().await?;
    let hold = "LOCK TABLE public.log IN SHARE ROW EXCLUSIVE MODE";
    holding.batch_execute(hold).await?;
    let deadline = Instant::now() + WITHIN;
    loop {
        let row = target.query_one(waits, &[&flow.roles.apply()]).await?;
        if row.get(0) {
            break;
        }
        ensure!(Instant::now() < deadline, "nobody applies: {}", flow.logs());
    }
    holding.batch_execute(PROGRESS).await?;
    Ok(holding.commit().await?)
}

/// Gapped: rows in the ledger that the applier did not write. They are those of a second applier,
/// which the lane's lock does not keep away, and of somebody else; each costs the one that meets it
/// its vouch, and the cache is born anew. Both appliers are killed.
#[tokio::test]
async fn appliers_killed_while_each_leaves_gaps_for_the_other_have_one_effect() -> Result<()> {
    const LOGS: [&str; 2] = ["applier", "other"];
    const MEMORY: u64 = 64 << 20;
    let mut chance = dice();
    let mut flow = started(18, "gapped", &[KEYLESS], "").await?;
    flow.caught_up(WITHIN).await?;
    // It leaves an epoch, which the two take over.
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let begin = |flow: &Flow, at: usize| flow.start_bare_applier(LOGS[at], MEMORY, true);
    let mut appliers = [begin(&flow, 0)?, begin(&flow, 1)?];
    let mut overtakes = 0;
    let target = compare::connect(&flow.target_admin).await?;
    let mut told = Told::default();
    let load = load(&flow, 18, 6)?;
    while !load.is_finished() {
        if told.kills.is_multiple_of(3) {
            overtaken(&target, &flow).await?;
            overtakes += 1;
        }
        let in_apply = moment(&mut chance, &told, &target, &flow).await?;
        let at = chance.random_range(0..2);
        appliers[at].kill()?;
        told.kills += 1;
        told.in_apply += u32::from(in_apply);
        told.read(&appliers[at]);
        if chance.random_bool(0.3) {
            told.repeated += doubled(&mut flow).await?;
        }
        appliers[at] = begin(&flow, at)?;
    }
    load.await??;
    told.repeated += doubled(&mut flow).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (-1, 'last')"]).await?;
    flow.converges(WITHIN).await?;
    for applier in &appliers {
        told.read(applier);
    }
    told.one_effect(&flow).await?;
    // One that was killed at once may not have said so.
    ensure!(
        told.gaps * 2 >= overtakes,
        "few of {overtakes} gaps were met: {told:?}"
    );
    ensure!(told.reborn > 0, "no cache was born anew: {told:?}");
    ensure!(told.saw("rebuild wanted") > 0, "{told:?}");
    Ok(())
}
