//! What becomes of a transaction that the target refused, with everything before it in: it is set
//! aside, or the lane stops in front of it.

use super::Attempt;
use crate::apply::{self, Failure, LargeAside, Part, SetAside, Source};
use crate::batch::Unit;
use crate::disposition::{self, Disposition};
use crate::execute::ApplyError;
use crate::quarantine::frames::Recut;
use crate::quarantine::hold::{self, Blocking};
use crate::quarantine::limits::Limit;
use crate::quarantine::{Cause, HeldId, HeldReason, QuarantinePolicy};
use crate::trouble::{self, Trouble};

/// What to do with one that was refused.
enum Sentence {
    /// It is none of its own fault, or nobody may decide but an operator.
    End(Trouble),
    /// The lane stops in front of it.
    Block(Cause),
    /// It is set aside, and the lane moves past it.
    Hold(Cause),
}

impl Attempt<'_> {
    /// A transaction of a bundle failed alone, row by row, at the head. Returns when it was set
    /// aside.
    pub(super) async fn refused(&mut self, unit: &Unit, failure: Failure) -> Result<(), Trouble> {
        let cause = match self.sentence(failure, &unit.identity) {
            Sentence::End(trouble) => return Err(trouble),
            Sentence::Block(cause) => return Err(self.block(unit, &cause).await?),
            Sentence::Hold(cause) => cause,
        };
        let recut = Recut::of(unit)?;
        let bytes = recut.bytes.len() as u64;
        if let Some(limit) = self.limit(bytes, 0) {
            return Err(self.block(unit, &beyond(cause, limit)).await?);
        }
        let aside = [SetAside {
            unit: 0,
            recut,
            reason: HeldReason::Poisoned,
            cause,
            attempts: 1,
            behind: Vec::new(),
        }];
        let part = Part {
            from: &self.durable,
            units: std::slice::from_ref(unit),
            aside: &aside,
            blocking: &self.quarantine.blocking,
            to: &unit.after,
            set_wise: false,
        };
        let committing = self.writer.commit(&self.target.session.client, part);
        let committed = committing
            .await
            .map_err(|failure| apply::blame(failure, &unit.identity))?;
        for id in &committed.held {
            self.say_held(*id, &unit.identity, &aside[0].cause);
        }
        self.went_in(&committed).await
    }

    /// The same of a chunked one. Returns what was committed when it was set aside.
    pub(super) async fn refused_large(
        &mut self,
        aside: LargeAside<'_>,
        failure: Failure,
    ) -> Result<apply::Committed, Trouble> {
        let identity = aside.large.manifest.identity();
        let existing = self.blocking(identity.hash());
        let client = &self.target.session.client;
        let bytes = aside.large.manifest.bytes;
        let cause = match self.sentence(failure, &identity) {
            Sentence::End(trouble) => return Err(trouble),
            Sentence::Hold(cause) => match self.limit(bytes, 0) {
                None => cause,
                Some(limit) => {
                    let cause = beyond(cause, limit);
                    return Err(self.block_large(aside, &cause).await?);
                }
            },
            Sentence::Block(cause) => return Err(self.block_large(aside, &cause).await?),
        };
        let source = Source {
            broker: self.broker,
            reader: &self.reader,
            options: self.options,
            cancel: self.cancel,
            status: self.status,
        };
        let what = (HeldReason::Poisoned, &cause, &[][..]);
        let holding = self
            .writer
            .hold_large(client, &self.durable, aside, what, existing, &source);
        let committed = holding
            .await
            .map_err(|failure| apply::blame(failure, &identity))?;
        for id in &committed.held {
            self.say_held(*id, &identity, &cause);
        }
        Ok(committed)
    }

    fn sentence(&self, failure: Failure, transaction: &dyn std::fmt::Display) -> Sentence {
        let error: ApplyError = match failure {
            Failure::Change(error) => error,
            Failure::Trouble(trouble) => return Sentence::End(trouble),
        };
        let cause = Cause::from(&error);
        match disposition::of_change(error.kind, &error.sqlstate) {
            Disposition::Quarantine => match self.options.quarantine.policy {
                QuarantinePolicy::Halt => Sentence::Block(cause),
                QuarantinePolicy::HoldDependents => Sentence::Hold(cause),
            },
            Disposition::Stop => Sentence::Block(cause),
            Disposition::Retry
            | Disposition::RetryNamed
            | Disposition::Probe
            | Disposition::HaltAndProbe
            | Disposition::Operator
            | Disposition::AskLedger => {
                Sentence::End(trouble::of_apply(&error, &transaction.to_string()))
            }
        }
    }

    /// Writes down what the lane stands in front of; the trouble that follows.
    async fn block(&mut self, unit: &Unit, cause: &Cause) -> Result<Trouble, Trouble> {
        let existing = self.blocking(unit.hash);
        let client = &self.target.session.client;
        let blocking = self
            .writer
            .block(client, &self.durable, unit, cause, existing);
        let id = blocking.await?;
        Ok(self.blocked_by(id, &unit.identity, cause))
    }

    async fn block_large(
        &mut self,
        aside: LargeAside<'_>,
        cause: &Cause,
    ) -> Result<Trouble, Trouble> {
        let identity = aside.large.manifest.identity();
        let existing = self.blocking(identity.hash());
        let client = &self.target.session.client;
        let blocking = self
            .writer
            .block_large(client, &self.durable, aside, cause, existing);
        let id = blocking.await?;
        Ok(self.blocked_by(id, &identity, cause))
    }

    fn blocked_by(
        &self,
        id: HeldId,
        transaction: &dyn std::fmt::Display,
        cause: &Cause,
    ) -> Trouble {
        // From here on nothing is tried again before somebody asks for it.
        self.tried.store(true, std::sync::atomic::Ordering::Relaxed);
        Trouble::held(hold::halt(id, transaction, cause))
    }

    /// The open one in front of which the lane stood, if it is this.
    pub(super) fn blocking(&self, hash: trellara_envelope::TransactionHash) -> Option<Blocking> {
        let mut open = self.quarantine.blocking.iter().copied();
        open.find(|open| open.hash == hash)
    }

    fn limit(&self, bytes: u64, keys: u64) -> Option<Limit> {
        let options = &self.options.quarantine;
        self.quarantine.totals.limit(options, bytes, keys)
    }

    fn say_held(&self, id: HeldId, transaction: &dyn std::fmt::Display, cause: &Cause) {
        tracing::error!(
            flow = %self.options.flow, held = %id, %transaction,
            table = format!("{}.{}", cause.schema, cause.table), change = cause.change,
            sqlstate = cause.sqlstate, error = cause.message,
            hint = format!("trellara quarantine show {id}"),
            "a transaction was set aside; the target may show a state the source never had"
        );
    }
}

/// It would be set aside, if there were room.
fn beyond(cause: Cause, limit: Limit) -> Cause {
    Cause {
        message: format!("{limit} is reached, and {}", cause.message),
        hint: "replay or discard what is held, or raise the limit".to_owned(),
        ..cause
    }
}
