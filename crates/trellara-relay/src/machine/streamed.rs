//! Transactions that PostgreSQL streams before they commit, block by block.

use std::collections::HashMap;

use trellara_envelope::Xid;

use super::chunks::{Chunks, RANGES_PER_ABORT};
use super::open::Open;
use super::sequencer::Sequencer;

#[derive(Debug)]
pub(super) struct Streamed {
    /// The transaction whose block is being received; not in `open` meanwhile.
    block: Option<Box<Open>>,
    open: HashMap<Xid, Box<Open>>,
    /// Memory of `open` that publishing would free, and what it may be (C18).
    unfinished: usize,
    budget: usize,
}

impl Streamed {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            block: None,
            open: HashMap::new(),
            unfinished: 0,
            budget,
        }
    }

    pub(super) fn in_block(&self) -> bool {
        self.block.is_some()
    }

    /// The transaction whose block is being received.
    pub(super) fn block(&mut self) -> Option<&mut Open> {
        self.block.as_deref_mut()
    }

    /// Transactions still open on the source.
    pub(super) fn count(&self) -> u64 {
        self.open.len() as u64 + u64::from(self.block.is_some())
    }

    /// What their chunks take in the stream.
    pub(super) fn stored(&self) -> u64 {
        let all = self.open.values().chain(&self.block);
        all.map(|open| open.stored).sum()
    }

    /// Those whose chunks take more than `bytes` in the stream.
    pub(super) fn above(&self, bytes: u64) -> impl Iterator<Item = (Xid, u64)> {
        let all = self.open.values().chain(&self.block);
        all.filter(move |open| open.stored > bytes)
            .map(|open| (open.xid, open.stored))
    }

    /// What all their subtransactions take in memory until their commits.
    pub(super) fn remembered(&self) -> usize {
        let all = self.open.values().chain(&self.block);
        all.map(|open| open.remembered()).sum()
    }

    /// A block begins.
    pub(super) fn start(&mut self, xid: Xid) {
        let open = self.take(xid);
        self.block = Some(open.unwrap_or_else(|| Box::new(Open::new(xid, true))));
    }

    /// A block ends.
    pub(super) fn stop(&mut self, chunks: &mut Chunks, frames: &mut Sequencer) {
        if let Some(open) = self.block.take() {
            self.put(open, chunks, frames);
        }
    }

    /// A transaction, or a part of it, was rolled back. One of which nothing was streamed is
    /// ignored: PostgreSQL 18 sends that too (B24).
    pub(super) fn abort(
        &mut self,
        xid: Xid,
        subxid: Xid,
        chunks: &mut Chunks,
        frames: &mut Sequencer,
    ) {
        let Some(mut open) = self.take(xid) else {
            return;
        };
        if xid == subxid {
            chunks.abort_whole(&open, frames);
            return;
        }
        open.abort(subxid);
        if open.unwritten.ranges().len() >= RANGES_PER_ABORT {
            chunks.write_aborts(&mut open, frames);
        }
        self.put(open, chunks, frames);
    }

    /// Takes a transaction out.
    pub(super) fn take(&mut self, xid: Xid) -> Option<Box<Open>> {
        let open = self.open.remove(&xid)?;
        self.unfinished -= open.unfinished();
        Some(open)
    }

    /// Takes all of them out, in order of their ids.
    pub(super) fn take_all(&mut self) -> Vec<Open> {
        let mut all: Vec<Open> = self.open.drain().map(|(_, open)| *open).collect();
        all.extend(self.block.take().map(|open| *open));
        all.sort_by_key(|open| open.xid);
        self.unfinished = 0;
        all
    }

    /// Puts a transaction back; when they all take too much, the fullest are published early
    /// (C18).
    fn put(&mut self, open: Box<Open>, chunks: &mut Chunks, frames: &mut Sequencer) {
        self.unfinished += open.unfinished();
        self.open.insert(open.xid, open);
        while self.unfinished > self.budget {
            let fullest = self.open.values_mut().max_by_key(|open| open.unfinished());
            let Some(open) = fullest else {
                return;
            };
            let before = open.unfinished();
            chunks.cut(open, frames);
            chunks.write_aborts(open, frames);
            let freed = before - open.unfinished();
            if freed == 0 {
                return;
            }
            self.unfinished -= freed;
        }
    }
}
