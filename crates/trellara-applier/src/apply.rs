//! The target transaction: changes, ledger row, commit; or nothing of it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use trellara_crashpoints as crashpoints;
use trellara_envelope::{AbortedSet, FlowName, Halt, HaltCode, Lane, TransactionHash};
use trellara_jetstream::Broker;
use trellara_jetstream::read::Reader;
use trellara_pgoutput::ChangeReader;
use trellara_postgres::fault;
use trellara_postgres::sqlstate::ErrorClass;

use crate::backfill::Copies;
use crate::backfill::sieve::Sieve;
use crate::batch::Unit;
use crate::checkpoint::Checkpoint;
use crate::chunks::{self, ChunkStream, Large};
use crate::disposition::{self, Disposition};
use crate::execute::{ApplyError, Executor, ExecutorOptions};
use crate::lane::Held;
use crate::ledger::{Ledger, LedgerIdentity, Recorded};
use crate::options::ApplierOptions;
use crate::quarantine::hold::Blocking;
use crate::quarantine::skipped::Recorder;
use crate::quarantine::{ConflictRules, HeldId};
use crate::status::ApplierStatus;
use crate::target::Catalog;
use crate::trouble::{self, Trouble};

mod aside;
mod fates;

pub(crate) use self::aside::{HoldingLarge, LargeAside, SetAside};
pub(crate) use self::fates::{Fates, numbered};

/// Writes target transactions on one session.
pub(crate) struct Writer {
    pub(crate) flow: FlowName,
    pub(crate) lane: Lane,
    /// The machine's name, for the audit.
    pub(crate) host: String,
    pub(crate) held: Held,
    pub(crate) ledger: Ledger,
    pub(crate) catalog: Catalog,
    pub(crate) replica: bool,
    pub(crate) conflicts: Arc<ConflictRules>,
    /// What the copies have of a transaction is left out.
    pub(crate) copies: Arc<Copies>,
}

/// What one target transaction did.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub(crate) checkpoint: Checkpoint,
    /// What was recorded, in the order of its ordinals.
    pub(crate) identities: Vec<TransactionHash>,
    /// The target's clock when it was recorded.
    pub(crate) applied_at_us: i64,
    pub(crate) transactions: u64,
    pub(crate) changes: u64,
    /// Of them those that a conflict rule skipped or let write over a row.
    pub(crate) ruled: u64,
    pub(crate) seconds: f64,
    /// What was set aside, in the order of the source.
    pub(crate) held: Vec<HeldId>,
}

impl Committed {
    /// Nothing was applied.
    pub(crate) fn nothing(recorded: Recorded, held: Vec<HeldId>) -> Self {
        Self {
            checkpoint: recorded.checkpoint,
            identities: Vec::new(),
            applied_at_us: recorded.applied_at_us,
            transactions: 0,
            changes: 0,
            ruled: 0,
            seconds: 0.0,
            held,
        }
    }
}

/// What one target transaction is to do.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// Where the lane stands.
    pub(crate) from: &'a Checkpoint,
    /// Whole transactions, in order.
    pub(crate) units: &'a [Unit],
    /// What is special about some of them.
    pub(crate) fates: &'a Fates,
    /// Open held ones in front of which the lane stood.
    pub(crate) blocking: &'a [Blocking],
    /// Where the lane is to stand.
    pub(crate) to: &'a Checkpoint,
    /// Whether runs of like changes may go as one statement.
    pub(crate) set_wise: bool,
}

/// What a chunked transaction does to held ones when it is applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside<'a> {
    /// It is what the lane stood in front of.
    pub(crate) closes: Option<Blocking>,
    /// It touches what these discarded ones touch.
    pub(crate) overtakes: &'a [HeldId],
}

impl<'a> Part<'a> {
    fn sets_aside(&self, unit: usize) -> bool {
        let found = self.fates.aside.binary_search_by_key(&unit, |one| one.unit);
        found.is_ok()
    }

    /// Nothing that ends where the lane has been is ever carried into the target: whoever asks for
    /// it has lost count, and would apply it twice.
    fn begins_behind_the_lane(&self) -> Result<(), Trouble> {
        let again = self.units.first().filter(|first| {
            first.end_lsn <= self.from.end_lsn
                && first.identity.source.system == self.from.source.system
        });
        match again {
            None => Ok(()),
            Some(first) => Err(Trouble::passing(format!(
                "transaction {} was about to be applied although the lane stands behind it, at {}; \
                 beginning anew",
                first.identity, self.from.end_lsn
            ))),
        }
    }

    /// Those that are applied.
    fn applied(self) -> impl Iterator<Item = &'a Unit> {
        let numbered = self.units.iter().enumerate();
        numbered.filter_map(move |(index, unit)| (!self.sets_aside(index)).then_some(unit))
    }
}

/// Why a target transaction was rolled back.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A change was not taken; which transaction is to blame is not said yet.
    Change(ApplyError),
    /// Anything else.
    Trouble(Trouble),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Change(error) => error.fmt(f),
            Failure::Trouble(Trouble::Passing(reason) | Trouble::Disturbed { reason, .. }) => {
                f.write_str(reason)
            }
            Failure::Trouble(Trouble::Halted { halt, .. }) => halt.fmt(f),
            Failure::Trouble(Trouble::Cancelled) => f.write_str("a shutdown was asked for"),
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Failure::Trouble(trouble)
    }
}

impl From<Halt> for Failure {
    fn from(halt: Halt) -> Self {
        Failure::Trouble(halt.into())
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Failure::Trouble(error.into())
    }
}

/// Where a large transaction's bytes come from.
pub(crate) struct Source<'a> {
    pub(crate) broker: &'a Broker,
    pub(crate) reader: &'a Reader,
    pub(crate) options: &'a ApplierOptions,
    pub(crate) cancel: &'a CancellationToken,
    /// Told of each piece that was read: as long as they come, nothing is stuck.
    pub(crate) status: &'a ApplierStatus,
}

impl Writer {
    /// Commits whole transactions, applied or set aside, and the position behind them in one target
    /// transaction.
    pub(crate) async fn commit(
        &mut self,
        client: &Client,
        part: Part<'_>,
    ) -> Result<Committed, Failure> {
        let begun = Instant::now();
        part.begins_behind_the_lane()?;
        client.batch_execute(&self.held.begin()).await?;
        let written = Box::pin(self.write(client, part)).await;
        let committed = self.end(client, written).await?;
        Ok(Committed {
            seconds: begun.elapsed().as_secs_f64(),
            ..committed
        })
    }

    async fn write(&mut self, client: &Client, part: Part<'_>) -> Result<Committed, Failure> {
        let (changes, ruled) = self.carry(client, part).await?;
        let held = self.keep(client, part).await?;
        let identities: Vec<LedgerIdentity> = part.applied().map(Unit::ledger_identity).collect();
        let recorded = self
            .ledger
            .record_timed(client, part.from, part.to, &identities)
            .await?;
        Ok(Committed {
            transactions: identities.len() as u64,
            identities: identities.iter().map(|one| one.hash).collect(),
            changes,
            ruled,
            ..Committed::nothing(recorded, held)
        })
    }

    /// Carries the changes of those that are not set aside into the target.
    /// How many they are, and of them those that a conflict rule acted on.
    async fn carry(&mut self, client: &Client, part: Part<'_>) -> Result<(u64, u64), Failure> {
        if part.units.len() == part.fates.aside.len() {
            return Ok((0, 0));
        }
        let none_aborted = AbortedSet::EMPTY;
        let (mut ruled, flow, host) = (0, self.flow.clone(), self.host.clone());
        let of = (&flow, self.lane);
        let copies = Arc::clone(&self.copies);
        let mut executor = self.executor(client, part.set_wise);
        let mut reader = ChangeReader::new(false, &none_aborted);
        let mut unread = true;
        for (index, unit) in part.units.iter().enumerate() {
            if index > 0 {
                executor.next_transaction();
            }
            if part.sets_aside(index) {
                unread = true;
                continue;
            }
            if std::mem::take(&mut unread) || unit.begins {
                // A bundle describes each table once, perhaps in a transaction that is skipped.
                reader
                    .describe(&unit.earlier)
                    .map_err(|error| unreadable(unit, &error))?;
            }
            reader.feed(unit.records.clone());
            executor.sift(Sieve::of(&copies, &unit.identity));
            apply_fed(&mut executor, &mut reader, unit).await?;
            let skipped = executor.take_skipped().await.map_err(Failure::Change)?;
            let mut recorder = Recorder::new(of, unit.identity, unit.end_lsn);
            ruled += recorder
                .all(client, skipped, &host, part.from.end_lsn)
                .await
                .map_err(Trouble::from)?;
            reader
                .next_transaction()
                .map_err(|error| unreadable(unit, &error))?;
        }
        let applied = executor.flush().await.map_err(Failure::Change)?;
        Ok((applied.changes, ruled))
    }

    /// Commits one large transaction, whose bytes are read while they are applied.
    pub(crate) async fn commit_large(
        &mut self,
        client: &Client,
        from: &Checkpoint,
        (large, beside): (Large<'_>, Beside<'_>),
        to: &Checkpoint,
        source: &Source<'_>,
        set_wise: bool,
    ) -> Result<Committed, Failure> {
        let begun = Instant::now();
        // Read before the transaction begins: no lock is held while the broker is slow.
        let aborted = chunks::aborted(source, large).await?;
        client.batch_execute(&self.held.begin()).await?;
        let written = self
            .write_large(
                client,
                from,
                (large, &aborted),
                (to, beside),
                source,
                set_wise,
            )
            .await;
        let (recorded, (changes, ruled)) = self.end(client, written).await?;
        Ok(Committed {
            identities: vec![large.manifest.identity().hash()],
            transactions: 1,
            changes,
            ruled,
            seconds: begun.elapsed().as_secs_f64(),
            ..Committed::nothing(recorded, Vec::new())
        })
    }

    async fn write_large(
        &mut self,
        client: &Client,
        from: &Checkpoint,
        (large, aborted): (Large<'_>, &AbortedSet),
        (to, beside): (&Checkpoint, Beside<'_>),
        source: &Source<'_>,
        set_wise: bool,
    ) -> Result<(Recorded, (u64, u64)), Failure> {
        let mut pieces = ChunkStream::open(source, large).await?;
        let (flow, lane) = (self.flow.clone(), self.lane);
        let (transaction, end_lsn) = (large.manifest.identity(), large.manifest.end_lsn);
        let mut recorder = Recorder::new((&flow, lane), transaction, end_lsn);
        let mut reader = ChangeReader::new(large.manifest.streamed, aborted);
        let sieve = Sieve::of(&self.copies, &transaction);
        let mut executor = self.executor(client, set_wise);
        executor.sift(sieve);
        while let Some(piece) = pieces.next().await? {
            if source.cancel.is_cancelled() {
                return Err(Failure::Trouble(Trouble::Cancelled));
            }
            reader.feed(piece);
            while let Some(change) = reader
                .next_change()
                .map_err(|error| chunks::damaged(large, &error.to_string()))?
            {
                executor
                    .apply_message(&change.message, change.relations)
                    .await
                    .map_err(Failure::Change)?;
            }
            Trouble::come_by(crashpoints::APPLIER_CHUNK_APPLIED)?;
            let skipped = executor.take_skipped().await.map_err(Failure::Change)?;
            recorder
                .take(client, skipped)
                .await
                .map_err(Trouble::from)?;
        }
        pieces.finish()?;
        reader
            .finish()
            .map_err(|error| chunks::damaged(large, &error.to_string()))?;
        let applied = executor.flush().await.map_err(Failure::Change)?;
        drop(executor);
        let ruled = recorder.audit(client, &self.host, from.end_lsn).await;
        let ruled = ruled.map_err(Trouble::from)?;
        self.write_beside(client, from, large, beside).await?;
        let identity = LedgerIdentity {
            hash: transaction.hash(),
            end_lsn,
        };
        let recorded = self
            .ledger
            .record_timed(client, from, to, &[identity])
            .await?;
        Ok((recorded, (applied.changes, ruled)))
    }

    /// Row by row is how a verdict is found, and a verdict is about the tables as they are now, not as
    /// they were when they were read: a column that was widened since takes what it did not.
    pub(crate) fn executor<'c>(&'c mut self, client: &'c Client, set_wise: bool) -> Executor<'c> {
        if !set_wise {
            self.catalog.reread();
        }
        let options = ExecutorOptions {
            role_replica: self.replica,
            set_wise,
        };
        Executor::new(client, &mut self.catalog, options).with_conflicts(&self.conflicts)
    }

    /// Commits what was written, or rolls back and says why. A commit that is answered by silence
    /// is neither: the next connection reads the ledger (B21).
    pub(crate) async fn end<T>(
        &self,
        client: &Client,
        written: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failure = match written {
            Ok(_) if crashpoints::reached(crashpoints::APPLIER_BEFORE_COMMIT) => {
                Trouble::crash_point().into()
            }
            Ok(done) => match client.batch_execute("COMMIT").await {
                Ok(()) if crashpoints::reached(crashpoints::APPLIER_COMMITTED) => {
                    return Err(Trouble::crash_point().into());
                }
                Ok(()) => return Ok(done),
                Err(error) => refused_commit(&error),
            },
            Err(failure) => failure,
        };
        // When the connection is gone the server rolls back by itself.
        let _ = client.batch_execute("ROLLBACK").await;
        Err(failure)
    }
}

async fn apply_fed(
    executor: &mut Executor<'_>,
    reader: &mut ChangeReader<'_>,
    unit: &Unit,
) -> Result<(), Failure> {
    while let Some(change) = reader
        .next_change()
        .map_err(|error| unreadable(unit, &error))?
    {
        executor
            .apply_message(&change.message, change.relations)
            .await
            .map_err(Failure::Change)?;
    }
    Ok(())
}

/// Deferred constraints speak up at COMMIT: those are about a row.
fn refused_commit(error: &tokio_postgres::Error) -> Failure {
    let fault = fault(error);
    match disposition::of_commit(&fault) {
        Disposition::Quarantine | Disposition::HaltAndProbe | Disposition::Stop => {
            match fault.class {
                ErrorClass::DataFault | ErrorClass::Configuration => {
                    Failure::Change(ApplyError::of_commit(error))
                }
                ErrorClass::Passing
                | ErrorClass::Suspicious
                | ErrorClass::TargetCannotWrite
                | ErrorClass::NotMyPredecessor
                | ErrorClass::Unknown => Trouble::from(fault).into(),
            }
        }
        Disposition::AskLedger => Trouble::passing(format!(
            "the answer of a commit was lost, the ledger will tell: {}",
            fault.message
        ))
        .into(),
        Disposition::Retry
        | Disposition::RetryNamed
        | Disposition::Probe
        | Disposition::Operator => Trouble::from(fault).into(),
    }
}

fn unreadable(unit: &Unit, error: &trellara_pgoutput::Error) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!("transaction {} cannot be read: {error}", unit.identity),
        "nothing of it was applied; look at it with trellara inspect",
    )
}

impl Failure {
    /// What is done about it, where that is not decided yet.
    pub(crate) fn disposition(&self) -> Option<Disposition> {
        match self {
            Failure::Change(error) => Some(disposition::of_change(error.kind, &error.sqlstate)),
            // The ledger's row and COMMIT want locks too.
            Failure::Trouble(Trouble::Passing(_)) => Some(Disposition::Retry),
            Failure::Trouble(Trouble::Disturbed { .. }) => Some(Disposition::RetryNamed),
            Failure::Trouble(Trouble::Halted { .. } | Trouble::Cancelled) => None,
        }
    }

    pub(crate) fn blames_a_transaction(&self) -> bool {
        self.disposition()
            .is_some_and(disposition::blames_a_transaction)
    }

    /// Which of the transactions given it names, from 0.
    pub(crate) fn transaction(&self) -> Option<usize> {
        match self {
            Failure::Change(error) => usize::try_from(error.transaction).ok()?.checked_sub(1),
            Failure::Trouble(_) => None,
        }
    }
}

/// A failure with the transaction that it is about.
pub(crate) fn blame(failure: Failure, transaction: &dyn std::fmt::Display) -> Trouble {
    match failure {
        Failure::Trouble(trouble) => trouble,
        Failure::Change(error) => trouble::of_apply(&error, &transaction.to_string()),
    }
}
