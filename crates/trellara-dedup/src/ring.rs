//! The ring: identities of one lane in the order they were applied, newest at the end.

use std::mem;

use crate::filter::{Filter, Line};
use crate::generation::{Dropped, Generation, TOP_LEVEL};
use crate::run::{Reach, Run};
use crate::words::{Identity, Ordinal, Stamp};

/// Each generation is this much larger than the one before, up to the ceiling.
const GROWTH: usize = 8;

/// The ceiling cannot be higher: the first identities of more blocks would need an array that is
/// larger than a block.
pub const MAX_CEILING: usize = 16 << 20;

/// Parts of a block between which merges advance by one block. Sealing takes the last one, each
/// level of merges two, so that sorting and merging never meet in one append.
const SLOTS: usize = 16;

/// What the filters said, and how often they were wrong.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Maybes {
    /// An identity and a generation whose filter could not rule it out.
    pub all: u64,
    /// Those of them that were not there.
    pub wrong: u64,
}

/// Identities in the order they were applied: one growing buffer, and behind it *generations* of
/// immutable sorted blocks, each behind a bloom filter.
///
/// - `BLOCK` identities make a block (65,536 bytes with 4096); no allocation is larger.
/// - What was appended is found until it is dropped, and it is dropped from the oldest end only.
/// - Generations hold 1, 8, 64, … blocks up to the ceiling while the ring grows. Once identities
///   leave at the other end, the next generation is not larger than what is resident. What is
///   older than the window stays until its run may leave, a quarter of the ring at most.
#[derive(Debug)]
pub struct Ring<const BLOCK: usize = 4096> {
    /// Blocks per generation at most.
    ceiling: usize,
    generations: Vec<Generation<BLOCK>>,
    /// All before this one have nothing left to merge.
    unsettled: usize,
    /// The filter of the next generation, while it is prepared.
    next: Option<(usize, Filter<BLOCK>)>,
    buffer: Vec<Identity>,
    buffer_reach: Reach,
    sealed: usize,
    blocks: usize,
    filter_bytes: usize,
    /// Something was dropped since the newest generation was opened.
    dropped: bool,
}

impl<const BLOCK: usize> Ring<BLOCK> {
    const POWER_OF_TWO: () = assert!(BLOCK.is_power_of_two() && BLOCK >= SLOTS);

    /// An empty ring whose generations hold at most `ceiling` identities, which is brought to the
    /// next lower multiple by eight of a block.
    #[must_use]
    pub fn new(ceiling: usize) -> Self {
        let () = Self::POWER_OF_TWO;
        Self {
            ceiling: Self::tier(ceiling.min(MAX_CEILING / 4096 * BLOCK) / BLOCK),
            generations: Vec::new(),
            unsettled: 0,
            next: None,
            buffer: Vec::new(),
            buffer_reach: Reach {
                last: Ordinal::NONE,
                newest: Stamp(i64::MIN),
            },
            sealed: 0,
            blocks: 0,
            filter_bytes: 0,
            dropped: false,
        }
    }

    /// The largest power of eight that is not above `blocks`.
    fn tier(blocks: usize) -> usize {
        GROWTH.pow(blocks.max(1).ilog(GROWTH))
    }

    /// Appends identities that have the ordinals `first`, `first + 1`, …
    pub fn append(&mut self, first: Ordinal, identities: &[Identity], stamp: Stamp) {
        for (at, identity) in identities.iter().enumerate() {
            self.push(Ordinal(first.0.saturating_add(at as i64)), *identity, stamp);
        }
    }

    fn push(&mut self, ordinal: Ordinal, identity: Identity, stamp: Stamp) {
        if self.generations.is_empty() {
            self.open(1);
        }
        let newest = self.generations.last_mut().expect("one was opened");
        newest.filter.add(identity);
        let reach = Reach {
            last: ordinal,
            newest: stamp,
        };
        self.buffer_reach = match self.buffer.is_empty() {
            true => reach,
            false => self.buffer_reach.and(reach),
        };
        self.buffer.push(identity);
        if self.buffer.len() == BLOCK {
            self.seal();
        } else if self.buffer.len().is_multiple_of(BLOCK / SLOTS) {
            self.advance(self.buffer.len() * SLOTS / BLOCK);
        }
    }

    /// Two slots for each level of merges.
    fn advance(&mut self, slot: usize) {
        let level = slot.div_ceil(2) as u32;
        if level > TOP_LEVEL {
            return;
        }
        let grown = |generation: &mut Generation<BLOCK>| generation.advance(level);
        let grown: isize = self.generations[self.unsettled..]
            .iter_mut()
            .map(grown)
            .sum();
        self.blocks = self.blocks.strict_add_signed(grown);
        self.pass_settled();
    }

    fn pass_settled(&mut self) {
        let settled = |generation: &&Generation<BLOCK>| generation.is_settled();
        self.unsettled += self.generations[self.unsettled..]
            .iter()
            .take_while(settled)
            .count();
    }

    fn seal(&mut self) {
        let buffer = mem::take(&mut self.buffer);
        let newest = self.generations.last_mut().expect("it holds the buffer");
        newest.seal(Run::seal(buffer, self.buffer_reach));
        self.sealed += BLOCK;
        self.blocks += 1;
        self.prepare_next();
        for (at, generation) in self.generations.iter_mut().enumerate() {
            if generation.make_whole(self.sealed / BLOCK) {
                self.unsettled = self.unsettled.min(at);
            }
        }
    }

    /// Prepares the next generation while this one fills up, and opens it when it is full.
    fn prepare_next(&mut self) {
        let newest = self.generations.last().expect("it holds the buffer");
        let (capacity, filled) = (newest.capacity, newest.filled);
        let left = capacity - filled;
        if left > capacity / GROWTH {
            return;
        }
        let larger = if self.dropped {
            self.resident_tier()
        } else {
            capacity * GROWTH
        };
        let planned = || {
            let blocks = larger.min(self.ceiling);
            (blocks, Filter::planned(blocks * BLOCK))
        };
        let (next, mut filter) = self.next.take().unwrap_or_else(planned);
        if left == 0 {
            self.filter_bytes -= filter.bytes();
            self.open_with(next, filter);
        } else {
            // Evenly over what is left of this generation.
            self.filter_bytes -= filter.bytes();
            filter.prepare(filter.planned_slabs().div_ceil(capacity / GROWTH));
            self.filter_bytes += filter.bytes();
            self.next = Some((next, filter));
        }
    }

    fn resident_tier(&self) -> usize {
        Self::tier(self.sealed / BLOCK)
    }

    fn open(&mut self, capacity: usize) {
        self.open_with(capacity, Filter::planned(capacity * BLOCK));
    }

    fn open_with(&mut self, capacity: usize, filter: Filter<BLOCK>) {
        let opened = Generation::open(capacity, filter);
        self.filter_bytes += opened.filter.bytes();
        self.generations.push(opened);
        self.dropped = false;
        self.pass_settled();
    }

    /// Drops from the oldest end whatever is wholly older than `before`. Returns the last ordinal
    /// that was dropped: everything behind it is still here.
    pub fn expire(&mut self, before: Stamp) -> Option<Ordinal> {
        let mut last = None;
        while let Some(oldest) = self.generations.first() {
            match oldest.oldest() {
                Some(reach) if reach.newest < before => last = self.drop_oldest(),
                Some(_) => break,
                None if self.buffer.is_empty() => *self = Self::new(self.ceiling * BLOCK),
                None if self.buffer_reach.newest < before => {
                    last = Some(self.buffer_reach.last);
                    *self = Self::new(self.ceiling * BLOCK);
                }
                None => break,
            }
        }
        last
    }

    /// Drops the oldest sealed part, whatever its age. Returns its last ordinal; `None` when only
    /// the buffer is left.
    pub fn drop_oldest(&mut self) -> Option<Ordinal> {
        let oldest = self.generations.first_mut()?;
        let Dropped {
            reach,
            identities,
            blocks,
        } = oldest.drop_oldest()?;
        self.sealed -= identities;
        self.blocks -= blocks;
        self.dropped = true;
        if oldest.oldest().is_none() && self.generations.len() > 1 {
            let gone = self.generations.remove(0);
            self.filter_bytes -= gone.filter.bytes();
            self.unsettled = self.unsettled.saturating_sub(1);
        }
        Some(reach.last)
    }

    /// Whether `identity` is here. Exact: a "maybe" of a filter is looked up.
    #[must_use]
    pub fn contains(&self, identity: Identity) -> bool {
        self.probe_one(identity, &mut Maybes::default())
    }

    /// Adds to `hits` the indexes of those of `batch` that are here, in ascending order.
    pub fn probe(&self, batch: &[Identity], hits: &mut Vec<usize>) -> Maybes {
        let mut maybes = Maybes::default();
        if let [one] = batch {
            hits.extend(self.probe_one(*one, &mut maybes).then_some(0));
            return maybes;
        }
        for (at, some) in batch.chunks(64).enumerate() {
            let mut found = self.probe_some(some, &mut maybes);
            while found != 0 {
                hits.push(at * 64 + found.trailing_zeros() as usize);
                found &= found - 1;
            }
        }
        maybes
    }

    /// All filters are asked before any answer is looked at, so that their cache lines are fetched
    /// at the same time.
    fn probe_one(&self, identity: Identity, maybes: &mut Maybes) -> bool {
        let pattern = Line::of(identity);
        for (at, generations) in self.generations.rchunks(64).enumerate() {
            let ask = |bits, generation: &Generation<BLOCK>| {
                bits << 1 | u64::from(generation.filter.maybe(identity, &pattern))
            };
            let mut bits = generations.iter().fold(0u64, ask);
            while bits != 0 {
                // The newest generation is the lowest bit.
                let behind = at * 64 + bits.trailing_zeros() as usize;
                if self.look(self.generations.len() - 1 - behind, identity, maybes) {
                    return true;
                }
                bits &= bits - 1;
            }
        }
        false
    }

    /// Up to 64 identities, one generation at a time: the lines of one filter are independent of
    /// each other, and nothing is asked twice. Returns a bit for each identity that is here.
    fn probe_some(&self, some: &[Identity], maybes: &mut Maybes) -> u64 {
        let mut patterns = [Line::EMPTY; 64];
        for (pattern, identity) in patterns.iter_mut().zip(some) {
            pattern.set(*identity);
        }
        let mut found = 0;
        for (at, generation) in self.generations.iter().enumerate().rev() {
            let mut bits = 0u64;
            for (index, (identity, pattern)) in some.iter().zip(&patterns).enumerate() {
                bits |= u64::from(generation.filter.maybe(*identity, pattern)) << index;
            }
            bits &= !found;
            while bits != 0 {
                let index = bits.trailing_zeros();
                if self.look(at, some[index as usize], maybes) {
                    found |= 1 << index;
                }
                bits &= bits - 1;
            }
        }
        found
    }

    /// The exact answer of one generation.
    #[cold]
    fn look(&self, at: usize, identity: Identity, maybes: &mut Maybes) -> bool {
        let holds_buffer = at + 1 == self.generations.len();
        // The buffer last: reading all of it costs as much as dozens of searches.
        let found = self.generations[at].contains(identity)
            || holds_buffer && self.buffer.contains(&identity);
        maybes.all += 1;
        maybes.wrong += u64::from(!found);
        found
    }

    /// Identities that are here; the same one may be counted several times.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sealed + self.buffer.len()
    }

    /// Whether nothing is here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Generations, and so cache lines per identity that is not here.
    #[must_use]
    pub fn generations(&self) -> usize {
        self.generations.len()
    }

    /// Bytes of blocks, their index, the buffer and the filters.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.blocks * Self::BLOCK_BYTES
            + self.buffer.capacity() * size_of::<Identity>()
            + self.filter_bytes
    }

    /// A block, its first identity again, and its address.
    const BLOCK_BYTES: usize = (BLOCK + 1) * size_of::<Identity>() + size_of::<usize>();

    /// What a ring that was just filled with `identities` takes, about.
    #[must_use]
    pub fn estimate(&self, identities: u64) -> u64 {
        if identities == 0 {
            return 0;
        }
        let filter = |capacity: usize| Filter::<BLOCK>::bytes_for(capacity * BLOCK) as u64;
        let holds = |capacity: usize| (capacity * BLOCK) as u64;
        let mut bytes = identities.div_ceil(BLOCK as u64) * Self::BLOCK_BYTES as u64;
        let (mut capacity, mut left) = (1, identities);
        while capacity < self.ceiling && left > holds(capacity) {
            bytes += filter(capacity);
            left -= holds(capacity);
            capacity *= GROWTH;
        }
        let generations = left.div_ceil(holds(capacity));
        bytes += generations * filter(capacity);
        let newest = left - (generations - 1) * holds(capacity);
        // In the last part of a generation the filter of the next one is prepared.
        if newest + holds(capacity) / GROWTH as u64 >= holds(capacity) {
            bytes += filter((capacity * GROWTH).min(self.ceiling));
        }
        bytes
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
