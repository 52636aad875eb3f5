//! What an operator and the applier of a lane say to each other about standing still: a row of
//! `trellara.pause`, and notifications to look at it.
//!
//! 1. The operator's command inserts the row and notifies the flow's channel ([`crate::channel`])
//!    with [`LOOK`]. From here on the pause is in force, across restarts of everybody.
//! 2. The applier writes down what it has, applies nothing from then on, and says so in the row:
//!    `stands_lsn`, its epoch; it notifies [`answer_channel`]. Another applier reads the row when it
//!    takes the lane, before it applies anything.
//! 3. The row is deleted, with another [`LOOK`]: the applier goes on where it stood.
//!
//! An answer counts only together with the lane's present epoch: an earlier one was given by an
//! applier that is gone.

use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Lane, LaneEpoch, Lsn};

use crate::ledger::{self, pg};

const READ: &str = "\
SELECT p.reason, p.operator, p.host, \
       to_char(p.paused_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), \
       extract(epoch FROM clock_timestamp() - p.paused_at)::float8, \
       CASE WHEN p.stands_epoch = l.epoch THEN p.stands_lsn END \
  FROM trellara.pause AS p \
  LEFT JOIN trellara.lane AS l ON l.flow = p.flow AND l.lane = p.lane \
 WHERE p.flow = $1 AND p.lane = $2";
const STANDS: &str = include_str!("sql/pause_stands.sql");

/// Payload of a notification on [`crate::channel`]: the lane's row was added or is gone.
pub const LOOK: &str = "pause";

/// The channel on which an applier says that it stands still; the payload is the lane.
pub fn answer_channel(flow: &FlowName) -> String {
    format!("trellara_{flow}_pause")
}

/// Why a lane stands still.
#[derive(Debug, Clone, PartialEq)]
pub struct Pause {
    /// In the operator's words.
    pub reason: String,
    /// Who wanted it.
    pub operator: String,
    /// Where they were.
    pub host: String,
    /// Since when, by the target's clock: `2026-11-30T21:00:00Z`.
    pub since: String,
    /// How long that is, seconds.
    pub seconds: f64,
    /// Where the lane stands, once its present applier has said that it does.
    pub stands: Option<Lsn>,
}

/// A lane's pause; `None` when there is none.
///
/// # Errors
/// When the server refuses; 42P01 where the target's state is older than pauses.
pub async fn read(client: &Client, flow: &FlowName, lane: Lane) -> Result<Option<Pause>, Error> {
    let row = client
        .query_opt(READ, &[&flow.as_str(), &ledger::lane(lane)])
        .await?;
    Ok(row.map(|row| Pause {
        reason: row.get(0),
        operator: row.get(1),
        host: row.get(2),
        since: row.get(3),
        seconds: row.get(4),
        stands: row.get::<_, Option<PgLsn>>(5).map(ledger::lsn),
    }))
}

/// Says under our epoch that the lane stands still, everything up to `stands` applied and durable.
/// When the row is gone, or the lane is no longer ours, nothing is said.
pub(crate) async fn stands(
    client: &Client,
    (flow, lane): (&FlowName, Lane),
    epoch: LaneEpoch,
    stands: Lsn,
) -> Result<(), Error> {
    let channel = answer_channel(flow);
    let (flow, lane) = (flow.as_str(), ledger::lane(lane));
    client
        .execute(STANDS, &[&flow, &lane, &epoch.0, &pg(stands), &channel])
        .await
        .map(drop)
}
