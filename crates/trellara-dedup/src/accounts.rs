//! What is resident, over all lanes, and what happened since the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ring::Maybes;

/// Counters since the start, and the bytes of all lanes. Each number stands for itself, so their
/// order does not matter.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) resident: AtomicU64,
    pub(crate) vouched: AtomicU64,
    pub(crate) unvouched: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) maybes: AtomicU64,
    pub(crate) false_maybes: AtomicU64,
    pub(crate) gaps: AtomicU64,
    pub(crate) overlaps: AtomicU64,
    pub(crate) hydrations: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) suppressions: AtomicU64,
    pub(crate) truncated: AtomicU64,
}

impl Accounts {
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        // Most batches have nothing to add to most counters.
        if more > 0 {
            counter.fetch_add(more, Relaxed);
        }
    }

    pub(crate) fn maybes(&self, maybes: Maybes) {
        Self::add(&self.maybes, maybes.all);
        Self::add(&self.false_maybes, maybes.wrong);
    }

    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Relaxed)
    }
}

/// A part of the resident bytes. Given back when it goes.
#[derive(Debug)]
pub(crate) struct Share {
    accounts: Arc<Accounts>,
    bytes: AtomicU64,
}

impl Share {
    pub(crate) fn of(accounts: &Arc<Accounts>) -> Self {
        Self {
            accounts: Arc::clone(accounts),
            bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// All shares together.
    pub(crate) fn resident(&self) -> u64 {
        self.accounts.resident()
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Only whoever holds the lock of what is counted calls this.
    pub(crate) fn set(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Relaxed);
        if bytes >= before {
            self.accounts.resident.fetch_add(bytes - before, Relaxed);
        } else {
            self.accounts.resident.fetch_sub(before - bytes, Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
