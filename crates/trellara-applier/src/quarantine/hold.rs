//! Writing down what is set aside, in the target transaction in which the lane moves past it or
//! comes to stand in front of it.

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use trellara_envelope::{
    FlowName, FrameDigest, Halt, HaltCode, Incarnation, Lane, LaneEpoch, LedgerOrdinal, Lsn,
    StreamSequence, TransactionHash, TransactionIdentity,
};

use super::audit::{self, Action, Deed, Operator};
use super::frames::Recut;
use super::{Cause, HeldId, HeldReason, HeldStorage};
use crate::batch::Unit;
use crate::checkpoint::Checkpoint;
use crate::chunks::Large;
use crate::ledger::{lane as lane_number, pg, system, timeline};
use crate::trouble::Trouble;

const INSERT: &str = include_str!("../sql/insert_held.sql");
const UPDATE: &str = include_str!("../sql/update_held.sql");
const CLOSE: &str = "\
UPDATE trellara.held \
   SET state = 'replayed', claimed_epoch = NULL, claimed_at = NULL, before_ordinal = 0, \
       attempts = attempts + 1, last_tried_at = clock_timestamp(), \
       closed_at = clock_timestamp(), closed_reason = 'applied by the lane when it came again' \
 WHERE id = $1 AND state IN ('held', 'replaying')";
const OVERTAKEN: &str = "\
UPDATE trellara.held \
   SET overtaken_by = $2, overtaken_lsn = $3, overtaken_at = clock_timestamp() \
 WHERE id = $1 AND state = 'discarded' AND overtaken_by IS NULL";
const FOLLOWS: &str = "\
INSERT INTO trellara.held_dependency (held_id, on_id) SELECT $1, d FROM unnest($2::bigint[]) AS d \
 WHERE d < $1 ON CONFLICT DO NOTHING";
const STILL_BEFORE: &str = "\
UPDATE trellara.held SET before_ordinal = $4 \
 WHERE flow = $1 AND lane = $2 AND reason = 'blocking' AND state IN ('held', 'replaying') \
   AND before_ordinal = $3";
const BLOCKING: &str = "\
SELECT id, hash, before_ordinal, storage FROM trellara.held \
 WHERE flow = $1 AND lane = $2 AND reason = 'blocking' AND state IN ('held', 'replaying') \
 ORDER BY id";

/// An open transaction in front of which the lane stands, or stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blocking {
    pub(crate) id: HeldId,
    pub(crate) hash: TransactionHash,
    /// As long as the lane stands at this ordinal it is the next one.
    pub(crate) before: LedgerOrdinal,
    pub(crate) storage: HeldStorage,
}

/// The ledger has a row more and the lane stands where it stood: what it stands in front of is the
/// next one still. In the target transaction of that row.
pub(crate) async fn still_before(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    from: LedgerOrdinal,
    to: LedgerOrdinal,
) -> Result<(), tokio_postgres::Error> {
    let parameters: [&(dyn ToSql + Sync); 4] = [&flow.as_str(), &lane_number(lane), &from.0, &to.0];
    client.execute(STILL_BEFORE, &parameters).await.map(drop)
}

/// Those of a lane; more than one only when the target was restored or the stream changed.
pub(crate) async fn blocking(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
) -> Result<Vec<Blocking>, Trouble> {
    let rows = client
        .query(BLOCKING, &[&flow.as_str(), &lane_number(lane)])
        .await?;
    let read = |row: &tokio_postgres::Row| {
        Some(Blocking {
            id: HeldId(row.get(0)),
            hash: TransactionHash::from_slice(row.get(1))?,
            before: LedgerOrdinal(row.get(2)),
            storage: HeldStorage::parse(row.get(3))?,
        })
    };
    Ok(rows.iter().filter_map(read).collect())
}

/// What a held row says, beside its cause.
#[derive(Debug, Clone)]
pub(crate) struct Aside {
    pub(crate) identity: TransactionIdentity,
    pub(crate) hash: TransactionHash,
    pub(crate) end_lsn: Lsn,
    /// Whether it came in chunks.
    pub(crate) chunked: bool,
    pub(crate) sequence: StreamSequence,
    pub(crate) incarnation: Incarnation,
    pub(crate) digest: FrameDigest,
    /// Where the lane stands behind it.
    pub(crate) after: Checkpoint,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) changes: u64,
}

impl Aside {
    /// Of a transaction of a bundle, as it is kept.
    pub(crate) fn of_unit(unit: &Unit, recut: &Recut) -> Self {
        Self {
            identity: unit.identity,
            hash: unit.hash,
            end_lsn: unit.end_lsn,
            chunked: false,
            sequence: unit.origin.sequence,
            incarnation: unit.origin.header.incarnation,
            digest: unit.origin.digest,
            after: unit.after.clone(),
            frames: 1,
            bytes: recut.bytes.len() as u64,
            changes: u64::from(unit.entry.changes),
        }
    }

    /// Of a chunked one; its frames are counted when they are copied.
    pub(crate) fn of_large(large: Large<'_>, digest: FrameDigest, after: &Checkpoint) -> Self {
        let identity = large.manifest.identity();
        Self {
            identity,
            hash: identity.hash(),
            end_lsn: large.manifest.end_lsn,
            chunked: true,
            sequence: large.sequence,
            incarnation: large.incarnation,
            digest,
            after: after.clone(),
            frames: 0,
            bytes: large.manifest.bytes,
            changes: large.manifest.changes,
        }
    }
}

/// Why and how it is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holding<'a> {
    pub(crate) reason: HeldReason,
    pub(crate) storage: HeldStorage,
    pub(crate) cause: &'a Cause,
    /// 1 when it was just tried, 0 for one that was not.
    pub(crate) attempts: u64,
    /// Entries of its footprint.
    pub(crate) keys: u64,
    /// Which earlier ones it waits behind.
    pub(crate) behind: &'a [HeldId],
    /// The row that is there already, because the lane stood in front of it.
    pub(crate) existing: Option<HeldId>,
}

/// Writes held rows of one lane under its epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeper<'a> {
    pub(crate) client: &'a Client,
    pub(crate) flow: &'a FlowName,
    pub(crate) lane: Lane,
    pub(crate) epoch: LaneEpoch,
    /// Where the lane stands.
    pub(crate) stands: &'a Checkpoint,
    pub(crate) host: &'a str,
}

impl Keeper<'_> {
    /// Writes the row of one transaction, what it waits behind, and the audit; frames and keys are
    /// the caller's.
    pub(crate) async fn hold(self, aside: &Aside, holding: Holding<'_>) -> Result<HeldId, Trouble> {
        let digest = match holding.existing {
            Some(id) => audit::digest(self.client, id).await?,
            None => None,
        };
        let id = match holding.existing {
            Some(id) => self.update(id, aside, holding).await?,
            None => self.insert(aside, holding).await?,
        };
        let Some(id) = id else {
            return Err(Trouble::passing(
                "another applier has the lane now, or closed the held transaction",
            ));
        };
        if !holding.behind.is_empty() {
            let behind: Vec<i64> = holding.behind.iter().map(|id| id.0).collect();
            self.client.execute(FOLLOWS, &[&id.0, &behind]).await?;
        }
        let reason = holding.reason.as_str();
        let arguments = format!(
            r#"{{"reason": "{reason}", "sqlstate": "{}"}}"#,
            holding.cause.sqlstate
        );
        self.audit(Action::Held, id, &arguments, digest).await?;
        Ok(id)
    }

    /// What the lane stood in front of was applied by the lane itself.
    pub(crate) async fn applied(self, id: HeldId) -> Result<(), Trouble> {
        let digest = audit::digest(self.client, id).await?;
        if self.client.execute(CLOSE, &[&id.0]).await? != 1 {
            return Err(Trouble::passing(
                "the held transaction was closed by somebody else",
            ));
        }
        self.audit(Action::RetriedAtStart, id, "{}", digest).await
    }

    /// Discarded ones that touch the same were overtaken by a transaction that is applied (C46).
    pub(crate) async fn overtaken(
        self,
        ids: &[HeldId],
        (by, end_lsn): (TransactionIdentity, Lsn),
    ) -> Result<(), Trouble> {
        for id in ids {
            let digest = audit::digest(self.client, *id).await?;
            let parameters: [&(dyn ToSql + Sync); 3] = [&id.0, &by.to_string(), &pg(end_lsn)];
            if self.client.execute(OVERTAKEN, &parameters).await? == 1 {
                let arguments = format!(r#"{{"by": "{by}"}}"#);
                self.audit(Action::Overtaken, *id, &arguments, digest)
                    .await?;
            }
        }
        Ok(())
    }

    async fn audit(
        self,
        action: Action,
        id: HeldId,
        arguments: &str,
        digest: Option<[u8; 16]>,
    ) -> Result<(), Trouble> {
        let deed = Deed {
            action,
            held: Some(id),
            operator: &Operator::applier(self.host),
            arguments,
            reason: "",
            lsn: self.stands.end_lsn,
            digest,
        };
        Ok(audit::write(self.client, (self.flow, self.lane), deed).await?)
    }

    async fn insert(
        self,
        aside: &Aside,
        holding: Holding<'_>,
    ) -> Result<Option<HeldId>, tokio_postgres::Error> {
        let cause = &holding.cause.storable(self.client).await?;
        let identity = aside.identity;
        let transport = &aside.after.transport;
        let parameters: [&(dyn ToSql + Sync); 38] = [
            &self.flow.as_str(),
            &lane_number(self.lane),
            &self.epoch.0,
            &aside.hash.0.as_slice(),
            &system(identity.source),
            &timeline(identity.source),
            &pg(identity.commit_lsn),
            &pg(aside.end_lsn),
            &i64::from(identity.xid.0),
            &identity.commit_time.0,
            &holding.reason.as_str(),
            &holding.storage.as_str(),
            &aside.chunked,
            &transport.stream.name,
            &transport.stream.created,
            &signed(aside.sequence.0),
            &signed(aside.incarnation.0),
            &aside.digest.0.as_slice(),
            &self.before(holding.reason),
            &pg(aside.after.end_lsn),
            &timeline(aside.after.source),
            &signed(transport.sequence.0),
            &signed(transport.incarnation.0),
            &signed(transport.ordinal.0),
            &transport.digest.0.as_slice(),
            &signed(aside.frames),
            &signed(aside.bytes),
            &signed(aside.changes),
            &signed(holding.keys),
            &cause.sqlstate,
            &cause.message,
            &cause.detail,
            &cause.hint,
            &cause.schema,
            &cause.table,
            &cause.object,
            &signed(cause.change),
            &signed(holding.attempts),
        ];
        let row = self.client.query_opt(INSERT, &parameters).await?;
        Ok(row.map(|row| HeldId(row.get(0))))
    }

    async fn update(
        self,
        id: HeldId,
        aside: &Aside,
        holding: Holding<'_>,
    ) -> Result<Option<HeldId>, tokio_postgres::Error> {
        let cause = &holding.cause.storable(self.client).await?;
        let transport = &aside.after.transport;
        let parameters: [&(dyn ToSql + Sync); 31] = [
            &self.flow.as_str(),
            &lane_number(self.lane),
            &self.epoch.0,
            &holding.reason.as_str(),
            &holding.storage.as_str(),
            &self.before(holding.reason),
            &transport.stream.name,
            &transport.stream.created,
            &signed(aside.sequence.0),
            &signed(aside.incarnation.0),
            &aside.digest.0.as_slice(),
            &pg(aside.after.end_lsn),
            &timeline(aside.after.source),
            &signed(transport.sequence.0),
            &signed(transport.incarnation.0),
            &signed(transport.ordinal.0),
            &transport.digest.0.as_slice(),
            &cause.sqlstate,
            &cause.message,
            &cause.detail,
            &cause.hint,
            &cause.schema,
            &cause.table,
            &cause.object,
            &signed(cause.change),
            &signed(holding.attempts),
            &id.0,
            &signed(holding.keys),
            &aside.chunked,
            &signed(aside.frames),
            &signed(aside.bytes),
        ];
        let row = self.client.query_opt(UPDATE, &parameters).await?;
        Ok(row.map(|row| HeldId(row.get(0))))
    }

    fn before(self, reason: HeldReason) -> i64 {
        match reason {
            HeldReason::Blocking => self.stands.ordinal.0,
            HeldReason::Poisoned | HeldReason::Dependent => 0,
        }
    }
}

fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// Why the lane stands still in front of a held transaction.
pub(crate) fn halt(id: HeldId, transaction: &dyn std::fmt::Display, cause: &Cause) -> Halt {
    let mut reason = format!(
        "transaction {transaction} is held ({id}): {}",
        cause.message
    );
    if !cause.table.is_empty() {
        reason.push_str(&format!(" (table {}.{}", cause.schema, cause.table));
        if cause.change > 0 {
            reason.push_str(&format!(", change {}", cause.change));
        }
        reason.push(')');
    }
    if !cause.sqlstate.is_empty() {
        reason.push_str(&format!(" [{}]", cause.sqlstate));
    }
    let mut hint = format!("look at it with trellara quarantine show {id}");
    if !cause.hint.is_empty() {
        hint = format!("{}; {hint}", cause.hint);
    }
    Halt::new(
        HaltCode::ApplyFailed,
        reason,
        format!("{hint}, then replay or discard it"),
    )
}
