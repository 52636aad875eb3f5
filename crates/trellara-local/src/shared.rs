//! Servers that many tests share: how they are set up, and the variables in which the program
//! `with-servers` tells tests where they are.

use crate::{LocalError, NatsOptions, PostgresOptions, PostgresServer};

/// The two servers of a pair, as the variables name them.
pub const SIDES: [&str; 2] = ["SOURCE", "TARGET"];
/// Names the shared broker's client URL.
pub const NATS_VARIABLE: &str = "TRELLARA_TEST_NATS";
/// Names the shared broker's monitoring URL.
pub const NATS_MONITOR_VARIABLE: &str = "TRELLARA_TEST_NATS_MONITOR";

/// The variable with the superuser's connection string of a shared server.
#[must_use]
pub fn postgres_variable(version: u32, side: &str) -> String {
    format!("TRELLARA_TEST_POSTGRES_{version}_{side}")
}

/// Starts a server with room for many tests at once.
pub fn start_postgres(version: u32) -> Result<PostgresServer, LocalError> {
    let options = PostgresOptions::version(version)
        .with("max_connections", "300")
        .with("max_wal_senders", "60")
        .with("max_replication_slots", "300");
    PostgresServer::start(&options)
}

/// The shared broker: its acknowledgements are fsyncs, as the daemons' defaults expect.
#[must_use]
pub fn nats() -> NatsOptions {
    NatsOptions {
        sync_always: true,
        ..NatsOptions::default()
    }
}
