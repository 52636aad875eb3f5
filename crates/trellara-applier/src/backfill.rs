//! The copy of what the source's tables held before the flow reached them.
//!
//! The target alone remembers what was copied ([`store`]). What a transaction of the stream means
//! for a table with a copy is decided by [`rule`], a pure function: what the copy's snapshot saw is
//! in the copy, everything else is applied, and nothing is decided by an LSN that somebody read
//! beside the rows.

pub mod rule;
pub(crate) mod sieve;
pub mod store;

use std::sync::Arc;

use tokio_postgres::GenericClient;
use trellara_envelope::FlowName;

pub use rule::{Bearing, Copies};
pub use store::{CopyState, TableCopy};

/// Payload of a notification on [`crate::channel`]: a row of `trellara.backfill` has changed.
pub const LOOK: &str = "backfill";

/// What the copies of a flow have to say now.
///
/// # Errors
/// The server's.
pub async fn read(
    client: &impl GenericClient,
    flow: &FlowName,
) -> Result<Arc<Copies>, tokio_postgres::Error> {
    Ok(Arc::new(Copies::of(store::read(client, flow).await?)))
}
