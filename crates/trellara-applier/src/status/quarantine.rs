//! What is held, as the endpoint shows it.

use std::fmt;

use crate::quarantine::{HeldId, QuarantinePolicy};

/// What is held of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuarantineSnapshot {
    /// What happens to a transaction that the target refuses.
    pub policy: QuarantinePolicy,
    /// Transactions that are still to be applied.
    pub open: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Entries of their footprints.
    pub keys: u64,
    /// When the oldest was set aside, in microseconds since the Unix epoch; and which it is.
    pub oldest: Option<(i64, HeldId)>,
    /// Those of them that the lane has moved past.
    pub passed: u64,
    /// Transactions that are not to be applied.
    pub discarded: u64,
    /// What the lane stands still for.
    pub stands_in_front_of: Option<HeldId>,
}

impl QuarantineSnapshot {
    /// Whether the target may show a state that the source never had (C40).
    pub fn loosens(&self) -> bool {
        self.passed > 0 || self.discarded > 0
    }

    /// Whether there is anything to tell.
    pub fn is_empty(&self) -> bool {
        self.open == 0 && self.discarded == 0
    }
}

impl fmt::Display for QuarantineSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} held", self.open)?;
        if let Some(id) = self.stands_in_front_of {
            write!(f, ", the lane stands still for {id}")?;
        } else if let Some((_, id)) = self.oldest {
            write!(f, ", the oldest is {id}")?;
        }
        if self.discarded > 0 {
            write!(f, ", {} discarded", self.discarded)?;
        }
        if self.loosens() {
            f.write_str("; the target may show a state the source never had")?;
        }
        Ok(())
    }
}
