//! The readers: each takes one piece after another, collects its rows into parts, and hands them
//! over.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::TryStreamExt;
use tokio::sync::mpsc;
use trellara_postgres::sqlstate::{ErrorClass, describe};
use trellara_postgres::{Fault, fault};
use trellara_source::SourceOptions;
use trellara_source::copy::{Item, ItemError, ItemReader, SharedSnapshot, TableFacts};

use super::parts::{Part, PartBuilder, PushError, RowTooLarge, Sizes};
use super::report::Report;

/// What readers have in common.
pub(super) struct Shared {
    pub(super) source: SourceOptions,
    pub(super) snapshot: Arc<SharedSnapshot>,
    pub(super) sizes: Sizes,
    pub(super) tables: Vec<Work>,
    /// Table and piece, in the order in which they are read.
    pub(super) items: Mutex<VecDeque<(usize, Item)>>,
    pub(super) report: Report,
}

/// One table to read.
pub(super) struct Work {
    pub(super) facts: Arc<TableFacts>,
    /// Nobody wants its rows any more.
    pub(super) is_over: AtomicBool,
}

/// What a reader says; the number is the table's.
#[derive(Debug)]
pub(super) enum Said {
    Part(usize, Part),
    ItemDone(usize),
    Failed(usize, Failure),
    SnapshotGone(String),
}

/// Why a table's copy came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) hint: String,
    /// Whether somebody has to change something first.
    pub(super) lasting: bool,
}

/// Why a piece was not read.
enum Ended {
    Failed(Failure),
    SnapshotGone(String),
    /// Nobody wants the table any more.
    NotWanted,
    /// Nobody listens any more.
    Unheard,
}

/// Reads until no piece is left or nobody listens any more.
pub(super) async fn read(shared: Arc<Shared>, said: mpsc::Sender<Said>) {
    let mut reader = None;
    while let Some((table, item)) = shared.next() {
        let ended = match piece(&shared, &mut reader, table, item, &said).await {
            Ok(()) => said.send(Said::ItemDone(table)).await,
            Err(Ended::Failed(failure)) => {
                shared.tables[table].is_over.store(true, Ordering::Relaxed);
                said.send(Said::Failed(table, failure)).await
            }
            Err(Ended::SnapshotGone(reason)) => said.send(Said::SnapshotGone(reason)).await,
            Err(Ended::NotWanted) => Ok(()),
            Err(Ended::Unheard) => return,
        };
        if ended.is_err() {
            return;
        }
    }
}

impl Shared {
    fn next(&self) -> Option<(usize, Item)> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = items.pop_front()?;
            if !self.tables[next.0].is_over.load(Ordering::Relaxed) {
                return Some(next);
            }
        }
    }
}

/// Reads a piece, from its beginning again whenever the session was lost: the snapshot is the same,
/// so are the rows.
async fn piece(
    shared: &Shared,
    reader: &mut Option<ItemReader>,
    table: usize,
    item: Item,
    said: &mpsc::Sender<Said>,
) -> Result<(), Ended> {
    let mut builder = PartBuilder::new(shared.sizes);
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(5))
        .with_jitter()
        .without_max_times()
        .build();
    loop {
        let fault = match once(shared, reader, table, item, &mut builder, said).await {
            Ok(()) => return Ok(()),
            Err(Broken::Ended(ended)) => {
                *reader = None;
                return Err(ended);
            }
            Err(Broken::Passing(reason)) => reason,
        };
        *reader = None;
        builder.begin_again();
        let facts = &shared.tables[table].facts;
        tracing::warn!(table = %facts.table, reason = fault, "a piece of a table is read again");
        shared.report.waiting_for(&format!("the source: {fault}"));
        tokio::time::sleep(pauses.next().unwrap_or(Duration::from_secs(5))).await;
    }
}

enum Broken {
    Ended(Ended),
    /// Reading again may do better.
    Passing(String),
}

async fn once(
    shared: &Shared,
    slot: &mut Option<ItemReader>,
    table: usize,
    item: Item,
    builder: &mut PartBuilder,
    said: &mpsc::Sender<Said>,
) -> Result<(), Broken> {
    let work = &shared.tables[table];
    let failed = |failure: Failure| Broken::Ended(Ended::Failed(failure));
    if slot.as_ref().is_none_or(ItemReader::is_closed) {
        let reader = ItemReader::connect(&shared.source).await;
        let reader = reader.map_err(|error| Broken::Passing(error.to_string()))?;
        reader
            .prepare()
            .await
            .map_err(|error| broken(error, &work.facts))?;
        *slot = Some(reader);
    }
    let Some(reader) = slot.as_ref() else {
        return Err(Broken::Passing("no session".to_owned()));
    };
    let rows = reader.open(shared.snapshot.id(), &work.facts, item).await;
    let mut rows = std::pin::pin!(rows.map_err(|error| broken(error, &work.facts))?);
    shared.report.waiting_for("");
    loop {
        let row = rows.try_next().await;
        let Some(row) = row.map_err(|error| server(fault(&error), &work.facts))? else {
            break;
        };
        let part = builder.push(&row).map_err(|error| {
            failed(match error {
                PushError::TooLarge(RowTooLarge { bytes }) => too_large(shared.sizes, bytes),
                PushError::NotTheSame => not_the_same(),
            })
        })?;
        if let Some(part) = part {
            let sent = said.send(Said::Part(table, part)).await;
            if sent.is_err() {
                return Err(Broken::Ended(Ended::Unheard));
            }
            if work.is_over.load(Ordering::Relaxed) {
                return Err(Broken::Ended(Ended::NotWanted));
            }
        }
    }
    let last = builder.finish().map_err(|_| failed(not_the_same()))?;
    if let Some(part) = last
        && said.send(Said::Part(table, part)).await.is_err()
    {
        return Err(Broken::Ended(Ended::Unheard));
    }
    let finished = reader.finish().await;
    if work.facts.is_partitioned() {
        finished.map_err(|error| broken(error, &work.facts))?;
        // Whoever reads the last piece of all asks when everything was read.
        return same_partitions(reader, &work.facts).await;
    }
    // All rows are here; a session that fails now only has to be made anew.
    if finished.is_err() {
        *slot = None;
    }
    Ok(())
}

async fn same_partitions(reader: &ItemReader, facts: &TableFacts) -> Result<(), Broken> {
    let other = reader.has_other_partitions(facts).await;
    match other.map_err(|error| broken(error, facts))? {
        false => Ok(()),
        true => Err(Broken::Ended(Ended::Failed(other_partitions(facts)))),
    }
}

/// The same for a table that has no partition, and so no piece.
pub(super) async fn is_still_hollow(shared: &Shared, facts: &TableFacts) -> Result<bool, String> {
    let reader = ItemReader::connect(&shared.source).await;
    let reader = reader.map_err(|error| error.to_string())?;
    match same_partitions(&reader, facts).await {
        Ok(()) => Ok(true),
        Err(Broken::Ended(_)) => Ok(false),
        Err(Broken::Passing(reason)) => Err(reason),
    }
}

pub(super) fn other_partitions(facts: &TableFacts) -> Failure {
    Failure {
        reason: format!(
            "partitions of {} were attached, detached, emptied or rewritten while it was copied",
            facts.table
        ),
        hint: "it is copied anew; nothing has to be done unless that goes on".to_owned(),
        lasting: false,
    }
}

fn broken(error: ItemError, facts: &TableFacts) -> Broken {
    match error {
        ItemError::Rewritten => Broken::Ended(Ended::Failed(Failure {
            reason: format!(
                "{} was rewritten, emptied, renamed or dropped while it was copied",
                facts.table
            ),
            hint: "it is copied anew; nothing has to be done unless that goes on".to_owned(),
            lasting: false,
        })),
        ItemError::SnapshotGone(fault) => Broken::Ended(Ended::SnapshotGone(fault.to_string())),
        ItemError::Server(fault) => server(fault, facts),
    }
}

/// What follows from an error of the source while it is read.
fn server(fault: Fault, facts: &TableFacts) -> Broken {
    let failed = |hint: String, lasting| {
        let text = match describe(&fault.sqlstate) {
            "" => fault.message.as_str(),
            name => name,
        };
        Broken::Ended(Ended::Failed(Failure {
            reason: format!("reading {}: {text} ({})", facts.table, fault.sqlstate),
            hint,
            lasting,
        }))
    };
    match fault.class {
        ErrorClass::Passing | ErrorClass::Suspicious | ErrorClass::TargetCannotWrite => {
            Broken::Passing(fault.to_string())
        }
        ErrorClass::Configuration if fault.sqlstate == INSUFFICIENT_PRIVILEGE => failed(
            "grant the relay's role SELECT on the table's published columns; where row security \
             hides rows from it, give it BYPASSRLS"
                .to_owned(),
            true,
        ),
        // A column or type that went since the facts were read: the next copy reads them anew.
        ErrorClass::Configuration => failed("it is copied anew".to_owned(), false),
        ErrorClass::DataFault | ErrorClass::NotMyPredecessor | ErrorClass::Unknown => failed(
            "read the table on the source as the relay's role; its row filter, a computed column or \
             a damaged page may fail"
                .to_owned(),
            true,
        ),
    }
}

const INSUFFICIENT_PRIVILEGE: &str = "42501";

fn too_large(sizes: Sizes, bytes: usize) -> Failure {
    Failure {
        reason: format!(
            "a row has {bytes} bytes, and the copy stream takes rows of at most {}",
            sizes.row_bytes
        ),
        hint: format!(
            "raise backfill.max_bytes to {} at least, delete the copy stream when nothing is being \
             loaded from it, and copy the table again",
            bytes * 4
        ),
        lasting: true,
    }
}

fn not_the_same() -> Failure {
    Failure {
        reason: "rows came in another order when they were read again".to_owned(),
        hint: "the table is copied anew".to_owned(),
        lasting: false,
    }
}
