//! One table: divided, digested on both sides at once, and looked into where the digests differ.

use std::sync::Mutex;
use std::time::Instant;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream, try_join};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::compare::{CompareOptions, Progress};
use crate::digest::{Border, Hash, Piece};
use crate::drill;
use crate::error::{Failure, Side, VerifyError};
use crate::key;
use crate::listing::{self, Asked};
use crate::mapping::Pair;
use crate::measure::{self, Digest};
use crate::plan::Plan;
use crate::reader::Reader;
use crate::report::{Coverage, Difference, Method, Outcome, TableReport};
use crate::shape::Shape;

/// Rows of differing buckets that are put in order at once, which the servers do on disk.
const MERGED_ROWS: u64 = 4_000_000;
/// What the values of one table's list may take.
const VALUES_BYTES: usize = 64 << 20;

/// A session on each side, in its snapshot.
pub(crate) struct Lane {
    pub(crate) source: Reader,
    pub(crate) target: Reader,
}

/// The lanes that nobody uses at the moment.
pub(crate) struct Pool {
    permits: Semaphore,
    idle: Mutex<Vec<Lane>>,
}

/// A lane that is used; goes back when dropped.
pub(crate) struct Taken<'a> {
    lane: Option<Lane>,
    pool: &'a Pool,
    // Released behind the lane's return.
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(lanes: Vec<Lane>) -> Self {
        Self {
            permits: Semaphore::new(lanes.len()),
            idle: Mutex::new(lanes),
        }
    }

    pub(crate) async fn take(&self) -> Result<Taken<'_>, Failure> {
        let permit = self.permits.acquire().await.ok();
        let lane = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        match (permit, lane) {
            (Some(permit), Some(lane)) => Ok(Taken {
                lane: Some(lane),
                pool: self,
                _permit: permit,
            }),
            _ => Err(VerifyError::bug("a lane was lost").into()),
        }
    }
}

impl Taken<'_> {
    fn lane(&self) -> Result<&Lane, Failure> {
        let lane = self.lane.as_ref();
        lane.ok_or_else(|| VerifyError::bug("a lane was lost").into())
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let (Some(lane), Ok(mut idle)) = (self.lane.take(), self.pool.idle.lock()) {
            idle.push(lane);
        }
    }
}

/// What every table needs.
pub(crate) struct Ground<'a> {
    pub(crate) pool: Pool,
    /// Sessions that see the present.
    pub(crate) source_now: Reader,
    pub(crate) target_now: Reader,
    pub(crate) hash: Hash,
    pub(crate) options: &'a CompareOptions,
    pub(crate) progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// What was counted so far.
#[derive(Default)]
struct Tally {
    pieces: u32,
    source: Digest,
    target: Digest,
    missing: u64,
    extra: u64,
    changed: u64,
    duplicate: u64,
    differences: Vec<Difference>,
    bytes: usize,
}

/// A table being compared.
pub(crate) struct Work<'a> {
    pub(crate) ground: &'a Ground<'a>,
    pub(crate) pair: &'a Pair,
    tally: Mutex<Tally>,
    /// Drilling takes turns, so that the list's bounds hold; differing pieces are few.
    drilling: tokio::sync::Mutex<()>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(ground: &'a Ground<'a>, pair: &'a Pair) -> Self {
        Self {
            ground,
            pair,
            tally: Mutex::new(Tally {
                bytes: VALUES_BYTES,
                ..Tally::default()
            }),
            drilling: tokio::sync::Mutex::new(()),
        }
    }

    /// Compares the table.
    pub(crate) async fn run(self) -> Result<TableReport, Failure> {
        let started = Instant::now();
        let (source, target) = self.shapes().await?;
        self.check(&source, &target).await?;
        match &self.pair.plan {
            Plan::Range(casts) => self.ranges(casts).await?,
            Plan::Bucket(of) => self.buckets(*of).await?,
        }
        self.check(&source, &target).await?;
        let method = match &self.pair.plan {
            Plan::Range(_) => Method::Range(self.with(|tally| tally.pieces)),
            Plan::Bucket(of) => Method::Bucket(*of),
        };
        let mut tally = self.with(std::mem::take);
        let keyed = !self.pair.key.is_empty();
        tally.differences.sort_by(|a, b| match keyed {
            true => key::compare(&a.key, &b.key),
            false => {
                let digest = |d: &Difference| d.source_digest.or(d.target_digest);
                let keys = a.key.cmp(&b.key);
                keys.then_with(|| digest(a).cmp(&digest(b)))
            }
        });
        let mut report = TableReport {
            table: self.pair.table.clone(),
            method: Some(method),
            by_key: keyed,
            outcome: Outcome::Equal,
            source_rows: tally.source.rows,
            target_rows: tally.target.rows,
            source_sum: tally.source.sum.to_string(),
            target_sum: tally.target.sum.to_string(),
            missing: tally.missing,
            extra: tally.extra,
            changed: tally.changed,
            duplicate: tally.duplicate,
            differences: tally.differences,
            explained: 0,
            coverage: Coverage {
                compared: tally.pieces,
                of: tally.pieces,
            },
            verified_through: None,
            mapped: self.pair.mapped.clone(),
            took: started.elapsed(),
        };
        if report.differing() > 0 {
            report.outcome = Outcome::Different;
        }
        Ok(report)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        // A panic elsewhere leaves counts that are still whole.
        change(&mut self.tally.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// The table's shapes in the snapshots.
    async fn shapes(&self) -> Result<(Shape, Shape), Failure> {
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        try_join!(
            Shape::read(&lane.source, &self.pair.table),
            Shape::read(&lane.target, &self.pair.table)
        )
    }

    async fn check(&self, source: &Shape, target: &Shape) -> Result<(), Failure> {
        let (source_now, target_now) = try_join!(
            Shape::read(&self.ground.source_now, &self.pair.table),
            Shape::read(&self.ground.target_now, &self.pair.table)
        )?;
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        try_join!(
            source.check(&source_now, &lane.source, Side::Source),
            target.check(&target_now, &lane.target, Side::Target)
        )?;
        Ok(())
    }

    async fn ranges(&self, casts: &[&'static str]) -> Result<(), Failure> {
        // The state is where the next range begins: `None` behind the last one.
        self.all_ranges(casts).try_collect::<()>().await
    }

    // Boxed: the compiler does not see that futures made inside of a stream may be sent.
    fn all_ranges<'s>(&'s self, casts: &'s [&'static str]) -> BoxStream<'s, Result<(), Failure>> {
        stream::unfold(Some(None), move |from| self.next_piece(from, casts))
            .map(move |piece| async move { self.range(piece?).await })
            .buffer_unordered(self.ground.options.jobs.max(1))
            .boxed()
    }

    /// The range that begins at `from`, and where the next one does: `None` behind the last.
    async fn next_piece(
        &self,
        from: Option<Option<Border>>,
        casts: &[&'static str],
    ) -> Option<(Result<Piece, Failure>, Option<Option<Border>>)> {
        let from = from?;
        match self.next_border(from.as_ref(), casts).await {
            Ok(to) => {
                let next = to.clone().map(Some);
                let casts = casts.to_vec();
                Some((Ok(Piece::Range { from, to, casts }), next))
            }
            Err(failure) => Some((Err(failure), None)),
        }
    }

    async fn next_border(
        &self,
        from: Option<&Border>,
        casts: &[&'static str],
    ) -> Result<Option<Border>, Failure> {
        let rows = self.ground.options.range_rows.max(1);
        let sql = self.pair.source.next_border(from, casts, rows);
        let taken = self.ground.pool.take().await?;
        let row = taken.lane()?.source.rows(&sql).await?.pop();
        // A key holds no NULL.
        Ok(row.and_then(|row| row.into_iter().collect()))
    }

    async fn range(&self, piece: Piece) -> Result<(), Failure> {
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        let hash = self.ground.hash;
        let (source, target) = try_join!(
            measure::piece(&lane.source, &self.pair.source, &piece, hash),
            measure::piece(&lane.target, &self.pair.target, &piece, hash)
        )?;
        self.with(|tally| tally.pieces += 1);
        self.count(source, target);
        if source != target {
            let rows = source.rows.max(target.rows);
            self.look_into(lane, &piece, rows).await?;
        }
        Ok(())
    }

    async fn buckets(&self, of: u32) -> Result<(), Failure> {
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        let hash = self.ground.hash;
        let (source, target) = try_join!(
            measure::buckets(&lane.source, &self.pair.source, of, hash),
            measure::buckets(&lane.target, &self.pair.target, of, hash)
        )?;
        let total = |digests: &std::collections::BTreeMap<u32, Digest>| {
            digests.values().fold(Digest::default(), |all, d| Digest {
                rows: all.rows + d.rows,
                sum: all.sum + d.sum,
            })
        };
        self.count(total(&source), total(&target));
        let mut batch = (Vec::new(), 0);
        for (number, rows) in measure::differing(&source, &target) {
            if batch.1 > 0 && batch.1 + rows > MERGED_ROWS {
                let (numbers, rows) = std::mem::take(&mut batch);
                let piece = Piece::Buckets { numbers, of };
                self.look_into(lane, &piece, rows).await?;
            }
            batch.0.push(number);
            batch.1 += rows;
        }
        let (numbers, rows) = batch;
        if numbers.is_empty() {
            return Ok(());
        }
        self.look_into(lane, &Piece::Buckets { numbers, of }, rows)
            .await
    }

    fn count(&self, source: Digest, target: Digest) {
        self.with(|tally| {
            tally.source.rows += source.rows;
            tally.source.sum += source.sum;
            tally.target.rows += target.rows;
            tally.target.sum += target.sum;
        });
        (self.ground.progress)(Progress::Compared {
            table: self.pair.table.clone(),
            source_rows: source.rows,
            target_rows: target.rows,
        });
    }

    /// Finds the rows of a piece whose digests differ.
    async fn look_into(&self, lane: &Lane, piece: &Piece, rows: u64) -> Result<(), Failure> {
        let _turn = self.drilling.lock().await;
        let (hash, options) = (self.ground.hash, self.ground.options);
        let (listed, mut bytes) = self.with(|tally| (tally.differences.len(), tally.bytes));
        let room = options.max_diffs.saturating_sub(listed);
        let mut merge = drill::drill(lane, self.pair, piece, (rows, room), hash).await?;
        if merge.missing + merge.extra + merge.changed + merge.duplicate == 0 {
            return Err(Failure::NotComparable {
                reason: "its rows are printed differently each time they are read".into(),
                hint: "see whether a type or the row filter depends on more than the row".into(),
            });
        }
        let found = std::mem::take(&mut merge.found);
        let differences = if found.is_empty() {
            Vec::new()
        } else {
            let values = options.values;
            let asked = Asked { values, hash };
            listing::list(lane, self.pair, piece, found, (asked, &mut bytes)).await?
        };
        self.with(|tally| {
            tally.missing += merge.missing;
            tally.extra += merge.extra;
            tally.changed += merge.changed;
            tally.duplicate += merge.duplicate;
            tally.differences.extend(differences);
            tally.bytes = bytes;
        });
        Ok(())
    }
}
