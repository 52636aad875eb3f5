//! The cache against the ledger that it remembers: a million random steps, and never a false "not
//! applied".

#![expect(clippy::print_stdout, reason = "the seed and what was reached")]

use std::collections::HashMap;
use std::time::Duration;

use trellara_dedup::{
    Applied, Binding, Cache, Hydration, Identity, Moment, Ordinal, Refused, Settings, Stamp, State,
    Stats, Wants,
};

mod ledger;
#[path = "../support/mod.rs"]
mod support;

use ledger::{Ledger, Row};
use support::Chance;

const SMALL: usize = 16;
const LANES: u64 = 6;
const ROUNDS: u64 = 25;
const STEPS: u64 = 40_000;

struct Pending {
    lane: u64,
    hydration: Hydration<u64, SMALL>,
    loaded: Option<(i64, i64)>,
    /// The lane was bound anew or forgotten since.
    void: bool,
}

struct World {
    chance: Chance,
    cache: Cache<u64, SMALL>,
    ledgers: Vec<Ledger>,
    pending: Vec<Pending>,
    clock: i64,
    now: i64,
    spread: u64,
    vouched: u64,
    demanded: u64,
}

impl World {
    fn new(mut chance: Chance, round: u64) -> Self {
        let settings = Settings {
            budget: [1 << 15, 1 << 17, 1 << 19, 1 << 24][chance.below(4) as usize],
            ceiling: SMALL << (3 * chance.below(5)),
            slack: Duration::from_micros(chance.below(50)),
            guard: Duration::from_micros(chance.below(200)),
            cooldown: Duration::from_micros(300),
            warn_every: Duration::from_micros(1000),
            bookkeeping: 4,
        };
        let ledger = |_| Ledger {
            rows: Vec::new(),
            pruned: 0,
            at: HashMap::new(),
            binding: Binding {
                epoch: 1,
                history: 1,
                identity: 1,
                window: Duration::from_micros(600),
            },
        };
        Self {
            chance,
            cache: Cache::new(settings),
            ledgers: (0..LANES).map(ledger).collect(),
            pending: Vec::new(),
            clock: 1_000_000,
            now: 0,
            spread: round % 6,
            vouched: 0,
            demanded: 0,
        }
    }

    /// New ones, hashed or clustered; and ones that the lane has, also long ago.
    fn identity(&mut self, lane: usize) -> Identity {
        let ledger = &self.ledgers[lane];
        if self.chance.below(8) == 0 && !ledger.rows.is_empty() {
            let reach = match self.chance.below(2) {
                0 => ledger.rows.len(),
                _ => ledger.rows.len().min(20),
            } as u64;
            let back = self.chance.below(reach) as usize;
            let row = &ledger.rows[ledger.rows.len() - 1 - back];
            if let Some(identity) = row.identities.first() {
                return *identity;
            }
        }
        Identity(match self.spread {
            0..4 => self.chance.wide(),
            4 => 5 << 64 | u128::from(self.chance.next()),
            _ => u128::from(self.chance.below(3_000)),
        })
    }

    fn batch(&mut self, lane: usize) -> Vec<Identity> {
        let most = [1, 1, 5, 70][self.chance.below(4) as usize];
        let count = 1 + self.chance.below(most);
        (0..count).map(|_| self.identity(lane)).collect()
    }

    /// Where a caller answers by other means: mostly up to what was pruned.
    fn window_start(&mut self, lane: usize) -> i64 {
        let ledger = &self.ledgers[lane];
        match self.chance.below(8) {
            0 => 0,
            1 => self.chance.below(ledger.tail() as u64 + 2) as i64,
            _ => ledger.watermark(),
        }
    }

    /// The one thing that must never be wrong.
    fn verify(&mut self, lane: usize, batch: &[Identity]) -> Vec<bool> {
        let start = self.window_start(lane);
        let verdict = self
            .cache
            .verify(&(lane as u64), batch, Ordinal(start), Moment(self.now));
        let ledger = &self.ledgers[lane];
        assert!(verdict.through.0 <= ledger.tail());
        self.demanded += batch.len() as u64;
        for (index, identity) in batch.iter().enumerate() {
            let through = verdict.verified_through(index).0;
            self.vouched += u64::from(through >= 0);
            let ordinals = ledger.at.get(identity).map_or(&[][..], Vec::as_slice);
            let inside = |ordinal: &&i64| (start + 1..=through).contains(*ordinal);
            let wrong = ordinals.iter().find(inside);
            assert_eq!(
                wrong, None,
                "{identity:?} vouched absent in ({start}, {through}]"
            );
        }
        for hit in &verdict.hits {
            assert!(ledger.at.contains_key(&batch[*hit]), "made up {hit}");
        }
        let known = |identity: &Identity| ledger.at.get(identity).is_some_and(|at| !at.is_empty());
        batch.iter().map(known).collect()
    }

    /// The applier: ask, probe, write, tell.
    fn apply(&mut self, lane: usize) {
        let batch = self.batch(lane);
        let applied = self.verify(lane, &batch);
        let fresh = batch.iter().zip(applied).filter(|(_, applied)| !applied);
        // Now and then recorded twice all the same, as replays do.
        let again = self.chance.below(10) == 0;
        let write: Vec<_> = match again {
            true => batch.clone(),
            false => fresh.map(|(identity, _)| *identity).collect(),
        };
        self.clock += self.chance.below(4) as i64;
        let row = self.ledgers[lane].append(write, self.clock);
        let (first, identities) = (Ordinal(row.first), row.identities.clone());
        self.tell(lane, first, &identities, self.clock);
    }

    fn tell(&mut self, lane: usize, first: Ordinal, identities: &[Identity], stamp: i64) -> State {
        let (name, now) = (lane as u64, Moment(self.now));
        let Applied { state, warning: _ } =
            self.cache
                .applied(&name, first, identities, Stamp(stamp), now);
        state
    }

    fn prune(&mut self, lane: usize) {
        let ledger = &mut self.ledgers[lane];
        let before = self.clock - ledger.known_window();
        let old = |row: &Row| row.stamp < before;
        // The newest row is the checkpoint and stays.
        while ledger.pruned + 1 < ledger.rows.len() && old(&ledger.rows[ledger.pruned]) {
            ledger.pruned += 1;
        }
    }

    fn mend(&mut self, lane: usize) {
        match self.cache.wants(&(lane as u64), Moment(self.now)) {
            Wants::Nothing | Wants::Later { .. } => {}
            Wants::Rows { after, upto } => self.fill(lane, after, upto),
            Wants::Hydration => self.hydrate(lane),
        }
    }

    fn fill(&mut self, lane: usize, after: Ordinal, upto: Ordinal) {
        let ledger = &self.ledgers[lane];
        let rows = ledger.rows[ledger.pruned..].iter();
        let missing = rows.filter(|row| row.first > after.0 && row.last() <= upto.0);
        let missing: Vec<_> = missing
            .map(|row| (Ordinal(row.first), row.identities.clone(), row.stamp))
            .collect();
        for (first, identities, stamp) in missing {
            self.tell(lane, first, &identities, stamp);
        }
    }

    fn hydrate(&mut self, lane: usize) {
        let (name, now) = (lane as u64, Moment(self.now));
        let ledger = &self.ledgers[lane];
        let estimate = match self.chance.below(3) {
            0 => None,
            _ => Some((ledger.tail() - ledger.watermark()) as u64),
        };
        let Ok(hydration) = self.cache.hydrate(&name, &ledger.binding, estimate, now) else {
            assert!(matches!(self.cache.wants(&name, now), Wants::Later { .. }));
            assert_eq!(self.cache.state(&name), State::Suppressed);
            return;
        };
        for older in self
            .pending
            .iter_mut()
            .filter(|pending| pending.lane == name)
        {
            older.void = true;
        }
        let mut pending = Pending {
            lane: name,
            hydration,
            loaded: None,
            void: false,
        };
        if self.chance.below(2) == 0 {
            self.load(&mut pending);
        }
        match self.chance.below(2) {
            0 => self.finish(pending),
            _ => self.pending.push(pending),
        }
    }

    /// Reads the ledger, or what room there is of it; sometimes wrongly.
    fn load(&mut self, pending: &mut Pending) {
        let ledger = &self.ledgers[pending.lane as usize];
        let room = self.cache.room(&pending.lane, Moment(self.now));
        let mut from = ledger.pruned;
        if self.chance.below(2) == 0 {
            let cut = ledger.tail() - i64::try_from(room).unwrap_or(i64::MAX);
            from += ledger.rows[from..].partition_point(|row| row.first <= cut);
        }
        let begin = from
            .checked_sub(1)
            .map_or(0, |before| ledger.rows[before].last());
        let rows = &ledger.rows[from..];
        let lost = (self.chance.below(10) == 0).then(|| self.chance.below(20) as usize);
        let mut refused = false;
        for (at, row) in rows.iter().enumerate() {
            if lost != Some(at) {
                let pushed =
                    pending
                        .hydration
                        .push(Ordinal(row.first), &row.identities, Stamp(row.stamp));
                refused |= pushed.is_err();
            }
        }
        let spoiled = lost.is_some_and(|at| at < rows.len());
        let inside = lost.is_some_and(|at| at > 0 && at + 1 < rows.len());
        assert!(!inside || refused, "a missing row went unnoticed");
        pending.void |= spoiled || refused;
        pending.loaded = Some((begin, ledger.tail()));
    }

    fn finish(&mut self, mut pending: Pending) {
        if pending.loaded.is_none() {
            self.load(&mut pending);
        }
        let (from, upto) = pending.loaded.expect("just loaded");
        let finished = self.cache.finish(
            pending.hydration,
            Ordinal(from),
            Ordinal(upto),
            Moment(self.now),
        );
        assert!(
            !pending.void || finished.is_err(),
            "what was void was installed"
        );
        if let Err(refused) = finished {
            assert!(pending.void || refused == Refused::Superseded, "{refused}");
        }
    }

    fn disturb(&mut self, lane: usize) {
        let name = lane as u64;
        match self.chance.below(12) {
            0 => self.cache.forget(&name),
            1 => {
                self.ledgers[lane].binding.epoch += 1;
                self.cache.bind(&name, &self.ledgers[lane].binding);
            }
            2 => {
                let window = 200 + self.chance.below(2_000);
                self.ledgers[lane].binding.window = Duration::from_micros(window);
                self.ledgers[lane].binding.epoch += 1;
                self.cache.bind(&name, &self.ledgers[lane].binding);
                assert_ne!(self.cache.state(&name), State::Vouching);
            }
            3 => {
                let count = self.chance.below(30) as usize;
                self.ledgers[lane].lose(count);
                self.cache.forget(&name);
            }
            4 => self.cache.remove(&name),
            5 if self.chance.below(10) == 0 => {
                self.cache.clear();
                self.pending
                    .iter_mut()
                    .for_each(|pending| pending.void = true);
                assert!(self.cache.stats().identities == 0);
            }
            6 => {
                // The newest row, mostly known already.
                if let Some(row) = self.ledgers[lane].rows.last() {
                    let (first, identities) = (Ordinal(row.first), row.identities.clone());
                    self.tell(lane, first, &identities, self.clock);
                }
                return;
            }
            _ => {
                // Another applier, unseen.
                let batch = self.batch(lane);
                self.ledgers[lane].append(batch, self.clock);
                return;
            }
        }
        for pending in self
            .pending
            .iter_mut()
            .filter(|pending| pending.lane == name)
        {
            pending.void = true;
        }
    }

    fn step(&mut self) {
        // Most of the work is in one lane, so that others are idle.
        let lane = match self.chance.below(4) {
            0 => self.chance.below(LANES),
            _ => self.now as u64 / 2_000 % LANES,
        } as usize;
        self.now += self.chance.below(3) as i64;
        match self.chance.below(100) {
            0..60 => self.apply(lane),
            60..70 => {
                let batch = self.batch(lane);
                self.verify(lane, &batch);
            }
            70..74 => {
                let first = Ordinal(self.ledgers[lane].append(Vec::new(), self.clock).first);
                self.tell(lane, first, &[], self.clock);
            }
            74..80 => self.prune(lane),
            80..83 => self.cache.expire(&(lane as u64), Stamp(self.clock)),
            83..84 => self.clock += [-20, 300][self.chance.below(2) as usize],
            84..96 => self.mend(lane),
            96..99 if !self.pending.is_empty() => {
                let at = self.chance.below(self.pending.len() as u64) as usize;
                let pending = self.pending.swap_remove(at);
                self.finish(pending);
            }
            99 => self.disturb(lane),
            _ => {}
        }
    }
}

fn check(stats: &Stats, budget: u64) {
    assert!(stats.resident_bytes <= budget + (1 << 16), "{stats:?}");
    assert!(stats.false_maybes <= stats.maybes);
}

#[test]
fn a_million_steps_without_a_false_not_applied() {
    let mut chance = Chance::fresh();
    let (mut vouched, mut demanded) = (0, 0);
    let mut total = Stats::default();
    for round in 0..ROUNDS {
        let mut world = World::new(chance, round);
        for step in 0..STEPS {
            world.step();
            if step % 1_000 == 0 {
                check(&world.cache.stats(), world.cache.settings().budget);
            }
        }
        let stats = world.cache.stats();
        (vouched, demanded) = (vouched + world.vouched, demanded + world.demanded);
        total.hits += stats.hits;
        total.gaps += stats.gaps;
        total.overlaps += stats.overlaps;
        total.hydrations += stats.hydrations;
        total.refused += stats.refused;
        total.evictions += stats.evictions;
        total.suppressions += stats.suppressions;
        total.truncated += stats.truncated;
        total.false_maybes += stats.false_maybes;
        // Whatever is taken is given back.
        world.pending.clear();
        world.cache.clear();
        assert_eq!(world.cache.stats().resident_bytes, 0);
        chance = world.chance;
    }
    println!("{vouched} of {demanded} vouched; {total:?}");
    // Everything was reached, and the cache is of use.
    assert!(vouched * 4 > demanded, "{vouched} of {demanded}");
    for reached in [
        total.hits,
        total.gaps,
        total.overlaps,
        total.hydrations,
        total.refused,
        total.evictions,
        total.suppressions,
        total.truncated,
        total.false_maybes,
    ] {
        assert!(reached > 50, "{total:?}");
    }
}
