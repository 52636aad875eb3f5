//! Servers on this machine: disposable ones for the demo and the tests, and the supervised broker
//! of `trellara run`.
//!
//! Everything here is synchronous and never talks SQL or NATS by itself beyond asking a server
//! whether it is up. A server started here never outlives the process that started it, whatever
//! ends that process; the one exception is the embedded broker, whose store must survive and whose
//! left-over process is adopted or ended at the next start.

mod account;
mod binaries;
pub mod embedded;
mod error;
mod nats;
mod port;
mod postgres;
mod probe;
mod process;
mod psql;
pub mod shared;
mod template;
mod watchdog;

pub use binaries::{nats_server, postgres_bin};
pub use error::LocalError;
pub use nats::{NatsOptions, NatsServer};
pub use port::free as free_port;
pub use postgres::{PostgresOptions, PostgresServer, StopMode, TlsFiles};
pub use psql::psql;
