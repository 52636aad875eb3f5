//! What a verify run and the applier of a lane say to each other (C53): a row of `trellara.fence`,
//! and notifications to look at it.
//!
//! 1. The run inserts the row with a cap that is not exact yet and a lease, and notifies the flow's
//!    channel ([`crate::channel`]) with [`LOOK`].
//! 2. The applier writes down what it has, applies nothing from then on whose commit record begins
//!    at the cap or beyond, and says so: `armed_at`, `armed_lsn`, its `epoch`.
//! 3. The run learns its snapshot's position, makes it the cap, and the cap exact.
//! 4. The applier comes to stand exactly there, durably, and says so: `reached_at`.
//! 5. The run takes its snapshot of the target, in which the lane's newest ledger row proves where
//!    it stands, and deletes the row.
//!
//! Each answer notifies [`answer_channel`] with the run's name. What the run writes and what tells
//! the applier of it are one statement, so that a run killed between leaves no row that nobody heard
//! of. A row whose lease is over, by the target's clock, binds nobody: the applier deletes it,
//! whether it ever stood still for it or not, and goes on by itself.

use std::time::Duration;

use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Lane, LaneEpoch, Lsn};

use crate::ledger::{self, pg};
use crate::machine::cut::Cap;

const READ: &str = include_str!("sql/read_fence.sql");
const ARMED: &str = include_str!("sql/fence_armed.sql");
const REACHED: &str = include_str!("sql/fence_reached.sql");
/// A lease that is over cannot be renewed, so that nothing is taken from anybody.
const FORGET: &str = "DELETE FROM trellara.fence \
    WHERE flow = $1 AND lane = $2 AND lease_until <= clock_timestamp()";

/// Payload of a notification on [`crate::channel`]: the lane's row has changed.
pub const LOOK: &str = "fence";

/// The channel on which an applier says that it has answered in the row; the payload is the run.
pub fn answer_channel(flow: &FlowName) -> String {
    format!("trellara_{flow}_fence")
}

/// The row of a lane, while its lease lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) run: String,
    pub(crate) cap: Cap,
    /// What is left of the lease.
    pub(crate) left: Duration,
    /// Its end, for people.
    pub(crate) until: String,
    /// Whether this epoch has said that nothing beyond the cap will be applied.
    pub(crate) armed: bool,
    /// Whether this epoch has said that the lane stands at the cap.
    pub(crate) reached: bool,
}

/// One lane's part in the protocol, under the epoch that is ours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) client: &'a Client,
    pub(crate) flow: &'a FlowName,
    pub(crate) lane: Lane,
    pub(crate) epoch: LaneEpoch,
}

impl Side<'_> {
    /// The lane's row; `None` when there is none, or its lease is over.
    pub(crate) async fn read(self) -> Result<Option<Row>, Error> {
        let (flow, lane) = (self.flow.as_str(), ledger::lane(self.lane));
        let row = self
            .client
            .query_opt(READ, &[&flow, &lane, &self.epoch.0])
            .await?;
        Ok(row.map(|row| Row {
            run: row.get(0),
            cap: Cap {
                lsn: ledger::lsn(row.get::<_, PgLsn>(1)),
                exact: row.get(2),
            },
            left: Duration::from_secs_f64(row.get::<_, f64>(3).max(0.0)),
            until: row.get(4),
            armed: row.get(5),
            reached: row.get(6),
        }))
    }

    /// Says that nothing beyond the cap will be applied; everything up to `stands` is. Returns
    /// whether the row was still there, and the lane still ours.
    pub(crate) async fn armed(self, run: &str, stands: Lsn) -> Result<bool, Error> {
        self.answer(ARMED, run, stands).await
    }

    /// Says that the lane stands at the cap, durably.
    pub(crate) async fn reached(self, run: &str, cap: Lsn) -> Result<bool, Error> {
        self.answer(REACHED, run, cap).await
    }

    async fn answer(self, sql: &str, run: &str, lsn: Lsn) -> Result<bool, Error> {
        let (flow, lane) = (self.flow.as_str(), ledger::lane(self.lane));
        let channel = answer_channel(self.flow);
        let answered = self
            .client
            .execute(
                sql,
                &[&flow, &lane, &run, &self.epoch.0, &pg(lsn), &channel],
            )
            .await?;
        Ok(answered == 1)
    }

    /// Takes a row away whose lease is over, whosever it is; returns whether there was one.
    pub(crate) async fn forget(self) -> Result<bool, Error> {
        let (flow, lane) = (self.flow.as_str(), ledger::lane(self.lane));
        let gone = self.client.execute(FORGET, &[&flow, &lane]).await?;
        Ok(gone == 1)
    }
}
