//! Reading what tables held: one snapshot for all of them, and many sessions that read under it.
//!
//! The snapshot is an ordinary one, out of the server's own list of running transactions. (Reading
//! under the one that a new slot exports can lose rows on the source; see
//! [`trellara_postgres::settle`].) It names the transactions that it sees, so no position has to be
//! found that fits it.

mod plan;
mod read;
mod snapshot;
mod tables;

pub use plan::{BlockRange, Item, ranges};
pub use read::{ItemError, ItemReader};
pub use snapshot::{SharedSnapshot, TakeError};
pub use tables::{Leaf, TableFacts, Unfit, describe};
