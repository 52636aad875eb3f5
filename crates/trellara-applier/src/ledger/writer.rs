//! Which relay's frames counted at a place of the stream that was passed long ago.

use tokio_postgres::{Client, Error};
use trellara_envelope::{FlowName, Incarnation, Lane, StreamSequence};

use super::lane;
use crate::checkpoint::StreamIdentity;

const READ: &str = include_str!("../sql/incarnation_before.sql");

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
