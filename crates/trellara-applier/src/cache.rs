//! The cache of one lane's identities: what it holds, what it may vouch for, how it is born.
//!
//! It only ever makes the verdict cheaper. Where it cannot vouch the ledger is asked, and a local
//! hit is a hint that sends the transaction there; losing all of it costs probes, nothing else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use trellara_dedup::{
    Binding, Cache, Identity, Moment, Ordinal, Settings, Stamp, State, Stats, Wants,
};
use trellara_envelope::{FlowName, Lane, LaneEpoch, LedgerOrdinal, Lsn, SystemId, TransactionHash};
use xxhash_rust::xxh3::xxh3_128;

use crate::checkpoint::Checkpoint;
use crate::ledger::LedgerError;
use crate::ledger::hydrate::{self, Floor, Span};

/// Identities between two marks of the floor: as many as the cache drops at once.
const MARK_EVERY: i64 = 4096;
/// How an identity is made: another number when that ever changes, so that nothing made before is
/// compared with what is made after.
const IDENTITY_SCHEME: u32 = 1;

/// All lanes of this process under one budget.
#[derive(Debug, Clone)]
pub(crate) struct SharedCache {
    /// `None`: not wanted, everything is probed.
    cache: Option<Arc<Cache<LaneKey>>>,
    window: Duration,
    began: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LaneKey {
    flow: FlowName,
    lane: Lane,
}

impl SharedCache {
    pub(crate) fn new(memory: u64, window: Duration) -> Self {
        let settings = Settings {
            budget: memory,
            ..Settings::default()
        };
        Self {
            cache: (memory > 0).then(|| Arc::new(Cache::new(settings))),
            window,
            began: Instant::now(),
        }
    }

    fn now(&self) -> Moment {
        Moment(i64::try_from(self.began.elapsed().as_micros()).unwrap_or(i64::MAX))
    }
}

/// One lane's part, from one connect to the next.
#[derive(Debug)]
pub(crate) struct LaneCache {
    shared: SharedCache,
    key: LaneKey,
    binding: Binding,
    system: SystemId,
    /// Places of the ledger, oldest first. What ends above a mark's position cannot stand at or
    /// below its ordinal, so that the cache need not know that far back.
    marks: VecDeque<Floor>,
}

/// What the cache says of transactions that seem new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Vouch {
    /// None of them was applied.
    None,
    /// It cannot say: probe behind this ordinal.
    Probe(LedgerOrdinal),
    /// These, by index, are known to it: probe for all in full.
    Hits(Vec<usize>),
}

/// What a hydration read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hydration {
    pub(crate) identities: u64,
    pub(crate) elapsed: Duration,
}

impl LaneCache {
    /// Binds the lane to an epoch and a source system; what was known under others is gone, and so
    /// is every vouch from before this connect (C43).
    pub(crate) fn bind(
        shared: SharedCache,
        flow: &FlowName,
        lane: Lane,
        epoch: LaneEpoch,
        system: SystemId,
    ) -> Self {
        let key = LaneKey {
            flow: flow.clone(),
            lane,
        };
        let binding = Binding {
            epoch: epoch.0,
            history: xxh3_128(format!("{flow}:{lane}:{}", system.0).as_bytes()),
            identity: IDENTITY_SCHEME,
            window: shared.window,
        };
        if let Some(cache) = &shared.cache {
            cache.bind(&key, &binding);
            cache.forget(&key);
        }
        Self {
            shared,
            key,
            binding,
            system,
            marks: VecDeque::new(),
        }
    }

    /// Reads what the budget holds of the ledger, if the cache wants to be born anew.
    pub(crate) async fn hydrate(
        &mut self,
        client: &Client,
        durable: &Checkpoint,
    ) -> Result<Option<Hydration>, LedgerError> {
        let Some(cache) = self.shared.cache.clone() else {
            return Ok(None);
        };
        if durable.source.system != self.system {
            // Another history: its positions cannot be compared with those of the one before.
            cache.forget(&self.key);
            return Ok(None);
        }
        match cache.wants(&self.key, self.shared.now()) {
            Wants::Nothing | Wants::Later { .. } => return Ok(None),
            Wants::Hydration => {}
            // Nobody else writes under our epoch: a gap is a doubt, and doubts begin anew.
            Wants::Rows { .. } => cache.forget(&self.key),
        }
        let began = Instant::now();
        let room = i64::try_from(cache.room(&self.key, self.shared.now())).unwrap_or(i64::MAX);
        let newest = durable.ordinal;
        // Ordinals bound the identities from above; the newest stay.
        let cut = LedgerOrdinal(newest.0.saturating_sub(room).max(0));
        let estimate = newest.0.abs_diff(cut.0);
        let now = self.shared.now();
        let mut hydration = match cache.hydrate(&self.key, &self.binding, Some(estimate), now) {
            Ok(hydration) => hydration,
            Err(suppressed) => {
                warn(suppressed.warning);
                return Ok(None);
            }
        };
        let span = Span {
            flow: &self.key.flow,
            lane: self.key.lane,
            cut,
            newest,
        };
        self.marks.clear();
        let mut refused = None;
        let mut identities = Vec::with_capacity(crate::ledger::IDENTITIES_PER_ROW);
        let marks = &mut self.marks;
        let read = hydrate::read(client, span, |row| {
            let last = row.first.0 + (row.identities.len().max(1) as i64) - 1;
            mark(marks, LedgerOrdinal(last), row.system, row.end_lsn);
            identities.clear();
            identities.extend(row.identities.iter().map(identity));
            let stamp = Stamp(row.applied_at_us);
            if let Err(error) = hydration.push(Ordinal(row.first.0), &identities, stamp) {
                refused.get_or_insert(error);
            }
        })
        .await?;
        self.marks.push_front(read.floor);
        let through = Ordinal(read.through.0);
        let finished = match refused {
            Some(error) => Err(error),
            None => cache.finish(
                hydration,
                Ordinal(read.floor.ordinal.0),
                through,
                self.shared.now(),
            ),
        };
        match finished {
            Ok(applied) => warn(applied.warning),
            Err(error) => tracing::warn!(%error, "the identity cache was not filled; probing"),
        }
        Ok(Some(Hydration {
            identities: read.identities,
            elapsed: began.elapsed(),
        }))
    }

    /// Whether none of these transactions, the lowest of which ends at `lowest`, stands in the
    /// ledger up to the checkpoint `durable`.
    pub(crate) fn vouch(
        &mut self,
        hashes: impl Iterator<Item = TransactionHash>,
        lowest: Lsn,
        durable: &Checkpoint,
    ) -> Vouch {
        let nothing = Vouch::Probe(LedgerOrdinal(Ordinal::NONE.0));
        let Some(cache) = &self.shared.cache else {
            return nothing;
        };
        let system = durable.source.system;
        let batch: Vec<Identity> = hashes.map(|hash| identity(&hash)).collect();
        loop {
            // With so little memory that no mark is left, the checkpoint itself is one.
            let floor = self.marks.front().copied().unwrap_or(Floor {
                ordinal: durable.ordinal,
                system,
                end_lsn: durable.end_lsn,
            });
            if floor.system != system || floor.end_lsn >= lowest {
                return nothing;
            }
            let start = Ordinal(floor.ordinal.0);
            let verdict = cache.verify(&self.key, &batch, start, self.shared.now());
            if !verdict.hits.is_empty() {
                return Vouch::Hits(verdict.hits);
            }
            if verdict.through.0 == durable.ordinal.0 {
                return Vouch::None;
            }
            // Vouching, and not for what lies behind this mark: it has dropped its oldest since. The
            // floor follows to the next mark.
            let dropped = verdict.state == State::Vouching && verdict.through == Ordinal::NONE;
            if !dropped || self.marks.pop_front().is_none() {
                return Vouch::Probe(LedgerOrdinal(verdict.through.0));
            }
        }
    }

    /// Identities committed behind ordinal `behind`; none for progress alone.
    pub(crate) fn learn(
        &mut self,
        behind: LedgerOrdinal,
        hashes: &[TransactionHash],
        to: &Checkpoint,
        applied_at_us: i64,
    ) {
        let Some(cache) = &self.shared.cache else {
            return;
        };
        let identities: Vec<Identity> = hashes.iter().map(identity).collect();
        let applied = cache.applied(
            &self.key,
            Ordinal(behind.0 + 1),
            &identities,
            Stamp(applied_at_us),
            self.shared.now(),
        );
        warn(applied.warning);
        mark(&mut self.marks, to.ordinal, to.source.system, to.end_lsn);
    }

    /// Something is in doubt: no vouch before it is born anew.
    pub(crate) fn forget(&self) {
        if let Some(cache) = &self.shared.cache {
            cache.forget(&self.key);
        }
    }

    /// Drops what is older than the window by the target's clock.
    pub(crate) fn expire(&self, now_us: i64) {
        if let Some(cache) = &self.shared.cache {
            cache.expire(&self.key, Stamp(now_us));
        }
    }

    /// Its state in a word, and the figures of all lanes.
    pub(crate) fn figures(&self) -> (&'static str, Stats) {
        let Some(cache) = &self.shared.cache else {
            return ("off", Stats::default());
        };
        let state = match cache.state(&self.key) {
            State::Vouching => "vouching",
            State::Gapped => "gapped",
            State::RebuildWanted => "rebuild wanted",
            State::Suppressed => "suppressed",
        };
        (state, cache.stats())
    }
}

fn identity(hash: &TransactionHash) -> Identity {
    Identity::from_bytes(hash.0)
}

/// Remembers a place of the ledger every few thousand ordinals, so that the floor can follow.
fn mark(marks: &mut VecDeque<Floor>, ordinal: LedgerOrdinal, system: SystemId, end_lsn: Lsn) {
    if marks
        .back()
        .is_some_and(|last| ordinal.0 < last.ordinal.0 + MARK_EVERY && last.system == system)
    {
        return;
    }
    marks.push_back(Floor {
        ordinal,
        system,
        end_lsn,
    });
}

fn warn(pressure: Option<trellara_dedup::Pressure>) {
    if let Some(pressure) = pressure {
        tracing::warn!(%pressure, "the identity cache is at its budget (dedup.memory)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::checkpoint_at;

    /// A lane behind a checkpoint at 0/100, filled from an empty ledger.
    fn filled(memory: u64) -> (LaneCache, Checkpoint) {
        let shared = SharedCache::new(memory, Duration::from_secs(3600));
        let durable = checkpoint_at(1, 0x100);
        let flow = FlowName::try_from("shop".to_owned()).expect("a flow name");
        let system = durable.source.system;
        let mut lane = LaneCache::bind(shared, &flow, Lane(0), LaneEpoch(1), system);
        let cache = lane.shared.cache.clone().expect("memory was given");
        let now = lane.shared.now();
        let hydration = cache
            .hydrate(&lane.key, &lane.binding, Some(0), now)
            .expect("room");
        let (from, upto) = (Ordinal(0), Ordinal(0));
        cache
            .finish(hydration, from, upto, now)
            .expect("nothing to read");
        mark(&mut lane.marks, durable.ordinal, system, durable.end_lsn);
        (lane, durable)
    }

    fn hash(n: u64) -> TransactionHash {
        TransactionHash::of(&n.to_be_bytes())
    }

    /// Commits the transactions `range` as one batch behind `durable`.
    fn apply(lane: &mut LaneCache, durable: &mut Checkpoint, range: std::ops::Range<u64>) {
        let hashes: Vec<TransactionHash> = range.clone().map(hash).collect();
        let behind = durable.ordinal;
        durable.ordinal.0 += hashes.len().max(1) as i64;
        durable.end_lsn = Lsn(0x100 + 16 * range.end);
        lane.learn(behind, &hashes, durable, 1_000_000);
    }

    fn vouch(lane: &mut LaneCache, durable: &Checkpoint, range: std::ops::Range<u64>) -> Vouch {
        let lowest = Lsn(0x100 + 16 * (range.start + 1));
        lane.vouch(range.map(hash), lowest, durable)
    }

    #[test]
    fn what_outgrows_the_budget_is_forgotten_and_new_ones_are_still_vouched_for() {
        for memory in [1 << 20, 4 << 20] {
            let (mut lane, mut durable) = filled(memory);
            for batch in 0..4000 {
                let range = batch * 100..(batch + 1) * 100;
                let said = vouch(&mut lane, &durable, range.clone());
                assert_eq!(said, Vouch::None, "batch {batch} with {memory} bytes");
                apply(&mut lane, &mut durable, range);
            }
            let (state, stats) = lane.figures();
            assert_eq!(state, "vouching");
            assert!(stats.truncated > 0, "{stats:?}");
            assert!(stats.resident_bytes <= memory, "{stats:?}");
            assert!(lane.marks.len() < 100, "{} marks", lane.marks.len());
            // The newest are known, and are hints.
            let again = 400_000 - 3..400_000;
            let said = vouch(&mut lane, &durable, again);
            assert_eq!(said, Vouch::Hits(vec![0, 1, 2]));
            // What may lie before the floor is not vouched for.
            let said = lane.vouch(std::iter::once(hash(7)), Lsn(0x180), &durable);
            assert_eq!(said, Vouch::Probe(LedgerOrdinal(-1)));
        }
    }

    #[test]
    fn an_ordinal_of_somebody_elses_ends_the_vouch() {
        let (mut lane, mut durable) = filled(1 << 20);
        apply(&mut lane, &mut durable, 0..10);
        assert_eq!(vouch(&mut lane, &durable, 10..12), Vouch::None);
        // Another applier's row: one ordinal is missing here.
        durable.ordinal.0 += 1;
        apply(&mut lane, &mut durable, 11..12);
        assert_eq!(lane.figures().0, "gapped");
        let said = vouch(&mut lane, &durable, 12..13);
        assert_eq!(said, Vouch::Probe(LedgerOrdinal(-1)));
    }

    #[test]
    fn c43_a_vouch_ends_with_the_connect() {
        let (mut lane, mut durable) = filled(1 << 20);
        apply(&mut lane, &mut durable, 0..10);
        let flow = lane.key.flow.clone();
        let (epoch, system) = (LaneEpoch(1), lane.system);
        let mut next = LaneCache::bind(lane.shared.clone(), &flow, Lane(0), epoch, system);
        mark(&mut next.marks, LedgerOrdinal(0), system, Lsn(0x100));
        let said = vouch(&mut next, &durable, 10..12);
        assert_eq!(said, Vouch::Probe(LedgerOrdinal(-1)));
        assert_eq!(next.figures().1.identities, 0, "nothing of it is left");
    }
}
