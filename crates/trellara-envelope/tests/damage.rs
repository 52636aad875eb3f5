//! Damaged, cut, foreign and inconsistent bytes are refused, each by name.

mod support;

use bytes::Bytes;
use support::{copy_frames, frames, header, order, report};
use trellara_envelope::{
    AbortedRange, Body, CopyFrame, CopyOrder, DecodeError, FRAME_PREFIX_BYTES, Frame, FrameKind,
    MAX_HEAD_BYTES, PositionReport, Xid,
};
use xxhash_rust::xxh3::Xxh3;

fn decode(bytes: Vec<u8>) -> Result<Frame, DecodeError> {
    Frame::decode(&Bytes::from(bytes))
}

/// The bytes with a checksum that fits them, as a foreign or faulty writer would send.
fn reseal(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut checksum = Xxh3::new();
    checksum.update(&bytes[..16]);
    checksum.update(&bytes[FRAME_PREFIX_BYTES..]);
    bytes[16..24].copy_from_slice(&checksum.digest().to_be_bytes());
    bytes
}

#[test]
fn every_flipped_bit_of_a_frame_is_found() {
    for frame in frames() {
        let good = frame.encode().to_vec();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let kind = frame.body.kind();
            decode(bad).expect_err(&format!("bit {bit} of a {kind:?} frame"));
        }
    }
}

#[test]
fn every_truncation_of_a_frame_is_found() {
    for frame in frames() {
        let good = frame.encode();
        for length in 0..good.len() {
            let error = Frame::decode(&good.slice(..length)).expect_err("cut");
            assert!(
                matches!(error, DecodeError::Truncated { .. } | DecodeError::Foreign),
                "{length}: {error}"
            );
        }
        let mut longer = good.to_vec();
        longer.push(0);
        assert!(matches!(decode(longer), Err(DecodeError::Truncated { .. })));
    }
}

#[test]
fn every_damage_to_a_report_is_found() {
    let good = report().encode();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        PositionReport::decode(&bad).expect_err(&format!("bit {bit}"));
    }
    for length in 0..good.len() {
        PositionReport::decode(&good[..length]).expect_err("cut");
    }
    let longer = [good.as_slice(), &[0]].concat();
    PositionReport::decode(&longer).expect_err("longer");
    PositionReport::decode(&frames()[0].encode()).expect_err("a frame is not a report");
}

#[test]
fn every_damage_to_a_copy_frame_is_found() {
    for frame in copy_frames() {
        let good = frame.encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let decoded = CopyFrame::decode(&bad.into());
            decoded.expect_err(&format!("bit {bit} of a {}", frame.kind()));
        }
        for length in 0..good.len() {
            CopyFrame::decode(&good.slice(..length)).expect_err("cut");
        }
        let longer = [good.as_ref(), &[0]].concat();
        CopyFrame::decode(&longer.into()).expect_err("longer");
        assert_eq!(Frame::decode(&good), Err(DecodeError::Foreign));
    }
    let foreign = CopyFrame::decode(&frames()[0].encode());
    assert_eq!(foreign, Err(DecodeError::Foreign));
}

#[test]
fn every_damage_to_an_order_is_found() {
    let good = order().encode();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        CopyOrder::decode(&bad).expect_err(&format!("bit {bit}"));
    }
    for length in 0..good.len() {
        CopyOrder::decode(&good[..length]).expect_err("cut");
    }
    CopyOrder::decode(&[good.as_slice(), &[0]].concat()).expect_err("longer");
    CopyOrder::decode(&report().encode()).expect_err("a report is not an order");
}

/// Only a chunk carries rows, and never none.
#[test]
fn a_payload_of_a_copy_frame_that_does_not_fit_its_event_is_refused() {
    for mut frame in copy_frames() {
        frame.payload = match frame.payload.is_empty() {
            true => Bytes::from_static(b"1\n"),
            false => Bytes::new(),
        };
        let decoded = CopyFrame::decode(&frame.encode());
        assert!(
            matches!(decoded, Err(DecodeError::Inconsistent(_))),
            "{decoded:?}"
        );
    }
}

/// The kind of a copy frame is in its head; the byte that says it elsewhere has one value.
#[test]
fn another_kind_of_copy_frame_is_refused_by_its_number() {
    let mut bytes = copy_frames()[0].encode().to_vec();
    bytes[5] = 2;
    let undefined = DecodeError::Undefined {
        what: "kind",
        value: 2,
    };
    assert_eq!(CopyFrame::decode(&reseal(bytes).into()), Err(undefined));
}

#[test]
fn foreign_bytes_versions_flags_and_kinds_are_told_apart() {
    let good = frames()[2].encode().to_vec();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        decode(reseal(bytes)).expect_err("refused")
    };
    assert_eq!(decode(b"{\"id\": 1}".to_vec()), Err(DecodeError::Foreign));
    assert_eq!(decode(Vec::new()), Err(DecodeError::Foreign));
    assert_eq!(with(0, b'X'), DecodeError::Foreign);
    assert_eq!(with(4, 2), DecodeError::Version(2));
    assert_eq!(
        with(7, 1),
        DecodeError::Undefined {
            what: "flags",
            value: 1
        }
    );
    assert_eq!(
        with(5, 99),
        DecodeError::Undefined {
            what: "kind",
            value: 99
        }
    );
    // A kind that exists, but is not the body's.
    assert!(matches!(
        with(5, FrameKind::Chunk as u8),
        DecodeError::Head(_)
    ));
}

/// Lengths are compared with what is there, and with their limits, before anything is allocated.
#[test]
fn announced_lengths_are_checked_before_allocation() {
    let good = frames()[0].encode().to_vec();
    let announce = |at: usize, length: u32| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
        decode(reseal(bytes)).expect_err("refused")
    };
    assert_eq!(
        announce(8, u32::MAX),
        DecodeError::HeadTooLarge(u32::MAX as usize)
    );
    let over = MAX_HEAD_BYTES as u32 + 1;
    assert_eq!(announce(8, over), DecodeError::HeadTooLarge(over as usize));
    assert!(matches!(
        announce(8, over - 1),
        DecodeError::Truncated { .. }
    ));
    assert!(matches!(
        announce(12, u32::MAX),
        DecodeError::Truncated { .. }
    ));
}

/// A head that announces a collection far larger than itself is refused by what is left of it.
#[test]
fn counts_inside_the_head_allocate_nothing() {
    let frame = frames().remove(FrameKind::Bundle as usize - 1);
    let good = frame.encode().to_vec();
    let payload = frame.payload.len();
    // The first entry begins with the cluster's id; the count stands in front of it.
    let system = [&[253][..], &7_412_345_678_901_234_567u64.to_le_bytes()].concat();
    let end = good.len() - payload;
    let at = good[..end]
        .windows(system.len())
        .enumerate()
        .filter(|(_, window)| *window == system)
        .nth(1)
        .map(|(at, _)| at - 1)
        .expect("the second id is the first entry's");
    assert_eq!(good[at], 2, "two entries");
    let count = [&[253][..], &(1u64 << 60).to_le_bytes()].concat();
    let mut bad = [&good[..at], &count, &good[at + 1..]].concat();
    let head = (end - FRAME_PREFIX_BYTES + count.len() - 1) as u32;
    bad[8..12].copy_from_slice(&head.to_be_bytes());
    assert!(matches!(decode(reseal(bad)), Err(DecodeError::Head(_))));
}

#[test]
fn bytes_left_over_in_the_head_are_refused() {
    let good = frames()[2].encode().to_vec();
    let mut bad = [good.as_slice(), &[0]].concat();
    let head = (bad.len() - FRAME_PREFIX_BYTES) as u32;
    bad[8..12].copy_from_slice(&head.to_be_bytes());
    assert!(matches!(decode(reseal(bad)), Err(DecodeError::Head(_))));
}

#[test]
fn a_payload_that_does_not_fit_its_head_is_refused() {
    let refused = |body: Body, payload: &[u8]| {
        let frame = Frame {
            header: header(),
            body,
            payload: Bytes::copy_from_slice(payload),
        };
        match decode(frame.encode().to_vec()) {
            Err(DecodeError::Inconsistent(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let all = frames();
    let body = |kind: FrameKind| all[kind as usize - 1].body.clone();
    let bundle = &all[FrameKind::Bundle as usize - 1];
    refused(bundle.body.clone(), &bundle.payload[1..]);
    refused(bundle.body.clone(), &[]);
    refused(Body::Bundle(Vec::new()), &[]);
    refused(body(FrameKind::Chunk), &[]);
    for kind in [
        FrameKind::Genesis,
        FrameKind::Marker,
        FrameKind::Heartbeat,
        FrameKind::Abort,
        FrameKind::Manifest,
    ] {
        refused(body(kind), b"x");
    }
}

/// The head has a limit that the relay must stay below; at 1 MiB it holds what it is said to.
#[test]
#[should_panic(expected = "the head must stay below its limit")]
fn a_head_above_its_limit_is_never_written() {
    let mut frame = frames().remove(FrameKind::Abort as usize - 1);
    if let Body::Abort(abort) = &mut frame.body {
        abort.ranges = (0..MAX_HEAD_BYTES as u32 / 2)
            .map(|at| AbortedRange {
                first: Xid(at * 2),
                last: Xid(at * 2),
            })
            .collect();
    }
    frame.encode();
}
