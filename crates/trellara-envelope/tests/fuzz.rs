//! Frames, reports and records under damage; see `tests/fuzz/README.md` of the repository.

mod support;

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;

use bytes::Bytes;
use mutate::{Random, fuzz};
use support::{frames, report};
use trellara_envelope::{FRAME_PREFIX_BYTES, Frame, PositionReport, records};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Makes lengths and checksum fit, most of the time, so that damage reaches the head.
fn reseal_frame(bytes: &mut [u8], random: &mut Random) {
    if bytes.len() < FRAME_PREFIX_BYTES || random.below(8) == 0 {
        return;
    }
    let head = u32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
    let behind = bytes.len() - FRAME_PREFIX_BYTES;
    if let Some(payload) = behind.checked_sub(head) {
        bytes[12..16].copy_from_slice(&(payload as u32).to_be_bytes());
    }
    let mut checksum = Xxh3::new();
    checksum.update(&bytes[..16]);
    checksum.update(&bytes[FRAME_PREFIX_BYTES..]);
    bytes[16..24].copy_from_slice(&checksum.digest().to_be_bytes());
}

#[test]
fn frames_survive_damage() {
    let seeds = frames()
        .iter()
        .map(|frame| frame.encode().to_vec())
        .collect();
    fuzz("frames", seeds, |input, random| {
        let mut bytes = input.to_vec();
        reseal_frame(&mut bytes, random);
        let bytes = Bytes::from(bytes);
        let Ok(frame) = Frame::decode(&bytes) else {
            return false;
        };
        let pieces = frame.transactions().map(|(_, records)| records.len());
        let walked: usize = pieces.sum();
        assert!(walked == 0 || walked == frame.payload.len());
        assert!(!frame.subject().is_empty());
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        true
    });
}

#[test]
fn reports_survive_damage() {
    fuzz("reports", vec![report().encode()], |input, random| {
        let mut bytes = input.to_vec();
        if bytes.len() >= 13 && random.below(8) > 0 {
            let checksum = xxh3_64(&bytes[13..]).to_be_bytes();
            bytes[5..13].copy_from_slice(&checksum);
        }
        let Ok(report) = PositionReport::decode(&bytes) else {
            return false;
        };
        assert_eq!(PositionReport::decode(&report.encode()), Ok(report));
        true
    });
}

#[test]
fn records_survive_damage() {
    let mut seed = Vec::new();
    for message in [&b"one"[..], b"", b"the third", &[0; 300]] {
        records::push(&mut seed, message);
    }
    fuzz("records", vec![seed], |input, _| {
        let mut walker = records::Records::new(input);
        let mut again = Vec::new();
        while let Some(message) = walker.next_complete() {
            records::push(&mut again, message);
        }
        again.extend_from_slice(walker.rest());
        assert_eq!(again, input, "every byte once");
        let whole = records::Records::new(input).all(|record| record.is_ok());
        assert_eq!(whole, walker.rest().is_empty());
        whole
    });
}
