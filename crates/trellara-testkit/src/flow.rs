//! One flow under test: two databases, a broker, a configuration file, and the daemons, each with
//! the rights that `config/` gives it and no more.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tempfile::TempDir;
use trellara_local::shared;

use crate::compare;
use crate::daemon::{Daemon, Finished, trellara_with, trellara_within};
use crate::roles::{Roles, percent_encoded};

/// The broker's user for people.
const ADMIN: &str = "trellara_admin";

/// Where the parts of a flow are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Connection string of the source database as the relay uses it: its role is in it.
    pub source_url: String,
    /// Connection string of the target database as the applier uses it: its role is in it.
    pub target_url: String,
    /// Broker, as the user of the commands for people. The daemons come in as their own.
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
    /// Variables that every process of the flow gets.
    pub environment: Vec<(&'static str, String)>,
    /// Its roles on both servers.
    pub roles: Roles,
    folder: TempDir,
    extra: String,
}

impl Flow {
    /// Writes the configuration file of a flow over `places`, whose URLs are the superuser's and
    /// the broker's bare one; from here on the flow's own roles are in them. `extra` are further
    /// lines of YAML, in which a line may also carry a key as `source.acknowledge: published`.
    pub fn new(name: &str, places: Places, extra: &str) -> Result<Self> {
        Self::with_roles(name, places, extra, Roles::of(name))
    }

    fn with_roles(name: &str, places: Places, extra: &str, roles: Roles) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("trellara-flow-")
            .tempdir()?;
        let (source_admin, target_admin) = (places.source_url, places.target_url);
        let login = format!("//{ADMIN}:{}@", percent_encoded(shared::NATS_PASSWORD));
        let flow = Self {
            name: name.to_owned(),
            places: Places {
                source_url: Roles::url(&source_admin, &roles.capture()),
                target_url: Roles::url(&target_admin, &roles.apply()),
                nats_url: places.nats_url.replacen("//", &login, 1),
                nats_monitor_url: places.nats_monitor_url,
            },
            source_admin,
            target_admin,
            roles,
            environment: Vec::new(),
            relay: None,
            applier: None,
            folder,
            extra: extra.to_owned(),
        };
        flow.write_config()?;
        Ok(flow)
    }

    /// Another flow of the same source into the same target, with the same roles.
    pub fn beside(&self, name: &str, extra: &str) -> Result<Flow> {
        let login = format!("//{ADMIN}:{}@", percent_encoded(shared::NATS_PASSWORD));
        let places = Places {
            source_url: self.source_admin.clone(),
            target_url: self.target_admin.clone(),
            nats_url: self.places.nats_url.replacen(&login, "//", 1),
            nats_monitor_url: self.places.nats_monitor_url.clone(),
        };
        Self::with_roles(name, places, extra, self.roles.beside(name))
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

    /// Runs a command of the program; `setup` and `remove` with the administrator's roles.
    pub async fn command(&self, arguments: &[&str]) -> Result<Finished> {
        let mut environment = self.environment.clone();
        if let Some(&("setup" | "remove")) = arguments.first() {
            environment.extend(self.as_administrator());
        }
        trellara_with(&self.config(), arguments, &environment).await
    }

    /// Begins a command of the program and does not wait for its end, with further variables; what
    /// it prints is its log, `{log}.log`.
    pub fn begin(
        &self,
        arguments: &[&str],
        log: &str,
        variables: &[(&'static str, String)],
    ) -> Result<Daemon> {
        let log = self.folder.path().join(format!("{log}.log"));
        let environment = [&self.environment, variables].concat();
        Daemon::start_with(&self.config(), arguments, &log, &environment)
    }

    /// The overrides that give one command more rights than the file's.
    pub fn as_administrator(&self) -> Vec<(&'static str, String)> {
        let (roles, places) = (&self.roles, &self.places);
        let source = places.source_url.replace(&roles.capture(), &roles.admin());
        let target = places.target_url.replace(&roles.apply(), &roles.admin());
        vec![
            ("TRELLARA__SOURCE__URL", source),
            ("TRELLARA__TARGET__URL", target),
        ]
    }

    /// The override by which a daemon comes to the broker as its own user.
    fn as_user(&self, user: &str) -> Vec<(&'static str, String)> {
        // In each of the hosts, where there are several.
        let url = self.places.nats_url.replace(ADMIN, user);
        let mut environment = self.environment.clone();
        environment.push(("TRELLARA__NATS__URL", url));
        environment
    }

    /// Grants the flow's roles what `config/` says, as a superuser; safe to repeat.
    pub async fn grant(&self) -> Result<()> {
        self.roles.grant_on_source(&self.source_admin).await?;
        self.roles.grant_on_target(&self.target_admin).await
    }

    /// Runs `setup` between the grants, and expects success.
    pub async fn setup(&self) -> Result<()> {
        self.grant().await?;
        let done = self.command(&["setup", "--yes"]).await?;
        ensure!(
            done.code == 0,
            "setup ended with {}: {}{}",
            done.code,
            done.stdout,
            done.stderr
        );
        self.roles.grant_on_target(&self.target_admin).await
    }

    /// Starts (or starts again) the relay.
    pub fn start_relay(&mut self) -> Result<&mut Daemon> {
        self.relay = None;
        let daemon = Daemon::start_with(
            &self.config(),
            &["relay"],
            &self.folder.path().join("relay.log"),
            &self.as_user("trellara_relay"),
        )?;
        Ok(self.relay.insert(daemon))
    }

    /// Starts (or starts again) the applier.
    pub fn start_applier(&mut self) -> Result<&mut Daemon> {
        self.applier = None;
        let daemon = Daemon::start_with(
            &self.config(),
            &["applier"],
            &self.folder.path().join("applier.log"),
            &self.as_user("trellara_applier"),
        )?;
        Ok(self.applier.insert(daemon))
    }

    /// Starts an applier that is not the program's but has the same rights: with an identity cache of
    /// `memory` bytes, 0 for none, and without the lane's lock where `interleaved`. Its log is
    /// `{log}.log`.
    pub fn start_bare_applier(&self, log: &str, memory: u64, interleaved: bool) -> Result<Daemon> {
        let mut environment = self.as_user("trellara_applier");
        environment.push(("TRELLARA__TARGET__URL", self.places.target_url.clone()));
        let memory = memory.to_string();
        let mut words = vec![&self.name[..], &memory];
        words.extend(interleaved.then_some("interleaved"));
        let log = self.folder.path().join(format!("{log}.log"));
        Daemon::start_ours("applier", &words, &log, &environment)
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
        /// For what comes before and behind the waiting.
        const BESIDE: Duration = Duration::from_secs(30);
        let seconds = format!("{}s", within.as_secs().max(1));
        let words = ["wait", "--timeout", &seconds];
        let limit = within + BESIDE;
        let done = trellara_within(&self.config(), &words, &self.environment, limit).await?;
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

    /// What `trellara verify` says with these options. It says nothing while a transaction is open
    /// on the source's server, which other tests may have as well; then it is asked again.
    pub async fn judged(&self, options: &[&str]) -> Result<Finished> {
        const NOT_COMPARED: i32 = 4;
        const WITHIN: Duration = Duration::from_secs(80);
        let words: Vec<&str> = ["verify"].iter().chain(options).copied().collect();
        let deadline = Instant::now() + WITHIN;
        loop {
            let done = self.command(&words).await?;
            let blocked = done.code == NOT_COMPARED && done.stderr.contains("temporary slot");
            if !blocked || Instant::now() > deadline {
                return Ok(done);
            }
        }
    }

    /// Fails unless `trellara verify` says that both databases are equal.
    pub async fn verified(&self) -> Result<()> {
        let done = self.judged(&[]).await?;
        ensure!(
            done.code == 0,
            "verify ended with {}: {}{}\n{}",
            done.code,
            done.stdout,
            done.stderr,
            self.logs()
        );
        Ok(())
    }

    /// Catches up, then fails unless both databases are equal row by row, by a comparison that
    /// shares nothing with the program and by the program's own judge.
    pub async fn converges(&self, within: Duration) -> Result<()> {
        self.caught_up(within).await?;
        self.tells_no_secret()?;
        let found = compare::differences(&self.source_admin, &self.target_admin).await?;
        ensure!(
            found.is_empty(),
            "the databases differ:\n{}\n{}",
            found.join("\n"),
            self.logs()
        );
        self.verified().await
    }

    /// Fails when a password stands in what the daemons have logged.
    pub fn tells_no_secret(&self) -> Result<()> {
        for name in ["relay.log", "applier.log"] {
            let bytes = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
            let told = String::from_utf8_lossy(&bytes).contains(shared::CANARY);
            ensure!(!told, "a password stands in {name}");
        }
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
