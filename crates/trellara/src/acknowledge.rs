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

impl Decision {
    /// The level as the file writes it.
    pub(crate) fn level(&self) -> &'static str {
        match self.acknowledge {
            Acknowledge::Published => "published",
            Acknowledge::Applied => "applied",
        }
    }
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
    let monitors = &config.nats.monitors;
    if monitors.is_empty() {
        return applied(
            "neither nats.durable nor nats.monitor_url says that acknowledgements are fsyncs"
                .to_owned(),
        );
    }
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
    let body = http::get(monitor, "/varz").await?;
    Ok(Varz {
        version: version(&body),
        sync_always: sync_always(&body),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::config::tests::{SMALLEST, resolved};

    async fn decided(nats: String) -> Acknowledge {
        let config = resolved(&format!("{SMALLEST}{nats}"), &[]).expect("a configuration");
        decide(&config).await.acknowledge
    }

    /// A monitor that answers once.
    fn monitor(varz: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut request = [0; 1024];
            let _ = client.read(&mut request);
            let length = varz.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            client
                .write_all(format!("{head}{varz}").as_bytes())
                .expect("sent");
        });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn c28_auto_is_published_only_where_an_acknowledgement_is_an_fsync() {
        assert_eq!(
            decided(String::new()).await,
            Acknowledge::Applied,
            "embedded"
        );
        let told = |more: &str| decided(format!("nats: {{url: \"nats://n1\"{more}}}\n"));
        assert_eq!(told("").await, Acknowledge::Applied, "nobody knows");
        assert_eq!(told(", durable: true").await, Acknowledge::Published);
        let always = monitor(r#"{"jetstream":{"config":{"sync_always":true}}}"#);
        let one = format!(", monitor_url: \"{always}\"");
        assert_eq!(told(&one).await, Acknowledge::Published);
        let three = format!(", replicas: 3, monitor_url: \"{always}\"");
        let verdict = told(&three).await;
        assert_eq!(verdict, Acknowledge::Applied, "one server of three");
        let sometimes = monitor(r#"{"jetstream":{"config":{"sync_interval":120000000000}}}"#);
        let lazy = format!(", monitor_url: \"{sometimes}\"");
        assert_eq!(told(&lazy).await, Acknowledge::Applied);
        let gone = ", monitor_url: \"http://127.0.0.1:1\"";
        assert_eq!(told(gone).await, Acknowledge::Applied, "nobody answers");
    }

    const ALWAYS: &str = r#"{"version":"2.15.1","jetstream":{"config":{"sync_always":true}}}"#;

    /// A stream of three replicas, each with a server that answers so.
    async fn three(answers: [&'static str; 3]) -> Decision {
        let monitors = answers.map(monitor).join(", ");
        let nats =
            format!("nats: {{url: \"nats://n1\", replicas: 3, monitor_url: \"{monitors}\"}}\n");
        let config = resolved(&format!("{SMALLEST}{nats}"), &[]).expect("a configuration");
        decide(&config).await
    }

    #[tokio::test]
    async fn c28_every_replicas_server_has_to_fsync_and_to_be_new_enough() {
        let decision = three([ALWAYS; 3]).await;
        let because = decision.because;
        assert_eq!(decision.acknowledge, Acknowledge::Published, "{because}");
        let others = [
            (
                r#"{"version":"2.15.1","jetstream":{"config":{"sync_interval":120000000000}}}"#,
                "sync_interval: always",
            ),
            (
                r#"{"version":"2.10.26","jetstream":{"config":{"sync_always":true}}}"#,
                "2.10.26",
            ),
            (r#"{"version":"2.15.1"}"#, "JetStream"),
        ];
        for (other, named) in others {
            for at in 0..3 {
                let mut answers = [ALWAYS; 3];
                answers[at] = other;
                let decision = three(answers).await;
                let because = decision.because;
                assert_eq!(decision.acknowledge, Acknowledge::Applied, "{because}");
                assert!(because.contains(named), "{because}");
            }
        }
    }
}
