//! The `nats:` section: which broker, how to convince it, how much of it to use.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use trellara_envelope::FlowName;
use trellara_jetstream::{Credentials, NatsOptions, TlsOptions};

use super::file::{NatsSection, Written};
use super::model::{BrokerSetting, History, Nats};
use super::resolve::{Problems, boolean, choose, within};
use super::{EnvironmentMap, HISTORY_AGE, HISTORY_BYTES, REPLICAS, quantity};

pub(super) fn resolve(
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
    refuse_idle_keys(section, problems);
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
        monitors: monitors(section.monitor_url.as_ref(), problems),
    }
}

/// Keys that only a broker of the other kind has: nobody would look at them, whatever they say.
/// What says no more than the default promises nothing.
fn refuse_idle_keys(section: &NatsSection, problems: &mut Problems) {
    let external = [
        ("nats.password_file", &section.password_file, None),
        ("nats.credentials_file", &section.credentials_file, None),
        ("nats.tls_ca", &section.tls_ca, None),
        ("nats.tls_cert", &section.tls_cert, None),
        ("nats.tls_key", &section.tls_key, None),
        ("nats.replicas", &section.replicas, Some("1")),
        ("nats.durable", &section.durable, Some("false")),
        ("nats.monitor_url", &section.monitor_url, None),
    ];
    let embedded = [
        ("nats.server", &section.server, None),
        ("nats.store_dir", &section.store_dir, None),
    ];
    let (idle, reason, hint) = match &section.url {
        None => (
            external.as_slice(),
            "is about a broker that nats.url names, and the file names none",
            "set nats.url, or leave the key out: the embedded broker is one server with a password of its own",
        ),
        Some(_) => (
            embedded.as_slice(),
            "is about the embedded broker, and nats.url names another",
            "leave the key out, or nats.url",
        ),
    };
    for (key, written, default) in idle {
        if let Some(written) = written
            && *default != Some(written.0.trim())
        {
            problems.add(key, reason, hint);
        }
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
    check_url(&url, problems);
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

/// `host`, `host:port` or `scheme://…`, several parted by commas. The reason never shows the text,
/// which may hold a password.
fn check_url(url: &str, problems: &mut Problems) {
    let usable = |server: &str| match server.trim().split_once("://") {
        Some((scheme, rest)) => matches!(scheme, "nats" | "tls" | "ws" | "wss") && !rest.is_empty(),
        None => !server.trim().is_empty(),
    };
    if !url.split(',').all(usable) {
        let hint =
            "write nats://host:4222, several servers parted by commas; or tls://, ws://, wss://";
        problems.add("nats.url", "is not the address of a NATS server", hint);
    }
}

/// `host:port` of each monitor in `http://host:port`, several parted by commas; without a port the
/// usual one. The reason never shows the text, which may hold a password.
fn monitors(written: Option<&Written>, problems: &mut Problems) -> Vec<String> {
    const USUAL_PORT: u16 = 8222;
    let Some(written) = written else {
        return Vec::new();
    };
    let address = |monitor: &str| {
        let monitor = monitor.trim();
        let address = monitor.strip_prefix("http://").unwrap_or(monitor);
        let address = address.strip_suffix('/').unwrap_or(address);
        let (host, port) = match address.rsplit_once(':') {
            // The colons of an IPv6 address stand in brackets.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().ok()?),
            _ => (address, USUAL_PORT),
        };
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let legal = match inner {
            Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let part = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
                !host.is_empty() && host.chars().all(part)
            }
        };
        (legal && port > 0).then(|| format!("{host}:{port}"))
    };
    let all: Option<Vec<String>> = written.0.split(',').map(address).collect();
    all.unwrap_or_else(|| {
        let hint = "write http://host:8222, several servers parted by commas; TLS, users and paths are not supported";
        problems.add(
            "nats.monitor_url",
            "is not the address of a NATS server's monitor",
            hint,
        );
        Vec::new()
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
