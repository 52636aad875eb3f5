//! Where to read on: the proof that the stream still holds the checkpoint's frame, or the marker
//! that continues it (C26).

use bytes::Bytes;
use trellara_envelope::{
    DecodeError, Frame, FrameDigest, Halt, HaltCode, Incarnation, StreamSequence,
};
use trellara_jetstream::Broker;
use trellara_jetstream::read::{Reader, SubjectReader};
use trellara_jetstream::topology::{self, StreamFacts};

use crate::checkpoint::{Checkpoint, StreamIdentity};
use crate::machine::{self, Delivered, Machine};
use crate::options::ApplierOptions;
use crate::trouble::Trouble;

/// A damaged delivery is fetched again this often: what was damaged on the way is whole in the
/// stream.
const REFETCHES: usize = 3;

/// Where reading begins.
#[derive(Debug)]
pub(crate) struct Start {
    /// The first sequence to deliver.
    pub(crate) sequence: StreamSequence,
    /// Standing at the checkpoint.
    pub(crate) machine: Machine,
    /// `keep_from` of the checkpoint's frame; 0 (trim nothing) when that is gone.
    pub(crate) keep_from: StreamSequence,
    /// The stream read from.
    pub(crate) stream: StreamIdentity,
}

impl Start {
    /// The incarnation before the checkpoint's, whose chunks a crash may have left behind the
    /// marker's commit. `None` when the checkpoint's frame is gone: in a stream that was rolled
    /// back, numbers up to the checkpoint's are given to new writers, whose chunks are live.
    pub(crate) fn left_behind(&self, checkpoint: &Checkpoint) -> Option<Incarnation> {
        let before = checkpoint.transport.incarnation.0.checked_sub(1)?;
        (self.keep_from.0 > 0).then_some(Incarnation(before))
    }
}

/// Reads the stream's facts; refuses one that may lose data, and one that names another target
/// (C24).
pub(crate) async fn check_stream(
    broker: &Broker,
    options: &ApplierOptions,
    registration: &str,
) -> Result<StreamFacts, Trouble> {
    let name = options.flow.stream();
    let facts = topology::facts_of_flow(broker, &options.flow).await?;
    let (reason, hint) = match facts.target() {
        Some(target) if target == registration => return Ok(facts),
        Some(target) => (
            format!("stream {name} belongs to target {target}, this one is {registration}"),
            "a copy of the target cannot take over its original's stream: name another flow for it",
        ),
        None => (
            format!("stream {name} names no target that may apply it"),
            "run trellara setup",
        ),
    };
    Err(Trouble::probe(Halt::new(HaltCode::Config, reason, hint)))
}

/// Proves that the stream still holds the checkpoint's frame, or finds the newest marker that
/// continues at or below the checkpoint.
pub(crate) async fn find(
    broker: &Broker,
    reader: &Reader,
    options: &ApplierOptions,
    facts: &StreamFacts,
    checkpoint: &Checkpoint,
) -> Result<Start, Trouble> {
    let transport = &checkpoint.transport;
    let stream = StreamIdentity {
        name: facts.name.clone(),
        created: facts.created.clone(),
    };
    let held = reader.get(transport.sequence).await?;
    if let Some(stored) = &held
        && machine::proves(checkpoint, FrameDigest::of(&stored.payload))
    {
        let frame = decode(&stored.payload, stored.sequence)?;
        if frame.header.position > checkpoint.end_lsn {
            return Err(edited(checkpoint, &frame).into());
        }
        return Ok(Start {
            sequence: StreamSequence(transport.sequence.0 + 1),
            machine: Machine::at(options.lane, checkpoint),
            keep_from: frame.header.keep_from,
            stream,
        });
    }
    if let Some(marker) = newest_continuation(broker, options, facts, checkpoint).await? {
        tracing::warn!(
            checkpoint = %transport, marker = %marker,
            "the checkpoint's frame is gone; reading on from a marker that continues below it"
        );
        return Ok(Start {
            sequence: marker,
            machine: Machine::before_marker(options.lane, checkpoint),
            keep_from: StreamSequence(0),
            stream,
        });
    }
    // The relay may be about to publish the marker that heals it: worth looking again.
    Err(Trouble::probe(lost(facts, checkpoint, held.is_some())))
}

async fn newest_continuation(
    broker: &Broker,
    options: &ApplierOptions,
    facts: &StreamFacts,
    checkpoint: &Checkpoint,
) -> Result<Option<StreamSequence>, Trouble> {
    if facts.messages == 0 {
        return Ok(None);
    }
    let mut marks = SubjectReader::open(
        broker,
        &facts.name,
        &options.flow.mark_subject(),
        facts.first_sequence,
        facts.last_sequence,
    )
    .await?;
    let mut newest = None;
    while let Some(stored) = marks.next().await? {
        let frame = decode(&stored.payload, stored.sequence)?;
        if machine::may_begin(checkpoint, &frame) {
            newest = Some(stored.sequence);
        }
    }
    Ok(newest)
}

/// A checkpoint names the last frame wholly applied, so it cannot stand below that frame's end.
fn edited(checkpoint: &Checkpoint, frame: &Frame) -> Halt {
    Halt::new(
        HaltCode::State,
        format!(
            "the checkpoint stands at {}, but the frame that it names as applied ({}) ends at {}",
            checkpoint.end_lsn, checkpoint.transport, frame.header.position
        ),
        "was trellara.applied changed by hand, or restored in part? Restore the whole target, or \
         copy the tables anew",
    )
}

fn lost(facts: &StreamFacts, checkpoint: &Checkpoint, another_there: bool) -> Halt {
    let transport = &checkpoint.transport;
    if transport.stream.created != facts.created {
        return Halt::new(
            HaltCode::StreamReplaced,
            format!(
                "stream {} was created at {}, the target was fed from one created at {}, and no \
                 marker in it continues at or below the target's position {}",
                facts.name, facts.created, transport.stream.created, checkpoint.end_lsn
            ),
            "restore the old stream; with source.acknowledge applied: trellara setup --new-stream",
        );
    }
    let what = if another_there {
        "another frame stands in its place".to_owned()
    } else {
        format!(
            "the stream now holds sequences {} to {}",
            facts.first_sequence, facts.last_sequence
        )
    };
    Halt::new(
        HaltCode::Gap,
        format!(
            "the last frame applied, {transport}, is no longer in the stream ({what}), and no \
             marker continues at or below the target's position {}",
            checkpoint.end_lsn
        ),
        "restore the stream or the target to points that meet, or copy the tables anew",
    )
}

/// A delivery as a frame of our flow. A damaged one is fetched from the stream again before it is
/// called corrupt.
pub(crate) async fn open(
    reader: &Reader,
    options: &ApplierOptions,
    sequence: StreamSequence,
    payload: Bytes,
) -> Result<Delivered, Trouble> {
    let payload = undamaged(reader, sequence, payload).await?;
    delivered(options, sequence, &payload)
}

/// The same with its bytes, as the stream holds them.
pub(crate) async fn open_stored(
    reader: &Reader,
    options: &ApplierOptions,
    sequence: StreamSequence,
    payload: Bytes,
) -> Result<(Delivered, Bytes), Trouble> {
    let payload = undamaged(reader, sequence, payload).await?;
    Ok((delivered(options, sequence, &payload)?, payload))
}

async fn undamaged(
    reader: &Reader,
    sequence: StreamSequence,
    payload: Bytes,
) -> Result<Bytes, Trouble> {
    let mut payload = payload;
    for _ in 0..REFETCHES {
        if Frame::decode(&payload).is_ok() {
            break;
        }
        let Some(stored) = reader.get(sequence).await? else {
            break;
        };
        payload = stored.payload;
    }
    Ok(payload)
}

fn delivered(
    options: &ApplierOptions,
    sequence: StreamSequence,
    payload: &Bytes,
) -> Result<Delivered, Trouble> {
    let frame = decode(payload, sequence)?;
    if frame.header.flow != options.flow {
        return Err(corrupt(
            sequence,
            &format!("it belongs to flow {}", frame.header.flow),
        )
        .into());
    }
    Ok(Delivered {
        sequence,
        digest: FrameDigest::of(payload),
        frame,
    })
}

pub(crate) fn decode(payload: &Bytes, sequence: StreamSequence) -> Result<Frame, Halt> {
    Frame::decode(payload).map_err(|error: DecodeError| corrupt(sequence, &error.to_string()))
}

pub(crate) fn corrupt(sequence: StreamSequence, what: &str) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!("the frame at sequence {sequence} cannot be used: {what}"),
        "nothing of it was applied; look at it with trellara inspect, and restore the stream",
    )
}

#[cfg(test)]
mod tests {
    use trellara_envelope::Lane;

    use super::*;
    use crate::machine::testing::checkpoint_at;

    #[test]
    fn chunks_of_a_stream_that_was_rolled_back_are_left_alone() {
        let mut durable = checkpoint_at(50, 0x100);
        durable.transport.incarnation = Incarnation(5);
        let mut start = Start {
            sequence: StreamSequence(51),
            machine: Machine::at(Lane(0), &durable),
            keep_from: StreamSequence(50),
            stream: durable.transport.stream.clone(),
        };
        assert_eq!(start.left_behind(&durable), Some(Incarnation(4)));
        // The checkpoint's frame is gone: 4 may be whoever writes now.
        start.keep_from = StreamSequence(0);
        assert_eq!(start.left_behind(&durable), None);
        start.keep_from = StreamSequence(50);
        durable.transport.incarnation = Incarnation(0);
        assert_eq!(start.left_behind(&durable), None);
    }
}
