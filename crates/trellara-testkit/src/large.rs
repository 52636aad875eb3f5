//! One very large transaction, streamed while it is open, with relay and applier killed in the
//! middle of it.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;

use crate::compare;
use crate::daemon::Daemon;
use crate::flow::Flow;
use crate::ground::{Ground, GroundOptions};

/// Tables of the scenario.
const SCHEMA: &str = "CREATE TABLE big (id bigint PRIMARY KEY, body text)";
/// The transaction is made of this many pieces; each ends in a savepoint that is rolled back.
const PIECES: u64 = 10;
/// Pieces written before the relay is killed: enough that half of the transaction is sent although
/// the source holds some back in its decoding memory (64 MiB by default).
const BEFORE_KILL: u64 = 8;

/// How large, and on what.
#[derive(Debug, Clone)]
pub struct LargeOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Rows that the transaction keeps; half as many more are rolled back inside it.
    pub rows: u64,
    /// `logical_decoding_work_mem` of the source; `None` leaves the server's default.
    pub decoding_memory: Option<&'static str>,
    /// Limit of each wait: for half of the chunks, half of the rows, and the end.
    pub patience: Duration,
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct LargeReport {
    /// Rows that arrived.
    pub rows: u64,
    /// Bytes of the transaction that the relay had published when it was killed.
    pub published_at_kill: u64,
    /// Bytes that the open transaction had written to the target's table when the applier was
    /// killed.
    pub written_at_kill: u64,
    /// From COMMIT on the source to the end, both kills and the second reading included.
    pub after_commit: Duration,
    /// Largest resident set of any relay, bytes.
    pub relay_peak: u64,
    /// Largest resident set of any applier, bytes.
    pub applier_peak: u64,
}

impl fmt::Display for LargeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows arrived equal; relay killed after {} MiB of chunks, applier after {} MiB of rows; \
             {:.1} s after COMMIT; peak memory: relay {} MiB, applier {} MiB",
            self.rows,
            self.published_at_kill >> 20,
            self.written_at_kill >> 20,
            self.after_commit.as_secs_f64(),
            self.relay_peak >> 20,
            self.applier_peak >> 20
        )
    }
}

/// Runs the scenario from fresh servers to equality.
pub async fn large(options: &LargeOptions) -> Result<LargeReport> {
    let mut ground = GroundOptions::version(options.version)
        .source("max_wal_size", "8GB")
        .target("max_wal_size", "8GB");
    if let Some(memory) = options.decoding_memory {
        ground = ground.source("logical_decoding_work_mem", memory);
    }
    let ground = Ground::start(&ground)?;
    let mut flow = ground.flow("large", SCHEMA, SCHEMA, "").await?;
    flow.start().await?;
    let mut peaks = Peaks::default();

    let writer = compare::connect(&flow.source_admin).await?;
    writer.batch_execute("BEGIN").await?;
    for piece in 0..BEFORE_KILL {
        insert(&writer, options, piece).await?;
    }
    let published_at_kill = half_is_published(&flow, options).await?;
    peaks.look(&flow);
    flow.relay.as_mut().context("relay")?.kill()?;
    flow.start_relay()?;
    for piece in BEFORE_KILL..PIECES {
        insert(&writer, options, piece).await?;
    }
    writer.batch_execute("COMMIT").await?;
    let committed = Instant::now();

    let written_at_kill = half_is_written(&flow, options, &mut peaks).await?;
    flow.applier.as_mut().context("applier")?.kill()?;
    flow.start_applier()?;
    peaks.until_equal(&flow, options).await?;
    let after_commit = committed.elapsed();
    // By the program's own judge, too.
    flow.verified().await?;
    Ok(LargeReport {
        rows: options.rows,
        published_at_kill,
        written_at_kill,
        after_commit,
        relay_peak: peaks.relay,
        applier_peak: peaks.applier,
    })
}

/// One piece of the transaction: rows that stay, and half as many that are rolled back.
async fn insert(writer: &Client, options: &LargeOptions, piece: u64) -> Result<()> {
    let each = options.rows / PIECES;
    let from = piece * each;
    let rows = |first: u64, count: u64| {
        format!(
            "INSERT INTO public.big SELECT g, 'row ' || md5(g::text) FROM generate_series({first}, {}) g;",
            first + count - 1
        )
    };
    let (kept, undone) = (rows(from, each), rows(options.rows + from, each / 2));
    writer
        .batch_execute(&format!(
            "{kept} SAVEPOINT undone; {undone} ROLLBACK TO SAVEPOINT undone"
        ))
        .await?;
    Ok(())
}

/// Waits until the relay has published half of the transaction.
async fn half_is_published(flow: &Flow, options: &LargeOptions) -> Result<u64> {
    // A row is a little more than 60 bytes of pgoutput. Rows that are undone need not be sent:
    // PostgreSQL 18 leaves out what it knows to be rolled back.
    let least = options.rows / 2 * 60;
    let deadline = Instant::now() + options.patience;
    loop {
        let open = detail(flow.relay.as_ref(), "open_bytes").await;
        if open >= least {
            return Ok(open);
        }
        ensure!(
            Instant::now() < deadline,
            "only {open} of {least} bytes were published\n{}",
            flow.logs()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn detail(daemon: Option<&Daemon>, name: &str) -> u64 {
    let Some(daemon) = daemon else { return 0 };
    let Some(status) = daemon.status().await else {
        return 0;
    };
    status["daemons"][0]["details"][name]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Waits until half of the rows are in the target's table, where nobody can see them yet: the
/// table's file tells.
async fn half_is_written(flow: &Flow, options: &LargeOptions, peaks: &mut Peaks) -> Result<u64> {
    let target = compare::connect(&flow.target_admin).await?;
    // 8 bytes id, 36 text, 28 of tuple header and item pointer, padded.
    let least = (options.rows / 2 * 76) as i64;
    let deadline = Instant::now() + options.patience;
    loop {
        peaks.look(flow);
        let size: i64 = target
            .query_one("SELECT pg_relation_size('public.big')", &[])
            .await?
            .get(0);
        if size >= least {
            let visible: i64 = target
                .query_one("SELECT count(*) FROM public.big", &[])
                .await?
                .get(0);
            ensure!(visible == 0, "{visible} rows are visible in the middle");
            return Ok(size as u64);
        }
        ensure!(
            Instant::now() < deadline,
            "only {size} of {least} bytes were written\n{}",
            flow.logs()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the daemons took at most, over all their lives.
#[derive(Default)]
struct Peaks {
    relay: u64,
    applier: u64,
}

impl Peaks {
    fn look(&mut self, flow: &Flow) {
        let peak = |daemon: &Option<Daemon>| {
            let daemon = daemon.as_ref();
            daemon.and_then(Daemon::peak_memory_bytes).unwrap_or(0)
        };
        self.relay = self.relay.max(peak(&flow.relay));
        self.applier = self.applier.max(peak(&flow.applier));
    }

    /// Waits until the transaction is visible: all of it at once, and equal.
    async fn until_equal(&mut self, flow: &Flow, options: &LargeOptions) -> Result<()> {
        let source = compare::connect(&flow.source_admin).await?;
        let target = compare::connect(&flow.target_admin).await?;
        let deadline = Instant::now() + options.patience;
        loop {
            self.look(flow);
            let there: bool = target
                .query_one("SELECT EXISTS (SELECT FROM public.big)", &[])
                .await?
                .get(0);
            if there {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "the transaction did not arrive\n{}",
                flow.logs()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (ours, theirs) = (sum(&source).await?, sum(&target).await?);
        ensure!(
            ours == theirs,
            "the source holds {ours:?}, the target {theirs:?}"
        );
        ensure!(ours.0 == options.rows as i64, "the source holds {ours:?}");
        self.look(flow);
        Ok(())
    }
}

/// Number of rows and a sum over their hashes: five million rows are not carried to the test.
async fn sum(client: &Client) -> Result<(i64, String)> {
    let row = client
        .query_one(
            "SELECT count(*), coalesce(sum(hashtextextended(big::text, 0)::numeric), 0)::text FROM public.big",
            &[],
        )
        .await?;
    Ok((row.get(0), row.get(1)))
}
