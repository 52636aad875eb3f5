//! C41: two flows of one source into one target. Their transactions have equal identities, and
//! neither may take the other's for its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;

use super::kills::{applying, dice, doubled};
use super::told::Told;
use super::{TWICE, applier, counter, load_of};
use crate::scenario::{WITHIN, prepared, run, value};

const TABLES: &str = "\
CREATE TABLE a (id bigint, note text); ALTER TABLE a REPLICA IDENTITY FULL; \
CREATE TABLE b (id bigint, note text); ALTER TABLE b REPLICA IDENTITY FULL";
/// Each transaction belongs to both flows.
const BOTH: &str = "\
BEGIN; INSERT INTO a VALUES (:client_id, 'x'); INSERT INTO b VALUES (:client_id, 'y'); COMMIT;";
const FIRST: &str = "\
BEGIN; INSERT INTO a VALUES (0, 'first'); INSERT INTO b VALUES (0, 'first'); COMMIT";
const LAST: &str = "\
BEGIN; INSERT INTO a VALUES (-1, 'last'); INSERT INTO b VALUES (-1, 'last'); COMMIT";
/// Identities that stand in the ledger of both flows.
const SHARED: &str = "\
SELECT count(*) FROM (\
  SELECT substring(hashes FROM g * 16 + 1 FOR 16) FROM trellara.applied, \
         LATERAL generate_series(0, length(hashes) / 16 - 1) AS g WHERE flow = '$1' \
  INTERSECT \
  SELECT substring(hashes FROM g * 16 + 1 FOR 16) FROM trellara.applied, \
         LATERAL generate_series(0, length(hashes) / 16 - 1) AS g WHERE flow = '$2') AS i";

/// Two flows between the same databases: one for each table. Both are set up, nothing runs yet.
async fn two_flows(version: u32, name: &str) -> Result<(Flow, Flow)> {
    let first = prepared(
        version,
        name,
        &[TABLES],
        &[TABLES],
        "source.tables: [\"public.a\"]",
    )
    .await?;
    let second = format!("{}2", first.name);
    let second = first.beside(&second, "source.tables: [\"public.b\"]")?;
    for (flow, table) in [(&first, "a"), (&second, "b")] {
        // The shipped script would publish both tables for both.
        let publication = format!(
            "CREATE PUBLICATION trellara_{} FOR TABLE {table} WITH (publish_via_partition_root = true)",
            flow.name
        );
        run(&flow.source_admin, &[&publication]).await?;
        flow.setup().await?;
    }
    Ok((first, second))
}

async fn shared(first: &Flow, second: &Flow) -> Result<u64> {
    let sql = SHARED
        .replace("$1", &first.name)
        .replace("$2", &second.name);
    Ok(value(&first.target_admin, &sql).await?.parse()?)
}

/// Both have everything, and nothing twice.
async fn one_effect_each(first: &Flow, second: &Flow) -> Result<u64> {
    first.caught_up(WITHIN).await?;
    second.converges(WITHIN).await?;
    let twice = value(&first.target_admin, TWICE).await?;
    ensure!(
        twice == "0",
        "{twice} identities stand in a flow's ledger twice"
    );
    shared(first, second).await
}

/// One is killed and given duplicates, and the other goes on as if nothing had happened.
#[tokio::test]
async fn c41_one_flow_is_killed_and_the_other_goes_on() -> Result<()> {
    let mut chance = dice();
    let (mut killed, mut other) = two_flows(18, "two").await?;
    for flow in [&mut killed, &mut other] {
        flow.start_relay()?;
        flow.start_applier()?;
    }
    run(&killed.source_admin, &[FIRST]).await?;
    killed.caught_up(WITHIN).await?;
    other.caught_up(WITHIN).await?;
    let (mut kills, mut repeated) = (0, 0);
    let load = load_of(&killed, 18, 6, BOTH)?;
    while !load.is_finished() {
        let pause = Duration::from_millis(chance.random_range(20..600));
        tokio::time::sleep(pause).await;
        killed.applier.as_mut().context("applier")?.kill()?;
        kills += 1;
        if chance.random_bool(0.3) {
            repeated += doubled(&mut killed).await?;
        }
        killed.start_applier()?;
    }
    load.await??;
    repeated += doubled(&mut killed).await?;
    run(&killed.source_admin, &[LAST]).await?;
    let both = one_effect_each(&killed, &other).await?;
    ensure!(both > 500, "only {both} identities are common to both");
    let (killed, other) = (applier(&killed).await?, applier(&other).await?);
    eprintln!("{kills} kills, {repeated} published again, {both} identities in both ledgers");
    ensure!(kills >= 5, "{kills} kills");
    ensure!(
        counter(&killed, "duplicate_transactions")? > 0,
        "none of {repeated} duplicates was met: {killed}"
    );
    // The other's: as in a steady state, with the other flow's identities all over the ledger.
    ensure!(counter(&other, "applied_vouched")? >= both, "{other}");
    for nothing in [
        "applied_probed",
        "probes",
        "cache_hits",
        "duplicate_transactions",
        "retries",
    ] {
        ensure!(counter(&other, nothing)? == 0, "{nothing}: {other}");
    }
    ensure!(other["details"]["cache_hydrations"] == "1", "{other}");
    Ok(())
}

/// One lags behind while the other applies everything and has its ledger pruned: what lies below
/// the other's checkpoint and watermark, or stands in its ledger, is new to this one. It is without a
/// cache, so that the ledger answers, and it is killed in the midst of it.
#[tokio::test]
async fn c41_what_the_other_flow_applied_and_pruned_is_new_to_this_one() -> Result<()> {
    let (mut ahead, mut behind) = two_flows(15, "lag").await?;
    ahead.start_relay()?;
    ahead.start_applier()?;
    behind.start_relay()?;
    for _ in 0..2 {
        load_of(&ahead, 15, 2, BOTH)?.await??;
        ahead.caught_up(WITHIN).await?;
        pruned(&ahead).await?;
    }
    let lacking = value(&behind.target_admin, "SELECT count(*) FROM b").await?;
    ensure!(lacking == "0", "it was to lag: {lacking} rows");

    let target = compare::connect(&behind.target_admin).await?;
    let mut told = Told::default();
    for kill in 0..4 {
        let mut applier = behind.start_bare_applier("applier", 0, false)?;
        let in_apply = applying(&target, &behind, WITHIN).await?;
        ensure!(in_apply, "nothing is applied: {}", applier.log());
        applier.kill()?;
        told.kills += 1;
        told.read(&applier);
        if kill % 2 == 0 {
            doubled(&mut behind).await?;
        }
        run(&behind.source_admin, &[LAST]).await?;
    }
    behind.applier = Some(behind.start_bare_applier("applier", 0, false)?);
    let both = one_effect_each(&ahead, &behind).await?;
    told.read(behind.applier.as_ref().context("applier")?);
    eprintln!("{both} identities in both ledgers, {told:?}");
    ensure!(both > 200, "only {both} identities are common to both");
    ensure!(told.saw("off") > 0 && told.saw("vouching") == 0, "{told:?}");
    ensure!(told.count("applied_probed") > 1000, "{told:?}");
    ensure!(told.count("duplicate_transactions") > 0, "{told:?}");
    let marks = format!(
        "SELECT string_agg(flow, ',') FROM trellara.watermark WHERE end_lsn > \
           (SELECT min(highest_end_lsn) FROM trellara.applied WHERE flow = '{}')",
        behind.name
    );
    let marks = value(&behind.target_admin, &marks).await?;
    ensure!(
        marks == ahead.name,
        "watermarks above what came late: {marks}"
    );
    Ok(())
}

/// Prunes the older half of a flow's ledger, as its applier would when the window is over.
async fn pruned(flow: &Flow) -> Result<()> {
    let sql = format!(
        "WITH mine AS (SELECT * FROM trellara.applied WHERE flow = '{0}') \
         SELECT p.pruned \
           FROM trellara.lane AS l, \
                (SELECT end_lsn, source_system FROM mine ORDER BY first_ordinal DESC \
                 OFFSET (SELECT count(*) / 2 FROM mine) LIMIT 1) AS half, \
                LATERAL trellara.prune(l.flow, l.lane, l.epoch, '0 s', half.end_lsn, \
                                       half.source_system, 20000) AS p \
          WHERE l.flow = '{0}'",
        flow.name
    );
    let gone: u64 = value(&flow.target_admin, &sql).await?.parse()?;
    ensure!(gone > 0, "nothing was pruned");
    Ok(())
}
