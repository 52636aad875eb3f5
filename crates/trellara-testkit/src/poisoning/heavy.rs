//! One transaction of hundreds of megabytes whose last change the target refuses: kept, and replayed
//! after the repair, within the memory that any other transaction has.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;

use crate::compare;
use crate::daemon::Daemon;
use crate::flow::Flow;
use crate::ground::{Ground, GroundOptions};

const SCHEMA: &str = "CREATE TABLE big (id bigint PRIMARY KEY, body text)";
/// Keys that a held transaction may touch, as the program's own default says it.
const MAX_KEYS: u64 = 500_000;

/// How large, and on what.
#[derive(Debug, Clone)]
pub struct HeavyOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Rows of the transaction.
    pub rows: u64,
    /// Of each row's text.
    pub row_bytes: u64,
    /// Whether the lane moves past it, instead of standing in front of it.
    pub hold_dependents: bool,
    /// Limit of each wait.
    pub patience: Duration,
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct HeavyReport {
    /// Of the transaction's records.
    pub bytes: u64,
    /// Why it was held and where it was kept.
    pub kept: String,
    /// From COMMIT until it was held.
    pub hold: Duration,
    /// From the operator's command until it was in.
    pub replay: Duration,
    /// Largest resident set of the relay, bytes.
    pub relay_peak: u64,
    /// Of the applier.
    pub applier_peak: u64,
    /// Of the command that replayed it.
    pub command_peak: u64,
}

impl fmt::Display for HeavyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} MiB held as {} after {:.1} s, replayed in {:.1} s, and equal; peak memory: relay {} MiB, \
             applier {} MiB, command {} MiB",
            self.bytes >> 20,
            self.kept,
            self.hold.as_secs_f64(),
            self.replay.as_secs_f64(),
            self.relay_peak >> 20,
            self.applier_peak >> 20,
            self.command_peak >> 20
        )
    }
}

/// Runs it from fresh servers to equality.
pub async fn heavy(options: &HeavyOptions) -> Result<HeavyReport> {
    let ground = GroundOptions::version(options.version)
        .source("max_wal_size", "8GB")
        .source("logical_decoding_work_mem", "4MB")
        .target("max_wal_size", "8GB");
    let ground = Ground::start(&ground)?;
    let check = format!(
        "{SCHEMA}; ALTER TABLE big ADD CONSTRAINT refused CHECK (id <> {})",
        options.rows
    );
    let policy = match options.hold_dependents {
        true => "quarantine: {policy: hold_dependents}",
        false => "",
    };
    let extra = format!("nats.max_bytes: 4GiB\n{policy}");
    let mut flow = ground.flow("heavy", SCHEMA, &check, &extra).await?;
    flow.start().await?;
    let source = compare::connect(&flow.source_admin).await?;
    let target = compare::connect(&flow.target_admin).await?;
    source
        .batch_execute(&format!(
            "INSERT INTO public.big SELECT g, left(repeat(md5(g::text), {}), {}) \
               FROM generate_series(1, {}) g",
            options.row_bytes / 32 + 1,
            options.row_bytes,
            options.rows
        ))
        .await?;
    let committed = Instant::now();
    let (kept, bytes) = until_held(&flow, &target, options).await?;
    let hold = committed.elapsed();
    // More keys than may be remembered: nobody would know what waits behind it.
    let passes = options.hold_dependents && options.rows <= MAX_KEYS;
    let expected = match passes {
        true => "poisoned in target",
        false => "blocking in stream",
    };
    ensure!(
        kept == expected,
        "{kept}, expected {expected}\n{}",
        flow.logs()
    );

    let peak = |daemon: &Option<Daemon>| daemon.as_ref().and_then(Daemon::peak_memory_bytes);
    let mut applier_peak = peak(&flow.applier).context("the applier's memory")?;
    if passes {
        moved_past(&flow, &source, options).await?;
        // Without an applier the command does it itself.
        applier_peak = applier_peak.max(peak(&flow.applier).unwrap_or(0));
        flow.applier
            .take()
            .context("applier")?
            .terminate(options.patience)?;
    }
    target
        .batch_execute("ALTER TABLE public.big DROP CONSTRAINT refused")
        .await?;
    let began = Instant::now();
    let command_peak = replay(&flow, options.patience).await?;
    let took = began.elapsed();
    if flow.applier.is_none() {
        flow.start_applier()?;
    }
    flow.caught_up(options.patience).await?;
    flow.verified().await?;
    let rows = "SELECT count(*) FROM public.big WHERE id > 0";
    let rows: i64 = target.query_one(rows, &[]).await?.get(0);
    ensure!(rows as u64 == options.rows, "{rows} rows are there");
    Ok(HeavyReport {
        bytes,
        kept,
        hold,
        replay: took,
        relay_peak: peak(&flow.relay).context("the relay's memory")?,
        applier_peak: applier_peak.max(peak(&flow.applier).unwrap_or(0)),
        command_peak,
    })
}

/// Waits until it is held: why and where, and how large it is.
async fn until_held(flow: &Flow, target: &Client, options: &HeavyOptions) -> Result<(String, u64)> {
    let deadline = Instant::now() + options.patience;
    let sql = "SELECT reason || ' in ' || storage, bytes FROM trellara.held WHERE state = 'held'";
    loop {
        if let Some(row) = target.query_opt(sql, &[]).await? {
            return Ok((row.get(0), row.get::<_, i64>(1) as u64));
        }
        ensure!(Instant::now() < deadline, "it is not held\n{}", flow.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Sees the lane go on, and takes the frames out of the stream.
async fn moved_past(flow: &Flow, source: &Client, options: &HeavyOptions) -> Result<()> {
    source
        .batch_execute("INSERT INTO public.big VALUES (-1, 'behind')")
        .await?;
    flow.caught_up(options.patience).await?;
    let client = async_nats::connect(&flow.places.nats_url).await?;
    let jetstream = async_nats::jetstream::new(client);
    let stream = format!("TRELLARA_{}", flow.name);
    let mut stream = jetstream.get_stream(&stream).await?;
    let last = stream.info().await?.state.last_sequence;
    stream.purge().sequence(last).await?;
    let left = stream.info().await?.state.messages;
    ensure!(left <= 64, "{left} messages are still in the stream");
    Ok(())
}

/// Replays everything; the largest resident set of the command.
pub(super) async fn replay(flow: &Flow, patience: Duration) -> Result<u64> {
    let log = flow.folder().join("replay.log");
    let words = ["quarantine", "replay", "--all"];
    let mut command = Daemon::start_with(&flow.config(), &words, &log, &flow.environment)?;
    let began = Instant::now();
    let mut peak = 0;
    while command.is_running() {
        peak = peak.max(command.peak_memory_bytes().unwrap_or(0));
        ensure!(
            began.elapsed() < patience,
            "the replay has no end: {}\n{}",
            command.log(),
            flow.logs()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = command.wait(patience)?;
    ensure!(
        status.success(),
        "{status}: {}\n{}",
        command.log(),
        flow.logs()
    );
    Ok(peak)
}
