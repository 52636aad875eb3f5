//! The copy of what a table held before the flow reached it: frames of the copy stream.
//!
//! They have a stream, a chain and a writer of their own, because rows that wait for their copy
//! would otherwise stand in front of it in one stream, for ever (C48). A table's copy is one
//! [`CopyEvent::Begin`], any number of parts, and one [`CopyEvent::End`] or [`CopyEvent::Failed`].
//! A part is a run of whole rows in COPY's text format: the target takes it in one transaction.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec::{self, decode_plain, encode_plain};
use crate::{DecodeError, FlowName, FrameDigest, Incarnation, LaneEpoch, Lsn, Oid, SourceId};

/// A table by the name that the publication gives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CopyTable {
    /// Schema.
    pub schema: String,
    /// Table; with partitions published under their root, the root.
    pub name: String,
}

/// A decoded frame of the copy stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFrame {
    /// What every one of them says.
    pub header: CopyHeader,
    /// What this one says.
    pub event: CopyEvent,
    /// Rows as COPY prints them; of a [`CopyEvent::Chunk`] alone.
    pub payload: Bytes,
}

/// What every frame of the copy stream says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyHeader {
    /// The flow.
    pub flow: FlowName,
    /// Cluster and timeline that is copied from.
    pub source: SourceId,
    /// Who writes: the incarnation of the relay when it began. A higher one puts an end to all
    /// copies that a lower one has not ended.
    pub writer: Incarnation,
    /// This frame's number among its writer's, from 0 without holes.
    pub ordinal: u64,
    /// Digest of the frame before; all zero in a writer's first one.
    pub previous: FrameDigest,
    /// What is copied.
    pub table: CopyTable,
    /// Which copy of it: the number in the order.
    pub generation: u32,
    /// Keyed MAC over header, event and payload; empty until a key is configured.
    pub mac: Vec<u8>,
}

/// What happens to a table's copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyEvent {
    /// It begins, and whatever was there of an earlier one is void.
    Begin(CopyBegin),
    /// A piece of a part, in the order of their numbers; parts may be mixed with one another.
    Chunk {
        /// From 0 without holes within the copy, in no order.
        part: u32,
        /// From 0 without holes within the part.
        number: u32,
    },
    /// All pieces of a part are there.
    Part {
        /// Which.
        part: u32,
        /// How many pieces.
        chunks: u32,
        /// How many rows.
        rows: u64,
        /// How many bytes.
        bytes: u64,
        /// xxh3-128 over them.
        digest: FrameDigest,
    },
    /// All parts are there.
    End {
        /// How many parts.
        parts: u32,
        /// Rows of all.
        rows: u64,
        /// Bytes of all.
        bytes: u64,
    },
    /// It cannot go on, and what came of it is void.
    Failed {
        /// Why.
        reason: String,
        /// What may be done.
        hint: String,
        /// Whether an operator is needed; otherwise it is to be begun anew.
        lasting: bool,
    },
}

/// What is to be known of a copy before its first row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyBegin {
    /// The table's oid on the source.
    pub relation: Oid,
    /// The columns that are copied, in the order of the rows' values.
    pub columns: Vec<String>,
    /// The snapshot that all of it is read under, as `pg_current_snapshot()` prints it: what it
    /// sees is in the copy, and every other transaction comes through the transaction stream.
    pub snapshot: String,
    /// Every transaction that the snapshot sees has its commit record before this position.
    pub converges_at: Lsn,
    /// Rows, as the source estimates them.
    pub estimated_rows: u64,
    /// Bytes of the table, as the source estimates them.
    pub estimated_bytes: u64,
}

impl CopyFrame {
    /// The frame as bytes: the layout of [`crate::Frame`] with magic `TRLC` and kind 1.
    ///
    /// # Panics
    /// When head or payload exceed their limits; the relay cuts both far below.
    pub fn encode(&self) -> Bytes {
        codec::encode_copy(&self.header, &self.event, &self.payload)
    }

    /// A frame from bytes; the payload is a slice of them, not a copy.
    ///
    /// # Errors
    /// The bytes are none, are damaged, or their payload stands where none belongs.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let ((header, event), payload) = codec::decode_copy(bytes)?;
        let frame = Self {
            header,
            event,
            payload,
        };
        match (&frame.event, frame.payload.is_empty()) {
            (CopyEvent::Chunk { .. }, true) => {
                Err(DecodeError::Inconsistent("a chunk without bytes"))
            }
            (CopyEvent::Chunk { .. }, false) | (_, true) => Ok(frame),
            (_, false) => Err(DecodeError::Inconsistent("a payload where none belongs")),
        }
    }

    /// The word in the `Trellara-Kind` header.
    pub fn kind(&self) -> &'static str {
        match self.event {
            CopyEvent::Begin(_) => "copy-begin",
            CopyEvent::Chunk { .. } => "copy-chunk",
            CopyEvent::Part { .. } => "copy-part",
            CopyEvent::End { .. } => "copy-end",
            CopyEvent::Failed { .. } => "copy-failed",
        }
    }
}

/// What the target still wants, sent by the applier on [`FlowName::copy_order_subject`] about once
/// a second while there is anything, and at once when it changes.
///
/// The target is the only place that remembers what was copied; the relay copies what it is asked
/// for and remembers nothing beyond its own life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOrder {
    /// The flow.
    pub flow: FlowName,
    /// The registered target, `{target id}@{system id}`.
    pub target: String,
    /// The ordering applier's epoch.
    pub epoch: LaneEpoch,
    /// Whether the lane stands still until the copy is in. What the broker stored then counts as
    /// applied, or the source would keep its WAL for as long as the copy lasts (C29).
    pub holds_lane: bool,
    /// What is not wholly in yet, at most [`CopyOrder::MAX_TABLES`]; the rest is asked for when
    /// these are in.
    pub wanted: Vec<CopyWanted>,
    /// Sequence up to which the copy stream was trimmed: room that was given back.
    pub trimmed_to: u64,
    /// Tables that left the publication on an operator's word, by their oid on the source.
    pub removed: Vec<Oid>,
    /// Keyed MAC; empty until a key is configured.
    pub mac: Vec<u8>,
}

/// One table of an order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CopyWanted {
    /// The table.
    pub table: CopyTable,
    /// Raised whenever what came of a copy is void and it has to be begun anew.
    pub generation: u32,
}

impl CopyOrder {
    /// Beyond this many tables an order would outgrow the smallest message limit.
    pub const MAX_TABLES: usize = 250;

    /// The order as bytes, with format version and checksum.
    pub fn encode(&self) -> Vec<u8> {
        encode_plain(b"TRLO", self)
    }

    /// An order from bytes.
    ///
    /// # Errors
    /// The bytes are none, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_plain(b"TRLO", bytes)
    }
}

impl std::fmt::Display for CopyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}
