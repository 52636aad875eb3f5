//! All lanes: who knows what, and who may stay in memory.
//!
//! Locks: the map is read only to clone a lane's handle; the work is done under that lane's own
//! lock. Nobody holds two lanes' locks, or the map's lock while waiting for a lane's.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::accounts::{Accounts, Share};
use crate::entry::{Binding, State, Step, Verdict};
use crate::hydration::{Hydration, Refused};
use crate::pressure::{Bookkeeping, Fixed, Pressure, Suppressed};
use crate::ring::Ring;
use crate::settings::Settings;
use crate::slot::{Shared, Slot};
use crate::words::{Identity, Moment, Ordinal, Stamp};

/// What would make a lane vouch again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// It vouches.
    Nothing,
    /// The ledger rows behind `after` up to `upto`, each given to [`Cache::applied`].
    Rows {
        /// The last ordinal that is known.
        after: Ordinal,
        /// The last ordinal that was seen.
        upto: Ordinal,
    },
    /// A [hydration](Cache::hydrate).
    Hydration,
    /// A hydration, but not before this moment.
    Later {
        /// The end of the cooldown.
        until: Moment,
    },
}

/// What a lane is after a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Its state.
    pub state: State,
    /// To be logged.
    pub warning: Option<Pressure>,
}

/// What was applied to a target, lane by lane, as far as it fits into memory.
///
/// It never decides. [`Cache::verify`] says up to which ordinal nobody needs to look, and "cannot
/// vouch" whenever there is any doubt; a known identity is a hint to look, never a verdict.
///
/// `K` names a lane. `BLOCK` is 4096 but in tests.
#[derive(Debug)]
pub struct Cache<K, const BLOCK: usize = 4096> {
    pub(crate) settings: Settings,
    lanes: RwLock<HashMap<K, Arc<Slot<BLOCK>>, Fixed>>,
    books: Mutex<Bookkeeping<K>>,
    pub(crate) accounts: Arc<Accounts>,
    tickets: AtomicU64,
}

impl<K: Eq + Hash + Clone, const BLOCK: usize> Cache<K, BLOCK> {
    /// An empty cache.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings: settings.resolved(),
            lanes: RwLock::default(),
            books: Mutex::new(Bookkeeping::new()),
            accounts: Arc::default(),
            tickets: AtomicU64::new(1),
        }
    }

    /// What it was made with; the ceiling is the one that fits the budget.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Says under what the lane works from now on: at every connect, and whenever epoch, history,
    /// window or the kind of identity may have changed. An entry that was filled under another
    /// binding is emptied, and wants a rebuild until one succeeds.
    pub fn bind(&self, lane: &K, binding: &Binding) {
        if let Some(slot) = self.slot(lane) {
            let ceiling = self.settings.ceiling;
            slot.with(ceiling, |entry| entry.bind(binding, ceiling));
        }
    }

    /// The vouch is gone and a rebuild wanted: after a reconnect, a missed compare-and-set, any
    /// doubt (C43). Hydrations that were begun before are refused.
    pub fn forget(&self, lane: &K) {
        if let Some(slot) = self.slot(lane) {
            let ceiling = self.settings.ceiling;
            slot.with(ceiling, |entry| entry.forget(ceiling));
        }
    }

    /// Frees everything about a lane: deduplication was disabled for it, or it is gone.
    pub fn remove(&self, lane: &K) {
        let removed = self.lanes.writing().remove(lane);
        self.books().remove(lane);
        self.empty(removed);
    }

    /// Frees everything about all lanes.
    pub fn clear(&self) {
        let removed = std::mem::take(&mut *self.lanes.writing());
        self.books().clear();
        self.empty(removed.into_values());
    }

    /// Whoever still holds a handle finds nothing in it.
    fn empty(&self, slots: impl IntoIterator<Item = Arc<Slot<BLOCK>>>) {
        let ceiling = self.settings.ceiling;
        for slot in slots {
            slot.with(ceiling, |entry| entry.forget(ceiling));
        }
    }

    /// Says up to which ordinal none of `batch` was applied, hits excepted.
    ///
    /// Everything at or below `window_start` is answered by the caller without us; what is said is
    /// said about the ordinals behind it. A lane that does not know all of them cannot vouch.
    pub fn verify(
        &self,
        lane: &K,
        batch: &[Identity],
        window_start: Ordinal,
        now: Moment,
    ) -> Verdict {
        let verdict = match self.slot(lane) {
            Some(slot) => {
                slot.used(now);
                let entry = slot.lock(self.settings.ceiling);
                let (verdict, maybes) = entry.verify(batch, window_start);
                self.accounts.maybes(maybes);
                verdict
            }
            None => Verdict::unvouched(State::RebuildWanted),
        };
        let hits = verdict.hits.len() as u64;
        let all = batch.len() as u64;
        let vouched = if verdict.through == Ordinal::NONE {
            0
        } else {
            all - hits
        };
        Accounts::add(&self.accounts.vouched, vouched);
        Accounts::add(&self.accounts.unvouched, all - vouched);
        Accounts::add(&self.accounts.hits, hits);
        Verdict {
            state: self.cold_or(lane, verdict.state),
            ..verdict
        }
    }

    /// Takes over a row that the ledger has: `identities` with the ordinals `first`, `first + 1`,
    /// …, or none of them for a row that only made progress. `stamp` is its time of apply by the
    /// target's clock, and what is too old by it leaves.
    pub fn applied(
        &self,
        lane: &K,
        first: Ordinal,
        identities: &[Identity],
        stamp: Stamp,
        now: Moment,
    ) -> Applied {
        let Some(slot) = self.slot(lane) else {
            return self.without_entry(lane);
        };
        slot.used(now);
        let ceiling = self.settings.ceiling;
        let (step, state) = slot.with(ceiling, |entry| {
            let step = entry.applied(first, identities, stamp, ceiling);
            entry.expire(stamp, self.settings.slack);
            (step, entry.state())
        });
        match step {
            Step::Gap => Accounts::add(&self.accounts.gaps, 1),
            Step::Overlap => Accounts::add(&self.accounts.overlaps, 1),
            Step::Advanced | Step::Noted => {}
        }
        self.stay_within_budget(lane, &slot, state, now)
    }

    /// Drops what left the window by `now`. [`Cache::applied`] does so too; this is for lanes that
    /// are idle.
    pub fn expire(&self, lane: &K, now: Stamp) {
        if let Some(slot) = self.slot(lane) {
            let slack = self.settings.slack;
            slot.with(self.settings.ceiling, |entry| entry.expire(now, slack));
        }
    }

    /// What to load, if anything, to make the lane vouch again.
    pub fn wants(&self, lane: &K, now: Moment) -> Wants {
        let slot = self.slot(lane);
        let entry = slot.as_ref().map(|slot| slot.lock(self.settings.ceiling));
        if let Some((after, upto)) = entry.as_ref().and_then(|entry| entry.missing()) {
            return Wants::Rows { after, upto };
        }
        if entry.is_some_and(|entry| entry.state() == State::Vouching) {
            return Wants::Nothing;
        }
        match self.books().cooldown(lane) {
            Some(until) if until > now => Wants::Later { until },
            _ => Wants::Hydration,
        }
    }

    /// Asks to fill a lane with about `identities` (an upper bound from its ordinals is good
    /// enough; `None` stands for its last known size). Whatever was known is given up.
    ///
    /// Admitted when everything else and this fit into 90 % of the budget, if need be after the
    /// eviction of lanes that were not used for a while. A lane of unknown size is always admitted.
    ///
    /// # Errors
    ///
    /// When there is no room, or its last refusal is less than a cooldown ago.
    pub fn hydrate(
        &self,
        lane: &K,
        binding: &Binding,
        identities: Option<u64>,
        now: Moment,
    ) -> Result<Hydration<K, BLOCK>, Suppressed> {
        let ceiling = self.settings.ceiling;
        let ring = Ring::new(ceiling);
        let estimate = match identities {
            Some(identities) => ring.estimate(identities),
            None => self.books().footprint(lane).unwrap_or(0),
        };
        if estimate > 0 {
            self.admit(lane, estimate, now)?;
        }
        self.books().release(lane);

        let ticket = self.tickets.fetch_add(1, Relaxed);
        let slot = self.slot_or_cold(lane, now);
        slot.used(now);
        slot.with(ceiling, |entry| {
            entry.await_hydration(binding, ticket, ceiling)
        });
        let share = Share::of(&self.accounts);
        share.set(estimate);
        let budget = self.settings.budget;
        Ok(Hydration::begin(lane.clone(), ticket, ring, share, budget))
    }

    /// Installs what was loaded: every identity with an ordinal behind `hydrated_from` and not
    /// above `verified_upto`. From here on the lane vouches, or is gapped when rows were applied
    /// behind `verified_upto` meanwhile.
    ///
    /// # Errors
    ///
    /// When the rows do not cover that, or the lane was bound, forgotten or evicted since. Nothing
    /// is installed then.
    pub fn finish(
        &self,
        hydration: Hydration<K, BLOCK>,
        hydrated_from: Ordinal,
        verified_upto: Ordinal,
        now: Moment,
    ) -> Result<Applied, Refused> {
        let (lane, ticket) = (hydration.lane.clone(), hydration.ticket);
        let installed = hydration
            .complete(hydrated_from, verified_upto)
            .and_then(|hydrated| {
                let slot = self.slot(&lane).ok_or(Refused::Superseded)?;
                let state = slot.with(self.settings.ceiling, |entry| {
                    let awaited = entry.awaits(ticket);
                    // Given back before the entry's own share is counted.
                    drop(hydrated.share);
                    if awaited {
                        entry.hydrated(hydrated.ring, hydrated.from, verified_upto);
                    }
                    awaited.then(|| entry.state())
                });
                Ok((slot, state.ok_or(Refused::Superseded)?))
            });
        match installed {
            Ok((slot, state)) => {
                slot.used(now);
                Accounts::add(&self.accounts.hydrations, 1);
                Ok(self.stay_within_budget(&lane, &slot, state, now))
            }
            Err(refused) => {
                Accounts::add(&self.accounts.refused, 1);
                Err(refused)
            }
        }
    }

    /// The state of a lane.
    pub fn state(&self, lane: &K) -> State {
        let slot = self.slot(lane);
        let state = slot.map(|slot| slot.lock(self.settings.ceiling).state());
        self.cold_or(lane, state.unwrap_or(State::RebuildWanted))
    }

    fn without_entry(&self, lane: &K) -> Applied {
        Applied {
            state: self.cold_or(lane, State::RebuildWanted),
            warning: None,
        }
    }

    /// A lane that knows nothing is suppressed when it found no room.
    fn cold_or(&self, lane: &K, state: State) -> State {
        match state {
            State::RebuildWanted if self.books().cooldown(lane).is_some() => State::Suppressed,
            other => other,
        }
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Bookkeeping<K>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slots(&self) -> Vec<Arc<Slot<BLOCK>>> {
        self.lanes.reading().values().cloned().collect()
    }

    fn slot(&self, lane: &K) -> Option<Arc<Slot<BLOCK>>> {
        self.lanes.reading().get(lane).cloned()
    }

    fn slot_or_cold(&self, lane: &K, now: Moment) -> Arc<Slot<BLOCK>> {
        if let Some(slot) = self.slot(lane) {
            return slot;
        }
        let cold = || Arc::new(Slot::cold(self.settings.ceiling, &self.accounts, now));
        Arc::clone(
            self.lanes
                .writing()
                .entry(lane.clone())
                .or_insert_with(cold),
        )
    }

    /// The lanes but `lane`, the longest unused first, that may be evicted.
    pub(crate) fn idle(&self, lane: &K, now: Moment) -> Vec<(K, Arc<Slot<BLOCK>>)> {
        let guard = self.settings.guard;
        let lanes = self.lanes.reading();
        let idle = |(name, slot): &(&K, &Arc<Slot<BLOCK>>)| {
            *name != lane && slot.last_used().plus(guard) < now
        };
        let idle = lanes.iter().filter(idle);
        let mut idle: Vec<_> = idle
            .map(|(name, slot)| (name.clone(), Arc::clone(slot)))
            .collect();
        drop(lanes);
        idle.sort_by_key(|(_, slot)| slot.last_used());
        idle
    }

    pub(crate) fn resident_of(&self, lane: &K) -> u64 {
        self.slot(lane).map_or(0, |slot| slot.bytes())
    }

    /// Takes a lane out of the map, remembers its size and empties it. Returns whether it was there.
    pub(crate) fn take_out(&self, lane: &K) -> bool {
        let taken = self.lanes.writing().remove(lane);
        let there = taken.is_some();
        if let Some(slot) = taken {
            self.books().went(lane, slot.bytes(), &self.settings);
            self.empty([slot]);
        }
        there
    }
}
