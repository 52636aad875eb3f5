//! What Trellara asks of the source: the publication and the slot, as facts and as things to
//! create and drop, and the replication stream with its feedback.
//!
//! This crate states facts; it decides nothing about them (that is the relay's business, rules
//! 0.4, and the program's, which turns them into findings). It changes only what it is told to change: a publication and a slot of its own. It never
//! writes a row, never changes a replica identity, never starts a stream anywhere but at the
//! slot's own position.

pub mod copy;
pub mod definition;
mod durable;
mod options;
pub mod publication;
pub mod settled;
pub mod slot;
pub mod stream;
pub mod subtransactions;

pub use options::SourceOptions;
