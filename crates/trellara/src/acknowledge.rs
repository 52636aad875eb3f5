//! What `source.acknowledge: auto` means here (C28).
//!
//! Confirming a position to PostgreSQL lets it forget WAL. So `published` is only taken where the
//! broker's acknowledgement is known to be an fsync; everything else waits for the target.

use trellara_jetstream::monitor::{sync_always, version};
use trellara_jetstream::{ServerVersion, Support};
use trellara_relay::Acknowledge;

use crate::config::{AcknowledgeSetting, BrokerSetting, Config};
use crate::http;

/// The decision, and why.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    pub(crate) acknowledge: Acknowledge,
    pub(crate) because: String,
}

/// Decides; asks the broker's monitors when the file names them.
pub(crate) async fn decide(config: &Config) -> Decision {
    let published = |because: &str| Decision {
        acknowledge: Acknowledge::Published,
        because: because.to_owned(),
    };
    let applied = |because: String| Decision {
        acknowledge: Acknowledge::Applied,
        because,
    };
    match config.source.acknowledge {
        AcknowledgeSetting::Published => return published("the file says so"),
        AcknowledgeSetting::Applied => return applied("the file says so".to_owned()),
        AcknowledgeSetting::Auto => {}
    }
    if let BrokerSetting::Embedded { .. } = config.nats.broker {
        return applied("the embedded broker runs in one process with the applier".to_owned());
    }
    if config.nats.durable {
        return published("nats.durable vouches for the broker");
    }
    let Some(monitors) = &config.nats.monitor_url else {
        return applied(
            "neither nats.durable nor nats.monitor_url says that acknowledgements are fsyncs"
                .to_owned(),
        );
    };
    let monitors: Vec<&str> = monitors.split(',').map(str::trim).collect();
    if monitors.len() < config.nats.replicas {
        return applied(format!(
            "nats.monitor_url names {} server(s), the stream has {} replicas",
            monitors.len(),
            config.nats.replicas
        ));
    }
    for monitor in monitors {
        match varz(monitor).await {
            // Such a server can lose what it has acknowledged, however it writes; an explicit
            // `published` is refused by the checks.
            Ok(Varz {
                version: Some(version),
                ..
            }) if version.support() != Support::Full => {
                return applied(format!("{monitor} is nats-server {version}"));
            }
            Ok(Varz {
                sync_always: Some(true),
                ..
            }) => {}
            Ok(Varz {
                sync_always: Some(_),
                ..
            }) => {
                return applied(format!("{monitor} does not have sync_interval: always"));
            }
            Ok(_) => {
                return applied(format!(
                    "{monitor} does not answer like a NATS server with JetStream"
                ));
            }
            Err(error) => return applied(format!("the monitor cannot be asked: {error}")),
        }
    }
    published("every monitor says sync_always")
}

/// What a monitor said, as far as it could be read.
struct Varz {
    version: Option<ServerVersion>,
    sync_always: Option<bool>,
}

async fn varz(monitor: &str) -> Result<Varz, String> {
    let address = monitor
        .strip_prefix("http://")
        .unwrap_or(monitor)
        .trim_end_matches('/');
    let address = if address.contains(':') {
        address.to_owned()
    } else {
        format!("{address}:8222")
    };
    let body = http::get(&address, "/varz").await?;
    Ok(Varz {
        version: version(&body),
        sync_always: sync_always(&body),
    })
}
