//! The bytes of format version 1, pinned: what is stored today must be readable for ever.
//!
//! When one of these fails, the format has changed. Stored frames cannot be rewritten, so the
//! cure is a new format version beside this one, never new golden files.

mod support;

use bytes::Bytes;
use support::{copy_frames, frames, hex, laned, order, report};
use trellara_envelope::{CopyFrame, CopyOrder, FORMAT_VERSION, Frame, PositionReport};

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/v1/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).expect("a digit") as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4) | pair[1])
        .collect()
}

#[test]
fn version_1_frames_have_their_golden_bytes() {
    assert_eq!(FORMAT_VERSION, 1, "the golden files are those of version 1");
    let named = frames()
        .into_iter()
        .map(|frame| (frame.body.kind().as_str(), frame));
    for (name, frame) in named.chain([("lanes", laned())]) {
        let encoded = frame.encode();
        assert_eq!(
            hex(&encoded),
            hex(&golden(name)),
            "encoding of a {name} frame"
        );
        let decoded = Frame::decode(&Bytes::from(golden(name)));
        assert_eq!(decoded, Ok(frame), "decoding of a {name} frame");
    }
}

#[test]
fn version_1_position_reports_have_their_golden_bytes() {
    assert_eq!(hex(&report().encode()), hex(&golden("report")));
    assert_eq!(PositionReport::decode(&golden("report")), Ok(report()));
}

#[test]
fn version_1_copy_frames_have_their_golden_bytes() {
    for frame in copy_frames() {
        let (name, encoded) = (frame.kind(), frame.encode());
        assert_eq!(hex(&encoded), hex(&golden(name)), "encoding of a {name}");
        let decoded = CopyFrame::decode(&Bytes::from(golden(name)));
        assert_eq!(decoded, Ok(frame), "decoding of a {name}");
    }
}

#[test]
fn version_1_copy_orders_have_their_golden_bytes() {
    assert_eq!(hex(&order().encode()), hex(&golden("copy-order")));
    assert_eq!(CopyOrder::decode(&golden("copy-order")), Ok(order()));
}
