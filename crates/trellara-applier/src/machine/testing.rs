//! Frames and checkpoints for tests of this crate.

use bytes::Bytes;
use trellara_envelope::{
    Body, BundleEntry, CommitTime, FlowName, Frame, FrameDigest, FrameOrdinal, Genesis, Header,
    Heartbeat, Incarnation, Lane, LedgerOrdinal, Lsn, Manifest, Marker, Oid, SourceHistory,
    SourceId, StreamSequence, SystemId, Timeline, Xid,
};

use super::Delivered;
use crate::checkpoint::{Checkpoint, StreamIdentity, Transport};

pub(crate) const SYSTEM: SystemId = SystemId(7);

pub(crate) fn on(timeline: u32) -> SourceId {
    SourceId {
        system: SYSTEM,
        timeline: Timeline(timeline),
    }
}

pub(crate) fn first_timeline() -> SourceHistory {
    SourceHistory {
        system: SYSTEM,
        timeline: Timeline(1),
        switches: Vec::new(),
    }
}

/// Whatever stands at this sequence, the position is `lsn` and the last transaction ended there.
pub(crate) fn checkpoint_at(sequence: u64, lsn: u64) -> Checkpoint {
    Checkpoint {
        ordinal: LedgerOrdinal(0),
        source: on(1),
        end_lsn: Lsn(lsn),
        transaction_end_lsn: Lsn(lsn),
        transport: Transport {
            stream: StreamIdentity {
                name: "TRELLARA_shop".into(),
                created: "then".into(),
            },
            sequence: StreamSequence(sequence),
            incarnation: Incarnation(0),
            ordinal: FrameOrdinal(0),
            digest: FrameDigest([9; 16]),
        },
    }
}

/// Writes a stream as a relay would.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) sequence: u64,
    pub(crate) ordinal: u64,
    pub(crate) incarnation: u64,
    pub(crate) previous: FrameDigest,
    pub(crate) position: u64,
    pub(crate) history: SourceHistory,
}

impl Writer {
    /// Behind the genesis frame at sequence 1, at position `lsn`; with the checkpoint there.
    pub(crate) fn genesis(lsn: u64) -> (Self, Checkpoint, Delivered) {
        let mut writer = Self {
            sequence: 0,
            ordinal: u64::MAX,
            incarnation: 0,
            previous: FrameDigest::default(),
            position: lsn,
            history: first_timeline(),
        };
        let genesis = writer.frame(
            Body::Genesis(Genesis {
                history: first_timeline(),
                slot: "trellara_shop".into(),
                publication: "trellara_shop".into(),
                consistent_point: Lsn(lsn),
                copy_epoch: 0,
                continues_at: Lsn(lsn),
            }),
            lsn,
            Vec::new(),
        );
        let mut checkpoint = checkpoint_at(1, lsn);
        checkpoint.transport.digest = genesis.digest;
        (writer, checkpoint, genesis)
    }

    /// Skips `count` frames that positional readers do not see.
    pub(crate) fn chunks(&mut self, count: u64) {
        self.sequence += count;
        self.ordinal += count;
        self.previous = FrameDigest([0xcc; 16]);
    }

    pub(crate) fn marker(&mut self, continues_at: u64) -> Delivered {
        self.incarnation += 1;
        let history = self.history.clone();
        self.frame(
            Body::Marker(Marker {
                history,
                continues_at: Lsn(continues_at),
                publication: Oid(1),
                publication_flags: 0,
                members_digest: FrameDigest::default(),
                members: Vec::new(),
            }),
            self.position,
            Vec::new(),
        )
    }

    pub(crate) fn heartbeat(&mut self, position: u64) -> Delivered {
        self.frame(
            Body::Heartbeat(Heartbeat {
                source_time: CommitTime(0),
            }),
            position,
            Vec::new(),
        )
    }

    /// A bundle of transactions, each 8 bytes of log long and ending at the given position.
    pub(crate) fn bundle(&mut self, ends: &[u64]) -> Delivered {
        let entries = ends
            .iter()
            .map(|end| BundleEntry {
                source: self.history.source(),
                commit_lsn: Lsn(end - 8),
                end_lsn: Lsn(*end),
                xid: Xid(*end as u32),
                commit_time: CommitTime(*end as i64),
                bytes: 1,
                changes: 1,
            })
            .collect();
        let position = *ends.last().expect("a bundle has transactions");
        self.frame(Body::Bundle(entries), position, vec![0; ends.len()])
    }

    /// A transaction in chunks, 8 bytes of log long; its frame's position may lie behind its end.
    pub(crate) fn manifest(&mut self, end: u64, position: u64) -> Delivered {
        self.chunks(1);
        let manifest = Manifest {
            source: self.history.source(),
            commit_lsn: Lsn(end - 8),
            end_lsn: Lsn(end),
            xid: Xid(end as u32),
            commit_time: CommitTime(end as i64),
            streamed: true,
            chunks: 1,
            bytes: 1,
            first_sequence: StreamSequence(self.sequence),
            running: FrameDigest([0xcc; 16]),
            aborts: 0,
            last_abort: None,
            aborts_digest: FrameDigest::default(),
            relations: Vec::new(),
            changes: 1,
        };
        self.frame(Body::Manifest(Box::new(manifest)), position, Vec::new())
    }

    pub(crate) fn frame(&mut self, body: Body, position: u64, payload: Vec<u8>) -> Delivered {
        self.sequence += 1;
        self.ordinal = self.ordinal.wrapping_add(1);
        let frame = Frame {
            header: Header {
                flow: FlowName::try_from("shop".to_owned()).expect("a flow name"),
                source: self.history.source(),
                incarnation: Incarnation(self.incarnation),
                ordinal: FrameOrdinal(self.ordinal),
                previous: self.previous,
                position: Lsn(position),
                keep_from: StreamSequence(self.sequence),
                lane: Lane(0),
                follows: Lsn(self.position),
                lanes: Vec::new(),
                mac: Vec::new(),
            },
            body,
            payload: Bytes::from(payload),
        };
        let digest = FrameDigest::of(&frame.encode());
        self.previous = digest;
        self.position = position;
        Delivered {
            sequence: StreamSequence(self.sequence),
            digest,
            frame,
        }
    }
}
