//! The applier against real servers.

mod execute;
mod flow;
mod ledger;
mod stream;
mod trim;
