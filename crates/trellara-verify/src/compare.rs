//! Comparing two frozen databases.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{FutureExt, StreamExt, stream, try_join};

use crate::catalogue::{self, Catalogue};
use crate::definitions;
use crate::digest::Hash;
use crate::error::{Failure, Side, VerifyError};
use crate::frozen::Frozen;
use crate::held::{self, Held, Quarantine};
use crate::load::{Load, PauseLag};
use crate::pool::{Lane, Pool};
use crate::reader::Reader;
use crate::report::{
    Beside, DefinitionDifference, DigestLane, SequenceReport, TableName, TableReport,
};
use crate::select::TablePattern;
use crate::sequences;
use crate::table::Ground;

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
    /// Whose held transactions explain differences.
    pub quarantine: Option<Quarantine>,
    /// Whether tables that differ carry what a repair needs beside the rows.
    pub recipes: bool,
    /// How long one statement may take; `None`: as long as it likes.
    pub statement_timeout: Option<Duration>,
    /// Rows of a range.
    pub range_rows: u64,
    /// What rows are digested by.
    pub lane: DigestLane,
    /// A range that takes longer than one statement may is halved, and never below so many rows.
    pub range_rows_least: u64,
    /// The tables to compare; none: all that are published.
    pub tables: Vec<TablePattern>,
    /// Which share of each table's pieces to compare, above 0 and up to 1; `None`: all of them.
    pub sample: Option<f64>,
    /// Whether to count the rows of each table as a whole, whatever is compared of it.
    pub count: bool,
    /// How much to read on each side, guessed from the tables' sizes; `None`: as fast as it goes.
    pub rate_bytes_per_second: Option<u64>,
    /// When to stop reading for a while; `None`: never.
    pub pause: Option<PauseLag>,
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
            quarantine: None,
            recipes: false,
            statement_timeout: None,
            // A fraction of a second of work; an interrupted one costs no more.
            range_rows: 100_000,
            lane: DigestLane::default(),
            range_rows_least: 1000,
            tables: Vec::new(),
            sample: None,
            count: false,
            rate_bytes_per_second: None,
            pause: None,
        }
    }

    pub(crate) fn is_asked_for(&self, table: &TableName) -> bool {
        self.tables.is_empty() || self.tables.iter().any(|p| p.matches(table))
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Each table of the publication, in order of their names.
    pub tables: Vec<TableReport>,
    /// Published, and not among the tables asked for.
    pub left_out: Vec<TableName>,
    /// What stands on the source and outside of the comparison.
    pub not_covered: Vec<String>,
    /// The sequences of these tables.
    pub sequences: Beside<Vec<SequenceReport>>,
    /// In what their definitions differ.
    pub definitions: Beside<Vec<DefinitionDifference>>,
    /// Transactions in quarantine that the target is still to get.
    pub held_transactions: u64,
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
    /// Nothing is read until the target has caught up.
    Paused {
        /// How far it was behind.
        lag_bytes: u64,
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
pub(crate) fn over(failure: Failure) -> VerifyError {
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
pub(crate) fn beside<T>(looked: Result<T, Failure>) -> Result<Beside<T>, VerifyError> {
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
    let lane = lanes.first();
    let lane = lane.ok_or_else(|| VerifyError::bug("no lane was made"))?;
    let held = match &options.quarantine {
        Some(quarantine) => Held::read(&lane.target, quarantine).await,
        None => Ok(Held::default()),
    };
    let held = held.map_err(held::unreadable)?;
    let plan = Catalogue::read(lane, options).await?;
    plan.check(&source_now, options).await?;
    let names: Vec<TableName> = plan.published.iter().map(|p| p.table.clone()).collect();
    let sequences = beside(sequences::look(&source_now, &target_now, &names).await)?;
    let definitions = beside(definitions::look(&source_now, &target_now, &names).await)?;
    let (rate, pause) = (options.rate_bytes_per_second, options.pause.clone());
    let ground = Ground {
        load: Load::new(rate, pause, &source_now, &names).await?,
        pool: Pool::new(lanes),
        source_now,
        target_now,
        held,
        hash: hash(options, same_encoding),
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
        let report = catalogue::gone(table);
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
        left_out: plan.left_out,
        not_covered: plan.not_covered,
        sequences,
        definitions,
        held_transactions: ground.held.waiting,
    })
}

/// Opens a session on each side.
pub(crate) async fn open(
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

/// How texts are hashed in this run.
pub(crate) fn hash(options: &CompareOptions, same_encoding: bool) -> Hash {
    Hash {
        seed: options.seed,
        as_utf8: !same_encoding,
        proof: match options.lane {
            DigestLane::Row64 => None,
            DigestLane::Blake3 => Some(rand::random()),
        },
    }
}
