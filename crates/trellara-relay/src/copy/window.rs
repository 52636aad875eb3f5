//! The one writer of the copy stream: its chain, what is on its way, and what becomes of it after a
//! doubt. Pure.

use std::collections::VecDeque;

use bytes::Bytes;
use trellara_envelope::{
    CopyEvent, CopyFrame, CopyHeader, CopyWanted, FlowName, FrameDigest, Incarnation, SourceId,
    StreamSequence,
};
use trellara_jetstream::publish::Outcome;

/// Bytes in frames without an answer; more are not sent.
pub(super) const WINDOW_BYTES: usize = 8 << 20;
/// What the broker stores beside a frame, at most.
const OVERHEAD: u64 = 1 << 10;

/// A frame that was not acknowledged yet.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// Where it has to be stored.
    pub(super) sequence: StreamSequence,
    pub(super) ordinal: u64,
    pub(super) digest: FrameDigest,
    pub(super) payload: Bytes,
    pub(super) kind: &'static str,
    /// Whose copy it is of.
    pub(super) of: CopyWanted,
}

/// What an answer to a publish means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// Stored where it belongs.
    Stored,
    /// The stream is full: what is not stored is sent again when there is room.
    Full,
    /// Only the stream knows.
    Doubt(String),
    /// Not now; it is sent again later.
    Refused(String),
    /// Never: [`Window::take_back`].
    TooLarge(String),
}

/// What the end of the stream says after a doubt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judged {
    /// Send what is left, from the first frame that is not stored.
    GoOn,
    /// A newer relay writes.
    Fenced(Incarnation),
    /// An older relay's last frame came in between. How many of ours are in front of it has to be
    /// found out; then [`Window::pass_over`].
    Older,
    /// Frames that were acknowledged are gone.
    Lost(String),
    /// What stands at the end is not ours, and nobody can say whose it is.
    Foreign(String),
}

/// The last message of the stream, as far as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    /// `None` when it is no frame that this build can read.
    pub(super) writer: Option<Incarnation>,
    pub(super) digest: FrameDigest,
}

/// A writer's chain and what is on its way.
#[derive(Debug)]
pub(super) struct Window {
    flow: FlowName,
    source: SourceId,
    writer: Incarnation,
    next_ordinal: u64,
    previous: FrameDigest,
    /// Both as they were when the last frame that is stored had been handed out.
    behind_stored: (u64, FrameDigest),
    /// Sequence of the frame handed out last, or of the stream's last one before.
    last: StreamSequence,
    pending: VecDeque<Sent>,
    pending_bytes: usize,
    /// Of the stream when it was asked last, with what was sent since.
    stream_bytes: u64,
    max_bytes: Option<u64>,
    /// Where the stream ends says nothing about our frames any more.
    is_adrift: bool,
}

impl Window {
    /// A writer at the end of a stream.
    pub(super) fn new(flow: FlowName, source: SourceId, writer: Incarnation) -> Self {
        Self {
            flow,
            source,
            writer,
            next_ordinal: 0,
            previous: FrameDigest::default(),
            behind_stored: (0, FrameDigest::default()),
            last: StreamSequence(0),
            pending: VecDeque::new(),
            pending_bytes: 0,
            stream_bytes: 0,
            max_bytes: None,
            is_adrift: false,
        }
    }

    /// What is written from now on was read there.
    pub(super) fn reads(&mut self, source: SourceId) {
        self.source = source;
    }

    pub(super) fn writer(&self) -> Incarnation {
        self.writer
    }

    /// Goes on in a stream that ends there, with nothing on its way.
    pub(super) fn stand_at(&mut self, last: StreamSequence) {
        self.last = last;
        self.is_adrift = false;
    }

    /// It is settled that frames are gone: the chain goes on wherever the stream ends, with a hole
    /// that whoever reads notices.
    pub(super) fn cast_off(&mut self) {
        self.pending.clear();
        self.pending_bytes = 0;
        self.is_adrift = true;
    }

    /// Frames that the broker will never take are taken back: the chain goes on behind the last one
    /// that is stored, as if they had never been. Whose copies they were of.
    pub(super) fn take_back(&mut self) -> Vec<CopyWanted> {
        self.last = self.stored();
        (self.next_ordinal, self.previous) = self.behind_stored;
        self.pending_bytes = 0;
        let mut of: Vec<CopyWanted> = self.pending.drain(..).map(|sent| sent.of).collect();
        of.dedup();
        of
    }

    /// The last sequence that is known to be stored.
    pub(super) fn stored(&self) -> StreamSequence {
        let first = self.pending.front();
        first.map_or(self.last, |sent| StreamSequence(sent.sequence.0 - 1))
    }

    /// Whether no frame was handed out, or none is left of them.
    pub(super) fn is_untouched(&self) -> bool {
        self.next_ordinal == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// What the stream holds, and may hold; to be called when nothing is on its way, or before it
    /// is sent again.
    pub(super) fn measured(&mut self, bytes: u64, max_bytes: Option<u64>) {
        let pending: u64 = self.pending.iter().map(|sent| room(&sent.payload)).sum();
        self.stream_bytes = bytes + pending;
        self.max_bytes = max_bytes;
    }

    /// Whether another frame of this size may be on its way.
    pub(super) fn has_place(&self, bytes: usize) -> bool {
        self.pending.is_empty() || self.pending_bytes + bytes <= WINDOW_BYTES
    }

    /// Whether the stream has room for a payload of this size, as far as is known.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.max_bytes
            .is_none_or(|max| self.stream_bytes + bytes as u64 + 2 * OVERHEAD <= max)
    }

    /// Whether what is on its way fits.
    pub(super) fn fits(&self) -> bool {
        self.max_bytes.is_none_or(|max| self.stream_bytes <= max)
    }

    /// The next frame.
    pub(super) fn put(&mut self, of: &CopyWanted, event: CopyEvent, payload: Bytes) -> Sent {
        let frame = CopyFrame {
            header: CopyHeader {
                flow: self.flow.clone(),
                source: self.source,
                writer: self.writer,
                ordinal: self.next_ordinal,
                previous: self.previous,
                table: of.table.clone(),
                generation: of.generation,
                mac: Vec::new(),
            },
            event,
            payload,
        };
        let encoded = frame.encode();
        self.last = StreamSequence(self.last.0 + 1);
        let sent = Sent {
            sequence: self.last,
            ordinal: self.next_ordinal,
            digest: FrameDigest::of(&encoded),
            payload: encoded,
            kind: frame.kind(),
            of: of.clone(),
        };
        self.next_ordinal += 1;
        self.previous = sent.digest;
        self.pending_bytes += sent.payload.len();
        self.stream_bytes += room(&sent.payload);
        self.pending.push_back(sent.clone());
        sent
    }

    /// Takes the answer to the publish of the frame that belongs at `sequence`. Answers come in the
    /// order of the frames.
    pub(super) fn took(&mut self, sequence: StreamSequence, outcome: Outcome) -> Took {
        let expected = self.pending.front().map(|sent| sent.sequence);
        match outcome {
            Outcome::Stored { sequence: at } | Outcome::DuplicateAt { sequence: at }
                if at == sequence && expected == Some(at) =>
            {
                self.store_up_to(at);
                Took::Stored
            }
            Outcome::Stored { sequence: at } | Outcome::DuplicateAt { sequence: at } => {
                Took::Doubt(format!("a frame was stored at {at} instead of {sequence}"))
            }
            Outcome::Full => Took::Full,
            Outcome::WrongSequence { .. } => {
                Took::Doubt("another sequence was expected".to_owned())
            }
            Outcome::Unknown { reason } => {
                Took::Doubt(format!("no answer to a publish: {reason:?}"))
            }
            Outcome::NoStream => Took::Doubt("the copy stream is not there".to_owned()),
            Outcome::TooLarge { limit } => Took::TooLarge(match limit {
                Some(limit) => format!("the server takes messages of {limit} bytes"),
                None => "the copy stream's max_msg_size is too small".to_owned(),
            }),
            Outcome::Denied { subject } => {
                Took::Refused(format!("the broker denies publishing on {subject}"))
            }
            Outcome::Refused { code, text } => {
                Took::Refused(format!("the broker: {text} ({code})"))
            }
        }
    }

    /// What is known from the end of the stream. A frame of ours proves those before it: each was
    /// stored behind the one that it names. (Where the broker cannot check that, with several
    /// copies, an older writer may have made a hole in front of it. Whoever reads finds it in the
    /// ordinals, and orders anew.) `tail` is its last message, `None` when it is not
    /// there any more.
    pub(super) fn judge(&mut self, end: StreamSequence, tail: Option<Tail>) -> Judged {
        let newer = tail.and_then(|tail| tail.writer);
        let newer = newer.filter(|writer| *writer > self.writer);
        if self.is_adrift {
            // Whatever stands there, it is not for us to say that it is gone.
            self.stand_at(end);
            return newer.map_or(Judged::GoOn, Judged::Fenced);
        }
        let stored = self.stored();
        if end < stored {
            return Judged::Lost(format!(
                "the copy stream ends at {end}, though {stored} was acknowledged"
            ));
        }
        if end == stored {
            return Judged::GoOn;
        }
        if let Some(writer) = newer {
            return Judged::Fenced(writer);
        }
        let ours = self.pending.iter().find(|sent| sent.sequence == end);
        match (ours, tail) {
            // Only what was loaded is removed, and only what we wrote is loaded.
            (Some(_), None) => self.store_up_to(end),
            (Some(sent), Some(tail)) if sent.digest == tail.digest => self.store_up_to(end),
            (_, Some(tail)) if tail.writer.is_some_and(|writer| writer < self.writer) => {
                return Judged::Older;
            }
            (_, Some(_) | None) => {
                return Judged::Foreign(format!(
                    "the copy stream ends at {end} with a message that is not ours"
                ));
            }
        }
        Judged::GoOn
    }

    /// Whether the frame that belongs at this sequence is the one that stands there.
    pub(super) fn is_ours(&self, sequence: StreamSequence, digest: FrameDigest) -> bool {
        let sent = self.pending.iter().find(|sent| sent.sequence == sequence);
        sent.is_some_and(|sent| sent.digest == digest)
    }

    /// Frames up to `stored` are in the stream, which ends with somebody else's at `end`: the rest
    /// goes behind that.
    pub(super) fn pass_over(&mut self, stored: StreamSequence, end: StreamSequence) {
        self.store_up_to(stored);
        self.last = end;
        for sent in &mut self.pending {
            self.last = StreamSequence(self.last.0 + 1);
            sent.sequence = self.last;
        }
    }

    /// What is not stored, in its order.
    pub(super) fn unstored(&self) -> impl Iterator<Item = &Sent> {
        self.pending.iter()
    }

    fn store_up_to(&mut self, sequence: StreamSequence) {
        while let Some(first) = self.pending.front()
            && first.sequence <= sequence
        {
            self.pending_bytes -= first.payload.len();
            self.behind_stored = (first.ordinal + 1, first.digest);
            self.pending.pop_front();
        }
    }
}

fn room(payload: &Bytes) -> u64 {
    payload.len() as u64 + OVERHEAD
}

#[cfg(test)]
#[path = "window/tests.rs"]
mod tests;
