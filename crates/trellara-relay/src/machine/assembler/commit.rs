//! What happens at a commit: the transaction is compared with what was published before, and
//! gathered into a bundle, closed as chunks, or held until the source was asked about it.

use trellara_envelope::{AbortedSet, BundleEntry, CommitTime, Halt, Lsn, TransactionIdentity, Xid};

use super::{Assembler, Between, misplaced};
use crate::machine::bundle::Current;
use crate::machine::held::Held;
use crate::machine::resent::Verdict;
use crate::machine::sequencer::Sequencer;

impl Assembler {
    pub(super) fn commit(
        &mut self,
        commit_lsn: Lsn,
        end_lsn: Lsn,
        commit_time: CommitTime,
        frames: &mut Sequencer,
    ) -> Result<(), Halt> {
        match std::mem::replace(&mut self.between, Between::Nothing) {
            Between::Nothing => return Err(misplaced()),
            Between::Skipped { xid, any } => {
                let identity = self.identity(commit_lsn, xid, commit_time);
                self.resent.committed(&identity, end_lsn, !any)?;
            }
            Between::Small(current) => {
                let identity = self.identity(commit_lsn, current.xid, commit_time);
                let empty = current.changes == 0 && current.records.is_empty();
                let verdict = self.resent.committed(&identity, end_lsn, empty)?;
                if verdict == Verdict::Keep && !empty {
                    self.gather(*current, identity, end_lsn, frames);
                }
            }
            Between::Large(open) => {
                let identity = self.identity(commit_lsn, open.xid, commit_time);
                self.resent.committed(&identity, end_lsn, false)?;
                self.flush(frames);
                self.chunks.close(*open, identity, end_lsn, frames);
            }
        }
        self.complete = self.complete.max(end_lsn);
        Ok(())
    }

    /// A streamed transaction has committed.
    pub(super) fn stream_commit(
        &mut self,
        identity: TransactionIdentity,
        end: Lsn,
        frames: &mut Sequencer,
    ) -> Result<(), Halt> {
        let mut open = self.streamed.take(identity.xid).ok_or_else(misplaced)?;
        open.promote(&mut self.known);
        let verdict = self.resent.committed(&identity, end, open.is_empty())?;
        if open.is_empty() {
            self.chunks.forget(&open);
        } else if verdict == Verdict::Drop {
            // Its chunks went out before anyone could know that it is in the stream (C20).
            self.chunks.abort_whole(&open, frames);
        } else {
            let ask = !open.subtransactions.is_empty();
            let held = Held {
                open,
                identity,
                end,
            };
            if ask {
                self.held = Some(held);
                return Ok(());
            }
            self.release(held, &AbortedSet::EMPTY, frames);
        }
        self.complete = self.complete.max(end);
        Ok(())
    }

    /// Closes a streamed transaction that has committed; `aborted` was rolled back, and nothing
    /// that was received says so.
    pub(in crate::machine) fn release(
        &mut self,
        held: Held,
        aborted: &AbortedSet,
        frames: &mut Sequencer,
    ) {
        let Held {
            mut open,
            identity,
            end,
        } = held;
        // The descriptions stay the connection's: what the source does not withdraw, it does not
        // send again.
        open.unwritten.extend(aborted.ranges().iter().copied());
        self.flush(frames);
        self.chunks.close(*open, identity, end, frames);
        self.complete = self.complete.max(end);
    }

    fn gather(
        &mut self,
        current: Current,
        identity: TransactionIdentity,
        end_lsn: Lsn,
        frames: &mut Sequencer,
    ) {
        if self.bundle.bytes() + current.bytes() > self.bundle_size {
            self.flush(frames);
        }
        let entry = BundleEntry {
            source: identity.source,
            commit_lsn: identity.commit_lsn,
            end_lsn,
            xid: identity.xid,
            commit_time: identity.commit_time,
            bytes: 0,
            changes: current.changes,
        };
        self.bundle.add(current, entry);
        if self.bundle.bytes() >= self.bundle_size {
            self.flush(frames);
        }
    }

    pub(super) fn identity(
        &self,
        commit_lsn: Lsn,
        xid: Xid,
        commit_time: CommitTime,
    ) -> TransactionIdentity {
        TransactionIdentity {
            source: self.history.source_at(commit_lsn),
            commit_lsn,
            xid,
            commit_time,
        }
    }
}
