//! The loop that acts: it waits for an order, takes a snapshot, lets readers read, and writes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;
use trellara_envelope::{CopyBegin, CopyEvent, CopyOrder, CopyTable, CopyWanted};
use trellara_jetstream::Broker;
use trellara_postgres::fault;
use trellara_source::copy::{SharedSnapshot, TableFacts, describe};

use super::book::{Book, Stage, TableRun};
use super::orders::{Heard, listen};
use super::outlet::{self, Fittings, Outlet, OutletError};
use super::parts::{Part, Sizes};
use super::reading::{self, Failure, Said, Shared, Work};
use super::report::Report;
use super::window::Window;
use super::{CopyOptions, Serving};
use crate::{RelayOptions, RelayStatus};

/// The source is given this long to take a snapshot and say what its tables are.
const SOURCE_LIMIT: Duration = Duration::from_secs(60);
/// What was written and is not in yet is looked after this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why an attempt came to nothing; another may do better.
#[derive(Debug)]
enum Trouble {
    Outlet(OutletError),
    Again(String),
}

impl From<OutletError> for Trouble {
    fn from(error: OutletError) -> Self {
        Trouble::Outlet(error)
    }
}

/// Copies what is ordered for as long as the returned handle lives. `serving` says which
/// incarnation of this process holds the slot.
pub(crate) fn spawn(
    options: RelayOptions,
    broker: Broker,
    status: Arc<RelayStatus>,
    serving: watch::Receiver<Option<Serving>>,
) -> AbortOnDropHandle<()> {
    let (say, orders) = watch::channel(None);
    let listener = tokio::spawn(listen(broker.clone(), options.flow.clone(), say));
    let fittings = Fittings {
        broker,
        flow: options.flow.clone(),
        max_bytes: options.copy.max_bytes,
        silence: options.copy.silence,
        serving: serving.clone(),
        orders: orders.clone(),
        report: Report::new(&options.flow, status),
    };
    let copier = Copier {
        report: fittings.report.clone(),
        options,
        fittings,
        serving,
        orders,
        outlet: None,
        window: None,
        book: Book::default(),
        void: Vec::new(),
        dropped: Vec::new(),
        is_cleared: false,
        _listener: AbortOnDropHandle::new(listener),
    };
    AbortOnDropHandle::new(tokio::spawn(copier.run()))
}

struct Copier {
    options: RelayOptions,
    fittings: Fittings,
    report: Report,
    serving: watch::Receiver<Option<Serving>>,
    orders: watch::Receiver<Option<Heard>>,
    outlet: Option<Outlet>,
    /// The chain, while there is no outlet.
    window: Option<Window>,
    book: Book,
    /// What was begun and came to nothing, and was not said to have failed yet.
    void: Vec<(CopyWanted, String)>,
    /// What was not wanted any more before it was over.
    dropped: Vec<CopyWanted>,
    /// Whether the copy stream is known to be gone.
    is_cleared: bool,
    _listener: AbortOnDropHandle<()>,
}

/// Tables that are read under one snapshot.
struct Run {
    snapshot: Arc<SharedSnapshot>,
    shared: Arc<Shared>,
    tables: Vec<TableRun>,
}

impl Copier {
    async fn run(mut self) {
        let mut pauses = pauses();
        loop {
            let trouble = match self.once().await {
                Ok(()) => {
                    pauses = self::pauses();
                    continue;
                }
                Err(trouble) => trouble,
            };
            let reason = self.recover(trouble);
            tracing::warn!(reason, "the copy waits, and goes on by itself");
            self.report.over(&reason);
            tokio::time::sleep(pauses.next().unwrap_or(PAUSE_MAX)).await;
        }
    }

    /// What is left after an attempt that came to nothing.
    fn recover(&mut self, trouble: Trouble) -> String {
        let window = self.outlet.take().map(Outlet::into_window);
        match trouble {
            Trouble::Outlet(OutletError::Fenced(writer)) => {
                // Whatever we began is void by that writer's word, and so is our chain.
                self.book.clear();
                self.void.clear();
                self.dropped.clear();
                format!("a newer relay (incarnation {writer}) writes the copy")
            }
            Trouble::Outlet(OutletError::Lost(reason)) => {
                self.window = window.or(self.window.take());
                let order = self.orders.borrow().clone();
                let not_in = order.map(|heard| self.book.not_in(&heard.order));
                for wanted in not_in.unwrap_or_default() {
                    self.give_up(wanted, &reason);
                }
                reason
            }
            Trouble::Outlet(OutletError::Again(reason)) | Trouble::Again(reason) => {
                self.window = window.or(self.window.take());
                reason
            }
        }
    }

    /// Tells the target as soon as it can be told.
    fn give_up(&mut self, wanted: CopyWanted, reason: &str) {
        if !self.void.iter().any(|(known, _)| *known == wanted) {
            self.void.push((wanted, reason.to_owned()));
        }
    }

    /// One order: what of it is new is copied.
    async fn once(&mut self) -> Result<(), Trouble> {
        let Ok(serving) = self.serving.wait_for(Option::is_some).await.map(|now| *now) else {
            return std::future::pending().await;
        };
        let Some(serving) = serving else {
            return Ok(());
        };
        let heard = self.orders.borrow_and_update().clone();
        let Some(heard) = heard.filter(Heard::is_fresh) else {
            self.wait().await;
            return Ok(());
        };
        if heard.order.wanted.is_empty() {
            self.clear_away().await?;
            self.wait().await;
            return Ok(());
        }
        self.is_cleared = false;
        for wanted in std::mem::take(&mut self.dropped) {
            match heard.order.wanted.contains(&wanted) {
                true => self.give_up(wanted, "it was not wanted for a while"),
                false => self.dropped.push(wanted),
            }
        }
        let new = self.book.to_begin(&heard.order);
        if new.is_empty() && self.void.is_empty() {
            if let Some(outlet) = &mut self.outlet {
                outlet.look().await?;
            }
            self.wait().await;
            return Ok(());
        }
        self.open(serving, &heard.order.target).await?;
        self.say_void().await?;
        if new.is_empty() {
            return Ok(());
        }
        self.copy(new).await
    }

    /// Waits for another order, or for a while.
    async fn wait(&mut self) {
        let changed = async {
            tokio::select! {
                result = self.orders.changed() => result,
                result = self.serving.changed() => result,
            }
        };
        if let Ok(Err(_)) = tokio::time::timeout(LOOK_INTERVAL, changed).await {
            // The relay is going.
            std::future::pending().await
        }
    }

    /// Nothing is wanted any more: the stream goes.
    async fn clear_away(&mut self) -> Result<(), Trouble> {
        if self.is_cleared {
            return Ok(());
        }
        if let Some(outlet) = self.outlet.take() {
            self.window = Some(outlet.into_window());
        }
        self.void.clear();
        self.dropped.clear();
        if outlet::delete(&self.fittings.broker, &self.options.flow).await? {
            tracing::info!("everything that was ordered is in; the copy stream was deleted");
        }
        self.is_cleared = true;
        self.report.over("");
        Ok(())
    }

    async fn open(&mut self, serving: Serving, target: &str) -> Result<(), Trouble> {
        if self.outlet.is_none() {
            let opened = self.fittings.open(serving, target, &mut self.window);
            self.outlet = Some(opened.await?);
        }
        Ok(())
    }

    fn outlet(&mut self) -> Result<&mut Outlet, Trouble> {
        let none = || Trouble::Again("the copy stream is not open".to_owned());
        self.outlet.as_mut().ok_or_else(none)
    }

    async fn say_void(&mut self) -> Result<(), Trouble> {
        while let Some((wanted, reason)) = self.void.last().cloned() {
            let failure = Failure {
                reason,
                hint: "it is copied anew".to_owned(),
                lasting: false,
            };
            self.fail(&wanted, failure).await?;
            self.void.pop();
        }
        self.outlet()?.flush().await?;
        Ok(())
    }

    async fn fail(&mut self, wanted: &CopyWanted, failure: Failure) -> Result<(), Trouble> {
        let Failure {
            reason,
            hint,
            lasting,
        } = failure;
        tracing::warn!(table = %wanted.table, generation = wanted.generation, reason, hint, lasting, "the copy of a table failed");
        self.report.failed();
        let event = CopyEvent::Failed {
            reason,
            hint,
            lasting,
        };
        Ok(self.outlet()?.send(wanted, event, Bytes::new()).await?)
    }

    /// Copies these tables under one snapshot.
    async fn copy(&mut self, wanted: Vec<CopyWanted>) -> Result<(), Trouble> {
        let source = &self.options.source;
        let took = limited("take a snapshot", SharedSnapshot::take(source)).await?;
        let snapshot =
            Arc::new(took.map_err(|error| Trouble::Again(format!("the source: {error}")))?);
        let names: Vec<CopyTable> = wanted.iter().map(|wanted| wanted.table.clone()).collect();
        let described = describe(&snapshot, &source.publication, &names);
        let described = limited("describe its tables", described).await?;
        let described =
            described.map_err(|error| Trouble::Again(format!("the source: {}", fault(&error))))?;
        let mut fit = Vec::with_capacity(wanted.len());
        for (wanted, facts) in wanted.into_iter().zip(described) {
            self.book.begin(&wanted);
            match facts {
                Ok(facts) => fit.push((wanted, facts)),
                Err(unfit) => {
                    let failure = Failure {
                        reason: unfit.reason,
                        hint: unfit.hint,
                        lasting: true,
                    };
                    let said = self.fail(&wanted, failure).await;
                    if said.is_err() {
                        self.book.forget(&wanted);
                        fit.iter().for_each(|(wanted, _)| self.book.forget(wanted));
                        return said;
                    }
                }
            }
        }
        let mut run = self.plan(snapshot, fit)?;
        let end = self.work(&mut run).await;
        if let Err(trouble) = &end {
            self.leave(run, trouble);
        } else {
            self.report.ended();
        }
        end
    }

    fn plan(
        &mut self,
        snapshot: Arc<SharedSnapshot>,
        mut fit: Vec<(CopyWanted, TableFacts)>,
    ) -> Result<Run, Trouble> {
        let CopyOptions {
            workers,
            part_bytes,
            item_bytes,
            ..
        } = self.options.copy;
        let outlet = self.outlet()?;
        let sizes = Sizes::of(
            part_bytes,
            outlet.largest_message(),
            outlet.max_bytes(),
            workers,
        );
        // The largest first, or the last one would keep a single reader busy when all else is done.
        fit.sort_by_key(|(_, facts)| std::cmp::Reverse(facts.estimated_bytes));
        let mut items = VecDeque::new();
        let mut tables = Vec::with_capacity(fit.len());
        let mut works = Vec::with_capacity(fit.len());
        let mut estimated = 0;
        for (at, (wanted, facts)) in fit.into_iter().enumerate() {
            let pieces = facts.items(item_bytes);
            estimated += facts.estimated_bytes;
            let facts = Arc::new(facts);
            tables.push(TableRun::new(wanted, facts.clone(), pieces.len()));
            works.push(Work {
                facts,
                is_over: AtomicBool::new(false),
            });
            items.extend(pieces.into_iter().map(|item| (at, item)));
        }
        self.report
            .begun(tables.len(), estimated, snapshot.taken_at());
        tracing::info!(
            tables = tables.len(), pieces = items.len(), estimated_bytes = estimated,
            snapshot = %snapshot.seen(), converges_at = %snapshot.converges_at(),
            "the copy begins"
        );
        let shared = Shared {
            source: self.options.source.clone(),
            snapshot: snapshot.clone(),
            sizes,
            tables: works,
            items: Mutex::new(items),
            report: self.report.clone(),
        };
        Ok(Run {
            snapshot,
            shared: Arc::new(shared),
            tables,
        })
    }

    /// Writes what the readers read until all tables are over.
    async fn work(&mut self, run: &mut Run) -> Result<(), Trouble> {
        // One place: a part in it, one being written and one with each reader are all there is.
        let (say, mut said) = mpsc::channel(1);
        let mut readers = JoinSet::new();
        for _ in 0..self.options.copy.workers.max(1) {
            readers.spawn(reading::read(run.shared.clone(), say.clone()));
        }
        drop(say);
        // A root without partitions has nothing to be read.
        for at in 0..run.tables.len() {
            if run.tables[at].facts.leaves.is_empty() {
                self.item_done(run, at).await?;
            }
        }
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !run.is_over() {
            let is_waiting = self.outlet()?.is_waiting();
            let (outlet, orders) = (self.outlet.as_mut(), &mut self.orders);
            let Some(outlet) = outlet else {
                return Err(Trouble::Again("the copy stream is not open".to_owned()));
            };
            tokio::select! {
                biased;
                reason = run.snapshot.ended() => {
                    return Err(Trouble::Again(format!("the snapshot was lost: {reason}")));
                }
                Ok(()) = orders.changed() => {
                    let heard = orders.borrow_and_update().clone();
                    if let Some(heard) = heard {
                        run.heard(&heard.order, &mut self.dropped);
                    }
                }
                answer = outlet.next_answer(), if is_waiting => outlet.took(answer).await?,
                _ = ticker.tick() => self.report.tick(),
                heard = said.recv() => match heard {
                    Some(heard) => self.take(run, heard).await?,
                    None => return Err(Trouble::Again("the readers ended".to_owned())),
                },
            }
            self.report.tables_over(run.over());
        }
        self.outlet()?.flush().await?;
        tracing::info!(tables = run.tables.len(), "the copy was read and is stored");
        Ok(())
    }

    async fn take(&mut self, run: &mut Run, said: Said) -> Result<(), Trouble> {
        match said {
            Said::Part(at, part) => self.part(run, at, part).await,
            Said::ItemDone(at) => self.item_done(run, at).await,
            Said::Failed(at, failure) => {
                let table = &mut run.tables[at];
                if table.stage == Stage::Over {
                    return Ok(());
                }
                table.stage = Stage::Over;
                let wanted = table.wanted.clone();
                self.fail(&wanted, failure).await
            }
            Said::SnapshotGone(reason) => {
                Err(Trouble::Again(format!("the snapshot was lost: {reason}")))
            }
        }
    }

    async fn begin(&mut self, run: &mut Run, at: usize) -> Result<(), Trouble> {
        let table = &mut run.tables[at];
        if table.stage != Stage::Ahead {
            return Ok(());
        }
        table.stage = Stage::Begun;
        let begin = CopyBegin {
            relation: table.facts.relation,
            columns: table.facts.columns.clone(),
            snapshot: run.snapshot.seen().to_string(),
            converges_at: run.snapshot.converges_at(),
            estimated_rows: table.facts.estimated_rows,
            estimated_bytes: table.facts.estimated_bytes,
        };
        let wanted = table.wanted.clone();
        let event = CopyEvent::Begin(begin);
        Ok(self.outlet()?.send(&wanted, event, Bytes::new()).await?)
    }

    async fn part(&mut self, run: &mut Run, at: usize, part: Part) -> Result<(), Trouble> {
        if run.tables[at].stage == Stage::Over {
            return Ok(());
        }
        self.begin(run, at).await?;
        let table = &mut run.tables[at];
        let number = table.next_part(part.rows, part.bytes);
        let outlet = self.outlet()?;
        let chunks = u32::try_from(part.chunks.len()).unwrap_or(u32::MAX);
        for (at, chunk) in (0..).zip(part.chunks) {
            let event = CopyEvent::Chunk {
                part: number,
                number: at,
            };
            outlet.send(&table.wanted, event, chunk).await?;
        }
        let event = CopyEvent::Part {
            part: number,
            chunks,
            rows: part.rows,
            bytes: part.bytes,
            digest: part.digest,
        };
        outlet.send(&table.wanted, event, Bytes::new()).await?;
        self.report.part(part.rows, part.bytes);
        Ok(())
    }

    async fn item_done(&mut self, run: &mut Run, at: usize) -> Result<(), Trouble> {
        if run.tables[at].stage == Stage::Over {
            return Ok(());
        }
        self.begin(run, at).await?;
        if let Some(end) = run.tables[at].item_done() {
            let wanted = run.tables[at].wanted.clone();
            self.outlet()?.send(&wanted, end, Bytes::new()).await?;
            run.tables[at].stage = Stage::Over;
        }
        Ok(())
    }

    /// Leaves a run that cannot go on: what was said of a table has to be taken back, the others
    /// are as if nothing had been.
    fn leave(&mut self, run: Run, trouble: &Trouble) {
        let reason = match trouble {
            Trouble::Outlet(OutletError::Fenced(_)) => return,
            Trouble::Outlet(OutletError::Lost(reason) | OutletError::Again(reason))
            | Trouble::Again(reason) => reason,
        };
        for table in run.tables {
            match table.stage {
                Stage::Ahead => self.book.forget(&table.wanted),
                Stage::Begun => self.give_up(table.wanted, reason),
                Stage::Over => {}
            }
        }
    }
}

impl Run {
    fn over(&self) -> usize {
        let over = self
            .tables
            .iter()
            .filter(|table| table.stage == Stage::Over);
        over.count()
    }

    fn is_over(&self) -> bool {
        self.over() == self.tables.len()
    }

    /// What is not wanted any more is not read any more: its target has taken it back, or orders
    /// another generation, which the next run reads.
    fn heard(&mut self, order: &CopyOrder, dropped: &mut Vec<CopyWanted>) {
        for (table, work) in self.tables.iter_mut().zip(&self.shared.tables) {
            if table.stage != Stage::Over && !table.is_wanted(order) {
                tracing::info!(table = %table.wanted.table, "a table's copy is not wanted any more");
                dropped.push(table.wanted.clone());
                table.stage = Stage::Over;
                work.is_over.store(true, Ordering::Relaxed);
            }
        }
    }
}

async fn limited<T>(what: &str, doing: impl Future<Output = T>) -> Result<T, Trouble> {
    let late = |_| Trouble::Again(format!("the source did not {what} in time"));
    tokio::time::timeout(SOURCE_LIMIT, doing)
        .await
        .map_err(late)
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(PAUSE_MIN)
        .with_max_delay(PAUSE_MAX)
        .with_jitter()
        .without_max_times()
        .build()
}
