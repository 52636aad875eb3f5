//! One lane: what is known of it, and whether that is enough to vouch.
//!
//! The rule: an entry vouches only when it knows every identity in
//! (`hydrated_from`, `verified_upto`], and only to a caller who answers for everything at or below
//! `hydrated_from` by other means. Every doubt ends in "cannot vouch", which is always sound.

use std::time::Duration;

use crate::ring::{Maybes, Ring};
use crate::words::{Identity, Ordinal, Stamp};

/// What a vouch is bound to (C43). Under any other binding it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// The lane's lease epoch: another holder may have written in between.
    pub epoch: i64,
    /// A digest of flow and source history: ordinals and identities of another one are others.
    pub history: u128,
    /// The way identities are computed.
    pub identity: u32,
    /// How long identities matter. What expired under a shorter window is missing in a longer one.
    pub window: Duration,
}

/// What a lane can do for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// It vouches.
    Vouching,
    /// Somebody else wrote in between; the rows that are missing bring it back.
    Gapped,
    /// Nothing is known. Only a hydration brings it back.
    RebuildWanted,
    /// Nothing is known, and there was no room for it. It is tested again after a cooldown.
    Suppressed,
}

/// What the cache says about a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The lane's state.
    pub state: State,
    /// Everything behind this ordinal is known, up to the last one verified.
    pub known_from: Ordinal,
    /// None of the batch but the hits was applied behind the window's start and at or below this
    /// ordinal. [`Ordinal::NONE`] when that cannot be vouched for.
    pub through: Ordinal,
    /// The indexes of identities that are known here, ascending: hints, never verdicts. Each is to
    /// be probed in full.
    pub hits: Vec<usize>,
}

impl Verdict {
    pub(crate) fn unvouched(state: State) -> Self {
        Self {
            state,
            known_from: Ordinal::NONE,
            through: Ordinal::NONE,
            hits: Vec::new(),
        }
    }

    /// Up to where the identity at `index` need not be probed: [`Ordinal::NONE`] for a hit.
    #[must_use]
    pub fn verified_through(&self, index: usize) -> Ordinal {
        match self.hits.binary_search(&index) {
            Ok(_) => Ordinal::NONE,
            Err(_) => self.through,
        }
    }

    /// Whether every identity of the batch is vouched for.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.through != Ordinal::NONE && self.hits.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Cold,
    Vouching,
    Gapped,
}

/// What a row did to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It was the next one.
    Advanced,
    /// The entry knows nothing, or waits for rows before this one.
    Noted,
    /// Rows before it are missing; the first time that is noticed.
    Gap,
    /// It stands where another one already stood.
    Overlap,
}

/// One lane.
#[derive(Debug)]
pub(crate) struct Entry<const BLOCK: usize> {
    ring: Ring<BLOCK>,
    phase: Phase,
    binding: Option<Binding>,
    hydrated_from: Ordinal,
    verified_upto: Ordinal,
    /// The last ordinal that was seen in whatever phase: behind it nothing is missing.
    seen_upto: Ordinal,
    /// Of the hydration that may be installed. Numbers are not used twice.
    ticket: u64,
}

impl<const BLOCK: usize> Entry<BLOCK> {
    pub(crate) fn cold(ceiling: usize) -> Self {
        Self {
            ring: Ring::new(ceiling),
            phase: Phase::Cold,
            binding: None,
            hydrated_from: Ordinal::NONE,
            verified_upto: Ordinal::NONE,
            seen_upto: Ordinal::NONE,
            ticket: 0,
        }
    }

    pub(crate) fn state(&self) -> State {
        match self.phase {
            Phase::Cold => State::RebuildWanted,
            Phase::Vouching => State::Vouching,
            Phase::Gapped => State::Gapped,
        }
    }

    pub(crate) fn ring(&self) -> &Ring<BLOCK> {
        &self.ring
    }

    /// The rows that a gapped entry misses, as the ordinals before the first and of the last.
    pub(crate) fn missing(&self) -> Option<(Ordinal, Ordinal)> {
        (self.phase == Phase::Gapped).then_some((self.verified_upto, self.seen_upto))
    }

    /// Gives up everything that is known: rebuild wanted, and whatever hydration is under way is
    /// of no use.
    pub(crate) fn forget(&mut self, ceiling: usize) {
        *self = Self {
            binding: self.binding,
            ..Self::cold(ceiling)
        };
    }

    /// Whether another binding made it forget.
    pub(crate) fn bind(&mut self, binding: &Binding, ceiling: usize) -> bool {
        let other = self.binding.is_some_and(|bound| bound != *binding);
        if other {
            self.forget(ceiling);
        }
        self.binding = Some(*binding);
        other
    }

    /// Everything known is given up for the hydration with this ticket. What is seen meanwhile is
    /// remembered by its last ordinal.
    pub(crate) fn await_hydration(&mut self, binding: &Binding, ticket: u64, ceiling: usize) {
        let seen_upto = self.seen_upto;
        let same = !self.bind(binding, ceiling);
        self.forget(ceiling);
        self.ticket = ticket;
        if same {
            self.seen_upto = seen_upto;
        }
    }

    pub(crate) fn awaits(&self, ticket: u64) -> bool {
        self.phase == Phase::Cold && self.ticket == ticket
    }

    /// Born complete: everything in (`hydrated_from`, `verified_upto`] is in `ring`.
    pub(crate) fn hydrated(&mut self, ring: Ring<BLOCK>, from: Ordinal, upto: Ordinal) {
        self.ring = ring;
        self.hydrated_from = from;
        self.verified_upto = upto;
        self.seen_upto = self.seen_upto.max(upto);
        self.settle();
        self.ticket = 0;
    }

    fn settle(&mut self) {
        self.phase = match self.verified_upto < self.seen_upto {
            true => Phase::Gapped,
            false => Phase::Vouching,
        };
    }

    pub(crate) fn verify(&self, batch: &[Identity], window_start: Ordinal) -> (Verdict, Maybes) {
        // A start above everything known would be vouched for trivially; the caller is not where
        // this entry is.
        let apart = self.hydrated_from > window_start || window_start > self.verified_upto;
        if self.phase != Phase::Vouching || apart {
            return (Verdict::unvouched(self.state()), Maybes::default());
        }
        let mut hits = Vec::new();
        let maybes = self.ring.probe(batch, &mut hits);
        let verdict = Verdict {
            state: State::Vouching,
            known_from: self.hydrated_from,
            through: self.verified_upto,
            hits,
        };
        (verdict, maybes)
    }

    /// A row of the ledger: `identities` from the ordinal `first` on, or none and one ordinal.
    pub(crate) fn applied(
        &mut self,
        first: Ordinal,
        identities: &[Identity],
        stamp: Stamp,
        ceiling: usize,
    ) -> Step {
        let last = first.last_of(identities.len());
        let Some(last) = last.filter(|_| first > Ordinal::NONE) else {
            self.forget(ceiling);
            return Step::Overlap;
        };
        if self.phase == Phase::Cold {
            self.seen_upto = self.seen_upto.max(last);
            return Step::Noted;
        }
        if first <= self.verified_upto {
            // Impossible while ordinals only grow: whatever happened, start again.
            self.forget(ceiling);
            return Step::Overlap;
        }
        self.seen_upto = self.seen_upto.max(last);
        if !first.follows(self.verified_upto) {
            let known = self.phase == Phase::Gapped;
            self.phase = Phase::Gapped;
            return if known { Step::Noted } else { Step::Gap };
        }
        self.ring.append(first, identities, stamp);
        self.verified_upto = last;
        self.settle();
        Step::Advanced
    }

    /// Drops what is older than the window and `slack` before `now`, by the target's clock.
    pub(crate) fn expire(&mut self, now: Stamp, slack: Duration) {
        let Some(binding) = self.binding else { return };
        let before = now.less(binding.window).less(slack);
        let dropped = self.ring.expire(before);
        self.raise(dropped);
    }

    /// Drops the oldest identities although they matter. Returns how many; 0 when only the newest
    /// few are left.
    pub(crate) fn truncate(&mut self) -> usize {
        let before = self.ring.len();
        let dropped = self.ring.drop_oldest();
        self.raise(dropped);
        before - self.ring.len()
    }

    fn raise(&mut self, dropped: Option<Ordinal>) {
        if let Some(last) = dropped {
            self.hydrated_from = self.hydrated_from.max(last);
        }
    }
}
