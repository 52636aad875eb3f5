//! Bookkeeping about lanes that have no entry: cooldowns, last sizes, warnings.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

use crate::settings::Settings;
use crate::words::Moment;

/// Hashing without chance: the same lanes lie in the same order in every process.
pub(crate) type Fixed = BuildHasherDefault<DefaultHasher>;

/// The budget is too small for the lanes at work. To be logged by the caller; at most one in
/// [`Settings::warn_every`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes of all lanes.
    pub resident: u64,
    /// What they may take.
    pub budget: u64,
    /// Lanes that are answered without memory.
    pub suppressed: u64,
}

impl fmt::Display for Pressure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "the dedup memory is full ({} of {} bytes); {} lanes are probed in the target instead",
            self.resident, self.budget, self.suppressed
        )
    }
}

/// A hydration that was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suppressed {
    /// Not tested again before.
    pub until: Moment,
    /// To be logged.
    pub warning: Option<Pressure>,
}

#[derive(Debug)]
pub(crate) struct Bookkeeping<K> {
    cooldowns: HashMap<K, Moment, Fixed>,
    footprints: HashMap<K, u64, Fixed>,
    warned: Option<Moment>,
}

impl<K: Eq + Hash + Clone> Bookkeeping<K> {
    pub(crate) fn new() -> Self {
        Self {
            cooldowns: HashMap::default(),
            footprints: HashMap::default(),
            warned: None,
        }
    }

    pub(crate) fn cooldown(&self, lane: &K) -> Option<Moment> {
        self.cooldowns.get(lane).copied()
    }

    /// Suppresses a lane from `now` on.
    pub(crate) fn suppress(&mut self, lane: &K, now: Moment, settings: &Settings) -> Moment {
        if self.cooldowns.len() >= settings.bookkeeping {
            self.cooldowns.retain(|_, until| *until > now);
        }
        if self.cooldowns.len() >= settings.bookkeeping {
            self.cooldowns.clear();
        }
        let until = now.plus(settings.cooldown);
        self.cooldowns.insert(lane.clone(), until);
        until
    }

    pub(crate) fn release(&mut self, lane: &K) {
        self.cooldowns.remove(lane);
    }

    pub(crate) fn suppressed(&self) -> usize {
        self.cooldowns.len()
    }

    pub(crate) fn footprint(&self, lane: &K) -> Option<u64> {
        self.footprints.get(lane).copied()
    }

    /// Remembers how large a lane was when it went.
    pub(crate) fn went(&mut self, lane: &K, bytes: u64, settings: &Settings) {
        if self.footprints.len() >= settings.bookkeeping {
            self.footprints.clear();
        }
        self.footprints.insert(lane.clone(), bytes);
    }

    pub(crate) fn remove(&mut self, lane: &K) {
        self.cooldowns.remove(lane);
        self.footprints.remove(lane);
    }

    pub(crate) fn clear(&mut self) {
        self.cooldowns = HashMap::default();
        self.footprints = HashMap::default();
    }

    /// Whether it is time to warn again.
    pub(crate) fn warn(&mut self, now: Moment, settings: &Settings) -> bool {
        let due = self
            .warned
            .is_none_or(|last| last.plus(settings.warn_every) <= now);
        if due {
            self.warned = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookkeeping_forgets_rather_than_grows() {
        let settings = Settings::default();
        let mut books = Bookkeeping::new();
        for lane in 0..250_000 {
            // A few cool down at a time, then all of them at once.
            let now = Moment(if lane < 120_000 {
                lane * 1_000
            } else {
                1 << 40
            });
            books.suppress(&lane, now, &settings);
            books.went(&lane, 1, &settings);
            assert!(books.cooldowns.len() <= settings.bookkeeping);
            assert!(books.footprints.len() <= settings.bookkeeping);
        }
        assert!(books.cooldown(&249_999).is_some() && books.footprint(&249_999).is_some());
    }
}
