//! Where the flow ends in its stream, which is not always where the stream ends.
//!
//! Two things can lie between: messages that were removed again, and frames of a writer that had
//! lost the stream. A writer sends ahead, each frame expecting the sequence of the one before;
//! when its successor's marker takes the place of one of them, that one is refused, and those
//! behind it expect a sequence that the stream now has. Where one copy is kept the publisher
//! prevents it (`Publisher::fencing_pipelines`); elsewhere they land behind the marker.
//! They continue a frame that was never stored, so they are passed over: the flow goes on behind
//! the newest writer's last frame, and the next marker tells readers that they are closed.
//!
//! The flow's last frame may be a void marker, one that stands on another frame than it names
//! (`machine::footing`). Its writer published nothing behind it, so the flow ends below it.

use std::pin::Pin;

use trellara_envelope::{Body, FlowName, Frame, Incarnation, StreamSequence};
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
    /// Where the newest writer's last frame stands: the same, or a void marker.
    pub(crate) newest_at: StreamSequence,
    /// Whether frames of a lower incarnation stand behind it.
    pub(crate) passed_over: bool,
}

/// Reads it.
pub(crate) async fn read(reader: &Reader, flow: &FlowName) -> Result<Ending, BrokerError> {
    let end = reader.end().await?;
    match &end.message {
        None => Ok(Ending::Empty),
        Some(message) => at_or_before(reader, flow, &end, message).await,
    }
}

/// The flow's last frame up to a message.
fn at_or_before<'a>(
    reader: &'a Reader,
    flow: &'a FlowName,
    end: &'a StreamEnd,
    message: &'a StoredFrameBytes,
) -> Pin<Box<dyn Future<Output = Result<Ending, BrokerError>> + Send + 'a>> {
    Box::pin(async move {
        let last = match of_newest_writer(reader, flow, end, message).await? {
            Ending::At(last) if matches!(last.frame.body, Body::Marker(_)) => last,
            other => return Ok(other),
        };
        let Some(stored) = reader
            .get(StreamSequence(last.at.0.saturating_sub(1)))
            .await?
        else {
            // Removed, which only somebody does who has read the marker too.
            return Ok(Ending::At(last));
        };
        let named = last.frame.header.previous;
        if Frame::digest_of(&stored.payload) == named {
            return Ok(Ending::At(last));
        }
        let below = match at_or_before(reader, flow, end, &stored).await? {
            Ending::At(below) if below.tail.digest != named => below,
            _ => return Ok(Ending::At(last)),
        };
        tracing::warn!(
            sequence = last.at.0,
            incarnation = last.tail.incarnation.0,
            "a marker stands on another frame than it names; going on from below it"
        );
        Ok(Ending::At(Box::new(Last {
            tail: Tail {
                incarnation: last.tail.incarnation,
                ..below.tail
            },
            newest_at: last.newest_at,
            ..*below
        })))
    })
}

/// The last frame up to a message of the newest writer that there is up to it.
async fn of_newest_writer(
    reader: &Reader,
    flow: &FlowName,
    end: &StreamEnd,
    message: &StoredFrameBytes,
) -> Result<Ending, BrokerError> {
    let last = match last_of(end, message, flow) {
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
        match last_of(end, &stored, flow) {
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
        newest_at: message.sequence,
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
