//! A frame: one JetStream message.
//!
//! Header fields follow rule block 0.1: any frame read at the tail of the stream says where the
//! flow stands, even when the last million frames are chunks.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    CommitTime, FlowName, FrameDigest, FrameOrdinal, Incarnation, Lane, Lsn, Oid, SourceHistory,
    SourceId, StreamSequence, TransactionIdentity, Xid,
};

/// A decoded frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// What every frame says.
    pub header: Header,
    /// What this kind says.
    pub body: Body,
    /// Records (see [`crate::records`]) for bundles, a run of a transaction's bytes for chunks,
    /// empty otherwise.
    pub payload: Bytes,
}

/// What every frame says, chunks included (rules 0.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The flow.
    pub flow: FlowName,
    /// Cluster and timeline on which the writer runs.
    pub source: SourceId,
    /// The writer.
    pub incarnation: Incarnation,
    /// This frame's number in the flow.
    pub ordinal: FrameOrdinal,
    /// Digest of frame `ordinal - 1`; all zero in a genesis frame.
    pub previous: FrameDigest,
    /// End LSN of everything complete up to and including this frame.
    pub position: Lsn,
    /// Lowest stream sequence that any still-open transaction of this incarnation needs; the
    /// frame's own sequence when there is none.
    pub keep_from: StreamSequence,
    /// The frame's lane; 0 in strict mode.
    pub lane: Lane,
    /// `position` of the previous positional frame; equal to `position` in frames that are not
    /// positional.
    pub follows: Lsn,
    /// The same link once more for each lane the frame is in, because a lane sees holes in the
    /// flow's ordinals (C55); empty in strict mode, where the flow's own link says it all.
    pub lanes: Vec<LaneLink>,
    /// Keyed MAC over header and body; empty until a key is configured.
    pub mac: Vec<u8>,
}

/// A frame's place in the chain of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneLink {
    /// The lane.
    pub lane: Lane,
    /// This frame's number in the lane.
    pub ordinal: FrameOrdinal,
    /// `position` of the lane's previous positional frame.
    pub follows: Lsn,
    /// Digest of the lane's frame `ordinal - 1`; all zero in its first one.
    pub previous: FrameDigest,
}

/// What one kind of frame says.
///
/// Kinds are added behind the last one, each with a number of its own in the prefix; a reader
/// that does not know it refuses the frame by that number. A frame for several lanes on the
/// barrier subject will be the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Written by `setup` before the slot is handed to anyone (C03).
    Genesis(Genesis),
    /// The first frame of an incarnation (C07).
    Marker(Marker),
    /// Progress without transactions.
    Heartbeat(Heartbeat),
    /// One or more whole small transactions.
    Bundle(Vec<BundleEntry>),
    /// Part of one large transaction.
    Chunk(Chunk),
    /// Names what was rolled back of an open transaction, or that all of it was (C15).
    Abort(Abort),
    /// Closes a chunked transaction.
    Manifest(Box<Manifest>),
}

/// The kind of a frame, as in the fixed prefix and the `Trellara-Kind` NATS header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FrameKind {
    /// See [`Body::Genesis`].
    Genesis = 1,
    /// See [`Body::Marker`].
    Marker = 2,
    /// See [`Body::Heartbeat`].
    Heartbeat = 3,
    /// See [`Body::Bundle`].
    Bundle = 4,
    /// See [`Body::Chunk`].
    Chunk = 5,
    /// See [`Body::Abort`].
    Abort = 6,
    /// See [`Body::Manifest`].
    Manifest = 7,
}

/// What `setup` knew when it created the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// The source's timelines.
    pub history: SourceHistory,
    /// The slot's name.
    pub slot: String,
    /// The publication's name.
    pub publication: String,
    /// The slot's consistent point C.
    pub consistent_point: Lsn,
    /// Raised when a copy starts anew.
    pub copy_epoch: u32,
    /// Checkpoints at or beyond this go on here (C26); C on a first setup.
    pub continues_at: Lsn,
}

/// A relay's announcement that it now writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The source's timelines as this incarnation sees them.
    pub history: SourceHistory,
    /// Checkpoints at or beyond this may go on here (C26).
    pub continues_at: Lsn,
    /// `pg_publication.oid` (C06).
    pub publication: Oid,
    /// Bits: 1 insert, 2 update, 4 delete, 8 truncate, 16 via partition root, 32 all tables.
    pub publication_flags: u32,
    /// Digest over all members; the members themselves follow when they fit.
    pub members_digest: FrameDigest,
    /// The publication's members, at most [`Marker::MAX_MEMBERS`].
    pub members: Vec<PublicationMember>,
}

impl Marker {
    /// Beyond this many members only the digest travels, so that the frame stays small.
    pub const MAX_MEMBERS: usize = 1000;
}

/// One table of the publication.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PublicationMember {
    /// Oid of the row of `pg_publication_rel`, or of `pg_publication_namespace` for a member by
    /// schema, that makes it one; 0 with FOR ALL TABLES.
    pub member: Oid,
    /// The table's oid.
    pub relation: Oid,
    /// Digest of row filter and column list, and of whether it is a member only as a partition.
    pub definition: FrameDigest,
}

/// Progress without transactions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The source's clock when the position was reported.
    pub source_time: CommitTime,
}

/// One transaction of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleEntry {
    /// Timeline of the commit record, with the header's cluster.
    pub source: SourceId,
    /// Start of the commit record.
    pub commit_lsn: Lsn,
    /// End of the commit record: *done* means end ≤ checkpoint.
    pub end_lsn: Lsn,
    /// Transaction id.
    pub xid: Xid,
    /// Commit timestamp.
    pub commit_time: CommitTime,
    /// Length of the transaction's records in the payload; entries follow one another.
    pub bytes: u32,
    /// Data changes among them (inserts, updates, deletes, truncates).
    pub changes: u32,
}

impl BundleEntry {
    /// The transaction's identity.
    pub fn identity(&self) -> TransactionIdentity {
        TransactionIdentity {
            source: self.source,
            commit_lsn: self.commit_lsn,
            xid: self.xid,
            commit_time: self.commit_time,
        }
    }
}

/// Part of one large transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Top-level transaction id.
    pub xid: Xid,
    /// From 0, without holes within one incarnation.
    pub number: u64,
    /// Digest of the transaction's bytes up to and including this chunk.
    pub running: FrameDigest,
}

/// Consecutive aborted (sub)transaction ids, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AbortedRange {
    /// First id.
    pub first: Xid,
    /// Last id.
    pub last: Xid,
}

/// What was rolled back of an open transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// Top-level transaction id.
    pub xid: Xid,
    /// From 0, without holes within one transaction and incarnation.
    pub number: u64,
    /// The whole transaction is gone: its chunks are garbage.
    pub whole: bool,
    /// Sorted, disjoint; the ids named by this frame alone.
    pub ranges: Vec<AbortedRange>,
    /// Sequence of the previous abort frame of this transaction, so that a reader who knows the
    /// last one finds all of them before it reads the first chunk (C16).
    pub earlier: Option<StreamSequence>,
}

/// Closes a chunked transaction: of constant size whatever the transaction (C15).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Timeline of the commit record.
    pub source: SourceId,
    /// Start of the commit record.
    pub commit_lsn: Lsn,
    /// End of the commit record.
    pub end_lsn: Lsn,
    /// Transaction id.
    pub xid: Xid,
    /// Commit timestamp.
    pub commit_time: CommitTime,
    /// Whether the records carry (sub)transaction ids, as pgoutput sends them inside a stream
    /// block.
    pub streamed: bool,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
    /// Sequence of the first chunk.
    pub first_sequence: StreamSequence,
    /// Final running digest over the bytes of all chunks.
    pub running: FrameDigest,
    /// Number of abort frames.
    pub aborts: u64,
    /// Sequence of the last abort frame.
    pub last_abort: Option<StreamSequence>,
    /// Digest over all aborted ids: sorted, disjoint and merged ranges, big-endian first and last.
    pub aborts_digest: FrameDigest,
    /// Changes per relation, aborted ones included, at most [`Manifest::MAX_RELATIONS`].
    pub relations: Vec<RelationCount>,
    /// Changes of all relations, aborted ones included.
    pub changes: u64,
}

impl Manifest {
    /// Beyond this many relations only the total is kept, so that the frame stays small.
    pub const MAX_RELATIONS: usize = 64;

    /// The transaction's identity.
    pub fn identity(&self) -> TransactionIdentity {
        TransactionIdentity {
            source: self.source,
            commit_lsn: self.commit_lsn,
            xid: self.xid,
            commit_time: self.commit_time,
        }
    }
}

/// How much of a transaction belongs to one relation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelationCount {
    /// The relation's oid on the source.
    pub relation: Oid,
    /// Digest of its last RELATION message, transaction id left out.
    pub fingerprint: FrameDigest,
    /// Changes, aborted ones included.
    pub changes: u64,
}

impl Body {
    /// The kind.
    pub fn kind(&self) -> FrameKind {
        match self {
            Body::Genesis(_) => FrameKind::Genesis,
            Body::Marker(_) => FrameKind::Marker,
            Body::Heartbeat(_) => FrameKind::Heartbeat,
            Body::Bundle(_) => FrameKind::Bundle,
            Body::Chunk(_) => FrameKind::Chunk,
            Body::Abort(_) => FrameKind::Abort,
            Body::Manifest(_) => FrameKind::Manifest,
        }
    }
}

impl FrameKind {
    /// All kinds, in wire order.
    pub const ALL: [FrameKind; 7] = [
        FrameKind::Genesis,
        FrameKind::Marker,
        FrameKind::Heartbeat,
        FrameKind::Bundle,
        FrameKind::Chunk,
        FrameKind::Abort,
        FrameKind::Manifest,
    ];

    /// Whether frames of this kind move the flow's position.
    pub fn is_positional(self) -> bool {
        !matches!(self, FrameKind::Chunk | FrameKind::Abort)
    }

    /// The word in the `Trellara-Kind` header and in `inspect`.
    pub fn as_str(self) -> &'static str {
        match self {
            FrameKind::Genesis => "genesis",
            FrameKind::Marker => "marker",
            FrameKind::Heartbeat => "heartbeat",
            FrameKind::Bundle => "bundle",
            FrameKind::Chunk => "chunk",
            FrameKind::Abort => "abort",
            FrameKind::Manifest => "manifest",
        }
    }
}

impl Frame {
    /// The transactions of a bundle, each with its records; none for other kinds.
    ///
    /// # Panics
    /// When the entries announce more than the payload holds; a decoded frame never does.
    pub fn transactions(&self) -> impl Iterator<Item = (BundleEntry, Bytes)> {
        let entries = match &self.body {
            Body::Bundle(entries) => entries.as_slice(),
            _ => &[],
        };
        let mut from = 0;
        entries.iter().map(move |entry| {
            let records = from..from + entry.bytes as usize;
            from = records.end;
            (*entry, self.payload.slice(records))
        })
    }

    /// The subject on which a frame of this kind is published.
    pub fn subject(&self) -> String {
        let flow = &self.header.flow;
        match &self.body {
            Body::Genesis(_) | Body::Marker(_) => flow.mark_subject(),
            Body::Heartbeat(_) => flow.beat_subject(),
            Body::Bundle(_) | Body::Manifest(_) => flow.transactions_subject(self.header.lane),
            Body::Chunk(chunk) => flow.open_subject(self.header.incarnation, chunk.xid),
            Body::Abort(abort) => flow.open_subject(self.header.incarnation, abort.xid),
        }
    }
}
