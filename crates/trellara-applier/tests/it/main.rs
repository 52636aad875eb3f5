//! The applier against real servers.

mod execute;
mod flow;
mod lanes;
mod ledger;
mod probing;
mod reads;
mod stall;
mod stream;
mod trim;
