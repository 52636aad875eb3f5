//! One flow under test: two databases, a broker, a configuration file, and the daemons.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tempfile::TempDir;

use crate::compare;
use crate::daemon::{Daemon, Finished, trellara};

/// Where the parts of a flow are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Connection string of the source database as the relay uses it.
    pub source_url: String,
    /// Connection string of the target database as the applier uses it.
    pub target_url: String,
    /// Broker.
    pub nats_url: String,
    /// The broker's monitoring endpoint.
    pub nats_monitor_url: Option<String>,
}

/// A flow under test; dropping it kills its daemons and deletes its folder.
#[derive(Debug)]
pub struct Flow {
    /// The flow's name.
    pub name: String,
    /// Where its parts are.
    pub places: Places,
    /// A superuser's connection string to the source database.
    pub source_admin: String,
    /// A superuser's connection string to the target database.
    pub target_admin: String,
    /// The relay, when started.
    pub relay: Option<Daemon>,
    /// The applier, when started.
    pub applier: Option<Daemon>,
    folder: TempDir,
    extra: String,
}

impl Flow {
    /// Writes the configuration file of a flow over `places`. `extra` are further lines of YAML;
    /// a line `source.acknowledge: published` style key goes through the environment instead.
    pub fn new(name: &str, places: Places, extra: &str) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("trellara-flow-")
            .tempdir()?;
        let flow = Self {
            name: name.to_owned(),
            source_admin: places.source_url.clone(),
            target_admin: places.target_url.clone(),
            places,
            relay: None,
            applier: None,
            folder,
            extra: extra.to_owned(),
        };
        flow.write_config()?;
        Ok(flow)
    }

    /// Writes the file anew, after [`Flow::places`] was changed.
    pub fn write_config(&self) -> Result<()> {
        let Places {
            source_url,
            target_url,
            nats_url,
            nats_monitor_url,
        } = &self.places;
        let quoted = |text: &str| serde_json::to_string(text).expect("text is always JSON");
        let monitor = nats_monitor_url
            .as_ref()
            .map(|url| format!(", monitor_url: {}", quoted(url)))
            .unwrap_or_default();
        let extra = &self.extra;
        // Extra lines may carry further keys of the four sections as `section.key: value`.
        let (mut source, mut target, mut nats, mut ops, mut rest) = (
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        );
        for line in extra.lines().filter(|line| !line.trim().is_empty()) {
            match line.split_once('.') {
                Some(("source", key)) => source.push_str(&format!(", {key}")),
                Some(("target", key)) => target.push_str(&format!(", {key}")),
                Some(("nats", key)) => nats.push_str(&format!(", {key}")),
                Some(("ops", key)) => ops.push_str(&format!(", {key}")),
                _ => rest.push_str(&format!("{line}\n")),
            }
        }
        if ops.is_empty() {
            ops = ", listen: \"127.0.0.1:0\"".to_owned();
        }
        let tables = if source.contains("tables:") {
            ""
        } else {
            ", tables: [\"public.*\"]"
        };
        let text = format!(
            "flow: {}\nsource: {{url: {}{tables}{source}}}\ntarget: {{url: {}{target}}}\nnats: {{url: {}{monitor}{nats}}}\nops: {{{}}}\n{rest}",
            self.name,
            quoted(source_url),
            quoted(target_url),
            quoted(nats_url),
            ops.trim_start_matches(", "),
        );
        std::fs::write(self.config(), text)?;
        Ok(())
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("trellara.yml")
    }

    /// The flow's folder: configuration and logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a command of the program.
    pub async fn command(&self, arguments: &[&str]) -> Result<Finished> {
        trellara(&self.config(), arguments).await
    }

    /// Runs `setup` and expects success.
    pub async fn setup(&self) -> Result<()> {
        let done = self.command(&["setup", "--yes"]).await?;
        ensure!(
            done.code == 0,
            "setup ended with {}: {}{}",
            done.code,
            done.stdout,
            done.stderr
        );
        Ok(())
    }

    /// Starts (or starts again) the relay.
    pub fn start_relay(&mut self) -> Result<&mut Daemon> {
        self.relay = None;
        let daemon = Daemon::start(
            &self.config(),
            &["relay"],
            &self.folder.path().join("relay.log"),
        )?;
        Ok(self.relay.insert(daemon))
    }

    /// Starts (or starts again) the applier.
    pub fn start_applier(&mut self) -> Result<&mut Daemon> {
        self.applier = None;
        let daemon = Daemon::start(
            &self.config(),
            &["applier"],
            &self.folder.path().join("applier.log"),
        )?;
        Ok(self.applier.insert(daemon))
    }

    /// Setup, relay and applier.
    pub async fn start(&mut self) -> Result<()> {
        self.setup().await?;
        self.start_relay()?;
        self.start_applier()?;
        Ok(())
    }

    /// Waits until the target has durably applied the source's present position.
    pub async fn caught_up(&self, within: Duration) -> Result<()> {
        let seconds = format!("{}s", within.as_secs().max(1));
        let done = self.command(&["wait", "--timeout", &seconds]).await?;
        if done.code == 0 {
            return Ok(());
        }
        bail!(
            "wait ended with {}: {}{}\n{}",
            done.code,
            done.stdout,
            done.stderr,
            self.logs()
        );
    }

    /// Catches up, then fails unless both databases are equal row by row.
    pub async fn converges(&self, within: Duration) -> Result<()> {
        self.caught_up(within).await?;
        let found = compare::differences(&self.source_admin, &self.target_admin).await?;
        ensure!(
            found.is_empty(),
            "the databases differ:\n{}\n{}",
            found.join("\n"),
            self.logs()
        );
        Ok(())
    }

    /// The end of both logs, for failure messages.
    pub fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!(
            "--- relay\n{}\n--- applier\n{}",
            tail("relay.log"),
            tail("applier.log")
        )
    }
}
