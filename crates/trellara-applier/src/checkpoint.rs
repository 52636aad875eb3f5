//! The checkpoint as a value: how far a lane is, in the source and in the stream.

use std::fmt;

use trellara_envelope::{
    FrameDigest, FrameOrdinal, Incarnation, LedgerOrdinal, Lsn, SourceId, StreamSequence,
};
use trellara_jetstream::topology::StreamFacts;

/// How far a lane is: the newest row of its ledger.
///
/// Its two halves move apart on purpose (C21): [`Checkpoint::end_lsn`] may lie inside the frame
/// that follows [`Checkpoint::transport`], when a bundle was applied in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The newest ordinal of the ledger.
    pub ordinal: LedgerOrdinal,
    /// Cluster and timeline that the position belongs to.
    pub source: SourceId,
    /// Everything that ends at or below this is applied.
    pub end_lsn: Lsn,
    /// End LSN of the last transaction applied; behind `end_lsn` when progress without
    /// transactions was written down since.
    pub transaction_end_lsn: Lsn,
    /// The last frame *wholly* applied.
    pub transport: Transport,
}

/// A frame's place in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transport {
    /// The stream it was read from.
    pub stream: StreamIdentity,
    /// Its stream sequence.
    pub sequence: StreamSequence,
    /// Its writer.
    pub incarnation: Incarnation,
    /// Its ordinal.
    pub ordinal: FrameOrdinal,
    /// Its digest.
    pub digest: FrameDigest,
}

/// A stream as one that was created once: name and creation time, as the broker prints it. The
/// time is a hint only (a restored stream keeps it); the content decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamIdentity {
    /// The stream's name.
    pub name: String,
    /// Its creation time in RFC 3339.
    pub created: String,
}

impl StreamIdentity {
    /// Whether the stream that the broker speaks of is this one, and still given to this target
    /// (C24). Sequences, and what is missing, mean nothing in another: whoever is about to take
    /// something away asks first.
    pub(crate) fn is_still(&self, facts: &StreamFacts, registration: &str) -> bool {
        facts.name == self.name
            && facts.created == self.created
            && facts.target() == Some(registration)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sequence {} of {} (frame {}, incarnation {}, digest {})",
            self.sequence, self.stream.name, self.ordinal, self.incarnation, self.digest
        )
    }
}
