//! What is acknowledged, reported and trimmed is durable in the target (A2): targets that die with
//! commits in their memory, that are held in the middle of a commit, and that are put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinHandle;
use trellara_envelope::PositionReport;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::GroundOptions;
use trellara_testkit::kept::KeptData;
use trellara_testkit::{broker, compare};

use crate::restart::{KEYLESS, ground, until};
use crate::scenario::{WITHIN, run, value};

/// The flow's stream, and the subject of its transactions.
const STREAM: &str = "TRELLARA_cases";
const TRANSACTIONS: &str = "trellara.cases.tx.0";

/// What is applied stays in the stream for a tenth of a second, and the applier looks every second:
/// a stream whose history does not fit into a quarter of it is looked at more often.
const NO_HISTORY: &str = "nats.history: 100ms or 1GiB\nnats.max_bytes: 1GiB";

/// A target of which nothing but a commit that waits for it brings WAL out of memory: what was
/// committed asynchronously in the last ten seconds is gone when it is killed. Older servers than
/// 17 write out each page of WAL once it is full.
fn forgetful() -> GroundOptions {
    GroundOptions::version(18)
        .target("wal_writer_delay", "10s")
        .target("wal_writer_flush_after", "1GB")
        .target("wal_buffers", "16MB")
        .target("autovacuum", "off")
        .target("bgwriter_lru_maxpages", "0")
}

/// Inserts one row after another until told to stop; how many.
fn load(flow: &Flow, round: u32) -> (Arc<AtomicBool>, JoinHandle<Result<u32>>) {
    let (url, stop) = (flow.source_admin.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let load = tokio::spawn(async move {
        let client = compare::connect(&url).await?;
        let mut rows = 0;
        while !stopped.load(Ordering::Relaxed) {
            let sql = format!("INSERT INTO public.log VALUES ({rows}, 'round {round}')");
            client.batch_execute(&sql).await?;
            rows += 1;
            // Slow enough that what is lost is seconds of it and not a handful of milliseconds.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(rows)
    });
    (stop, load)
}

/// Waits until no transaction at or below `sequence` is in the stream any more.
async fn trimmed(nats: &str, sequence: u64) -> Result<()> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let first = broker::first_on(nats, STREAM, TRANSACTIONS).await?;
        if first.is_some_and(|first| first > sequence) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the first transaction is still at {first:?}, not behind {sequence}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn b20_what_was_trimmed_survives_a_target_that_forgets_commits() -> Result<()> {
    let extra = format!("source.acknowledge: applied\n{NO_HISTORY}");
    let (mut ground, flow) = ground(forgetful(), KEYLESS, &extra).await?;
    let nats = ground.nats.url();
    let off = "ALTER DATABASE cases SET synchronous_commit = off";
    run(&flow.target_admin, &[off]).await?;
    // The applier's session is of before that.
    let ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'trellara%'";
    run(&flow.target_admin, &[ours]).await?;
    for round in 0..3 {
        // Everything of this round that is trimmed was committed since the last flush.
        let before = broker::last_sequence(&nats, STREAM).await?;
        let (stop, load) = load(&flow, round);
        trimmed(&nats, before + 20).await?;
        ground.target.kill()?;
        ground.target.start_again()?;
        stop.store(true, Ordering::Relaxed);
        let rows = load.await??;
        eprintln!("round {round}: {rows} rows");
        // Had one of them been lost, it would be a gap now.
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

/// On the target, COMMIT waits for whoever holds the advisory lock 7.
const HELD_COMMIT: &str = "
    CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER held AFTER INSERT ON log DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION held();
    ALTER TABLE log ENABLE ALWAYS TRIGGER held";

#[tokio::test]
async fn c30_a2_nothing_is_said_about_a_commit_that_is_not_answered() -> Result<()> {
    let extra = format!("source.acknowledge: applied\n{NO_HISTORY}");
    let (mut ground, flow) = ground(GroundOptions::version(15), KEYLESS, &extra).await?;
    let nats = ground.nats.url();
    run(&flow.target_admin, &[HELD_COMMIT]).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'a')"]).await?;
    flow.caught_up(WITHIN).await?;
    let acknowledged = broker::acknowledged(&nats, STREAM, "applier").await?;
    let holder = compare::connect(&flow.target_admin).await?;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await?;
    let before = value(&flow.source_admin, "SELECT pg_current_wal_lsn()").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'b')"]).await?;
    let held = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query ILIKE 'COMMIT%'";
    until(&flow.target_admin, held, "t", WITHIN).await?;

    // The applier goes on reporting while the commit takes long.
    let stream = broker::messages(&nats, STREAM).await?;
    let waiting = stream
        .iter()
        .rfind(|message| message.subject == TRANSACTIONS)
        .context("the transaction")?
        .sequence;
    let client = broker::listen(&nats, "trellara-position.cases", 3).await?;
    for payload in client {
        let report = PositionReport::decode(&payload)?;
        ensure!(report.sequence.0 < waiting, "reported: {}", report.sequence);
    }
    let now = broker::acknowledged(&nats, STREAM, "applier").await?;
    ensure!(now < waiting && now >= acknowledged, "acknowledged: {now}");
    let confirmed = format!(
        "SELECT confirmed_flush_lsn <= '{before}' FROM pg_replication_slots WHERE slot_name = 'trellara_cases'"
    );
    ensure!(
        value(&flow.source_admin, &confirmed).await? == "t",
        "the slot was moved beyond what is durable"
    );
    let left = broker::first_on(&nats, STREAM, TRANSACTIONS).await?;
    ensure!(left.is_some_and(|first| first <= waiting), "trimmed");

    // And it never becomes one: the server dies in the middle of it.
    ground.target.kill()?;
    drop(holder);
    ground.target.start_again()?;
    flow.converges(WITHIN).await
}

/// Twenty transactions, each with this word, that arrive.
async fn write(flow: &Flow, word: &str) -> Result<()> {
    for id in 0..20 {
        let sql = format!("INSERT INTO log VALUES ({id}, '{word}')");
        run(&flow.source_admin, &[&sql]).await?;
    }
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b20_a_target_put_back_is_rewound_to_its_checkpoint_or_a_gap() -> Result<()> {
    let extra = "source.acknowledge: applied\nnats.max_bytes: 1GiB";
    let (mut ground, mut flow) = ground(GroundOptions::version(15), KEYLESS, extra).await?;
    let nats = ground.nats.url();
    write(&flow, "before").await?;
    let kept = KeptData::of(&mut ground.target)?;
    write(&flow, "forgotten").await?;
    kept.put_back(&mut ground.target)?;
    // The stream still has them: the target is rewound by itself, and goes on.
    flow.converges(WITHIN).await?;
    write(&flow, "behind").await?;

    // The same when what was forgotten is no longer in the stream.
    let kept = KeptData::of(&mut ground.target)?;
    let standing = broker::last_sequence(&nats, STREAM).await?;
    let history = ("TRELLARA__NATS__HISTORY", "100ms or 1GiB".to_owned());
    flow.environment.push(history);
    flow.applier.as_mut().context("applier")?.kill()?;
    flow.start_applier()?;
    write(&flow, "lost").await?;
    trimmed(&nats, standing + 1).await?;
    kept.put_back(&mut ground.target)?;
    let applier = flow.applier.as_mut().context("applier")?;
    applier.logged("code=GAP", WITHIN).await?;
    let log = applier.log();
    ensure!(log.contains("hint="), "no hint: {log}");
    let lost = "SELECT count(*) FROM log WHERE note = 'lost'";
    let rows = value(&flow.target_admin, lost).await?;
    ensure!(rows == "0", "{rows} rows were applied across a gap");
    Ok(())
}
