//! The applier against real servers.

mod execute;
mod flow;
mod ledger;
mod stall;
mod stream;
mod trim;
