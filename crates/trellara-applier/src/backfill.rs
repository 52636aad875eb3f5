//! The copy of what the source's tables held before the flow reached them.
//!
//! The target alone remembers what was copied ([`store`]). What a transaction of the stream means
//! for a table with a copy is decided by [`rule`], a pure function: what the copy's snapshot saw is
//! in the copy, everything else is applied, and nothing is decided by an LSN that somebody read
//! beside the rows.

pub mod rule;
pub mod store;

pub use rule::{Bearing, Copies};
pub use store::{CopyState, TableCopy};
