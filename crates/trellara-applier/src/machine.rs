//! What to do with the next frame: the chain rule (rules 0.2) as a pure function.
//!
//! The machine never waits, reads no clock and asks nobody: a frame goes in, a [`Verdict`] comes
//! out. It never lets a frame pass that neither continues the checkpoint nor lies wholly below it.

use std::ops::Range;

use trellara_envelope::{
    BundleEntry, Frame, FrameDigest, FrameOrdinal, Halt, HaltCode, Header, Incarnation, Lane, Lsn,
    SourceHistory, SourceId, StreamSequence,
};

use crate::checkpoint::Checkpoint;

pub use self::body::{closes_lower, entries};
pub(crate) use self::body::{continues_at, entry_of, history_of};

mod body;
pub(crate) mod cut;
mod form;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// The chain of one lane: where it stands and which frame it saw last.
#[derive(Debug, Clone)]
pub struct Machine {
    lane: Lane,
    source: SourceId,
    end_lsn: Lsn,
    transaction_end_lsn: Lsn,
    /// The whole way to `source`, once a marker has told it: a timeline's number alone does not
    /// tell apart two servers that were promoted from the same one (C01).
    history: Option<SourceHistory>,
    seen: Seen,
}

/// The frame that the next one must continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    sequence: StreamSequence,
    ordinal: FrameOrdinal,
    digest: FrameDigest,
    incarnation: Incarnation,
    /// Whether the stream is known to hold this very frame; not so when reading starts at a
    /// marker because the checkpoint's frame is gone (C26).
    proved: bool,
}

/// Whether a stream that holds this frame at the checkpoint's sequence is the one that was applied
/// from: reading goes on behind it.
pub fn proves(checkpoint: &Checkpoint, digest: FrameDigest) -> bool {
    checkpoint.transport.digest == digest
}

/// Whether reading may begin at this frame where the checkpoint's own is gone: a genesis or marker
/// of the same history that continues at or below the checkpoint (C26).
pub fn may_begin(checkpoint: &Checkpoint, frame: &Frame) -> bool {
    continues_at(&frame.body).is_some_and(|lsn| lsn <= checkpoint.end_lsn)
        && history_of(&frame.body)
            .is_some_and(|history| history.continues(checkpoint.source, checkpoint.end_lsn))
}

/// A frame with its place in the stream.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Its stream sequence.
    pub sequence: StreamSequence,
    /// The digest of its bytes.
    pub digest: FrameDigest,
    /// The frame.
    pub frame: Frame,
}

/// What to do with a frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Apply these entries of the bundle, or the whole transaction of the manifest (`0..1`).
    Apply(Range<usize>),
    /// No transaction in it; the position moves to the frame's.
    Progress,
    /// Everything in it is applied already; only the transport half of the checkpoint moves.
    Duplicate,
    /// The very same place in the stream once more; nothing moves.
    Redelivered,
    /// A genesis or marker at a place that was passed already. Ask the stream whether it still has
    /// the frame read last ([`Machine::last_seen`]): if so it was only delivered again, else the
    /// stream was written anew and goes on here ([`Machine::reopen`]).
    Reopens,
    /// A chunk or an abort frame: read when its manifest comes.
    Aside,
    /// A frame between the last one and this one was not delivered. Ask the stream whether it has
    /// it: if so, position the consumer anew and go on, else it is a gap.
    Missing,
    /// A writer wrote it that had lost the stream to a newer one. Ask the stream whether a later
    /// marker closes it: then it is garbage, else a fork.
    Overtaken(Halt),
    /// Stop.
    Halt(Halt),
}

impl Machine {
    /// Stands at a checkpoint whose frame the stream is known to hold.
    pub fn at(lane: Lane, checkpoint: &Checkpoint) -> Self {
        Self::new(lane, checkpoint, true)
    }

    /// Stands at a checkpoint whose frame is gone from the stream: the next frame must be a marker
    /// or genesis that continues at or below it (C26).
    pub fn before_marker(lane: Lane, checkpoint: &Checkpoint) -> Self {
        Self::new(lane, checkpoint, false)
    }

    fn new(lane: Lane, checkpoint: &Checkpoint, proved: bool) -> Self {
        let transport = &checkpoint.transport;
        Self {
            lane,
            source: checkpoint.source,
            end_lsn: checkpoint.end_lsn,
            transaction_end_lsn: checkpoint.transaction_end_lsn,
            history: None,
            seen: Seen {
                sequence: transport.sequence,
                ordinal: transport.ordinal,
                digest: transport.digest,
                incarnation: transport.incarnation,
                proved,
            },
        }
    }

    /// Position up to which frames were handed out.
    pub fn end_lsn(&self) -> Lsn {
        self.end_lsn
    }

    /// End LSN of the last transaction handed out.
    pub fn transaction_end_lsn(&self) -> Lsn {
        self.transaction_end_lsn
    }

    /// Cluster and timeline of the position.
    pub fn source(&self) -> SourceId {
        self.source
    }

    /// Sequence of the last frame accepted.
    pub fn sequence(&self) -> StreamSequence {
        self.seen.sequence
    }

    /// The last frame accepted, where the stream is known to have held it.
    pub fn last_seen(&self) -> Option<(StreamSequence, FrameDigest)> {
        let seen = &self.seen;
        seen.proved.then_some((seen.sequence, seen.digest))
    }

    /// Judges the next frame and, when it is accepted, stands behind it.
    pub fn frame(&mut self, next: &Delivered) -> Verdict {
        let verdict = self.judge(next);
        self.stand(next, verdict)
    }

    /// The same for a frame that [`Verdict::Reopens`], in a stream that no longer has the frame
    /// read last.
    pub fn reopen(&mut self, next: &Delivered) -> Verdict {
        let verdict = self.judge_place(next);
        self.stand(next, verdict)
    }

    fn stand(&mut self, next: &Delivered, verdict: Result<Verdict, Halt>) -> Verdict {
        let verdict = verdict.unwrap_or_else(Verdict::Halt);
        let header = &next.frame.header;
        match &verdict {
            Verdict::Apply(_) | Verdict::Progress => {
                self.end_lsn = header.position;
                self.source = header.source;
                if let Some(last) = entries(&next.frame.body).last() {
                    self.transaction_end_lsn = last.end_lsn;
                }
                self.stand_behind(next);
            }
            Verdict::Duplicate => {
                // A new timeline that begins below the checkpoint carries it on.
                if closes_lower(&next.frame.body) {
                    self.source = header.source;
                }
                self.stand_behind(next);
            }
            Verdict::Redelivered
            | Verdict::Reopens
            | Verdict::Aside
            | Verdict::Missing
            | Verdict::Overtaken(_)
            | Verdict::Halt(_) => {}
        }
        verdict
    }

    fn stand_behind(&mut self, next: &Delivered) {
        let header = &next.frame.header;
        if let Some(history) = history_of(&next.frame.body) {
            self.history = Some(history.clone());
        }
        self.seen = Seen {
            sequence: next.sequence,
            ordinal: header.ordinal,
            digest: next.digest,
            incarnation: header.incarnation,
            proved: true,
        };
    }

    fn judge(&self, next: &Delivered) -> Result<Verdict, Halt> {
        let Delivered {
            sequence, frame, ..
        } = next;
        let header = &frame.header;
        if !frame.body.kind().is_positional() {
            return Ok(Verdict::Aside);
        }
        form::check(self.lane, *sequence, frame)?;
        let passed = *sequence <= self.seen.sequence && header.incarnation <= self.seen.incarnation;
        match (passed, self.opens_anew(frame)) {
            (false, _) => self.judge_place(next),
            (true, false) => self.seen_before(*sequence, header),
            // That the frame read last is gone is known already.
            (true, true) if !self.seen.proved => self.judge_place(next),
            (true, true) => Ok(Verdict::Reopens),
        }
    }

    /// What is not at a place already passed.
    fn judge_place(&self, next: &Delivered) -> Result<Verdict, Halt> {
        let Delivered {
            sequence, frame, ..
        } = next;
        let header = &frame.header;
        // Before its history: the server it read from may be an old primary.
        if self.seen.proved
            && header.incarnation < self.seen.incarnation
            && continues_at(&frame.body).is_none()
        {
            let newer = self.seen.incarnation;
            let reason = format!("incarnation {newer} has taken over before it");
            return Ok(Verdict::Overtaken(fork(*sequence, header, reason)));
        }
        let opens = continues_at(&frame.body).is_some();
        if !opens && (!self.seen.proved || header.incarnation > self.seen.incarnation) {
            // A writer's first frame is its marker (C07), which was not delivered. Before its
            // history as well: the source may have failed over, and the marker says so.
            return Ok(Verdict::Missing);
        }
        self.check_history(*sequence, frame)?;
        if let Some(verdict) = self.check_chain(*sequence, frame)? {
            return Ok(verdict);
        }
        self.place(*sequence, frame)
    }

    /// Whether a genesis or marker found at a place already passed is where reading may begin
    /// anew: a stream restored from an older copy hands out sequences and incarnations again.
    fn opens_anew(&self, frame: &Frame) -> bool {
        continues_at(&frame.body).is_some_and(|lsn| lsn <= self.end_lsn)
            && history_of(&frame.body).is_some_and(|history| self.continued_by(history))
    }

    /// Whether this history holds everything up to where the target stands.
    fn continued_by(&self, history: &SourceHistory) -> bool {
        history.continues(self.source, self.end_lsn)
            && self
                .history
                .as_ref()
                .is_none_or(|known| history.shares_past(known, self.end_lsn))
    }

    /// The table itself: where the frame's `(follows, position]` lies against the checkpoint.
    fn place(&self, sequence: StreamSequence, frame: &Frame) -> Result<Verdict, Halt> {
        let header = &frame.header;
        if header.position <= self.end_lsn {
            return Ok(Verdict::Duplicate);
        }
        if header.follows > self.end_lsn {
            return Ok(Verdict::Missing);
        }
        let entries = entries(&frame.body);
        let first = entries.partition_point(|entry| entry.end_lsn <= self.end_lsn);
        self.check_cut(sequence, header, &entries, first)?;
        if first == entries.len() {
            return Ok(Verdict::Progress);
        }
        Ok(Verdict::Apply(first..entries.len()))
    }

    /// A frame that overlaps the checkpoint must be cut by it exactly where the target already
    /// was: behind the last transaction applied, and before the start of the next one. Anything
    /// else is another course of events.
    fn check_cut(
        &self,
        sequence: StreamSequence,
        header: &Header,
        entries: &[BundleEntry],
        first: usize,
    ) -> Result<(), Halt> {
        if header.follows == self.end_lsn {
            return Ok(());
        }
        let before = match first.checked_sub(1) {
            Some(last) => entries[last].end_lsn == self.transaction_end_lsn,
            None => self.transaction_end_lsn <= header.follows,
        };
        let behind = entries
            .get(first)
            .is_none_or(|entry| entry.commit_lsn >= self.end_lsn);
        if before && behind {
            return Ok(());
        }
        Err(fork(
            sequence,
            header,
            format!(
                "it covers {} to {}, but no transaction in it ends where the target stands ({})",
                header.follows, header.position, self.end_lsn
            ),
        ))
    }

    /// A place in the stream that was passed already: the consumer was moved back.
    fn seen_before(&self, sequence: StreamSequence, header: &Header) -> Result<Verdict, Halt> {
        if header.position <= self.end_lsn {
            return Ok(Verdict::Redelivered);
        }
        Err(fork(
            sequence,
            header,
            format!(
                "its sequence was passed already, but its position {} is beyond the target's {}",
                header.position, self.end_lsn
            ),
        ))
    }

    fn check_history(&self, sequence: StreamSequence, frame: &Frame) -> Result<(), Halt> {
        let header = &frame.header;
        match history_of(&frame.body) {
            Some(history) if self.continued_by(history) => Ok(()),
            Some(history) => Err(diverged(format!(
                "the history of {} named at sequence {sequence} does not contain {} on {}, where \
                 the target stands",
                history.source(),
                self.end_lsn,
                self.source
            ))),
            None if header.source == self.source => Ok(()),
            None => Err(diverged(format!(
                "frame {} at sequence {sequence} was written on {}, the target stands on {}",
                header.ordinal, header.source, self.source
            ))),
        }
    }

    /// Order of writers and of ordinals, and the digest of the frame before.
    fn check_chain(
        &self,
        sequence: StreamSequence,
        frame: &Frame,
    ) -> Result<Option<Verdict>, Halt> {
        let header = &frame.header;
        let seen = &self.seen;
        if let Some(continues_at) = continues_at(&frame.body) {
            return self.check_opening(sequence, header, continues_at);
        }
        let reason = if header.ordinal <= seen.ordinal {
            format!("frame {} was read before it", seen.ordinal)
        } else if self.is_next(header) && header.previous != seen.digest {
            format!(
                "it names {} as the frame before, but that was {}",
                header.previous, seen.digest
            )
        } else {
            // In line, or behind chunks: those have ordinals too and are not delivered here, so
            // that `follows` closes the chain.
            return Ok(None);
        };
        Err(fork(sequence, header, reason))
    }

    /// A genesis or marker: either the next frame in line, or its writer says from where it goes
    /// on after the stream lost frames (C26).
    fn check_opening(
        &self,
        sequence: StreamSequence,
        header: &Header,
        continues_at: Lsn,
    ) -> Result<Option<Verdict>, Halt> {
        if continues_at <= self.end_lsn {
            return Ok(None);
        }
        let later = self.seen.proved
            && header.ordinal > self.seen.ordinal
            && header.incarnation > self.seen.incarnation;
        if later && header.follows > self.end_lsn {
            return Ok(Some(Verdict::Missing));
        }
        Err(Halt::new(
            HaltCode::Gap,
            format!(
                "the stream goes on at {continues_at} (sequence {sequence}, incarnation {}), the \
                 target stands at {}: what lies between is in neither",
                header.incarnation, self.end_lsn
            ),
            "restore the stream; or remove the flow, load the target anew and set the flow up again",
        ))
    }

    fn is_next(&self, header: &Header) -> bool {
        header.ordinal.0 == self.seen.ordinal.0 + 1
    }
}

fn diverged(reason: String) -> Halt {
    Halt::new(
        HaltCode::Diverged,
        reason,
        "the target holds transactions that this source never had: copy the tables anew, or point \
         the flow at the source that had them",
    )
}

fn fork(sequence: StreamSequence, header: &Header, reason: String) -> Halt {
    Halt::new(
        HaltCode::Fork,
        format!(
            "frame {} of incarnation {} at sequence {sequence} does not continue the flow: {reason}",
            header.ordinal, header.incarnation
        ),
        "look at the frames around it with trellara inspect, and for a second writer of this stream",
    )
}
