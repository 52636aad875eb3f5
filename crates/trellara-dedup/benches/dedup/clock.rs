//! Time of this thread.

use std::fs;
use std::time::Instant;

/// Nanoseconds on a processor since the thread began, where the system tells.
fn on_processor() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Nanoseconds that `work` took; on a processor, where the system tells.
pub(crate) fn time<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let (begun, before) = (Instant::now(), on_processor());
    let result = work();
    let taken = match (before, on_processor()) {
        (Some(before), Some(after)) => (after - before) as f64,
        _ => begun.elapsed().as_nanos() as f64,
    };
    (taken, result)
}

/// Nanoseconds that passed.
pub(crate) fn real(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos() as f64
}
