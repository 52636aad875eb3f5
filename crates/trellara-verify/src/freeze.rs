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
use trellara_postgres::{ConnectOptions, ReplicationConnection, Session, SnapshotAction};

use crate::error::Side;
use crate::frozen::Frozen;
use crate::report::ServerReport;

mod error;
mod fence;

pub use error::FreezeError;

use error::failed;
use fence::{Fence, lane_number};

/// Tries to get both sides frozen; each begins with a new fence.
const TRIES: u32 = 5;
/// After a try that was in vain.
const PAUSE: Duration = Duration::from_millis(500);
/// How long commits on the source may take to leave the proc array.
const SETTLE: Duration = Duration::from_secs(10);

/// What to freeze.
#[derive(Debug, Clone)]
pub struct FreezeOptions {
    /// The flow.
    pub flow: FlowName,
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

/// Freezes both sides.
///
/// # Errors
/// What stood in the way; the applier goes on in every case, by itself after five seconds at the
/// latest.
pub async fn freeze(
    options: &FreezeOptions,
    cancel: &CancellationToken,
) -> Result<Pair, FreezeError> {
    let mut tries = 0;
    loop {
        tries += 1;
        // A name of its own, so that an applier that missed the end of the one before sees the next.
        let run = format!("{}_{tries}", options.run);
        match attempt(options, &run, cancel).await {
            Err(error) if error.is_worth_another_try() && tries < TRIES => {
                tracing::info!(%error, tries, "freezing both sides is tried again");
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn attempt(
    options: &FreezeOptions,
    run: &str,
    cancel: &CancellationToken,
) -> Result<Pair, FreezeError> {
    let name = format!("trellara verify {}", options.run);
    let (source, target) = (
        options.source.clone().with_application_name(&name),
        options.target.clone().with_application_name(&name),
    );
    // Everything is connected before anybody stands still.
    let side = Session::connect(&source)
        .await
        .map_err(FreezeError::connect(Side::Source))?;
    let source_holder = Session::connect(&source)
        .await
        .map_err(FreezeError::connect(Side::Source))?;
    let mut walsender = ReplicationConnection::connect(&source)
        .await
        .map_err(FreezeError::connect(Side::Source))?;
    let mut asking = Session::connect(&target)
        .await
        .map_err(FreezeError::connect(Side::Target))?;
    let target_holder = Session::connect(&target)
        .await
        .map_err(FreezeError::connect(Side::Target))?;
    let identified = walsender
        .identify_system()
        .await
        .map_err(FreezeError::replication)?;
    let target_server = target_identity(&target_holder).await?;
    let asked = (identified.system, identified.timeline);
    // An applier asked to stand at another source's position would stand still in vain.
    for (system, timeline) in filled_from(&target_holder, &options.flow).await? {
        same_source((system, timeline), asked)?;
    }
    let mut fence = Fence::ask(&mut asking, &options.flow, run, identified.xlogpos, cancel).await?;
    let frozen = Freezing {
        options,
        run,
        side: &side,
        source_holder: &source_holder,
        target_holder: &target_holder,
        source: asked,
    }
    .through(&mut fence, walsender)
    .await;
    let released = fence.release().await;
    let (consistent_point, snapshots, held) = frozen?;
    released?;
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

struct Freezing<'a> {
    options: &'a FreezeOptions,
    run: &'a str,
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
        let (point, exported) = fence.during(self.slot(&mut walsender)).await?;
        // Before the settle barrier: where commits wait for the target, they wait for this (C10).
        fence.stand_at(point).await?;
        let source = fence.during(self.hold_source(&exported)).await?;
        // The holder has exported the snapshot again, so the slot can go and keeps no WAL (C50).
        drop(walsender);
        fence.reached(point, self.options.patience).await?;
        let target = fence.during(self.hold_target(fence.lanes(), point)).await?;
        Ok((point, [source, target], began.elapsed()))
    }

    /// A temporary slot: its consistent point and its snapshot.
    async fn slot(
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

    /// Names whom the slot waits for, and ends the walsender, which would wait on.
    async fn blocked(&self, pid: i32, waited: Duration) -> Result<FreezeError, FreezeError> {
        // Whoever lacks pg_read_all_stats sees that a transaction is open and not since when.
        const WHO: &str = "\
            SELECT format('pid %s (%s, %s, open for %s)', pid, \
                          coalesce(nullif(application_name, ''), 'unnamed'), \
                          coalesce(state, 'unknown'), \
                          coalesce(date_trunc('second', clock_timestamp() - xact_start)::text, \
                                   'an unknown time')) \
              FROM pg_catalog.pg_stat_activity \
             WHERE backend_xid IS NOT NULL AND pid <> $1 ORDER BY xact_start LIMIT 5";
        let failed = failed(Side::Source);
        let rows = self
            .side
            .client
            .query(WHO, &[&pid])
            .await
            .map_err(&failed)?;
        self.side
            .client
            .execute("SELECT pg_terminate_backend($1)", &[&pid])
            .await
            .map_err(&failed)?;
        let mut blockers: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        if blockers.is_empty() {
            blockers.push("a transaction that cannot be seen (a prepared one?)".to_owned());
        }
        Ok(FreezeError::SlotBlocked { waited, blockers })
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
    async fn hold_target(&self, lanes: &[Lane], point: Lsn) -> Result<String, FreezeError> {
        const NEWEST: &str = "\
            SELECT a.end_lsn::text, a.source_system, a.source_timeline \
              FROM trellara.applied AS a WHERE a.flow = $1 AND a.lane = $2 \
             ORDER BY a.first_ordinal DESC LIMIT 1";
        let failed = failed(Side::Target);
        let holder = &self.target_holder.client;
        holder
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await
            .map_err(&failed)?;
        for lane in lanes {
            let number = lane_number(*lane)?;
            let row = holder
                .query_opt(NEWEST, &[&self.options.flow.as_str(), &number])
                .await
                .map_err(&failed)?;
            let found: Option<Lsn> = row
                .as_ref()
                .and_then(|row| row.get::<_, &str>(0).parse().ok());
            if found != Some(point) {
                return Err(FreezeError::Elsewhere {
                    lane: *lane,
                    found,
                    wanted: point,
                });
            }
            if let Some(row) = row {
                same_source(of_row(&row, 1), self.source)?;
            }
        }
        export(self.target_holder, Side::Target).await
    }
}

/// Where each lane's newest row of the ledger comes from.
async fn filled_from(
    session: &Session,
    flow: &FlowName,
) -> Result<Vec<(SystemId, Timeline)>, FreezeError> {
    const NEWEST: &str = "\
        SELECT DISTINCT ON (a.lane) a.source_system, a.source_timeline \
          FROM trellara.applied AS a WHERE a.flow = $1 ORDER BY a.lane, a.first_ordinal DESC";
    let set_up: bool = session
        .client
        .query_one("SELECT to_regclass('trellara.applied') IS NOT NULL", &[])
        .await
        .map_err(failed(Side::Target))?
        .get(0);
    if !set_up {
        return Err(FreezeError::NotSetUp);
    }
    let rows = session
        .client
        .query(NEWEST, &[&flow.as_str()])
        .await
        .map_err(failed(Side::Target))?;
    Ok(rows.iter().map(|row| of_row(row, 0)).collect())
}

/// Cluster and timeline as the ledger keeps them.
fn of_row(row: &tokio_postgres::Row, at: usize) -> (SystemId, Timeline) {
    (
        SystemId(row.get::<_, i64>(at).cast_unsigned()),
        Timeline(u32::try_from(row.get::<_, i64>(at + 1)).unwrap_or_default()),
    )
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
