//! Rolled-back subtransactions that PostgreSQL streams without ever saying that they were rolled
//! back: it forgets that it streamed one of which it had spilled more than 4096 changes. Each test
//! owns its servers.

use anyhow::{Context, Result};
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use crate::restart::until;
use crate::scenario::{WITHIN, run, value};

const SCHEMA: &str = "CREATE TABLE log (id bigint, note text);
    ALTER TABLE log REPLICA IDENTITY FULL;
    ALTER TABLE log ALTER note SET STORAGE EXTERNAL;
    CREATE TABLE keyed (id bigint PRIMARY KEY, note text)";

async fn ground(version: u32, memory: &str) -> Result<(Ground, Flow)> {
    let options = GroundOptions::version(version).source("logical_decoding_work_mem", memory);
    let ground = Ground::start(&options)?;
    let extra = "source.acknowledge: published";
    let mut flow = ground.flow("cases", SCHEMA, SCHEMA, extra).await?;
    flow.start().await?;
    Ok((ground, flow))
}

/// Nothing is restarted: a change of several records (a value out of line, an INSERT … ON
/// CONFLICT) keeps PostgreSQL from streaming just when the memory is used up, so it spills, and
/// streams what it has spilled once the change is whole.
async fn undone_in_one_connection(version: u32, memory: &str, undone: &str) -> Result<()> {
    let (_ground, flow) = ground(version, memory).await?;
    let client = compare::connect(&flow.source_admin).await?;
    client
        .batch_execute(&format!(
            "BEGIN; INSERT INTO public.log VALUES (1, 'kept'); SAVEPOINT a; {undone}"
        ))
        .await?;
    let counts = "FROM pg_stat_replication_slots WHERE slot_name = 'trellara_cases'";
    let streamed = format!("SELECT stream_count > 0 AND spill_count > 0 {counts}");
    until(&flow.source_admin, &streamed, "t", WITHIN).await?;
    client
        .batch_execute("ROLLBACK TO a; INSERT INTO public.log VALUES (2, 'kept too'); COMMIT")
        .await?;
    flow.converges(WITHIN).await?;
    // It goes on streaming: the answer of the source is enough.
    let log = flow.relay.as_ref().context("relay")?.log();
    anyhow::ensure!(
        !log.contains("the relay begins again"),
        "streaming was given up:\n{log}"
    );
    Ok(())
}

/// 4500 pieces out of line.
const OUT_OF_LINE: &str = "INSERT INTO public.log VALUES (3, repeat('x', 9000000))";
const SPECULATIVE: &str = "INSERT INTO public.keyed
    SELECT g, 'undone' FROM generate_series(1, 20000) g ON CONFLICT DO NOTHING";

#[tokio::test]
async fn a_large_value_out_of_line_stays_undone_on_15() -> Result<()> {
    undone_in_one_connection(15, "1MB", OUT_OF_LINE).await
}

#[tokio::test]
async fn a_large_value_out_of_line_stays_undone_on_18() -> Result<()> {
    undone_in_one_connection(18, "1MB", OUT_OF_LINE).await
}

#[tokio::test]
async fn inserts_on_conflict_stay_undone_on_15() -> Result<()> {
    undone_in_one_connection(15, "2MB", SPECULATIVE).await
}

#[tokio::test]
async fn inserts_on_conflict_stay_undone_on_18() -> Result<()> {
    undone_in_one_connection(18, "2MB", SPECULATIVE).await
}

/// A source that does not answer is no reason to guess: the transaction is read after its commit.
#[tokio::test]
async fn without_the_sources_word_it_is_read_after_its_commit() -> Result<()> {
    let (_ground, mut flow) = ground(18, "1MB").await?;
    let mute = "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_xact_status FROM public";
    run(&flow.source_admin, &[mute]).await?;
    let script = format!(
        "BEGIN; INSERT INTO log VALUES (1, 'kept'); SAVEPOINT a; {OUT_OF_LINE};
         RELEASE a; INSERT INTO log VALUES (2, 'kept too'); COMMIT"
    );
    run(&flow.source_admin, &[&script]).await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay
        .logged("does not say which subtransactions", WITHIN)
        .await?;
    flow.converges(WITHIN).await
}

/// The relay is killed in the middle: what lies below the slot's position may not be streamed and
/// is spilled. The rollback is forgotten when exactly one block follows, so the rows behind the
/// restart come in several sizes. `table` has most of the rows.
async fn undone_across_a_restart(version: u32, table: &str) -> Result<()> {
    let (_ground, mut flow) = ground(version, "64kB").await?;
    let aside = "CREATE SCHEMA aside; CREATE TABLE aside.log (id bigint, note text)";
    for side in [&flow.source_admin, &flow.target_admin] {
        run(side, &[aside]).await?;
    }
    let client = compare::connect(&flow.source_admin).await?;
    for rows in [100, 200, 300, 400, 500] {
        client
            .batch_execute(&format!(
                "BEGIN; INSERT INTO public.log VALUES (1, 'kept'); SAVEPOINT a;
                 INSERT INTO {table} SELECT g, 'undone' FROM generate_series(1, 20000) g"
            ))
            .await?;
        // Another transaction lets the confirmed position pass those rows.
        run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'other')"]).await?;
        let passed = value(&flow.source_admin, "SELECT pg_current_wal_lsn()").await?;
        let confirmed = format!(
            "SELECT confirmed_flush_lsn >= '{passed}' FROM pg_replication_slots WHERE slot_name = 'trellara_cases'"
        );
        until(&flow.source_admin, &confirmed, "t", WITHIN).await?;
        flow.relay.as_mut().context("relay")?.kill()?;
        flow.start_relay()?.logged("took the slot", WITHIN).await?;
        client
            .batch_execute(&format!(
                "INSERT INTO public.log VALUES (4, 'undone too');
                 INSERT INTO {table} SELECT g, 'undone too' FROM generate_series(1, {rows}) g;
                 ROLLBACK TO a; INSERT INTO public.log VALUES (3, 'kept too'); COMMIT"
            ))
            .await?;
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_spilled_subtransaction_stays_undone_on_15() -> Result<()> {
    undone_across_a_restart(15, "public.log").await
}

#[tokio::test]
async fn a_spilled_subtransaction_stays_undone_on_18() -> Result<()> {
    undone_across_a_restart(18, "public.log").await
}

#[tokio::test]
async fn a_subtransaction_spilled_out_of_sight_stays_undone_on_15() -> Result<()> {
    undone_across_a_restart(15, "aside.log").await
}

#[tokio::test]
async fn a_subtransaction_spilled_out_of_sight_stays_undone_on_18() -> Result<()> {
    undone_across_a_restart(18, "aside.log").await
}
