//! Which part of a failed batch to try next, so that exactly the transactions that are to blame end
//! up alone: a pure machine.
//!
//! What the error names is tried first, and everything in front of it as one batch before that. A
//! name is only a hint, because a statement may carry changes of several transactions; where it
//! does not lead to the one to blame, halving does. So each of them costs about `log2(n)` failed
//! batches, and the healthy ones go in by batches. Verdicts are about one transaction alone, row by
//! row, with everything before it committed (C36).

use std::ops::Range;

/// A part of the batch, to be committed in one target transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    /// Which of its transactions.
    pub(crate) units: Range<usize>,
    /// Whether runs of like changes may go as one statement.
    pub(crate) set_wise: bool,
}

/// What a failed window means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Nothing yet: ask for the next window.
    TryOn,
    /// Its only transaction is to blame. It has to be set aside, or everything stops here.
    Verdict,
}

/// How far the repetition of a failed batch has come.
#[derive(Debug, Clone)]
pub(crate) struct Isolation {
    /// Transactions of the batch.
    end: usize,
    /// Those before it are decided.
    at: usize,
    window: usize,
    /// A window up to here failed, so that at least one of those before it is to blame.
    suspect_until: Option<usize>,
    /// Whether the window ends in front of the transaction that an error named.
    by_name: bool,
    /// Whether a window that a name suggested has failed: names are not to be trusted here.
    lied: bool,
    /// Whether the one at the head has failed alone and set-wise.
    failed_set_wise: bool,
}

impl Isolation {
    /// A batch of that many transactions failed as a whole; the error named one of them, by its
    /// place from 0.
    pub(crate) fn of(units: usize, named: Option<usize>) -> Self {
        let mut isolation = Self {
            end: units,
            at: 0,
            window: units,
            suspect_until: None,
            by_name: false,
            lied: false,
            failed_set_wise: false,
        };
        isolation.failed(named);
        isolation
    }

    /// What to commit next; `None` when all is decided.
    pub(crate) fn next(&self) -> Option<Window> {
        (self.at < self.end).then(|| Window {
            units: self.at..self.at + self.window,
            set_wise: !self.failed_set_wise,
        })
    }

    /// The window is in.
    pub(crate) fn committed(&mut self) {
        self.at += self.window;
        self.failed_set_wise = false;
        let suspects = self.suspects();
        let wanted = match suspects {
            // The one that was named comes alone.
            Some(_) if std::mem::take(&mut self.by_name) => 1,
            Some(suspects) => suspects.div_ceil(2),
            None => self.window * 2,
        };
        self.look_at(wanted);
    }

    /// The window failed; the error named a transaction by its place in the batch.
    pub(crate) fn failed(&mut self, named: Option<usize>) -> Failed {
        if self.window <= 1 {
            return if std::mem::replace(&mut self.failed_set_wise, true) {
                Failed::Verdict
            } else {
                Failed::TryOn
            };
        }
        let until = self.at + self.window;
        self.suspect_until = Some(until);
        self.lied |= std::mem::take(&mut self.by_name);
        let named = named.filter(|named| !self.lied && (self.at..until).contains(named));
        match named.map(|named| named - self.at) {
            Some(0) => self.look_at(1),
            Some(healthy) => {
                self.look_at(healthy);
                self.by_name = true;
            }
            None => self.look_at(self.window / 2),
        }
        Failed::TryOn
    }

    /// The one at the head was set aside: on with those behind it.
    pub(crate) fn set_aside(&mut self) {
        self.at += 1;
        self.failed_set_wise = false;
        // Whether it was the only one to blame is not known; one after the other will show.
        self.suspect_until = None;
        self.by_name = false;
        self.lied = false;
        self.look_at(1);
    }

    /// How many of those to come may be to blame for a failure seen.
    fn suspects(&mut self) -> Option<usize> {
        let suspects = self.suspect_until?.saturating_sub(self.at);
        if suspects == 0 {
            // It passed: none of them was to blame.
            self.suspect_until = None;
            self.by_name = false;
            return None;
        }
        Some(suspects)
    }

    fn look_at(&mut self, wanted: usize) {
        self.window = wanted.clamp(1, (self.end - self.at).max(1));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// How a model of the target names the failing transaction.
    #[derive(Debug, Clone, Copy)]
    enum Names {
        Right,
        None,
        /// Any of the window.
        Random,
        /// The last of the window.
        Last,
    }

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Outcome {
        committed: Vec<usize>,
        verdicts: Vec<usize>,
        failed_batches: usize,
        target_transactions: usize,
    }

    /// Runs a batch through the machine: whatever holds a poison fails.
    fn run(units: usize, poisons: &BTreeSet<usize>, names: Names, rng: &mut StdRng) -> Outcome {
        let mut name = |range: &Range<usize>| match names {
            Names::Right => poisons.range(range.clone()).next().copied(),
            Names::None => None,
            Names::Random => Some(rng.random_range(range.clone())),
            Names::Last => Some(range.end - 1),
        };
        let mut outcome = Outcome::default();
        let mut isolation = Isolation::of(units, name(&(0..units)));
        outcome.failed_batches += 1;
        while let Some(window) = isolation.next() {
            assert!(!window.units.is_empty() && window.units.end <= units);
            outcome.target_transactions += 1;
            assert!(outcome.target_transactions < 10 * units + 100, "no end");
            let poison = poisons.range(window.units.clone()).next();
            if poison.is_none() {
                outcome.committed.extend(window.units);
                isolation.committed();
                continue;
            }
            outcome.failed_batches += 1;
            match isolation.failed(name(&window.units)) {
                Failed::TryOn => {}
                Failed::Verdict => {
                    assert_eq!(window.units.len(), 1, "a verdict is about one alone");
                    assert!(!window.set_wise, "and row by row");
                    outcome.verdicts.push(window.units.start);
                    isolation.set_aside();
                }
            }
        }
        outcome
    }

    #[test]
    fn every_healthy_one_goes_in_once_in_order_and_each_poison_has_its_verdict() {
        let seed: u64 = rand::random();
        let mut rng = StdRng::seed_from_u64(seed);
        for case in 0..2000 {
            let units = rng.random_range(1..700_usize);
            let share = *[0.0, 0.003, 0.05, 0.5, 1.0]
                .get(rng.random_range(0..5_usize))
                .expect("five");
            let mut poisons: BTreeSet<usize> =
                (0..units).filter(|_| rng.random_bool(share)).collect();
            poisons.insert(rng.random_range(0..units));
            for names in [Names::Right, Names::None, Names::Random, Names::Last] {
                let outcome = run(units, &poisons, names, &mut rng);
                let context = format!("seed {seed}, case {case}: {units} units, {names:?}");
                let healthy: Vec<usize> = (0..units).filter(|u| !poisons.contains(u)).collect();
                assert_eq!(outcome.committed, healthy, "{context}");
                let all: Vec<usize> = poisons.iter().copied().collect();
                assert_eq!(outcome.verdicts, all, "{context}");
                let bound: f64 = 2.0 * (units as f64).log2() + 2.0;
                let most = poisons.len() as f64 * bound.max(3.0);
                assert!(
                    outcome.failed_batches as f64 <= most,
                    "{context}: {} failed batches for {} poisons, {most} allowed",
                    outcome.failed_batches,
                    poisons.len()
                );
            }
        }
    }

    #[test]
    fn one_poison_among_thousands_costs_a_few_target_transactions() {
        let mut rng = StdRng::seed_from_u64(1);
        let outcome = run(4096, &[3000].into(), Names::Right, &mut rng);
        // The whole, the front, the one set-wise and alone, and doubling windows behind it.
        assert_eq!(outcome.failed_batches, 3);
        assert!(outcome.target_transactions <= 16, "{outcome:?}");
    }

    #[test]
    fn a_failure_that_does_not_come_again_ends_with_everything_in() {
        let mut isolation = Isolation::of(100, None);
        let mut in_order = 0;
        while let Some(window) = isolation.next() {
            assert_eq!(window.units.start, in_order);
            assert!(window.set_wise);
            in_order = window.units.end;
            isolation.committed();
        }
        assert_eq!(in_order, 100);
    }

    #[test]
    fn a_batch_of_one_is_not_repeated_set_wise() {
        let mut isolation = Isolation::of(1, Some(0));
        let window = isolation.next().expect("the one");
        assert_eq!((window.units, window.set_wise), (0..1, false));
        assert_eq!(isolation.failed(Some(0)), Failed::Verdict);
        isolation.set_aside();
        assert_eq!(isolation.next(), None);
    }
}
