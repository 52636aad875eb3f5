//! Closing a held transaction that is not to be applied.

use serde_json::json;

use super::audit::{self, Action};
use super::frames::{self, Head};
use super::replay::{Desk, not_next, taken_over};
use super::request::End;
use super::{Held, HeldReason, HeldStorage, text};
use crate::apply::{Committed, Failure};
use crate::ledger::lane as lane_number;
use crate::trouble::Trouble;

const DISCARD: &str = "\
UPDATE trellara.held AS h \
   SET state = 'discarded', claimed_epoch = NULL, claimed_at = NULL, before_ordinal = 0, \
       closed_at = clock_timestamp(), closed_reason = $5, \
       reason = CASE h.reason WHEN 'blocking' THEN 'poisoned' ELSE h.reason END \
 WHERE h.id = $1 AND h.flow = $2 AND h.lane = $3 AND h.state IN ('held', 'replaying') \
   AND EXISTS (SELECT FROM trellara.lane AS l \
                WHERE l.flow = $2 AND l.lane = $3 AND l.epoch = $4)";

impl Desk<'_> {
    pub(super) async fn discard(
        &mut self,
        held: &Held,
    ) -> Result<(End, Option<Committed>), Trouble> {
        let blocking = held.reason == HeldReason::Blocking;
        if blocking && held.before != self.stands.ordinal {
            let (reason, hint) = not_next(held);
            return Ok((End::Refused { reason, hint }, None));
        }
        self.client.batch_execute(&self.writer.held.begin()).await?;
        let written = self.write_discard(held, blocking).await;
        match self.writer.end(self.client, written).await {
            Ok(committed) => Ok((End::Discarded, committed)),
            Err(Failure::Change(error)) => Err(Trouble::passing(error.to_string())),
            Err(Failure::Trouble(Trouble::Halted { halt, .. })) => Ok((
                End::Refused {
                    reason: halt.to_string(),
                    hint: halt.hint,
                },
                None,
            )),
            Err(Failure::Trouble(trouble)) => Err(trouble),
        }
    }

    async fn write_discard(
        &mut self,
        held: &Held,
        blocking: bool,
    ) -> Result<Option<Committed>, Failure> {
        let digest = audit::digest(self.client, held.id).await?;
        if held.storage == HeldStorage::Stream {
            self.copy(held).await?;
        }
        let [reason] = text::storable(self.client, [&self.order.reason]).await?;
        let closed = self
            .client
            .execute(
                DISCARD,
                &[
                    &held.id.0,
                    &self.flow.as_str(),
                    &lane_number(self.lane),
                    &self.writer.held.epoch.0,
                    &reason,
                ],
            )
            .await?;
        if closed != 1 {
            return Err(taken_over().into());
        }
        self.audit(
            Action::Discarded,
            held,
            json!({"blocking": blocking}),
            digest,
        )
        .await?;
        if !blocking {
            return Ok(None);
        }
        // The lane moves past it, as past progress without transactions.
        let recorded = self
            .writer
            .ledger
            .record_timed(self.client, &self.stands, &held.after, &[])
            .await?;
        Ok(Some(Committed::nothing(recorded, Vec::new())))
    }

    /// Nothing keeps it in the stream any more once the lane has moved (C47).
    async fn copy(&self, held: &Held) -> Result<(), Failure> {
        let head = Head::read(self.client, held, self.source).await?;
        if let (Some(large), Some(source)) = (head.large(), self.source) {
            frames::keep_large(self.client, held.id, (large, held.digest), source).await?;
        }
        Ok(())
    }
}
