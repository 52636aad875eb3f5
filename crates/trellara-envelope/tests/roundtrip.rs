//! Whatever can be written can be read, and reads as what it was.

mod support;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use support::{frames, order, report};
use trellara_envelope::{
    Abort, AbortedRange, Body, BundleEntry, Chunk, CommitTime, CopyBegin, CopyEvent, CopyFrame,
    CopyHeader, CopyOrder, CopyTable, CopyWanted, FlowName, Frame, FrameDigest, FrameKind,
    FrameOrdinal, Genesis, Header, Heartbeat, Incarnation, Lane, LaneEpoch, LaneLink, Lsn,
    Manifest, Marker, Oid, PositionReport, PublicationMember, RelationCount, SourceHistory,
    SourceId, StreamSequence, SystemId, Timeline, Xid,
};

fn flow() -> impl Strategy<Value = FlowName> {
    "[a-z][a-z0-9_]{0,22}".prop_map(|name| name.parse().expect("a flow name"))
}

fn digest() -> impl Strategy<Value = FrameDigest> {
    any::<[u8; 16]>().prop_map(FrameDigest)
}

fn lsn() -> impl Strategy<Value = Lsn> {
    any::<u64>().prop_map(Lsn)
}

fn source() -> impl Strategy<Value = SourceId> {
    (any::<u64>(), any::<u32>()).prop_map(|(system, timeline)| SourceId {
        system: SystemId(system),
        timeline: Timeline(timeline),
    })
}

fn history() -> impl Strategy<Value = SourceHistory> {
    (source(), vec((any::<u32>(), lsn()), 0..4)).prop_map(|(source, switches)| SourceHistory {
        system: source.system,
        timeline: source.timeline,
        switches: switches
            .into_iter()
            .map(|(timeline, left_at)| (Timeline(timeline), left_at))
            .collect(),
    })
}

fn lane_link() -> impl Strategy<Value = LaneLink> {
    (any::<u32>(), any::<u64>(), lsn(), digest()).prop_map(|(lane, ordinal, follows, previous)| {
        LaneLink {
            lane: Lane(lane),
            ordinal: FrameOrdinal(ordinal),
            follows,
            previous,
        }
    })
}

fn header() -> impl Strategy<Value = Header> {
    (
        (flow(), source(), any::<u64>(), any::<u64>(), digest()),
        (
            lsn(),
            any::<u64>(),
            any::<u32>(),
            lsn(),
            vec(lane_link(), 0..3),
            vec(any::<u8>(), 0..40),
        ),
    )
        .prop_map(|(first, second)| Header {
            flow: first.0,
            source: first.1,
            incarnation: Incarnation(first.2),
            ordinal: FrameOrdinal(first.3),
            previous: first.4,
            position: second.0,
            keep_from: StreamSequence(second.1),
            lane: Lane(second.2),
            follows: second.3,
            lanes: second.4,
            mac: second.5,
        })
}

fn genesis() -> impl Strategy<Value = Body> {
    (history(), ".*", ".*", lsn(), any::<u32>(), lsn()).prop_map(
        |(history, slot, publication, consistent_point, copy_epoch, continues_at)| {
            Body::Genesis(Genesis {
                history,
                slot,
                publication,
                consistent_point,
                copy_epoch,
                continues_at,
            })
        },
    )
}

fn marker() -> impl Strategy<Value = Body> {
    let member =
        (any::<u32>(), any::<u32>(), digest()).prop_map(|(member, relation, definition)| {
            PublicationMember {
                member: Oid(member),
                relation: Oid(relation),
                definition,
            }
        });
    (
        history(),
        lsn(),
        any::<u32>(),
        any::<u32>(),
        digest(),
        vec(member, 0..9),
    )
        .prop_map(
            |(history, continues_at, publication, publication_flags, members_digest, members)| {
                Body::Marker(Marker {
                    history,
                    continues_at,
                    publication: Oid(publication),
                    publication_flags,
                    members_digest,
                    members,
                })
            },
        )
}

/// Entries and a payload that they add up to.
fn bundle() -> impl Strategy<Value = (Body, Vec<u8>)> {
    let entry = (
        source(),
        lsn(),
        lsn(),
        any::<u32>(),
        any::<i64>(),
        any::<u32>(),
    );
    vec((entry, vec(any::<u8>(), 0..50)), 1..6).prop_map(|transactions| {
        let mut payload = Vec::new();
        let entries = transactions
            .into_iter()
            .map(
                |((source, commit_lsn, end_lsn, xid, time, changes), records)| {
                    payload.extend_from_slice(&records);
                    BundleEntry {
                        source,
                        commit_lsn,
                        end_lsn,
                        xid: Xid(xid),
                        commit_time: CommitTime(time),
                        bytes: records.len() as u32,
                        changes,
                    }
                },
            )
            .collect();
        (Body::Bundle(entries), payload)
    })
}

fn abort() -> impl Strategy<Value = Body> {
    let range = (any::<u32>(), any::<u32>()).prop_map(|(first, last)| AbortedRange {
        first: Xid(first),
        last: Xid(last),
    });
    (
        any::<u32>(),
        any::<u64>(),
        any::<bool>(),
        vec(range, 0..9),
        any::<Option<u64>>(),
    )
        .prop_map(|(xid, number, whole, ranges, earlier)| {
            Body::Abort(Abort {
                xid: Xid(xid),
                number,
                whole,
                ranges,
                earlier: earlier.map(StreamSequence),
            })
        })
}

fn manifest() -> impl Strategy<Value = Body> {
    let relation =
        (any::<u32>(), digest(), any::<u64>()).prop_map(|(relation, fingerprint, changes)| {
            RelationCount {
                relation: Oid(relation),
                fingerprint,
                changes,
            }
        });
    (
        (
            source(),
            lsn(),
            lsn(),
            any::<u32>(),
            any::<i64>(),
            any::<bool>(),
        ),
        (any::<u64>(), any::<u64>(), any::<u64>(), digest()),
        (
            any::<u64>(),
            any::<Option<u64>>(),
            digest(),
            vec(relation, 0..9),
            any::<u64>(),
        ),
    )
        .prop_map(|(identity, chunks, rest)| {
            Body::Manifest(Box::new(Manifest {
                source: identity.0,
                commit_lsn: identity.1,
                end_lsn: identity.2,
                xid: Xid(identity.3),
                commit_time: CommitTime(identity.4),
                streamed: identity.5,
                chunks: chunks.0,
                bytes: chunks.1,
                first_sequence: StreamSequence(chunks.2),
                running: chunks.3,
                aborts: rest.0,
                last_abort: rest.1.map(StreamSequence),
                aborts_digest: rest.2,
                relations: rest.3,
                changes: rest.4,
            }))
        })
}

fn chunk() -> impl Strategy<Value = (Body, Vec<u8>)> {
    (
        any::<u32>(),
        any::<u64>(),
        digest(),
        vec(any::<u8>(), 1..500),
    )
        .prop_map(|(xid, number, running, payload)| {
            let chunk = Chunk {
                xid: Xid(xid),
                number,
                running,
            };
            (Body::Chunk(chunk), payload)
        })
}

fn body() -> impl Strategy<Value = (Body, Vec<u8>)> {
    let heartbeat = any::<i64>().prop_map(|time| {
        Body::Heartbeat(Heartbeat {
            source_time: CommitTime(time),
        })
    });
    let alone = |body: Body| (body, Vec::new());
    prop_oneof![
        genesis().prop_map(alone),
        marker().prop_map(alone),
        heartbeat.prop_map(alone),
        bundle(),
        chunk(),
        abort().prop_map(alone),
        manifest().prop_map(alone),
    ]
}

fn table() -> impl Strategy<Value = CopyTable> {
    (".*", ".*").prop_map(|(schema, name)| CopyTable { schema, name })
}

fn copy_event() -> impl Strategy<Value = (CopyEvent, Vec<u8>)> {
    let begin = (
        any::<u32>(),
        vec(".*", 0..5),
        ".*",
        lsn(),
        any::<(u64, u64)>(),
    )
        .prop_map(|(relation, columns, snapshot, converges_at, estimated)| {
            CopyEvent::Begin(CopyBegin {
                relation: Oid(relation),
                columns,
                snapshot,
                converges_at,
                estimated_rows: estimated.0,
                estimated_bytes: estimated.1,
            })
        });
    let chunk = (any::<(u32, u32)>(), vec(any::<u8>(), 1..500))
        .prop_map(|((part, number), rows)| (CopyEvent::Chunk { part, number }, rows));
    let part = (any::<(u32, u32, u64, u64)>(), digest()).prop_map(
        |((part, chunks, rows, bytes), digest)| CopyEvent::Part {
            part,
            chunks,
            rows,
            bytes,
            digest,
        },
    );
    let end = any::<(u32, u64, u64)>().prop_map(|(parts, rows, bytes)| CopyEvent::End {
        parts,
        rows,
        bytes,
    });
    let failed =
        (".*", ".*", any::<bool>()).prop_map(|(reason, hint, lasting)| CopyEvent::Failed {
            reason,
            hint,
            lasting,
        });
    let alone = |event: CopyEvent| (event, Vec::new());
    prop_oneof![
        begin.prop_map(alone),
        chunk,
        part.prop_map(alone),
        end.prop_map(alone),
        failed.prop_map(alone),
    ]
}

proptest! {
    #[test]
    fn copy_frames_read_as_what_was_written(
        (flow, source, previous, table) in (flow(), source(), digest(), table()),
        (writer, ordinal, generation) in any::<(u64, u64, u32)>(),
        mac in vec(any::<u8>(), 0..40),
        (event, payload) in copy_event(),
    ) {
        let header = CopyHeader {
            flow,
            source,
            writer: Incarnation(writer),
            ordinal,
            previous,
            table,
            generation,
            mac,
        };
        let frame = CopyFrame { header, event, payload: payload.into() };
        prop_assert_eq!(CopyFrame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn copy_orders_read_as_what_was_written(
        (flow, target, epoch) in (flow(), ".*", any::<i64>()),
        (holds_lane, trimmed_to) in any::<(bool, u64)>(),
        wanted in vec((table(), any::<u32>()), 0..9),
        (removed, mac) in (vec(any::<u32>(), 0..9), vec(any::<u8>(), 0..40)),
    ) {
        let wanted = wanted.into_iter();
        let order = CopyOrder {
            flow,
            target,
            epoch: LaneEpoch(epoch),
            holds_lane,
            wanted: wanted
                .map(|(table, generation)| CopyWanted { table, generation })
                .collect(),
            trimmed_to,
            removed: removed.into_iter().map(Oid).collect(),
            mac,
        };
        prop_assert_eq!(CopyOrder::decode(&order.encode()), Ok(order));
    }

    #[test]
    fn frames_read_as_what_was_written(header in header(), (body, payload) in body()) {
        let frame = Frame { header, body, payload: payload.into() };
        let encoded = frame.encode();
        prop_assert_eq!(Frame::decode(&encoded), Ok(frame));
    }

    #[test]
    fn reports_read_as_what_was_written(
        (flow, source, target) in (flow(), source(), ".*"),
        (lane, epoch, incarnation) in (any::<u32>(), any::<i64>(), any::<u64>()),
        (sequence, ordinal, digest, end) in (any::<u64>(), any::<u64>(), digest(), lsn()),
        mac in vec(any::<u8>(), 0..40),
    ) {
        let report = PositionReport {
            flow,
            lane: Lane(lane),
            source,
            target,
            epoch: LaneEpoch(epoch),
            incarnation: Incarnation(incarnation),
            sequence: StreamSequence(sequence),
            ordinal: FrameOrdinal(ordinal),
            digest,
            end_lsn: end,
            mac,
        };
        prop_assert_eq!(PositionReport::decode(&report.encode()), Ok(report));
    }
}

/// The payload is borrowed, never copied: a frame of half a megabyte costs its head alone.
#[test]
fn a_decoded_payload_is_a_slice_of_the_message() {
    let encoded = frames()[FrameKind::Chunk as usize - 1].encode();
    let decoded = Frame::decode(&encoded).expect("a frame");
    let from = encoded.len() - decoded.payload.len();
    assert_eq!(decoded.payload.as_ptr(), encoded[from..].as_ptr());
}

#[test]
fn a_bundle_gives_each_transaction_its_records() {
    let frame = &frames()[FrameKind::Bundle as usize - 1];
    let transactions: Vec<_> = frame.transactions().collect();
    assert_eq!(transactions.len(), 2);
    assert_eq!(transactions[0].0.xid, Xid(744));
    assert_eq!(
        transactions[1].1.as_ref(),
        b"\0\0\0\x0aT\0\0\0\x01\0\0\0\0\x07"
    );
    let together: Vec<u8> = transactions
        .iter()
        .flat_map(|(_, records)| records.to_vec())
        .collect();
    assert_eq!(Bytes::from(together), frame.payload);
    let other = &frames()[FrameKind::Chunk as usize - 1];
    assert_eq!(other.transactions().count(), 0);
}

/// A manifest and a marker stay far below every limit, whatever the transaction and publication
/// (C15).
#[test]
fn c15_manifests_and_markers_have_a_greatest_size() {
    let mut largest = Vec::new();
    for mut frame in frames() {
        match &mut frame.body {
            Body::Manifest(manifest) => {
                let relation = RelationCount {
                    relation: Oid(u32::MAX),
                    fingerprint: FrameDigest([0xff; 16]),
                    changes: u64::MAX,
                };
                manifest.relations = vec![relation; Manifest::MAX_RELATIONS];
            }
            Body::Marker(marker) => {
                let member = PublicationMember {
                    member: Oid(u32::MAX),
                    relation: Oid(u32::MAX),
                    definition: FrameDigest([0xff; 16]),
                };
                marker.members = vec![member; Marker::MAX_MEMBERS];
            }
            _ => continue,
        }
        largest.push(frame.encode().len());
    }
    assert_eq!(largest.len(), 2);
    assert!(largest.iter().all(|bytes| *bytes < 32 << 10), "{largest:?}");
}

#[test]
fn an_unset_mac_and_the_first_frame_are_ordinary_values() {
    assert!(report().mac.is_empty());
    let mut frame = frames().remove(0);
    frame.header.previous = FrameDigest::default();
    frame.header.ordinal = FrameOrdinal::default();
    let decoded = Frame::decode(&frame.encode()).expect("a genesis frame");
    assert_eq!(decoded.header.previous, FrameDigest([0; 16]));
    assert_eq!(decoded.header.ordinal, FrameOrdinal(0));
}

/// An order for as many tables as one may ask for, with names as long as PostgreSQL lets them be,
/// fits the smallest message limit that the relay takes.
#[test]
fn an_order_has_a_greatest_size() {
    let name = |at: usize| format!("{at:0>63}");
    let wanted = (0..CopyOrder::MAX_TABLES).map(|at| CopyWanted {
        table: CopyTable {
            schema: name(0),
            name: name(at),
        },
        generation: u32::MAX,
    });
    let order = CopyOrder {
        wanted: wanted.collect(),
        ..order()
    };
    let bytes = order.encode().len();
    assert!(bytes < 64 << 10, "{bytes}");
}
