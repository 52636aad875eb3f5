//! The ring against a plain list, with blocks so small that merges, generations and expiry happen
//! all the time.

use std::collections::{HashMap, VecDeque};

use super::*;

#[path = "../tests/support/mod.rs"]
mod support;

use support::Chance;

const SMALL: usize = 16;

/// What should be in the ring: everything behind the last ordinal that it said it dropped.
struct Model {
    ring: Ring<SMALL>,
    kept: VecDeque<(Ordinal, Identity, Stamp)>,
    /// How often each identity that ever was appended is kept.
    counts: HashMap<Identity, usize>,
    next: i64,
    clock: i64,
    spread: u64,
}

impl Model {
    fn new(ceiling: usize, spread: u64) -> Self {
        Self {
            ring: Ring::new(ceiling),
            kept: VecDeque::new(),
            counts: HashMap::new(),
            next: 1,
            clock: 0,
            spread,
        }
    }

    /// Hashes, and what hashes are not: equal halves, a few repeated values, neighbours.
    fn identity(&self, chance: &mut Chance) -> Identity {
        Identity(match self.spread {
            0 => chance.wide(),
            1 => u128::from(chance.next()),
            2 => chance.wide() << 64,
            3 => u128::from(chance.below(500)),
            4 => u128::MAX - u128::from(chance.below(1_000_000)),
            _ => 7,
        })
    }

    fn append(&mut self, chance: &mut Chance) {
        self.clock += chance.below(3) as i64 - i64::from(chance.below(20) == 0) * 5;
        let count = if chance.below(4) == 0 {
            chance.below(70)
        } else {
            1
        };
        let batch: Vec<_> = (0..count).map(|_| self.identity(chance)).collect();
        self.ring
            .append(Ordinal(self.next), &batch, Stamp(self.clock));
        for identity in batch {
            self.kept
                .push_back((Ordinal(self.next), identity, Stamp(self.clock)));
            *self.counts.entry(identity).or_default() += 1;
            self.next += 1;
        }
    }

    fn dropped(&mut self, last: Option<Ordinal>, before: Stamp) {
        let Some(last) = last else { return };
        while self
            .kept
            .front()
            .is_some_and(|(ordinal, ..)| *ordinal <= last)
        {
            let (_, identity, stamp) = self.kept.pop_front().expect("it was there");
            *self.counts.get_mut(&identity).expect("it was appended") -= 1;
            assert!(stamp < before, "{stamp:?} was dropped before {before:?}");
        }
    }

    fn check(&self, chance: &mut Chance) {
        let batch: Vec<_> = (0..1 + chance.below(80))
            .map(|_| match chance.below(3) {
                0 if !self.kept.is_empty() => {
                    self.kept[chance.below(self.kept.len() as u64) as usize].1
                }
                _ => self.identity(chance),
            })
            .collect();
        let mut hits = Vec::new();
        self.ring.probe(&batch, &mut hits);
        for (at, identity) in batch.iter().enumerate() {
            let hit = hits.binary_search(&at).is_ok();
            assert_eq!(hit, self.ring.contains(*identity), "alone and in a batch");
            let count = self.counts.get(identity);
            assert!(
                hit || count.is_none_or(|count| *count == 0),
                "lost {identity:?}"
            );
            assert!(!hit || count.is_some(), "made up {identity:?}");
        }
    }

    fn check_all(&self) {
        assert_eq!(self.ring.len(), self.kept.len());
        for (_, identity, _) in &self.kept {
            assert!(self.ring.contains(*identity), "lost {identity:?}");
        }
        for generation in &self.ring.generations {
            assert!(generation.parts() <= 64, "{} parts", generation.parts());
        }
        let settled = self.ring.generations[..self.ring.unsettled].iter();
        assert!(settled.clone().all(Generation::is_settled));
        assert!(
            self.ring.bytes() < 64 * self.ring.len() + 40_000,
            "{:?}",
            self.ring.bytes()
        );
    }
}

#[test]
fn ring_is_never_without_what_it_did_not_drop() {
    let mut chance = Chance::fresh();
    for round in 0..36 {
        let ceiling = SMALL << (3 * (1 + chance.below(4)));
        let mut model = Model::new(ceiling, round % 6);
        let window = 1 + chance.below([300, 300, 3_000][round as usize / 6 % 3]) as i64;
        for step in 0..4_000 {
            match chance.below(40) {
                0 => {
                    let before = Stamp(model.clock - window);
                    let last = model.ring.expire(before);
                    model.dropped(last, before);
                }
                1 if chance.below(20) == 0 => {
                    let last = model.ring.drop_oldest();
                    model.dropped(last, Stamp(i64::MAX));
                }
                2 if step % 4 == 0 => model.check(&mut chance),
                _ => model.append(&mut chance),
            }
        }
        model.check_all();
        let last = model.ring.expire(Stamp(i64::MAX));
        model.dropped(last, Stamp(i64::MAX));
        assert!(model.kept.is_empty() && model.ring.is_empty());
        assert_eq!(model.ring.bytes(), 0);
    }
}

/// Old generations end as one run: a "maybe" is one search.
#[test]
fn full_generations_settle_while_the_next_one_fills() {
    let mut chance = Chance::fresh();
    let mut ring = Ring::<SMALL>::new(SMALL * 512);
    for ordinal in 0..SMALL as i64 * 4_000 {
        ring.append(Ordinal(ordinal), &[Identity(chance.wide())], Stamp(0));
    }
    let parts: Vec<_> = ring.generations.iter().map(Generation::parts).collect();
    let capacities: Vec<_> = ring.generations.iter().map(|one| one.capacity).collect();
    assert_eq!(capacities[..5], [1, 8, 64, 512, 512]);
    let (newest, settled) = parts
        .split_last_chunk::<4>()
        .map(|(a, b)| (b, a))
        .expect("eight");
    assert!(settled.iter().all(|parts| *parts == 1), "{parts:?}");
    assert!(newest[..2].iter().all(|parts| *parts <= 8), "{parts:?}");
}

/// What is kept stays near the window although a merged run leaves as a whole.
#[test]
fn a_steady_window_keeps_little_more_than_itself() {
    let mut chance = Chance::fresh();
    let mut ring = Ring::<SMALL>::new(SMALL * 4096);
    let window = 10_000;
    let mut most = 0;
    for ordinal in 0..400_000 {
        ring.append(Ordinal(ordinal), &[Identity(chance.wide())], Stamp(ordinal));
        ring.expire(Stamp(ordinal - window));
        // The first generations were opened before anything could leave.
        if ordinal > 100_000 {
            most = most.max(ring.len());
        }
    }
    assert!(most <= 12_000, "{most} kept for a window of {window}");
}

/// The estimate of an admission is what the ring takes, but for merges under way.
#[test]
fn estimates_are_what_it_takes() {
    let mut chance = Chance::fresh();
    for ceiling in [1, 8, 64, 512] {
        let mut ring = Ring::<SMALL>::new(SMALL * ceiling);
        let mut before = 0;
        for ordinal in 1..20_000 {
            ring.append(Ordinal(ordinal), &[Identity(chance.wide())], Stamp(0));
            let (is, estimate) = (ring.bytes() as u64, ring.estimate(ordinal as u64));
            let merging = 16 * 4 * Ring::<SMALL>::BLOCK_BYTES as u64;
            assert!(
                is <= estimate + merging,
                "{ordinal}: {is}, estimate {estimate}"
            );
            assert!(
                estimate <= is + merging,
                "{ordinal}: {is}, estimate {estimate}"
            );
            assert!(before <= estimate, "{ordinal}: {before}, then {estimate}");
            before = estimate;
        }
    }
}
