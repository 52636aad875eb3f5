//! pgoutput messages in, frames out; values are never looked at.

use trellara_envelope::{
    Body, Halt, HaltCode, Lsn, Oid, SourceHistory, StreamSequence, Xid, records,
};
use trellara_pgoutput::{Kind, Message, Peek, decode, peek};

use super::bundle::{Bundle, Current};
use super::chunks::Chunks;
use super::descriptions::Descriptions;
use super::held::Held;
use super::open::Open;
use super::resent::Resent;
use super::sequencer::{Advance, Sequencer};
use super::streamed::Streamed;

mod commit;

/// Sizes in bytes at which frames are closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// A bundle.
    pub(super) bundle: usize,
    /// A chunk.
    pub(super) chunk: usize,
    /// All unfinished chunks together.
    pub(super) unfinished: usize,
}

#[derive(Debug)]
pub(super) struct Assembler {
    pub(super) history: SourceHistory,
    bundle_size: usize,
    pub(super) known: Descriptions,
    pub(super) resent: Resent,
    bundle: Bundle,
    between: Between,
    pub(super) streamed: Streamed,
    pub(super) chunks: Chunks,
    /// End of everything complete, whether it made a frame or not.
    pub(super) complete: Lsn,
    /// A streamed transaction that has committed and about which the source is asked.
    pub(super) held: Option<Held>,
}

/// Between Begin and Commit: where a committed transaction's records go.
#[derive(Debug)]
enum Between {
    Nothing,
    Small(Box<Current>),
    /// It outgrew a bundle.
    Large(Box<Open>),
    /// It is in the stream already; `any` says whether it has any change; a logical
    /// message is none.
    Skipped {
        xid: Xid,
        any: bool,
    },
}

impl Assembler {
    pub(super) fn new(history: SourceHistory, sizes: Sizes, resent: Resent, complete: Lsn) -> Self {
        Self {
            history,
            bundle_size: sizes.bundle,
            known: Descriptions::default(),
            resent,
            bundle: Bundle::default(),
            between: Between::Nothing,
            streamed: Streamed::new(sizes.unfinished),
            chunks: Chunks::new(sizes.chunk),
            complete,
            held: None,
        }
    }

    /// Other sizes from the next frame on: the broker's limit has changed.
    pub(super) fn resize(&mut self, sizes: Sizes) {
        self.bundle_size = sizes.bundle;
        self.chunks.size = sizes.chunk;
    }

    /// Whether nothing received is still waiting for its commit, streamed transactions aside: the
    /// slot's restart position covers those, they come again whole.
    pub(super) fn is_between_transactions(&self) -> bool {
        matches!(self.between, Between::Nothing) && !self.streamed.in_block() && self.held.is_none()
    }

    /// Whether a bundle is being gathered.
    pub(super) fn is_gathering(&self) -> bool {
        !self.bundle.is_empty()
    }

    /// The committed transaction that is being received in chunks: its id and what they take.
    pub(super) fn large(&self) -> Option<(Xid, u64)> {
        match &self.between {
            Between::Large(open) => Some((open.xid, open.stored)),
            Between::Nothing | Between::Small(_) | Between::Skipped { .. } => None,
        }
    }

    /// The source has sent everything below `position`.
    pub(super) fn passed(&mut self, position: Lsn) -> Result<(), Halt> {
        self.resent.passed(position)?;
        self.complete = self.complete.max(position);
        Ok(())
    }

    /// One pgoutput message; none while a commit is held.
    pub(super) fn message(&mut self, message: &[u8], frames: &mut Sequencer) -> Result<(), Halt> {
        let in_stream = self.streamed.in_block();
        let look = peek(message, in_stream).map_err(|error| malformed(&error))?;
        match look.kind {
            Kind::Begin
            | Kind::Commit
            | Kind::StreamStart
            | Kind::StreamStop
            | Kind::StreamCommit
            | Kind::StreamAbort => self.boundary(message, frames),
            // Where a transaction came from is not kept: nothing reads it.
            Kind::Origin => Ok(()),
            Kind::Type => {
                self.known.type_message(message, in_stream);
                Ok(())
            }
            Kind::Relation => self.relation(message, &look, frames),
            Kind::Insert | Kind::Update | Kind::Delete | Kind::Truncate | Kind::Logical => {
                self.record(message, &look, frames)
            }
        }
    }

    /// Hands the gathered bundle to the sequencer.
    pub(super) fn flush(&mut self, frames: &mut Sequencer) {
        let Some(end) = self.bundle.entries.last().map(|last| last.end_lsn) else {
            return;
        };
        let bundle = std::mem::take(&mut self.bundle);
        let advance = Advance {
            follows: frames.position(),
            position: end,
        };
        frames.push(
            Body::Bundle(bundle.entries),
            bundle.payload,
            Some(advance),
            self.chunks.keep_from(),
        );
    }

    /// Writes an abort frame for every unfinished transaction that has chunks at or below `sent`,
    /// and forgets them all, gathered ones too; a restart reads them again (C12).
    pub(super) fn abort_all(&mut self, sent: StreamSequence, frames: &mut Sequencer) {
        let mut open = self.streamed.take_all();
        if let Between::Large(large) = std::mem::replace(&mut self.between, Between::Nothing) {
            open.push(*large);
        }
        self.bundle = Bundle::default();
        for open in open {
            if open.first_sequence.is_some_and(|first| first <= sent) {
                self.chunks.abort_whole(&open, frames);
            } else {
                self.chunks.forget(&open);
            }
        }
    }

    fn boundary(&mut self, message: &[u8], frames: &mut Sequencer) -> Result<(), Halt> {
        let in_stream = self.streamed.in_block();
        let message = decode(message, in_stream).map_err(|error| malformed(&error))?;
        match message {
            Message::Begin { final_lsn, xid, .. } => {
                self.between = if self.resent.skips(final_lsn) {
                    Between::Skipped { xid, any: false }
                } else {
                    Between::Small(Box::new(Current::new(xid)))
                };
                Ok(())
            }
            Message::Commit {
                commit_lsn,
                end_lsn,
                commit_time,
                ..
            } => self.commit(commit_lsn, end_lsn, commit_time, frames),
            Message::StreamStart { xid, .. } => {
                self.streamed.start(xid);
                Ok(())
            }
            Message::StreamStop => {
                self.streamed.stop(&mut self.chunks, frames);
                Ok(())
            }
            Message::StreamCommit {
                xid,
                commit_lsn,
                end_lsn,
                commit_time,
                ..
            } => {
                let identity = self.identity(commit_lsn, xid, commit_time);
                self.stream_commit(identity, end_lsn, frames)
            }
            Message::StreamAbort { xid, subxid, .. } => {
                self.streamed.abort(xid, subxid, &mut self.chunks, frames);
                Ok(())
            }
            _ => Err(misplaced()),
        }
    }

    fn relation(
        &mut self,
        message: &[u8],
        look: &Peek<'_>,
        frames: &mut Sequencer,
    ) -> Result<(), Halt> {
        let relation = look.relations.first().ok_or_else(misplaced)?;
        let description = self.known.complete(message, self.streamed.in_block());
        if let Some(open) = self.streamed.block() {
            // Inside a block it belongs to the (sub)transaction until that commits (C19).
            open.describe(
                look.xid.ok_or_else(misplaced)?,
                relation,
                description.clone(),
            );
            self.chunks.describe(open, &description, frames);
            return Ok(());
        }
        self.known.insert(relation, description.clone());
        match &mut self.between {
            Between::Small(current) => current.describe(relation, description),
            Between::Large(open) => {
                open.describe(open.xid, relation, description.clone());
                self.chunks.describe(open, &description, frames);
            }
            Between::Skipped { .. } | Between::Nothing => {}
        }
        Ok(())
    }

    /// A change, or a logical message; the latter is kept inside transactions and dropped outside
    /// of them, where it has no place in the order of commits.
    fn record(
        &mut self,
        message: &[u8],
        look: &Peek<'_>,
        frames: &mut Sequencer,
    ) -> Result<(), Halt> {
        if let Some(open) = self.streamed.block() {
            open.changed_by(look.xid);
            return self.chunks.change(open, &self.known, message, look, frames);
        }
        match &mut self.between {
            Between::Nothing if look.kind == Kind::Logical => Ok(()),
            Between::Nothing => Err(misplaced()),
            Between::Skipped { any, .. } => {
                *any |= look.kind.is_change();
                Ok(())
            }
            Between::Large(open) => self.chunks.change(open, &self.known, message, look, frames),
            Between::Small(current) => {
                if current.bytes() + message.len() > self.bundle_size {
                    return self.outgrow(message, look, frames);
                }
                for relation in look.relations {
                    if !current.need(relation, &self.known) {
                        return Err(undescribed(relation));
                    }
                }
                current.changes += u32::from(look.kind != Kind::Logical);
                records::push(&mut current.records, message);
                Ok(())
            }
        }
    }

    /// The committed transaction that is being received becomes a chunked one.
    fn outgrow(
        &mut self,
        message: &[u8],
        look: &Peek<'_>,
        frames: &mut Sequencer,
    ) -> Result<(), Halt> {
        let Between::Small(current) = std::mem::replace(&mut self.between, Between::Nothing) else {
            return Err(misplaced());
        };
        // What committed before it leaves first.
        self.flush(frames);
        let mut open = Box::new(Open::new(current.xid, false));
        let (bytes, described) = current.into_records();
        open.described = described;
        for record in records::Records::new(&bytes).flatten() {
            let look = peek(record, false).map_err(|error| malformed(&error))?;
            if look.kind.is_change() {
                open.count(look.relations);
            }
        }
        self.chunks.append(&mut open, &bytes, frames);
        self.chunks
            .change(&mut open, &self.known, message, look, frames)?;
        self.between = Between::Large(open);
        Ok(())
    }
}

/// The source sent something that its protocol does not allow.
pub(super) fn malformed(error: &trellara_pgoutput::Error) -> Halt {
    Halt::new(
        HaltCode::Config,
        format!("the source sent a message that cannot be understood: {error}"),
        "check that the slot uses pgoutput and was created without two_phase, and that the \
         server's version is supported",
    )
}

fn misplaced() -> Halt {
    Halt::new(
        HaltCode::Config,
        "the source sent a message where its protocol does not allow it",
        "check that the server's version is supported",
    )
}

/// A change of a table that was never described.
pub(super) fn undescribed(relation: Oid) -> Halt {
    Halt::new(
        HaltCode::Config,
        format!("the source sent a change of the relation with oid {relation}, never described"),
        "check that the server's version is supported",
    )
}
