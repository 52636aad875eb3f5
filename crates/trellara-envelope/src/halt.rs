//! Why a flow stops: stable codes, the same in logs, metrics, `status` and the runbook.

use std::fmt;

/// A stable halt code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HaltCode {
    /// The slot exists but the stream does not, or holds no genesis frame.
    NoStream,
    /// The slot is gone, lost or invalidated although the stream has a position.
    SlotLost,
    /// The source is another cluster.
    DifferentSource,
    /// The server is an old primary that came back.
    StalePrimary,
    /// The source's timeline left ours below our position, or a known position holds another
    /// transaction.
    Diverged,
    /// The source was set back on the same timeline.
    SourceRewound,
    /// The stream lost frames that had been acknowledged to the slot.
    StreamLostTail,
    /// The stream was replaced or re-created.
    StreamReplaced,
    /// Publication, slot, stream or file do not fit each other.
    Config,
    /// Another, newer relay or applier took over.
    Fenced,
    /// One transaction is larger than the stream may become.
    StreamTooSmall,
    /// A frame is missing in the stream itself.
    Gap,
    /// Two frames claim the same place in the flow.
    Fork,
    /// Checkpoint or ledger were edited.
    State,
    /// Bytes do not match their digest.
    Corrupt,
    /// The target's tables do not fit the source's.
    Schema,
    /// A right is missing.
    Rights,
    /// The target refused a transaction for cause.
    ApplyFailed,
    /// The broker is too old or its settings can lose data.
    Broker,
}

impl HaltCode {
    /// All codes.
    pub const ALL: [HaltCode; 19] = [
        HaltCode::NoStream,
        HaltCode::SlotLost,
        HaltCode::DifferentSource,
        HaltCode::StalePrimary,
        HaltCode::Diverged,
        HaltCode::SourceRewound,
        HaltCode::StreamLostTail,
        HaltCode::StreamReplaced,
        HaltCode::Config,
        HaltCode::Fenced,
        HaltCode::StreamTooSmall,
        HaltCode::Gap,
        HaltCode::Fork,
        HaltCode::State,
        HaltCode::Corrupt,
        HaltCode::Schema,
        HaltCode::Rights,
        HaltCode::ApplyFailed,
        HaltCode::Broker,
    ];

    /// The code as printed everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            HaltCode::NoStream => "NO_STREAM",
            HaltCode::SlotLost => "SLOT_LOST",
            HaltCode::DifferentSource => "DIFFERENT_SOURCE",
            HaltCode::StalePrimary => "STALE_PRIMARY",
            HaltCode::Diverged => "DIVERGED",
            HaltCode::SourceRewound => "SOURCE_REWOUND",
            HaltCode::StreamLostTail => "STREAM_LOST_TAIL",
            HaltCode::StreamReplaced => "STREAM_REPLACED",
            HaltCode::Config => "CONFIG",
            HaltCode::Fenced => "FENCED",
            HaltCode::StreamTooSmall => "STREAM_TOO_SMALL",
            HaltCode::Gap => "GAP",
            HaltCode::Fork => "FORK",
            HaltCode::State => "STATE",
            HaltCode::Corrupt => "CORRUPT",
            HaltCode::Schema => "SCHEMA",
            HaltCode::Rights => "RIGHTS",
            HaltCode::ApplyFailed => "APPLY_FAILED",
            HaltCode::Broker => "BROKER",
        }
    }

    /// The process exit code that belongs to it (10 gap, divergence or corruption; 11 schema or
    /// configuration of a server; 12 quarantine; 13 another instance is active; 77 rights).
    pub fn exit_code(self) -> u8 {
        match self {
            HaltCode::NoStream
            | HaltCode::SlotLost
            | HaltCode::DifferentSource
            | HaltCode::StalePrimary
            | HaltCode::Diverged
            | HaltCode::SourceRewound
            | HaltCode::StreamLostTail
            | HaltCode::StreamReplaced
            | HaltCode::Gap
            | HaltCode::Fork
            | HaltCode::State
            | HaltCode::Corrupt => 10,
            HaltCode::Config | HaltCode::StreamTooSmall | HaltCode::Schema | HaltCode::Broker => 11,
            HaltCode::ApplyFailed => 12,
            HaltCode::Fenced => 13,
            HaltCode::Rights => 77,
        }
    }
}

impl fmt::Display for HaltCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A stop that only an operator, or a change outside, can end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct Halt {
    /// The stable code.
    pub code: HaltCode,
    /// What was found, with positions and names but never with row values.
    pub reason: String,
    /// What to check or do next.
    pub hint: String,
}

impl Halt {
    /// A halt with its reason and its cure.
    pub fn new(code: HaltCode, reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            hint: hint.into(),
        }
    }
}
