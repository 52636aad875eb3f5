//! The machine against a model source and a model stream.

mod budget;
#[path = "../../tests/it/chain.rs"]
mod chain;
mod rules;
mod simulation;
mod source;
