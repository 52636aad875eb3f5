//! The executor against real servers: SQL runs on a source database, its pgoutput messages go
//! through the executor into a target database, and both are compared byte for byte.

mod conflicts;
mod constraints;
mod identity;
mod places;
mod refusals;
mod runs;
mod types;
pub(crate) mod world;
