//! What the ledger knows of places of the stream that were passed long ago: which relay's frames
//! counted there, and where the lane stood.

use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Incarnation, Lane, Lsn, StreamSequence};

use super::{lane, pg};
use crate::checkpoint::StreamIdentity;

const READ: &str = include_str!("../sql/incarnation_before.sql");

const SEQUENCE_BEFORE: &str = include_str!("../sql/sequence_before.sql");

/// The last frame of `stream` that the lane had wholly passed while it stood before `position`; `None`
/// where no row says so.
///
/// # Errors
/// Of the server.
pub async fn sequence_before(
    client: &Client,
    (flow, lane_number): (&FlowName, Lane),
    stream: &StreamIdentity,
    position: Lsn,
) -> Result<Option<StreamSequence>, Error> {
    let (flow, lane) = (flow.as_str(), lane(lane_number));
    let row = client
        .query_opt(
            SEQUENCE_BEFORE,
            &[&flow, &lane, &stream.created, &pg(position)],
        )
        .await?;
    Ok(row.map(|row| StreamSequence(row.get::<_, i64>(0).cast_unsigned())))
}

/// The incarnation of the last frame that the lane passed in `stream` before `sequence`. Reads the
/// lane's rows from the newest back to that place.
///
/// # Errors
/// Of the server.
pub async fn incarnation_before(
    client: &Client,
    (flow, lane_number): (&FlowName, Lane),
    stream: &StreamIdentity,
    sequence: StreamSequence,
) -> Result<Incarnation, Error> {
    let row = client
        .query_one(
            READ,
            &[
                &flow.as_str(),
                &lane(lane_number),
                &stream.created,
                &sequence.0.cast_signed(),
            ],
        )
        .await?;
    let incarnation: Option<i64> = row.get(0);
    // Without any row nothing is known, and every frame counts.
    Ok(Incarnation(incarnation.unwrap_or(0).cast_unsigned()))
}
