//! From what was written to what is meant: typed, defaulted, and checked as far as no I/O is
//! needed. All errors are found in one run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use secrecy::SecretString;
use trellara_envelope::FlowName;
use trellara_jetstream::{Credentials, NatsOptions, TlsOptions};
use trellara_postgres::{ConnectOptions, Environment};

use super::file::{
    FileConfig, NatsSection, Node, SourceSection, TargetSection, Written, WrittenList,
};
use super::{
    Available, BATCH_BYTES, ConfigError, ConfigErrors, EnvironmentMap, HISTORY_AGE, HISTORY_BYTES,
    KEYS, REPLICAS, SHUTDOWN_GRACE, SHUTDOWN_TIMEOUT, STALL_TIMEOUT, SecretFiles, quantity,
};

/// A configuration that can be acted on.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) flow: FlowName,
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) nats: Nats,
    pub(crate) process: Process,
}

/// How the daemons behave.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) listen: Listen,
    /// `backfill.mode: none`: the operator says that the target was loaded by other means.
    pub(crate) rows_loaded_elsewhere: bool,
    pub(crate) batch_bytes: u64,
    /// Whether to apply under the replica role; `None` where the role may.
    pub(crate) role_replica: Option<bool>,
    pub(crate) stall_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) on_halt: OnHalt,
}

/// The source.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) connect: ConnectOptions,
    pub(crate) tables: Vec<String>,
    pub(crate) publication: String,
    pub(crate) slot: String,
    pub(crate) acknowledge: AcknowledgeSetting,
    pub(crate) insert_only: Vec<String>,
    pub(crate) shutdown_grace: Duration,
}

/// `source.acknowledge` as written; what `auto` means is found out with the broker (C28).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcknowledgeSetting {
    Auto,
    Published,
    Applied,
}

/// The target.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) connect: ConnectOptions,
}

/// The stream and its broker.
#[derive(Debug, Clone)]
pub(crate) struct Nats {
    pub(crate) broker: BrokerSetting,
    /// `None`: as much as the broker's kind allows.
    pub(crate) max_bytes: Option<u64>,
    /// `None`: half of the stream's limit.
    pub(crate) open_bytes: Option<u64>,
    pub(crate) history: History,
    pub(crate) replicas: usize,
    pub(crate) durable: bool,
    pub(crate) monitor_url: Option<String>,
}

/// Which broker.
#[derive(Debug, Clone)]
pub(crate) enum BrokerSetting {
    /// One that runs somewhere. The client name is filled in by the command.
    External(NatsOptions),
    /// Ours, started by `trellara run`.
    Embedded {
        server: Option<PathBuf>,
        store_dir: PathBuf,
    },
}

/// `nats.history`: whichever is reached first ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) age: Duration,
    pub(crate) bytes: u64,
}

/// `ops.listen`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    /// The daemon's usual port on loopback.
    Default,
    Address(SocketAddr),
    Off,
}

/// `halt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnHalt {
    Stay,
    Exit,
}

/// Collects errors, so that one run names them all.
struct Problems(Vec<ConfigError>);

impl Problems {
    fn add(&mut self, key: &str, reason: impl Into<String>, hint: impl Into<String>) {
        self.0.push(ConfigError::key(key, reason, hint));
    }

    fn parsed<T>(
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

/// Checks and types everything.
pub(super) fn resolve(
    file: &FileConfig,
    environment: &EnvironmentMap,
    secrets: SecretFiles,
) -> Result<Config, ConfigErrors> {
    let mut problems = Problems(Vec::new());
    refuse_later_keys(file, &mut problems);
    let flow = flow(file, &mut problems);
    let none = (
        SourceSection::default(),
        TargetSection::default(),
        NatsSection::default(),
    );
    let source = file.source.as_ref().unwrap_or(&none.0);
    let target = file.target.as_ref().unwrap_or(&none.1);
    let nats = file.nats.as_ref().unwrap_or(&none.2);
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
    let nats = resolve_nats(&flow, nats, environment, secrets.nats, &mut problems);
    let process = resolve_process(file, &mut problems);
    let (Some(source), Some(connect), true) = (source, target_connect, problems.0.is_empty())
    else {
        return Err(ConfigErrors(problems.0));
    };
    Ok(Config {
        flow,
        source,
        target: Target { connect },
        nats,
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
    let tables = list(section.tables.as_ref());
    if tables.is_empty() && section.publication.is_none() {
        let hint = "list tables, for example [public.*], or name a publication that exists";
        problems.add("source.tables", "is missing", hint);
    }
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
    let grace = section.shutdown_grace.as_ref();
    let shutdown_grace = time(problems, "source.shutdown_grace", grace, SHUTDOWN_GRACE);
    Some(Source {
        connect: connect?,
        tables,
        publication,
        slot,
        acknowledge,
        insert_only: list(section.insert_only.as_ref()),
        shutdown_grace,
    })
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

fn resolve_nats(
    flow: &FlowName,
    section: &NatsSection,
    environment: &EnvironmentMap,
    password: Option<SecretString>,
    problems: &mut Problems,
) -> Nats {
    let size = |text: &str| match text {
        "auto" => Ok(None),
        _ => quantity::bytes(text).and_then(|bytes| within(bytes, 1 << 20, 1 << 60).map(Some)),
    };
    let max_bytes = problems.parsed("nats.max_bytes", section.max_bytes.as_ref(), None, size);
    let open_bytes = problems.parsed("nats.open_bytes", section.open_bytes.as_ref(), None, size);
    if let (Some(open), Some(max)) = (open_bytes, max_bytes)
        && open >= max
    {
        let hint = "open transactions may fill a part of the stream, never all of it";
        problems.add("nats.open_bytes", "is not below nats.max_bytes", hint);
    }
    Nats {
        broker: broker(flow, section, environment, password, problems),
        max_bytes,
        open_bytes,
        history: problems.parsed("nats.history", section.history.as_ref(), HISTORY, history),
        replicas: problems.parsed(
            "nats.replicas",
            section.replicas.as_ref(),
            REPLICAS,
            |text| choose(text, &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5)]),
        ),
        durable: problems.parsed("nats.durable", section.durable.as_ref(), false, boolean),
        monitor_url: section
            .monitor_url
            .as_ref()
            .map(|written| written.0.trim().to_owned()),
    }
}

const HISTORY: History = History {
    age: HISTORY_AGE,
    bytes: HISTORY_BYTES,
};

/// `1h`, `1GiB` or both, parted by `or` or a comma.
fn history(text: &str) -> Result<History, String> {
    let mut history = History {
        age: Duration::MAX,
        bytes: u64::MAX,
    };
    for part in text.split(" or ").flat_map(|part| part.split(',')) {
        match (quantity::duration(part), quantity::bytes(part)) {
            (Ok(age), _) => history.age = age,
            (Err(_), Ok(bytes)) => history.bytes = bytes,
            (Err(_), Err(_)) => return Err(format!("neither a duration nor a size: {part:?}")),
        }
    }
    Ok(history)
}

fn broker(
    flow: &FlowName,
    section: &NatsSection,
    environment: &EnvironmentMap,
    password: Option<SecretString>,
    problems: &mut Problems,
) -> BrokerSetting {
    let path =
        |written: &Option<Written>| written.as_ref().map(|written| PathBuf::from(&written.0));
    let Some(url) = section.url.as_ref().map(|url| url.0.trim().to_owned()) else {
        let store_dir = path(&section.store_dir).unwrap_or_else(|| state_dir(flow, environment));
        return BrokerSetting::Embedded {
            server: path(&section.server),
            store_dir,
        };
    };
    if section.tls_cert.is_some() != section.tls_key.is_some() {
        let hint = "a client certificate needs both nats.tls_cert and nats.tls_key";
        problems.add("nats.tls_cert", "is alone", hint);
    }
    let credentials = match (path(&section.credentials_file), password) {
        (Some(_), Some(_)) => {
            let hint = "keep nats.credentials_file or nats.password_file, not both";
            problems.add(
                "nats.credentials_file",
                "contradicts nats.password_file",
                hint,
            );
            Credentials::None
        }
        (Some(file), None) => Credentials::CredentialsFile(file),
        (None, Some(password)) => match user_of(&url) {
            Some(user) => Credentials::UserPassword { user, password },
            None => Credentials::Token(password),
        },
        (None, None) => Credentials::None,
    };
    BrokerSetting::External(NatsOptions {
        url,
        credentials,
        tls: TlsOptions {
            required: false,
            first: false,
            ca_file: path(&section.tls_ca),
            certificate_file: path(&section.tls_cert),
            key_file: path(&section.tls_key),
        },
        client_name: String::new(),
        inbox_prefix: String::new(),
    })
}

/// The user in `nats://user@host`; with `nats.password_file` and no user the file is a token.
fn user_of(url: &str) -> Option<String> {
    let (_, rest) = url.split(',').next()?.split_once("://")?;
    let (user, _) = rest.rsplit_once('@')?;
    let user = user.split_once(':').map_or(user, |(user, _)| user);
    (!user.is_empty()).then(|| user.to_owned())
}

/// Where a service keeps what must survive: systemd's folder, else the usual ones.
fn state_dir(flow: &FlowName, environment: &EnvironmentMap) -> PathBuf {
    let directory = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let base = if let Some(systemd) = directory("STATE_DIRECTORY") {
        PathBuf::from(systemd.split(':').next().unwrap_or(systemd))
    } else if let Some(xdg) = directory("XDG_STATE_HOME") {
        PathBuf::from(xdg).join("trellara")
    } else if let Some(home) = directory("HOME") {
        PathBuf::from(home).join(".local/state/trellara")
    } else {
        PathBuf::from("/var/lib/trellara")
    };
    base.join(flow.as_str())
}

fn resolve_process(file: &FileConfig, problems: &mut Problems) -> Process {
    let apply = file.apply.as_ref();
    let stall = file.stall_timeout.as_ref();
    let shutdown = file.shutdown_timeout.as_ref();
    Process {
        listen: listen(file, problems),
        rows_loaded_elsewhere: backfill_mode(file, problems),
        batch_bytes: problems.parsed(
            "apply.batch_bytes",
            apply.and_then(|apply| apply.batch_bytes.as_ref()),
            BATCH_BYTES,
            |text| quantity::bytes(text).and_then(|bytes| within(bytes, 64 << 10, 256 << 20)),
        ),
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

fn listen(file: &FileConfig, problems: &mut Problems) -> Listen {
    let written = file.ops.as_ref().and_then(|ops| ops.listen.as_ref());
    problems.parsed("ops.listen", written, Listen::Default, |text| match text {
        "off" => Ok(Listen::Off),
        _ => text.parse().map(Listen::Address).map_err(|_| {
            format!("not an address with its port (such as 127.0.0.1:9464): {text:?}")
        }),
    })
}

fn backfill_mode(file: &FileConfig, problems: &mut Problems) -> bool {
    let written = file
        .backfill
        .as_ref()
        .and_then(|backfill| backfill.mode.as_ref());
    problems.parsed("backfill.mode", written, false, |text| match text {
        "none" => Ok(true),
        _ => Err(format!("{text:?} is not available yet")),
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

fn within(bytes: u64, least: u64, most: u64) -> Result<u64, String> {
    if (least..=most).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{bytes} bytes is not within {least} and {most}"))
    }
}

fn choose<T: Clone>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, value)| value.clone())
        .ok_or_else(|| format!("{text:?} is not one of the choices"))
}

fn boolean(text: &str) -> Result<bool, String> {
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
