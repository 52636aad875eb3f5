//! What is allocated, counted by the allocator.

use std::alloc::System;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker, Allocator};

#[global_allocator]
static ALLOCATOR: Allocator<System> = Allocator::system();

static LIVE: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

struct Heap;

impl AllocationTracker for Heap {
    fn allocated(&self, _: usize, size: usize, _: usize, _: AllocationGroupId) {
        LIVE.fetch_add(size as u64, Relaxed);
        LARGEST.fetch_max(size as u64, Relaxed);
    }

    fn deallocated(
        &self,
        _: usize,
        size: usize,
        _: usize,
        _: AllocationGroupId,
        _: AllocationGroupId,
    ) {
        LIVE.fetch_sub(size as u64, Relaxed);
    }
}

pub(crate) fn watch() {
    AllocationRegistry::set_global_tracker(Heap).expect("set once");
    AllocationRegistry::enable_tracking();
}

/// Bytes that are allocated.
pub(crate) fn live() -> u64 {
    LIVE.load(Relaxed)
}

/// The largest allocation since this was asked last.
pub(crate) fn largest() -> u64 {
    LARGEST.swap(0, Relaxed)
}
