//! Cutting a transaction's bytes into chunks, and closing it with a manifest or an abort frame.

use std::collections::BTreeSet;

use trellara_envelope::{
    Abort, AbortedSet, Body, Chunk, Halt, Lsn, Manifest, StreamSequence, TransactionIdentity, Xid,
};
use trellara_pgoutput::{Kind, Peek};

use super::assembler::undescribed;
use super::descriptions::{Description, Descriptions};
use super::open::Open;
use super::sequencer::{Advance, Sequencer};

/// An abort frame names at most this many ranges, 8 bytes each at most: well below any limit.
pub(super) const RANGES_PER_ABORT: usize = 2_048;

#[derive(Debug)]
pub(super) struct Chunks {
    /// A chunk is closed at this many bytes.
    pub(super) size: usize,
    /// First sequences of the open transactions, for `keep_from` (C14).
    first_sequences: BTreeSet<StreamSequence>,
    /// Transactions rolled back as a whole, with the sequence of the frame that says so: what is
    /// on their subjects below it can be purged.
    pub(super) garbage: Vec<(Xid, StreamSequence)>,
    /// The transaction closed last: what it takes in the stream, and its manifest's sequence.
    pub(super) closed: Option<(Xid, u64, StreamSequence)>,
}

impl Chunks {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            first_sequences: BTreeSet::new(),
            garbage: Vec::new(),
            closed: None,
        }
    }

    /// The lowest sequence that an open transaction needs.
    pub(super) fn keep_from(&self) -> Option<StreamSequence> {
        self.first_sequences.first().copied()
    }

    /// Adds a change, or a logical message, with the descriptions it needs.
    pub(super) fn change(
        &mut self,
        open: &mut Open,
        known: &Descriptions,
        message: &[u8],
        look: &Peek<'_>,
        frames: &mut Sequencer,
    ) -> Result<(), Halt> {
        for relation in look.relations {
            if let Some(description) = open.missing(relation, known).map_err(undescribed)? {
                self.describe(open, &description, frames);
            }
        }
        if look.kind != Kind::Logical {
            open.count(look.relations);
        }
        let length = u32::try_from(message.len()).expect("a protocol message is below 4 GiB");
        self.append(open, &length.to_be_bytes(), frames);
        self.append(open, message, frames);
        Ok(())
    }

    /// Adds a description.
    pub(super) fn describe(
        &mut self,
        open: &mut Open,
        description: &Description,
        frames: &mut Sequencer,
    ) {
        let mut bytes = Vec::new();
        description.append(&mut bytes, open.description_xid());
        self.append(open, &bytes, frames);
    }

    /// Adds bytes to the chunk being filled and cuts whenever it is full, so that a row larger
    /// than a chunk is never gathered.
    pub(super) fn append(&mut self, open: &mut Open, mut bytes: &[u8], frames: &mut Sequencer) {
        while !bytes.is_empty() {
            let room = self.size.saturating_sub(open.buffer.len());
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            open.buffer.extend_from_slice(now);
            bytes = later;
            if open.buffer.len() >= self.size {
                self.cut(open, frames);
            }
        }
    }

    /// Publishes the chunk being filled, short or not.
    pub(super) fn cut(&mut self, open: &mut Open, frames: &mut Sequencer) {
        let payload = std::mem::take(&mut open.buffer);
        if payload.is_empty() {
            return;
        }
        open.running.update(&payload);
        let body = Body::Chunk(Chunk {
            xid: open.xid,
            number: open.chunks,
            running: open.running.current(),
        });
        let sequence = frames.next_sequence();
        if open.first_sequence.is_none() {
            open.first_sequence = Some(sequence);
            self.first_sequences.insert(sequence);
        }
        let (_, stored) = frames.push(body, payload, None, self.keep_from());
        open.chunks += 1;
        open.stored += stored;
    }

    /// Names what was rolled back since the last abort frame. The first chunk goes before the
    /// first abort frame, so that the manifest's first sequence covers both.
    pub(super) fn write_aborts(&mut self, open: &mut Open, frames: &mut Sequencer) {
        if open.unwritten.is_empty() {
            return;
        }
        if open.chunks == 0 {
            self.cut(open, frames);
        }
        if open.chunks == 0 {
            return;
        }
        let unwritten = std::mem::replace(&mut open.unwritten, AbortedSet::new());
        for ranges in unwritten.ranges().chunks(RANGES_PER_ABORT) {
            let body = Body::Abort(Abort {
                xid: open.xid,
                number: open.aborts,
                whole: false,
                ranges: ranges.to_vec(),
                earlier: open.last_abort,
            });
            let (sequence, stored) = frames.push(body, Vec::new(), None, self.keep_from());
            open.aborts += 1;
            open.stored += stored;
            open.last_abort = Some(sequence);
        }
        open.aborted.extend(unwritten.ranges().iter().copied());
    }

    /// Closes a transaction that has committed: last chunk, abort frames, manifest.
    pub(super) fn close(
        &mut self,
        mut open: Open,
        identity: TransactionIdentity,
        end: Lsn,
        frames: &mut Sequencer,
    ) {
        self.cut(&mut open, frames);
        self.write_aborts(&mut open, frames);
        self.forget(&open);
        let manifest = Manifest {
            source: identity.source,
            commit_lsn: identity.commit_lsn,
            end_lsn: end,
            xid: identity.xid,
            commit_time: identity.commit_time,
            streamed: open.streamed,
            chunks: open.chunks,
            bytes: open.running.bytes(),
            first_sequence: open.first_sequence.unwrap_or_default(),
            running: open.running.current(),
            aborts: open.aborts,
            last_abort: open.last_abort,
            aborts_digest: open.aborted.digest(),
            relations: open.relation_counts(),
            changes: open.changes,
        };
        let advance = Advance {
            follows: frames.position(),
            position: end,
        };
        let body = Body::Manifest(Box::new(manifest));
        let (sequence, stored) = frames.push(body, Vec::new(), Some(advance), self.keep_from());
        self.closed = Some((open.xid, open.stored + stored, sequence));
    }

    /// Says of a transaction that its chunks are garbage; nothing when it has none.
    pub(super) fn abort_whole(&mut self, open: &Open, frames: &mut Sequencer) {
        self.forget(open);
        if open.chunks == 0 {
            return;
        }
        let body = Body::Abort(Abort {
            xid: open.xid,
            number: open.aborts,
            whole: true,
            ranges: Vec::new(),
            earlier: open.last_abort,
        });
        let (sequence, _) = frames.push(body, Vec::new(), None, self.keep_from());
        self.garbage.push((open.xid, sequence));
    }

    /// The transaction needs nothing any more.
    pub(super) fn forget(&mut self, open: &Open) {
        if let Some(first) = open.first_sequence {
            self.first_sequences.remove(&first);
        }
    }
}
