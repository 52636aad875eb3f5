//! Comparing two frozen databases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::{FutureExt, StreamExt, stream, try_join};

use crate::definitions;
use crate::digest::Hash;
use crate::error::{Failure, Side, VerifyError};
use crate::frozen::Frozen;
use crate::inventory::{self, Published, Relation};
use crate::mapping;
use crate::reader::{Reader, TextRow};
use crate::report::{
    Beside, Coverage, DefinitionDifference, DigestLane, Outcome, SequenceReport, TableName,
    TableReport,
};
use crate::sequences;
use crate::table::{Ground, Lane, Pool, Work};

/// How to compare.
#[derive(Debug, Clone)]
pub struct CompareOptions {
    /// The run's name, which the sessions carry in their application name.
    pub run: String,
    /// Drawn for the run, so that nothing can be made to collide with it.
    pub seed: i64,
    /// The publication whose tables are compared.
    pub publication: String,
    /// Sessions that read at the same time, on each side.
    pub jobs: usize,
    /// How many differences of a table are listed; all are counted.
    pub max_diffs: usize,
    /// Whether listed differences carry the rows.
    pub values: bool,
    /// How long one statement may take; `None`: as long as it likes.
    pub statement_timeout: Option<Duration>,
    /// Rows of a range.
    pub range_rows: u64,
    /// What rows are digested by.
    pub lane: DigestLane,
}

impl CompareOptions {
    /// The defaults.
    pub fn new(run: impl Into<String>, publication: impl Into<String>, seed: i64) -> Self {
        Self {
            run: run.into(),
            seed,
            publication: publication.into(),
            // Reading is bound by the servers' processors, which have other work.
            jobs: 2,
            max_diffs: 10_000,
            values: false,
            statement_timeout: None,
            // A fraction of a second of work; an interrupted one costs no more.
            range_rows: 100_000,
            lane: DigestLane::default(),
        }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Each table of the publication, in order of their names.
    pub tables: Vec<TableReport>,
    /// What stands on the source and outside of the comparison.
    pub not_covered: Vec<String>,
    /// The sequences of these tables.
    pub sequences: Beside<Vec<SequenceReport>>,
    /// In what their definitions differ.
    pub definitions: Beside<Vec<DefinitionDifference>>,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The tables are known.
    Planned {
        /// Each, with a guess at its rows on the source.
        tables: Vec<(TableName, u64)>,
    },
    /// A table is being read.
    Started {
        /// Which.
        table: TableName,
    },
    /// A piece of a table was digested on both sides.
    Compared {
        /// Which.
        table: TableName,
        /// Rows of the piece on the source.
        source_rows: u64,
        /// On the target.
        target_rows: u64,
    },
    /// A table is done.
    Finished {
        /// The result.
        report: Arc<TableReport>,
    },
}

/// Compares the publication's tables in two databases that were frozen at one source position.
///
/// # Errors
/// No result could be had at all: never to be taken for "equal".
pub async fn compare(
    source: &Frozen,
    target: &Frozen,
    options: &CompareOptions,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Comparison, VerifyError> {
    Box::pin(run(source, target, options, progress))
        .await
        .map_err(over)
}

/// A failure outside of any table is the end of the run.
fn over(failure: Failure) -> VerifyError {
    match failure {
        Failure::Run(error) => error,
        // An SQL_ASCII database checks nothing on the way in, and refuses on the way out.
        Failure::Refused { side, fault }
            if matches!(fault.sqlstate.as_str(), "22021" | "22P05") =>
        {
            let reason = format!("the {side} has names that are not UTF-8: {fault}");
            let hint = "rename them, or give the database an encoding: SQL_ASCII is none";
            VerifyError::incomparable(reason, hint.into())
        }
        Failure::Refused { side, fault } => VerifyError::server(side, &fault),
        Failure::NotComparable { reason, hint } => VerifyError::incomparable(reason, hint),
    }
}

/// What stands beside the rows and is refused is told; it takes nothing from the rows' verdict.
fn beside<T>(looked: Result<T, Failure>) -> Result<Beside<T>, VerifyError> {
    looked.map(Ok).or_else(|failure| {
        let (reason, _) = failure.about_table(|_| false)?;
        Ok(Err(reason))
    })
}

async fn run(
    source: &Frozen,
    target: &Frozen,
    options: &CompareOptions,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Comparison, Failure> {
    let lanes = (0..options.jobs.max(1)).map(|_| open(source, target, options).boxed());
    let lanes = try_join_all(lanes.collect::<Vec<_>>()).await?;
    let (source_now, target_now) = try_join!(
        Reader::now(Side::Source, &source.connect, options),
        Reader::now(Side::Target, &target.connect, options)
    )?;
    let same_encoding = source_now.encoding() == target_now.encoding();
    let plan = Catalogue::read(&lanes, options).await?;
    plan.check(&source_now, options).await?;
    let names: Vec<TableName> = plan.published.iter().map(|p| p.table.clone()).collect();
    let sequences = beside(sequences::look(&source_now, &target_now, &names).await)?;
    let definitions = beside(definitions::look(&source_now, &target_now, &names).await)?;
    let ground = Ground {
        pool: Pool::new(lanes),
        source_now,
        target_now,
        hash: Hash {
            seed: options.seed,
            as_utf8: !same_encoding,
            proof: match options.lane {
                DigestLane::Row64 => None,
                DigestLane::Blake3 => Some(rand::random()),
            },
        },
        options,
        progress,
    };
    progress(Progress::Planned {
        tables: plan.estimates(),
    });
    // Boxed one by one: the compiler does not see that futures made inside of a stream may be sent.
    let mut all = Vec::with_capacity(plan.published.len());
    for published in &plan.published {
        all.push(plan.compare(&ground, published, same_encoding).boxed());
    }
    let mut tables: Vec<TableReport> = Vec::new();
    for table in &plan.gone {
        let report = gone(table);
        progress(Progress::Started {
            table: table.clone(),
        });
        let report = Arc::new(report);
        progress(Progress::Finished {
            report: Arc::clone(&report),
        });
        tables.push(Arc::unwrap_or_clone(report));
    }
    let mut results = stream::iter(all).buffer_unordered(options.jobs.max(1));
    while let Some(report) = results.next().await {
        tables.push(report?);
    }
    drop(results);
    plan.check(&ground.source_now, options).await?;
    tables.sort_by(|a, b| a.table.cmp(&b.table));
    Ok(Comparison {
        tables,
        not_covered: plan.not_covered,
        sequences,
        definitions,
    })
}

/// Opens a session on each side.
async fn open(
    source: &Frozen,
    target: &Frozen,
    options: &CompareOptions,
) -> Result<Lane, VerifyError> {
    let (source, target) = try_join!(
        Reader::open(Side::Source, source, options),
        Reader::open(Side::Target, target, options)
    )?;
    Ok(Lane { source, target })
}

/// What is there to be compared.
struct Catalogue {
    published: Vec<Published>,
    /// Published in the snapshot, and now no longer.
    gone: Vec<TableName>,
    source: BTreeMap<TableName, Relation>,
    target: BTreeMap<TableName, Relation>,
    not_covered: Vec<String>,
    /// The publication, as the snapshot shows it.
    definition: TextRow,
}

impl Catalogue {
    async fn read(lanes: &[Lane], options: &CompareOptions) -> Result<Self, Failure> {
        let lane = lanes.first();
        let lane = lane.ok_or_else(|| VerifyError::bug("no lane was made"))?;
        let published = inventory::published(&lane.source, &options.publication).await?;
        let mut names: Vec<TableName> = published.iter().map(|p| p.table.clone()).collect();
        let implied = inventory::implied(&lane.source, &options.publication).await?;
        let mut gone = implied.clone();
        gone.retain(|table| !names.contains(table));
        let mut source = inventory::relations(&lane.source, &names).await?;
        // What joined since then was there, and not published.
        source.retain(|table, _| implied.contains(table));
        let target = inventory::relations(&lane.target, &names).await?;
        names.extend(gone.iter().cloned());
        let not_covered =
            inventory::not_covered(&lane.source, &options.publication, &names).await?;
        Ok(Self {
            published,
            gone,
            source,
            target,
            not_covered,
            definition: inventory::definition(&lane.source, &options.publication).await?,
        })
    }

    /// Refuses when the publication is not the one that the snapshot shows.
    async fn check(&self, now: &Reader, options: &CompareOptions) -> Result<(), VerifyError> {
        let definition = inventory::definition(now, &options.publication).await;
        if definition.map_err(over)? == self.definition {
            return Ok(());
        }
        Err(VerifyError::unusable(
            Side::Source,
            "the publication was changed behind the position compared".into(),
            "run it again",
        ))
    }

    fn estimates(&self) -> Vec<(TableName, u64)> {
        let estimate = |p: &Published| self.source.get(&p.table).map_or(0, |r| r.estimate);
        let tables = self.published.iter();
        let known = tables.map(|p| (p.table.clone(), estimate(p)));
        let gone = self.gone.iter().map(|table| (table.clone(), 0));
        known.chain(gone).collect()
    }

    async fn compare(
        &self,
        ground: &Ground<'_>,
        published: &Published,
        same_encoding: bool,
    ) -> Result<TableReport, VerifyError> {
        let started = Instant::now();
        let table = &published.table;
        let (source, target) = (self.source.get(table), self.target.get(table));
        (ground.progress)(Progress::Started {
            table: table.clone(),
        });
        let result = match source {
            Some(relation) => match mapping::pair(published, relation, target, same_encoding) {
                Ok(pair) => Box::pin(Work::new(ground, &pair).run()).await,
                Err(failure) => Err(failure),
            },
            None => Err(Failure::NotComparable {
                reason: "the table was made or published behind the position compared".into(),
                hint: "run it again".into(),
            }),
        };
        let report = match result {
            Ok(report) => report,
            Err(failure) => {
                let guarded = |side| match side {
                    Side::Source => source.is_some_and(|relation| relation.guarded),
                    Side::Target => target.is_some_and(|relation| relation.guarded),
                };
                let (reason, hint) = failure.about_table(guarded)?;
                not_comparable(table, reason, hint, started.elapsed())
            }
        };
        let report = Arc::new(report);
        (ground.progress)(Progress::Finished {
            report: Arc::clone(&report),
        });
        // Copied only when the listener kept it.
        Ok(Arc::unwrap_or_clone(report))
    }
}

/// A table that left the publication by itself is neither equal nor outside of the comparison.
fn gone(table: &TableName) -> TableReport {
    let reason = "the table was dropped, renamed, moved, detached or made unlogged behind the \
                  position compared";
    let hint = "run it again; what is published then is compared";
    not_comparable(table, reason.into(), hint.into(), Duration::ZERO)
}

/// What was counted before it failed says nothing about the table, so none of it is kept.
fn not_comparable(table: &TableName, reason: String, hint: String, took: Duration) -> TableReport {
    TableReport {
        table: table.clone(),
        method: None,
        by_key: false,
        outcome: Outcome::NotComparable { reason, hint },
        source_rows: 0,
        target_rows: 0,
        source_sum: "0".into(),
        target_sum: "0".into(),
        missing: 0,
        extra: 0,
        changed: 0,
        duplicate: 0,
        differences: Vec::new(),
        explained: 0,
        coverage: Coverage::default(),
        verified_through: None,
        mapped: Vec::new(),
        took,
    }
}
