//! What can end a copy half-way. The target holds the copy in the middle of its large table, so
//! that what happens, happens during the copy; then it is let go, and everything must end equal.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;
use trellara_testkit::broker;
use trellara_testkit::compare;
use trellara_testkit::copying::Copying;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::handover::{Victim, kill};

use crate::restart::until;
use crate::scenario::{run, value};

pub(crate) const WITHIN: Duration = Duration::from_secs(90);

/// The large tables are read first, and fill the copy's stream; whoever reads them waits then.
pub(crate) const SOURCE: &str = "
    CREATE TABLE large_1 (id bigint PRIMARY KEY, body text);
    ALTER TABLE large_1 ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE large_2 (id bigint, body text);
    ALTER TABLE large_2 ALTER body SET STORAGE EXTERNAL;
    ALTER TABLE large_2 REPLICA IDENTITY FULL;
    CREATE TABLE small (id bigint PRIMARY KEY, v text);
    INSERT INTO large_1 SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 5000) g;
    INSERT INTO large_2 SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 5000) g;
    INSERT INTO small SELECT g, 'before' FROM generate_series(1, 100) g";

/// Rows from the middle on wait until a test lets them in.
pub(crate) const TARGET: &str = "
    CREATE FUNCTION held_up(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
      BEGIN
        IF id > 2500 THEN PERFORM pg_catalog.pg_advisory_xact_lock_shared(4711); END IF;
        RETURN true;
      END $$;
    CREATE TABLE large_1 (id bigint PRIMARY KEY, body text, CHECK (held_up(id)));
    CREATE TABLE large_2 (id bigint, body text, CHECK (held_up(id)));
    ALTER TABLE large_2 REPLICA IDENTITY FULL;
    CREATE TABLE small (id bigint PRIMARY KEY, v text)";

const CONFIGURATION: &str = "backfill: {max_bytes: 4MiB}";

/// A flow whose copy is in its middle, and stays there.
pub(crate) struct Held {
    pub(crate) ground: Ground,
    pub(crate) flow: Flow,
    gate: Client,
}

impl Held {
    pub(crate) async fn start(version: u32) -> Result<Self> {
        Self::with(GroundOptions::version(version), CONFIGURATION).await
    }

    pub(crate) async fn with(options: GroundOptions, extra: &str) -> Result<Self> {
        let ground = Ground::start(&options)?;
        let mut flow = ground.flow("held", SOURCE, TARGET, extra).await?;
        let gate = shut(&flow).await?;
        flow.setup().await?;
        // The slot has it, and so will the snapshot: of a table without a key it would be there twice.
        let both = "INSERT INTO large_2 VALUES (9000, 'in both'); DELETE FROM large_2 WHERE id = 7";
        run(&flow.source_admin, &[both]).await?;
        flow.start_relay()?;
        flow.start_applier()?;
        flow.copying_until(|copying| copying.parts >= 2, WITHIN)
            .await?;
        Ok(Self { ground, flow, gate })
    }

    /// Every change of a table that has been copied, of one that is being, and of one that is not
    /// begun: the stream has to bring all of them to the right rows.
    pub(crate) async fn write(&self) -> Result<()> {
        let script = [
            "UPDATE large_1 SET body = 'changed' WHERE id % 100 = 0",
            "DELETE FROM large_2 WHERE id % 100 = 1",
            "INSERT INTO large_2 VALUES (9001, 'new'), (9001, 'new')",
            "UPDATE small SET v = 'during' WHERE id <= 50; DELETE FROM small WHERE id > 90",
        ];
        run(&self.flow.source_admin, &script).await
    }

    /// Lets the copy go on, and waits until both databases are equal.
    pub(crate) async fn ends_equal(&mut self) -> Result<Copying> {
        self.open().await;
        let copying = self.flow.copied(WITHIN).await?;
        self.flow.converges(WITHIN).await?;
        Ok(copying)
    }

    pub(crate) async fn open(&self) {
        // A target that was restarted has forgotten the lock.
        _ = self
            .gate
            .batch_execute("SELECT pg_advisory_unlock_all()")
            .await;
    }

    async fn shut_again(&mut self) -> Result<()> {
        self.gate = shut(&self.flow).await?;
        Ok(())
    }

    async fn wrote_and_killed(version: u32, victim: Victim) -> Result<Copying> {
        let mut held = Self::start(version).await?;
        held.write().await?;
        kill(victim, &mut held.ground, &mut held.flow)?;
        held.ends_equal().await
    }
}

pub(crate) async fn shut(flow: &Flow) -> Result<Client> {
    let gate = compare::connect(&flow.target_admin).await?;
    gate.batch_execute("SELECT pg_advisory_lock(4711)").await?;
    Ok(gate)
}

/// Ends the sessions of the copy on the source that `which` says; how many.
async fn terminate(flow: &Flow, which: &str) -> Result<()> {
    let sql = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
          WHERE datname = current_database() AND application_name LIKE 'trellara%' \
            AND backend_type = 'client backend' AND {which}"
    );
    let ended = value(&flow.source_admin, &sql).await?;
    ensure!(ended != "0", "no session is {which}");
    Ok(())
}

#[tokio::test]
async fn a_reader_that_is_lost_reads_again() -> Result<()> {
    let mut held = Held::start(15).await?;
    held.write().await?;
    terminate(&held.flow, "query LIKE '%COPY%'").await?;
    held.ends_equal().await.map(drop)
}

#[tokio::test]
async fn b58_a_snapshot_that_is_lost_begins_anew_what_was_not_in() -> Result<()> {
    let mut held = Held::start(18).await?;
    held.write().await?;
    // Everything of the copy: who holds the snapshot, and who reads under it.
    terminate(&held.flow, "backend_xmin IS NOT NULL").await?;
    held.ends_equal().await.map(drop)
}

/// The numbers of relays begin anew with another stream: the copy that was under way would wait for a
/// higher one than its own for ever, and the relay for whoever wrote its stream.
#[tokio::test]
async fn a_copy_begins_anew_with_another_stream_of_its_flow() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let extra = "source.acknowledge: applied\nbackfill: {max_bytes: 4MiB}";
    let mut flow = ground.flow("another", SOURCE, TARGET, extra).await?;
    flow.start().await?;
    flow.copied(WITHIN).await?;
    flow.converges(WITHIN).await?;
    let gate = shut(&flow).await?;
    let again = ["table", "recopy", "public.large_1", "--yes", "--no-wait"];
    let done = flow.command(&again).await?;
    ensure!(done.code == 0, "{done:?}");
    let parts = "SELECT count(*) > 0 FROM trellara.backfill_part \
                   JOIN trellara.backfill USING (flow, schema_name, table_name, generation) \
                  WHERE state = 'copying'";
    until(&flow.target_admin, parts, "t", WITHIN).await?;
    flow.relay = None;
    flow.applier = None;
    let nats = ground.nats.url();
    broker::delete_stream(&nats, &format!("TRELLARA_{}", flow.name)).await?;
    let done = flow.command(&["setup", "--new-stream", "--yes"]).await?;
    ensure!(done.code == 0, "{done:?}");
    flow.start_relay()?;
    flow.start_applier()?;
    gate.batch_execute("SELECT pg_advisory_unlock_all()")
        .await?;
    flow.copied(WITHIN).await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b58_the_roles_own_timeouts_end_no_copy() -> Result<()> {
    let mut ground = Ground::start(&GroundOptions::version(18))?;
    let mut flow = ground
        .flow("timeouts", SOURCE, TARGET, CONFIGURATION)
        .await?;
    let gate = shut(&flow).await?;
    flow.grant().await?;
    let limits = [
        "statement_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
        "transaction_timeout",
        "lock_timeout",
    ];
    for limit in limits {
        let set = format!("ALTER ROLE {} SET {limit} = '1s'", flow.roles.capture());
        run(&flow.source_admin, &[&set]).await?;
    }
    flow.start().await?;
    flow.copying_until(|copying| copying.parts >= 2, WITHIN)
        .await?;
    // Three times what the role allows.
    tokio::time::sleep(Duration::from_secs(3)).await;
    gate.batch_execute("SELECT pg_advisory_unlock_all()")
        .await?;
    let copying = flow.copied(WITHIN).await?;
    ensure!(copying.begun_anew == 0, "{copying:?}\n{}", flow.logs());
    flow.converges(WITHIN).await?;
    ground.nats.stop()?;
    Ok(())
}

#[tokio::test]
async fn an_applier_that_dies_repeats_the_part() -> Result<()> {
    let copying = Held::wrote_and_killed(15, Victim::Applier).await?;
    ensure!(
        copying.begun_anew == 0,
        "parts that are in stay in: {copying:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_relay_that_dies_takes_its_snapshot_with_it() -> Result<()> {
    Held::wrote_and_killed(18, Victim::Relay).await.map(drop)
}

#[tokio::test]
async fn a_broker_that_dies_has_what_it_acknowledged() -> Result<()> {
    Held::wrote_and_killed(15, Victim::Broker).await.map(drop)
}

#[tokio::test]
async fn a_target_that_dies_gets_its_parts_again() -> Result<()> {
    let mut held = Held::start(18).await?;
    held.write().await?;
    held.ground.target.kill()?;
    held.ground.target.start_again()?;
    held.shut_again().await?;
    held.ends_equal().await.map(drop)
}

#[tokio::test]
async fn a_source_that_restarts_loses_the_snapshot_and_no_row() -> Result<()> {
    let mut held = Held::start(15).await?;
    held.write().await?;
    held.ground.source.kill()?;
    held.ground.source.start_again()?;
    held.write().await?;
    held.ends_equal().await.map(drop)
}

/// A table that is written anew shows no row to an older snapshot: it is begun anew, whatever of it
/// has been read.
#[tokio::test]
async fn tables_that_are_rewritten_during_the_copy_are_begun_anew() -> Result<()> {
    let rewrites = [
        (15, "TRUNCATE small"),
        (18, "VACUUM FULL small"),
        (
            15,
            "ALTER TABLE small ALTER v TYPE varchar(100) USING v || '!'",
        ),
    ];
    for (version, rewrite) in rewrites {
        let mut held = Held::start(version).await?;
        // Nobody reads it yet, or it is in already: the rewrite waits for no reader of it.
        run(&held.flow.source_admin, &[rewrite]).await?;
        run(
            &held.flow.source_admin,
            &["INSERT INTO small SELECT g, 'after' FROM generate_series(1001, 1010) g"],
        )
        .await?;
        let ended = held.ends_equal().await;
        ended.with_context(|| rewrite.to_owned())?;
    }
    Ok(())
}

#[tokio::test]
async fn a_table_that_is_dropped_during_the_copy_is_named_and_the_others_go_on() -> Result<()> {
    let held = Held::start(18).await?;
    // The reader may be at work on it; a reader of the whole copy never is for long.
    run(&held.flow.source_admin, &["DROP TABLE small"]).await?;
    run(&held.flow.target_admin, &["DROP TABLE small"]).await?;
    held.open().await;
    let copying = held
        .flow
        .copying_until(|copying| copying.waiting == 0, WITHIN)
        .await?;
    ensure!(copying.failed <= 1, "{copying:?}");
    if copying.failed == 1 {
        let reason = "SELECT reason FROM trellara.backfill WHERE state = 'failed'";
        let reason = value(&held.flow.target_admin, reason).await?;
        ensure!(!reason.is_empty(), "it is named");
    }
    Ok(())
}

/// Everything that an operator who changes his mind must not find afterwards.
#[tokio::test]
async fn b134_a_copy_that_is_cancelled_leaves_no_slot_and_no_stream() -> Result<()> {
    let mut held = Held::start(15).await?;
    let flow = &mut held.flow;
    flow.relay = None;
    flow.applier = None;
    let removed = flow.command(&["remove", "--yes"]).await?;
    ensure!(removed.code == 0, "{}{}", removed.stdout, removed.stderr);
    let slots = "SELECT count(*) FROM pg_replication_slots";
    until(&flow.source_admin, slots, "0", WITHIN).await?;
    for suffix in ["", "_COPY"] {
        let stream = format!("TRELLARA_{}{suffix}", flow.name);
        let left = broker::stream_settings(&held.ground.nats.url(), &stream).await?;
        ensure!(left.is_none(), "{stream} is left");
    }
    Ok(())
}
