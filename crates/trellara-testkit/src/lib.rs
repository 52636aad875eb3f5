//! Development only: real servers, cuttable proxies, seeded loads, and checkers that share no code
//! with what they check.

pub mod bench;
pub mod broker;
pub mod certificates;
pub mod compare;
pub mod copying;
pub mod daemon;
pub mod flow;
pub mod fresh;
pub mod ground;
pub mod handover;
pub mod judging;
pub mod kept;
pub mod large;
pub mod oracle;
pub mod poisoning;
pub mod proxy;
pub mod race;
pub mod roles;
pub mod simulation;
pub mod soak;
