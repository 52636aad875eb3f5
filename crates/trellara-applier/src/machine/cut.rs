//! Where a cap cuts a frame: how a verify run finds the lane at one exact position (C53).

use std::ops::Range;

use trellara_envelope::{BundleEntry, Lsn};

use super::{Delivered, Machine, Verdict, entries};

/// How far a lane may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    /// No transaction is applied whose commit record begins here or beyond.
    pub lsn: Lsn,
    /// Whether the lane shall come to stand exactly here. Such a cap lies between two records of
    /// the source's log; one that is not exact may lie inside a record.
    pub exact: bool,
}

/// What a cap leaves of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// All of it: the cap has nothing to say.
    Whole,
    /// These transactions, if any. Then the lane stands at the cap, inside the frame (C21), and the
    /// frame waits.
    Part(Range<usize>),
    /// Nothing: it waits, and the lane stands where it stood.
    Held,
}

impl Machine {
    /// What a cap leaves of the next frame; nothing moves.
    ///
    /// A frame is cut only where the machine will let it pass afterwards: a position inside a
    /// transaction, or below the end of a timeline that the frame leaves, is not stood at.
    pub fn cut(&self, next: &Delivered, cap: Cap) -> Cut {
        if next.frame.header.position <= cap.lsn {
            return Cut::Whole;
        }
        let entries = entries(&next.frame.body);
        let first = match self.clone().frame(next) {
            Verdict::Apply(range) => range.start,
            Verdict::Progress => entries.len(),
            // Nothing of it would be applied, and nothing moves beyond the cap.
            Verdict::Duplicate
            | Verdict::Redelivered
            | Verdict::Reopens
            | Verdict::Aside
            | Verdict::Missing
            | Verdict::Overtaken(_)
            | Verdict::Halt(_) => return Cut::Whole,
        };
        if !cap.exact || self.end_lsn >= cap.lsn {
            return Cut::Held;
        }
        let below = entries.partition_point(|entry| entry.commit_lsn < cap.lsn);
        let part = first..below.max(first);
        let mut cut = self.clone();
        cut.stand_at(cap.lsn, end_of(&entries[part.clone()]));
        let rest = match cut.frame(next) {
            Verdict::Apply(rest) => rest.start,
            Verdict::Progress => entries.len(),
            _ => return Cut::Held,
        };
        if rest == part.end {
            Cut::Part(part)
        } else {
            Cut::Held
        }
    }

    /// Stands at a position inside the next frame, behind those of its transactions that end at or
    /// below `transaction_end`; `None`: behind none of them.
    pub(crate) fn stand_at(&mut self, lsn: Lsn, transaction_end: Option<Lsn>) {
        self.end_lsn = lsn;
        if let Some(end) = transaction_end {
            self.transaction_end_lsn = end;
        }
    }
}

/// Where the last of these transactions ends.
pub(crate) fn end_of(entries: &[BundleEntry]) -> Option<Lsn> {
    entries.last().map(|entry| entry.end_lsn)
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
