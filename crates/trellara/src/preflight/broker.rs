//! The broker: version against the acknowledge level, the stream's settings and owner.

use trellara_applier::schema;
use trellara_jetstream::{Broker, ServerVersion, Support, topology};
use trellara_postgres::Session;
use trellara_relay::Acknowledge;

use super::Findings;
use crate::config::{AcknowledgeSetting, BrokerSetting, Config};
use crate::exit::Failure;
use crate::{acknowledge, setup};

/// Below this a frame carries little more than its own header.
const LEAST_PAYLOAD: usize = 64 << 10;

pub(super) async fn examine(
    config: &Config,
    broker: &Broker,
    target: Option<&Session>,
    findings: &mut Findings,
) {
    let decision = acknowledge::decide(config).await;
    let level = decision.level();
    findings.note(
        "ACKNOWLEDGE",
        "source.acknowledge",
        format!("positions are confirmed once {level}: {}", decision.because),
    );
    version(broker.server_version(), decision.acknowledge, findings);
    if config.source.acknowledge == AcknowledgeSetting::Published
        && !config.nats.durable
        && matches!(config.nats.broker, BrokerSetting::External(_))
    {
        findings.warning(
            "BROKER_NOT_DURABLE",
            "source.acknowledge",
            "`published` lets the source forget WAL although nothing says that an acknowledgement is an fsync",
            "set sync_interval: always on every server and nats.durable: true, or use `auto`",
        );
    }
    let payload = broker.max_payload();
    if payload < LEAST_PAYLOAD {
        let cure = "raise max_payload on the server (1 MB is its default)";
        findings.error(
            "BROKER_PAYLOAD",
            "broker",
            format!("max_payload is {payload} bytes"),
            cure,
        );
    }
    let registration = match target {
        Some(target) => schema::identity(&target.client)
            .await
            .ok()
            .map(|id| id.registration()),
        None => None,
    };
    stream(config, broker, registration, findings).await;
}

fn version(version: ServerVersion, acknowledge: Acknowledge, findings: &mut Findings) {
    match (version.support(), acknowledge) {
        (Support::Full, _) => {}
        (Support::Limited, Acknowledge::Applied) => findings.warning(
            "BROKER_OLD",
            "broker",
            format!("nats-server {version} can forget message ids and acknowledged messages"),
            "it is used with `acknowledge: applied` only; 2.12.3 and newer are sound",
        ),
        (Support::Limited, Acknowledge::Published) => findings.error(
            "BROKER_TOO_OLD_FOR_PUBLISHED",
            "broker",
            format!("nats-server {version} is too old for `acknowledge: published`"),
            "use `acknowledge: applied`, or nats-server 2.12.3 or newer",
        ),
        (Support::Refused, _) => findings.error(
            "BROKER_TOO_OLD",
            "broker",
            format!("nats-server {version} is too old"),
            "2.10.25 is the oldest that works, 2.12.3 the oldest that is sound",
        ),
    }
}

async fn stream(
    config: &Config,
    broker: &Broker,
    registration: Option<String>,
    findings: &mut Findings,
) {
    let spec = setup::stream_spec(config, registration.clone());
    let checked = match topology::check(broker, &spec).await {
        Ok(checked) => checked,
        Err(error) => {
            findings.failed("STREAM_QUERY", "stream", &Failure::from(error));
            return;
        }
    };
    let Some((facts, differences)) = checked else {
        return;
    };
    let about = format!("stream {}", facts.name);
    // `auto` follows the disk; a stream that is there keeps what it began with.
    let auto = |setting: &str| setting == "max_bytes" && config.nats.max_bytes.is_none();
    for difference in differences {
        if auto(difference.setting) && difference.is != "-1" {
            continue;
        }
        let reason = format!(
            "{} is {}, must be {}: {}",
            difference.setting, difference.is, difference.must, difference.why
        );
        if difference.fatal {
            findings.error("STREAM_UNFIT", &about, reason, difference.hint);
        } else {
            findings.warning("STREAM_DIFFERS", &about, reason, difference.hint);
        }
    }
    if let (Some(owner), Some(ours)) = (facts.target(), registration)
        && owner != ours
    {
        findings.error(
            "STREAM_OTHER_TARGET",
            &about,
            format!("it is registered for target {owner}, this one is {ours}"),
            "one stream feeds one target; name another flow for this one",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, acknowledge: Acknowledge) -> Vec<&'static str> {
        let mut findings = Findings::default();
        version(ServerVersion::parse(text), acknowledge, &mut findings);
        findings.0.iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn each_broker_version_is_taken_for_what_it_can_keep() {
        let (published, applied) = (Acknowledge::Published, Acknowledge::Applied);
        for old in ["2.9.10", "2.10.24"] {
            assert_eq!(found(old, applied), ["BROKER_TOO_OLD"], "{old}");
            assert_eq!(found(old, published), ["BROKER_TOO_OLD"], "{old}");
        }
        for limited in ["2.10.25", "2.10.26", "2.12.2"] {
            assert_eq!(found(limited, applied), ["BROKER_OLD"], "{limited}");
            let refused = ["BROKER_TOO_OLD_FOR_PUBLISHED"];
            assert_eq!(found(limited, published), refused, "{limited}");
        }
        for full in ["2.12.3", "2.15.1", "3.0.0"] {
            assert_eq!(found(full, published), Vec::<&str>::new(), "{full}");
        }
    }
}
