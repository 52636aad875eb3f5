//! Why both sides could not be frozen, shaped by what the caller can do about it.

use std::time::Duration;

use trellara_envelope::{Lane, Lsn};
use trellara_postgres::{ConnectError, Fault, QueryError, fault};

use crate::error::Side;

/// Turns a failed statement on one side into an error.
pub(super) fn failed(side: Side) -> impl Fn(tokio_postgres::Error) -> FreezeError {
    move |error| FreezeError::Server {
        side,
        fault: Box::new(fault(&error)),
    }
}

/// Both sides could not be frozen: nothing is known about the rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// No session could be had.
    #[error("the {side}: {error}")]
    Connect {
        /// Where.
        side: Side,
        /// Why.
        error: Box<ConnectError>,
    },
    /// A statement failed, or the connection was lost.
    #[error("the {side}: {} ({})", fault.message, fault.sqlstate)]
    Server {
        /// Where.
        side: Side,
        /// What the server said.
        fault: Box<Fault>,
    },
    /// The connection ended in the middle of the run.
    #[error("the {side}: the connection was lost")]
    ConnectionLost {
        /// Where.
        side: Side,
    },
    /// The flow is not set up in this target.
    #[error("the flow is not set up in this target")]
    NotSetUp,
    /// Another judge holds the applier.
    #[error("another verify of this flow is at its fence")]
    Busy,
    /// The applier did not answer.
    #[error("the applier of lane {lane} did not answer within {waited:?}")]
    NotArmed {
        /// Its lane.
        lane: Lane,
        /// How long was waited.
        waited: Duration,
    },
    /// The applier did not come to the consistent point.
    #[error("the applier of lane {lane} did not come to the source's position within {waited:?}: it stands at {}", position(*at))]
    NotReached {
        /// Its lane.
        lane: Lane,
        /// Where it stands.
        at: Option<Lsn>,
        /// How long was waited.
        waited: Duration,
    },
    /// The slot waits for transactions that are open on the source.
    #[error("the temporary slot was not made within {waited:?}: it waits for {}", blockers.join("; "))]
    SlotBlocked {
        /// How long was waited.
        waited: Duration,
        /// Those transactions: pid, state, age.
        blockers: Vec<String>,
    },
    /// Transactions were still committing on the source.
    #[error("the source's snapshot cannot be read yet: {reason}")]
    NotSettled {
        /// Which.
        reason: String,
    },
    /// The lease ended before both sides were frozen, and the applier has gone on.
    #[error("the applier went on before both sides were frozen")]
    Lost,
    /// The target's snapshot does not stand at the consistent point.
    #[error("the target's snapshot of lane {lane} stands at {}, not at {wanted}", position(*found))]
    Elsewhere {
        /// The lane.
        lane: Lane,
        /// Where it stands.
        found: Option<Lsn>,
        /// The consistent point.
        wanted: Lsn,
    },
    /// The target was filled from another cluster or timeline than the source that was asked.
    #[error("the target holds another source's transactions: {reason}")]
    OtherSource {
        /// Which.
        reason: String,
    },
    /// The flow does not carry what would be compared.
    #[error("{reason}")]
    Untied {
        /// Why.
        reason: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A step took too long, and the applier was let go on.
    #[error("a step to the frozen views took longer than {limit:?}, and the applier was let go on")]
    Slow {
        /// What it may take.
        limit: Duration,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// Our own mistake.
    #[error("an error in Trellara: {0}")]
    Bug(String),
}

fn position(lsn: Option<Lsn>) -> String {
    lsn.map_or_else(|| "no position".to_owned(), |lsn| lsn.to_string())
}

impl FreezeError {
    pub(super) fn bug(what: impl Into<String>) -> Self {
        FreezeError::Bug(what.into())
    }

    pub(super) fn connection_lost(side: Side) -> Self {
        FreezeError::ConnectionLost { side }
    }

    pub(super) fn connect(side: Side) -> impl Fn(ConnectError) -> Self {
        move |error| FreezeError::Connect {
            side,
            error: Box::new(error),
        }
    }

    pub(super) fn replication(error: QueryError) -> Self {
        let side = Side::Source;
        match error {
            QueryError::Server(fault) => FreezeError::Server { side, fault },
            QueryError::Connection(_) => FreezeError::ConnectionLost { side },
            QueryError::Protocol(what) => FreezeError::Bug(what),
        }
    }

    /// Whether the whole way to the frozen views is worth another try at once.
    pub(super) fn is_worth_another_try(&self) -> bool {
        match self {
            FreezeError::Lost | FreezeError::SlotBlocked { .. } | FreezeError::Elsewhere { .. } => {
                true
            }
            FreezeError::Connect { .. }
            | FreezeError::Server { .. }
            | FreezeError::ConnectionLost { .. }
            | FreezeError::NotSetUp
            | FreezeError::Busy
            | FreezeError::NotArmed { .. }
            | FreezeError::NotReached { .. }
            | FreezeError::NotSettled { .. }
            | FreezeError::OtherSource { .. }
            | FreezeError::Untied { .. }
            | FreezeError::Slow { .. }
            | FreezeError::Cancelled
            | FreezeError::Bug(_) => false,
        }
    }

    /// What to do about it; empty where the text says it.
    pub fn hint(&self) -> &str {
        match self {
            FreezeError::Connect { error, .. } => &error.hint,
            FreezeError::Server { fault, .. } => match fault.sqlstate.as_str() {
                "42501" => "grant the role of the URL what config/postgres gives it",
                "42P01" => "run trellara setup with this version",
                "55P03" | "57014" => {
                    "somebody holds a lock on Trellara's tables, or the server is too busy; run it \
                     again when that is over"
                }
                "53300" | "53400" => {
                    "raise max_replication_slots, max_wal_senders or max_connections"
                }
                _ => "",
            },
            FreezeError::NotSetUp => "run trellara setup",
            FreezeError::Busy => "wait for it; a dead one is forgotten after five seconds",
            FreezeError::NotArmed { .. } => {
                "is an applier of this flow running, and of this version? trellara status shows it"
            }
            FreezeError::NotReached { .. } => {
                "is a relay running, and what does the flow lag? trellara status shows it; --timeout waits longer"
            }
            FreezeError::SlotBlocked { .. } => {
                "let these transactions end, or end them, and run it again"
            }
            FreezeError::NotSettled { .. } => "run it again",
            FreezeError::Untied { hint, .. } => hint,
            FreezeError::Slow { .. } => "see what keeps the servers busy, and run it again",
            FreezeError::Lost | FreezeError::Elsewhere { .. } => {
                "this machine or the servers were too slow for the lease; run it again"
            }
            FreezeError::ConnectionLost { .. } => "run it again when the server is back",
            FreezeError::OtherSource { .. } => "check source.url and target.url",
            FreezeError::Cancelled | FreezeError::Bug(_) => "",
        }
    }
}
