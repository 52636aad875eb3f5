//! The handle of a lane: its entry behind a lock of its own, its bytes, and when it was used.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::accounts::{Accounts, Share};
use crate::entry::Entry;
use crate::words::Moment;

/// What a lane takes before it knows anything, with its place in the map.
const ENTRY_BYTES: u64 = 512;

#[derive(Debug)]
pub(crate) struct Slot<const BLOCK: usize> {
    entry: Mutex<Entry<BLOCK>>,
    share: Share,
    last_used: AtomicI64,
}

impl<const BLOCK: usize> Slot<BLOCK> {
    pub(crate) fn cold(ceiling: usize, accounts: &Arc<Accounts>, now: Moment) -> Self {
        let share = Share::of(accounts);
        share.set(ENTRY_BYTES);
        Self {
            entry: Mutex::new(Entry::cold(ceiling)),
            share,
            last_used: AtomicI64::new(now.0),
        }
    }

    /// Works on the entry, then counts what it takes.
    pub(crate) fn with<T>(&self, ceiling: usize, work: impl FnOnce(&mut Entry<BLOCK>) -> T) -> T {
        let mut entry = self.lock(ceiling);
        let result = work(&mut entry);
        self.share.set(ENTRY_BYTES + entry.ring().bytes() as u64);
        result
    }

    pub(crate) fn lock(&self, ceiling: usize) -> MutexGuard<'_, Entry<BLOCK>> {
        self.entry.lock().unwrap_or_else(|poisoned| {
            // Somebody panicked half way. Nothing here is needed for a right answer, so nothing
            // here is worth a guess.
            self.entry.clear_poison();
            let mut entry = poisoned.into_inner();
            entry.forget(ceiling);
            entry
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.share.bytes()
    }

    pub(crate) fn used(&self, now: Moment) {
        self.last_used.fetch_max(now.0, Relaxed);
    }

    pub(crate) fn last_used(&self) -> Moment {
        Moment(self.last_used.load(Relaxed))
    }
}

/// Reading and writing a map that a panic cannot leave half changed.
pub(crate) trait Shared<T> {
    fn reading(&self) -> std::sync::RwLockReadGuard<'_, T>;
    fn writing(&self) -> std::sync::RwLockWriteGuard<'_, T>;
}

impl<T> Shared<T> for RwLock<T> {
    fn reading(&self) -> std::sync::RwLockReadGuard<'_, T> {
        self.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> std::sync::RwLockWriteGuard<'_, T> {
        self.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::entry::State;
    use crate::ring::Ring;
    use crate::words::Ordinal;

    #[test]
    fn a_panic_half_way_costs_the_entry_and_nothing_else() {
        let slot = Slot::<16>::cold(16, &Arc::default(), Moment(0));
        slot.with(16, |entry| {
            entry.hydrated(Ring::new(16), Ordinal(0), Ordinal(0))
        });
        assert_eq!(slot.lock(16).state(), State::Vouching);
        let panicked = catch_unwind(AssertUnwindSafe(|| slot.with(16, |_| panic!("half way"))));
        assert!(panicked.is_err());
        assert_eq!(slot.lock(16).state(), State::RebuildWanted);
        slot.with(16, |entry| {
            entry.hydrated(Ring::new(16), Ordinal(0), Ordinal(0))
        });
        assert_eq!(slot.lock(16).state(), State::Vouching);
    }
}
