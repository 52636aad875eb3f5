//! Runs: identities in one order, in blocks.

use crate::sorted;
use crate::words::{Identity, Ordinal, Stamp};

/// An immutable block of ascending identities.
pub(crate) type Block<const BLOCK: usize> = Box<[Identity; BLOCK]>;

/// How far a piece of the ring reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    /// The ordinal of its last identity.
    pub(crate) last: Ordinal,
    /// The newest stamp of its identities: it has left the window when this one has.
    pub(crate) newest: Stamp,
}

impl Reach {
    /// Both, where `later` stands behind.
    pub(crate) fn and(self, later: Self) -> Self {
        Self {
            last: later.last,
            newest: self.newest.max(later.newest),
        }
    }
}

/// Blocks in one order: everything in a block is not above anything in the next one. The same
/// identity may stand in it several times.
#[derive(Debug)]
pub(crate) struct Run<const BLOCK: usize> {
    pub(crate) blocks: Vec<Block<BLOCK>>,
    /// The first identity of each block.
    pub(crate) firsts: Vec<Identity>,
    /// Eight runs of one level make one of the next; a sealed buffer has level 0.
    pub(crate) level: u32,
    pub(crate) reach: Reach,
}

impl<const BLOCK: usize> Run<BLOCK> {
    /// Seals a full buffer: sorted in place and handed over without a copy.
    pub(crate) fn seal(mut buffer: Vec<Identity>, reach: Reach) -> Self {
        buffer.sort_unstable();
        let firsts = vec![buffer[0]];
        Self {
            blocks: vec![boxed(buffer)],
            firsts,
            level: 0,
            reach,
        }
    }

    pub(crate) fn contains(&self, key: Identity) -> bool {
        // Of equal firsts the last one: its own block holds the key.
        let before = sorted::not_above(&self.firsts, key);
        before > 0 && sorted::contains(&*self.blocks[before - 1], key)
    }
}

/// A full buffer as a block. `BLOCK` is a power of two, so that doubling ends exactly there.
pub(crate) fn boxed<const BLOCK: usize>(buffer: Vec<Identity>) -> Block<BLOCK> {
    debug_assert_eq!(buffer.capacity(), BLOCK, "a copy would be made");
    match buffer.into_boxed_slice().try_into() {
        Ok(block) => block,
        Err(other) => unreachable!("a block of {} identities", other.len()),
    }
}
