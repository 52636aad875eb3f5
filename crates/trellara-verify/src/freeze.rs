//! Both databases frozen at one source position, while the flow goes on (C53).
//!
//! The fence is armed first, the slot made then: its consistent point C is what both sides stand at.
//! The source's view is the snapshot that the slot exported, read only after the settle barrier. The
//! target's view is an ordinary snapshot, taken while the applier stands still, and it proves its own
//! position: the newest row of the ledger *in that snapshot* names the position of the rows beside
//! it, because both were committed together. So nothing hangs on the lease having been kept.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trellara_envelope::{FlowName, Lane, Lsn, SystemId, Timeline};
use trellara_postgres::settle::{SettleError, Snapshot, settle};
use trellara_postgres::writers::{Who, writers};
use trellara_postgres::{ConnectOptions, ReplicationConnection, Session, SnapshotAction};

use crate::error::Side;
use crate::frozen::Frozen;
use crate::ledger::{self, Newest};
use crate::report::ServerReport;
use crate::tie;

mod error;
mod fence;
mod standing;

pub use error::FreezeError;

use error::failed;
use fence::Fence;

/// Tries to get both sides frozen; each begins with a new fence.
const TRIES: u32 = 5;
/// After a try that was in vain.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a step may take, beyond what it waits for, while the applier stands still.
const STEP: Duration = Duration::from_secs(5);
/// The same for one statement and for a lock, so that no session is left behind with either.
const STATEMENT_TIMEOUT: &str = "4s";
const LOCK_TIMEOUT: &str = "2s";
/// How long commits on the source may take to leave the proc array.
const SETTLE: Duration = Duration::from_secs(10);

/// What to freeze.
#[derive(Debug, Clone)]
pub struct FreezeOptions {
    /// The flow.
    pub flow: FlowName,
    /// The publication that the flow was set up with.
    pub publication: String,
    /// The source, as a role with REPLICATION that may read the tables.
    pub source: ConnectOptions,
    /// The target, as a role that may read the tables and write `trellara.fence`.
    pub target: ConnectOptions,
    /// The run's own name, `[a-z0-9]`.
    pub run: String,
    /// How long the applier may take to answer, and then to come to the consistent point.
    pub patience: Duration,
    /// How long the temporary slot may wait for open transactions while the applier stands still.
    pub slot_patience: Duration,
}

/// What is being waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sessions on both sides.
    Connecting,
    /// The applier's answer that it applies nothing from here on.
    AskingApplier,
    /// The temporary slot on the source, which waits for every transaction that is open there.
    MakingSlot {
        /// Which try, from 1.
        this: u32,
        /// How many tries there are.
        of: u32,
        /// Whom the last try waited for in vain.
        blockers: Vec<String>,
    },
    /// The applier, to come to the consistent point.
    Reaching {
        /// That point.
        point: Lsn,
    },
    /// Nothing any more: both are frozen, or cannot be.
    Nothing,
}

/// Two frozen views. Dropping it thaws them.
pub struct Pair {
    /// The source's.
    pub source: Frozen,
    /// The target's.
    pub target: Frozen,
    /// The position that both stand at.
    pub consistent_point: Lsn,
    /// How long the applier was held.
    pub held: Duration,
    /// Who the source is.
    pub source_server: ServerReport,
    /// Who the target is.
    pub target_server: ServerReport,
    holders: [Session; 2],
}

impl Pair {
    /// Resolves when one of the sessions that hold the snapshots has ended.
    pub async fn thawed(&self) -> Side {
        tokio::select! {
            () = self.holders[0].closed() => Side::Source,
            () = self.holders[1].closed() => Side::Target,
        }
    }
}

/// Freezes both sides. `steps` hears what is being waited for.
///
/// # Errors
/// What stood in the way; the applier goes on in every case, by itself after five seconds at the
/// latest.
pub async fn freeze(
    options: &FreezeOptions,
    steps: &(dyn Fn(Step) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<Pair, FreezeError> {
    let mut tries = 0;
    let mut blockers = Vec::new();
    loop {
        tries += 1;
        let slot = Step::MakingSlot {
            this: tries,
            of: TRIES,
            blockers: std::mem::take(&mut blockers),
        };
        // A name of its own, so that an applier that missed the end of the one before sees the next.
        let run = format!("{}_{tries}", options.run);
        match attempt(options, &run, (slot, steps), cancel).await {
            Err(error) if error.is_worth_another_try() && tries < TRIES => {
                tracing::info!(%error, tries, "freezing both sides is tried again");
                if let FreezeError::SlotBlocked { blockers: who, .. } = error {
                    blockers = who;
                }
                tokio::select! {
                    () = cancel.cancelled() => return Err(FreezeError::Cancelled),
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
            done => {
                steps(Step::Nothing);
                return done;
            }
        }
    }
}

async fn attempt(
    options: &FreezeOptions,
    run: &str,
    (slot, steps): (Step, &(dyn Fn(Step) + Send + Sync)),
    cancel: &CancellationToken,
) -> Result<Pair, FreezeError> {
    steps(Step::Connecting);
    let (source, target) = (
        named(options, &options.source),
        named(options, &options.target),
    );
    // Everything is connected before anybody stands still.
    let (brief_source, brief_target) = (brief(&source), brief(&target));
    let side = connect(Side::Source, &brief_source).await?;
    let source_holder = connect(Side::Source, &brief_source).await?;
    let mut walsender = ReplicationConnection::connect(&source)
        .await
        .map_err(FreezeError::connect(Side::Source))?;
    let mut asking = connect(Side::Target, &brief_target).await?;
    let target_holder = connect(Side::Target, &brief_target).await?;
    let identified = walsender
        .identify_system()
        .await
        .map_err(FreezeError::replication)?;
    let target_server = target_identity(&target_holder).await?;
    let asked = (identified.system, identified.timeline);
    let lanes = newest(&target_holder, &options.flow).await?;
    if lanes.is_empty() {
        return Err(FreezeError::NotSetUp);
    }
    // An applier asked to stand at another source's position would stand still in vain.
    for position in lanes.iter().filter_map(|lane| lane.at) {
        same_source(position.source, asked)?;
    }
    let (flow, publication) = (&options.flow, &options.publication);
    tie::check((&side, &target_holder), flow, publication).await?;
    let lanes = lanes.iter().map(|newest| newest.lane).collect();
    steps(Step::AskingApplier);
    let mut fence = Fence::ask(
        &mut asking,
        (&options.flow, lanes),
        run,
        identified.xlogpos,
        cancel,
    )
    .await?;
    let frozen = Freezing {
        options,
        run,
        slot,
        steps,
        side: &side,
        source_holder: &source_holder,
        target_holder: &target_holder,
        source: asked,
    }
    .through(&mut fence, walsender)
    .await;
    // A lease that cannot be given back ends by itself.
    let released = tokio::time::timeout(STEP, fence.release()).await;
    let (consistent_point, snapshots, held) = frozen?;
    released.map_err(|_| FreezeError::Slow { limit: STEP })??;
    let [source_snapshot, target_snapshot] = snapshots;
    Ok(Pair {
        source: Frozen {
            connect: source,
            snapshot: source_snapshot,
        },
        target: Frozen {
            connect: target,
            snapshot: target_snapshot,
        },
        consistent_point,
        held,
        source_server: ServerReport {
            system: identified.system,
            timeline: identified.timeline,
            version: side.server_version().to_string(),
        },
        target_server,
        holders: [source_holder, target_holder],
    })
}

/// Sessions under the run's own name, which the servers end soon after this machine is gone.
pub(crate) fn named(options: &FreezeOptions, connect: &ConnectOptions) -> ConnectOptions {
    let name = format!("trellara-verify/{}", options.run);
    let connect = connect.clone().with_application_name(&name);
    connect.with_dead_client_detection()
}

/// The same, for sessions whose statements the applier stands still for.
fn brief(connect: &ConnectOptions) -> ConnectOptions {
    let connect = connect.clone().with_parameter("lock_timeout", LOCK_TIMEOUT);
    connect.with_parameter("statement_timeout", STATEMENT_TIMEOUT)
}

async fn connect(side: Side, options: &ConnectOptions) -> Result<Session, FreezeError> {
    let session = Session::connect(options).await;
    session.map_err(FreezeError::connect(side))
}

struct Freezing<'a> {
    options: &'a FreezeOptions,
    run: &'a str,
    slot: Step,
    steps: &'a (dyn Fn(Step) + Send + Sync),
    side: &'a Session,
    source_holder: &'a Session,
    target_holder: &'a Session,
    source: (SystemId, Timeline),
}

impl Freezing<'_> {
    /// From the fence asked for to both snapshots.
    async fn through(
        &self,
        fence: &mut Fence<'_>,
        mut walsender: ReplicationConnection,
    ) -> Result<(Lsn, [String; 2], Duration), FreezeError> {
        fence.armed(self.options.patience).await?;
        let began = Instant::now();
        (self.steps)(self.slot.clone());
        let pid = walsender.pid();
        let limit = self.options.slot_patience + STEP;
        let made = fence.during(self.make_slot(&mut walsender), limit).await;
        if made.is_err() {
            // It would wait on, and the slot with it, for as long as whom it waits for.
            self.end(pid).await?;
        }
        let (point, exported) = made?;
        (self.steps)(Step::Reaching { point });
        // Before the settle barrier: where commits wait for the target, they wait for this (C10).
        fence.stand_at(point).await?;
        let source = fence
            .during(self.hold_source(&exported), SETTLE + STEP)
            .await?;
        // The holder has exported the snapshot again, so the slot can go and keeps no WAL (C50).
        drop(walsender);
        fence.reached(point, self.options.patience).await?;
        let target = fence
            .during(self.hold_target(point, fence.lanes()), STEP)
            .await?;
        Ok((point, [source, target], began.elapsed()))
    }

    /// A temporary slot: its consistent point and its snapshot.
    async fn make_slot(
        &self,
        walsender: &mut ReplicationConnection,
    ) -> Result<(Lsn, String), FreezeError> {
        let pid = walsender.pid();
        let name = format!("trellara_verify_{}", self.run);
        let create = walsender.create_logical_slot(&name, true, SnapshotAction::Export, false);
        let limit = self.options.slot_patience;
        let created = match tokio::time::timeout(limit, create).await {
            Ok(created) => created.map_err(FreezeError::replication)?,
            Err(_) => return Err(self.blocked(pid, limit).await?),
        };
        let snapshot = created
            .snapshot
            .ok_or_else(|| FreezeError::bug("the slot came without a snapshot"))?;
        Ok((created.consistent_point, snapshot))
    }

    /// Names whom the slot waits for.
    async fn blocked(&self, pid: i32, waited: Duration) -> Result<FreezeError, FreezeError> {
        let writers = writers(self.side).await.map_err(failed(Side::Source))?;
        let others = writers.iter().filter(|writer| match writer.who {
            Who::Backend { pid: other, .. } => other != pid,
            Who::Prepared { .. } => true,
        });
        let mut blockers: Vec<String> = others.take(5).map(ToString::to_string).collect();
        if blockers.is_empty() {
            blockers.push("a transaction that cannot be seen".to_owned());
        }
        Ok(FreezeError::SlotBlocked { waited, blockers })
    }

    /// Ends the walsender.
    async fn end(&self, pid: i32) -> Result<(), FreezeError> {
        const END: &str = "SELECT pg_terminate_backend($1)";
        let ended = self.side.client.execute(END, &[&pid]).await;
        ended.map(drop).map_err(failed(Side::Source))
    }

    /// Imports the slot's snapshot, waits for the settle barrier, and exports it again.
    async fn hold_source(&self, exported: &str) -> Result<String, FreezeError> {
        let failed = failed(Side::Source);
        let holder = &self.source_holder.client;
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
            trellara_postgres::quote::literal(exported)
        );
        holder.batch_execute(&begin).await.map_err(&failed)?;
        let row = holder
            .query_one("SELECT pg_catalog.pg_current_snapshot()::text", &[])
            .await
            .map_err(&failed)?;
        let snapshot: Snapshot = row
            .get::<_, &str>(0)
            .parse()
            .map_err(|_| FreezeError::bug("a snapshot cannot be read"))?;
        settle(self.side, &snapshot, SETTLE)
            .await
            .map_err(|error| match error {
                SettleError::Server(error) => failed(error),
                other => FreezeError::NotSettled {
                    reason: other.to_string(),
                },
            })?;
        export(self.source_holder, Side::Source).await
    }

    /// Takes the target's snapshot, sees in it that it stands at the point, and exports it.
    async fn hold_target(&self, point: Lsn, lanes: &[Lane]) -> Result<String, FreezeError> {
        const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let holder = self.target_holder;
        let begun = holder.client.batch_execute(BEGIN).await;
        begun.map_err(failed(Side::Target))?;
        let seen = newest(holder, &self.options.flow).await?;
        for position in standing::all_at(point, lanes, &seen)? {
            same_source(position.source, self.source)?;
        }
        export(holder, Side::Target).await
    }
}

/// The newest row of each lane.
async fn newest(session: &Session, flow: &FlowName) -> Result<Vec<Newest>, FreezeError> {
    let newest = ledger::newest(&session.client, flow).await;
    newest.map_err(failed(Side::Target))
}

fn same_source(
    filled_from: (SystemId, Timeline),
    source: (SystemId, Timeline),
) -> Result<(), FreezeError> {
    if filled_from == source {
        return Ok(());
    }
    let ((system, timeline), (asked, asked_timeline)) = (filled_from, source);
    Err(FreezeError::OtherSource {
        reason: format!(
            "it was filled from cluster {system}, timeline {timeline}; the source is cluster \
             {asked}, timeline {asked_timeline}"
        ),
    })
}

async fn export(holder: &Session, side: Side) -> Result<String, FreezeError> {
    let row = holder
        .client
        .query_one("SELECT pg_catalog.pg_export_snapshot()", &[])
        .await
        .map_err(failed(side))?;
    Ok(row.get(0))
}

async fn target_identity(session: &Session) -> Result<ServerReport, FreezeError> {
    let row = session
        .client
        .query_one(
            "SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
                    (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())",
            &[],
        )
        .await
        .map_err(failed(Side::Target))?;
    Ok(ServerReport {
        system: SystemId(row.get::<_, i64>(0).cast_unsigned()),
        timeline: Timeline(row.get::<_, i32>(1).cast_unsigned()),
        version: session.server_version().to_string(),
    })
}
