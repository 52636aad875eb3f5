//! The machine against a model source and a model stream.

mod budget;
#[path = "../../tests/it/chain.rs"]
mod chain;
mod hand;
mod held;
mod resent;
mod rules;
mod shutdown;
mod simulation;
mod source;
mod stream;
