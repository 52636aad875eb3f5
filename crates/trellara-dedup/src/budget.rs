//! One byte budget over all lanes: who is admitted, who has to go.
//!
//! Suppression and eviction are a trade of memory for probes. They never change an answer.

use std::hash::Hash;

use crate::accounts::Accounts;
use crate::cache::{Applied, Cache};
use crate::entry::State;
use crate::pressure::{Pressure, Suppressed};
use crate::ring::Ring;
use crate::slot::Slot;
use crate::words::Moment;

impl<K: Eq + Hash + Clone, const BLOCK: usize> Cache<K, BLOCK> {
    /// How many identities a hydration of the lane may load now: what 90 % of the budget leaves
    /// beside the lanes that may not be evicted. The caller computes the cut from it.
    pub fn room(&self, lane: &K, now: Moment) -> u64 {
        let idle = self.idle(lane, now);
        let idle: u64 = idle.iter().map(|(_, slot)| slot.bytes()).sum();
        let others = self
            .accounts
            .resident()
            .saturating_sub(self.resident_of(lane));
        let room = self
            .settings
            .fit()
            .saturating_sub(others.saturating_sub(idle));
        let ring = Ring::<BLOCK>::new(self.settings.ceiling);
        // An identity never takes less; the filters decide how many of those fit.
        let (mut fits, mut beyond) = (0, room / size_of::<crate::Identity>() as u64 + 1);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            match ring.estimate(middle) <= room {
                true => fits = middle,
                false => beyond = middle,
            }
        }
        fits
    }

    /// The fit test.
    pub(crate) fn admit(&self, lane: &K, estimate: u64, now: Moment) -> Result<(), Suppressed> {
        if let Some(until) = self.books().cooldown(lane).filter(|until| *until > now) {
            let warning = None;
            return Err(Suppressed { until, warning });
        }
        if self.make_room(lane, estimate, now) {
            return Ok(());
        }
        Err(self.suppress(lane, now))
    }

    /// Evicts what is idle when, and only when, that makes it fit.
    fn make_room(&self, lane: &K, estimate: u64, now: Moment) -> bool {
        let fit = self.settings.fit();
        let others = || {
            self.accounts
                .resident()
                .saturating_sub(self.resident_of(lane))
        };
        if others().saturating_add(estimate) <= fit {
            return true;
        }
        let idle = self.idle(lane, now);
        let gain: u64 = idle.iter().map(|(_, slot)| slot.bytes()).sum();
        if others().saturating_sub(gain).saturating_add(estimate) > fit {
            return false;
        }
        for (name, _) in idle {
            if others().saturating_add(estimate) <= fit {
                break;
            }
            self.evict(&name);
        }
        others().saturating_add(estimate) <= fit
    }

    fn evict(&self, lane: &K) {
        if self.take_out(lane) {
            Accounts::add(&self.accounts.evictions, 1);
        }
    }

    /// A lane without room: nothing of it stays, and it is not tested again for a while.
    fn suppress(&self, lane: &K, now: Moment) -> Suppressed {
        self.take_out(lane);
        Accounts::add(&self.accounts.suppressions, 1);
        let until = self.books().suppress(lane, now, &self.settings);
        let warning = self.warning(now);
        Suppressed { until, warning }
    }

    fn warning(&self, now: Moment) -> Option<Pressure> {
        let mut books = self.books();
        books.warn(now, &self.settings).then(|| Pressure {
            resident: self.accounts.resident(),
            budget: self.settings.budget,
            suppressed: books.suppressed() as u64,
        })
    }

    /// After a lane grew: idle lanes go, then its own oldest identities, then the lane.
    pub(crate) fn stay_within_budget(
        &self,
        lane: &K,
        slot: &Slot<BLOCK>,
        state: State,
        now: Moment,
    ) -> Applied {
        let budget = self.settings.budget;
        let mut warning = None;
        if self.accounts.resident() > budget {
            for (name, _) in self.idle(lane, now) {
                if self.accounts.resident() <= self.settings.fit() {
                    break;
                }
                self.evict(&name);
            }
        }
        while self.accounts.resident() > budget {
            let gone = slot.with(self.settings.ceiling, |entry| entry.truncate());
            if gone == 0 {
                let suppressed = self.suppress(lane, now);
                return Applied {
                    state: State::Suppressed,
                    warning: warning.or(suppressed.warning),
                };
            }
            Accounts::add(&self.accounts.truncated, gone as u64);
            warning = warning.or_else(|| self.warning(now));
        }
        Applied { state, warning }
    }
}
