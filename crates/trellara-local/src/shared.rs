//! Servers that many tests share: how they are set up, and the variables in which the program
//! `with-servers` tells tests where they are.

use crate::{LocalError, NatsOptions, PostgresOptions, PostgresServer};

/// `pg_hba.conf` of servers that flows run against: the superuser comes in as it is, everybody
/// else has to prove who they are.
pub const HBA: &str = "\
local all postgres trust
host all postgres all trust
local all all scram-sha-256
host all all all scram-sha-256
";

/// Part of every password that tests give away, whole in every escaping: no log, status, metric or
/// error may ever hold it.
pub const CANARY: &str = "Canary7";

/// What the users of [`nats`] log in with.
pub const NATS_PASSWORD: &str = "p@ss:w/ord Canary7";

/// The shipped permissions, for flows of any name.
const PERMISSIONS: &str = include_str!("../../../config/nats/permissions.conf");

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
    let mut options = PostgresOptions::version(version)
        .with("max_connections", "300")
        .with("max_wal_senders", "60")
        .with("max_replication_slots", "300");
    options.hba = Some(HBA.to_owned());
    PostgresServer::start(&options)
}

/// The shared broker: its acknowledgements are fsyncs, as the daemons' defaults expect, and its
/// users are those of `config/nats/permissions.conf`. A client without credentials may do
/// everything in their account; tests act behind the flows' backs so.
#[must_use]
pub fn nats() -> NatsOptions {
    NatsOptions {
        sync_always: true,
        extra_config: permissions(),
        ..NatsOptions::default()
    }
}

/// The flow's name is a token of its own in every subject, and so is its stream's: with wildcards
/// in their places the rights of each user stay the same, for every flow.
fn permissions() -> String {
    let text: String = PERMISSIONS
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(|line| {
            let line = line
                .replace("TRELLARA_shop_COPY", "*")
                .replace("TRELLARA_shop", "*")
                .replace("trellara.shop.", "trellara.*.")
                .replace("trellara-position.shop", "trellara-position.*")
                .replace("trellara-copy.shop", "trellara-copy.*")
                .replace("trellara-copy-order.shop", "trellara-copy-order.*");
            if line.trim_start().starts_with("password:") {
                return format!("password: \"{NATS_PASSWORD}\"\n");
            }
            line + "\n"
        })
        .collect();
    let everybody = "users: [\n{ user: everything, password: everything }\n";
    text.replacen(
        "jetstream: enabled\n    users: [\n",
        &format!("jetstream: enabled\n    {everybody}"),
        1,
    ) + "no_auth_user: everything\n"
}

#[cfg(test)]
mod tests {
    #[test]
    fn permissions_name_no_flow_and_take_their_passwords() {
        let text = super::permissions();
        assert!(
            !text.contains("shop") && !text.contains("_PASSWORD"),
            "{text}"
        );
        assert_eq!(text.matches(super::NATS_PASSWORD).count(), 3, "{text}");
        assert_eq!(text.matches("{ user: everything").count(), 1, "{text}");
    }
}
