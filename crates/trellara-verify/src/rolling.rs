//! One slice of ranges after the other, as the databases are: no snapshot lives for long.
//!
//! A piece is digested on the source, then on the target when that has applied everything which was
//! visible to the first. Where both are equal, the piece is verified through the position that the
//! source had come to before the piece was read: what was visible then is on both sides, and of what
//! came later nothing is known. Where they differ it is a suspect: what was committed in between may
//! be on one side alone. Suspects are
//! compared exactly, in frozen views of both sides that are let go at once. So nothing is ever
//! called different that is not, however busy the flow is, and no row is too hot to be judged.
//!
//! Reading a suspect again until its row version (xmin, ctid) stays the same proves less: a commit
//! can be decoded, sent and applied before it is visible on the source, where the old version is
//! then unchanged at both looks; and a row that the target alone has, has no version to look at.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::try_join_all;
use futures_util::{FutureExt, try_join};
use trellara_envelope::{Lsn, SystemId, Timeline};

use crate::catalogue::{self, Catalogue};
use crate::compare::{CompareOptions, Progress, beside, hash, over};
use crate::digest::Piece;
use crate::error::{Failure, Side, VerifyError};
use crate::freeze::{FreezeOptions, Step, named};
use crate::held::{Held, Quarantine, unreadable};
use crate::load::Load;
use crate::measure::Digest;
use crate::pool::{Lane, Pool};
use crate::reader::Reader;
use crate::report::{Mode, Outcome, Report, ServerReport, TableName, TableReport};
use crate::shape::Shape;
use crate::store::{OldRun, Store, TableState};
use crate::table::Ground;
use crate::tally::Tally;
use crate::{definitions, sequences, tie};

mod confirm;
mod item;
mod position;
mod stop;

use item::Item;
pub use stop::Stop;

/// How long the source is read before the target is.
const SLICE: Duration = Duration::from_secs(10);
/// And how many pieces at most: so many may have to be compared again in frozen views.
const SLICE_PIECES: usize = 64;

/// How to look.
#[derive(Debug, Clone)]
pub struct RollingOptions {
    /// How to compare.
    pub compare: CompareOptions,
    /// How to freeze, where something has to be confirmed.
    pub freeze: FreezeOptions,
}

/// Who hears of it.
pub struct Listeners<'a> {
    /// How far it is.
    pub progress: &'a (dyn Fn(Progress) + Send + Sync),
    /// What a way to frozen views waits for.
    pub steps: &'a (dyn Fn(Step) + Send + Sync),
    /// Where it is written down.
    pub store: Option<&'a Store>,
    /// It could not be written down, which takes nothing from what is found.
    pub unwritten: &'a (dyn Fn(&VerifyError) + Send + Sync),
}

/// Pieces that were read on the source one after the other.
struct Slice {
    /// Where the source was before the first of them was read.
    before: Lsn,
    pieces: Vec<Looked>,
}

/// A piece that was digested on the source.
struct Looked {
    item: usize,
    piece: Piece,
    source: Digest,
    target: Option<Digest>,
}

/// Looks at everything once. A run that goes on with an older one begins where that was.
///
/// # Errors
/// No result could be had at all. What is stopped before it is through is a result: the tables that
/// were not looked at as a whole are not comparable, with the reason of the stop.
pub async fn roll(
    options: &RollingOptions,
    old: Option<&OldRun>,
    listeners: &Listeners<'_>,
    stop: &Stop,
) -> Result<Report, VerifyError> {
    Box::pin(run(options, old, listeners, stop))
        .await
        .map_err(over)
}

async fn run(
    options: &RollingOptions,
    old: Option<&OldRun>,
    listeners: &Listeners<'_>,
    stop: &Stop,
) -> Result<Report, Failure> {
    let started = SystemTime::now();
    let compare = &options.compare;
    let source = named(&options.freeze, &options.freeze.source);
    let target = named(&options.freeze, &options.freeze.target);
    let open = || async {
        let (source, target) = try_join!(
            Reader::now(Side::Source, &source, compare),
            Reader::now(Side::Target, &target, compare)
        )?;
        Ok::<_, VerifyError>(Lane { source, target })
    };
    let lanes = (0..compare.jobs.max(1)).map(|_| open().boxed());
    let lanes = try_join_all(lanes.collect::<Vec<_>>()).await?;
    let Lane {
        source: source_now,
        target: target_now,
    } = open().await?;
    let same_encoding = source_now.encoding() == target_now.encoding();
    let present = lanes.first();
    let present = present.ok_or_else(|| VerifyError::bug("no lane was made"))?;
    let sessions = (source_now.session(), target_now.session());
    tie::check(sessions, &options.freeze.flow, &compare.publication).await?;
    let plan = Catalogue::read(present, compare).await?;
    let names: Vec<TableName> = plan.published.iter().map(|p| p.table.clone()).collect();
    let sequences = beside(sequences::look(&source_now, &target_now, &names).await)?;
    let definitions = beside(definitions::look(&source_now, &target_now, &names).await)?;
    let (rate, pause) = (compare.rate_bytes_per_second, compare.pause.clone());
    let ground = Ground {
        load: Load::new(rate, pause, &source_now, &names).await?,
        pool: Pool::new(lanes),
        source_now,
        target_now,
        held: Held::default(),
        hash: hash(compare, same_encoding),
        options: compare,
        progress: listeners.progress,
    };
    let servers = position::servers(&ground).await?;
    define(&plan, &servers, old, listeners).await?;
    (listeners.progress)(Progress::Planned {
        tables: plan.estimates(),
    });
    let refused = |report: TableReport| told(listeners, report);
    let mut tables: Vec<TableReport> = Vec::new();
    tables.extend(plan.gone.iter().map(catalogue::gone).map(refused));
    let mut pairs = Vec::new();
    for published in &plan.published {
        match plan.pair(published, same_encoding) {
            Ok(pair) => pairs.push(pair),
            Err(failure) => {
                let table = &published.table;
                tables.push(refused(plan.refused(table, failure, Duration::ZERO)?));
            }
        }
    }
    let mut rolling = Rolling {
        options,
        ground: &ground,
        plan: &plan,
        listeners,
        stop,
        source: (servers.0.system, servers.0.timeline),
        items: Vec::new(),
        first: None,
        held: Duration::ZERO,
        frozen: 0,
    };
    for pair in &pairs {
        match Item::new(&ground, pair, tables_of(old)).await {
            Ok(item) => rolling.items.push(item),
            Err(failure) => {
                let table = &pair.table;
                tables.push(refused(plan.refused(table, failure, Duration::ZERO)?));
            }
        }
    }
    // Nothing would be read, and what was said then would be said as of now.
    let mut items = rolling.items.iter().peekable();
    if old.is_some() && items.peek().is_some() && items.all(|item| item.next.is_none()) {
        let reason = format!("run {} has nothing left to look at", compare.run);
        return Err(VerifyError::incomparable(reason, "begin a new run".into()).into());
    }
    rolling.through().await?;
    plan.check(&ground.source_now, compare).await?;
    let joined = plan.joined(&ground.source_now, compare).await?;
    tables.extend(joined.iter().map(catalogue::joined).map(refused));
    let (held, first) = (rolling.held, rolling.first);
    let ended_at = position::now(&ground).await?;
    tables.extend(rolling.reports());
    tables.sort_by(|a, b| a.table.cmp(&b.table));
    // Also what an older run had seen of a table, where this one goes on with it.
    let seen = tables.iter().filter_map(|table| table.verified_through);
    let consistent_point = seen.chain(first).min().unwrap_or(ended_at);
    let quarantine = Quarantine {
        flow: options.freeze.flow.clone(),
        before: ended_at,
    };
    // Wherever it explains nothing, it is missing all the same.
    let quarantine = Held::read(&ground.target_now, &quarantine).await;
    let held_transactions = quarantine.map_err(unreadable)?.waiting;
    Ok(Report {
        run: compare.run.clone(),
        mode: Mode::Rolling,
        lane: compare.lane,
        started,
        seed: compare.seed,
        consistent_point,
        source: servers.0,
        target: servers.1,
        held,
        tables,
        left_out: plan.left_out.clone(),
        not_covered: plan.not_covered.clone(),
        sequences,
        definitions,
        held_transactions,
        took: started.elapsed().unwrap_or_default(),
    })
}

/// A round on its way.
struct Rolling<'a> {
    options: &'a RollingOptions,
    ground: &'a Ground<'a>,
    plan: &'a Catalogue,
    listeners: &'a Listeners<'a>,
    stop: &'a Stop,
    source: (SystemId, Timeline),
    items: Vec<Item<'a>>,
    /// The position before the first piece was read.
    first: Option<Lsn>,
    held: Duration,
    /// Ways to frozen views so far.
    frozen: u32,
}

impl Rolling<'_> {
    /// Slice by slice, until everything was looked at or it shall stop.
    async fn through(&mut self) -> Result<(), Failure> {
        while !self.stop.is_stopped() {
            let slice = tokio::select! {
                () = self.stop.stopped() => return Ok(()),
                slice = self.read_source() => slice?,
            };
            if slice.pieces.is_empty() {
                break;
            }
            self.slice(slice).await?;
        }
        for at in 0..self.items.len() {
            self.tell(at).await?;
        }
        Ok(())
    }

    /// Reads the source for a while.
    async fn read_source(&mut self) -> Result<Slice, Failure> {
        let before = position::now(self.ground).await?;
        let began = Instant::now();
        let jobs = self.options.compare.jobs.max(1);
        let mut slice = Vec::new();
        while began.elapsed() < SLICE && slice.len() < SLICE_PIECES {
            let mut pieces = Vec::new();
            while pieces.len() < jobs
                && let Some(piece) = self.next_piece().await?
            {
                pieces.push(piece);
            }
            if pieces.is_empty() {
                break;
            }
            let items = &self.items;
            let reads = pieces.into_iter().map(|(at, piece)| {
                async move {
                    match items.get(at) {
                        Some(item) => (at, item.work.source_digests(piece).await),
                        None => (at, Ok(Vec::new())),
                    }
                }
                .boxed()
            });
            let read = futures_util::future::join_all(reads.collect::<Vec<_>>()).await;
            for (at, digests) in read {
                match digests {
                    Ok(digests) => {
                        slice.extend(digests.into_iter().map(|(piece, source)| Looked {
                            item: at,
                            piece,
                            source,
                            target: None,
                        }))
                    }
                    Err(failure) => self.fail(at, failure)?,
                }
            }
        }
        let pieces = slice;
        if !pieces.is_empty() {
            self.first.get_or_insert(before);
        }
        Ok(Slice { before, pieces })
    }

    /// The next piece of the first table that has one.
    async fn next_piece(&mut self) -> Result<Option<(usize, Piece)>, Failure> {
        for at in 0..self.items.len() {
            while let Some(item) = self.items.get_mut(at) {
                if item.failed.is_some() || item.next.is_none() {
                    break;
                }
                match item.advance().await {
                    Ok(Some(piece)) => return Ok(Some((at, piece))),
                    Ok(None) => {}
                    Err(failure) => self.fail(at, failure)?,
                }
            }
        }
        Ok(None)
    }

    /// What was read on the source, on the target when that has it all.
    async fn slice(&mut self, slice: Slice) -> Result<(), Failure> {
        let Slice { before, pieces } = slice;
        let mut slice = pieces;
        // Whatever was visible to any of these reads lies at or below it.
        if !self.reached(position::now(self.ground).await?).await? {
            return Ok(());
        }
        let jobs = self.options.compare.jobs.max(1);
        for some in slice.chunks_mut(jobs) {
            let items = &self.items;
            let reads = some.iter().map(|looked| {
                let (item, piece) = (items.get(looked.item), looked.piece.clone());
                async move {
                    match item {
                        Some(item) => item.work.target_digest(&piece).await,
                        None => Ok(None),
                    }
                }
                .boxed()
            });
            let read = futures_util::future::join_all(reads.collect::<Vec<_>>()).await;
            for (looked, target) in some.iter_mut().zip(read) {
                match target {
                    Ok(target) => looked.target = target,
                    Err(failure) => self.fail(looked.item, failure)?,
                }
            }
        }
        let mut touched: Vec<usize> = slice.iter().map(|looked| looked.item).collect();
        touched.sort_unstable();
        touched.dedup();
        for at in &touched {
            self.check(*at).await?;
        }
        slice.retain(|looked| {
            let item = self.items.get(looked.item);
            item.is_some_and(|item| item.failed.is_none())
        });
        let (equal, suspects): (Vec<_>, Vec<_>) = slice
            .into_iter()
            .partition(|looked| looked.target == Some(looked.source));
        for looked in equal {
            if let Some(item) = self.items.get(looked.item) {
                let pieces = item.weight(&looked.piece);
                item.work.verified(pieces, looked.source, before);
            }
        }
        if !suspects.is_empty() {
            self.confirm(suspects).await?;
        }
        for at in touched {
            if let Some(item) = self.items.get_mut(at)
                && item.failed.is_none()
            {
                item.done_to = item.next.clone();
                item.keep();
            }
            self.tell(at).await?;
        }
        Ok(())
    }

    /// Refuses a table whose definition is another one now.
    async fn check(&mut self, at: usize) -> Result<(), Failure> {
        let Some(item) = self.items.get(at) else {
            return Ok(());
        };
        let (ground, table) = (self.ground, &item.pair.table);
        let now = try_join!(
            Shape::read(&ground.source_now, table),
            Shape::read(&ground.target_now, table)
        )?;
        let sides = [
            (Side::Source, &item.shapes.0, &now.0),
            (Side::Target, &item.shapes.1, &now.1),
        ];
        let changed = sides
            .into_iter()
            .find_map(|(side, then, now)| Some((side, then.redefined_at_all(now)?)));
        if let Some((side, what)) = changed {
            let failure = Failure::NotComparable {
                reason: format!("the {side}'s table was {what} while it was compared"),
                hint: "run it again".into(),
            };
            self.fail(at, failure)?;
        }
        Ok(())
    }

    /// The table is not compared further; a failure of the run ends it.
    fn fail(&mut self, at: usize, failure: Failure) -> Result<(), Failure> {
        if let Some(item) = self.items.get_mut(at)
            && item.failed.is_none()
        {
            item.failed = Some(self.plan.reason(&item.pair.table, failure)?);
        }
        Ok(())
    }

    /// Writes down how far the table is, and tells when it is done.
    async fn tell(&mut self, at: usize) -> Result<(), Failure> {
        let Some(item) = self.items.get_mut(at) else {
            return Ok(());
        };
        if item.said.is_some() {
            return Ok(());
        }
        if let Some(store) = self.listeners.store {
            let written = store.table(&item.pair.table, &item.state()).await;
            written.unwrap_or_else(|error| (self.listeners.unwritten)(&error));
        }
        if item.failed.is_some() || item.done_to.is_none() {
            let mut report = item.report();
            if report.outcome == Outcome::Different && self.options.compare.recipes {
                report.recipe = Some(item.work.recipe().await?);
            }
            item.said = Some(told(self.listeners, report));
        }
        Ok(())
    }

    /// What is said of each table now.
    fn reports(self) -> Vec<TableReport> {
        let (reason, hint) = self.stop.reason();
        let items = self.items.into_iter();
        items
            .map(|mut item| {
                if let Some(said) = item.said {
                    return said;
                }
                if item.done_to.is_some() && item.failed.is_none() {
                    item.failed = Some((reason.clone(), hint.clone()));
                }
                item.report()
            })
            .collect()
    }
}

fn tables_of(old: Option<&OldRun>) -> &[TableState] {
    old.map_or(&[], |old| &old.tables)
}

/// Writes down what the run is about, or refuses to go on with one that is about something else.
async fn define(
    plan: &Catalogue,
    (source, target): &(ServerReport, ServerReport),
    old: Option<&OldRun>,
    listeners: &Listeners<'_>,
) -> Result<(), VerifyError> {
    let server = |server: &ServerReport| format!("{}/{}", server.system, server.timeline);
    let (publication, source) = (plan.definition_text(), server(source));
    let definition = format!(
        "publication {publication}; source {source}; target {}",
        server(target)
    );
    let then = old.and_then(|old| old.definition.as_ref());
    if let Some(then) = then.filter(|then| **then != definition) {
        return Err(VerifyError::incomparable(
            format!("the run is about another one: {then}; not {definition}"),
            "the publication was changed or a server is another one or was promoted: begin a new run"
                .into(),
        ));
    }
    if let Some(store) = listeners.store {
        let written = store.define(&definition).await;
        written.unwrap_or_else(|error| (listeners.unwritten)(&error));
    }
    Ok(())
}

/// Tells what is said of a table.
fn told(listeners: &Listeners<'_>, report: TableReport) -> TableReport {
    let report = Arc::new(report);
    (listeners.progress)(Progress::Finished {
        report: Arc::clone(&report),
    });
    // Copied only when the listener kept it.
    Arc::unwrap_or_clone(report)
}
