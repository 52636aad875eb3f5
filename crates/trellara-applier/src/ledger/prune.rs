//! Taking away the oldest rows: by age, and never above what the stream can deliver again.

use std::time::Duration;

use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Lane, LaneEpoch, Lsn, SystemId};

use super::{lane, microseconds, pg};

const PRUNE: &str = include_str!("../sql/prune.sql");

/// Rows deleted by one statement: a few hundredths of a second.
pub const PIECE: i32 = 20_000;

/// What may go.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// The flow.
    pub flow: &'a FlowName,
    /// The lane.
    pub lane: Lane,
    /// The epoch under which we write; under another nothing is deleted.
    pub epoch: LaneEpoch,
    /// Rows younger than this by the target's clock stay.
    pub window: Duration,
    /// Rows that end above this stay: the stream may deliver their transactions again.
    pub up_to: Lsn,
    /// The system that it belongs to.
    pub system: SystemId,
}

/// What went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Rows deleted; [`PIECE`] when there may be more.
    pub rows: u64,
    /// The target's clock, microseconds since the Unix epoch.
    pub now_us: i64,
}

/// Deletes one piece and moves the watermark, together. Never the lane's newest row.
///
/// # Errors
/// Of the server; nothing was deleted then.
pub async fn prune(client: &Client, bounds: Bounds<'_>) -> Result<Pruned, Error> {
    let row = client
        .query_one(
            PRUNE,
            &[
                &bounds.flow.as_str(),
                &lane(bounds.lane),
                &bounds.epoch.0,
                &bounds.window.as_secs_f64(),
                &pg(bounds.up_to),
                &bounds.system.0.cast_signed(),
                &PIECE,
            ],
        )
        .await?;
    Ok(Pruned {
        rows: row.get::<_, i64>(0).cast_unsigned(),
        now_us: microseconds(row.get(1)),
    })
}
