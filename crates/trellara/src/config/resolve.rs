//! From what was written to what is meant: typed, defaulted, and checked as far as no I/O is
//! needed. All errors are found in one run.

use std::str::FromStr;
use std::time::Duration;

use secrecy::SecretString;
use trellara_envelope::FlowName;
use trellara_postgres::{ConnectOptions, Environment};
use trellara_source::publication::{Partitions, TablePattern};

use super::file::{
    FileConfig, NatsSection, Node, SourceSection, TargetSection, Written, WrittenList,
};
use super::model::{AcknowledgeSetting, Config, Dedup, Listen, OnHalt, Process, Source, Target};
use super::{
    Available, BATCH_BYTES, ConfigError, ConfigErrors, DEDUP_MEMORY, DEDUP_MEMORY_LEAST,
    DEDUP_WINDOW_LEAST, EnvironmentMap, KEYS, SHUTDOWN_GRACE, SHUTDOWN_TIMEOUT, STALL_TIMEOUT,
    SecretFiles, backfill, nats, quantity, quarantine,
};

/// Collects errors, so that one run names them all.
pub(super) struct Problems(Vec<ConfigError>);

impl Problems {
    pub(super) fn add(&mut self, key: &str, reason: impl Into<String>, hint: impl Into<String>) {
        self.0.push(ConfigError::key(key, reason, hint));
    }

    pub(super) fn parsed<T>(
        &mut self,
        key: &str,
        written: Option<&Written>,
        default: T,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> T {
        let Some(written) = written else {
            return default;
        };
        parse(written.0.trim()).unwrap_or_else(|reason| {
            let about = KEYS
                .iter()
                .find(|known| known.path == key)
                .map(|known| known.form);
            self.add(
                key,
                reason,
                format!("the form is: {}", about.unwrap_or("see the example file")),
            );
            default
        })
    }

    fn required<'a>(&mut self, key: &str, written: Option<&'a Written>, hint: &str) -> &'a str {
        match written {
            Some(written) if !written.0.trim().is_empty() => written.0.trim(),
            _ => {
                self.add(key, "is missing", hint);
                ""
            }
        }
    }
}

/// Checks and types everything; `errors` were found before.
pub(super) fn resolve(
    file: &FileConfig,
    environment: &EnvironmentMap,
    secrets: SecretFiles,
    errors: Vec<ConfigError>,
) -> Result<Config, ConfigErrors> {
    let mut problems = Problems(errors);
    refuse_later_keys(file, &mut problems);
    let flow = flow(file, &mut problems);
    let none = (
        SourceSection::default(),
        TargetSection::default(),
        NatsSection::default(),
    );
    let source = file.source.as_ref().unwrap_or(&none.0);
    let target = file.target.as_ref().unwrap_or(&none.1);
    let nats_section = file.nats.as_ref().unwrap_or(&none.2);
    let libpq = Environment::from_map(environment.clone());
    let source_connect = connect(
        "source.url",
        source.url.as_ref(),
        secrets.source,
        &libpq,
        &mut problems,
    );
    let target_connect = connect(
        "target.url",
        target.url.as_ref(),
        secrets.target,
        &libpq,
        &mut problems,
    );
    let source = resolve_source(&flow, source, source_connect, &mut problems);
    let nats = nats::resolve(
        &flow,
        nats_section,
        environment,
        secrets.nats,
        &mut problems,
    );
    let backfill = backfill::backfill(file, &mut problems);
    let process = resolve_process(file, nats.history.age, &mut problems);
    let (Some(source), Some(connect), true) = (source, target_connect, problems.0.is_empty())
    else {
        return Err(ConfigErrors(problems.0));
    };
    Ok(Config {
        flow,
        source,
        target: Target {
            role: connect.user().to_owned(),
            connect,
        },
        nats,
        backfill,
        process,
    })
}

/// A key that this build does not act on may be there with its default, so that the example file
/// can be used as it is; anything else would be a promise.
fn refuse_later_keys(file: &FileConfig, problems: &mut Problems) {
    let mut file = file.clone();
    let unbreakable: Result<(), std::convert::Infallible> = file.visit("", &mut |key, text| {
        let known = KEYS.iter().find(|known| known.path == key);
        let later = known.filter(|known| known.available == Available::Later);
        if let Some(known) = later
            && known.default != Some(text.trim())
        {
            let default = known.default.unwrap_or("nothing");
            problems.add(
                key,
                format!("{:?} is not available yet", text.trim()),
                format!("leave the key out; this version knows only its default ({default})"),
            );
        }
        Ok(())
    });
    match unbreakable {
        Ok(()) => {}
    }
}

fn flow(file: &FileConfig, problems: &mut Problems) -> FlowName {
    let hint = "name the flow, for example `flow: shop`";
    let text = problems.required("flow", file.flow.as_ref(), hint);
    FlowName::from_str(text).unwrap_or_else(|error| {
        if !text.is_empty() {
            let hint = "slot, stream and subjects take their names from it";
            problems.add("flow", error.to_string(), hint);
        }
        FlowName::from_str("unnamed").expect("a legal name")
    })
}

fn connect(
    key: &str,
    written: Option<&Written>,
    password: Option<SecretString>,
    libpq: &Environment,
    problems: &mut Problems,
) -> Option<ConnectOptions> {
    let hint = "give a connection string, for example postgresql://user@host/database";
    let text = problems.required(key, written, hint);
    if text.is_empty() {
        return None;
    }
    match ConnectOptions::parse(text, libpq) {
        Ok(options) => Some(match password {
            Some(password) => options.with_password(password),
            None => options,
        }),
        Err(error) => {
            problems.add(key, error.reason, error.hint);
            None
        }
    }
}

fn resolve_source(
    flow: &FlowName,
    section: &SourceSection,
    connect: Option<ConnectOptions>,
    problems: &mut Problems,
) -> Option<Source> {
    let nothing = list(section.tables.as_ref()).is_empty();
    if nothing && section.publication.is_none() {
        let hint = "list tables, for example [public.*], or name a publication that exists";
        problems.add("source.tables", "is missing", hint);
    }
    let tables = patterns("source.tables", section.tables.as_ref(), problems);
    let insert_only = section.insert_only.as_ref();
    let insert_only = patterns("source.insert_only", insert_only, problems);
    let publication = named(
        "source.publication",
        section.publication.as_ref(),
        flow,
        problems,
    );
    let slot = slot(section, flow, problems);
    let acknowledge = problems.parsed(
        "source.acknowledge",
        section.acknowledge.as_ref(),
        AcknowledgeSetting::Auto,
        |text| {
            choose(
                text,
                &[
                    ("auto", AcknowledgeSetting::Auto),
                    ("published", AcknowledgeSetting::Published),
                    ("applied", AcknowledgeSetting::Applied),
                ],
            )
        },
    );
    let partitions = problems.parsed(
        "source.partitions",
        section.partitions.as_ref(),
        Partitions::Root,
        |text| {
            let choices = [("root", Partitions::Root), ("leaf", Partitions::Leaf)];
            choose(text, &choices)
        },
    );
    let grace = section.shutdown_grace.as_ref();
    let shutdown_grace = time(problems, "source.shutdown_grace", grace, SHUTDOWN_GRACE);
    let connect = connect?;
    Some(Source {
        role: connect.user().to_owned(),
        connect,
        tables,
        publication,
        slot,
        acknowledge,
        partitions,
        insert_only,
        shutdown_grace,
    })
}

/// Tables by name; each that is none is named.
fn patterns(
    key: &str,
    written: Option<&WrittenList>,
    problems: &mut Problems,
) -> Vec<TablePattern> {
    let mut patterns = Vec::new();
    for text in list(written) {
        match text.parse::<TablePattern>() {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => {
                let hint = "a part with a dot, a space or * in it stands in double quotes";
                problems.add(key, error.to_string(), hint);
            }
        }
    }
    patterns
}

/// PostgreSQL cuts longer identifiers silently, which would make two flows share one object.
fn named(key: &str, written: Option<&Written>, flow: &FlowName, problems: &mut Problems) -> String {
    problems.parsed(key, written, flow.slot(), |text| match text.len() {
        1..=63 => Ok(text.to_owned()),
        length => Err(format!("a name has 1 to 63 bytes, this one {length}")),
    })
}

fn slot(section: &SourceSection, flow: &FlowName, problems: &mut Problems) -> String {
    let slot = named("source.slot", section.slot.as_ref(), flow, problems);
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if !slot.bytes().all(legal) {
        let hint = "PostgreSQL allows a-z, 0-9 and _ in slot names";
        problems.add("source.slot", format!("not a slot name: {slot:?}"), hint);
    }
    slot
}

fn resolve_process(file: &FileConfig, history: Duration, problems: &mut Problems) -> Process {
    let apply = file.apply.as_ref();
    let stall = file.stall_timeout.as_ref();
    let shutdown = file.shutdown_timeout.as_ref();
    Process {
        listen: listen(file, problems),
        batch_bytes: problems.parsed(
            "apply.batch_bytes",
            apply.and_then(|apply| apply.batch_bytes.as_ref()),
            BATCH_BYTES,
            |text| quantity::bytes(text).and_then(|bytes| within(bytes, 64 << 10, 256 << 20)),
        ),
        dedup: dedup(file, history, problems),
        quarantine: quarantine::quarantine(file, problems),
        conflicts: quarantine::conflicts(file, problems),
        role_replica: problems.parsed(
            "apply.role_replica",
            apply.and_then(|apply| apply.role_replica.as_ref()),
            None,
            |text| {
                choose(
                    text,
                    &[("auto", None), ("true", Some(true)), ("false", Some(false))],
                )
            },
        ),
        stall_timeout: time(problems, "stall_timeout", stall, STALL_TIMEOUT),
        shutdown_timeout: time(problems, "shutdown_timeout", shutdown, SHUTDOWN_TIMEOUT),
        on_halt: problems.parsed("halt", file.halt.as_ref(), OnHalt::Stay, |text| {
            choose(text, &[("stay", OnHalt::Stay), ("exit", OnHalt::Exit)])
        }),
    }
}

/// The window may be longer than what the stream can deliver again, never shorter.
fn dedup(file: &FileConfig, history: Duration, problems: &mut Problems) -> Dedup {
    let section = file.dedup.as_ref();
    let auto = (history * 2).max(DEDUP_WINDOW_LEAST);
    Dedup {
        memory: problems.parsed(
            "dedup.memory",
            section.and_then(|dedup| dedup.memory.as_ref()),
            DEDUP_MEMORY,
            |text| {
                quantity::bytes(text).and_then(|bytes| within(bytes, DEDUP_MEMORY_LEAST, 1 << 40))
            },
        ),
        window: problems.parsed(
            "dedup.window",
            section.and_then(|dedup| dedup.window.as_ref()),
            auto,
            |text| match text {
                "auto" => Ok(auto),
                _ => quantity::duration(text).and_then(|window| at_least(window, history)),
            },
        ),
    }
}

fn at_least(window: Duration, history: Duration) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(3650 * 86_400);
    if window < history {
        Err(format!(
            "{window:?} is shorter than the age in nats.history ({history:?}), for which the \
             stream can deliver a transaction again"
        ))
    } else if window > MOST {
        Err("more than ten years".to_owned())
    } else {
        Ok(window)
    }
}

fn listen(file: &FileConfig, problems: &mut Problems) -> Listen {
    let written = file.ops.as_ref().and_then(|ops| ops.listen.as_ref());
    problems.parsed("ops.listen", written, Listen::Default, |text| match text {
        "off" => Ok(Listen::Off),
        _ => text.parse().map(Listen::Address).map_err(|_| {
            format!("not an address with its port (such as 127.0.0.1:9464): {text:?}")
        }),
    })
}

fn time(
    problems: &mut Problems,
    key: &str,
    written: Option<&Written>,
    default: Duration,
) -> Duration {
    problems.parsed(key, written, default, |text| {
        let time = quantity::duration(text)?;
        let sensible = Duration::from_millis(100)..=Duration::from_secs(86_400);
        if sensible.contains(&time) {
            Ok(time)
        } else {
            Err(format!("not within 100ms and 1d: {text:?}"))
        }
    })
}

pub(super) fn within(bytes: u64, least: u64, most: u64) -> Result<u64, String> {
    if (least..=most).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{bytes} bytes is not within {least} and {most}"))
    }
}

pub(super) fn choose<T: Clone>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, value)| value.clone())
        .ok_or_else(|| format!("{text:?} is not one of the choices"))
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    choose(text, &[("true", true), ("false", false)])
}

fn list(written: Option<&WrittenList>) -> Vec<String> {
    let parts = written.map(|list| list.0.as_slice()).unwrap_or_default();
    parts
        .iter()
        .map(|part| part.0.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}
