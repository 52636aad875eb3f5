//! The frame that `setup` writes before the slot is handed to anyone (C03).

use bytes::Bytes;
use trellara_envelope::{
    Body, FlowName, Frame, FrameDigest, FrameOrdinal, Genesis, Header, Incarnation, Lane,
    StreamSequence,
};

/// The genesis frame of a flow, to be stored as the very first message of an empty stream
/// (expected last sequence 0, subject [`Frame::subject`]).
///
/// It belongs to incarnation 0, the writer before any relay; the first relay is incarnation 1.
pub fn genesis_frame(flow: FlowName, genesis: Genesis) -> Frame {
    Frame {
        header: Header {
            flow,
            source: genesis.history.source(),
            incarnation: Incarnation(0),
            ordinal: FrameOrdinal(0),
            previous: FrameDigest::default(),
            position: genesis.continues_at,
            keep_from: StreamSequence(1),
            lane: Lane(0),
            follows: genesis.continues_at,
            lanes: Vec::new(),
            mac: Vec::new(),
        },
        body: Body::Genesis(genesis),
        payload: Bytes::new(),
    }
}
