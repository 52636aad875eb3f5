//! This crate against real nats-servers.

mod connecting;
mod consuming;
mod contract;
mod publishing;
mod reading;
mod replicas;
mod rig;
mod topology;
