//! Carries changes into the target, inside a target transaction that the caller opened.
//!
//! Statements are pipelined, and every count of touched rows is compared with what it must be
//! (A6). This module never begins, commits or rolls back: the caller sends COMMIT only after
//! [`Executor::flush`] has returned `Ok`, and rolls back after any error (C31).

mod conflict;
pub(crate) mod deferred;
mod error;
mod pipeline;
mod statements;

use std::sync::Arc;

use tokio_postgres::Client;
use trellara_envelope::Oid;
use trellara_pgoutput::{Message, Relation, RelationMap};

pub use self::conflict::{Conflict, Skipped};
pub(crate) use self::error::Place;
pub use self::error::{ApplyError, ApplyErrorDetails, ApplyErrorKind};
use self::pipeline::Pipeline;
pub(crate) use self::statements::Statements;
use crate::backfill::sieve::{Sieve, Waits};
use crate::plan::{Change, Emptying, Identity, Planner, owned_sequences};
use crate::quarantine::ConflictRules;
use crate::target::{Catalog, TargetTable};

/// Settings an apply session needs, beyond [`trellara_postgres::SESSION_SETTINGS`]; to be given
/// in the startup packet or with SET before the first change. The planner ones keep set-based
/// statements on index lookups (their generic plan is otherwise a sequential scan that stays when
/// the table grows); the ledger probe wants the opposite, so give it its own.
pub const APPLY_SETTINGS: &[(&str, &str)] = &[
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
    ("max_parallel_workers_per_gather", "0"),
    ("xmloption", "content"),
    // A name in our statements never finds anything but the system's.
    ("search_path", "pg_catalog"),
    // Row-level security raises an error instead of hiding rows.
    ("row_security", "off"),
    ("lc_monetary", "C"),
];

/// How an [`Executor`] works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Whether `session_replication_role` is `replica` in this session. Without it foreign keys
    /// and triggers act, so the order across tables is kept.
    pub role_replica: bool,
    /// Whether runs of like changes may go as one statement. Off for the repetition that finds the
    /// failing change (C36).
    pub set_wise: bool,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        Self {
            role_replica: true,
            set_wise: true,
        }
    }
}

/// What an [`Executor`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Changes taken: inserted, updated and deleted rows, and TRUNCATE messages.
    pub changes: u64,
    /// Statements sent for them.
    pub statements: u64,
}

/// Applies changes in one open target transaction, which must have no savepoints.
///
/// An error of a change may be answered only when later ones, or [`Executor::flush`], are asked
/// for; after the first one everything else fails with it.
pub struct Executor<'c> {
    client: &'c Client,
    catalog: &'c mut Catalog,
    planner: Planner,
    pipeline: Pipeline<'c>,
    changes: u64,
    /// `None` where every conflict is an error.
    rules: Option<&'c ConflictRules>,
    skipped: Vec<Skipped>,
    /// `None` where no copy has anything to say about the transaction.
    sieve: Option<Sieve>,
    prologue: Prologue,
    /// Whether everything is rolled back in the end.
    rehearses: bool,
    failed: Option<ApplyError>,
}

/// Whether what must come before the first change was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prologue {
    Due,
    Done,
}

impl<'c> Executor<'c> {
    /// An executor for the target transaction that is open on `client`. The catalogue belongs to
    /// that session and outlives the transaction.
    pub fn new(client: &'c Client, catalog: &'c mut Catalog, options: ExecutorOptions) -> Self {
        Self {
            client,
            catalog,
            planner: Planner::new(options.role_replica, options.set_wise),
            pipeline: Pipeline::new(client),
            changes: 0,
            rules: None,
            skipped: Vec::new(),
            sieve: None,
            prologue: if options.role_replica {
                Prologue::Done
            } else {
                Prologue::Due
            },
            rehearses: false,
            failed: None,
        }
    }

    /// Everything will be rolled back: what a rollback does not undo is left out.
    #[must_use]
    pub fn rehearsing(mut self) -> Self {
        self.rehearses = true;
        self
    }

    /// Gives it the flow's conflict rules. They act only where changes go one by one, without
    /// [`ExecutorOptions::set_wise`]: that a change is in conflict is a verdict like any other (C36).
    #[must_use]
    pub fn with_conflicts(mut self, rules: &'c ConflictRules) -> Self {
        self.rules = (!self.planner.is_set_wise() && !rules.are_default()).then_some(rules);
        self
    }

    /// What rules did since the last time; to be recorded in the same target transaction. Of a long
    /// transaction it is taken piece by piece, so that it does not gather here. Where there is
    /// something to record, everything sent before is answered first: what fails there is the
    /// verdict, and no echo of it.
    ///
    /// # Errors
    /// As [`Executor::apply_message`].
    pub async fn take_skipped(&mut self) -> Result<Vec<Skipped>, ApplyError> {
        if !self.skipped.is_empty() {
            self.drain().await?;
        }
        Ok(std::mem::take(&mut self.skipped))
    }

    /// Says that the changes from here on belong to the next source transaction; errors count
    /// changes within theirs. Not needed before the first.
    pub fn next_transaction(&mut self) {
        self.planner.next_transaction();
    }

    /// Leaves out of the transaction that comes what a copy has already.
    pub(crate) fn sift(&mut self, sieve: Option<Sieve>) {
        self.sieve = sieve;
    }

    /// Whether anything of a message is not left out.
    pub(crate) fn keeps(&mut self, message: &Message<'_>, relations: &RelationMap) -> bool {
        let sieve = self.sieve.as_mut();
        sieve.is_none_or(|sieve| sieve.keeps_any(message, relations).unwrap_or(true))
    }

    /// Takes one surviving message. Changes are sent at once or gathered with others like them;
    /// messages that change no row do nothing.
    ///
    /// # Errors
    /// Of this change or of any earlier one. The target transaction must be rolled back and this
    /// executor dropped.
    pub async fn apply_message(
        &mut self,
        message: &Message<'_>,
        relations: &RelationMap,
    ) -> Result<(), ApplyError> {
        self.not_failed()?;
        let taken = self.take(message, relations).await;
        self.settle(taken).await
    }

    /// Sends what was gathered and waits until every change has been counted; for the end of a
    /// piece of a long transaction. Checks of the whole transaction are left to
    /// [`Executor::flush`].
    ///
    /// # Errors
    /// As [`Executor::apply_message`].
    pub async fn drain(&mut self) -> Result<(), ApplyError> {
        self.not_failed()?;
        let drained = self.send_all().await;
        self.settle(drained).await
    }

    /// Ends the work: sends what was gathered, waits until every change has been counted, and
    /// checks the constraints that the replica role leaves unchecked (C37). COMMIT may be sent
    /// only after this returned `Ok`.
    ///
    /// # Errors
    /// As [`Executor::apply_message`].
    pub async fn flush(&mut self) -> Result<Applied, ApplyError> {
        self.drain().await?;
        let checked = self.check_deferred().await;
        self.settle(checked).await?;
        Ok(Applied {
            changes: self.changes,
            statements: self.pipeline.sent(),
        })
    }

    async fn take(
        &mut self,
        message: &Message<'_>,
        relations: &RelationMap,
    ) -> Result<(), ApplyError> {
        if let Some(sieve) = &mut self.sieve
            && !sieve.keeps_any(message, relations).map_err(not_in)?
        {
            // Errors count the transaction's changes, whoever brought them.
            self.planner.count();
            return Ok(());
        }
        match message {
            Message::Insert { relation, new, .. } => {
                self.change(*relation, relations, Change::Insert { new: *new })
                    .await
            }
            Message::Update {
                relation, old, new, ..
            } => {
                self.change(
                    *relation,
                    relations,
                    Change::Update {
                        old: *old,
                        new: *new,
                    },
                )
                .await
            }
            Message::Delete { relation, old, .. } => {
                self.change(*relation, relations, Change::Delete { old: *old })
                    .await
            }
            Message::Truncate {
                relations: oids,
                options,
                ..
            } => {
                self.truncate(*oids, relations, options.restart_identity)
                    .await
            }
            Message::Begin { .. }
            | Message::Commit { .. }
            | Message::Origin { .. }
            | Message::Relation(_)
            | Message::Type(_)
            | Message::Logical(_)
            | Message::StreamStart { .. }
            | Message::StreamStop
            | Message::StreamCommit { .. }
            | Message::StreamAbort { .. } => Ok(()),
        }
    }

    async fn change(
        &mut self,
        relation: Oid,
        relations: &RelationMap,
        change: Change<'_>,
    ) -> Result<(), ApplyError> {
        self.changes += 1;
        let place = self.planner.count();
        let mapping = async {
            let relation = described(relation, relations)?;
            let mapping = self.catalog.mapping(self.client, relation, relations);
            mapping.await
        };
        let mapping = self
            .pipeline
            .beside(mapping)
            .await
            .map_err(|error| error.at(place, 1))?;
        if let Some(conflicts) = self.rules_of(&mapping.table) {
            // Boxed: the path that everybody takes stays small.
            let applied = Box::pin(self.apply_ruled(&mapping, &change, conflicts)).await;
            let table = &mapping.table;
            return applied.map_err(|error| error.on(&table.schema, &table.name).at(place, 1));
        }
        let large = self.planner.change(&mapping, &change);
        let large = large.map_err(|error| error.at(place, 1))?;
        self.send_ready().await?;
        match large {
            Some(step) => {
                self.send_prologue().await?;
                self.pipeline
                    .run_alone(&mut self.catalog.statements, step)
                    .await
            }
            None => Ok(()),
        }
    }

    async fn truncate(
        &mut self,
        oids: trellara_pgoutput::Oids<'_>,
        relations: &RelationMap,
        restart_identity: bool,
    ) -> Result<(), ApplyError> {
        self.changes += 1;
        let place = self.planner.count();
        let mut tables = Vec::new();
        let mut emptying = Emptying::Truncate;
        for oid in oids {
            if let Some(sieve) = &mut self.sieve
                && !sieve.keeps(oid, relations).map_err(not_in)?
            {
                if self.planner.is_role_replica() {
                    emptying = Emptying::Delete;
                }
                continue;
            }
            let table = async {
                let relation = described(oid, relations)?;
                self.catalog
                    .existing(self.client, relation, relations)
                    .await
            };
            let table = self.pipeline.beside(table).await;
            tables.push(table.map_err(|error| error.at(place, 1))?);
        }
        let identity = if restart_identity {
            let restart = restart(self.client, &tables);
            self.pipeline
                .beside(restart)
                .await
                .map_err(|error| error.at(place, 1))?
        } else {
            Identity::Continue
        };
        let identity = match (identity, emptying) {
            (Identity::Restart, Emptying::Delete) => Identity::SetBack,
            (identity, Emptying::Delete | Emptying::Truncate) => identity,
        };
        let identity = match identity {
            Identity::SetBack if self.rehearses => Identity::Continue,
            Identity::SetBack | Identity::Restart | Identity::Continue => identity,
        };
        let deferrable = deferred::constraints(self.client, &tables);
        let deferrable = self
            .pipeline
            .beside(deferrable)
            .await
            .map_err(|error| error.at(place, 1))?;
        self.planner
            .truncate(&tables, (emptying, identity), &deferrable);
        self.send_ready().await
    }

    async fn send_all(&mut self) -> Result<(), ApplyError> {
        self.planner.emit_all();
        self.send_ready().await?;
        self.pipeline.drain().await
    }

    async fn send_ready(&mut self) -> Result<(), ApplyError> {
        let ready = self.planner.take_ready();
        if !ready.is_empty() {
            self.send_prologue().await?;
        }
        for step in ready {
            self.pipeline
                .send(&mut self.catalog.statements, step)
                .await?;
        }
        Ok(())
    }

    async fn send_prologue(&mut self) -> Result<(), ApplyError> {
        if self.prologue == Prologue::Due {
            // A statement that moves keys one by one must not stop where the source's did not.
            let deferred = self.client.batch_execute("SET CONSTRAINTS ALL DEFERRED");
            let deferred = self.pipeline.beside(deferred).await;
            deferred.map_err(|error| ApplyError::from_server(&error))?;
            self.prologue = Prologue::Done;
        }
        Ok(())
    }

    async fn check_deferred(&mut self) -> Result<(), ApplyError> {
        for touched in self.planner.touched().tables() {
            deferred::check(self.client, touched).await?;
        }
        Ok(())
    }

    fn not_failed(&self) -> Result<(), ApplyError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Keeps the first error in the order of the changes, and forgets what it may have come from.
    async fn settle(&mut self, result: Result<(), ApplyError>) -> Result<(), ApplyError> {
        let Err(error) = result else { return Ok(()) };
        let error = if self.pipeline.has_failed() {
            error
        } else {
            // What was sent before may have failed first, and be the reason for this one.
            self.pipeline.drain().await.err().unwrap_or(error)
        };
        if error.kind == ApplyErrorKind::Schema || matches!(&*error.sqlstate, "26000" | "0A000") {
            self.catalog.forget();
        }
        self.failed = Some(error.clone());
        Err(error)
    }
}

/// How this role may restart the tables' sequences: TRUNCATE wants their owner, and an applier
/// with the least rights owns nothing.
async fn restart(client: &Client, tables: &[Arc<TargetTable>]) -> Result<Identity, ApplyError> {
    let sequences = owned_sequences(tables);
    let sql = format!(
        "SELECT coalesce(pg_catalog.bool_and(pg_catalog.pg_has_role(s.relowner, 'USAGE')), true) {sequences}"
    );
    let row = client.query_one(&sql, &[]).await;
    let owner: bool = row.map_err(|error| ApplyError::from_server(&error))?.get(0);
    Ok(if owner {
        Identity::Restart
    } else {
        Identity::SetBack
    })
}

/// Whoever applies asks before: a copy that was begun anew since is met by asking again.
fn not_in(Waits(table): Waits) -> ApplyError {
    let message = "the table's copy is not in yet";
    let error = ApplyError::new(ApplyErrorKind::Passing, message);
    let error = error.on(&table.schema, &table.name);
    error.hint("trellara backfill says how far it is")
}

fn described(relation: Oid, relations: &RelationMap) -> Result<&Arc<Relation>, ApplyError> {
    relations.get(relation).ok_or_else(|| {
        let message = format!("a change of relation {relation}, which was not described before");
        ApplyError::new(ApplyErrorKind::Corrupt, message)
    })
}
