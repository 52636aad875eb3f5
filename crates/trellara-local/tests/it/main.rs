//! Real servers: they start, survive what they must, and leave nothing behind.

mod config;
mod embedded;
mod nats;
mod postgres;
mod watchdog;
