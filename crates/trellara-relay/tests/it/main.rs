//! The relay against real servers: what arrives in the stream, and what the slot is told.
//!
//! `copy`, `copy_doubt` and `copy_tree` hold the copy; `cases` holds field reports by their numbers, `rules` the rules by theirs.

mod cases;
mod chain;
mod copy;
mod copy_doubt;
mod copy_tree;
mod copying;
mod fencing;
mod members;
mod rules;
mod world;
