//! `trellara.yml` in two steps: as written ([`file`]), then resolved ([`resolve`]).
//!
//! Only this module knows YAML and environment variables; the libraries receive plain structs.

mod backfill;
mod defaults;
mod expand;
mod file;
mod keys;
mod model;
mod nats;
mod quantity;
mod quarantine;
mod resolve;
mod rules;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use secrecy::SecretString;

pub(crate) use defaults::*;
pub(crate) use keys::{Available, KEYS, Key};
pub(crate) use model::{AcknowledgeSetting, BrokerSetting, Config, Existing, Listen, OnHalt};

pub(crate) use quantity::{bytes, duration, size};

use file::{FileConfig, Node};

/// The process environment, read once in `main` and passed down.
pub(crate) type EnvironmentMap = BTreeMap<String, String>;

/// A key of the configuration that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError {
    pub(crate) key: Option<String>,
    pub(crate) reason: String,
    pub(crate) hint: String,
}

/// Everything wrong with a configuration, found in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigErrors(pub(crate) Vec<ConfigError>);

impl ConfigError {
    fn key(key: &str, reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            key: Some(key.to_owned()),
            reason: reason.into(),
            hint: hint.into(),
        }
    }

    fn file(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            key: None,
            reason: reason.into(),
            hint: hint.into(),
        }
    }

    fn unknown_key(key: &str, origin: &str) -> Self {
        let hint = match keys::nearest(key) {
            Some(near) => format!("did you mean {near}? `trellara config schema` lists every key"),
            None => "`trellara config schema` lists every key".to_owned(),
        };
        Self::key(key, format!("there is no such key ({origin})"), hint)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{key}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

/// Passwords from files of their own, read before the rest is resolved without I/O.
#[derive(Default)]
pub(crate) struct SecretFiles {
    source: Option<SecretString>,
    target: Option<SecretString>,
    nats: Option<SecretString>,
}

/// Reads and resolves the file at `path`.
pub(crate) fn load(path: &Path, environment: &EnvironmentMap) -> Result<Config, ConfigErrors> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        ConfigError::file(
            format!("cannot read {}: {error}", path.display()),
            "give the file with --config; trellara.yml.example shows every key",
        )
    })?;
    let (written, mut errors) = written(&text, environment)?;
    let secrets = read_secrets(&written, &mut errors);
    let mut config = resolve::resolve(&written, environment, secrets, errors)?;
    name_daemon_roles(&text, environment, &mut config);
    Ok(config)
}

/// `TRELLARA__TARGET__URL=…admin… trellara setup` gives one command other rights; whose rights its
/// checks are about stays what the file says. A file that cannot do without the override names
/// nobody, and then the override's own user is meant.
fn name_daemon_roles(text: &str, environment: &EnvironmentMap, config: &mut Config) {
    let Ok(mut file) = parse(text) else { return };
    let mut errors = Vec::new();
    expand::variables(&mut file, environment, &mut errors);
    if !errors.is_empty() {
        return;
    }
    let libpq = trellara_postgres::Environment::from_map(environment.clone());
    let user = |url: Option<&file::Written>| {
        let options = trellara_postgres::ConnectOptions::parse(url?.0.trim(), &libpq).ok()?;
        Some(options.user().to_owned())
    };
    if let Some(role) = user(
        file.source
            .as_ref()
            .and_then(|section| section.url.as_ref()),
    ) {
        config.source.role = role;
    }
    if let Some(role) = user(
        file.target
            .as_ref()
            .and_then(|section| section.url.as_ref()),
    ) {
        config.target.role = role;
    }
}

/// The written form with overrides and variables applied, and the keys that are wrong so far; only
/// a text that is no configuration at all ends the search for more.
fn written(
    text: &str,
    environment: &EnvironmentMap,
) -> Result<(FileConfig, Vec<ConfigError>), ConfigErrors> {
    let mut file = parse(text)?;
    let mut unknown = Vec::new();
    file.unknown("", &mut unknown);
    let mut errors: Vec<ConfigError> = unknown
        .iter()
        .map(|key| ConfigError::unknown_key(key, "from the file"))
        .collect();
    expand::overrides(&mut file, environment, &mut errors);
    expand::variables(&mut file, environment, &mut errors);
    Ok((file, errors))
}

fn parse(text: &str) -> Result<FileConfig, ConfigError> {
    if text.trim().is_empty() {
        return Ok(FileConfig::default());
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let message = without_secrets(&error.to_string());
        let hint = "`trellara config schema` lists every key with its form";
        ConfigError::file(message, hint)
    })
}

/// The parser quotes the lines around an error, and one of them may hold a password.
fn without_secrets(message: &str) -> String {
    let hide_line = |line: &str| {
        let lower = line.to_ascii_lowercase();
        let holds_one = lower.contains("://") && lower.contains('@') || lower.contains("password");
        match line.split_once(':') {
            Some((before, _)) if holds_one && line.contains('|') => format!("{before}: (hidden)"),
            _ if holds_one && line.contains("://") => {
                "(a line with a connection string)".to_owned()
            }
            _ => line.to_owned(),
        }
    };
    message
        .lines()
        .map(hide_line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn read_secrets(file: &FileConfig, errors: &mut Vec<ConfigError>) -> SecretFiles {
    let mut read = |key: &str, path: Option<&file::Written>| -> Option<SecretString> {
        let path = path?;
        match std::fs::read_to_string(&path.0) {
            Ok(text) => Some(SecretString::from(
                text.trim_end_matches(['\r', '\n']).to_owned(),
            )),
            Err(error) => {
                let reason = format!("cannot read {}: {error}", path.0);
                errors.push(ConfigError::key(key, reason, "check path and rights"));
                None
            }
        }
    };
    let source = file
        .source
        .as_ref()
        .and_then(|section| section.password_file.as_ref());
    let target = file
        .target
        .as_ref()
        .and_then(|section| section.password_file.as_ref());
    let nats = file
        .nats
        .as_ref()
        .and_then(|section| section.password_file.as_ref());
    SecretFiles {
        source: read("source.password_file", source),
        target: read("target.password_file", target),
        nats: read("nats.password_file", nats),
    }
}
