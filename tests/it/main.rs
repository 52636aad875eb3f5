//! Black-box tests: the shipped binary against real servers.
//!
//! - `quickstart`: a real load arrives equal on the oldest and the newest server.
//! - `bare`: a machine that lacks what the servers and the build need.
//! - `bad_input`: what is found before anything is created; `damage`: what is found later.
//! - `backfill`: rows that the source holds already are copied, and handed over to the stream.
//! - `large`: one streamed transaction with kills in its middle; `records`: record keys.
//! - `faults`: each class of trouble on the target, for real, with its promised end.
//! - `stall`: what does not move turns `/readyz` red and is named.
//! - `connect`: connection strings, passwords and TLS, on every connection.
//! - `cutover`: applications go on with the target; sequences, and tables that setup creates.
//! - `durable`: what is acknowledged survives the target; `redelivery`: what comes twice.
//! - `soak`: kills of everything under load, judged by the oracle.
//! - `rollbacks`: rows that PostgreSQL sends, and of which it never says that they were undone.
//! - `dedup`: one effect whatever the identity cache holds; `rewind`: everything comes again, and
//!   nothing is written.
//! - `verify`: the judge says "equal" of what is, and finds what is not.
//! - `pause`: the target stands still because somebody wants it to.
//! - `runbook`: a page for each halt, and no page that says what is not so.
//! - `upgrade`: what an older build set up goes on.
//! - `types`, `identity`, `names`, `protocol`, `restart`: cases from the field, each a test named
//!   after its number.

#![allow(clippy::print_stderr, reason = "tests print their seeds")]

mod absences;
mod asleep;
mod backfill;
mod bad_input;
mod bare;
mod connect;
mod cutover;
mod damage;
mod dedup;
mod desk;
mod durable;
mod faults;
mod identity;
mod large;
mod matrix;
mod names;
mod narrow;
mod pause;
mod promises;
mod protocol;
mod quarantine;
mod quickstart;
mod records;
mod redelivery;
mod restart;
mod rewind;
mod rollbacks;
mod runbook;
mod scenario;
mod soak;
mod stall;
mod survive;
mod types;
mod upgrade;
mod verify;
