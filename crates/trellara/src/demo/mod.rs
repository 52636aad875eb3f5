//! The whole thing on this machine, while its parts are being killed.
//!
//! Relay, applier and broker are three processes, as in a real installation; both PostgreSQL
//! servers are fresh and disposable. The judge at the end shares no code with the applier.

mod chaos;
mod copied;
mod daemons;
mod duplicates;
mod judge;
mod place;
mod story;
mod workload;

pub(crate) use story::{Plan, Verdict, play};
