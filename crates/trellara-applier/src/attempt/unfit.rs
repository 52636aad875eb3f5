//! What becomes of a frame that does not continue the one before: the stream is asked why.

use trellara_envelope::{Body, FrameDigest, Halt, HaltCode, StreamSequence};
use trellara_jetstream::read::StoredFrameBytes;

use super::{Attempt, filters};
use crate::machine::{self, Delivered, Machine};
use crate::position;
use crate::trouble::Trouble;

/// Consumers positioned anew because of a delivery gap, without a frame accepted in between,
/// before everything is taken up from the beginning.
const REPOSITIONS: u32 = 3;

impl Attempt<'_> {
    /// A frame was not delivered. It is a gap only when the stream has none between either (C23).
    pub(super) async fn missing(&mut self, opened: &Delivered) -> Result<(), Trouble> {
        self.write_down().await?;
        let mut seen = self.machine.sequence();
        if self.void < opened.sequence {
            seen = seen.max(self.void);
        }
        let mut found = self
            .next_from(seen.next())
            .await?
            .map(|stored| stored.sequence);
        while let Some(known) = found.filter(|found| self.passed_over.contains(found)) {
            found = self
                .next_from(known.next())
                .await?
                .map(|stored| stored.sequence);
        }
        let Some(first_missed) = found.filter(|found| *found < opened.sequence) else {
            let halt = gap(&self.machine, opened);
            return self.unless_void(opened, halt).await;
        };
        self.repositions += 1;
        if self.repositions > REPOSITIONS {
            return Err(Trouble::passing(format!(
                "the consumer keeps leaving out the frame at sequence {first_missed}"
            )));
        }
        tracing::warn!(
            sequence = %first_missed, before = %opened.sequence,
            "a frame was not delivered although the stream has it; reading again from there"
        );
        self.status.count_delivery_gap(&self.options.flow);
        self.consumer.reposition(first_missed).await?;
        Ok(())
    }

    /// The first frame of those read here, at or behind a sequence.
    pub(super) async fn next_from(
        &self,
        from: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, Trouble> {
        let mut first: Option<StoredFrameBytes> = None;
        for filter in filters(self.options) {
            if let Some(found) = self.reader.next_on(&filter, from).await?
                && first
                    .as_ref()
                    .is_none_or(|first| found.sequence < first.sequence)
            {
                first = Some(found);
            }
        }
        Ok(first)
    }

    /// A marker that continues beyond our place may be void: when the broker lost the frame that
    /// it names before it was stored, its relay publishes nothing behind it and begins again with
    /// another, from where the stream really stood. It does so at once, so it is worth looking
    /// again. Whatever else does not fit ends here.
    pub(super) async fn unless_void(
        &mut self,
        opened: &Delivered,
        halt: Halt,
    ) -> Result<(), Trouble> {
        let opens = halt.code == HaltCode::Gap && matches!(opened.frame.body, Body::Marker(_));
        if opens && self.is_void(opened).await? {
            tracing::warn!(
                sequence = %opened.sequence, incarnation = %opened.frame.header.incarnation,
                "passed over a marker whose relay began again from below it"
            );
            self.void = opened.sequence;
            return Ok(());
        }
        Err(match self.unless_rewritten(halt).await? {
            Trouble::Halted { halt, .. } if opens => Trouble::probe(halt),
            other => other,
        })
    }

    /// Whether nothing but markers stands between it and one that continues at or below our place.
    async fn is_void(&self, opened: &Delivered) -> Result<bool, Trouble> {
        let mut before = (opened.sequence, opened.frame.header.incarnation);
        while let Some(next) = self.next_from(before.0.next()).await? {
            let frame = position::decode(&next.payload, next.sequence)?;
            if !matches!(frame.body, Body::Marker(_)) || frame.header.incarnation <= before.1 {
                return Ok(false);
            }
            if machine::continues_at(&frame.body).is_some_and(|lsn| lsn <= self.machine.end_lsn()) {
                return Ok(true);
            }
            before = (next.sequence, frame.header.incarnation);
        }
        Ok(false)
    }

    /// A frame does not fit the one read last. When that is no longer in the stream, the broker
    /// lost frames behind our back and the relay wrote them anew: the marker that continues them
    /// stands before our place, and beginning anew finds it, or says what is missing (C26).
    async fn unless_rewritten(&self, halt: Halt) -> Result<Trouble, Trouble> {
        // Of another timeline as well: the source may have failed over meanwhile, and the marker
        // that says so stands before our place.
        let (HaltCode::Gap | HaltCode::Fork | HaltCode::Diverged, Some((sequence, digest))) =
            (halt.code, self.machine.last_seen())
        else {
            return Ok(halt.into());
        };
        if self.holds(sequence, digest).await? {
            return Ok(halt.into());
        }
        Ok(Trouble::passing(format!(
            "the stream lost the frame at sequence {sequence} after it was read; finding the place \
             anew"
        )))
    }

    async fn holds(&self, sequence: StreamSequence, digest: FrameDigest) -> Result<bool, Trouble> {
        let stored = self.reader.get(sequence).await?;
        Ok(stored.is_some_and(|stored| FrameDigest::of(&stored.payload) == digest))
    }

    /// Whether a marker at a place already passed was only delivered again: the stream still has the
    /// frame read last. To go back to it then would leave the checkpoint at a frame that may have
    /// been trimmed already.
    pub(super) async fn merely_again(&self) -> Result<bool, Trouble> {
        match self.machine.last_seen() {
            Some((sequence, digest)) => self.holds(sequence, digest).await,
            None => Ok(false),
        }
    }

    /// A frame of a writer that had lost the stream stands behind its successor's marker. When a
    /// later marker closes it, it is garbage; before that nothing behind it may be read. The relay
    /// writes that marker as soon as it finds the frame, so it is worth looking again.
    pub(super) async fn overtaken(
        &mut self,
        opened: &Delivered,
        halt: Halt,
    ) -> Result<(), Trouble> {
        self.write_down().await?;
        let mut from = opened.sequence.next();
        let marks = self.options.flow.mark_subject();
        while let Some(mark) = self.reader.next_on(&marks, from).await? {
            let frame = position::decode(&mark.payload, mark.sequence)?;
            if machine::closes_lower(&frame.body)
                && frame.header.incarnation > opened.frame.header.incarnation
            {
                tracing::warn!(
                    sequence = %opened.sequence, incarnation = %opened.frame.header.incarnation,
                    "passed over a frame of a writer that had lost the stream"
                );
                self.passed_over.insert(opened.sequence);
                return Ok(());
            }
            from = mark.sequence.next();
        }
        Err(Trouble::probe(halt))
    }
}

fn gap(machine: &Machine, opened: &Delivered) -> Halt {
    let header = &opened.frame.header;
    Halt::new(
        HaltCode::Gap,
        format!(
            "frame {} at sequence {} follows {}, the target stands at {}, and the stream holds \
             nothing between sequence {} and it",
            header.ordinal,
            opened.sequence,
            header.follows,
            machine.end_lsn(),
            machine.sequence()
        ),
        "restore the stream; or remove the flow, load the target anew and set the flow up again",
    )
}
