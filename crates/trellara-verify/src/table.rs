//! One table: divided, digested on both sides at once, and looked into where the digests differ.

use std::sync::Mutex;
use std::time::Instant;

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream, try_join};
use trellara_envelope::Lsn;
use trellara_postgres::quote;

use crate::compare::{CompareOptions, Progress};
use crate::digest::{Border, Hash, Piece};
use crate::drill;
use crate::error::{Failure, Side};
use crate::held::Held;
use crate::inventory::{Cells, only};
use crate::listing::{self, Asked};
use crate::load::Load;
use crate::mapping::Pair;
use crate::measure::{self, Digest};
use crate::plan::Plan;
use crate::pool::{Lane, Pool};
use crate::reader::Reader;
use crate::report::{Method, Outcome, Recipe, TableReport};
use crate::select::Sample;
use crate::shape::Shape;
use crate::tally::Tally;

/// Rows of differing buckets that are put in order at once, which the servers do on disk.
const MERGED_ROWS: u64 = 4_000_000;
/// What the values of one table's list may take.
const VALUES_BYTES: usize = 64 << 20;
/// SQLSTATE of a statement that was cancelled, by a limit or by somebody.
const QUERY_CANCELED: &str = "57014";

/// What every table needs.
pub(crate) struct Ground<'a> {
    pub(crate) pool: Pool,
    pub(crate) load: Load,
    /// Sessions that see the present.
    pub(crate) source_now: Reader,
    pub(crate) target_now: Reader,
    pub(crate) held: Held,
    pub(crate) hash: Hash,
    pub(crate) options: &'a CompareOptions,
    pub(crate) progress: &'a (dyn Fn(Progress) + Send + Sync),
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
            tally: Mutex::new(Tally::new(VALUES_BYTES)),
            drilling: tokio::sync::Mutex::new(()),
        }
    }

    /// Compares the table.
    pub(crate) async fn run(self) -> Result<TableReport, Failure> {
        let started = Instant::now();
        let (source, target) = self.shapes().await?;
        self.check(&source, &target).await?;
        let sample = self.sample();
        match &self.pair.plan {
            Plan::Range(casts) => self.ranges(casts, &sample).await?,
            Plan::Bucket(of) => self.buckets(*of, &sample).await?,
        }
        if self.ground.options.count && !sample.is_whole() {
            self.count_all().await?;
        }
        self.check(&source, &target).await?;
        let mut tally = self.with(std::mem::take);
        tally.took = started.elapsed();
        let method = match &self.pair.plan {
            Plan::Range(_) => Method::Range(tally.pieces + tally.passed_over),
            Plan::Bucket(of) => Method::Bucket(*of),
        };
        let mut report = tally.report(self.pair, method);
        if report.outcome == Outcome::Different && self.ground.options.recipes {
            report.recipe = Some(self.recipe().await?);
        }
        Ok(report)
    }

    fn sample(&self) -> Sample {
        let options = self.ground.options;
        Sample::new(&options.run, &self.pair.table, options.sample)
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        // A panic elsewhere leaves counts that are still whole.
        change(&mut self.tally.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// What a repair needs beside the rows.
    pub(crate) async fn recipe(&self) -> Result<Recipe, Failure> {
        let table = &self.pair.table;
        let into = quote::qualified(&table.schema, &table.name);
        let sql = format!(
            "SELECT attname, attgenerated <> '' FROM pg_attribute \
              WHERE attrelid = {}::regclass AND attnum > 0 AND NOT attisdropped \
                AND (attgenerated <> '' OR attidentity = 'a')",
            quote::literal(&into)
        );
        let taken = self.ground.pool.take().await?;
        let target = &taken.lane()?.target;
        let (mut generated, mut always) = (Vec::new(), Vec::new());
        for row in target.rows(&sql).await? {
            let mut row = Cells(row.into_iter());
            let name = row.text()?;
            match row.flag()? {
                true => generated.push(name),
                false => always.push(name),
            }
        }
        let known = "SELECT current_database(), \
                            coalesce(has_table_privilege(to_regclass('trellara.state_version'), 'SELECT'), false)";
        let mut known = only(target.rows(known).await?)?;
        let (database, known) = (known.text()?, known.flag()?);
        let target_id = match known {
            true => {
                let id = "SELECT target_id FROM trellara.state_version";
                Some(only(target.rows(id).await?)?.text()?)
            }
            false => None,
        };
        Ok(Recipe {
            from: self.pair.target.from.clone(),
            into,
            digest: self.pair.target.guard(self.ground.hash),
            generated,
            always,
            database,
            target_id,
        })
    }

    /// The table's shapes in the snapshots.
    pub(crate) async fn shapes(&self) -> Result<(Shape, Shape), Failure> {
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        try_join!(
            Shape::read(&lane.source, &self.pair.table),
            Shape::read(&lane.target, &self.pair.table)
        )
    }

    pub(crate) async fn check(&self, source: &Shape, target: &Shape) -> Result<(), Failure> {
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

    async fn ranges(&self, casts: &[&'static str], sample: &Sample) -> Result<(), Failure> {
        // The state is where the next range begins: `None` behind the last one.
        self.all_ranges(casts, sample).try_collect::<()>().await?;
        let first = self.with(|tally| match tally.pieces {
            0 => tally.first_of_passed_over.take(),
            _ => None,
        });
        let Some((_, piece)) = first else {
            return Ok(());
        };
        self.with(|tally| tally.passed_over -= 1);
        self.range(piece).await
    }

    // Boxed: the compiler does not see that futures made inside of a stream may be sent.
    fn all_ranges<'s>(
        &'s self,
        casts: &'s [&'static str],
        sample: &'s Sample,
    ) -> BoxStream<'s, Result<(), Failure>> {
        stream::unfold(Some(None), move |from| self.next_piece(from, casts))
            .enumerate()
            .map(move |(number, piece)| async move {
                let (number, piece) = (number as u32, piece?);
                if sample.takes(number) {
                    return self.range(piece).await;
                }
                self.with(|tally| tally.pass_over(sample.rank(number), piece));
                Ok(())
            })
            .buffer_unordered(self.ground.options.jobs.max(1))
            .boxed()
    }

    /// The range that begins at `from`, and where the next one does: `None` behind the last.
    pub(crate) async fn next_piece(
        &self,
        from: Option<Option<Border>>,
        casts: &[&'static str],
    ) -> Option<(Result<Piece, Failure>, Option<Option<Border>>)> {
        let from = from?;
        let rows = self.ground.options.range_rows.max(1);
        match self.border((from.as_ref(), None), casts, rows).await {
            Ok(to) => {
                let next = to.clone().map(Some);
                let casts = casts.to_vec();
                Some((Ok(Piece::Range { from, to, casts }), next))
            }
            Err(failure) => Some((Err(failure), None)),
        }
    }

    /// The first key behind so many rows of `[from, to)`; `None` when there are no more.
    async fn border(
        &self,
        within: (Option<&Border>, Option<&Border>),
        casts: &[&'static str],
        rows: u64,
    ) -> Result<Option<Border>, Failure> {
        let sql = self.pair.source.next_border(within, casts, rows);
        let taken = self.ground.pool.take().await?;
        let row = taken.lane()?.source.rows(&sql).await?.pop();
        // A key holds no NULL.
        Ok(row.and_then(|row| row.into_iter().collect()))
    }

    /// Compares a range; one that takes too long for one statement is halved.
    async fn range(&self, piece: Piece) -> Result<(), Failure> {
        let rows = self.ground.options.range_rows.max(1);
        self.wait_for_room(Some(rows)).await?;
        self.with(|tally| tally.pieces += 1);
        let mut parts = vec![(piece, rows)];
        while let Some((part, rows)) = parts.pop() {
            match self.compare_part(&part).await {
                Err(failure) if self.took_too_long(&failure) => {
                    parts.extend(self.halves(part, rows).await?);
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Digests a piece on the source, in parts where it takes too long.
    pub(crate) async fn source_digests(
        &self,
        piece: Piece,
    ) -> Result<Vec<(Piece, Digest)>, Failure> {
        let rows = self.ground.options.range_rows.max(1);
        let whole = matches!(self.pair.plan, Plan::Bucket(_));
        self.wait_for_room((!whole).then_some(rows)).await?;
        let (mut parts, mut done) = (vec![(piece, rows)], Vec::new());
        while let Some((part, rows)) = parts.pop() {
            let read = {
                let taken = self.ground.pool.take().await?;
                let source = &taken.lane()?.source;
                measure::piece(source, &self.pair.source, &part, self.ground.hash).await
            };
            match read {
                Ok(digest) => done.push((part, digest)),
                Err(failure) if !whole && self.took_too_long(&failure) => {
                    parts.extend(self.halves(part, rows).await?);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(done)
    }

    /// Digests a piece on the target; `None` when that takes too long.
    pub(crate) async fn target_digest(&self, piece: &Piece) -> Result<Option<Digest>, Failure> {
        let taken = self.ground.pool.take().await?;
        let target = &taken.lane()?.target;
        match measure::piece(target, &self.pair.target, piece, self.ground.hash).await {
            Ok(digest) => Ok(Some(digest)),
            Err(failure) if self.took_too_long(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// So many pieces have this digest on both sides.
    pub(crate) fn verified(&self, pieces: u32, digest: Digest, position: Lsn) {
        self.with(|tally| tally.pieces += pieces);
        self.count(digest, digest);
        self.verified_at(position);
    }

    /// Something of it was compared at this position.
    pub(crate) fn verified_at(&self, position: Lsn) {
        self.with(|tally| {
            let seen = tally.verified_through;
            tally.verified_through = Some(seen.map_or(position, |seen| seen.min(position)));
        });
    }

    /// Compares these pieces of a table that was looked at in another view, where its shapes were
    /// these.
    pub(crate) async fn again(
        self,
        pieces: &[Piece],
        then: (&Shape, &Shape),
        sample: &Sample,
    ) -> Result<Tally, Failure> {
        let (source, target) = self.shapes().await?;
        let sides = [
            (Side::Source, then.0, &source),
            (Side::Target, then.1, &target),
        ];
        for (side, then, now) in sides {
            if let Some(what) = then.redefined(now) {
                return Err(Failure::NotComparable {
                    reason: format!("the {side}'s table was {what} while it was compared"),
                    hint: "run it again".into(),
                });
            }
        }
        self.check(&source, &target).await?;
        match &self.pair.plan {
            Plan::Bucket(of) => {
                self.buckets(*of, sample).await?;
                // What is in no sample was counted already.
                self.with(|tally| tally.passed_over = 0);
            }
            Plan::Range(_) => {
                let ranges = pieces.iter().map(|piece| self.range(piece.clone()).boxed());
                let ranges = stream::iter(ranges.collect::<Vec<_>>());
                let jobs = self.ground.options.jobs.max(1);
                ranges.buffer_unordered(jobs).try_collect::<()>().await?;
            }
        }
        self.check(&source, &target).await?;
        Ok(self.with(std::mem::take))
    }

    async fn compare_part(&self, part: &Piece) -> Result<(), Failure> {
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        let hash = self.ground.hash;
        let (source, target) = try_join!(
            measure::piece(&lane.source, &self.pair.source, part, hash),
            measure::piece(&lane.target, &self.pair.target, part, hash)
        )?;
        if source != target {
            let rows = source.rows.max(target.rows);
            self.look_into(lane, part, rows).await?;
        }
        self.count(source, target);
        Ok(())
    }

    /// The server ended the statement because of the limit that it was given.
    fn took_too_long(&self, failure: &Failure) -> bool {
        let limited = self.ground.options.statement_timeout.is_some();
        let ended =
            matches!(failure, Failure::Refused { fault, .. } if fault.sqlstate == QUERY_CANCELED);
        limited && ended
    }

    /// The range in two parts, the upper one first.
    async fn halves(&self, piece: Piece, mut rows: u64) -> Result<[(Piece, u64); 2], Failure> {
        let least = self.ground.options.range_rows_least.max(1);
        let too_long = || Failure::NotComparable {
            reason: format!("so few rows as {least} take longer than the statement timeout"),
            hint: "raise the statement timeout, or see what keeps the server busy".into(),
        };
        let Piece::Range { from, to, casts } = piece else {
            return Err(too_long());
        };
        // The last range has fewer rows than the others.
        while rows / 2 >= least {
            rows /= 2;
            let within = (from.as_ref(), to.as_ref());
            if let Some(middle) = self.border(within, &casts, rows).await? {
                let part = |from, to| Piece::Range {
                    from,
                    to,
                    casts: casts.clone(),
                };
                let upper = part(Some(middle.clone()), to);
                return Ok([(upper, rows), (part(from, Some(middle)), rows)]);
            }
        }
        Err(too_long())
    }

    async fn buckets(&self, of: u32, sample: &Sample) -> Result<(), Failure> {
        self.wait_for_room(None).await?;
        let wanted = (!sample.is_whole()).then(|| Piece::Buckets {
            numbers: sample.of(of),
            of,
        });
        self.with(|tally| {
            tally.pieces = match &wanted {
                Some(Piece::Buckets { numbers, .. }) => numbers.len() as u32,
                _ => of,
            };
            tally.passed_over = of - tally.pieces;
        });
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        let hash = self.ground.hash;
        let which = (wanted.as_ref(), of);
        let (source, target) = try_join!(
            measure::buckets(&lane.source, &self.pair.source, which, hash),
            measure::buckets(&lane.target, &self.pair.target, which, hash)
        )?;
        let total = |digests: &std::collections::BTreeMap<u32, Digest>| {
            let mut all = Digest::default();
            digests.values().for_each(|digest| all.add(*digest));
            all
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

    /// Counts the whole table.
    async fn count_all(&self) -> Result<(), Failure> {
        let taken = self.ground.pool.take().await?;
        let lane = taken.lane()?;
        let (source_sql, target_sql) = (self.pair.source.count(), self.pair.target.count());
        let (source, target) =
            try_join!(lane.source.rows(&source_sql), lane.target.rows(&target_sql))?;
        let counted = (
            only(source)?.number()? as u64,
            only(target)?.number()? as u64,
        );
        self.with(|tally| tally.counted = Some(counted));
        Ok(())
    }

    /// Waits until so many rows, or the whole table, may be read.
    async fn wait_for_room(&self, rows: Option<u64>) -> Result<(), Failure> {
        let ground = self.ground;
        let now = (&ground.source_now, &ground.target_now);
        let what = (&self.pair.table, rows);
        ground.load.before(what, now, ground.progress).await
    }

    fn count(&self, source: Digest, target: Digest) {
        self.with(|tally| {
            tally.add(source, target);
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
            tally.found(&merge, differences);
            tally.bytes = bytes;
        });
        Ok(())
    }
}
