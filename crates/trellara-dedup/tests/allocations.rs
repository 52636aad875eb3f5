//! No allocation of a lane is larger than a block, whatever it holds. A test of its own, because
//! it watches the allocator of the whole process.

use std::alloc::System;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker, Allocator};
use trellara_dedup::{Binding, Cache, Identity, Moment, Ordinal, Settings, Stamp};

#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Largest;

impl AllocationTracker for Largest {
    fn allocated(&self, _: usize, size: usize, _: usize, _: AllocationGroupId) {
        LARGEST.fetch_max(size, Relaxed);
    }

    fn deallocated(
        &self,
        _: usize,
        _: usize,
        _: usize,
        _: AllocationGroupId,
        _: AllocationGroupId,
    ) {
    }
}

/// Enough for a generation of the largest kind, with its filter of 32 MiB, and for the longest
/// runs in it.
const IDENTITIES: i64 = 5_000_000;

#[test]
fn no_allocation_is_larger_than_a_block() {
    let cache: Cache<u32> = Cache::new(Settings::default());
    let window = Duration::from_secs(3600);
    let binding = Binding {
        epoch: 1,
        history: 1,
        identity: 1,
        window,
    };
    let mut row = Vec::with_capacity(1_000);
    let mut fill = |first: i64| {
        row.clear();
        let spread =
            |at: i64| (at as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        row.extend((first..first + 1_000).map(|at| Identity(spread(at))));
        row.clone()
    };
    AllocationRegistry::set_global_tracker(Largest).expect("set once");
    AllocationRegistry::enable_tracking();

    let estimate = Some(IDENTITIES as u64);
    let mut hydration = cache
        .hydrate(&0, &binding, estimate, Moment(0))
        .expect("room");
    for first in (1..=IDENTITIES / 2).step_by(1_000) {
        hydration
            .push(Ordinal(first), &fill(first), Stamp(first))
            .expect("contiguous");
    }
    let upto = Ordinal(IDENTITIES / 2);
    cache
        .finish(hydration, Ordinal(0), upto, Moment(0))
        .expect("complete");
    for first in (IDENTITIES / 2 + 1..=IDENTITIES).step_by(1_000) {
        cache.applied(&0, Ordinal(first), &fill(first), Stamp(first), Moment(0));
    }
    let batch = fill(IDENTITIES + 1);
    assert!(cache.verify(&0, &batch, Ordinal(0), Moment(0)).is_warm());
    cache.expire(&0, Stamp(i64::MAX));

    AllocationRegistry::disable_tracking();
    assert_eq!(cache.stats().identities, 0);
    assert_eq!(LARGEST.load(Relaxed), 64 << 10, "bytes");
}
