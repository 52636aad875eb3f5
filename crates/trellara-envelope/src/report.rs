//! What the applier tells the relay about the target (C27).

use serde::{Deserialize, Serialize};

use crate::codec::{decode_plain, encode_plain};
use crate::{
    DecodeError, FlowName, FrameDigest, FrameOrdinal, Incarnation, Lane, LaneEpoch, Lsn, SourceId,
    StreamSequence,
};

/// A durable position of the target, sent on [`FlowName::position_subject`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionReport {
    /// The flow.
    pub flow: FlowName,
    /// The lane.
    pub lane: Lane,
    /// Cluster and timeline of the position.
    pub source: SourceId,
    /// The registered target, `{target id}@{system id}`.
    pub target: String,
    /// The reporting applier's epoch.
    pub epoch: LaneEpoch,
    /// Incarnation of the last frame wholly applied.
    pub incarnation: Incarnation,
    /// Its stream sequence.
    pub sequence: StreamSequence,
    /// Its ordinal.
    pub ordinal: FrameOrdinal,
    /// Its digest: the relay believes the report only if this is the frame at that ordinal.
    pub digest: FrameDigest,
    /// Durable end LSN: everything that ends at or below it is flushed on the target.
    pub end_lsn: Lsn,
    /// Keyed MAC; empty until a key is configured.
    pub mac: Vec<u8>,
}

impl PositionReport {
    /// The report as bytes, with format version and checksum.
    pub fn encode(&self) -> Vec<u8> {
        encode_plain(b"TRLP", self)
    }

    /// A report from bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_plain(b"TRLP", bytes)
    }
}
