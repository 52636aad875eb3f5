//! Reading under the snapshot that a fresh slot exported, while sessions commit.
//!
//! PostgreSQL counts a transaction as committed in that snapshot a moment before others see that it
//! is over. Whoever reads a page in this moment takes its rows for those of an aborted transaction
//! and writes that into the page: they are gone, on the source, for everybody. This measures how
//! many, read at once and read behind the settle barrier.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio_postgres::Client;
use trellara_postgres::settle::{Snapshot, settle};
use trellara_postgres::{
    ConnectOptions, Environment, ReplicationConnection, Session, SnapshotAction,
};

use crate::compare;

/// What the sessions write into; nothing may clean it up before it is counted.
const TABLE: &str =
    "CREATE TABLE public.raced (client int, n bigint) WITH (autovacuum_enabled = off)";
/// Blocks at the table's end that are read: where the sessions write.
const NEWEST_BLOCKS: i64 = 40;
const SLOT: &str = "raced";
/// The longest wait of the barrier ever measured was 26 ms.
const BARRIER_LIMIT: Duration = Duration::from_secs(20);

/// When the snapshot is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// As soon as it is there.
    AtOnce,
    /// When the barrier has been passed.
    BehindTheBarrier,
}

/// How long and how hard.
#[derive(Debug, Clone, Copy)]
pub struct RaceOptions {
    /// Sessions that commit one row after the other.
    pub clients: u32,
    /// Slots are made, and their snapshots read, for this long.
    pub length: Duration,
    /// When.
    pub reading: Reading,
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct RaceReport {
    /// The server's own version.
    pub version: String,
    /// When the snapshots were read.
    pub reading: Reading,
    /// Slots made and snapshots read.
    pub slots: u64,
    /// Rows whose commit was answered.
    pub committed: u64,
    /// Rows that are there at the end.
    pub visible: u64,
}

impl RaceReport {
    /// Committed rows that are gone.
    pub fn lost(&self) -> u64 {
        self.committed.saturating_sub(self.visible)
    }
}

impl fmt::Display for RaceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.reading {
            Reading::AtOnce => "at once",
            Reading::BehindTheBarrier => "behind the barrier",
        };
        write!(
            f,
            "PostgreSQL {}: {} snapshots read {when}, {} rows committed, {} lost on the source",
            self.version,
            self.slots,
            self.committed,
            self.lost()
        )
    }
}

/// Runs one race in a database of its own, named by a superuser's `url`.
pub async fn race(url: &str, options: RaceOptions) -> Result<RaceReport> {
    let client = compare::connect(url).await?;
    client.batch_execute(TABLE).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let committed = Arc::new(AtomicU64::new(0));
    let mut writers = JoinSet::new();
    for number in 0..options.clients {
        writers.spawn(write(
            url.to_owned(),
            number,
            Arc::clone(&stop),
            Arc::clone(&committed),
        ));
    }
    let slots = read_snapshots(url, &client, options).await;
    stop.store(true, Relaxed);
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    let visible = client
        .query_one("SELECT count(*) FROM public.raced", &[])
        .await?;
    let version = client.query_one("SHOW server_version", &[]).await?;
    Ok(RaceReport {
        version: version.get(0),
        reading: options.reading,
        slots: slots?,
        committed: committed.load(Relaxed),
        visible: visible.get::<_, i64>(0).unsigned_abs(),
    })
}

async fn write(
    url: String,
    number: u32,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
) -> Result<()> {
    let client = compare::connect(&url).await?;
    let insert = client
        .prepare("INSERT INTO public.raced VALUES ($1, $2)")
        .await?;
    let client_number = i32::try_from(number)?;
    let mut n = 0i64;
    while !stop.load(Relaxed) {
        n += 1;
        client.execute(&insert, &[&client_number, &n]).await?;
        committed.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// One slot after the other; how many.
async fn read_snapshots(url: &str, reader: &Client, options: RaceOptions) -> Result<u64> {
    let connect = ConnectOptions::parse(url, &Environment::empty())?;
    let mut walsender = ReplicationConnection::connect(&connect).await?;
    let watching = Session::connect(&connect).await?;
    let deadline = Instant::now() + options.length;
    let mut slots = 0;
    while Instant::now() < deadline {
        let blocks: i64 = watching
            .client
            .query_one(
                "SELECT pg_relation_size('public.raced') / current_setting('block_size')::bigint",
                &[],
            )
            .await?
            .get(0);
        let from = (blocks - NEWEST_BLOCKS).max(0);
        let made = walsender
            .create_logical_slot(SLOT, true, SnapshotAction::Export, false)
            .await?;
        let snapshot = made.snapshot.context("no snapshot was exported")?;
        let import = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT '{snapshot}'"
        );
        let read = format!("SELECT count(*) FROM public.raced WHERE ctid >= '({from},0)'::tid");
        match options.reading {
            Reading::AtOnce => {
                let at_once = format!("{import}; {read}; COMMIT");
                reader.batch_execute(&at_once).await?;
            }
            Reading::BehindTheBarrier => {
                reader.batch_execute(&import).await?;
                let seen = reader
                    .query_one("SELECT pg_current_snapshot()::text", &[])
                    .await?;
                let exported: Snapshot = seen.get::<_, &str>(0).parse()?;
                settle(&watching, &exported, BARRIER_LIMIT).await?;
                reader.batch_execute(&format!("{read}; COMMIT")).await?;
            }
        }
        let drop = format!("DROP_REPLICATION_SLOT {SLOT}");
        walsender.simple_query(&drop).await?;
        slots += 1;
    }
    Ok(slots)
}
