//! One snapshot, and the tables that are read under it, from the first to the last.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use trellara_envelope::{CopyBegin, CopyEvent, CopyOrder, CopyTable, CopyWanted};
use trellara_postgres::fault;
use trellara_source::copy::{SharedSnapshot, TableFacts, describe};

use super::Serving;
use super::book::{Stage, TableRun};
use super::copier::{Copier, Trouble};
use super::outlet::OutletError;
use super::parts::{Part, Sizes};
use super::reading::{self, Failure, Said, Shared, Work};

/// The source is given this long to take a snapshot and say what its tables are.
const SOURCE_LIMIT: Duration = Duration::from_secs(60);
/// A snapshot waits for the disk and for standbys besides.
const TAKE_LIMIT: Duration = Duration::from_secs(5 * 60);
const TICK: Duration = Duration::from_millis(500);

/// Tables that are read under one snapshot.
struct Run {
    snapshot: Arc<SharedSnapshot>,
    shared: Arc<Shared>,
    tables: Vec<TableRun>,
}

impl Copier {
    /// Copies these tables under one snapshot.
    pub(super) async fn copy(
        &mut self,
        serving: Serving,
        wanted: Vec<CopyWanted>,
    ) -> Result<(), Trouble> {
        let source = &self.options.source;
        // What it waits for has limits and words of its own, which have to be heard.
        let took = limited_to(TAKE_LIMIT, "take a snapshot", SharedSnapshot::take(source)).await?;
        let snapshot =
            Arc::new(took.map_err(|error| Trouble::Again(format!("the source: {error}")))?);
        if snapshot.source() != serving.source {
            return Err(Trouble::Again(format!(
                "the source is another than the one whose changes are carried: {:?}",
                snapshot.source()
            )));
        }
        let sizes = self.reads(&snapshot)?;
        let source = &self.options.source;
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
                        // It may be on its way all the same.
                        self.give_up(wanted, "it could not be said why it cannot be copied");
                        fit.iter().for_each(|(wanted, _)| self.book.forget(wanted));
                        return said;
                    }
                }
            }
        }
        let mut run = self.plan(snapshot, sizes, fit);
        let end = self.work(&mut run).await;
        if let Err(trouble) = &end {
            self.leave(run, trouble);
        } else {
            self.report.ended();
        }
        end
    }

    /// What is written from now on is of this snapshot's source.
    fn reads(&mut self, snapshot: &SharedSnapshot) -> Result<Sizes, Trouble> {
        let (part_bytes, workers) = (self.options.copy.part_bytes, self.options.copy.workers);
        let outlet = self.outlet()?;
        outlet.reads(snapshot.source());
        Ok(Sizes::of(
            part_bytes,
            outlet.largest_message(),
            outlet.max_bytes(),
            workers,
        ))
    }

    fn plan(
        &mut self,
        snapshot: Arc<SharedSnapshot>,
        sizes: Sizes,
        mut fit: Vec<(CopyWanted, TableFacts)>,
    ) -> Run {
        let item_bytes = self.options.copy.item_bytes;
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
        Run {
            snapshot,
            shared: Arc::new(shared),
            tables,
        }
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
                self.hollow(run, at).await?;
            }
        }
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !run.is_over() {
            let is_waiting = self.outlet()?.is_waiting();
            let (outlet, orders) = (self.outlet.as_mut(), &mut self.orders);
            let mut dropped = Vec::new();
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
                        dropped = run.heard(&heard.order);
                    }
                }
                answer = outlet.next_answer(), if is_waiting => outlet.took(answer).await?,
                _ = ticker.tick() => self.report.tick(),
                heard = said.recv() => match heard {
                    Some(heard) => self.take(run, heard).await?,
                    None => return Err(Trouble::Again("the readers ended".to_owned())),
                },
            }
            for wanted in dropped {
                self.give_up(wanted, "it was not wanted for a while");
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
                // From here on it may have been said.
                table.stage = Stage::Begun;
                let wanted = table.wanted.clone();
                self.fail(&wanted, failure).await?;
                run.tables[at].stage = Stage::Over;
                Ok(())
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

    async fn hollow(&mut self, run: &mut Run, at: usize) -> Result<(), Trouble> {
        let facts = run.tables[at].facts.clone();
        let asked = reading::is_still_hollow(&run.shared, &facts);
        let said = match limited("say which partitions there are", asked).await? {
            Ok(true) => Said::ItemDone(at),
            Ok(false) => Said::Failed(at, reading::other_partitions(&facts)),
            Err(reason) => return Err(Trouble::Again(format!("the source: {reason}"))),
        };
        self.take(run, said).await
    }

    /// Leaves a run that cannot go on: what was said of a table has to be taken back, the others
    /// are as if nothing had been.
    fn leave(&mut self, run: Run, trouble: &Trouble) {
        let reason = match trouble {
            Trouble::Outlet(OutletError::Fenced(_) | OutletError::Foreign(_)) => return,
            Trouble::Outlet(
                OutletError::Lost(reason)
                | OutletError::TakenBack { reason, .. }
                | OutletError::Again(reason),
            )
            | Trouble::Again(reason) => reason,
        };
        for table in run.tables {
            match table.stage {
                Stage::Ahead => self.book.forget(&table.wanted),
                // What of it is on its way is sent again, and this comes behind it.
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
    /// another generation, which the next run reads. Returns those that were under way.
    fn heard(&mut self, order: &CopyOrder) -> Vec<CopyWanted> {
        let mut dropped = Vec::new();
        for (table, work) in self.tables.iter_mut().zip(&self.shared.tables) {
            if table.stage != Stage::Over && !table.is_wanted(order) {
                tracing::info!(table = %table.wanted.table, "a table's copy is not wanted any more");
                dropped.push(table.wanted.clone());
                table.stage = Stage::Over;
                work.is_over.store(true, Ordering::Relaxed);
            }
        }
        dropped
    }
}

async fn limited<T>(what: &str, doing: impl Future<Output = T>) -> Result<T, Trouble> {
    limited_to(SOURCE_LIMIT, what, doing).await
}

async fn limited_to<T>(
    limit: Duration,
    what: &str,
    doing: impl Future<Output = T>,
) -> Result<T, Trouble> {
    let late = |_| Trouble::Again(format!("the source did not {what} in time"));
    tokio::time::timeout(limit, doing).await.map_err(late)
}
