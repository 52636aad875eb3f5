//! The commit of a streamed transaction waits until the source has said which of its
//! subtransactions were rolled back.
//!
//! PostgreSQL (15 to 18 at least) streams a subtransaction, and never its rollback, when it had
//! spilled more than 4096 changes of it: restoring them leaves none in memory, and
//! `ReorderBufferTruncateTXN` marks as streamed only what has some. It spills what it may not
//! stream yet: a value out of line or an INSERT … ON CONFLICT of which only a part was decoded,
//! and all that lies below the slot's position. The spilled changes may be of tables that are not
//! published, so nothing that is received tells. But the source's commit log does: a rollback is
//! in there before the transaction commits.
//!
//! What comes behind the commit waits here, uninterpreted; it is no more than what was read
//! together with it, because nothing is read meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use trellara_envelope::{AbortedSet, Halt, Lsn, TransactionIdentity};

use super::open::Open;
use super::{Command, Machine, Phase, Restart};

/// A streamed transaction that has committed and has no manifest yet.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) open: Box<Open>,
    pub(super) identity: TransactionIdentity,
    pub(super) end: Lsn,
}

/// Messages that came behind a held commit.
#[derive(Debug, Default)]
pub(super) struct Behind(VecDeque<Vec<u8>>);

impl Machine {
    /// Puts a message aside while a commit is held.
    pub(super) fn put_aside(&mut self, payload: &[u8]) -> bool {
        let holds = self.assembler.held.is_some();
        if holds {
            self.behind.0.push_back(payload.to_vec());
        }
        holds
    }

    /// Asks about the commit that has just become held, if one has.
    pub(super) fn ask_subtransactions(&self, out: &mut Vec<Command>) {
        if let Some(held) = &self.assembler.held {
            out.push(Command::AskSubtransactions {
                xid: held.identity.xid,
                asked: held.open.subtransactions.to_ranges(),
            });
        }
    }

    /// The source's word, or why there is none.
    pub(super) fn subtransactions(
        &mut self,
        now: Duration,
        answer: Result<AbortedSet, String>,
        out: &mut Vec<Command>,
    ) -> Result<(), Halt> {
        let Some(held) = self.assembler.held.take() else {
            return Ok(());
        };
        match answer {
            Ok(aborted) => self.assembler.release(held, &aborted, &mut self.frames),
            Err(reason) => {
                let xid = held.identity.xid;
                self.end(
                    Restart {
                        reason: format!(
                            "the source does not say which subtransactions of {xid} were rolled \
                             back ({reason}); large transactions are read after their commit"
                        ),
                        streaming_off: true,
                    },
                    out,
                );
                return Ok(());
            }
        }
        while self.phase == Phase::Streaming && self.assembler.held.is_none() {
            let Some(payload) = self.behind.0.pop_front() else {
                break;
            };
            self.copy_data(now, &payload, out)?;
        }
        self.gulp_end(now, out);
        Ok(())
    }
}
