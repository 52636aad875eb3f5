//! Making the durable consumer, and moving it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use trellara_envelope::StreamSequence;

use super::ConsumerOptions;
use crate::error::code;
use crate::pull::nanos;
use crate::topology::{Difference, refusal};
use crate::{Broker, BrokerError, BrokerErrorKind};

/// Longer than any batch takes to apply: what the server sends once more only costs, because it
/// is dropped.
const ACK_WAIT: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct Info {
    config: Value,
    /// Pull requests that wait for messages.
    #[serde(default)]
    num_waiting: u64,
}

/// Moves the durable so that `start` comes next, making it where there is none.
pub(super) async fn position(
    broker: &Broker,
    options: &ConsumerOptions,
    start: StreamSequence,
) -> Result<(), BrokerError> {
    let ConsumerOptions { stream, name, .. } = options;
    let doing = format!("move consumer {name} of stream {stream} to {start}");
    let there = match info(broker, stream, name, &doing).await {
        Ok(info) => {
            let differences = differences(options, &info.config);
            if let Some(error) = refusal(&doing, &differences) {
                return Err(error);
            }
            Some(info)
        }
        Err(error) if error.code() == code::CONSUMER_NOT_FOUND => None,
        Err(error) => return Err(error),
    };
    if broker.server_version().can_reset_consumers() {
        let anywhere = there
            .as_ref()
            .is_some_and(|i| i.config["deliver_policy"] == json!("all"));
        // Moving it leaves pull requests as they are, and those of a reader that was stopped would
        // get the next messages before ours do (C23): they end with the consumer only.
        let pulled = there.as_ref().is_some_and(|info| info.num_waiting > 0);
        if there.is_none() {
            create(broker, options, json!({"deliver_policy": "all"}), &doing).await?;
        }
        if there.is_none() || (anywhere && !pulled) {
            match reset(broker, stream, name, start, &doing).await {
                Err(error) if !error.is_passing() && !error.is_missing() => {
                    tracing::debug!(%error, "cannot reset the consumer, making it anew");
                }
                done => return done,
            }
        }
    }
    delete(broker, stream, name, &doing).await?;
    let from = if start.0 <= 1 {
        json!({"deliver_policy": "all"})
    } else {
        json!({"deliver_policy": "by_start_sequence", "opt_start_seq": start.0})
    };
    create(broker, options, from, &doing).await
}

/// Moves a consumer back to `to` from outside, while somebody may be reading: the reader gets
/// those messages again, marked [`super::Delivery::again`].
///
/// # Errors
/// Refused by servers before 2.14, which can only delete a consumer (its reader then makes it
/// anew at its own position); missing; permission; passing.
pub async fn move_back(
    broker: &Broker,
    stream: &str,
    name: &str,
    to: StreamSequence,
) -> Result<(), BrokerError> {
    let doing = format!("move consumer {name} of stream {stream} back to {to}");
    let version = broker.server_version();
    if !version.can_reset_consumers() {
        let text = format!("nats-server {version} cannot move a consumer; 2.14 can");
        let kind = BrokerErrorKind::Refused {
            code: 0,
            text: text.clone(),
        };
        return Err(BrokerError::new(kind, doing, text));
    }
    reset(broker, stream, name, to, &doing).await
}

async fn info(broker: &Broker, stream: &str, name: &str, doing: &str) -> Result<Info, BrokerError> {
    broker
        .api(&format!("CONSUMER.INFO.{stream}.{name}"), &json!({}), doing)
        .await
}

async fn reset(
    broker: &Broker,
    stream: &str,
    name: &str,
    start: StreamSequence,
    doing: &str,
) -> Result<(), BrokerError> {
    let endpoint = format!("CONSUMER.RESET.{stream}.{name}");
    let body = json!({"seq": start.0.max(1)});
    broker.api::<Value>(&endpoint, &body, doing).await.map(drop)
}

async fn delete(broker: &Broker, stream: &str, name: &str, doing: &str) -> Result<(), BrokerError> {
    let endpoint = format!("CONSUMER.DELETE.{stream}.{name}");
    match broker.api::<Value>(&endpoint, &json!({}), doing).await {
        Err(error) if error.code() == code::CONSUMER_NOT_FOUND => Ok(()),
        other => other.map(drop),
    }
}

async fn create(
    broker: &Broker,
    options: &ConsumerOptions,
    from: Value,
    doing: &str,
) -> Result<(), BrokerError> {
    let ConsumerOptions {
        stream,
        name,
        filters,
        ..
    } = options;
    let mut config = json!({
        "durable_name": name,
        "description": "Trellara: positioned by the applier at every start",
        "ack_policy": "all",
        "ack_wait": nanos(ACK_WAIT),
        "max_ack_pending": -1,
        "max_deliver": -1,
        "replay_policy": "instant",
        "filter_subjects": filters,
    });
    if let (Some(config), Value::Object(from)) = (config.as_object_mut(), from) {
        config.extend(from);
    }
    let body = json!({"stream_name": stream, "config": config, "action": "create"});
    let endpoint = format!("CONSUMER.CREATE.{stream}.{name}");
    broker.api::<Value>(&endpoint, &body, doing).await.map(drop)
}

/// What about an existing consumer of our name can lose messages, or shows that it is not ours.
fn differences(options: &ConsumerOptions, config: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |setting, is: &Value, must: String, why| {
        found.push(Difference {
            setting,
            is: is.to_string(),
            must,
            why,
            hint: format!("nats consumer rm {} {}", options.stream, options.name),
            fatal: true,
        });
    };
    let is = &config["ack_policy"];
    if is != "all" {
        note(
            "ack_policy",
            is,
            "all".to_owned(),
            "acknowledging one must cover all before it",
        );
    }
    let is = &config["max_ack_pending"];
    if is.as_i64().is_some_and(|limit| limit > 0) {
        let why = "delivery would stop in the middle of a transaction that needs more";
        note("max_ack_pending", is, "-1".to_owned(), why);
    }
    let is = &config["max_deliver"];
    if is.as_i64().is_some_and(|limit| limit > 0) {
        note(
            "max_deliver",
            is,
            "-1".to_owned(),
            "messages would be given up",
        );
    }
    let is = &config["headers_only"];
    if is == &json!(true) {
        note(
            "headers_only",
            is,
            "false".to_owned(),
            "messages would come without their bytes",
        );
    }
    let is = &config["deliver_subject"];
    if is.as_str().is_some_and(|subject| !subject.is_empty()) {
        note(
            "deliver_subject",
            is,
            "absent".to_owned(),
            "it pushes instead of being pulled",
        );
    }
    let mut wanted = options.filters.clone();
    let mut filters = filters_of(config);
    wanted.sort_unstable();
    filters.sort_unstable();
    if filters != wanted {
        let why = "messages outside of its filters never come";
        note(
            "filter_subjects",
            &json!(filters),
            json!(wanted).to_string(),
            why,
        );
    }
    found
}

/// The server turns a list of one into the older, single setting.
fn filters_of(config: &Value) -> Vec<String> {
    let several = config["filter_subjects"].as_array().into_iter().flatten();
    let one = config.get("filter_subject");
    let texts = several.chain(one).filter_map(Value::as_str);
    texts
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> ConsumerOptions {
        let filters = vec!["a.tx.>".to_owned(), "a.mark".to_owned()];
        ConsumerOptions::new("S", "applier", filters, StreamSequence(1))
    }

    fn good() -> Value {
        json!({
            "ack_policy": "all", "max_ack_pending": -1, "max_deliver": -1,
            "filter_subjects": ["a.mark", "a.tx.>"],
        })
    }

    #[test]
    fn a_consumer_like_ours_is_accepted() {
        assert_eq!(differences(&options(), &good()), []);
    }

    #[test]
    fn each_losing_setting_of_a_consumer_is_named() {
        let losing = [
            ("ack_policy", json!("explicit")),
            ("max_ack_pending", json!(1000)),
            ("max_deliver", json!(3)),
            ("headers_only", json!(true)),
            ("deliver_subject", json!("x")),
            ("filter_subjects", json!(["a.mark"])),
        ];
        for (setting, value) in losing {
            let mut config = good();
            config[setting] = value;
            let found = differences(&options(), &config);
            let named: Vec<_> = found.iter().map(|d| d.setting).collect();
            assert_eq!(named, [setting]);
        }
    }

    #[test]
    fn one_filter_in_the_older_setting_is_the_same() {
        let mut options = options();
        options.filters = vec!["a.mark".to_owned()];
        let mut config = good();
        config["filter_subjects"] = Value::Null;
        config["filter_subject"] = json!("a.mark");
        assert_eq!(differences(&options, &config), []);
    }
}
