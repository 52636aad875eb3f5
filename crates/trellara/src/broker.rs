//! From the configuration to a connected broker, ours or somebody else's.

use std::path::Path;
use std::time::Duration;

use trellara_envelope::HaltCode;
use trellara_jetstream::{Broker, Credentials, NatsOptions};
use trellara_local::LocalError;
use trellara_local::embedded::{Access, EmbeddedBroker, EmbeddedOptions, Search};

use crate::config::{BrokerSetting, Config, EnvironmentMap};
use crate::exit::{Exit, Failure};

/// Who connects. Each has an inbox of its own, which the broker's permissions name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    Relay,
    Applier,
    Setup,
    Check,
    Status,
    Inspect,
    Quarantine,
    Remove,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Role::Relay => "relay",
            Role::Applier => "applier",
            Role::Setup => "setup",
            Role::Check => "check",
            Role::Status => "status",
            Role::Inspect => "inspect",
            Role::Quarantine => "quarantine",
            Role::Remove => "remove",
        }
    }

    /// Where the answers meant for it come in.
    fn inbox(self) -> String {
        format!("_INBOX_trellara_{}", self.as_str())
    }
}

/// How long a command that a person waits for tries to reach the broker.
const COMMAND_PATIENCE: Duration = Duration::from_secs(10);
/// Ours is on this machine and back within a second of its death.
const EMBEDDED_PATIENCE: Duration = Duration::from_secs(2);

/// Connects for a command: gives up after a few seconds, with the reason of the last attempt.
pub(crate) async fn connect(config: &Config, role: Role) -> Result<Broker, Failure> {
    let options = options(config, role)?;
    let patience = match &config.nats.broker {
        BrokerSetting::External(_) => COMMAND_PATIENCE,
        BrokerSetting::Embedded { .. } => EMBEDDED_PATIENCE,
    };
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        match Broker::connect(&options).await {
            Ok(broker) => return Ok(broker),
            Err(error) if error.is_passing() && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            Err(error) => {
                let doing = format!("cannot use the broker {}", options.redacted_url());
                return Err(Failure::from(error).doing(doing));
            }
        }
    }
}

/// A broker for a command that changes the flow. The embedded one is started for as long as the
/// answer lives, unless `trellara run` has it.
pub(crate) async fn reach(
    config: &Config,
    role: Role,
    environment: &EnvironmentMap,
) -> Result<(Broker, Option<EmbeddedBroker>), Failure> {
    let embedded = match start_embedded(config, environment).await {
        Ok(embedded) => embedded,
        Err(failure) if failure.exit == Exit::Halted(HaltCode::Fenced) => None,
        Err(failure) => return Err(failure),
    };
    Ok((connect(config, role).await?, embedded))
}

/// Whether the broker would be ours and was never started.
pub(crate) fn never_started(config: &Config) -> bool {
    match &config.nats.broker {
        BrokerSetting::External(_) => false,
        BrokerSetting::Embedded { store_dir, .. } => matches!(Access::read(store_dir), Ok(None)),
    }
}

/// Connects for a daemon: a broker that is down now is waited for, for ever.
pub(crate) async fn connect_daemon(config: &Config, role: Role) -> Result<Broker, Failure> {
    const PAUSE_FIRST: Duration = Duration::from_millis(100);
    const PAUSE_MOST: Duration = Duration::from_secs(5);
    let mut pause = PAUSE_FIRST;
    loop {
        let options = options(config, role)?;
        match Broker::connect(&options).await {
            Ok(broker) => return Ok(broker),
            Err(error) if error.is_passing() => {
                tracing::warn!(%error, broker = options.redacted_url(), "waiting for the broker");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MOST);
            }
            Err(error) => return Err(Failure::from(error)),
        }
    }
}

/// The options of a connection for `role`; of the embedded broker, from the file it left.
pub(crate) fn options(config: &Config, role: Role) -> Result<NatsOptions, Failure> {
    let mut options = match &config.nats.broker {
        BrokerSetting::External(options) => options.clone(),
        BrokerSetting::Embedded { store_dir, .. } => embedded(store_dir)?,
    };
    options.client_name = format!("trellara {} {}", role.as_str(), config.flow);
    options.inbox_prefix = role.inbox();
    Ok(options)
}

fn embedded(store_dir: &Path) -> Result<NatsOptions, Failure> {
    let access = Access::read(store_dir)
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?
        .ok_or_else(|| {
            Failure::new(
                Exit::Unexpected,
                format!(
                    "no embedded broker has its store in {}",
                    store_dir.display()
                ),
                "start it with `trellara run`, or name a broker in nats.url",
            )
        })?;
    Ok(NatsOptions {
        url: access.url(),
        credentials: Credentials::UserPassword {
            user: access.user().to_owned(),
            password: access.password().to_owned().into(),
        },
        ..NatsOptions::default()
    })
}

/// Starts the embedded broker; it lives as long as the answer does. `None` when the file
/// names a broker.
pub(crate) async fn start_embedded(
    config: &Config,
    environment: &EnvironmentMap,
) -> Result<Option<EmbeddedBroker>, Failure> {
    let BrokerSetting::Embedded { server, store_dir } = &config.nats.broker else {
        return Ok(None);
    };
    let path = environment
        .get("PATH")
        .map(String::as_str)
        .unwrap_or_default();
    let search = Search {
        server: server.clone(),
        beside: std::env::current_exe()
            .ok()
            .and_then(|program| program.parent().map(Path::to_owned)),
        path: std::env::split_paths(path).collect(),
    };
    let options = EmbeddedOptions::new(store_dir.clone(), search);
    let started = tokio::task::spawn_blocking(move || EmbeddedBroker::start(&options)).await;
    let started = started.map_err(|panic| Failure::from_error(Exit::Bug, &panic))?;
    started.map(Some).map_err(|error| {
        let exit = match &error {
            LocalError::StoreInUse { .. } => Exit::Halted(HaltCode::Fenced),
            LocalError::Missing { .. } => Exit::Unavailable,
            _ => Exit::Unexpected,
        };
        Failure::from_error(exit, &error).doing("cannot start the embedded broker")
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::Role;

    /// Whoever connects may listen to its inbox under the least rights that we ship.
    #[test]
    fn the_shipped_permissions_name_every_inbox() {
        let shipped = include_str!("../../../config/nats/permissions.conf");
        for role in Role::value_variants() {
            let inbox = format!("\"{}.>\"", role.inbox());
            assert!(shipped.contains(&inbox), "{inbox}");
        }
    }
}
