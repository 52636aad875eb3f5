//! Duplicates on purpose: a range that is stored already is published once more, as a relay of a
//! new incarnation would after it lost its memory.
//!
//! The frames are real: a marker that continues the chain, the old bundles behind it under new
//! ordinals, and a heartbeat that leads back to the position where the flow stands.

use trellara_envelope::{
    Body, CommitTime, FlowName, Frame, FrameDigest, FrameOrdinal, Heartbeat, Incarnation, Lane,
    Marker, StreamSequence,
};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::read::Reader;
use trellara_jetstream::{Broker, NatsOptions};

use crate::exit::{Exit, Failure};

/// Bundles published again, at most.
const MOST_BUNDLES: usize = 25;

/// What was published again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeated {
    pub(super) frames: usize,
    pub(super) transactions: usize,
}

/// Publishes the last stored bundles again. The relay must be down: the stream has one writer.
pub(super) async fn publish_again(url: &str, flow: &FlowName) -> Result<Repeated, Failure> {
    let options = NatsOptions {
        url: url.to_owned(),
        client_name: "trellara demo".to_owned(),
        ..NatsOptions::default()
    };
    let broker = Broker::connect(&options).await?;
    let reader = Reader::new(&broker, &flow.stream());
    let Some(tail) = reader.tail().await? else {
        return Err(bug("the stream is empty"));
    };
    let tail_frame = decode(&tail.payload)?;
    let bundles = last_bundles(&reader, flow, tail.sequence).await?;
    let marker = last_marker(&reader, flow).await?;
    let mut chain = Chain {
        publisher: Publisher::new(&broker, &flow.stream()),
        last: tail.sequence,
        digest: FrameDigest::of(&tail.payload),
        ordinal: tail_frame.header.ordinal,
        incarnation: Incarnation(tail_frame.header.incarnation.0 + 1),
    };
    let stands_at = tail_frame.header.position;
    let mut opening = tail_frame.clone();
    opening.header.follows = stands_at;
    opening.body = Body::Marker(Marker {
        continues_at: stands_at,
        ..marker
    });
    opening.payload = bytes::Bytes::new();
    chain.publish(opening).await?;
    let mut transactions = 0;
    for bundle in &bundles {
        if let Body::Bundle(entries) = &bundle.body {
            transactions += entries.len();
        }
        chain.publish(bundle.clone()).await?;
    }
    let mut back = tail_frame;
    back.header.follows = bundles
        .last()
        .map_or(stands_at, |bundle| bundle.header.position);
    back.header.position = stands_at;
    back.body = Body::Heartbeat(Heartbeat {
        source_time: CommitTime(0),
    });
    back.payload = bytes::Bytes::new();
    chain.publish(back).await?;
    broker.close().await;
    Ok(Repeated {
        frames: bundles.len(),
        transactions,
    })
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
    async fn publish(&mut self, mut frame: Frame) -> Result<(), Failure> {
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
            other => return Err(bug(&format!("a duplicate was not stored: {other:?}"))),
        }
        self.last = expected;
        self.ordinal = frame.header.ordinal;
        self.digest = FrameDigest::of(&payload);
        Ok(())
    }
}

/// The last bundles, oldest first, found by walking backwards in steps.
async fn last_bundles(
    reader: &Reader,
    flow: &FlowName,
    tail: StreamSequence,
) -> Result<Vec<Frame>, Failure> {
    const STEP: u64 = 200;
    let subject = flow.transactions_subject(Lane(0));
    let mut from = StreamSequence(tail.0.saturating_sub(STEP).max(1));
    let mut bundles = Vec::new();
    while let Some(message) = reader.next_on(&subject, from).await? {
        let frame = decode(&message.payload)?;
        if matches!(frame.body, Body::Bundle(_)) {
            bundles.push(frame);
        }
        from = StreamSequence(message.sequence.0 + 1);
    }
    Ok(bundles.split_off(bundles.len().saturating_sub(MOST_BUNDLES)))
}

async fn last_marker(reader: &Reader, flow: &FlowName) -> Result<Marker, Failure> {
    let mut from = StreamSequence(1);
    let mut last = None;
    while let Some(message) = reader.next_on(&flow.mark_subject(), from).await? {
        from = StreamSequence(message.sequence.0 + 1);
        if let Body::Marker(marker) = decode(&message.payload)?.body {
            last = Some(marker);
        }
    }
    last.ok_or_else(|| bug("the stream holds no marker"))
}

fn decode(payload: &bytes::Bytes) -> Result<Frame, Failure> {
    Frame::decode(payload).map_err(|error| bug(&error.to_string()))
}

fn bug(what: &str) -> Failure {
    Failure::new(
        Exit::Unexpected,
        format!("cannot make duplicates: {what}"),
        "",
    )
}
