//! Small numbers that must not be mistaken for one another, and the identities built from them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Lsn, SourceId, TransactionHash};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A 32-bit transaction id as pgoutput sends it.
    Xid(u32)
);
number!(
    /// A PostgreSQL object id.
    Oid(u32)
);
number!(
    /// A lane of a flow; strict mode has lane 0 alone.
    Lane(u32)
);
number!(
    /// One successful START_REPLICATION; grows by one each time (C07).
    Incarnation(u64)
);
number!(
    /// The number of a frame in its flow: +1 with every frame of any kind, whatever sequence
    /// JetStream gives it; genesis is 0.
    FrameOrdinal(u64)
);
number!(
    /// A JetStream stream sequence; the first message of a stream has 1.
    StreamSequence(u64)
);
number!(
    /// A number in the target's ledger: +1 for every identity applied, and for every row without
    /// identities.
    LedgerOrdinal(i64)
);
number!(
    /// Raised by every applier that takes a lane; an older one can commit nothing more.
    LaneEpoch(i64)
);
number!(
    /// A commit timestamp in microseconds since 2000-01-01 00:00 UTC, PostgreSQL's epoch.
    CommitTime(i64)
);

macro_rules! successor {
    ($($name:ident)*) => {
        $(impl $name {
            /// The one that follows.
            ///
            /// # Panics
            /// When there is none: 64 bits outlast every flow.
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("64 bits outlast every flow"))
            }
        })*
    };
}

successor!(Incarnation FrameOrdinal StreamSequence LedgerOrdinal LaneEpoch);

impl CommitTime {
    /// Microseconds between the Unix epoch and PostgreSQL's.
    pub const UNIX_OFFSET_US: i64 = 946_684_800_000_000;

    /// The moment this many microseconds after the Unix epoch.
    pub fn from_unix_us(unix_us: i64) -> Self {
        Self(unix_us.saturating_sub(Self::UNIX_OFFSET_US))
    }

    /// Microseconds since the Unix epoch.
    pub fn unix_us(self) -> i64 {
        self.0.saturating_add(Self::UNIX_OFFSET_US)
    }
}

/// What makes a source transaction the same one wherever it is met (C01, C02): printed
/// `{source_id}:{commit_lsn}:{xid}:{commit_time}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionIdentity {
    /// Cluster, and the timeline on which the commit record was written.
    pub source: SourceId,
    /// Start of the commit record.
    pub commit_lsn: Lsn,
    /// Transaction id.
    pub xid: Xid,
    /// Commit timestamp; tells two histories of a restored storage snapshot apart.
    pub commit_time: CommitTime,
}

impl TransactionIdentity {
    /// The 128-bit dedup identity: xxh3 with seed 0 over the printed form.
    pub fn hash(&self) -> TransactionHash {
        TransactionHash::of(self.to_string().as_bytes())
    }

    /// The key of this transaction's `total_order`th surviving change, counted from 1.
    pub fn record_key(&self, total_order: u64) -> RecordKey {
        RecordKey {
            source: self.source,
            commit_lsn: self.commit_lsn,
            xid: self.xid,
            total_order,
        }
    }
}

impl fmt::Display for TransactionIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            commit_lsn,
            xid,
            commit_time,
        } = self;
        write!(f, "{source}:{commit_lsn}:{xid}:{commit_time}")
    }
}

/// The name of one change, for inspection only; apply never deduplicates on it. Printed
/// `{source_id}:{commit_lsn}:{xid}:{total_order}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// Cluster and timeline.
    pub source: SourceId,
    /// Start of the commit record.
    pub commit_lsn: Lsn,
    /// Transaction id.
    pub xid: Xid,
    /// Place among the surviving changes of the transaction in commit order, from 1.
    pub total_order: u64,
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            commit_lsn,
            xid,
            total_order,
        } = self;
        write!(f, "{source}:{commit_lsn}:{xid}:{total_order}")
    }
}
