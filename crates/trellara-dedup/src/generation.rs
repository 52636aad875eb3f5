//! A generation: the identities of one stretch of time behind one filter.
//!
//! Inside it, sealed blocks are merged eight at a time into longer runs, so that a "maybe" of the
//! filter is looked up in a few runs instead of in thousands of blocks, and in one run where that
//! costs little: identities leave a run only together, so a generation that is one run is kept
//! until its newest identity is too old. While it is a large part of the ring, its runs are an
//! eighth of it.

use crate::filter::Filter;
use crate::merge::{Merge, WIDTH};
use crate::run::{Reach, Run};
use crate::words::Identity;

/// How many times larger than a generation the ring is when that is merged into one run.
const WHOLE: usize = 4;

/// Merges of this level and above advance together.
pub(crate) const TOP_LEVEL: u32 = 7;

#[derive(Debug)]
pub(crate) struct Generation<const BLOCK: usize> {
    pub(crate) filter: Filter<BLOCK>,
    /// Blocks that it takes, and blocks that it was given.
    pub(crate) capacity: usize,
    pub(crate) filled: usize,
    /// It is merged into one run.
    whole: bool,
    /// Oldest first, each an unbroken stretch of ordinals.
    parts: Vec<Part<BLOCK>>,
}

#[derive(Debug)]
enum Part<const BLOCK: usize> {
    Run(Run<BLOCK>),
    Merge(Merge<BLOCK>),
}

/// What left the ring with a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropped {
    pub(crate) reach: Reach,
    pub(crate) identities: usize,
    pub(crate) blocks: usize,
}

impl<const BLOCK: usize> Part<BLOCK> {
    fn reach(&self) -> Reach {
        match self {
            Self::Run(run) => run.reach,
            Self::Merge(merge) => merge.reach(),
        }
    }

    fn run_level(&self) -> Option<u32> {
        match self {
            Self::Run(run) => Some(run.level),
            Self::Merge(_) => None,
        }
    }

    fn contains(&self, key: Identity) -> bool {
        match self {
            Self::Run(run) => run.contains(key),
            Self::Merge(merge) => merge.contains(key),
        }
    }

    fn into_run(self) -> Option<Run<BLOCK>> {
        match self {
            Self::Run(run) => Some(run),
            Self::Merge(_) => None,
        }
    }
}

impl<const BLOCK: usize> Generation<BLOCK> {
    /// `capacity` in blocks.
    pub(crate) fn open(capacity: usize, mut filter: Filter<BLOCK>) -> Self {
        filter.prepare(usize::MAX);
        Self {
            filter,
            capacity,
            filled: 0,
            whole: false,
            parts: Vec::new(),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.filled >= self.capacity
    }

    /// Nothing is left to merge, now or later.
    pub(crate) fn is_settled(&self) -> bool {
        let merging = self.parts.iter().any(|part| part.run_level().is_none());
        self.is_full() && !merging && self.unmerged() <= 1
    }

    /// How many runs at the end are shorter than they may become, if none of them is being merged.
    fn unmerged(&self) -> usize {
        let short = |part: &&Part<BLOCK>| part.run_level().is_some_and(|level| level < self.top());
        self.parts.iter().rev().take_while(short).count()
    }

    /// The level of the longest runs.
    fn top(&self) -> u32 {
        let all = self.capacity.ilog(WIDTH);
        if self.whole {
            all
        } else {
            all.saturating_sub(1).max(1)
        }
    }

    /// Merges it into one run from now on, if `resident` blocks are enough for that. Returns
    /// whether that is new.
    pub(crate) fn make_whole(&mut self, resident: usize) -> bool {
        let new = !self.whole && self.is_full() && self.capacity * WHOLE <= resident;
        if new {
            self.whole = true;
            self.plan();
        }
        new
    }

    pub(crate) fn seal(&mut self, run: Run<BLOCK>) {
        self.filled += 1;
        self.parts.push(Part::Run(run));
        self.plan();
    }

    /// Newest first: what is asked for twice was mostly applied just before.
    pub(crate) fn contains(&self, key: Identity) -> bool {
        self.parts.iter().rev().any(|part| part.contains(key))
    }

    /// Merges one block in each merge of `level`. Returns by how many blocks memory grew.
    pub(crate) fn advance(&mut self, level: u32) -> isize {
        let (mut grown, mut ended) = (0, false);
        for part in &mut self.parts {
            let Part::Merge(merge) = part else { continue };
            if merge.level().min(TOP_LEVEL) == level {
                grown -= merge.blocks() as isize;
                merge.advance();
                grown += merge.blocks() as isize;
                ended |= merge.is_done();
            }
        }
        if ended {
            let done = |part| match part {
                Part::Merge(merge) if merge.is_done() => Part::Run(merge.into_run()),
                other => other,
            };
            self.parts = self.parts.drain(..).map(done).collect();
            self.plan();
        }
        grown
    }

    /// Begins the merges that are due: eight adjacent runs of one level; in a full generation that
    /// has nothing else to merge, whatever is left at its end.
    fn plan(&mut self) {
        while let Some(at) = self.eight_alike() {
            self.merge(at, WIDTH);
        }
        let all_runs = self.parts.iter().all(|part| part.run_level().is_some());
        let count = self.unmerged().min(WIDTH);
        if self.is_full() && all_runs && count > 1 {
            self.merge(self.parts.len() - count, count);
        }
    }

    fn eight_alike(&self) -> Option<usize> {
        self.parts.windows(WIDTH).position(|parts| {
            let level = parts[0].run_level();
            level.is_some_and(|level| level < self.top())
                && parts.iter().all(|part| part.run_level() == level)
        })
    }

    fn merge(&mut self, at: usize, count: usize) {
        let runs = self.parts.drain(at..at + count);
        let merge = Merge::begin(runs.filter_map(Part::into_run).collect());
        self.parts.insert(at, Part::Merge(merge));
    }

    /// How far its oldest part reaches.
    pub(crate) fn oldest(&self) -> Option<Reach> {
        self.parts.first().map(Part::reach)
    }

    /// Drops the oldest part.
    pub(crate) fn drop_oldest(&mut self) -> Option<Dropped> {
        if self.parts.is_empty() {
            return None;
        }
        let part = self.parts.remove(0);
        let (identities, blocks) = match &part {
            Part::Run(run) => (run.blocks.len() * BLOCK, run.blocks.len()),
            Part::Merge(merge) => (merge.len(), merge.blocks()),
        };
        if self.is_full() {
            self.plan();
        }
        Some(Dropped {
            reach: part.reach(),
            identities,
            blocks,
        })
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }
}
