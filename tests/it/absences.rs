//! The absences of `docs/architecture.md`: which crate must not know which, and what only one of
//! them may know. Read from `cargo metadata` and, where no dependency tells, from the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Every crate of ours and its layer; arrows go to lower numbers. A new crate fails until somebody
/// says here where it stands.
const LAYERS: &[(&str, u32)] = &[
    ("trellara-e2e", 5),
    ("trellara-testkit", 4),
    ("trellara", 3),
    ("trellara-relay", 2),
    ("trellara-applier", 2),
    ("trellara-verify", 2),
    ("trellara-source", 1),
    ("trellara-jetstream", 1),
    ("trellara-postgres", 1),
    ("trellara-local", 1),
    ("trellara-crashpoints", 1),
    ("trellara-dedup", 0),
    ("trellara-pgoutput", 0),
    ("trellara-envelope", 0),
];

/// The edges inside a layer that the map shows.
const SIDEWAYS: &[(&str, &str)] = &[
    ("trellara-source", "trellara-postgres"),
    ("trellara-pgoutput", "trellara-envelope"),
];

const WORDS: &[&str] = &["trellara-envelope", "trellara-pgoutput", "trellara-dedup"];

/// Runtimes, sockets, clocks and chance, by the crates that bring them.
const IMPURE: &[&str] = &[
    "tokio",
    "async-nats",
    "futures-util",
    "mio",
    "socket2",
    "rustls",
    "nix",
    "libc",
    "tempfile",
    "rand",
    "getrandom",
    "fastrand",
    "time",
    "chrono",
    "jiff",
    "tracing",
];

/// Dependencies of our crates: `(from, to)` over normal edges only, and over development edges.
struct Graph {
    root: PathBuf,
    ours: BTreeSet<String>,
    normal: BTreeMap<String, BTreeSet<String>>,
    development: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read() -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // A build fetches the crates of its own platform only; those of others are not here.
        let version = Command::new(&cargo).arg("-vV").output()?.stdout;
        let version = String::from_utf8(version)?;
        let mut lines = version.lines();
        let host = lines
            .find_map(|line| line.strip_prefix("host: "))
            .context("cargo names its host")?;
        let output = Command::new(&cargo)
            .args(["metadata", "--format-version", "1", "--offline"])
            .args(["--filter-platform", host])
            .output()
            .context("running cargo metadata")?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();

        let names: BTreeMap<String, String> = list(&metadata["packages"])
            .iter()
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let ours = list(&metadata["workspace_members"]);
        let mut graph = Self {
            root: text(&metadata["workspace_root"]).into(),
            ours: ours
                .iter()
                .filter_map(|id| names.get(&text(id)).cloned())
                .collect(),
            normal: BTreeMap::new(),
            development: BTreeMap::new(),
        };
        for node in list(&metadata["resolve"]["nodes"]) {
            let from = names.get(&text(&node["id"])).cloned().unwrap_or_default();
            for edge in list(&node["deps"]) {
                let to = names.get(&text(&edge["pkg"])).cloned().unwrap_or_default();
                for kind in list(&edge["dep_kinds"]) {
                    let edges = match kind["kind"].as_str() {
                        None => &mut graph.normal,
                        Some("dev") => &mut graph.development,
                        // What a build script uses does not end up in the crate.
                        Some(_) => continue,
                    };
                    edges.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        ensure!(
            graph.ours.len() >= 10,
            "cargo metadata names only {:?}",
            graph.ours
        );
        Ok(graph)
    }

    fn direct(&self, from: &str) -> BTreeSet<String> {
        self.normal.get(from).cloned().unwrap_or_default()
    }

    /// Everything that `from` is built with.
    fn reachable(&self, from: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(name) = open.pop() {
            for next in self.direct(&name) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        seen
    }

    /// The lines of a crate's own sources, each as `file:line: text`.
    fn source_lines(&self, name: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        read_sources(&self.root.join("crates").join(name).join("src"), &mut lines)?;
        Ok(lines)
    }
}

fn read_sources(folder: &Path, lines: &mut Vec<String>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            read_sources(&path, lines)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let numbered = text.lines().enumerate();
            lines.extend(
                numbered.map(|(at, line)| format!("{}:{}: {line}", path.display(), at + 1)),
            );
        }
    }
    Ok(())
}

fn layer(name: &str) -> Result<u32> {
    let found = LAYERS.iter().find(|(known, _)| *known == name);
    found
        .map(|(_, layer)| *layer)
        .with_context(|| format!("{name} stands in no layer"))
}

#[test]
fn absences_arrows_go_downwards_only() -> Result<()> {
    let graph = Graph::read()?;
    for from in &graph.ours {
        for to in graph.direct(from).intersection(&graph.ours) {
            let sideways = SIDEWAYS.contains(&(from.as_str(), to.as_str()));
            ensure!(
                sideways || layer(to)? < layer(from)?,
                "{from} depends on {to}"
            );
        }
    }
    Ok(())
}

#[test]
fn absences_words_know_no_runtime_no_clock_and_no_chance() -> Result<()> {
    let graph = Graph::read()?;
    for word in WORDS.iter().filter(|word| graph.ours.contains(**word)) {
        let reachable = graph.reachable(word);
        let impure: Vec<_> = IMPURE
            .iter()
            .filter(|name| reachable.contains(**name))
            .collect();
        ensure!(impure.is_empty(), "{word} is built with {impure:?}");
        // Clocks, files and variables of the standard library are refused by clippy.
        let rules =
            std::fs::read_to_string(graph.root.join("crates").join(word).join("clippy.toml"));
        let rules = rules.with_context(|| format!("{word} has no clippy.toml"))?;
        for method in ["Instant::now", "SystemTime::now", "env::var", "File::open"] {
            ensure!(rules.contains(method), "{word} may call {method}");
        }
    }
    Ok(())
}

#[test]
fn absences_relay_and_applier_never_meet_and_the_judge_is_independent() -> Result<()> {
    let graph = Graph::read()?;
    let forbidden: &[(&str, &[&str])] = &[
        ("trellara-relay", &["trellara-applier", "trellara-verify"]),
        (
            "trellara-applier",
            &["trellara-relay", "trellara-source", "trellara-verify"],
        ),
        (
            "trellara-verify",
            &[
                "trellara-relay",
                "trellara-applier",
                "trellara-source",
                "trellara-jetstream",
                "trellara-pgoutput",
            ],
        ),
    ];
    for (from, never) in forbidden {
        let reachable = graph.reachable(from);
        for to in *never {
            ensure!(!reachable.contains(*to), "{from} is built with {to}");
        }
    }
    Ok(())
}

#[test]
fn absences_only_the_program_knows_yaml_arguments_and_the_environment() -> Result<()> {
    let graph = Graph::read()?;
    for name in graph
        .ours
        .iter()
        .filter(|name| *name != "trellara" && *name != "trellara-e2e")
    {
        let direct = graph.direct(name);
        for only in [
            "clap",
            "clap_complete",
            "clap_mangen",
            "serde-saphyr",
            "anyhow",
        ] {
            let allowed = only == "anyhow" && name == "trellara-testkit";
            ensure!(
                allowed || !direct.contains(only),
                "{name} depends on {only}"
            );
        }
        // The testkit stands in for a user; local finds the servers for tests of every crate; crash
        // points are not in the shipped program.
        let exempt = |line: &str| {
            name == "trellara-testkit"
                || name == "trellara-crashpoints"
                || (name == "trellara-local" && line.contains("/binaries.rs:"))
        };
        for line in graph.source_lines(name)? {
            ensure!(!line.contains("env::var") || exempt(&line), "{line}");
        }
    }
    Ok(())
}

/// A crash point must not be there to be come by in a program that somebody runs.
#[test]
fn absences_crash_points_are_for_the_black_box_tests_alone() -> Result<()> {
    let graph = Graph::read()?;
    let mut manifests = vec![graph.root.join("Cargo.toml")];
    for entry in std::fs::read_dir(graph.root.join("crates"))? {
        manifests.push(entry?.path().join("Cargo.toml"));
    }
    let switches_on = |path: &Path| -> Result<bool> {
        let text = std::fs::read_to_string(path)?;
        let uses = |line: &str| line.contains("trellara-crashpoints") && line.contains("features");
        Ok(text.lines().any(uses))
    };
    for manifest in manifests {
        ensure!(!switches_on(&manifest)?, "{}", manifest.display());
    }
    ensure!(switches_on(&graph.root.join("tests/Cargo.toml"))?);
    Ok(())
}

#[test]
fn absences_only_wire_and_report_types_are_serialised() -> Result<()> {
    let graph = Graph::read()?;
    let may = [
        "trellara",
        "trellara-envelope",
        "trellara-testkit",
        "trellara-e2e",
    ];
    for name in graph
        .ours
        .iter()
        .filter(|name| !may.contains(&name.as_str()))
    {
        for line in graph.source_lines(name)? {
            let derived = line.contains("derive(") && line.contains("Serialize");
            ensure!(!derived && !line.contains("Serialize for"), "{line}");
        }
    }
    Ok(())
}

#[test]
fn absences_the_testkit_is_for_tests_alone() -> Result<()> {
    let graph = Graph::read()?;
    for name in graph.ours.iter().filter(|name| *name != "trellara-testkit") {
        ensure!(
            !graph.direct(name).contains("trellara-testkit"),
            "{name} ships the testkit"
        );
    }
    let users = graph
        .development
        .iter()
        .filter(|(_, to)| to.contains("trellara-testkit"));
    ensure!(
        users.count() > 0,
        "nobody uses the testkit: the edges were not read"
    );
    Ok(())
}

/// What the pure modules are given and never fetch: time, chance, and something to wait on.
const FETCHED: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "rand",
    "tokio",
    "async fn",
    ".await",
];

/// The modules that decide, by crate and the first word of their file's path.
const PURE: &[(&str, &[&str])] = &[
    ("trellara-relay", &["machine", "resume"]),
    ("trellara-applier", &["machine", "plan"]),
];

/// Whether `line` has `word`, and not as a part of another.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c == '_' || c.is_ascii_alphanumeric();
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

#[test]
fn absences_what_decides_knows_no_clock_no_chance_and_no_runtime() -> Result<()> {
    assert!(has_word("use tokio::time;", "tokio") && !has_word("tokio_postgres::x", "tokio"));
    assert!(has_word("rand::random()", "rand") && !has_word("operands", "rand"));
    let graph = Graph::read()?;
    for (name, modules) in PURE {
        let folder = graph.root.join("crates").join(name).join("src");
        let folder = format!("{}/", folder.display());
        let mut seen = BTreeSet::new();
        for line in graph.source_lines(name)? {
            let (path, text) = line.split_once(".rs:").context("file:line: text")?;
            let path = path.strip_prefix(&folder).context("a path below src")?;
            let module = path.split('/').next().unwrap_or_default();
            // Tests may draw lots and compare with the clock.
            let test = path
                .split('/')
                .any(|part| part == "tests" || part == "testing");
            let comment = text
                .split(": ")
                .nth(1)
                .is_some_and(|text| text.trim_start().starts_with("//"));
            if !modules.contains(&module) || test || comment {
                continue;
            }
            seen.insert(module.to_owned());
            let fetched = FETCHED.iter().find(|word| has_word(text, word));
            ensure!(fetched.is_none(), "{fetched:?} in {line}");
        }
        ensure!(
            seen.len() == modules.len(),
            "{name}: only {seen:?} were read"
        );
    }
    Ok(())
}
