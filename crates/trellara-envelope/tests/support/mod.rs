//! One frame of every kind, with every field set to something that shows.

#![allow(dead_code, reason = "each test binary uses a part")]

use bytes::Bytes;
use trellara_envelope::{
    Abort, AbortedRange, Body, BundleEntry, Chunk, CommitTime, CopyBegin, CopyEvent, CopyFrame,
    CopyHeader, CopyOrder, CopyTable, CopyWanted, Frame, FrameDigest, FrameOrdinal, Genesis,
    Header, Heartbeat, Incarnation, Lane, LaneEpoch, LaneLink, Lsn, Manifest, Marker, Oid,
    PositionReport, PublicationMember, RelationCount, SourceHistory, SourceId, StreamSequence,
    SystemId, Timeline, Xid, records,
};

pub(crate) fn source() -> SourceId {
    SourceId {
        system: SystemId(7_412_345_678_901_234_567),
        timeline: Timeline(2),
    }
}

pub(crate) fn history() -> SourceHistory {
    SourceHistory {
        system: SystemId(7_412_345_678_901_234_567),
        timeline: Timeline(2),
        switches: vec![(Timeline(1), Lsn(0x300_7270))],
    }
}

pub(crate) fn header() -> Header {
    Header {
        flow: "shop".parse().expect("a flow name"),
        source: source(),
        incarnation: Incarnation(3),
        ordinal: FrameOrdinal(300),
        previous: FrameDigest::of(b"the frame before"),
        position: Lsn(0x16_B374_D848),
        keep_from: StreamSequence(290),
        lane: Lane(0),
        follows: Lsn(0x16_B374_D000),
        lanes: Vec::new(),
        mac: Vec::new(),
    }
}

fn entry(xid: u32, bytes: usize, changes: u32) -> BundleEntry {
    BundleEntry {
        source: source(),
        commit_lsn: Lsn(0x16_B374_D800),
        end_lsn: Lsn(0x16_B374_D848),
        xid: Xid(xid),
        commit_time: CommitTime(849_254_400_123_456),
        bytes: u32::try_from(bytes).expect("small"),
        changes,
    }
}

fn bundle() -> (Body, Bytes) {
    let mut payload = Vec::new();
    records::push(
        &mut payload,
        b"R\0\0\0\x07public\0t\0d\0\x01\x01a\0\0\0\0\x17\xff\xff\xff\xff",
    );
    records::push(&mut payload, b"I\0\0\0\x07N\0\x01t\0\0\0\x011");
    let first = payload.len();
    records::push(&mut payload, b"T\0\0\0\x01\0\0\0\0\x07");
    let entries = vec![entry(744, first, 1), entry(745, payload.len() - first, 1)];
    (Body::Bundle(entries), payload.into())
}

fn manifest() -> Manifest {
    Manifest {
        source: source(),
        commit_lsn: Lsn(0x16_B374_D800),
        end_lsn: Lsn(0x16_B374_D848),
        xid: Xid(746),
        commit_time: CommitTime(849_254_400_123_456),
        streamed: true,
        chunks: 2,
        bytes: 524_300,
        first_sequence: StreamSequence(291),
        running: FrameDigest::of(b"all chunks"),
        aborts: 1,
        last_abort: Some(StreamSequence(293)),
        aborts_digest: FrameDigest::of(b"all ranges"),
        relations: vec![RelationCount {
            relation: Oid(16_384),
            fingerprint: FrameDigest::of(b"a description"),
            changes: 70_000,
        }],
        changes: 70_000,
    }
}

/// One frame of every kind, in wire order.
pub(crate) fn frames() -> Vec<Frame> {
    let (bundle, bundle_payload) = bundle();
    let bodies = [
        (
            Body::Genesis(Genesis {
                history: history(),
                slot: "trellara_shop".to_owned(),
                publication: "trellara_shop".to_owned(),
                consistent_point: Lsn(0x16_B374_0000),
                copy_epoch: 1,
                continues_at: Lsn(0x16_B374_0000),
            }),
            Bytes::new(),
        ),
        (
            Body::Marker(Marker {
                history: history(),
                continues_at: Lsn(0x16_B374_D000),
                publication: Oid(16_390),
                publication_flags: 0b1_1111,
                members_digest: FrameDigest::of(b"all members"),
                members: vec![PublicationMember {
                    member: Oid(16_395),
                    relation: Oid(16_384),
                    definition: FrameDigest::of(b"public.t"),
                }],
            }),
            Bytes::new(),
        ),
        (
            Body::Heartbeat(Heartbeat {
                source_time: CommitTime(849_254_400_123_456),
            }),
            Bytes::new(),
        ),
        (bundle, bundle_payload),
        (
            Body::Chunk(Chunk {
                xid: Xid(746),
                number: 1,
                running: FrameDigest::of(b"both chunks"),
            }),
            Bytes::from_static(b"a run of bytes, cut anywhere"),
        ),
        (
            Body::Abort(Abort {
                xid: Xid(746),
                number: 1,
                whole: false,
                ranges: vec![AbortedRange {
                    first: Xid(747),
                    last: Xid(750),
                }],
                earlier: Some(StreamSequence(292)),
            }),
            Bytes::new(),
        ),
        (Body::Manifest(Box::new(manifest())), Bytes::new()),
    ];
    bodies
        .into_iter()
        .map(|(body, payload)| Frame {
            header: header(),
            body,
            payload,
        })
        .collect()
}

/// A frame of a flow that is cut into lanes: the format has them from the start.
pub(crate) fn laned() -> Frame {
    let (body, payload) = bundle();
    let link = |lane, ordinal| LaneLink {
        lane: Lane(lane),
        ordinal: FrameOrdinal(ordinal),
        follows: Lsn(0x16_B374_C000),
        previous: FrameDigest::of(b"the frame before in this lane"),
    };
    let mut header = header();
    header.lane = Lane(1);
    header.lanes = vec![link(1, 77), link(3, 250)];
    Frame {
        header,
        body,
        payload,
    }
}

pub(crate) fn report() -> PositionReport {
    PositionReport {
        flow: "shop".parse().expect("a flow name"),
        lane: Lane(0),
        source: source(),
        target: "3f0e@7412345678901234999".to_owned(),
        epoch: LaneEpoch(12),
        incarnation: Incarnation(3),
        sequence: StreamSequence(301),
        ordinal: FrameOrdinal(300),
        digest: FrameDigest::of(b"the frame applied"),
        end_lsn: Lsn(0x16_B374_D848),
        mac: Vec::new(),
    }
}

pub(crate) fn table() -> CopyTable {
    CopyTable {
        schema: "public".to_owned(),
        name: "orders".to_owned(),
    }
}

/// One copy frame of every kind, in the order in which a copy has them.
pub(crate) fn copy_frames() -> Vec<CopyFrame> {
    let rows = Bytes::from_static(b"1\tfirst\n2\t\\N\n");
    let begin = CopyBegin {
        relation: Oid(16_384),
        columns: vec!["id".to_owned(), "note".to_owned()],
        snapshot: "744:746:745".to_owned(),
        converges_at: Lsn(0x16_B374_D848),
        estimated_rows: 1_000_000,
        estimated_bytes: 70_000_000,
    };
    let events = [
        (CopyEvent::Begin(begin), Bytes::new()),
        (CopyEvent::Chunk { part: 7, number: 0 }, rows.clone()),
        (
            CopyEvent::Part {
                part: 7,
                chunks: 1,
                rows: 2,
                bytes: rows.len() as u64,
                digest: FrameDigest::of(&rows),
            },
            Bytes::new(),
        ),
        (
            CopyEvent::End {
                parts: 8,
                rows: 1_000_300,
                bytes: 70_000_001,
            },
            Bytes::new(),
        ),
        (
            CopyEvent::Failed {
                reason: "the table was rewritten".to_owned(),
                hint: "it is begun anew".to_owned(),
                lasting: false,
            },
            Bytes::new(),
        ),
    ];
    let frame = |(ordinal, (event, payload))| CopyFrame {
        header: CopyHeader {
            flow: "shop".parse().expect("a flow name"),
            source: source(),
            writer: Incarnation(3),
            ordinal,
            previous: FrameDigest::of(b"the frame before"),
            table: table(),
            generation: 2,
            mac: Vec::new(),
        },
        event,
        payload,
    };
    (300..).zip(events).map(frame).collect()
}

pub(crate) fn order() -> CopyOrder {
    CopyOrder {
        flow: "shop".parse().expect("a flow name"),
        target: "3f0e@7412345678901234999".to_owned(),
        epoch: LaneEpoch(12),
        holds_lane: true,
        wanted: vec![CopyWanted {
            table: table(),
            generation: 2,
        }],
        trimmed_to: 301,
        removed: vec![Oid(16_390)],
        mac: Vec::new(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
