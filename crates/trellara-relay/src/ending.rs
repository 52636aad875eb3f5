//! Where the flow ends in its stream, which is not always where the stream ends.
//!
//! Two things can lie between: messages that were removed again, and frames of a writer that had
//! lost the stream. A writer sends ahead, each frame expecting the sequence of the one before;
//! when its successor's marker takes the place of one of them, that one is refused, and those
//! behind it expect a sequence that the stream now has. Where one copy is kept the publisher
//! prevents it (`Publisher::fencing_pipelines`); elsewhere they land behind the marker.
//! They continue a frame that was never stored, so they are passed over: the flow goes on behind
//! the newest writer's last frame, and the next marker tells readers that they are closed.

use trellara_envelope::{FlowName, Frame, Incarnation, StreamSequence};
use trellara_jetstream::BrokerError;
use trellara_jetstream::publish::Publisher;
use trellara_jetstream::read::{Reader, StoredFrameBytes, StreamEnd};

use crate::facts::{frame_of, tail_of};
use crate::machine::Tail;

/// What stands at the end.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Nothing at all.
    Empty,
    /// Something that is not a frame of this flow; why.
    Foreign(String),
    /// The flow's last frame.
    At(Box<Last>),
}

/// The flow's last frame.
#[derive(Debug)]
pub(crate) struct Last {
    /// The frame, with the sequence at which the *stream* ends: the next frame continues the one
    /// and is stored behind the other.
    pub(crate) tail: Tail,
    pub(crate) frame: Frame,
    /// Where the frame itself stands.
    pub(crate) at: StreamSequence,
    /// Whether frames of a lower incarnation stand behind it.
    pub(crate) passed_over: bool,
}

/// Reads it.
pub(crate) async fn read(reader: &Reader, flow: &FlowName) -> Result<Ending, BrokerError> {
    let end = reader.end().await?;
    let Some(message) = &end.message else {
        return Ok(Ending::Empty);
    };
    let last = match last_of(&end, message, flow) {
        Ok(last) => last,
        Err(reason) => return Ok(Ending::Foreign(reason)),
    };
    let newest = newest_writer(reader, flow, &last).await?;
    if newest <= last.tail.incarnation {
        return Ok(Ending::At(Box::new(last)));
    }
    let mut at = last.at;
    while let Some(before) = at.0.checked_sub(1).filter(|before| *before > 0) {
        at = StreamSequence(before);
        let Some(stored) = reader.get(at).await? else {
            continue;
        };
        match last_of(&end, &stored, flow) {
            Ok(found) if found.tail.incarnation == newest => {
                tracing::warn!(
                    incarnation = newest.0,
                    lower = last.tail.incarnation.0,
                    from = at.0 + 1,
                    "frames of a writer that had lost the stream are passed over"
                );
                return Ok(Ending::At(Box::new(Last {
                    passed_over: true,
                    ..found
                })));
            }
            Ok(_) => {}
            Err(reason) => return Ok(Ending::Foreign(reason)),
        }
    }
    // Trimmed away between the two looks: the next attempt sees it as it is now.
    Ok(Ending::At(Box::new(last)))
}

/// The stream's end for a relay that is running: what it continues is in its own memory.
pub(crate) fn stream_end(end: &StreamEnd, flow: &FlowName) -> Ending {
    match end.message.as_ref().map(|last| last_of(end, last, flow)) {
        None => Ending::Empty,
        Some(Err(reason)) => Ending::Foreign(reason),
        Some(Ok(last)) => Ending::At(Box::new(last)),
    }
}

fn last_of(end: &StreamEnd, message: &StoredFrameBytes, flow: &FlowName) -> Result<Last, String> {
    let (mut tail, frame) = tail_of(message, flow)?;
    tail.sequence = end.last_sequence;
    Ok(Last {
        tail,
        frame,
        at: message.sequence,
        passed_over: false,
    })
}

/// The highest incarnation among the marks that a lower writer's frames on their way could have
/// passed: it has at most [`Publisher::MAX_IN_FLIGHT`] of them.
async fn newest_writer(
    reader: &Reader,
    flow: &FlowName,
    last: &Last,
) -> Result<Incarnation, BrokerError> {
    let mut newest = last.tail.incarnation;
    let window = Publisher::MAX_IN_FLIGHT as u64;
    for subject in [flow.mark_subject(), flow.beat_subject()] {
        let mut from = StreamSequence(last.at.0.saturating_sub(window).max(1));
        while let Some(mark) = reader.next_on(&subject, from).await? {
            if mark.sequence > last.at {
                break;
            }
            if let Ok(frame) = frame_of(&mark.payload, flow) {
                newest = newest.max(frame.header.incarnation);
            }
            from = mark.sequence.next();
        }
    }
    Ok(newest)
}
