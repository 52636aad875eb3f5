//! Sessions on source and target for commands.

use trellara_applier::{Checkpoint, ledger};
use trellara_envelope::{Lane, SourceHistory};
use trellara_postgres::{ConnectOptions, ReplicationConnection, Session, fault};
use trellara_source::SourceOptions;

use crate::config::Config;
use crate::exit::{Exit, Failure};

/// The source as relay and commands use it.
pub(crate) fn source_options(config: &Config) -> SourceOptions {
    let mut options = SourceOptions::new(&config.flow, config.source.connect.clone());
    options.slot.clone_from(&config.source.slot);
    options.publication.clone_from(&config.source.publication);
    options
}

/// The target as applier and commands use it.
pub(crate) fn target_options(config: &Config) -> ConnectOptions {
    let name = format!("trellara-{}", config.flow);
    config.target.connect.clone().with_application_name(&name)
}

/// A session on the source.
pub(crate) async fn source(config: &Config) -> Result<Session, Failure> {
    let session = source_options(config).session().await;
    session.map_err(|error| Failure::from(error).doing("cannot use the source"))
}

/// A session on the target.
pub(crate) async fn target(config: &Config) -> Result<Session, Failure> {
    let session = Session::connect(&target_options(config)).await;
    session.map_err(|error| Failure::from(error).doing("cannot use the target"))
}

/// Where the flow stands in the target; `None` when another flow is set up there and it is not.
pub(crate) async fn checkpoint(
    config: &Config,
    target: &Session,
) -> Result<Option<Checkpoint>, Failure> {
    let found = ledger::checkpoint(&target.client, &config.flow, Lane(0)).await;
    found.map_err(|error| match fault(&error).sqlstate.as_str() {
        // The ledger's table, or its schema.
        "42P01" | "3F000" => not_set_up(config),
        _ => error.into(),
    })
}

/// The flow has no place in this target.
pub(crate) fn not_set_up(config: &Config) -> Failure {
    let reason = format!("flow {} is not set up in this target", config.flow);
    Failure::new(Exit::Unfit, reason, "run trellara setup")
}

/// The timelines of the source, as it knows them now.
pub(crate) async fn history(config: &Config) -> Result<SourceHistory, Failure> {
    let options = source_options(config).connect;
    let mut connection = ReplicationConnection::connect(&options)
        .await
        .map_err(Failure::from)?;
    connection.history().await.map_err(|error| {
        Failure::from_error(Exit::Unexpected, &error).doing("cannot read the source's history")
    })
}
