//! What becomes of a transaction that the target refused, with everything before it in, or that
//! waits behind one: it is set aside, or the lane stops in front of it.

use std::sync::atomic::Ordering;

use trellara_envelope::TransactionHash;

use super::Attempt;
use crate::apply::{
    self, Committed, Failure, Fates, HoldingLarge, LargeAside, Part, SetAside, Source,
};
use crate::batch::Unit;
use crate::chunks::Large;
use crate::disposition::{self, Disposition};
use crate::execute::ApplyError;
use crate::quarantine::footprint::{Hits, Standing, TooManyKeys, Touches};
use crate::quarantine::frames::Recut;
use crate::quarantine::hold::{self, Blocking};
use crate::quarantine::limits::{Limit, Totals};
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
        let (cause, holds) = match self.sentence(failure, &unit.identity) {
            Sentence::End(trouble) => return Err(trouble),
            Sentence::Block(cause) => (cause, false),
            Sentence::Hold(cause) => (cause, true),
        };
        let touches = self.touches(unit).await?;
        let recut = Recut::of(unit)?;
        let touches = match (self.room(recut.bytes.len() as u64, touches), holds) {
            (Ok(touches), true) => touches,
            (Ok(touches), false) => return Err(self.block(unit, (&cause, &touches), &[]).await?),
            (Err((touches, _)), false) => {
                return Err(self.block(unit, (&cause, &touches), &[]).await?);
            }
            (Err((touches, limit)), true) => {
                let cause = beyond(cause, limit);
                return Err(self.block(unit, (&cause, &touches), &[]).await?);
            }
        };
        let fates = Fates {
            aside: vec![SetAside {
                unit: 0,
                recut,
                reason: HeldReason::Poisoned,
                cause: cause.clone(),
                attempts: 1,
                behind: Vec::new(),
                touches,
            }],
            ..Fates::default()
        };
        let part = Part {
            from: &self.durable,
            units: std::slice::from_ref(unit),
            fates: &fates,
            blocking: &self.quarantine.blocking,
            to: &unit.after,
            set_wise: false,
        };
        let committing = self.writer.commit(&self.target.session.client, part);
        let committed = committing.await;
        let committed = self
            .settle_fates(fates, committed)
            .map_err(|failure| apply::blame(failure, &unit.identity))?;
        for id in &committed.held {
            self.say_held(*id, &unit.identity, &cause);
        }
        self.went_in(&committed).await
    }

    /// The same of a chunked one. Returns what was committed when it was set aside.
    pub(super) async fn refused_large(
        &mut self,
        aside: LargeAside<'_>,
        failure: Failure,
    ) -> Result<Committed, Trouble> {
        let identity = aside.large.manifest.identity();
        let (cause, holds) = match self.sentence(failure, &identity) {
            Sentence::End(trouble) => return Err(trouble),
            Sentence::Block(cause) => (cause, false),
            Sentence::Hold(cause) => (cause, true),
        };
        let committed = self
            .set_large_aside(aside, HeldReason::Poisoned, (cause.clone(), holds), &[])
            .await?;
        for id in &committed.held {
            self.say_held(*id, &identity, &cause);
        }
        Ok(committed)
    }

    /// A chunked one that touches what open held ones touch.
    pub(super) async fn wait_behind(
        &mut self,
        aside: LargeAside<'_>,
        behind: &[HeldId],
    ) -> Result<Committed, Trouble> {
        tracing::warn!(
            flow = %self.options.flow, transaction = %aside.large.manifest.identity(),
            "a large transaction waits behind held ones that touch the same"
        );
        let never_tried = (Cause::default(), true);
        self.set_large_aside(aside, HeldReason::Dependent, never_tried, behind)
            .await
    }

    async fn set_large_aside(
        &mut self,
        aside: LargeAside<'_>,
        reason: HeldReason,
        (cause, holds): (Cause, bool),
        behind: &[HeldId],
    ) -> Result<Committed, Trouble> {
        let identity = aside.large.manifest.identity();
        let touches = self.touches_of_large(aside.large).await?;
        let bytes = aside.large.manifest.bytes;
        let touches = match (self.room(bytes, touches), holds) {
            (Ok(touches), true) => touches,
            (Ok(touches), false) | (Err((touches, _)), false) => {
                return Err(self.block_large(aside, (&cause, &touches), behind).await?);
            }
            (Err((touches, limit)), true) => {
                let cause = beyond(cause, limit);
                return Err(self.block_large(aside, (&cause, &touches), behind).await?);
            }
        };
        let source = Source {
            broker: self.broker,
            reader: &self.reader,
            options: self.options,
            cancel: self.cancel,
            status: self.status,
        };
        let client = &self.target.session.client;
        let hold = HoldingLarge {
            reason,
            cause: &cause,
            behind,
            touches: &touches,
            existing: self.blocking(identity.hash()),
        };
        let holding = self
            .writer
            .hold_large(client, &self.durable, aside, hold, &source);
        let committed = holding
            .await
            .map_err(|failure| apply::blame(failure, &identity))?;
        let mut added = Totals::default();
        for id in &committed.held {
            let footprints = &mut self.quarantine.footprints;
            footprints.add(*id, Standing::Open, &touches);
            footprints.waits(*id, behind);
            added.add(*id, committed.applied_at_us, bytes, touches.keys());
        }
        self.quarantine.add(added);
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

    /// One that would have to wait behind held ones, and finds no room.
    pub(super) async fn block_waiting(
        &mut self,
        unit: &Unit,
        limit: Limit,
        behind: &[HeldId],
    ) -> Result<Trouble, Trouble> {
        let touches = self.touches(unit).await?.unwrap_or_else(|many| many.tables);
        let cause = beyond(Cause::default(), limit);
        self.block(unit, (&cause, &touches), behind).await
    }

    /// Writes down what the lane stands in front of; the trouble that follows.
    async fn block(
        &mut self,
        unit: &Unit,
        (cause, touches): (&Cause, &Touches),
        behind: &[HeldId],
    ) -> Result<Trouble, Trouble> {
        let existing = self.blocking(unit.hash);
        let client = &self.target.session.client;
        let blocking = self.writer.block(
            client,
            &self.durable,
            unit,
            (cause, touches, behind),
            existing,
        );
        let id = blocking.await?;
        Ok(self.blocked_by(id, &unit.identity, cause))
    }

    async fn block_large(
        &mut self,
        aside: LargeAside<'_>,
        (cause, touches): (&Cause, &Touches),
        behind: &[HeldId],
    ) -> Result<Trouble, Trouble> {
        let identity = aside.large.manifest.identity();
        let existing = self.blocking(identity.hash());
        let client = &self.target.session.client;
        let blocking = self.writer.block_large(
            client,
            &self.durable,
            aside,
            (cause, touches, behind),
            existing,
        );
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
        self.tried.store(true, Ordering::Relaxed);
        Trouble::held(hold::halt(id, transaction, cause))
    }

    /// The open one in front of which the lane stood, if it is this.
    pub(super) fn blocking(&self, hash: TransactionHash) -> Option<Blocking> {
        let mut open = self.quarantine.blocking.iter().copied();
        open.find(|open| open.hash == hash)
    }

    async fn touches(&mut self, unit: &Unit) -> Result<Result<Touches, TooManyKeys>, Trouble> {
        let client = &self.target.session.client;
        let most = self.options.quarantine.max_keys;
        let touches = self.writer.touches(client, (0, unit), most).await;
        touches.map_err(|failure| apply::blame(failure, &unit.identity))
    }

    async fn touches_of_large(
        &mut self,
        large: Large<'_>,
    ) -> Result<Result<Touches, TooManyKeys>, Trouble> {
        let source = Source {
            broker: self.broker,
            reader: &self.reader,
            options: self.options,
            cancel: self.cancel,
            status: self.status,
        };
        let client = &self.target.session.client;
        let most = self.options.quarantine.max_keys;
        let touches = self
            .writer
            .touches_of_large(client, large, most, &source)
            .await;
        touches.map_err(|failure| apply::blame(failure, &large.manifest.identity()))
    }

    /// Whom a chunked transaction touches; it is read for that only where something is held.
    pub(super) async fn hits_of(&mut self, large: Large<'_>) -> Result<Hits, Failure> {
        if self.quarantine.footprints.is_empty() {
            return Ok(Hits::default());
        }
        let source = Source {
            broker: self.broker,
            reader: &self.reader,
            options: self.options,
            cancel: self.cancel,
            status: self.status,
        };
        let client = &self.target.session.client;
        let footprints = &mut self.quarantine.footprints;
        self.writer
            .hits_of_large(client, large, footprints, &source)
            .await
    }

    /// The footprint, when there is room for one more; or as much of it as is known, and the limit.
    fn room(
        &self,
        bytes: u64,
        touches: Result<Touches, TooManyKeys>,
    ) -> Result<Touches, (Touches, Limit)> {
        let options = &self.options.quarantine;
        match touches {
            Ok(touches) => match self.quarantine.totals.limit(options, bytes, touches.keys()) {
                None => Ok(touches),
                Some(limit) => Err((touches, limit)),
            },
            Err(TooManyKeys { max_keys, tables }) => Err((tables, Limit::Keys(max_keys))),
        }
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
    let why = match cause.message.as_str() {
        "" => "it waits behind held ones that touch the same",
        message => message,
    };
    Cause {
        message: format!("{limit} is reached, and {why}"),
        hint: "replay or discard what is held, or raise the limit".to_owned(),
        ..cause
    }
}
