//! Limits and pauses, each with its reason.

use std::time::Duration;

use crate::ring::MAX_CEILING;

/// What a cache may take and how patient it is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes over all lanes, by coarse accounting (blocks and filters as allocated). A hard limit:
    /// whoever would go beyond it loses identities or its place, never the truth.
    pub budget: u64,
    /// Identities per generation at most. A lower one expires in finer steps; a higher one asks
    /// fewer filters per probe: at 100 million identities 10 of them with 16 million, 99 with one.
    pub ceiling: usize,
    /// What is this much older than the window still counts as inside: the clock that stamps and
    /// the clock that judges may not be read at the same time.
    pub slack: Duration,
    /// A lane that was used this recently is not evicted for another one.
    pub guard: Duration,
    /// A lane that found no room is not tested again before.
    pub cooldown: Duration,
    /// Pressure is reported at most this often.
    pub warn_every: Duration,
    /// Entries of each bookkeeping map (cooldowns, last sizes): many short-lived lanes must not
    /// become a leak. What is forgotten there only costs another test.
    pub bookkeeping: usize,
}

impl Settings {
    /// A rebuild is admitted up to this part of the budget (in percent). What is left above it
    /// keeps the newcomer from evicting at once the lanes that it joined.
    pub(crate) const FIT_PERCENT: u64 = 90;

    /// A filter is allocated for its whole generation, so one that is just begun is paid for
    /// although it is empty: with two bytes for each identity at most an eighth of the budget.
    pub(crate) fn resolved(self) -> Self {
        let affordable = usize::try_from(self.budget / 16).unwrap_or(usize::MAX);
        Self {
            ceiling: self.ceiling.min(affordable),
            ..self
        }
    }

    /// What rebuilds may fill.
    pub(crate) fn fit(&self) -> u64 {
        self.budget / 100 * Self::FIT_PERCENT
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // 29 million identities: a day at 330 transactions per second.
            budget: 512 << 20,
            ceiling: MAX_CEILING,
            slack: Duration::from_secs(5),
            guard: Duration::from_secs(5),
            cooldown: Duration::from_secs(30),
            warn_every: Duration::from_secs(60),
            bookkeeping: 100_000,
        }
    }
}
