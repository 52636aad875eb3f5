//! Black-box tests: the shipped binary against real servers.
//!
//! - `quickstart`: a real load arrives equal on the oldest and the newest server.
//! - `large`: one streamed transaction with kills in its middle; `records`: record keys.
//! - `bad_input`: what is found before anything is created; `damage`: what is found later.
//! - `types`, `identity`, `names`, `protocol`, `restart`: cases from the field, each a test named
//!   after its number.

#![allow(clippy::print_stderr, reason = "tests print their seeds")]

mod absences;
mod bad_input;
mod damage;
mod identity;
mod large;
mod names;
mod protocol;
mod quickstart;
mod records;
mod restart;
mod scenario;
mod types;
