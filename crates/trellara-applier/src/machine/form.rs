//! What a frame must say of itself, whatever came before it.

use trellara_envelope::{Body, BundleEntry, Frame, Halt, HaltCode, Lane, StreamSequence};

use super::continues_at;

/// What every frame must say of itself, whatever came before.
pub(super) fn check(lane: Lane, sequence: StreamSequence, frame: &Frame) -> Result<(), Halt> {
    let header = &frame.header;
    if header.lane != lane && !closes_or_beats(&frame.body) {
        return Err(corrupt(
            sequence,
            format!("it belongs to lane {}, not {}", header.lane, lane),
        ));
    }
    if !header.lanes.is_empty() {
        return Err(Halt::new(
            HaltCode::Config,
            format!("the frame at sequence {sequence} belongs to a flow that is cut into lanes"),
            "this version applies flows in strict order only: use the version that writes the flow",
        ));
    }
    if header.follows > header.position && continues_at(&frame.body).is_none() {
        return Err(corrupt(
            sequence,
            format!(
                "it goes back from {} to {}",
                header.follows, header.position
            ),
        ));
    }
    match &frame.body {
        Body::Bundle(entries) => check_bundle(sequence, frame, entries),
        Body::Manifest(manifest) if manifest.end_lsn > header.position => Err(corrupt(
            sequence,
            "its transaction ends beyond its position".to_owned(),
        )),
        Body::Manifest(_)
        | Body::Genesis(_)
        | Body::Marker(_)
        | Body::Heartbeat(_)
        | Body::Chunk(_)
        | Body::Abort(_) => Ok(()),
    }
}

fn closes_or_beats(body: &Body) -> bool {
    !matches!(body, Body::Bundle(_) | Body::Manifest(_))
}

fn check_bundle(
    sequence: StreamSequence,
    frame: &Frame,
    entries: &[BundleEntry],
) -> Result<(), Halt> {
    let bytes: u64 = entries.iter().map(|entry| u64::from(entry.bytes)).sum();
    if bytes != frame.payload.len() as u64 {
        return Err(corrupt(
            sequence,
            format!(
                "its entries have {bytes} bytes, its payload {}",
                frame.payload.len()
            ),
        ));
    }
    let mut end = frame.header.follows;
    for entry in entries {
        if entry.end_lsn <= end || entry.commit_lsn >= entry.end_lsn {
            return Err(corrupt(
                sequence,
                format!("transaction {} is out of order", entry.identity()),
            ));
        }
        end = entry.end_lsn;
    }
    if end > frame.header.position {
        return Err(corrupt(
            sequence,
            "its last transaction ends beyond its position".to_owned(),
        ));
    }
    Ok(())
}

fn corrupt(sequence: StreamSequence, reason: String) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!("the frame at sequence {sequence} is damaged: {reason}"),
        "nothing of it was applied; compare the broker's copies of the stream, or restore it",
    )
}
