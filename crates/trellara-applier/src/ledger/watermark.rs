//! Up to where a lane's ledger was pruned. Below it the source order answers, not a row (C33, C41).

use tokio_postgres::Client;
use trellara_envelope::{FlowName, Halt, HaltCode, Lane, LedgerOrdinal, Lsn, SystemId};

use super::{LedgerError, lane, lsn};

const READ: &str = include_str!("../sql/read_watermark.sql");

/// The watermark of one lane for one source system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermark {
    /// Everything of this system that ends at or below was dealt with before the oldest row.
    pub end_lsn: Lsn,
    /// Ordinals at or below it have no row any more, or none with transactions.
    pub ordinal: LedgerOrdinal,
}

/// Reads the watermark; `None` when the lane has no row of this system at all.
///
/// # Errors
/// The ledger lacks its beginning and nobody wrote down that it was pruned.
pub async fn read(
    client: &Client,
    flow: &FlowName,
    lane_number: Lane,
    system: SystemId,
) -> Result<Option<Watermark>, LedgerError> {
    let rows = client
        .query(
            READ,
            &[&flow.as_str(), &lane(lane_number), &system.0.cast_signed()],
        )
        .await?;
    let pruned = rows.iter().find(|row| row.get::<_, bool>(2));
    let Some(row) = pruned.or(rows.first()) else {
        return Ok(None);
    };
    if pruned.is_none() && row.get::<_, bool>(3) {
        return Err(beheaded(flow, LedgerOrdinal(row.get(0))).into());
    }
    Ok(Some(Watermark {
        ordinal: LedgerOrdinal(row.get(0)),
        end_lsn: lsn(row.get(1)),
    }))
}

fn beheaded(flow: &FlowName, oldest: LedgerOrdinal) -> Halt {
    Halt::new(
        HaltCode::State,
        format!(
            "the oldest row of flow {flow} in trellara.applied (up to ordinal {oldest}) is not \
             where the flow began, and trellara.watermark does not say that rows before it were \
             pruned"
        ),
        "were rows of trellara.applied deleted by hand? Restore the whole target, or copy the \
         tables anew",
    )
}
