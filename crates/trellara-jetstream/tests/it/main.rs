//! This crate against real nats-servers.

mod connecting;
mod consuming;
mod contract;
mod publishing;
mod reading;
mod rig;
mod topology;
