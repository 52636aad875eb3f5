//! The applier against real servers.

mod backfill;
mod conflicts;
mod copies;
mod dedup;
mod desk;
mod execute;
mod fence;
mod flow;
mod footprint;
mod lanes;
mod ledger;
mod pause;
mod probing;
mod prune;
mod quarantine;
mod reads;
mod rewind;
mod stall;
mod states;
mod stream;
mod trim;
mod upgrade;
