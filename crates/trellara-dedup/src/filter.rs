//! A blocked bloom filter: 16 bits per identity, seven of them set, all seven in one cache line.
//!
//! It never says "no" to an identity that was added. A "no" costs one line; whether it is right
//! with a "maybe" is for others to find out.

use crate::words::Identity;

const BITS_PER_IDENTITY: usize = 16;
const PROBES: u32 = 7;
const WORDS: usize = 8;
pub(crate) const LINE_BYTES: usize = WORDS * 8;

/// 512 bits, never across two cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line([u64; WORDS]);

impl Line {
    pub(crate) const EMPTY: Self = Self([0; WORDS]);

    /// Sets the seven bits of an identity, the same in every filter, from its low half. It is
    /// written in place: one pattern serves all generations.
    #[inline]
    pub(crate) fn set(&mut self, identity: Identity) {
        // Nine bits choose one of 512; seven times nine fit into the half.
        let mut rest = identity.0 as u64;
        for _ in 0..PROBES {
            self.0[(rest >> 6) as usize % WORDS] |= 1 << (rest % 64);
            rest >>= 9;
        }
    }

    #[inline]
    pub(crate) fn of(identity: Identity) -> Self {
        let mut line = Self::EMPTY;
        line.set(identity);
        line
    }
}

/// The filter of one generation, in slabs that are no larger than a block of identities.
///
/// A filter of 16 million identities has 32 MiB. It is prepared slab by slab, so that no single
/// append pays for all of it.
#[derive(Debug)]
pub(crate) struct Filter<const BLOCK: usize> {
    slabs: Vec<Box<[Line]>>,
    lines: usize,
}

impl<const BLOCK: usize> Filter<BLOCK> {
    /// As many bytes as a block has.
    const SLAB_LINES: usize = BLOCK * size_of::<Identity>() / LINE_BYTES;

    /// A filter for `capacity` identities without any slab yet.
    pub(crate) fn planned(capacity: usize) -> Self {
        let lines = Self::lines(capacity);
        Self {
            slabs: Vec::with_capacity(lines.div_ceil(Self::SLAB_LINES)),
            lines,
        }
    }

    fn lines(capacity: usize) -> usize {
        (capacity * BITS_PER_IDENTITY / 8 / LINE_BYTES).max(1)
    }

    /// What a filter for `capacity` identities takes.
    pub(crate) fn bytes_for(capacity: usize) -> usize {
        Self::lines(capacity) * LINE_BYTES
    }

    /// How many slabs the whole filter has.
    pub(crate) fn planned_slabs(&self) -> usize {
        self.lines.div_ceil(Self::SLAB_LINES)
    }

    /// Allocates up to `slabs` more slabs.
    pub(crate) fn prepare(&mut self, slabs: usize) {
        let missing = self.planned_slabs() - self.slabs.len();
        for _ in 0..slabs.min(missing) {
            let open = self.lines - self.slabs.len() * Self::SLAB_LINES;
            let lines = vec![Line::EMPTY; open.min(Self::SLAB_LINES)];
            self.slabs.push(lines.into_boxed_slice());
        }
    }

    /// What is allocated.
    pub(crate) fn bytes(&self) -> usize {
        (self.slabs.len() * Self::SLAB_LINES).min(self.lines) * LINE_BYTES
    }

    /// Slab and line by multiply and shift of the high half: no division, and any number of lines.
    #[inline]
    fn place(&self, identity: Identity) -> (usize, usize) {
        let line = (((identity.0 >> 64) * self.lines as u128) >> 64) as usize;
        (line / Self::SLAB_LINES, line % Self::SLAB_LINES)
    }

    #[inline]
    pub(crate) fn add(&mut self, identity: Identity) {
        let (slab, line) = self.place(identity);
        self.slabs[slab][line].set(identity);
    }

    /// Whether `identity`, whose bits are `pattern`, may have been added. All words are looked at:
    /// a branch that is taken half of the time costs more than the seven others.
    #[inline]
    pub(crate) fn maybe(&self, identity: Identity, pattern: &Line) -> bool {
        let (slab, line) = self.place(identity);
        let line = &self.slabs[slab][line].0;
        let mut missing = 0;
        for (word, bits) in line.iter().zip(pattern.0) {
            missing |= bits & !word;
        }
        missing == 0
    }
}
