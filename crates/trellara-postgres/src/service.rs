//! Connection service files: named sets of connection options.

use std::fs;
use std::path::{Path, PathBuf};

use crate::conninfo::{Settings, known_key};
use crate::{ConnectStringError, Environment};

/// Adds what the named service says and the connection string does not.
pub(crate) fn apply(
    settings: &mut Settings,
    environment: &Environment,
) -> Result<(), ConnectStringError> {
    let named = |key: &str, variable: &str| {
        settings
            .get(key)
            .map(String::as_str)
            .or(environment.get(variable))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    };
    let Some(service) = named("service", "PGSERVICE") else {
        return Ok(());
    };
    let explicit = named("servicefile", "PGSERVICEFILE").map(PathBuf::from);
    let candidates = match explicit {
        Some(path) => vec![path],
        None => {
            let home = environment
                .get("HOME")
                .map(|home| Path::new(home).join(".pg_service.conf"));
            let system = environment
                .get("PGSYSCONFDIR")
                .map(|folder| Path::new(folder).join("pg_service.conf"));
            home.into_iter().chain(system).collect()
        }
    };
    for path in &candidates {
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        if let Some(found) = read(&text, &service, path)? {
            for (key, value) in found {
                settings.entry(key).or_insert(value);
            }
            return Ok(());
        }
    }
    let where_looked = candidates
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ");
    Err(ConnectStringError::new(
        format!("the connection service {service:?} is not defined"),
        format!("looked for [{service}] in: {where_looked}"),
    ))
}

/// The section of the service, if the file has it.
fn read(
    text: &str,
    service: &str,
    path: &Path,
) -> Result<Option<Vec<(&'static str, String)>>, ConnectStringError> {
    let mut found: Option<Vec<(&'static str, String)>> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            if name == service {
                found = Some(Vec::new());
            }
            continue;
        }
        let Some(section) = &mut found else { continue };
        let at = || format!("{} line {}", path.display(), number + 1);
        let Some((key, value)) = line.split_once('=') else {
            return Err(ConnectStringError::new(
                format!("{} is not of the form key=value", at()),
                "one option a line, without quotes",
            ));
        };
        let key = known_key(key).map_err(|error| {
            ConnectStringError::new(format!("{}: {}", at(), error.reason), error.hint)
        })?;
        if matches!(key, "service" | "servicefile") {
            return Err(ConnectStringError::new(
                format!("{} names another service", at()),
                "services cannot be nested",
            ));
        }
        section.push((key, value.to_owned()));
    }
    Ok(found)
}
