//! Frames that were accepted and wait to be committed together.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use trellara_envelope::{
    Body, BundleEntry, FrameDigest, Header, Lsn, StreamSequence, TransactionHash,
    TransactionIdentity,
};

use crate::checkpoint::{Checkpoint, StreamIdentity, Transport};
use crate::ledger::LedgerIdentity;
use crate::machine::{self, Delivered};

/// A run of accepted frames, and where the lane stands behind them.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Where the lane stands when all of it is committed; its ordinal is not counted yet.
    to: Checkpoint,
    keep_from: StreamSequence,
    transactions: Vec<Unit>,
    claims: Vec<Claim>,
    /// The position of the last frame that has claims, or could have had.
    claimed_to: Lsn,
    bytes: usize,
    moved: bool,
}

/// A transaction that came although its place says that it was applied. Nothing moves past it
/// before that is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) identity: TransactionIdentity,
    pub(crate) hash: TransactionHash,
    pub(crate) end_lsn: Lsn,
}

impl Claim {
    pub(crate) fn of(entry: &BundleEntry) -> Self {
        let identity = entry.identity();
        Self {
            identity,
            hash: identity.hash(),
            end_lsn: entry.end_lsn,
        }
    }
}

/// The frame that transactions came in.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) header: Header,
    pub(crate) sequence: StreamSequence,
    pub(crate) digest: FrameDigest,
}

/// One whole transaction of a bundle.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) origin: Arc<Origin>,
    pub(crate) entry: BundleEntry,
    pub(crate) identity: TransactionIdentity,
    pub(crate) hash: TransactionHash,
    pub(crate) end_lsn: Lsn,
    pub(crate) records: Bytes,
    /// The records of the same bundle in front of it: they describe tables for it as well.
    pub(crate) earlier: Bytes,
    /// Whether `earlier` was not taken just before it, so that nobody has read it.
    pub(crate) begins: bool,
    /// Where the lane stands when it is committed alone (C21).
    pub(crate) after: Checkpoint,
}

impl Unit {
    pub(crate) fn ledger_identity(&self) -> LedgerIdentity {
        LedgerIdentity {
            hash: self.hash,
            end_lsn: self.end_lsn,
        }
    }

    pub(crate) fn claim(&self) -> Claim {
        Claim {
            identity: self.identity,
            hash: self.hash,
            end_lsn: self.end_lsn,
        }
    }
}

impl Batch {
    /// Nothing yet, behind a checkpoint.
    pub(crate) fn behind(checkpoint: &Checkpoint, keep_from: StreamSequence) -> Self {
        Self {
            to: checkpoint.clone(),
            keep_from,
            transactions: Vec::new(),
            claims: Vec::new(),
            claimed_to: Lsn(0),
            bytes: 0,
            moved: false,
        }
    }

    /// Whether anything was accepted.
    pub(crate) fn moved(&self) -> bool {
        self.moved
    }

    pub(crate) fn units(&self) -> &[Unit] {
        &self.transactions
    }

    /// What waits to be confirmed.
    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Takes the claims out: they are being confirmed.
    pub(crate) fn take_claims(&mut self) -> Vec<Claim> {
        std::mem::take(&mut self.claims)
    }

    /// Whether the frame begins where the one with the last claims ended, if any wait.
    pub(crate) fn claims_go_on_with(&self, delivered: &Delivered) -> bool {
        let header = &delivered.frame.header;
        // A genesis or marker may stand at another place than the frame that it follows.
        let begins = match machine::continues_at(&delivered.frame.body) {
            Some(_) => header.position,
            None => header.follows,
        };
        self.claims.is_empty() || begins == self.claimed_to
    }

    /// The frame's transactions are said to be applied already; the first `known` are known to be.
    pub(crate) fn claim(&mut self, delivered: &Delivered, known: usize) {
        let entries = machine::entries(&delivered.frame.body);
        let claimed = entries.get(known..).unwrap_or_default();
        self.claims.extend(claimed.iter().map(Claim::of));
        self.claimed_to = delivered.frame.header.position;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the lane stands behind the batch.
    pub(crate) fn to(&self) -> &Checkpoint {
        &self.to
    }

    /// `keep_from` of the last frame.
    pub(crate) fn keep_from(&self) -> StreamSequence {
        self.keep_from
    }

    /// Takes a frame without transactions of its own to apply: progress or a duplicate.
    pub(crate) fn pass(&mut self, delivered: &Delivered, stream: &StreamIdentity) {
        let header = &delivered.frame.header;
        if header.position > self.to.end_lsn {
            self.to.end_lsn = header.position;
        }
        self.stand_behind(delivered, stream);
    }

    /// Takes the entries `range` of a bundle; the first `known` need not be claimed.
    pub(crate) fn take(
        &mut self,
        delivered: &Delivered,
        (known, range): (usize, Range<usize>),
        stream: &StreamIdentity,
    ) {
        self.push(delivered, known, range);
        self.to.end_lsn = delivered.frame.header.position;
        self.stand_behind(delivered, stream);
        if let Some(last) = self.transactions.last_mut() {
            // With its last transaction the frame is wholly applied.
            last.after = self.to.clone();
        }
    }

    /// The same when more of the frame is to come: the lane stands at `cut`, and the transport half
    /// behind the frame before (C21).
    pub(crate) fn take_until(
        &mut self,
        delivered: &Delivered,
        (known, range): (usize, Range<usize>),
        cut: Lsn,
    ) {
        let some = !range.is_empty();
        self.push(delivered, known, range);
        self.to.end_lsn = cut;
        self.moved = true;
        if let Some(last) = self.transactions.last_mut().filter(|_| some) {
            last.after = self.to.clone();
        }
    }

    fn push(&mut self, delivered: &Delivered, known: usize, range: Range<usize>) {
        let header = &delivered.frame.header;
        let all = machine::entries(&delivered.frame.body);
        let claimed = all.get(known..range.start).unwrap_or_default();
        self.claims.extend(claimed.iter().map(Claim::of));
        self.claimed_to = header.position;
        let Body::Bundle(entries) = &delivered.frame.body else {
            return;
        };
        let payload = &delivered.frame.payload;
        let origin = Arc::new(Origin {
            header: header.clone(),
            sequence: delivered.sequence,
            digest: delivered.digest,
        });
        let mut at: usize = entries[..range.start].iter().map(length).sum();
        for (index, entry) in entries[range].iter().enumerate() {
            let earlier = payload.slice(..at);
            let records = payload.slice(at..at + length(entry));
            at += length(entry);
            self.bytes += records.len();
            self.to.source = header.source;
            self.to.end_lsn = entry.end_lsn;
            self.to.transaction_end_lsn = entry.end_lsn;
            let identity = entry.identity();
            self.transactions.push(Unit {
                origin: Arc::clone(&origin),
                entry: *entry,
                identity,
                hash: identity.hash(),
                end_lsn: entry.end_lsn,
                records,
                earlier,
                begins: index == 0,
                after: self.to.clone(),
            });
        }
    }

    /// Takes a manifest: its transaction is applied from its chunks.
    pub(crate) fn take_whole(&mut self, delivered: &Delivered, end: Lsn, stream: &StreamIdentity) {
        self.to.transaction_end_lsn = end;
        self.to.end_lsn = delivered.frame.header.position;
        self.stand_behind(delivered, stream);
    }

    /// The same when the frame's position lies beyond `cut`, where the lane is to stand.
    pub(crate) fn take_whole_until(&mut self, end: Lsn, cut: Lsn) {
        self.to.transaction_end_lsn = end;
        self.to.end_lsn = cut;
        self.moved = true;
    }

    fn stand_behind(&mut self, delivered: &Delivered, stream: &StreamIdentity) {
        let header = &delivered.frame.header;
        self.to.transport = Transport {
            stream: stream.clone(),
            sequence: delivered.sequence,
            incarnation: header.incarnation,
            ordinal: header.ordinal,
            digest: delivered.digest,
        };
        // A duplicate of an older timeline does not take the position back to it: the machine
        // lets only a genesis or marker that descends from the checkpoint change it.
        self.to.source = header.source;
        self.keep_from = header.keep_from;
        self.moved = true;
    }
}

fn length(entry: &BundleEntry) -> usize {
    entry.bytes as usize
}
