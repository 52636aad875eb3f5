//! This program's own daemons as child processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::exit::{Exit, Failure};

/// A daemon of ours; dropping it kills it.
pub(super) struct Daemon {
    verb: &'static str,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    pub(super) kills: u32,
}

impl Daemon {
    pub(super) fn start(verb: &'static str, config: &Path, folder: &Path) -> Result<Self, Failure> {
        let log = folder.join(format!("{verb}.log"));
        let mut daemon = Self {
            verb,
            config: config.to_owned(),
            log,
            child: None,
            kills: 0,
        };
        daemon.start_again()?;
        Ok(daemon)
    }

    pub(super) fn start_again(&mut self) -> Result<(), Failure> {
        let unexpected = |error: std::io::Error| Failure::from_error(Exit::Unexpected, &error);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log);
        let mut command = program(&self.config)?;
        command
            .arg(self.verb)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.map_err(unexpected)?)
            // A group of its own, so that all of it can be killed at once, broker included.
            .process_group(0);
        self.child = Some(command.spawn().map_err(unexpected)?);
        Ok(())
    }

    /// SIGKILL to the process and everything it started, then a new one.
    pub(super) async fn kill_and_start_again(&mut self) -> Result<(), Failure> {
        self.kill().await?;
        self.start_again()
    }

    /// SIGKILL to the process and everything it started.
    pub(super) async fn kill(&mut self) -> Result<(), Failure> {
        self.check_alive()?;
        if let Some(mut child) = self.child.take() {
            if let Some(pid) = pid(&child) {
                let _ = killpg(pid, Signal::SIGKILL);
            }
            let _ = child.wait().await;
            self.kills += 1;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub(super) async fn stop(&mut self) -> Result<(), Failure> {
        self.check_alive()?;
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        if let Some(pid) = pid(&child) {
            let _ = kill(pid, Signal::SIGTERM);
        }
        let ended = child
            .wait()
            .await
            .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
        if ended.success() {
            Ok(())
        } else {
            Err(self.failure(&format!("ended with {ended}")))
        }
    }

    /// A daemon that ended by itself ends the demo, with what it said.
    pub(super) fn check_alive(&mut self) -> Result<(), Failure> {
        let ended = self
            .child
            .as_mut()
            .and_then(|child| child.try_wait().ok().flatten());
        match ended {
            None => Ok(()),
            Some(status) => Err(self.failure(&format!("ended by itself ({status})"))),
        }
    }

    pub(super) fn failure(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(15)..].join("\n    ");
        Failure::new(
            Exit::Unexpected,
            format!("{} {what}; the end of its log:\n    {end}", self.verb),
            "",
        )
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = self.child.as_ref().and_then(pid) {
            let _ = killpg(pid, Signal::SIGKILL);
            // It writes into the folder that is deleted next. Its exit status stays for the runtime
            // to collect, so that the process id cannot become somebody else's meanwhile.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .map(Pid::from_raw)
}

/// This very program with that file, and with nothing of our own configuration.
fn program(config: &Path) -> Result<Command, Failure> {
    let program =
        std::env::current_exe().map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
    let mut command = Command::new(program);
    command.arg("--config").arg(config).kill_on_drop(true);
    let ours = std::env::vars_os().map(|(name, _)| name);
    for name in ours.filter(|name| name.to_string_lossy().starts_with("TRELLARA__")) {
        command.env_remove(name);
    }
    Ok(command)
}

/// Runs a command of ours to its end.
pub(super) async fn run_to_end(config: &Path, arguments: &[&str]) -> Result<(), Failure> {
    let (code, said) = exit_of(config, arguments).await?;
    if code == Some(0) {
        return Ok(());
    }
    Err(ended(arguments, code, &said))
}

/// Whether `trellara verify` says that both databases are equal.
pub(super) async fn verified(config: &Path) -> Result<bool, Failure> {
    const VERIFY: &[&str] = &["verify", "--quiet"];
    let (code, said) = exit_of(config, VERIFY).await?;
    match code {
        Some(0) => Ok(true),
        Some(3) => Ok(false),
        _ => Err(ended(VERIFY, code, &said)),
    }
}

fn ended(arguments: &[&str], code: Option<i32>, said: &str) -> Failure {
    let code = code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
    let reason = format!(
        "`trellara {}` ended with {code}: {said}",
        arguments.join(" ")
    );
    Failure::new(Exit::Unexpected, reason, "")
}

/// Runs a command of the program; its exit code, and what it said on stderr.
async fn exit_of(config: &Path, arguments: &[&str]) -> Result<(Option<i32>, String), Failure> {
    let output = program(config)?
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Ok((output.status.code(), said))
}
