//! Births: an entry is filled from the ledger, completely or not at all.

use std::fmt;

use crate::accounts::{Accounts, Share};
use crate::ring::Ring;
use crate::words::{Identity, Ordinal, Stamp};

/// Why a hydration is of no use. The lane keeps answering "cannot vouch"; read the ledger again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// A row did not follow the one before it: identities may be missing.
    NotContiguous,
    /// The rows do not reach over what they are said to cover.
    NotCovered,
    /// The lane was bound anew, forgotten, evicted or hydrated by somebody else meanwhile.
    Superseded,
    /// Not even the newest identities fit into the budget.
    TooLarge,
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotContiguous => "a ledger row does not follow the one before it",
            Self::NotCovered => "the ledger rows do not cover what was to be hydrated",
            Self::Superseded => "the lane was bound, forgotten or evicted meanwhile",
            Self::TooLarge => "the dedup memory has no room for this lane",
        })
    }
}

impl std::error::Error for Refused {}

/// A lane that is being filled with ledger rows, oldest first.
///
/// The caller computes the cut: when its window holds more than
/// [`room`](crate::Cache::room), it begins reading later, so that the newest rows are loaded. Should the
/// rows take more than the budget all the same, the oldest are dropped again.
///
/// It belongs to nobody until it is [finished](crate::Cache::finish); dropping it gives its memory
/// back.
#[derive(Debug)]
pub struct Hydration<K, const BLOCK: usize = 4096> {
    pub(crate) lane: K,
    pub(crate) ticket: u64,
    ring: Ring<BLOCK>,
    share: Share,
    /// What the fit test was told, kept free while rows come.
    reserved: u64,
    budget: u64,
    first: Option<Ordinal>,
    last: Ordinal,
    truncated_to: Ordinal,
    spoiled: Option<Refused>,
}

/// What a finished hydration knows.
pub(crate) struct Hydrated<const BLOCK: usize> {
    pub(crate) ring: Ring<BLOCK>,
    pub(crate) from: Ordinal,
    pub(crate) share: Share,
}

impl<K, const BLOCK: usize> Hydration<K, BLOCK> {
    pub(crate) fn begin(
        lane: K,
        ticket: u64,
        ring: Ring<BLOCK>,
        share: Share,
        budget: u64,
    ) -> Self {
        Self {
            lane,
            ticket,
            ring,
            reserved: share.bytes(),
            share,
            budget,
            first: None,
            last: Ordinal::NONE,
            truncated_to: Ordinal::NONE,
            spoiled: None,
        }
    }

    /// The next ledger row: `identities` with the ordinals `first`, `first + 1`, …, or none of them
    /// for a row that only made progress and takes one ordinal.
    ///
    /// # Errors
    ///
    /// When it does not follow the row before. An unreadable row is never passed over: without it
    /// the rest is refused too.
    pub fn push(
        &mut self,
        first: Ordinal,
        identities: &[Identity],
        stamp: Stamp,
    ) -> Result<(), Refused> {
        if let Some(refused) = self.spoiled {
            return Err(refused);
        }
        let last = first.last_of(identities.len());
        let follows = self.first.is_none() && first >= Ordinal(0) || first.follows(self.last);
        let Some(last) = last.filter(|_| follows) else {
            return Err(self.spoil(Refused::NotContiguous));
        };
        self.ring.append(first, identities, stamp);
        self.first.get_or_insert(first);
        self.last = last;
        self.keep_within_budget()
    }

    fn keep_within_budget(&mut self) -> Result<(), Refused> {
        self.share.set(self.reserved.max(self.ring.bytes() as u64));
        while self.share.resident() > self.budget && self.ring.bytes() as u64 > self.reserved {
            // The newest stay.
            let before = self.ring.len();
            let Some(last) = self.ring.drop_oldest() else {
                return Err(self.spoil(Refused::TooLarge));
            };
            let gone = (before - self.ring.len()) as u64;
            Accounts::add(&self.share.accounts().truncated, gone);
            self.truncated_to = last;
            self.share.set(self.reserved.max(self.ring.bytes() as u64));
        }
        Ok(())
    }

    fn spoil(&mut self, why: Refused) -> Refused {
        self.spoiled = Some(why);
        why
    }

    /// Identities that are loaded.
    #[must_use]
    pub fn identities(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Whether every identity in (`from`, `upto`] was pushed, but for those dropped for room.
    pub(crate) fn complete(self, from: Ordinal, upto: Ordinal) -> Result<Hydrated<BLOCK>, Refused> {
        if let Some(refused) = self.spoiled {
            return Err(refused);
        }
        let covered = match self.first {
            Some(first) => (first <= from || first.follows(from)) && self.last == upto,
            None => from == upto,
        };
        if !covered || from < Ordinal::NONE || from > upto {
            return Err(Refused::NotCovered);
        }
        Ok(Hydrated {
            ring: self.ring,
            from: from.max(self.truncated_to),
            share: self.share,
        })
    }
}
