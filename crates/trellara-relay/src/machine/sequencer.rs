//! Frames in order: numbered, chained, published, kept until acknowledged.
//!
//! There is one writer and it says with every frame at which sequence it must be stored, so the
//! sequence of every frame is known before it is sent: tail + 1, + 2, … Frames stay here, as the
//! bytes that were or will be published, until the contiguous prefix of acknowledgements reaches
//! them; after a doubt the same bytes go out again at the same sequences (R4).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::{
    Body, FlowName, Frame, FrameDigest, FrameKind, FrameOrdinal, Header, Incarnation, Lane, Lsn,
    SourceId, StreamSequence,
};

use super::space::{MESSAGE_OVERHEAD, Space};
use super::{Command, Publish, Tail};

pub(super) use self::settle::TailVerdict;

mod settle;

/// A frame that is not acknowledged yet, or not as part of the contiguous prefix.
#[derive(Debug)]
struct Waiting {
    ordinal: FrameOrdinal,
    sequence: StreamSequence,
    digest: FrameDigest,
    position: Lsn,
    kind: FrameKind,
    subject: String,
    headers: Vec<(&'static str, String)>,
    payload: Bytes,
    transactions: u64,
    /// How often it was sent; 0 before the first time.
    attempt: u32,
    /// Whether it is to be sent (again).
    unsent: bool,
    acknowledged: bool,
}

/// A frame that has left the window: part of the contiguous acknowledged prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) ordinal: FrameOrdinal,
    pub(super) sequence: StreamSequence,
    pub(super) digest: FrameDigest,
    pub(super) position: Lsn,
    pub(super) kind: FrameKind,
    pub(super) bytes: u64,
    pub(super) transactions: u64,
}

#[derive(Debug)]
pub(super) struct Sequencer {
    flow: FlowName,
    source: SourceId,
    incarnation: Incarnation,
    message_ids: bool,
    /// Last frame built.
    head: Tail,
    /// Last frame acknowledged as part of the contiguous prefix.
    acknowledged: Tail,
    window: VecDeque<Waiting>,
    window_bytes: usize,
    pub(super) space: Space,
    /// Nothing is sent: an outcome is in doubt.
    pub(super) paused: bool,
    /// Not before this time, after the broker said that the stream is full.
    full_until: Option<Duration>,
    /// The oldest unsent frame does not fit into the stream.
    held: bool,
    /// The broker refused a frame for lack of room, and has stored none since.
    refused: bool,
}

impl Sequencer {
    pub(super) fn new(
        flow: FlowName,
        source: SourceId,
        incarnation: Incarnation,
        message_ids: bool,
        tail: Tail,
        space: Space,
    ) -> Self {
        Self {
            flow,
            source,
            incarnation,
            message_ids,
            head: tail.clone(),
            acknowledged: tail,
            window: VecDeque::new(),
            window_bytes: 0,
            space,
            paused: false,
            full_until: None,
            held: false,
            refused: false,
        }
    }

    /// The sequence of the next frame built.
    pub(super) fn next_sequence(&self) -> StreamSequence {
        StreamSequence(self.head.sequence.0 + 1)
    }

    /// Position of the last positional frame built.
    pub(super) fn position(&self) -> Lsn {
        self.head.position
    }

    /// Number of the last frame built.
    pub(super) fn last_ordinal(&self) -> FrameOrdinal {
        self.head.ordinal
    }

    /// This writer.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The last frame of the acknowledged prefix.
    pub(super) fn acknowledged(&self) -> &Tail {
        &self.acknowledged
    }

    /// Bytes of frames not acknowledged.
    pub(super) fn window_bytes(&self) -> usize {
        self.window_bytes
    }

    /// Whether every frame built is acknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Whether the oldest frame that is not stored does not fit into the stream.
    pub(super) fn is_held(&self) -> bool {
        self.held || self.refused
    }

    /// Whether the broker has no room for any frame, whatever the stream's own limit says: its
    /// disk or its account may be full.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// The broker has no room; the next attempt is at `again`.
    pub(super) fn refuse(&mut self, again: Duration) {
        self.full_until = Some(again);
        self.refused = true;
    }

    /// Whether the oldest frame in the window is acknowledged.
    pub(super) fn is_first_acknowledged(&self) -> bool {
        self.window.front().is_some_and(|first| first.acknowledged)
    }

    /// Builds the next frame and puts it into the window; [`Sequencer::pump`] sends it.
    /// `keep_from` is the lowest sequence an open transaction needs. Returns where the frame will
    /// be stored and what it takes there.
    pub(super) fn push(
        &mut self,
        body: Body,
        payload: impl Into<Bytes>,
        advance: Option<Advance>,
        keep_from: Option<StreamSequence>,
    ) -> (StreamSequence, u64) {
        let sequence = self.next_sequence();
        let ordinal = FrameOrdinal(self.head.ordinal.0 + 1);
        let kind = body.kind();
        assert_eq!(
            advance.is_some(),
            kind.is_positional(),
            "exactly positional frames move the position"
        );
        let here = self.head.position;
        let advance = advance.unwrap_or(Advance {
            follows: here,
            position: here,
        });
        assert!(advance.position >= here, "positions never go back");
        let headers = headers(&body, self.incarnation, advance.position);
        let transactions = match &body {
            Body::Bundle(entries) => entries.len() as u64,
            Body::Manifest(_) => 1,
            _ => 0,
        };
        let frame = Frame {
            header: Header {
                flow: self.flow.clone(),
                source: self.source,
                incarnation: self.incarnation,
                ordinal,
                previous: self.head.digest,
                position: advance.position,
                keep_from: keep_from.unwrap_or(sequence).min(sequence),
                lane: Lane(0),
                follows: advance.follows,
                lanes: Vec::new(),
                mac: Vec::new(),
            },
            body,
            payload: payload.into(),
        };
        let payload = frame.encode();
        let digest = Frame::digest_of(&payload);
        self.head = Tail {
            sequence,
            ordinal,
            digest,
            position: advance.position,
            incarnation: self.incarnation,
        };
        self.window_bytes += payload.len();
        let stored = payload.len() as u64 + MESSAGE_OVERHEAD;
        self.window.push_back(Waiting {
            ordinal,
            sequence,
            digest,
            position: advance.position,
            kind,
            subject: frame.subject(),
            headers,
            payload,
            transactions,
            attempt: 0,
            unsent: true,
            acknowledged: false,
        });
        (sequence, stored)
    }

    /// Sends what may be sent, in order.
    pub(super) fn pump(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.full_until.is_some_and(|until| until <= now) {
            self.full_until = None;
        }
        self.held = false;
        if self.paused || self.full_until.is_some() {
            return;
        }
        for waiting in self.window.iter_mut().filter(|waiting| waiting.unsent) {
            let first_time = waiting.attempt == 0;
            if first_time && !self.space.fits(waiting.kind, waiting.payload.len()) {
                self.held = true;
                return;
            }
            self.space
                .published(waiting.sequence, waiting.payload.len());
            waiting.attempt += 1;
            waiting.unsent = false;
            out.push(Command::Publish(Publish {
                ordinal: waiting.ordinal,
                attempt: waiting.attempt,
                subject: waiting.subject.clone(),
                payload: waiting.payload.clone(),
                expected_last: StreamSequence(waiting.sequence.0 - 1),
                message_id: self.message_ids.then(|| {
                    // Never the id of a transaction: with other content or after a doubt, such an
                    // id swallows what was not stored (C17).
                    format!("{}:{}:{}", self.flow, waiting.ordinal, waiting.digest)
                }),
                headers: waiting.headers.clone(),
            }));
        }
    }

    /// Whether a frame is still waited for, and in which attempt.
    pub(super) fn waiting(&self, ordinal: FrameOrdinal) -> Option<(u32, StreamSequence)> {
        let waiting = self.window.get(self.index(ordinal)?)?;
        (!waiting.acknowledged).then_some((waiting.attempt, waiting.sequence))
    }

    /// The frame was acknowledged at its expected sequence.
    pub(super) fn acknowledge(&mut self, ordinal: FrameOrdinal) {
        if let Some(index) = self.index(ordinal)
            && let Some(waiting) = self.window.get_mut(index)
        {
            waiting.acknowledged = true;
            waiting.unsent = false;
        }
    }

    /// Takes the next frame of the contiguous acknowledged prefix.
    pub(super) fn pop(&mut self) -> Option<Stored> {
        if !self.window.front()?.acknowledged {
            return None;
        }
        let frame = self.window.pop_front()?;
        self.window_bytes -= frame.payload.len();
        self.refused = false;
        self.acknowledged = Tail {
            sequence: frame.sequence,
            ordinal: frame.ordinal,
            digest: frame.digest,
            position: frame.position,
            incarnation: self.incarnation,
        };
        Some(Stored {
            ordinal: frame.ordinal,
            sequence: frame.sequence,
            digest: frame.digest,
            position: frame.position,
            kind: frame.kind,
            bytes: frame.payload.len() as u64,
            transactions: frame.transactions,
        })
    }

    fn index(&self, ordinal: FrameOrdinal) -> Option<usize> {
        let first = self.window.front()?.ordinal.0;
        usize::try_from(ordinal.0.checked_sub(first)?).ok()
    }
}

/// How a positional frame moves the flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Advance {
    pub(super) follows: Lsn,
    pub(super) position: Lsn,
}

/// What a person with the `nats` tool wants to see.
fn headers(body: &Body, incarnation: Incarnation, position: Lsn) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        ("Trellara-Kind", body.kind().as_str().to_owned()),
        ("Trellara-Lsn", position.to_string()),
        ("Trellara-Incarnation", incarnation.to_string()),
    ];
    match body {
        Body::Chunk(chunk) => {
            headers.push(("Trellara-Transaction", chunk.xid.to_string()));
            headers.push(("Trellara-Chunk", chunk.number.to_string()));
        }
        Body::Abort(abort) => headers.push(("Trellara-Transaction", abort.xid.to_string())),
        Body::Manifest(manifest) => {
            headers.push(("Trellara-Transaction", manifest.identity().to_string()));
        }
        Body::Bundle(entries) => {
            headers.push(("Trellara-Transactions", entries.len().to_string()));
        }
        Body::Genesis(_) | Body::Marker(_) | Body::Heartbeat(_) => {}
    }
    headers
}
