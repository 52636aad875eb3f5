//! Carries changes into the target, inside a target transaction that the caller opened.
//!
//! Statements are pipelined, and every count of touched rows is compared with what it must be
//! (A6). This module never begins, commits or rolls back: the caller sends COMMIT only after
//! [`Executor::flush`] has returned `Ok`, and rolls back after any error (C31).

mod error;

use tokio_postgres::Client;
use trellara_pgoutput::{Message, RelationMap};

pub use self::error::{ApplyError, ApplyErrorKind};
use crate::target::Catalog;

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
        Self { role_replica: true, set_wise: true }
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

/// Applies changes in one open target transaction.
pub struct Executor<'c> {
    client: &'c Client,
    catalog: &'c mut Catalog,
    options: ExecutorOptions,
    applied: Applied,
}

impl<'c> Executor<'c> {
    /// An executor for the target transaction that is open on `client`. The catalogue belongs to
    /// that session and outlives the transaction.
    pub fn new(client: &'c Client, catalog: &'c mut Catalog, options: ExecutorOptions) -> Self {
        Self { client, catalog, options, applied: Applied::default() }
    }

    /// Says that the changes from here on belong to the next source transaction; errors count
    /// changes within theirs. Not needed before the first.
    pub fn next_transaction(&mut self) {}

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
        std::future::ready((message, relations, self.client, &self.catalog, self.options)).await;
        Err(ApplyError::new(ApplyErrorKind::Unknown, "not available yet"))
    }

    /// Sends what was gathered and waits until every change has been counted; for the end of a
    /// piece of a long transaction. Checks of the whole transaction are left to
    /// [`Executor::flush`].
    ///
    /// # Errors
    /// As [`Executor::apply_message`].
    pub async fn drain(&mut self) -> Result<(), ApplyError> {
        std::future::ready(()).await;
        Err(ApplyError::new(ApplyErrorKind::Unknown, "not available yet"))
    }

    /// Ends the work: sends what was gathered, waits until every change has been counted, and
    /// checks the constraints that the replica role leaves unchecked (C37). COMMIT may be sent
    /// only after this returned `Ok`.
    ///
    /// # Errors
    /// As [`Executor::apply_message`].
    pub async fn flush(&mut self) -> Result<Applied, ApplyError> {
        self.drain().await?;
        Ok(self.applied)
    }
}
