//! How we talk to any PostgreSQL: connection strings, TLS, ordinary and replication connections.
//!
//! There is one way to a server: [`ConnectOptions::parse`] gives a connection string libpq's
//! meaning, and one connect path turns it into a socket, a TLS session and an authenticated
//! backend, whatever the connection is for afterwards. So a setting that protects SQL protects
//! the replication stream too. This crate never reads environment variables, knows nothing of
//! flows, and states facts about errors ([`sqlstate`]) without deciding what follows from them.

mod certificate;
mod connect;
mod conninfo;
mod error;
mod fault;
mod login;
mod options;
mod passfile;
pub mod position;
pub mod quote;
mod replay;
mod replication;
mod resolve;
mod service;
mod session;
pub mod settle;
mod silence;
mod socket;
pub mod sqlstate;
mod startup;
pub mod stragglers;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod verifier;
mod wire;
pub mod writers;

pub use error::{ConnectError, ConnectErrorKind, ConnectStringError, QueryError};
pub use fault::{Fault, fault};
pub use options::{ConnectOptions, DEAD_CLIENT_SETTINGS, Environment, Host, SESSION_SETTINGS};
pub use position::insert_position;
pub use replication::{CreatedSlot, IdentifySystem, ReplicationConnection, Row, SnapshotAction};
pub use session::{CancelHandle, Notification, ServerVersion, Session};
pub use silence::Silence;
pub use stream::{CopyBoth, CopyReader, CopyWriter, ServerMessage};
