//! The machine against a model source and a model stream.

#[path = "../../tests/it/chain.rs"]
mod chain;
mod rules;
mod simulation;
mod source;
