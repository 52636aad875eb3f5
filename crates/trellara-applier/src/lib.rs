//! Rows, dedup record and checkpoint together, or not at all.
//!
//! The applier reads whole transactions out of a JetStream stream and writes them into a target
//! PostgreSQL. The promises it keeps, and where:
//!
//! - what may be applied next is decided by the chain rule in [`machine`], a pure function;
//! - a transaction's rows and its [`ledger`] row commit in one target transaction, in which a
//!   missed compare-and-set raises an error inside the server;
//! - whether a transaction was applied is answered by the ledger alone ([`verdict`]); an identity
//!   cache in memory spares the question where it can vouch that the answer is no;
//! - only one applier commits on a lane: [`lane`] holds its lock and its epoch;
//! - while a verify run holds a lane at a position ([`fence`]), nothing beyond it is applied;
//! - the stream is acknowledged, trimmed and reported on only after that commit is durable.
//!
//! It never reads configuration files or the environment, never skips a transaction silently, and
//! never decides anything from the broker's own bookkeeping.

mod apply;
mod attempt;
pub mod backfill;
mod batch;
mod cache;
mod checkpoint;
mod chunks;
pub mod disposition;
mod execute;
pub mod fence;
pub mod lane;
pub mod ledger;
pub mod machine;
pub mod metric;
mod options;
pub mod pause;
mod plan;
mod position;
mod pulse;
pub mod quarantine;
mod report;
pub mod rewind;
mod run;
pub mod schema;
mod session;
mod status;
mod target;
mod trim;
mod trouble;
pub mod verdict;
mod watch;

pub use execute::{
    APPLY_SETTINGS, Applied, ApplyError, ApplyErrorDetails, ApplyErrorKind, Conflict, Executor,
    ExecutorOptions, Skipped,
};
pub use session::{CHECKPOINT_NOW, channel};
pub use target::{
    Catalog, DeferrableConstraint, ForeignTie, TableName, TargetColumn, TargetTable, TextReading,
    Ties, UniqueIndex, UniqueTie,
};

pub use checkpoint::{Checkpoint, StreamIdentity, Transport};
pub use options::{ApplierOptions, HaltPolicy, RoleReplica, Standby};
pub use run::run;
pub use status::{
    ApplierSnapshot, ApplierState, ApplierStatus, CopyFailed, CopySnapshot, DedupSnapshot,
    FenceSnapshot, Pending, QuarantineSnapshot,
};
pub use watch::blockers;
