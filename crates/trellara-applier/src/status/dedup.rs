//! What deduplication did, and how the identity cache is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trellara_dedup::Stats;
use trellara_envelope::FlowName;

use crate::metric;

/// Counters and the cache's state; written by the loop.
#[derive(Debug, Default)]
pub(crate) struct DedupStatus {
    applied_vouched: AtomicU64,
    applied_probed: AtomicU64,
    probes: AtomicU64,
    rows_read: AtomicU64,
    found: AtomicU64,
    below_watermark: AtomicU64,
    hydrations: AtomicU64,
    hydration_us: AtomicU64,
    cache: Mutex<(&'static str, Stats)>,
}

/// A copy at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DedupSnapshot {
    /// The cache of this lane: `vouching`, `gapped`, `rebuild wanted`, `suppressed`, or `off`; empty
    /// before the first connection.
    pub state: &'static str,
    /// Transactions applied because the cache vouched for them.
    pub applied_vouched: u64,
    /// Transactions applied after the ledger was asked.
    pub applied_probed: u64,
    /// Questions asked of the ledger.
    pub probes: u64,
    /// Ledger rows that they read.
    pub rows_read: u64,
    /// Identities that they found.
    pub found: u64,
    /// Duplicates that only the watermark answered for: their rows were pruned.
    pub below_watermark: u64,
    /// Transactions that the cache knew locally.
    pub hits: u64,
    /// Identities in the cache, all lanes.
    pub identities: u64,
    /// Bytes that they and their filters take.
    pub resident_bytes: u64,
    /// Lanes that may not be in memory for a while.
    pub suppressed_lanes: u64,
    /// Lanes thrown out for the budget.
    pub evictions: u64,
    /// Identities dropped for the budget, although inside the window.
    pub truncated: u64,
    /// Times that the cache was filled from the ledger.
    pub hydrations: u64,
    /// How long that took, all together.
    pub hydration: Duration,
}

impl DedupStatus {
    pub(crate) fn snapshot(&self) -> DedupSnapshot {
        let (state, stats) = self.cache().clone();
        DedupSnapshot {
            state,
            applied_vouched: self.applied_vouched.load(Relaxed),
            applied_probed: self.applied_probed.load(Relaxed),
            probes: self.probes.load(Relaxed),
            rows_read: self.rows_read.load(Relaxed),
            found: self.found.load(Relaxed),
            below_watermark: self.below_watermark.load(Relaxed),
            hits: stats.hits,
            identities: stats.identities,
            resident_bytes: stats.resident_bytes,
            suppressed_lanes: stats.suppressed,
            evictions: stats.evictions,
            truncated: stats.truncated,
            hydrations: self.hydrations.load(Relaxed),
            hydration: Duration::from_micros(self.hydration_us.load(Relaxed)),
        }
    }

    fn cache(&self) -> MutexGuard<'_, (&'static str, Stats)> {
        // A panic elsewhere leaves plain values behind.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn applied(&self, flow: &FlowName, transactions: u64, vouched: bool) {
        if transactions == 0 {
            return;
        }
        let (count, verdict) = if vouched {
            (&self.applied_vouched, "applied_vouched")
        } else {
            (&self.applied_probed, "applied_probed")
        };
        count.fetch_add(transactions, Relaxed);
        metric::verdict(flow, verdict, transactions);
    }

    pub(crate) fn probed(&self, flow: &FlowName, rows: u64, found: u64) {
        self.probes.fetch_add(1, Relaxed);
        self.rows_read.fetch_add(rows, Relaxed);
        self.found.fetch_add(found, Relaxed);
        metric::count(metric::DEDUP_PROBES, flow, 1);
        metric::count(metric::DEDUP_ROWS_READ, flow, rows);
    }

    pub(crate) fn below_watermark(&self, flow: &FlowName, transactions: u64) {
        if transactions > 0 {
            self.below_watermark.fetch_add(transactions, Relaxed);
            metric::count(metric::DEDUP_BELOW_WATERMARK, flow, transactions);
        }
    }

    pub(crate) fn hydrated(&self, flow: &FlowName, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        self.hydrations.fetch_add(1, Relaxed);
        self.hydration_us.fetch_add(micros, Relaxed);
        metric::hydration(flow, elapsed.as_secs_f64());
    }

    pub(crate) fn set_cache(&self, flow: &FlowName, state: &'static str, stats: &Stats) {
        metric::cache(flow, stats);
        *self.cache() = (state, stats.clone());
    }
}
