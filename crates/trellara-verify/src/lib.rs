//! The independent judge: whether both databases hold the same rows at one source position.
//!
//! It shares no code with the relay and the applier, nor with what they stand on: a judge that
//! shares the defendant's code is no judge. What it knows of the target is what its snapshot shows:
//! the newest row of the ledger names the source position that the rows beside it belong to.
//!
//! [`freeze::freeze`] gives two frozen views, [`compare()`] compares them.

mod apart;
mod catalogue;
mod compare;
mod definitions;
mod digest;
mod drill;
mod error;
pub mod freeze;
mod frozen;
mod held;
mod inventory;
mod key;
mod ledger;
mod listing;
mod load;
mod mapping;
mod measure;
mod plan;
mod pool;
mod reader;
pub mod report;
pub mod rolling;
mod select;
mod sequences;
mod shape;
pub mod store;
mod sum;
mod table;
mod tally;
mod tie;

pub use compare::{CompareOptions, Comparison, Progress, compare};
pub use error::{Side, VerifyError, VerifyErrorKind};
pub use frozen::Frozen;
pub use held::Quarantine;
pub use load::PauseLag;
pub use select::TablePattern;
