//! A model stream: it stores what fits behind its last message and nothing else.

use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::{
    Body, FlowName, Frame, FrameDigest, Genesis, Incarnation, Lsn, Marker, Oid, SourceHistory,
    StreamSequence, SystemId, Timeline,
};
use trellara_jetstream::publish::Outcome;

use super::chain::Chain;
use crate::machine::{FootingAnswer, LastTransaction, Publish, Settings, Start, StreamSpace, Tail};
use crate::{Acknowledge, genesis_frame};

pub(super) fn flow() -> FlowName {
    "shop".parse().expect("a flow name")
}

pub(super) fn history() -> SourceHistory {
    SourceHistory {
        system: SystemId(7),
        timeline: Timeline(1),
        switches: Vec::new(),
    }
}

pub(super) fn settings(acknowledge: Acknowledge) -> Settings {
    Settings {
        flow: flow(),
        acknowledge,
        message_ids: true,
        window_bytes: 4_000,
        bundle_bytes: 600,
        chunk_bytes: 300,
        unfinished_bytes: 700,
        open_bytes: None,
        shutdown_grace: Duration::from_secs(10),
        heartbeat_interval: Duration::from_secs(1),
        membership_interval: Duration::from_secs(30),
        max_payload: 1 << 20,
    }
}

pub(super) fn marker() -> Marker {
    Marker {
        history: history(),
        continues_at: Lsn::ZERO,
        publication: Oid(1),
        publication_flags: 15,
        members_digest: FrameDigest::default(),
        members: Vec::new(),
    }
}

/// A stream that stores what fits behind its last message and nothing else.
pub(super) struct Stream(pub(super) Vec<Bytes>);

impl Stream {
    pub(super) fn new(position: Lsn) -> Self {
        let genesis = Genesis {
            history: history(),
            slot: "s".into(),
            publication: "p".into(),
            consistent_point: position,
            copy_epoch: 0,
            continues_at: position,
        };
        Stream(vec![genesis_frame(flow(), genesis).encode()])
    }

    pub(super) fn publish(&mut self, publish: &Publish) -> Outcome {
        let last = self.0.len() as u64;
        if publish.expected_last.0 != last {
            return Outcome::WrongSequence {
                actual: Some(StreamSequence(last)),
            };
        }
        self.0.push(publish.payload.clone());
        Outcome::Stored {
            sequence: StreamSequence(last + 1),
        }
    }

    pub(super) fn frame(&self, sequence: usize) -> Frame {
        Frame::decode(&self.0[sequence - 1]).expect("a frame")
    }

    pub(super) fn footing(&self, at: StreamSequence) -> FootingAnswer {
        match self.0.get(at.0 as usize - 1) {
            Some(frame) => FootingAnswer::Frame(Frame::digest_of(frame)),
            None => FootingAnswer::Missing,
        }
    }

    /// Where the flow ends up to a sequence: below markers that stand on another frame than they
    /// name.
    fn end_at(&self, sequence: usize) -> usize {
        match self.is_void(sequence) {
            true => self.end_at(sequence - 1),
            false => sequence,
        }
    }

    pub(super) fn is_void(&self, sequence: usize) -> bool {
        let frame = self.frame(sequence);
        matches!(frame.body, Body::Marker(_)) && {
            let below = self.end_at(sequence - 1);
            Frame::digest_of(&self.0[below - 1]) != frame.header.previous
        }
    }

    pub(super) fn tail(&self) -> Tail {
        let sequence = self.0.len();
        let frame = self.frame(sequence);
        Tail {
            sequence: StreamSequence(sequence as u64),
            ordinal: frame.header.ordinal,
            digest: Frame::digest_of(&self.0[sequence - 1]),
            position: frame.header.position,
            incarnation: frame.header.incarnation,
        }
    }

    pub(super) fn last_transaction(&self) -> LastTransaction {
        let last = (1..=self.0.len())
            .rev()
            .find_map(|at| match self.frame(at).body {
                Body::Bundle(entries) => entries.last().map(|entry| entry.identity()),
                Body::Manifest(manifest) => Some(manifest.identity()),
                _ => None,
            });
        last.map_or(LastTransaction::None, LastTransaction::Known)
    }

    pub(super) fn start(&self, known: Incarnation, confirmed: Lsn) -> Start {
        let newest = self.tail();
        let at = self.end_at(self.0.len());
        let frame = self.frame(at);
        let tail = Tail {
            ordinal: frame.header.ordinal,
            digest: Frame::digest_of(&self.0[at - 1]),
            position: frame.header.position,
            ..newest
        };
        Start {
            incarnation: Incarnation(known.max(tail.incarnation).0 + 1),
            history: history(),
            last_transaction: self.last_transaction(),
            confirmed,
            marker: marker(),
            target: Some("target@1".to_owned()),
            space: StreamSpace::default(),
            tail,
            tail_at: StreamSequence(at as u64),
        }
    }

    pub(super) fn chain(&self) -> Chain {
        let mut chain = Chain::default();
        let void = (1..=self.0.len()).filter(|at| self.is_void(*at));
        chain.strays = void.map(|at| StreamSequence(at as u64)).collect();
        for (at, payload) in self.0.iter().enumerate() {
            chain.accept(StreamSequence(at as u64 + 1), payload);
        }
        chain
    }
}
