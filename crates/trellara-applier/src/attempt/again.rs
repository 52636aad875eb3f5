//! Reading once more where the lane has been: whose frames counted there.
//!
//! A frame of a writer that had lost the stream to a newer one was passed over when it came
//! ([`Verdict::Overtaken`]): nothing of it was applied, and nothing may ask the ledger for it when it
//! comes again.
//!
//! [`Verdict::Overtaken`]: crate::machine::Verdict::Overtaken

use trellara_envelope::{Incarnation, StreamSequence};

use super::Attempt;
use crate::ledger::writer;
use crate::machine::{self, Delivered};
use crate::trouble::Trouble;

/// The writer in force at a place that is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    last: StreamSequence,
    incarnation: Incarnation,
}

impl Again {
    /// Before `next`, with the writer that was in force there.
    fn before(next: StreamSequence, incarnation: Incarnation) -> Self {
        Self {
            last: StreamSequence(next.0.saturating_sub(1)),
            incarnation,
        }
    }

    /// Whether the next frame was passed over when it came first.
    fn passes_over(&mut self, next: &Delivered) -> bool {
        self.last = next.sequence;
        let incarnation = next.frame.header.incarnation;
        if machine::closes_lower(&next.frame.body) {
            self.incarnation = incarnation;
        }
        incarnation < self.incarnation
    }
}

impl Attempt<'_> {
    /// Whether a frame below the lane's place was passed over when it came first.
    pub(super) async fn was_passed_over(&mut self, opened: &Delivered) -> Result<bool, Trouble> {
        if !opened.frame.body.kind().is_positional() {
            return Ok(false);
        }
        let mut again = match self.again {
            Some(again) if again.last < opened.sequence => again,
            Some(_) | None => {
                let (flow, lane) = (&self.options.flow, self.options.lane);
                let client = self.target.client();
                let before = opened.sequence;
                let incarnation =
                    writer::incarnation_before(client, (flow, lane), &self.stream, before).await?;
                Again::before(opened.sequence, incarnation)
            }
        };
        let passed_over = again.passes_over(opened);
        self.again = Some(again);
        Ok(passed_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::Writer;

    #[test]
    fn what_counted_begins_with_the_writer_in_force_and_changes_with_each_marker() {
        let (mut writer, _, genesis) = Writer::genesis(0x100);
        writer.incarnation = 6;
        let seventh = writer.marker(0x100);
        let mut old = writer.clone();
        old.incarnation = 6;
        let of_old = old.bundle(&[0x110]);
        let of_new = writer.bundle(&[0x110]);
        let eighth = writer.marker(0x110);
        let of_newest = writer.bundle(&[0x120]);
        let mut again = Again::before(StreamSequence(1), Incarnation(7));
        assert!(again.passes_over(&of_old), "its marker was trimmed");
        assert!(!again.passes_over(&of_new));
        let mut again = Again::before(StreamSequence(1), Incarnation(0));
        assert!(!again.passes_over(&genesis));
        assert!(!again.passes_over(&seventh));
        assert!(again.passes_over(&of_old));
        assert!(!again.passes_over(&of_new));
        assert!(!again.passes_over(&eighth));
        assert!(again.passes_over(&of_new));
        assert!(!again.passes_over(&of_newest));
    }
}
