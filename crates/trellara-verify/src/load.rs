//! How much is read at a time, so that those who work with the databases notice little of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use trellara_envelope::{FlowName, Lsn};
use trellara_postgres::{fault, insert_position};

use crate::compare::Progress;
use crate::error::{Failure, Side, VerifyError};
use crate::inventory::{self, Cells};
use crate::ledger;
use crate::reader::Reader;
use crate::report::TableName;

/// Between two looks at the lag: it takes the applier about as long to write its position down.
const LOOK: Duration = Duration::from_millis(500);
/// Of a table that was never analysed.
const ROW_BYTES_GUESSED: u64 = 100;

/// When to stop reading for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseLag {
    /// The flow whose lag is meant.
    pub flow: FlowName,
    /// How many bytes of WAL the target may be behind the source.
    pub bytes: u64,
}

/// The limits of one run.
pub(crate) struct Load {
    rate: Option<Mutex<Bucket>>,
    pause: Option<PauseLag>,
    sizes: BTreeMap<TableName, Size>,
}

/// What a table takes on the source.
#[derive(Debug, Clone, Copy)]
struct Size {
    bytes: u64,
    row_bytes: u64,
}

impl Load {
    /// No limits.
    pub(crate) fn none() -> Self {
        Self {
            rate: None,
            pause: None,
            sizes: BTreeMap::new(),
        }
    }

    /// Reads from the source how large rows are, where it matters.
    pub(crate) async fn new(
        rate: Option<u64>,
        pause: Option<PauseLag>,
        source: &Reader,
        tables: &[TableName],
    ) -> Result<Self, Failure> {
        let sizes = match rate {
            Some(_) => sizes(source, tables).await?,
            None => BTreeMap::new(),
        };
        Ok(Self {
            rate: rate.map(|rate| Mutex::new(Bucket::new(rate, Instant::now()))),
            pause,
            sizes,
        })
    }

    /// Waits until so many rows of the table, or all of them, may be read on each side. The bytes
    /// are a guess from the table's size; what it is wrong by is not made up for.
    pub(crate) async fn before(
        &self,
        (table, rows): (&TableName, Option<u64>),
        (source, target): (&Reader, &Reader),
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), Failure> {
        if let Some(bucket) = &self.rate {
            let bytes = self.sizes.get(table).map_or(0, |size| match rows {
                Some(rows) => size.bytes.min(rows.saturating_mul(size.row_bytes)),
                None => size.bytes,
            });
            let wait = {
                let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
                bucket.take(bytes, Instant::now())
            };
            tokio::time::sleep(wait).await;
        }
        let Some(pause) = &self.pause else {
            return Ok(());
        };
        let mut told = false;
        loop {
            let lag = lag_bytes(source, target, &pause.flow).await?;
            if lag <= pause.bytes {
                return Ok(());
            }
            if !std::mem::replace(&mut told, true) {
                progress(Progress::Paused { lag_bytes: lag });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How far the target is behind the source.
async fn lag_bytes(source: &Reader, target: &Reader, flow: &FlowName) -> Result<u64, Failure> {
    let refused = |side| {
        move |error: tokio_postgres::Error| Failure::Refused {
            side,
            fault: Box::new(fault(&error)),
        }
    };
    let inserted = insert_position(source.session()).await;
    let inserted = inserted.map_err(refused(Side::Source))?;
    let newest = ledger::newest(&target.session().client, flow).await;
    let newest = newest.map_err(refused(Side::Target))?;
    if newest.is_empty() {
        let reason = "the flow is not set up in this target".into();
        return Err(VerifyError::unusable(Side::Target, reason, "run trellara setup").into());
    }
    let ends = newest
        .iter()
        .map(|lane| lane.at.map_or(Lsn(0), |at| at.end));
    let applied = ends.min().unwrap_or(Lsn(0));
    Ok(inserted.0.saturating_sub(applied.0))
}

/// Each table's size, and by the planner's guess at its rows that of a row.
async fn sizes(
    source: &Reader,
    tables: &[TableName],
) -> Result<BTreeMap<TableName, Size>, Failure> {
    if tables.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT w.i, sum(pg_table_size(l.oid))::bigint, \
                sum(greatest(l.reltuples, 0))::bigint \
           FROM (VALUES {}) w(i, s, n) JOIN pg_namespace n ON n.nspname = w.s \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n \
           CROSS JOIN LATERAL (SELECT c.oid WHERE c.relkind <> 'p' UNION \
             SELECT t.relid FROM pg_partition_tree(c.oid) t WHERE t.isleaf) p(oid) \
           JOIN pg_class l ON l.oid = p.oid GROUP BY w.i",
        inventory::values(tables)
    );
    let mut all = BTreeMap::new();
    for row in source.rows(&sql).await? {
        let mut row = Cells(row.into_iter());
        let (ordinal, bytes, rows) = (row.number()?, row.number()? as u64, row.number()? as u64);
        let row_bytes = bytes.checked_div(rows).unwrap_or(ROW_BYTES_GUESSED).max(1);
        if let Some(table) = tables.get(ordinal) {
            all.insert(table.clone(), Size { bytes, row_bytes });
        }
    }
    Ok(all)
}

/// A token bucket whose balance may be owed: a piece is read as a whole, and whoever comes next
/// waits for it.
#[derive(Debug)]
struct Bucket {
    bytes_per_second: f64,
    balance_bytes: f64,
    at: Instant,
}

impl Bucket {
    fn new(bytes_per_second: u64, at: Instant) -> Self {
        let bytes_per_second = bytes_per_second.max(1) as f64;
        Self {
            bytes_per_second,
            balance_bytes: bytes_per_second,
            at,
        }
    }

    /// How long to wait before so many bytes are read.
    fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        // What was not used for long is not made up for in one go.
        self.balance_bytes =
            (self.balance_bytes + passed * self.bytes_per_second).min(self.bytes_per_second);
        let owed = (-self.balance_bytes).max(0.0);
        self.balance_bytes -= bytes as f64;
        Duration::try_from_secs_f64(owed / self.bytes_per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_reads_much_makes_the_next_one_wait() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut bucket = Bucket::new(100, began);
        assert_eq!(
            bucket.take(500, began),
            Duration::ZERO,
            "the first never waits"
        );
        assert_eq!(bucket.take(100, began), Duration::from_secs(4));
        assert_eq!(bucket.take(100, at(4)), Duration::from_secs(1));
        assert_eq!(bucket.take(50, at(1000)), Duration::ZERO);
        assert_eq!(bucket.take(150, at(1000)), Duration::ZERO);
        assert_eq!(
            bucket.take(1, at(1000)),
            Duration::from_secs(1),
            "a burst has an end"
        );
    }

    #[test]
    fn over_time_the_rate_is_kept() {
        let began = Instant::now();
        let (mut bucket, mut now) = (Bucket::new(1000, began), began);
        for _ in 0..100 {
            now += bucket.take(700, now);
        }
        let took = (now - began).as_secs_f64();
        assert!((60.0..75.0).contains(&took), "{took}");
    }
}
