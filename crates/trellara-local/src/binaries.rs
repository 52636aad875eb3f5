//! Where the servers' programs are.
//!
//! `make servers` unpacks them into one folder with a subfolder per version (`postgres-18`,
//! `nats-2.15.1`). `TRELLARA_SERVERS_DIR` names that folder; without it we look where the script
//! puts it. Reading this one variable here, not in the program, is the exception to "only
//! `trellara` reads the environment": tests of every crate start servers without the program.

use std::path::{Path, PathBuf};

use crate::LocalError;

const VARIABLE: &str = "TRELLARA_SERVERS_DIR";
const ROOT_CACHE: &str = "/var/cache/trellara/servers";
const CHECKOUT_CACHE: &str = ".servers";
const HINT: &str = "run `make servers`";

/// Folder with the programs of one PostgreSQL major version (`postgres`, `initdb`, `psql` …).
pub fn postgres_bin(version: u32) -> Result<PathBuf, LocalError> {
    let mut places: Vec<PathBuf> = server_folders()
        .into_iter()
        .map(|folder| folder.join(format!("postgres-{version}")).join("bin"))
        .collect();
    // What the distribution installed will do as well.
    places.push(PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")));
    find(&format!("PostgreSQL {version}"), places, "initdb").map(|(folder, _)| folder)
}

/// The nats-server of exactly that version.
pub fn nats_server(version: &str) -> Result<PathBuf, LocalError> {
    let places = server_folders()
        .into_iter()
        .map(|folder| folder.join(format!("nats-{version}")))
        .collect();
    find(&format!("nats-server {version}"), places, "nats-server").map(|(_, program)| program)
}

/// The folder of unpacked servers that is in use, when there is one.
pub(crate) fn cache() -> Option<PathBuf> {
    server_folders().into_iter().find(|folder| folder.is_dir())
}

/// Candidates, best first.
fn server_folders() -> Vec<PathBuf> {
    if let Some(chosen) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return vec![PathBuf::from(chosen)];
    }
    let mut folders = vec![PathBuf::from(ROOT_CACHE)];
    // Tests run in their own package's folder; the checkout is somewhere above it.
    if let Ok(here) = std::env::current_dir() {
        folders.extend(here.ancestors().map(|folder| folder.join(CHECKOUT_CACHE)));
    }
    folders
}

fn find(what: &str, places: Vec<PathBuf>, program: &str) -> Result<(PathBuf, PathBuf), LocalError> {
    let found = places.iter().find(|place| place.join(program).is_file());
    match found {
        Some(place) => Ok((place.clone(), place.join(program))),
        None => Err(LocalError::Missing {
            program: what.to_owned(),
            looked: list(&places),
            hint: HINT.to_owned(),
        }),
    }
}

/// The first and last places suffice for a person; the rest are the folders between.
fn list(places: &[PathBuf]) -> String {
    let shown: Vec<String> = places
        .iter()
        .take(3)
        .map(|place: &PathBuf| show(place))
        .collect();
    shown.join(", ")
}

fn show(place: &Path) -> String {
    place.display().to_string()
}
