//! Transactions that PostgreSQL sends again after a restart, and what they prove about it.
//!
//! A slot behind the stream's tail is normal: what ends at or below the tail's position P is
//! dropped. But a source set back by a storage snapshot keeps its system id and timeline and
//! hands out the same positions again (C02), so the tail's last transaction must come by
//! unchanged whenever the slot is behind it, and nothing may come between it and P.

use trellara_envelope::{Halt, HaltCode, Lsn, TransactionIdentity};

/// The newest transaction in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastTransaction {
    /// This one.
    Known(TransactionIdentity),
    /// The stream still has its genesis frame and no transaction.
    None,
    /// It was trimmed away; nothing can be checked.
    Trimmed,
}

/// What to do with a transaction that has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    Drop,
}

#[derive(Debug)]
pub(super) struct Resent {
    through: Lsn,
    last: LastTransaction,
    expected: bool,
    /// Whether the slot was behind P at all.
    behind: bool,
    over: bool,
}

impl Resent {
    /// `through` is the tail's position P, `confirmed` the slot's S.
    pub(super) fn new(through: Lsn, confirmed: Lsn, last: LastTransaction) -> Self {
        let last = match last {
            // Positions never go back, so the flow that stands at P does not hold it: a fenced
            // writer had it on its way, it landed behind a marker and was passed over (R3).
            LastTransaction::Known(stray) if stray.commit_lsn >= through => {
                LastTransaction::Trimmed
            }
            other => other,
        };
        let expected = match last {
            LastTransaction::Known(last) => confirmed <= last.commit_lsn,
            LastTransaction::None | LastTransaction::Trimmed => false,
        };
        Self {
            through,
            last,
            expected,
            behind: confirmed < through,
            over: false,
        }
    }

    /// Whether the source still owes the proof that it is the one that wrote the stream. Until
    /// then nothing above the slot's own position may be confirmed: the slot would be moved over
    /// what was to be compared, and the next start would find nothing to object to.
    pub(super) fn is_pending(&self) -> bool {
        self.behind && !self.over
    }

    /// Whether a transaction's records need not be kept: its commit record starts below P, so it
    /// must end at or below it. A commit *at* P is a new one (B01).
    pub(super) fn skips(&self, commit_lsn: Lsn) -> bool {
        !self.over && commit_lsn < self.through
    }

    /// A transaction has committed; `empty` says that the publication has no change of it.
    pub(super) fn committed(
        &mut self,
        identity: &TransactionIdentity,
        end: Lsn,
        empty: bool,
    ) -> Result<Verdict, Halt> {
        if self.over || identity.commit_lsn >= self.through {
            self.passed(identity.commit_lsn)?;
            return Ok(Verdict::Keep);
        }
        if end > self.through {
            return Err(self.rewound(identity, "ends behind a position reached inside it"));
        }
        match self.last {
            LastTransaction::Known(last) if identity.commit_lsn == last.commit_lsn => {
                let same = (identity.xid, identity.commit_time) == (last.xid, last.commit_time);
                if !same {
                    return Err(self.rewound(identity, "is not the one published from there"));
                }
                self.expected = false;
            }
            _ if empty => {}
            LastTransaction::Known(last) if identity.commit_lsn > last.commit_lsn => {
                return Err(self.rewound(identity, "was never published"));
            }
            LastTransaction::None => return Err(self.rewound(identity, "was never published")),
            LastTransaction::Known(_) | LastTransaction::Trimmed => {}
        }
        Ok(Verdict::Drop)
    }

    /// The source has sent everything below `position`.
    pub(super) fn passed(&mut self, position: Lsn) -> Result<(), Halt> {
        if self.over || position < self.through {
            return Ok(());
        }
        self.over = true;
        match self.last {
            LastTransaction::Known(last) if self.expected => Err(Halt::new(
                HaltCode::SourceRewound,
                format!("the source no longer has transaction {last}, which is in the stream"),
                HINT,
            )),
            _ => Ok(()),
        }
    }

    fn rewound(&self, identity: &TransactionIdentity, what: &str) -> Halt {
        Halt::new(
            HaltCode::SourceRewound,
            format!(
                "transaction {identity} {what}, although the stream stands at {}",
                self.through
            ),
            HINT,
        )
    }
}

const HINT: &str = "the source was set back (a restored storage snapshot?): target and stream hold \
                    transactions that it no longer has; copy the tables again";
