//! A limit in bytes between two threads, one of which must not be async.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Counts bytes in; whoever brings more while the limit is passed waits until some have left.
#[derive(Debug)]
pub(super) struct Gate {
    limit: usize,
    inside: Mutex<Inside>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    bytes: usize,
    closed: bool,
}

impl Gate {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            inside: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits until the limit allows more, then counts `bytes` in, however many they are. `None`
    /// when the gate is closed.
    pub(super) fn enter(self: &Arc<Self>, bytes: usize) -> Option<Pass> {
        let mut inside = self.lock();
        while inside.bytes > self.limit && !inside.closed {
            inside = self
                .changed
                .wait(inside)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if inside.closed {
            return None;
        }
        inside.bytes += bytes;
        Some(Pass {
            gate: Arc::clone(self),
            bytes,
        })
    }

    fn leave(&self, bytes: usize) {
        let mut inside = self.lock();
        inside.bytes = inside.bytes.saturating_sub(bytes);
        drop(inside);
        self.changed.notify_one();
    }

    /// Bytes inside now.
    #[cfg(test)]
    pub(super) fn inside(&self) -> usize {
        self.lock().bytes
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are inside; dropping it lets them leave.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.leave(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_may_always_pass_and_the_next_waits() {
        let gate = Arc::new(Gate::new(10));
        let large = gate.enter(1000).expect("however large");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(1));
            drop(large);
            let _small = waiting.join().expect("no panic").expect("open");
            assert_eq!(gate.inside(), 1);
        });
        assert_eq!(gate.inside(), 0, "all have left");
    }

    #[test]
    fn closing_ends_every_wait() {
        let gate = Arc::new(Gate::new(0));
        let _inside = gate.enter(1).expect("open");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(1).is_none());
            gate.close();
            assert!(waiting.join().expect("no panic"));
        });
    }
}
