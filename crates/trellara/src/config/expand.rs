//! `${VAR}` inside values, and `TRELLARA__A__B` overrides of whole keys.

use std::convert::Infallible;

use super::file::{FileConfig, Node};
use super::{ConfigError, EnvironmentMap};

/// Environment variables that override keys begin with this; levels are parted by `__`.
const OVERRIDE_PREFIX: &str = "TRELLARA__";

/// Replaces `${NAME}` in every written value. `$${` stands for a literal `${`; a `$` elsewhere is
/// an ordinary character, because passwords are full of them.
pub(super) fn variables(
    file: &mut FileConfig,
    environment: &EnvironmentMap,
    errors: &mut Vec<ConfigError>,
) {
    let unbreakable: Result<(), Infallible> = file.visit("", &mut |key, text| {
        match expand(key, text, environment) {
            Ok(expanded) => *text = expanded,
            Err(error) => errors.push(error),
        }
        Ok(())
    });
    match unbreakable {
        Ok(()) => {}
    }
}

fn expand(key: &str, text: &str, environment: &EnvironmentMap) -> Result<String, ConfigError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(literal) = before.strip_suffix('$') {
            out.push_str(literal);
            out.push_str("${");
            rest = &from[2..];
            continue;
        }
        let end = from.find('}').ok_or_else(|| {
            ConfigError::key(
                key,
                "a `${` is not closed",
                "write ${NAME}, or $${ for a literal ${",
            )
        })?;
        let name = &from[2..end];
        let value = environment.get(name).ok_or_else(|| {
            ConfigError::key(
                key,
                format!("the environment has no variable {name:?}"),
                "set it, or write the value itself",
            )
        })?;
        out.push_str(before);
        out.push_str(value);
        rest = &from[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Applies the overrides; an override of a key that does not exist is an error like in the file.
pub(super) fn overrides(
    file: &mut FileConfig,
    environment: &EnvironmentMap,
    errors: &mut Vec<ConfigError>,
) {
    for (name, value) in environment {
        let Some(path) = name.strip_prefix(OVERRIDE_PREFIX) else {
            continue;
        };
        let path = path.to_ascii_lowercase();
        let parts: Vec<&str> = path.split("__").collect();
        if !file.set(&parts, value) {
            let origin = format!("from {name}");
            errors.push(ConfigError::unknown_key(&parts.join("."), &origin));
        }
    }
}
