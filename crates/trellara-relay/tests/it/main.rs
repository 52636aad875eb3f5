//! The relay against real servers: what arrives in the stream, and what the slot is told.
//!
//! `cases` holds field reports by their numbers, `rules` the rules by theirs.

mod cases;
mod chain;
mod fencing;
mod members;
mod rules;
mod world;
