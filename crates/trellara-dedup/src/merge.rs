//! Merging runs a block at a time, while they are searched.
//!
//! Everything up to the last merged identity is found in the output, everything above it still in
//! the inputs; no lookup needs both, and no identity is ever kept twice for longer than one block
//! per input. The work is spread over the appends, so that none of them waits for a whole merge.

use std::array;
use std::collections::VecDeque;

use crate::run::{Block, Reach, Run, boxed};
use crate::sorted;
use crate::words::Identity;

/// Runs that become one.
pub(crate) const WIDTH: usize = 8;

#[derive(Debug)]
pub(crate) struct Merge<const BLOCK: usize> {
    inputs: Vec<Input<BLOCK>>,
    output: Run<BLOCK>,
    /// The last merged identity.
    frontier: Option<Identity>,
}

/// A run of which the front is merged already.
#[derive(Debug)]
struct Input<const BLOCK: usize> {
    blocks: VecDeque<Block<BLOCK>>,
    firsts: Vec<Identity>,
    /// Blocks that are gone from the front.
    gone: usize,
    /// Identities of the front block that are merged.
    merged: usize,
}

impl<const BLOCK: usize> Merge<BLOCK> {
    /// Begins to merge up to [`WIDTH`] adjacent runs, oldest first.
    pub(crate) fn begin(runs: Vec<Run<BLOCK>>) -> Self {
        debug_assert!((2..=WIDTH).contains(&runs.len()));
        let level = runs.iter().map(|run| run.level).max().unwrap_or(0) + 1;
        let reach = runs.iter().map(|run| run.reach).reduce(Reach::and);
        let blocks = runs.iter().map(|run| run.blocks.len()).sum();
        Self {
            output: Run {
                blocks: Vec::with_capacity(blocks),
                firsts: Vec::with_capacity(blocks),
                level,
                reach: reach.expect("runs were given"),
            },
            inputs: runs.into_iter().map(Input::from).collect(),
            frontier: None,
        }
    }

    pub(crate) fn reach(&self) -> Reach {
        self.output.reach
    }

    pub(crate) fn level(&self) -> u32 {
        self.output.level
    }

    /// Blocks in memory.
    pub(crate) fn blocks(&self) -> usize {
        let open: usize = self.inputs.iter().map(|input| input.blocks.len()).sum();
        open + self.output.blocks.len()
    }

    /// Identities, each counted once.
    pub(crate) fn len(&self) -> usize {
        let open = self.inputs.iter().map(Input::left);
        open.sum::<usize>() + self.output.blocks.len() * BLOCK
    }

    pub(crate) fn contains(&self, key: Identity) -> bool {
        match self.frontier {
            Some(frontier) if key <= frontier => self.output.contains(key),
            _ => self.inputs.iter().any(|input| input.contains(key)),
        }
    }

    /// Merges one block more. Runs are made of full blocks, so there always is a full one.
    pub(crate) fn advance(&mut self) {
        let mut merged = Vec::with_capacity(BLOCK);
        while merged.len() < BLOCK && !self.is_done() {
            let mut fronts = [&[][..]; WIDTH];
            for (front, input) in fronts.iter_mut().zip(&self.inputs) {
                *front = &input.blocks[0][input.merged..];
            }
            let taken = merge(&fronts, &mut merged, BLOCK);
            for (input, taken) in self.inputs.iter_mut().zip(taken) {
                input.take(taken);
            }
            self.inputs.retain(|input| !input.blocks.is_empty());
        }
        self.frontier = merged.last().copied();
        self.output.firsts.push(merged[0]);
        self.output.blocks.push(boxed(merged));
    }

    pub(crate) fn is_done(&self) -> bool {
        self.inputs.is_empty()
    }

    pub(crate) fn into_run(self) -> Run<BLOCK> {
        debug_assert!(self.is_done());
        self.output
    }
}

impl<const BLOCK: usize> From<Run<BLOCK>> for Input<BLOCK> {
    fn from(run: Run<BLOCK>) -> Self {
        Self {
            blocks: run.blocks.into(),
            firsts: run.firsts,
            gone: 0,
            merged: 0,
        }
    }
}

impl<const BLOCK: usize> Input<BLOCK> {
    fn left(&self) -> usize {
        self.blocks.len() * BLOCK - self.merged
    }

    fn take(&mut self, count: usize) {
        self.merged += count;
        if self.merged == BLOCK {
            self.blocks.pop_front();
            self.gone += 1;
            self.merged = 0;
        }
    }

    /// Also finds what the front block has merged already: it was there, so that is no error.
    fn contains(&self, key: Identity) -> bool {
        let before = sorted::not_above(&self.firsts[self.gone..], key);
        before > 0 && sorted::contains(&*self.blocks[before - 1], key)
    }
}

/// Moves the lowest identities of the `fronts` to `merged` until that has `full` of them or one
/// front is used up. Returns how many were taken from each. Fronts without identities stand last.
fn merge(fronts: &[&[Identity]; WIDTH], merged: &mut Vec<Identity>, full: usize) -> [usize; WIDTH] {
    let mut taken = [0; WIDTH];
    // A front without identities is never the lowest: on equality the earlier one is taken, and it
    // stands behind all others.
    let mut heads = array::from_fn(|at| fronts[at].first().map_or(u128::MAX, |head| head.0));
    while merged.len() < full {
        let at = lowest(&heads);
        merged.push(Identity(heads[at]));
        taken[at] += 1;
        match fronts[at].get(taken[at]) {
            Some(head) => heads[at] = head.0,
            None => break,
        }
    }
    taken
}

/// Where the lowest head stands, the first of equal ones. A tournament without branches: which one
/// wins is chance, and a mispredicted branch costs more than the whole.
#[inline]
fn lowest(heads: &[u128; WIDTH]) -> usize {
    let better = |left: usize, right: usize| {
        if heads[right] < heads[left] {
            right
        } else {
            left
        }
    };
    let (low, high) = (better(0, 1), better(2, 3));
    let (lower, higher) = (better(4, 5), better(6, 7));
    better(better(low, high), better(lower, higher))
}
