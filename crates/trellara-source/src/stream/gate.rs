//! A limit in bytes between two threads, one of which must not be async.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts bytes in; whoever brings more than the limit waits until some have left.
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

    /// Waits until the limit allows more, then counts `bytes` in, however many they are. False
    /// when the gate is closed.
    pub(super) fn enter(&self, bytes: usize) -> bool {
        let mut inside = self.lock();
        while inside.bytes > self.limit && !inside.closed {
            inside = self
                .changed
                .wait(inside)
                .unwrap_or_else(PoisonError::into_inner);
        }
        inside.bytes += bytes;
        !inside.closed
    }

    pub(super) fn leave(&self, bytes: usize) {
        let mut inside = self.lock();
        inside.bytes = inside.bytes.saturating_sub(bytes);
        drop(inside);
        self.changed.notify_one();
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_may_always_pass_and_the_next_waits() {
        let gate = Gate::new(10);
        assert!(gate.enter(1000), "however large");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(1));
            gate.leave(1000);
            assert!(waiting.join().expect("no panic"));
        });
        assert_eq!(gate.lock().bytes, 1);
    }

    #[test]
    fn closing_ends_every_wait() {
        let gate = Gate::new(0);
        assert!(gate.enter(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(1));
            gate.close();
            assert!(!waiting.join().expect("no panic"));
        });
    }
}
