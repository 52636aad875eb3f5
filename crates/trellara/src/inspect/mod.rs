//! What is in the stream, for people: frames, transactions, the records of one transaction.

mod frames;
mod records;
pub(crate) mod time;

pub(crate) use frames::{Walk, find};
pub(crate) use records::{Record, Shown, read_transaction};
