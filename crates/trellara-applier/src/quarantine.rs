//! Transactions that were set aside instead of applied: kept whole in the target, with what an
//! operator needs to look at them, replay them or discard them.
//!
//! Nothing is taken away here. A transaction leaves quarantine by being closed, in the target
//! transaction that applied it or that an operator's word discarded it in (C42).

use std::borrow::Cow;
use std::fmt;

use trellara_envelope::{
    FrameDigest, Incarnation, LedgerOrdinal, Lsn, StreamSequence, TransactionHash,
    TransactionIdentity,
};

use crate::checkpoint::Checkpoint;

pub mod audit;
pub mod desk;
mod discard;
pub mod effects;
pub mod footprint;
pub(crate) mod frames;
pub(crate) mod hold;
pub mod keys;
pub mod limits;
pub(crate) mod order;
pub mod rehearsal;
pub(crate) mod replay;
pub mod request;
pub mod skipped;
pub mod store;
pub mod text;
pub mod view;

/// Number of a held transaction on its target; of one lane they grow in commit order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeldId(pub i64);

impl fmt::Display for HeldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a transaction is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// The lane stands in front of it.
    Blocking,
    /// It was refused for cause, and the lane has moved past it.
    Poisoned,
    /// It touches what an earlier one touches, and waits behind it.
    Dependent,
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// It waits.
    Held,
    /// A replay of it was begun.
    Replaying,
    /// It was applied.
    Replayed,
    /// An operator decided that it is not to be applied; it may still be replayed.
    Discarded,
}

/// Where its frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldStorage {
    /// In the stream alone; the checkpoint in front of it keeps them there (C47).
    Stream,
    /// In the target.
    Target,
}

/// A word of a column with a CHECK; words that this build does not know are an error of the schema.
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// The word in the table.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }

            /// What a word of the table means.
            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

words!(ConflictRule { Error = "error", Skip = "skip", Overwrite = "overwrite" });
words!(HeldReason { Blocking = "blocking", Poisoned = "poisoned", Dependent = "dependent" });
words!(HeldState {
    Held = "held",
    Replaying = "replaying",
    Replayed = "replayed",
    Discarded = "discarded",
});
words!(HeldStorage { Stream = "stream", Target = "target" });

impl HeldState {
    /// Whether it is still to be applied.
    pub fn is_open(self) -> bool {
        match self {
            HeldState::Held | HeldState::Replaying => true,
            HeldState::Replayed | HeldState::Discarded => false,
        }
    }
}

/// Why the target refused it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Cause {
    /// Five characters; empty when we refused by ourselves.
    pub sqlstate: String,
    /// What happened, without values of rows.
    pub message: String,
    /// PostgreSQL's DETAIL. It may hold values: kept here, never logged.
    pub detail: String,
    /// What to check or to run.
    pub hint: String,
    /// Schema of the table.
    pub schema: String,
    /// The table; empty when none is concerned.
    pub table: String,
    /// The constraint or column that the server named.
    pub object: String,
    /// Which surviving change failed, from 1; 0 when it is not known.
    pub change: u64,
}

/// Whoever logs a held transaction logs no values of rows.
impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = if self.detail.is_empty() {
            "none"
        } else {
            "(hidden)"
        };
        f.debug_struct("Cause")
            .field("sqlstate", &self.sqlstate)
            .field("message", &self.message)
            .field("detail", &format_args!("{detail}"))
            .field("hint", &self.hint)
            .field("schema", &self.schema)
            .field("table", &self.table)
            .field("object", &self.object)
            .field("change", &self.change)
            .finish()
    }
}

impl Cause {
    /// Whether it was never tried.
    pub fn is_empty(&self) -> bool {
        self.message.is_empty() && self.sqlstate.is_empty()
    }

    /// The same as the target can store it.
    ///
    /// # Errors
    /// When the server refuses.
    pub(crate) async fn storable(
        &self,
        client: &tokio_postgres::Client,
    ) -> Result<Self, tokio_postgres::Error> {
        let texts = [
            &*self.message,
            &*self.detail,
            &*self.hint,
            &*self.schema,
            &*self.table,
            &*self.object,
        ];
        let texts = text::storable(client, texts).await?;
        let [message, detail, hint, schema, table, object] = texts.map(Cow::into_owned);
        Ok(Self {
            sqlstate: self.sqlstate.clone(),
            message,
            detail,
            hint,
            schema,
            table,
            object,
            change: self.change,
        })
    }
}

/// A held transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub id: HeldId,
    /// Which transaction.
    pub identity: TransactionIdentity,
    /// The identity as the ledger knows it.
    pub hash: TransactionHash,
    /// Its end LSN.
    pub end_lsn: Lsn,
    /// Why it is held.
    pub reason: HeldReason,
    /// What has become of it.
    pub state: HeldState,
    /// Where its frames are.
    pub storage: HeldStorage,
    /// Whether it came in chunks that a manifest closed.
    pub chunked: bool,
    /// Sequence of the frame that holds it, or of its manifest.
    pub sequence: StreamSequence,
    /// The writer of that frame.
    pub incarnation: Incarnation,
    /// That frame's digest.
    pub digest: FrameDigest,
    /// The newest ordinal of the ledger when it was refused the last time. As long as the lane
    /// stands there, a blocking one is the next.
    pub before: LedgerOrdinal,
    /// Where the lane stands behind it; its ordinal is not counted.
    pub after: Checkpoint,
    /// Frames in the target.
    pub frames: u64,
    /// Bytes of them, or of its records where they are in the stream.
    pub bytes: u64,
    /// Surviving changes.
    pub changes: u64,
    /// Entries of its footprint.
    pub keys: u64,
    /// Why it was refused the last time.
    pub cause: Cause,
    /// How often it was tried.
    pub attempts: u64,
    /// When it was set aside: microseconds since the Unix epoch, by the target's clock.
    pub held_at_us: i64,
    /// When it was closed.
    pub closed_at_us: Option<i64>,
    /// When it was tried the last time.
    pub last_tried_at_us: Option<i64>,
    /// Why it was closed, in the words of whoever did it.
    pub closed_reason: Option<String>,
    /// The first later transaction that was applied although it touches the same (C46).
    pub overtaken: Option<Overtaker>,
}

/// A later transaction that was applied before a held one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overtaker {
    /// Its identity, as text.
    pub transaction: String,
    /// Where it ends.
    pub end_lsn: Lsn,
}

/// What to do when a transaction is refused for cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QuarantinePolicy {
    /// The lane stops in front of it: the target stays a true prefix of the source.
    #[default]
    Halt,
    /// It is set aside with everything later that touches the same; everything else goes on.
    HoldDependents,
}

/// How a flow treats what is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuarantineOptions {
    /// What to do with it.
    pub policy: QuarantinePolicy,
    /// Most that open transactions may take of the target, in bytes of their frames.
    pub max_bytes: u64,
    /// Most entries of all their footprints together.
    pub max_keys: u64,
    /// Most of them.
    pub max_transactions: u64,
    /// The lane stops when the oldest has waited for longer.
    pub max_age: Option<std::time::Duration>,
}

impl Default for QuarantineOptions {
    fn default() -> Self {
        Self {
            policy: QuarantinePolicy::default(),
            max_bytes: 10 << 30,
            max_keys: 500_000,
            max_transactions: 10_000,
            max_age: None,
        }
    }
}

/// What to do about a change that does not find the target as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConflictRule {
    /// It is an error: the transaction is refused.
    #[default]
    Error,
    /// The change is left out, recorded and counted.
    Skip,
    /// The row is made what the source says it is; recorded and counted.
    Overwrite,
}

/// The rules of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conflicts {
    /// An update or delete whose row is not there.
    pub missing_row: ConflictRule,
    /// An insert whose key is there.
    pub duplicate_key: ConflictRule,
}

/// The rules of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConflictRules {
    /// Of tables without their own.
    pub all: Conflicts,
    /// By schema and table, as the target names them.
    pub tables: std::collections::BTreeMap<(String, String), Conflicts>,
}

impl ConflictRules {
    /// The rules of one table.
    pub fn of(&self, schema: &str, table: &str) -> Conflicts {
        if self.tables.is_empty() {
            return self.all;
        }
        let key = (schema.to_owned(), table.to_owned());
        self.tables.get(&key).copied().unwrap_or(self.all)
    }

    /// Whether every conflict is an error.
    pub fn are_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_tables_means_what_it_says() {
        for state in ["held", "replaying", "replayed", "discarded"] {
            assert_eq!(HeldState::parse(state).map(HeldState::as_str), Some(state));
        }
        for reason in ["blocking", "poisoned", "dependent"] {
            assert_eq!(
                HeldReason::parse(reason).map(HeldReason::as_str),
                Some(reason)
            );
        }
        for storage in ["stream", "target"] {
            assert_eq!(
                HeldStorage::parse(storage).map(HeldStorage::as_str),
                Some(storage)
            );
        }
        assert_eq!(HeldState::parse("gone"), None);
    }

    #[test]
    fn a_cause_that_is_logged_shows_no_values() {
        let cause = Cause {
            message: "refused".to_owned(),
            detail: "Key (card)=(4000-1234) already exists.".to_owned(),
            ..Cause::default()
        };
        let shown = format!("{cause:?}");
        assert!(shown.contains("refused") && shown.contains("(hidden)"));
        assert!(!shown.contains("4000"), "{shown}");
    }

    #[test]
    fn a_table_without_rules_of_its_own_has_the_flows() {
        let skip = Conflicts {
            missing_row: ConflictRule::Skip,
            duplicate_key: ConflictRule::Error,
        };
        let rules = ConflictRules {
            all: Conflicts::default(),
            tables: [(("s".to_owned(), "t".to_owned()), skip)].into(),
        };
        assert_eq!(rules.of("s", "t"), skip);
        assert_eq!(rules.of("s", "u"), Conflicts::default());
    }
}
