//! Black-box tests: the shipped binary against real servers.
//!
//! - `quickstart`: a real load arrives equal on the oldest and the newest server.
//! - `types`, `identity`, `names`, `protocol`, `restart`: cases from the field, each a test named
//!   after its number.

#![allow(clippy::print_stderr, reason = "tests print their seeds")]

mod absences;
mod identity;
mod names;
mod protocol;
mod quickstart;
mod restart;
mod scenario;
mod types;
