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
    /// Sending it again would be of no use.
    Refused(String),
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
    /// Sequence of the frame handed out last, or of the stream's last one before.
    last: StreamSequence,
    pending: VecDeque<Sent>,
    pending_bytes: usize,
    /// Of the stream when it was asked last, with what was sent since.
    stream_bytes: u64,
    max_bytes: Option<u64>,
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
            last: StreamSequence(0),
            pending: VecDeque::new(),
            pending_bytes: 0,
            stream_bytes: 0,
            max_bytes: None,
        }
    }

    pub(super) fn writer(&self) -> Incarnation {
        self.writer
    }

    /// Goes on in a stream that ends there: nothing is on its way.
    pub(super) fn stand_at(&mut self, last: StreamSequence) {
        self.pending.clear();
        self.pending_bytes = 0;
        self.last = last;
    }

    /// The last sequence that is known to be stored.
    pub(super) fn stored(&self) -> StreamSequence {
        let first = self.pending.front();
        first.map_or(self.last, |sent| StreamSequence(sent.sequence.0 - 1))
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
            Outcome::TooLarge { limit } => Took::Refused(match limit {
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
        let stored = self.stored();
        if end < stored {
            return Judged::Lost(format!(
                "the copy stream ends at {end}, though {stored} was acknowledged"
            ));
        }
        if end == stored {
            return Judged::GoOn;
        }
        let ours = self.pending.iter().find(|sent| sent.sequence == end);
        match (ours, tail) {
            // Only what was loaded is removed, and only what we wrote is loaded.
            (Some(_), None) => self.store_up_to(end),
            (Some(sent), Some(tail)) if sent.digest == tail.digest => self.store_up_to(end),
            (
                _,
                Some(Tail {
                    writer: Some(writer),
                    ..
                }),
            ) if writer > self.writer => {
                return Judged::Fenced(writer);
            }
            (
                _,
                Some(Tail {
                    writer: Some(writer),
                    ..
                }),
            ) if writer < self.writer => {
                return Judged::Older;
            }
            (_, Some(_) | None) => {
                return Judged::Lost(format!(
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
            self.pending.pop_front();
        }
    }
}

fn room(payload: &Bytes) -> u64 {
    payload.len() as u64 + OVERHEAD
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use trellara_envelope::{CopyTable, SystemId, Timeline};
    use trellara_jetstream::publish::UnknownReason;

    use super::*;

    fn window(writer: u64) -> Window {
        let source = SourceId {
            system: SystemId(1),
            timeline: Timeline(1),
        };
        Window::new("shop".parse().expect("a name"), source, Incarnation(writer))
    }

    fn wanted() -> CopyWanted {
        CopyWanted {
            table: CopyTable {
                schema: "public".to_owned(),
                name: "t".to_owned(),
            },
            generation: 1,
        }
    }

    fn end(window: &mut Window) -> Sent {
        let event = CopyEvent::End {
            parts: 0,
            rows: 0,
            bytes: 0,
        };
        window.put(&wanted(), event, Bytes::new())
    }

    fn tail(bytes: &Bytes) -> Tail {
        let writer = CopyFrame::decode(bytes)
            .ok()
            .map(|frame| frame.header.writer);
        Tail {
            writer,
            digest: FrameDigest::of(bytes),
        }
    }

    fn unknown() -> Outcome {
        Outcome::Unknown {
            reason: UnknownReason::Timeout,
        }
    }

    proptest! {
        /// A broker that stores, refuses and forgets to answer as it likes, and that an older
        /// writer slips a frame into: every frame of ours is there once, in order, whatever comes.
        #[test]
        fn every_frame_is_stored_once(fates in vec((0u8..6, 1usize..6), 1..60)) {
            let mut stream: Vec<Bytes> = Vec::new();
            let (mut window, mut old) = (window(5), window(4));
            let mut written = 0;
            for (fate, count) in fates {
                let mut doubt = false;
                // Each names the one before by its id: behind another writer's none is stored.
                let mut slipped = false;
                let batch: Vec<Sent> = (0..count).map(|_| end(&mut window)).collect();
                written += count as u64;
                for (at, sent) in batch.into_iter().enumerate() {
                    if fate == 1 && at == count / 2 {
                        old.stand_at(StreamSequence(stream.len() as u64));
                        stream.push(end(&mut old).payload);
                        slipped = true;
                    }
                    let fits = !slipped && sent.sequence.0 == stream.len() as u64 + 1;
                    let outcome = match (fate, fits) {
                        (2, true) if at >= count / 2 => Outcome::Full,
                        (3, true) => { stream.push(sent.payload); unknown() }
                        (4, _) => unknown(),
                        (_, true) => {
                            stream.push(sent.payload);
                            Outcome::Stored { sequence: sent.sequence }
                        }
                        (_, false) => Outcome::WrongSequence { actual: None },
                    };
                    if !doubt {
                        doubt = window.took(sent.sequence, outcome) != Took::Stored;
                    }
                }
                if doubt {
                    settle(&mut window, &mut stream);
                }
                prop_assert!(window.is_empty());
            }
            let frames: Vec<CopyFrame> = stream
                .iter()
                .map(|bytes| CopyFrame::decode(bytes).expect("a frame"))
                .filter(|frame| frame.header.writer == Incarnation(5))
                .collect();
            prop_assert_eq!(frames.len() as u64, written);
            let mut previous = FrameDigest::default();
            for (ordinal, frame) in (0..).zip(frames) {
                prop_assert_eq!((frame.header.ordinal, frame.header.previous), (ordinal, previous));
                previous = FrameDigest::of(&frame.encode());
            }
        }
    }

    /// What the loop does after a doubt, on a broker that answers.
    fn settle(window: &mut Window, stream: &mut Vec<Bytes>) {
        let at = StreamSequence(stream.len() as u64);
        match window.judge(at, stream.last().map(tail)) {
            Judged::GoOn => {}
            Judged::Older => {
                let mut stored = window.stored();
                while let Some(bytes) = stream.get(stored.0 as usize)
                    && window.is_ours(StreamSequence(stored.0 + 1), FrameDigest::of(bytes))
                {
                    stored.0 += 1;
                }
                window.pass_over(stored, at);
            }
            other => panic!("{other:?}"),
        }
        for sent in window.unstored().cloned().collect::<Vec<_>>() {
            assert_eq!(sent.sequence.0, stream.len() as u64 + 1);
            stream.push(sent.payload);
            let sequence = sent.sequence;
            let took = window.took(sequence, Outcome::Stored { sequence });
            assert_eq!(took, Took::Stored);
        }
    }

    #[test]
    fn a_newer_writer_fences() {
        let (mut window, mut newer) = (window(5), window(6));
        let sent = end(&mut window);
        let theirs = end(&mut newer);
        assert!(matches!(
            window.took(sent.sequence, unknown()),
            Took::Doubt(_)
        ));
        let judged = window.judge(theirs.sequence, Some(tail(&theirs.payload)));
        assert_eq!(judged, Judged::Fenced(Incarnation(6)));
    }

    #[test]
    fn a_stream_that_lost_what_it_had_is_noticed() {
        let mut window = window(5);
        window.stand_at(StreamSequence(9));
        let sent = end(&mut window);
        let sequence = sent.sequence;
        assert_eq!(
            window.took(sequence, Outcome::Stored { sequence }),
            Took::Stored
        );
        assert!(matches!(
            window.judge(StreamSequence(9), None),
            Judged::Lost(_)
        ));
        let foreign = Tail {
            writer: None,
            digest: FrameDigest::default(),
        };
        let judged = window.judge(StreamSequence(11), Some(foreign));
        assert!(matches!(judged, Judged::Lost(_)), "{judged:?}");
    }

    #[test]
    fn what_is_on_its_way_takes_room() {
        let mut window = window(5);
        window.measured(0, Some(10_000));
        assert!(window.has_room(7_000) && !window.has_room(8_000));
        let sent = end(&mut window);
        assert!(!window.has_room(7_000));
        let sequence = sent.sequence;
        window.took(sequence, Outcome::Stored { sequence });
        window.measured(0, Some(10_000));
        assert!(window.has_room(7_000));
    }
}
