//! What a cache did and holds, as a value.

use std::hash::Hash;
use std::sync::atomic::Ordering::Relaxed;

use crate::cache::Cache;
use crate::entry::State;

/// Counters since the start, and what is there now.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Identities that were vouched for.
    pub vouched: u64,
    /// Identities that were not: their lane could not vouch, or they were hits.
    pub unvouched: u64,
    /// Identities that were known here.
    pub hits: u64,
    /// Answers of a filter that had to be looked up.
    pub maybes: u64,
    /// Those of them that were wrong.
    pub false_maybes: u64,
    /// Times that somebody else's write was noticed.
    pub gaps: u64,
    /// Times that an ordinal came twice.
    pub overlaps: u64,
    /// Hydrations that were installed.
    pub hydrations: u64,
    /// Hydrations that were refused at their end.
    pub refused: u64,
    /// Lanes that were evicted for others.
    pub evictions: u64,
    /// Times that a lane found no room.
    pub suppressions: u64,
    /// Identities inside their window that were dropped for room: the window is narrower than
    /// configured when this grows.
    pub truncated: u64,

    /// Lanes with an entry.
    pub lanes: u64,
    /// Those that vouch.
    pub vouching: u64,
    /// Those that miss rows.
    pub gapped: u64,
    /// Those that wait for a hydration.
    pub rebuild_wanted: u64,
    /// Lanes that found no room when they were last tested.
    pub suppressed: u64,
    /// Bytes of all lanes.
    pub resident_bytes: u64,
    /// Identities of all lanes.
    pub identities: u64,
    /// Generations of all lanes.
    pub generations: u64,
}

impl<K: Eq + Hash + Clone, const BLOCK: usize> Cache<K, BLOCK> {
    /// What happened and what is there.
    pub fn stats(&self) -> Stats {
        let accounts = &self.accounts;
        let mut stats = Stats {
            vouched: accounts.vouched.load(Relaxed),
            unvouched: accounts.unvouched.load(Relaxed),
            hits: accounts.hits.load(Relaxed),
            maybes: accounts.maybes.load(Relaxed),
            false_maybes: accounts.false_maybes.load(Relaxed),
            gaps: accounts.gaps.load(Relaxed),
            overlaps: accounts.overlaps.load(Relaxed),
            hydrations: accounts.hydrations.load(Relaxed),
            refused: accounts.refused.load(Relaxed),
            evictions: accounts.evictions.load(Relaxed),
            suppressions: accounts.suppressions.load(Relaxed),
            truncated: accounts.truncated.load(Relaxed),
            suppressed: self.books().suppressed() as u64,
            resident_bytes: accounts.resident(),
            ..Stats::default()
        };
        for slot in self.slots() {
            let entry = slot.lock(self.settings.ceiling);
            stats.lanes += 1;
            stats.identities += entry.ring().len() as u64;
            stats.generations += entry.ring().generations() as u64;
            match entry.state() {
                State::Vouching => stats.vouching += 1,
                State::Gapped => stats.gapped += 1,
                State::RebuildWanted | State::Suppressed => stats.rebuild_wanted += 1,
            }
        }
        stats
    }
}
