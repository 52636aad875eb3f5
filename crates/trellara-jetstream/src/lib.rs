//! What Trellara asks of NATS: topology, publish-and-wait, read, consume, trim.
//!
//! A thin layer over `async-nats` that turns its promises into ours: every wait has an end, every
//! queue has a limit, an unknown publish outcome is a value and not an error text, and nothing
//! here relies on redelivery, on a consumer's own position or on a reply that did not come.
//!
//! What this crate never does: decode frames, decide what is published next, retry a publish, or
//! create again a stream that is gone.

mod broker;
mod connect;
mod core;
mod delivery;
mod error;
mod mending;
mod options;
mod pull;
mod replies;
mod version;

pub mod account;
pub mod consume;
pub mod contract;
pub mod monitor;
pub mod publish;
pub mod read;
pub mod topology;
pub mod trim;

pub use broker::{Broker, BrokerEvent, Connection};
pub use core::{CoreMessage, CoreSubscription};
pub use error::{BrokerError, BrokerErrorKind};
pub use options::{Credentials, NatsOptions, TlsOptions};
pub use version::{ServerVersion, Support};
