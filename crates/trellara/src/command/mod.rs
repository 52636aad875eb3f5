//! One file for each command.

pub(crate) mod applier;
pub(crate) mod backfill;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cutover;
pub(crate) mod demo;
pub(crate) mod inspect;
pub(crate) mod man;
pub(crate) mod pause;
pub(crate) mod quarantine;
pub(crate) mod relay;
pub(crate) mod remove;
pub(crate) mod resume;
pub(crate) mod rewind;
pub(crate) mod run;
pub(crate) mod setup;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod verify;
pub(crate) mod wait;
