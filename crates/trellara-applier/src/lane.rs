//! Who may apply on a lane: its lock, its epoch, its holder.
//!
//! Two locks, because they answer two questions. The *holder* lock belongs to the session for as
//! long as it lives: a second applier waits for it as a standby. The *apply* lock is held in
//! shared mode by every apply transaction and taken exclusively once on connect, before the epoch
//! is raised: so a predecessor's transaction that is still open has ended, one way or the other,
//! before the verdict is read (C32).

mod holder;

use std::fmt;

use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use trellara_envelope::{FlowName, Halt, HaltCode, Lane, LaneEpoch, Lsn, SourceId};
use xxhash_rust::xxh3::xxh3_64;

use crate::ledger::{self, lane as lane_number, pg, system, timeline};
use crate::options::Standby;
use crate::status::ApplierStatus;
use crate::trouble::Trouble;

pub use self::holder::holder;

/// What `setup` writes down before it creates anything, and completes afterwards (C52).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowIntent {
    /// How far setup came.
    pub state: FlowState,
    /// The slot's name.
    pub slot: String,
    /// The publication's name.
    pub publication: String,
    /// The stream's name.
    pub stream: String,
    /// Where the slot began, and on which timeline; `None` until it exists.
    pub start: Option<(SourceId, Lsn)>,
}

/// How far the setup of a flow came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowState {
    /// Written down before anything was created.
    Intended,
    /// Slot, stream and genesis exist.
    Ready,
    /// Being removed.
    Removing,
}

impl FlowState {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            FlowState::Intended => "intended",
            FlowState::Ready => "ready",
            FlowState::Removing => "removing",
        }
    }
}

/// Writes down what a flow is about to be, or has become. A later state replaces an earlier one;
/// epoch and holder stay.
pub async fn record_intent(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
    intent: &FlowIntent,
) -> Result<(), tokio_postgres::Error> {
    let start = intent.start;
    client
        .execute(
            "INSERT INTO trellara.lane AS l (flow, lane, state, slot, publication, stream, \
                 consistent_point, source_system, source_timeline) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
             ON CONFLICT (flow, lane) DO UPDATE SET \
                 state = excluded.state, slot = excluded.slot, \
                 publication = excluded.publication, stream = excluded.stream, \
                 consistent_point = excluded.consistent_point, \
                 source_system = excluded.source_system, \
                 source_timeline = excluded.source_timeline, changed_at = clock_timestamp()",
            &[
                &flow.as_str(),
                &lane_number(lane),
                &intent.state.as_str(),
                &intent.slot,
                &intent.publication,
                &intent.stream,
                &start.map(|(_, lsn)| pg(lsn)),
                &start.map(|(source, _)| system(source)),
                &start.map(|(source, _)| timeline(source)),
            ],
        )
        .await
        .map(drop)
}

/// What was written down about a flow; `None` when it was never set up here.
pub async fn read_intent(
    client: &Client,
    flow: &FlowName,
    lane: Lane,
) -> Result<Option<FlowIntent>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT state, slot, publication, stream, consistent_point, source_system, \
                    source_timeline \
               FROM trellara.lane WHERE flow = $1 AND lane = $2",
            &[&flow.as_str(), &lane_number(lane)],
        )
        .await?;
    Ok(row.map(|row| {
        let start: Option<(tokio_postgres::types::PgLsn, i64, i64)> = row
            .get::<_, Option<_>>(4)
            .map(|lsn| (lsn, row.get(5), row.get(6)));
        FlowIntent {
            state: match row.get(0) {
                "ready" => FlowState::Ready,
                "removing" => FlowState::Removing,
                _ => FlowState::Intended,
            },
            slot: row.get(1),
            publication: row.get(2),
            stream: row.get(3),
            start: start.map(|(lsn, system, timeline)| {
                (ledger::source(system, timeline), ledger::lsn(lsn))
            }),
        }
    }))
}

/// Who takes the lane.
#[derive(Debug, Clone, Copy)]
pub struct Claimant<'a> {
    /// The flow.
    pub flow: &'a FlowName,
    /// The lane.
    pub lane: Lane,
    /// A random number of this process as a UUID, so that it knows its own earlier sessions.
    pub instance: &'a str,
    /// Who to name to others: host and process.
    pub name: &'a str,
}

/// A lane that is ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The epoch under which we write.
    pub epoch: LaneEpoch,
    /// The advisory lock that each apply transaction takes in shared mode.
    pub apply_lock: i64,
}

impl Held {
    /// The statements that open an apply transaction.
    pub fn begin(&self) -> String {
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock_shared({})",
            self.apply_lock
        )
    }
}

/// Takes the lane for this session: waits for its holder, then raises the epoch.
pub(crate) async fn take(
    client: &Client,
    who: Claimant<'_>,
    standby: Standby,
    cancel: &CancellationToken,
    status: &ApplierStatus,
) -> Result<Held, Trouble> {
    holder::wait(client, who, standby, cancel, status).await?;
    raise_epoch(client, who).await
}

/// The lane as it is, its lock free and its epoch not raised: for tests of appliers that write in
/// turn.
pub(crate) async fn join(client: &Client, who: Claimant<'_>) -> Result<Held, Trouble> {
    let row = client
        .query_one(
            "SELECT epoch FROM trellara.lane WHERE flow = $1 AND lane = $2",
            &[&who.flow.as_str(), &lane_number(who.lane)],
        )
        .await?;
    Ok(Held {
        epoch: LaneEpoch(row.get(0)),
        apply_lock: lock_key(who.flow.as_str(), who.lane, "apply"),
    })
}

/// The second half of taking a lane; alone, it fences whoever holds it. For tools that must stop
/// every applier at once, and for tests.
pub async fn fence(client: &Client, who: Claimant<'_>) -> Result<Held, Halt> {
    match raise_epoch(client, who).await {
        Ok(held) => Ok(held),
        Err(Trouble::Halted { halt, .. }) => Err(halt),
        Err(Trouble::Passing(reason) | Trouble::Disturbed { reason, .. }) => {
            Err(Halt::new(HaltCode::Fenced, reason, "try again"))
        }
        Err(Trouble::Cancelled) => Err(Halt::new(HaltCode::Fenced, "cancelled", "try again")),
    }
}

async fn raise_epoch(client: &Client, who: Claimant<'_>) -> Result<Held, Trouble> {
    let apply_lock = apply_lock(who.flow.as_str(), who.lane);
    client
        .batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '30s'")
        .await?;
    let raised = raise_in_transaction(client, who, apply_lock).await;
    match raised {
        Ok(Some(epoch)) => {
            client.batch_execute("COMMIT").await?;
            Ok(Held { epoch, apply_lock })
        }
        Ok(None) => {
            client.batch_execute("ROLLBACK").await?;
            Err(Trouble::probe(Halt::new(
                HaltCode::Config,
                format!("flow {} is not set up in this target", who.flow),
                "run trellara setup",
            )))
        }
        Err(error) => {
            // A lost connection rolls back by itself; the first error is the one that matters.
            let _ = client.batch_execute("ROLLBACK").await;
            Err(error.into())
        }
    }
}

async fn raise_in_transaction(
    client: &Client,
    who: Claimant<'_>,
    apply_lock: i64,
) -> Result<Option<LaneEpoch>, tokio_postgres::Error> {
    client
        .execute("SELECT pg_advisory_xact_lock($1)", &[&apply_lock])
        .await?;
    let key: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&who.flow.as_str(), &lane_number(who.lane)];
    let row = client
        .query_opt(
            "SELECT FROM trellara.lane \
              WHERE flow = $1 AND lane = $2 AND state = 'ready' FOR UPDATE",
            &key,
        )
        .await?;
    if row.is_none() {
        return Ok(None);
    }
    let row = client
        .query_one(
            "UPDATE trellara.lane SET epoch = epoch + 1, holder_pid = pg_backend_pid(), \
                    holder_started = (SELECT s.backend_start FROM pg_stat_activity AS s \
                                       WHERE s.pid = pg_backend_pid()), \
                    holder_instance = $3::text::uuid, holder_name = $4, \
                    taken_at = clock_timestamp(), changed_at = clock_timestamp() \
              WHERE flow = $1 AND lane = $2 RETURNING epoch",
            &[key[0], key[1], &who.instance, &who.name],
        )
        .await?;
    Ok(Some(LaneEpoch(row.get(0))))
}

/// The lock that apply transactions of a lane hold in shared mode.
pub(crate) fn apply_lock(flow: &str, lane: impl fmt::Display) -> i64 {
    lock_key(flow, lane, "apply")
}

fn lock_key(flow: &str, lane: impl fmt::Display, what: &str) -> i64 {
    xxh3_64(format!("trellara:{flow}:{lane}:{what}").as_bytes()).cast_signed()
}
