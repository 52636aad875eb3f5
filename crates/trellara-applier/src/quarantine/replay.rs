//! Applying or closing held transactions: the desk, as whoever holds the lane works it.
//!
//! A replay is a target transaction like any other (A1): rows, a ledger row of its own for the held
//! identity, the closing of the held row and the audit commit together or not at all. Before it one
//! small transaction claims the row, so that whoever looks sees that it is being tried; a claim of
//! an earlier epoch of the lane is nobody's.

use std::time::Duration;

use serde_json::json;
use tokio_postgres::Client;
use trellara_envelope::{FlowName, Lane, LedgerOrdinal};
use trellara_pgoutput::ChangeReader;

use super::audit::{self, Action, Deed};
use super::effects::Effects;
use super::footprint::{self, Tester, Unreadable};
use super::frames::Head;
use super::hold;
use super::order;
use super::request::{End, Item, Order, Task};
use super::skipped::Recorder;
use super::{Cause, Held, HeldId, HeldReason, HeldState, store, text};
use crate::apply::{Committed, Failure, Source, Writer};
use crate::backfill::sieve::Sieve;
use crate::checkpoint::Checkpoint;
use crate::disposition::{self, Disposition};
use crate::execute::Executor;
use crate::ledger::probe::{Asked, Prober};
use crate::ledger::{LedgerIdentity, lane as lane_number, pg};
use crate::trouble::Trouble;

/// No ordinal: look in the whole ledger.
const NOWHERE: LedgerOrdinal = LedgerOrdinal(-1);
/// What passes by itself is tried this often before the operator is told.
const TRIES: u32 = 5;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(300);

const CLAIM: &str = "\
UPDATE trellara.held AS h \
   SET state = 'replaying', claimed_epoch = $4, claimed_at = clock_timestamp() \
 WHERE h.id = $1 AND h.flow = $2 AND h.lane = $3 \
   AND (h.state IN ('held', 'discarded') OR h.state = 'replaying' AND h.claimed_epoch <= $4) \
   AND EXISTS (SELECT FROM trellara.lane AS l \
                WHERE l.flow = $2 AND l.lane = $3 AND l.epoch = $4)";
const CLOSE: &str = "\
UPDATE trellara.held \
   SET state = 'replayed', claimed_epoch = NULL, claimed_at = NULL, before_ordinal = 0, \
       attempts = attempts + 1, last_tried_at = clock_timestamp(), \
       closed_at = clock_timestamp(), closed_reason = $3 \
 WHERE id = $1 AND state = 'replaying' AND claimed_epoch = $2";
const FAILED: &str = "\
UPDATE trellara.held \
   SET state = CASE WHEN closed_at IS NULL THEN 'held' ELSE 'discarded' END, \
       claimed_epoch = NULL, claimed_at = NULL, \
       attempts = attempts + 1, last_tried_at = clock_timestamp(), \
       sqlstate = $3, message = $4, detail = $5, hint = $6, schema_name = $7, table_name = $8, \
       object = $9, failed_change = $10 \
 WHERE id = $1 AND state = 'replaying' AND claimed_epoch = $2";
/// Discarded ones that this one waited behind, or that it touches, are overtaken by it (C46).
const OVERTAKES: &str = "\
UPDATE trellara.held AS o \
   SET overtaken_by = $2, overtaken_lsn = $3, overtaken_at = clock_timestamp() \
 WHERE o.state = 'discarded' AND o.overtaken_by IS NULL AND o.id < $1 \
   AND (o.id = ANY ($4) OR \
        EXISTS (SELECT FROM trellara.held_dependency AS d WHERE d.held_id = $1 AND d.on_id = o.id)) \
RETURNING o.id";
/// Whether there is one that it could overtake.
const DISCARDED: &str = "\
SELECT EXISTS (SELECT FROM trellara.held \
                WHERE flow = $1 AND lane = $2 AND id < $3 AND state = 'discarded' \
                  AND overtaken_by IS NULL)";
const OURS: &str = "\
SELECT a.arguments ->> 'changes' FROM trellara.audit AS a \
 WHERE a.held_id = $1 AND a.action = $2 AND a.arguments ->> 'request' = $3 LIMIT 1";

/// Works an order off on one session that holds the lane.
pub(crate) struct Desk<'a> {
    pub(crate) client: &'a Client,
    pub(crate) writer: &'a mut Writer,
    pub(crate) flow: &'a FlowName,
    pub(crate) lane: Lane,
    /// The stream, for what is in it alone.
    pub(crate) source: Option<&'a Source<'a>>,
    /// Where the lane stands.
    pub(crate) stands: Checkpoint,
    pub(crate) order: &'a Order,
    /// Names the order: it may be begun again after a lost connection, and what it did before is
    /// its own.
    pub(crate) token: &'a str,
}

/// What one step did.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) item: Item,
    /// What was committed behind the checkpoint, if anything was.
    pub(crate) committed: Option<Committed>,
}

impl Desk<'_> {
    /// Takes one of them. What the lane stands behind afterwards is the caller's to learn.
    ///
    /// # Errors
    /// What ends the session or the lane; everything else is the item's end.
    pub(crate) async fn take(&mut self, id: HeldId) -> Result<Step, Trouble> {
        let Some(held) = store::get(self.client, self.flow, self.lane, id).await? else {
            let transaction = String::new();
            let end = End::Unknown;
            return Ok(Step {
                item: Item {
                    id,
                    transaction,
                    end,
                },
                committed: None,
            });
        };
        let (end, committed) = match (self.order.task, held.state) {
            (Task::Replay | Task::Discard, HeldState::Replayed) => {
                (self.was_replayed(id).await?, None)
            }
            (Task::Discard, HeldState::Discarded) => (self.was_discarded(id).await?, None),
            (Task::Replay, HeldState::Held | HeldState::Replaying | HeldState::Discarded) => {
                self.replay(&held).await?
            }
            (Task::Discard, HeldState::Held | HeldState::Replaying) => self.discard(&held).await?,
        };
        if let Some(committed) = &committed {
            self.stands = committed.checkpoint.clone();
        }
        tracing::info!(
            flow = %self.flow, held = %id, transaction = %held.identity, end = end.as_str(),
            operator = %self.order.operator.name, "the desk has taken a held transaction"
        );
        let transaction = held.identity.to_string();
        Ok(Step {
            item: Item {
                id,
                transaction,
                end,
            },
            committed,
        })
    }

    async fn was_replayed(&self, id: HeldId) -> Result<End, Trouble> {
        let done = self.done_before(id, Action::Replayed).await?;
        Ok(match (self.order.task, done) {
            (Task::Replay, Some(changes)) => End::Replayed { changes },
            (Task::Replay | Task::Discard, _) => End::AlreadyReplayed,
        })
    }

    async fn was_discarded(&self, id: HeldId) -> Result<End, Trouble> {
        let done = self.done_before(id, Action::Discarded).await?;
        Ok(match done {
            Some(_) => End::Discarded,
            None => End::AlreadyDiscarded,
        })
    }

    /// Whether this very order did it, before it was begun again; with its changes.
    async fn done_before(&self, id: HeldId, action: Action) -> Result<Option<u64>, Trouble> {
        let row = self
            .client
            .query_opt(OURS, &[&id.0, &action.as_str(), &self.token])
            .await?;
        Ok(row.map(|row| {
            let changes: Option<&str> = row.get(0);
            changes.and_then(|text| text.parse().ok()).unwrap_or(0)
        }))
    }

    async fn replay(&mut self, held: &Held) -> Result<(End, Option<Committed>), Trouble> {
        if let Some(refused) = self.out_of_order(held).await? {
            return Ok((refused, None));
        }
        self.claim(held).await?;
        let head = match Head::read(self.client, held, self.source).await {
            Ok(head) => head,
            Err(Trouble::Halted { halt, .. }) => {
                let end = self.failed(held, refused_by_us(&halt)).await?;
                return Ok((end, None));
            }
            Err(trouble) => return Err(trouble),
        };
        let tried = match self.touched_discarded(held, &head).await {
            Ok(touched) => self.try_until_verdict(held, (&head, &touched)).await,
            Err(failure) => Err(failure),
        };
        match tried {
            Ok(committed) => {
                let changes = committed.changes;
                Ok((End::Replayed { changes }, Some(committed)))
            }
            Err(Failure::Change(error)) => {
                let end = self.failed(held, Cause::from(&error)).await?;
                Ok((end, None))
            }
            Err(Failure::Trouble(Trouble::Halted { halt, .. })) => {
                let end = self.failed(held, refused_by_us(&halt)).await?;
                Ok((end, None))
            }
            Err(Failure::Trouble(trouble)) => Err(trouble),
        }
    }

    /// Why it must not be applied now.
    async fn out_of_order(&self, held: &Held) -> Result<Option<End>, Trouble> {
        if held.reason == HeldReason::Blocking && held.before != self.stands.ordinal {
            let (reason, hint) = not_next(held);
            return Ok(Some(End::Refused { reason, hint }));
        }
        let behind = order::waits_behind(self.client, held.id).await?;
        let mut refused = order::out_of_order(held, &behind, self.order.force);
        if refused.is_none() {
            refused = self.in_ledger(held).await?;
        }
        Ok(refused.map(|(reason, hint)| End::Refused { reason, hint }))
    }

    /// Why one is not applied that is in already, whatever its row says.
    async fn in_ledger(&self, held: &Held) -> Result<Option<(String, String)>, Trouble> {
        let prober = Prober::prepare(self.client, self.flow, self.lane).await?;
        let asked = Asked {
            hash: held.hash,
            end_lsn: held.end_lsn,
            system: held.identity.source.system,
        };
        let found = prober.probe(self.client, &[asked], NOWHERE).await?;
        Ok(found.ordinals.get(&held.hash).map(|ordinal| {
            (
                format!("STATE: the ledger says that it was applied (ordinal {ordinal})"),
                "was trellara.applied or trellara.held changed by hand, or restored in part? What \
                 is in is closed with trellara quarantine discard"
                    .to_owned(),
            )
        }))
    }

    async fn claim(&self, held: &Held) -> Result<(), Trouble> {
        let epoch = self.writer.held.epoch.0;
        let claimed = self
            .client
            .execute(
                CLAIM,
                &[
                    &held.id.0,
                    &self.flow.as_str(),
                    &lane_number(self.lane),
                    &epoch,
                ],
            )
            .await?;
        match claimed {
            1 => Ok(()),
            _ => Err(taken_over()),
        }
    }

    /// Set-wise, then row by row for the verdict; what passes by itself a few times more.
    async fn try_until_verdict(
        &mut self,
        held: &Held,
        head: (&Head, &[HeldId]),
    ) -> Result<Committed, Failure> {
        let mut set_wise = true;
        let mut tries = 0;
        loop {
            let failure = match self.try_once(held, head, set_wise).await {
                Ok(committed) => return Ok(committed),
                Err(failure) => failure,
            };
            let alive = !self.client.is_closed();
            match failure.disposition() {
                Some(disposition) if set_wise && disposition::blames_a_transaction(disposition) => {
                    set_wise = false;
                }
                Some(Disposition::Retry | Disposition::RetryNamed) if alive && tries < TRIES => {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Some(_) | None => return Err(failure),
            }
        }
    }

    async fn try_once(
        &mut self,
        held: &Held,
        head: (&Head, &[HeldId]),
        set_wise: bool,
    ) -> Result<Committed, Failure> {
        let begun = std::time::Instant::now();
        self.client.batch_execute(&self.writer.held.begin()).await?;
        let written = self.write(held, head, set_wise).await;
        let mut committed = self.writer.end(self.client, written).await?;
        committed.seconds = begun.elapsed().as_secs_f64();
        Ok(committed)
    }

    async fn write(
        &mut self,
        held: &Held,
        (head, touched): (&Head, &[HeldId]),
        set_wise: bool,
    ) -> Result<Committed, Failure> {
        let mut effects = Effects::default();
        let mut recorder = Recorder::new((self.flow, self.lane), held.identity, held.end_lsn);
        let sieve = Sieve::of(&self.writer.copies, &held.identity);
        let mut executor = self.writer.executor(self.client, set_wise);
        executor.sift(sieve);
        let (client, source) = (self.client, self.source);
        let changes = apply(
            &mut executor,
            client,
            head,
            source,
            &mut effects,
            &mut recorder,
        )
        .await?;
        drop(executor);
        let (host, stands) = (&self.order.operator.host, self.stands.end_lsn);
        let ruled = recorder.audit(client, host, stands).await;
        let ruled = ruled.map_err(Trouble::from)?;
        let digest = audit::digest(self.client, held.id).await?;
        let to = match held.reason {
            HeldReason::Blocking => &held.after,
            HeldReason::Poisoned | HeldReason::Dependent => &self.stands,
        };
        let identity = LedgerIdentity {
            hash: held.hash,
            end_lsn: held.end_lsn,
        };
        let recorded = self
            .writer
            .ledger
            .record_timed(self.client, &self.stands, to, &[identity])
            .await?;
        if held.reason != HeldReason::Blocking {
            let (from, to) = (self.stands.ordinal, recorded.checkpoint.ordinal);
            hold::still_before(self.client, (self.flow, self.lane), from, to).await?;
        }
        let why = match self.order.reason.as_str() {
            "" => "replayed",
            reason => reason,
        };
        let [why] = text::storable(self.client, [why]).await?;
        let epoch = self.writer.held.epoch.0;
        let closed = self
            .client
            .execute(CLOSE, &[&held.id.0, &epoch, &why])
            .await?;
        if closed != 1 {
            return Err(taken_over().into());
        }
        self.overtakes(held, touched).await?;
        let arguments = json!({"changes": changes, "forced": held.overtaken.is_some()});
        self.audit(Action::Replayed, held, arguments, digest)
            .await?;
        Ok(Committed {
            identities: vec![held.hash],
            transactions: 1,
            changes,
            ruled,
            ..Committed::nothing(recorded, Vec::new())
        })
    }

    /// The discarded ones before it whose footprint it touches. Its bytes are read once more for it,
    /// where there are any such.
    async fn touched_discarded(
        &mut self,
        held: &Held,
        head: &Head,
    ) -> Result<Vec<HeldId>, Failure> {
        let (client, lane) = (self.client, lane_number(self.lane));
        let row = client
            .query_one(DISCARDED, &[&self.flow.as_str(), &lane, &held.id.0])
            .await?;
        if !row.get::<_, bool>(0) {
            return Ok(Vec::new());
        }
        let Writer {
            catalog,
            replica,
            copies,
            ..
        } = &mut *self.writer;
        let target = (&mut *catalog, *replica);
        let footprints = footprint::load(client, target, self.flow, self.lane).await;
        let footprints = footprints.map_err(Trouble::from)?;
        let mut tester = Tester::new(client, catalog, *replica, &footprints)
            .sifting(Sieve::of(copies, &held.identity));
        let mut pieces = head.bytes(client, self.source).await?;
        let mut reader = ChangeReader::new(head.streamed(), head.aborted());
        while let Some(piece) = pieces.next().await? {
            reader.feed(piece);
            tester
                .read(&mut reader)
                .await
                .map_err(|error| match error {
                    Unreadable::Records(error) => Failure::from(head.unreadable(&error)),
                    Unreadable::Change(error) => Failure::Change(error),
                })?;
        }
        pieces.finish()?;
        Ok(tester.finish().discarded)
    }

    /// What was discarded before it is overtaken by it.
    async fn overtakes(&self, held: &Held, touched: &[HeldId]) -> Result<(), Failure> {
        let by = held.identity.to_string();
        let touched: Vec<i64> = touched.iter().map(|id| id.0).collect();
        let rows = self
            .client
            .query(OVERTAKES, &[&held.id.0, &by, &pg(held.end_lsn), &touched])
            .await?;
        for row in rows {
            let arguments = json!({"by": held.id.0});
            let id = HeldId(row.get(0));
            self.audit_of(Action::Overtaken, id, arguments, None)
                .await?;
        }
        Ok(())
    }

    /// It is held as before, and says why it was refused the last time.
    async fn failed(&mut self, held: &Held, cause: Cause) -> Result<End, Trouble> {
        self.client.batch_execute(&self.writer.held.begin()).await?;
        let written = self.write_failure(held, &cause).await;
        let ended = self.writer.end(self.client, written).await;
        match ended {
            Ok(()) => Ok(End::Failed { cause }),
            Err(Failure::Trouble(trouble)) => Err(trouble),
            Err(Failure::Change(error)) => Err(Trouble::passing(error.to_string())),
        }
    }

    async fn write_failure(&self, held: &Held, cause: &Cause) -> Result<(), Failure> {
        let digest = audit::digest(self.client, held.id).await?;
        let cause = cause.storable(self.client).await?;
        let back = self
            .client
            .execute(
                FAILED,
                &[
                    &held.id.0,
                    &self.writer.held.epoch.0,
                    &cause.sqlstate,
                    &cause.message,
                    &cause.detail,
                    &cause.hint,
                    &cause.schema,
                    &cause.table,
                    &cause.object,
                    &cause.change.cast_signed(),
                ],
            )
            .await?;
        if back != 1 {
            return Err(taken_over().into());
        }
        let arguments = json!({"sqlstate": cause.sqlstate, "change": cause.change});
        self.audit(Action::ReplayFailed, held, arguments, digest)
            .await
    }

    pub(super) async fn audit(
        &self,
        action: Action,
        held: &Held,
        arguments: serde_json::Value,
        digest: Option<[u8; 16]>,
    ) -> Result<(), Failure> {
        self.audit_of(action, held.id, arguments, digest).await
    }

    async fn audit_of(
        &self,
        action: Action,
        id: HeldId,
        mut arguments: serde_json::Value,
        digest: Option<[u8; 16]>,
    ) -> Result<(), Failure> {
        if let Some(fields) = arguments.as_object_mut() {
            fields.insert("request".to_owned(), json!(self.token));
            fields.insert("all".to_owned(), json!(self.order.ids.is_none()));
            fields.insert("force".to_owned(), json!(self.order.force));
        }
        let deed = Deed {
            action,
            held: Some(id),
            operator: &self.order.operator,
            arguments: &arguments.to_string(),
            reason: &self.order.reason,
            lsn: self.stands.end_lsn,
            digest,
        };
        Ok(audit::write(self.client, (self.flow, self.lane), deed).await?)
    }
}

/// Applies all of a held transaction, and waits until every change has been counted.
pub(crate) async fn apply(
    executor: &mut Executor<'_>,
    client: &Client,
    head: &Head,
    source: Option<&Source<'_>>,
    effects: &mut Effects,
    recorder: &mut Recorder<'_>,
) -> Result<u64, Failure> {
    let mut pieces = head.bytes(client, source).await?;
    let mut reader = ChangeReader::new(head.streamed(), head.aborted());
    loop {
        let piece = match pieces.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(trouble) => {
                // What was sent before may have failed, and be the reason for this.
                executor.drain().await.map_err(Failure::Change)?;
                return Err(trouble.into());
            }
        };
        if source.is_some_and(|source| source.cancel.is_cancelled()) {
            return Err(Trouble::Cancelled.into());
        }
        reader.feed(piece);
        while let Some(change) = reader
            .next_change()
            .map_err(|error| head.unreadable(&error))?
        {
            if executor.keeps(&change.message, change.relations) {
                effects.count(&change.message, change.relations);
            }
            executor
                .apply_message(&change.message, change.relations)
                .await
                .map_err(Failure::Change)?;
        }
        let skipped = executor.take_skipped().await.map_err(Failure::Change)?;
        recorder
            .take(client, skipped)
            .await
            .map_err(Trouble::from)?;
    }
    pieces.finish()?;
    reader.finish().map_err(|error| head.unreadable(&error))?;
    Ok(executor.flush().await.map_err(Failure::Change)?.changes)
}

pub(crate) fn refused_by_us(halt: &trellara_envelope::Halt) -> Cause {
    Cause {
        message: halt.to_string(),
        hint: halt.hint.clone(),
        ..Cause::default()
    }
}

pub(super) fn not_next(held: &Held) -> (String, String) {
    (
        format!(
            "the lane does not stand in front of {} any more: source, stream or target were set \
             back since it was held",
            held.identity
        ),
        "let the applier run: it closes what it applies itself".to_owned(),
    )
}

pub(super) fn taken_over() -> Trouble {
    Trouble::passing("another applier has the lane now, or closed the held transaction")
}

impl From<&crate::execute::ApplyError> for Cause {
    fn from(error: &crate::execute::ApplyError) -> Self {
        Self {
            sqlstate: error.sqlstate.clone(),
            message: error.message.clone(),
            // A text of PostgreSQL holds no zero byte.
            detail: error.detail.0.replace('\0', ""),
            hint: error.hint.clone(),
            schema: error.schema.clone(),
            table: error.table.clone(),
            object: error.object.clone().unwrap_or_default(),
            change: error.change_number,
        }
    }
}
