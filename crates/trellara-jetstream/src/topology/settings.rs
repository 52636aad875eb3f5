//! The settings of a flow's stream, why each is as it is, and what an existing one lacks.

use serde_json::{Value, json};

use super::{Difference, StreamKind, StreamSpec, TARGET_KEY};

/// The configuration to create.
pub(super) fn config(spec: &StreamSpec) -> Value {
    let window = u64::try_from(spec.duplicate_window.as_nanos()).unwrap_or(u64::MAX);
    let mut config = json!({
        "name": spec.stream(),
        "description": description(spec),
        "subjects": [spec.subject()],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": spec.replicas,
        "max_bytes": spec.max_bytes,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_age": 0,
        "max_consumers": -1,
        "max_msg_size": spec.max_message_bytes.map_or(-1, i64::from),
        "duplicate_window": window,
        "deny_delete": true,
        "deny_purge": false,
        "allow_rollup_hdrs": false,
        "allow_direct": true,
    });
    if let Some(target) = &spec.target {
        config["metadata"] = json!({ TARGET_KEY: target });
    }
    config
}

fn description(spec: &StreamSpec) -> String {
    match spec.kind {
        StreamKind::Transactions => format!("Trellara flow {}", spec.flow),
        StreamKind::Copy => format!("Trellara flow {}: the copy of its tables", spec.flow),
    }
}

/// A setting that has one right value, absent meaning the first of `good`.
struct Rule {
    setting: &'static str,
    good: &'static [&'static str],
    why: &'static str,
    /// False when the server never changes it on an existing stream.
    changeable: bool,
}

const RULES: &[Rule] = &[
    Rule {
        setting: "storage",
        good: &["file"],
        why: "memory is empty after a restart of the server",
        changeable: false,
    },
    Rule {
        setting: "retention",
        good: &["limits"],
        why: "the others remove messages by what consumers do, the tail included",
        changeable: false,
    },
    Rule {
        setting: "discard",
        good: &["new"],
        why: "a full stream would silently drop its oldest, unread transactions",
        changeable: true,
    },
    Rule {
        setting: "max_age",
        good: &["0"],
        why: "messages would vanish by age, applied or not",
        changeable: true,
    },
    Rule {
        setting: "max_msgs",
        good: &["-1", "0"],
        why: "room is counted in bytes; a full stream could not take the frame that frees it",
        changeable: true,
    },
    Rule {
        setting: "max_msgs_per_subject",
        good: &["-1", "0"],
        why: "all transactions of a lane share one subject",
        changeable: true,
    },
    Rule {
        setting: "deny_delete",
        good: &["true"],
        why: "anybody with the right could take one message out of the middle",
        changeable: true,
    },
    Rule {
        setting: "deny_purge",
        good: &["false"],
        why: "the stream could never be trimmed; once set it cannot be unset",
        changeable: false,
    },
    Rule {
        setting: "allow_rollup_hdrs",
        good: &["false"],
        why: "one message with a rollup header would erase all before it",
        changeable: true,
    },
    Rule {
        setting: "no_ack",
        good: &["false"],
        why: "a publish would never be acknowledged",
        changeable: true,
    },
    Rule {
        setting: "sealed",
        good: &["false"],
        why: "a sealed stream takes no messages",
        changeable: false,
    },
    Rule {
        setting: "persist_mode",
        good: &["default", ""],
        why: "with async a message is acknowledged before it is written",
        changeable: false,
    },
    Rule {
        setting: "allow_msg_counter",
        good: &["false"],
        why: "a counter stream refuses ordinary messages",
        changeable: false,
    },
    Rule {
        setting: "allow_msg_ttl",
        good: &["false"],
        why: "messages could carry an end of life",
        changeable: false,
    },
];

/// Settings that must not be there at all.
const ABSENT: &[(&str, &str)] = &[
    ("mirror", "a mirror takes no messages of its own"),
    ("sources", "messages of other streams would come in between"),
    (
        "subject_transform",
        "messages would be stored on other subjects",
    ),
    (
        "republish",
        "every message would be published once more, elsewhere",
    ),
];

/// Everything about an existing stream that is not as `spec` wants it.
pub(super) fn differences(spec: &StreamSpec, config: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    let stream = spec.stream();
    let subjects = json!([spec.subject()]);
    if config["subjects"] != subjects {
        found.push(Difference {
            setting: "subjects",
            is: shown(&config["subjects"]),
            must: subjects.to_string(),
            why: "each sequence number must belong to the flow's one writer",
            hint: edit(&stream, "--subjects", &spec.subject()),
            fatal: true,
        });
    }
    found.extend(RULES.iter().filter_map(|rule| rule.check(&stream, config)));
    for (setting, why) in ABSENT {
        let is = &config[*setting];
        if !is.is_null() && !is.as_array().is_some_and(Vec::is_empty) {
            found.push(Difference {
                setting,
                is: shown(is),
                must: "absent".to_owned(),
                why,
                hint: "create the stream without it".to_owned(),
                fatal: true,
            });
        }
    }
    found.extend(sizes(spec, config));
    found
}

impl Rule {
    fn check(&self, stream: &str, config: &Value) -> Option<Difference> {
        let is = match &config[self.setting] {
            Value::Null if matches!(self.setting, "deny_delete") => "false".to_owned(),
            Value::Null => return None,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if self.good.contains(&is.as_str()) {
            return None;
        }
        let hint = if self.changeable {
            format!("change `{}` with `nats stream edit {stream}`", self.setting)
        } else {
            "it cannot be changed: the stream must be made anew, by `trellara setup`".to_owned()
        };
        Some(Difference {
            setting: self.setting,
            is,
            must: self.good[0].to_owned(),
            why: self.why,
            hint,
            fatal: true,
        })
    }
}

/// What is a matter of size: named, and fatal only where a frame would not fit.
fn sizes(spec: &StreamSpec, config: &Value) -> Vec<Difference> {
    let stream = spec.stream();
    let mut found = Vec::new();
    let mut note = |setting, is: i64, must: i64, why, flag, fatal| {
        found.push(Difference {
            setting,
            is: is.to_string(),
            must: must.to_string(),
            why,
            hint: edit(&stream, flag, &must.to_string()),
            fatal,
        });
    };
    let number = |name: &str, absent: i64| config[name].as_i64().unwrap_or(absent);
    let wanted = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);

    let max_bytes = number("max_bytes", -1);
    if max_bytes != wanted(spec.max_bytes) {
        let why = "the limit decides when the relay has to wait";
        note(
            "max_bytes",
            max_bytes,
            wanted(spec.max_bytes),
            why,
            "--max-bytes",
            false,
        );
    }
    let replicas = number("num_replicas", 1);
    if replicas != wanted(spec.replicas as u64) {
        let why = "the number of copies decides which failures lose nothing";
        note(
            "num_replicas",
            replicas,
            wanted(spec.replicas as u64),
            why,
            "--replicas",
            false,
        );
    }
    let size = number("max_msg_size", -1);
    let needed = spec.max_message_bytes.map_or(-1, i64::from);
    if size > 0 && needed > size {
        let why = "frames of the usual size would be refused";
        note("max_msg_size", size, needed, why, "--max-msg-size", true);
    }
    if number("duplicate_window", 0) > 0 {
        let window = i64::try_from(spec.duplicate_window.as_nanos()).unwrap_or(i64::MAX);
        let is = number("duplicate_window", 0);
        if is != window {
            let why = "message ids are remembered for this long (nanoseconds)";
            note("duplicate_window", is, window, why, "--dupe-window", false);
        }
    }
    found
}

fn edit(stream: &str, flag: &str, value: &str) -> String {
    format!("nats stream edit {stream} {flag}={value}")
}

fn shown(value: &Value) -> String {
    if value.is_null() {
        "absent".to_owned()
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> StreamSpec {
        let flow = "shop".parse().expect("it is a name");
        StreamSpec {
            max_message_bytes: Some(1 << 20),
            ..StreamSpec::new(flow, 1 << 30)
        }
    }

    #[test]
    fn our_own_settings_are_as_they_must_be() {
        assert_eq!(differences(&spec(), &config(&spec())), []);
    }

    #[test]
    fn every_losing_setting_is_named() {
        let losing = [
            ("subjects", json!(["trellara.shop.>", "other.>"])),
            ("storage", json!("memory")),
            ("retention", json!("workqueue")),
            ("discard", json!("old")),
            ("max_age", json!(3_600_000_000_000_u64)),
            ("max_msgs", json!(10)),
            ("max_msgs_per_subject", json!(1)),
            ("deny_delete", json!(false)),
            ("deny_purge", json!(true)),
            ("allow_rollup_hdrs", json!(true)),
            ("no_ack", json!(true)),
            ("sealed", json!(true)),
            ("persist_mode", json!("async")),
            ("mirror", json!({"name": "X"})),
            ("sources", json!([{"name": "X"}])),
            ("subject_transform", json!({"src": ">", "dest": "x.>"})),
            ("republish", json!({"src": ">", "dest": "x.>"})),
            ("max_msg_size", json!(1000)),
        ];
        for (setting, value) in losing {
            let mut config = config(&spec());
            config[setting] = value;
            let found = differences(&spec(), &config);
            let named: Vec<_> = found.iter().map(|d| (d.setting, d.fatal)).collect();
            assert_eq!(named, [(setting, true)]);
        }
    }

    #[test]
    fn another_size_is_named_and_not_fatal() {
        let mut config = config(&spec());
        config["max_bytes"] = json!(-1);
        config["num_replicas"] = json!(3);
        let found = differences(&spec(), &config);
        let named: Vec<_> = found.iter().map(|d| (d.setting, d.fatal)).collect();
        assert_eq!(named, [("max_bytes", false), ("num_replicas", false)]);
    }

    #[test]
    fn a_server_that_leaves_out_deny_delete_means_false() {
        let mut config = config(&spec());
        config
            .as_object_mut()
            .expect("an object")
            .remove("deny_delete");
        assert_eq!(differences(&spec(), &config)[0].setting, "deny_delete");
    }
}
