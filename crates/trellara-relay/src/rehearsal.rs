//! Duplicates on purpose, for demonstrations and tests: a range that is stored already is
//! published once more, as a relay of a new incarnation would after it lost its memory.
//!
//! The frames are real: a marker that continues the chain, the old bundles and manifests behind it
//! under new ordinals, and a heartbeat that leads back to the position where the flow stands. A
//! relay that starts afterwards goes on behind them, and finds in the newest of them the flow's
//! last transaction, by which it knows its source again: so nothing up to the end is left out.

use trellara_envelope::{
    Body, CommitTime, FlowName, Frame, FrameDigest, FrameOrdinal, Heartbeat, Incarnation, Lane,
    Lsn, Marker, StreamSequence,
};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::read::Reader;
use trellara_jetstream::{Broker, BrokerError};

/// Stream sequences looked through for transactions, from the tail backwards.
const LOOK_BACK: u64 = 200;

/// What was published again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated {
    /// Bundles and manifests.
    pub frames: usize,
    /// Transactions in them.
    pub transactions: usize,
}

/// Why nothing, or not everything, was published again.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// The broker did not answer, or refused to.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The stream holds nothing that could be repeated.
    #[error("cannot make duplicates: {0}")]
    Nothing(&'static str),
    /// A frame of the stream cannot be read.
    #[error("cannot make duplicates: {0}")]
    Damaged(#[from] trellara_envelope::DecodeError),
    /// The stream did not take a frame where it belongs; another writer is at work.
    #[error("cannot make duplicates: a frame was not stored: {0:?}")]
    NotStored(Outcome),
}

/// Publishes the last stored bundles and manifests again, at most `most` of them.
///
/// The flow's relay must be down: the stream has one writer. When its last words are still on
/// their way this fails with [`RehearsalError::NotStored`] and may be tried again.
pub async fn publish_again(
    broker: &Broker,
    flow: &FlowName,
    most: usize,
) -> Result<Repeated, RehearsalError> {
    let reader = Reader::new(broker, &flow.stream());
    let tail = reader
        .tail()
        .await?
        .ok_or(RehearsalError::Nothing("the stream is empty"))?;
    let tail_frame = Frame::decode(&tail.payload)?;
    let frames = last_transactions(&reader, flow, tail.sequence, most).await?;
    let marker = last_marker(&reader, flow).await?;
    let mut chain = Chain {
        publisher: Publisher::new(broker, &flow.stream()),
        last: tail.sequence,
        digest: FrameDigest::of(&tail.payload),
        ordinal: tail_frame.header.ordinal,
        incarnation: Incarnation(tail_frame.header.incarnation.0 + 1),
    };
    // An earlier call that was cut short leaves a tail that lies below where the flow stands.
    let stands_at = frames
        .iter()
        .map(|frame| frame.header.position)
        .fold(tail_frame.header.position, Lsn::max);
    let mut opening = tail_frame.clone();
    opening.header.follows = stands_at;
    opening.body = Body::Marker(Marker {
        continues_at: stands_at,
        ..marker
    });
    opening.payload = bytes::Bytes::new();
    chain.publish(opening).await?;
    let mut repeated = Repeated {
        frames: frames.len(),
        transactions: 0,
    };
    let repeated_to = frames.last().map(|frame| frame.header.position);
    for frame in frames {
        repeated.transactions += match &frame.body {
            Body::Bundle(entries) => entries.len(),
            _ => 1,
        };
        chain.publish(frame).await?;
    }
    let mut back = tail_frame;
    back.header.follows = repeated_to.unwrap_or(stands_at);
    back.header.position = stands_at;
    back.body = Body::Heartbeat(Heartbeat {
        source_time: CommitTime(0),
    });
    back.payload = bytes::Bytes::new();
    chain.publish(back).await?;
    Ok(repeated)
}

/// Where the next frame goes.
struct Chain {
    publisher: Publisher,
    last: StreamSequence,
    digest: FrameDigest,
    ordinal: FrameOrdinal,
    incarnation: Incarnation,
}

impl Chain {
    async fn publish(&mut self, mut frame: Frame) -> Result<(), RehearsalError> {
        let expected = StreamSequence(self.last.0 + 1);
        frame.header.incarnation = self.incarnation;
        frame.header.ordinal = FrameOrdinal(self.ordinal.0 + 1);
        frame.header.previous = self.digest;
        frame.header.keep_from = expected;
        let payload = frame.encode();
        let outgoing = Outgoing {
            subject: frame.subject(),
            payload: payload.clone(),
            expected_last: self.last,
            message_id: None,
            headers: vec![("Trellara-Kind", frame.body.kind().as_str().to_owned())],
        };
        match self.publisher.publish(outgoing).await {
            Outcome::Stored { sequence } if sequence == expected => {}
            other => return Err(RehearsalError::NotStored(other)),
        }
        self.last = expected;
        self.ordinal = frame.header.ordinal;
        self.digest = FrameDigest::of(&payload);
        Ok(())
    }
}

/// The last frames that hold transactions, oldest first.
async fn last_transactions(
    reader: &Reader,
    flow: &FlowName,
    tail: StreamSequence,
    most: usize,
) -> Result<Vec<Frame>, RehearsalError> {
    let subject = flow.transactions_subject(Lane(0));
    let mut from = StreamSequence(tail.0.saturating_sub(LOOK_BACK).max(1));
    let mut frames = Vec::new();
    while let Some(message) = reader.next_on(&subject, from).await? {
        let frame = Frame::decode(&message.payload)?;
        if matches!(frame.body, Body::Bundle(_) | Body::Manifest(_)) {
            frames.push(frame);
        }
        from = StreamSequence(message.sequence.0 + 1);
    }
    Ok(frames.split_off(frames.len().saturating_sub(most)))
}

async fn last_marker(reader: &Reader, flow: &FlowName) -> Result<Marker, RehearsalError> {
    let mut from = StreamSequence(1);
    let mut last = None;
    while let Some(message) = reader.next_on(&flow.mark_subject(), from).await? {
        from = StreamSequence(message.sequence.0 + 1);
        if let Body::Marker(marker) = Frame::decode(&message.payload)?.body {
            last = Some(marker);
        }
    }
    last.ok_or(RehearsalError::Nothing("the stream holds no marker"))
}
