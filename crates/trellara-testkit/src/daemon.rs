//! The shipped binary as a child process: started, killed, read.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The `trellara` binary under test: `TRELLARA_BIN`, or the one built beside the test binary.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TRELLARA_BIN") {
        return path.into();
    }
    beside("trellara")
        .expect("the trellara binary is built (cargo build -p trellara) or named by TRELLARA_BIN")
}

/// A program that was built beside the one that runs.
fn beside(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().expect("the test binary has a path");
    test.ancestors()
        .skip(1)
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

/// One running daemon; dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
    /// Where the log of this run begins in the file that restarts share.
    log_from: u64,
}

impl Daemon {
    /// Starts `trellara --config CONFIG ARGS…`, its log appended to `log`.
    pub fn start(config: &Path, arguments: &[&str], log: &Path) -> Result<Self> {
        Self::start_with(config, arguments, log, &[])
    }

    /// The same with variables in its environment.
    pub fn start_with(
        config: &Path,
        arguments: &[&str],
        log: &Path,
        environment: &[(&str, String)],
    ) -> Result<Self> {
        let mut command = Command::new(binary());
        command.arg("--config").arg(config).args(arguments);
        Self::spawn(command, log, environment)
            .with_context(|| format!("starting trellara {arguments:?}"))
    }

    /// The same with at most this many open files.
    pub fn start_limited(
        config: &Path,
        arguments: &[&str],
        log: &Path,
        environment: &[(&str, String)],
        open_files: u64,
    ) -> Result<Self> {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -n {open_files} && exec \"$@\""))
            .arg("sh")
            .arg(binary())
            .arg("--config")
            .arg(config)
            .args(arguments);
        Self::spawn(command, log, environment)
            .with_context(|| format!("starting trellara {arguments:?} with {open_files} files"))
    }

    /// Starts a program of this crate (`cargo build -p trellara-testkit --bins`).
    pub(crate) fn start_ours(
        name: &str,
        arguments: &[&str],
        log: &Path,
        environment: &[(&str, String)],
    ) -> Result<Self> {
        let program =
            beside(name).with_context(|| format!("{name} of the testkit is not built"))?;
        let mut command = Command::new(program);
        command.args(arguments);
        Self::spawn(command, log, environment)
            .with_context(|| format!("starting {name} {arguments:?}"))
    }

    fn spawn(mut command: Command, log: &Path, environment: &[(&str, String)]) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        let log_from = file.metadata()?.len();
        let child = command
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()?;
        Ok(Self {
            child,
            log: log.to_owned(),
            log_from,
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What this run has logged so far.
    pub fn log(&self) -> String {
        let whole = std::fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.log_from)
            .unwrap_or(usize::MAX)
            .min(whole.len());
        String::from_utf8_lossy(&whole[from..]).into_owned()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), signal).context("sending a signal")
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(within)
    }

    /// Waits for the end.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!(
                    "pid {} did not end within {within:?}; its log:\n{}",
                    self.pid(),
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Where this run serves `/status` and `/metrics`, once it has said so in its log.
    pub fn endpoint(&self) -> Option<String> {
        let log = self.log();
        let line = log.lines().find(|line| line.contains("serving /metrics"))?;
        let address = line.split_once("address=")?.1;
        Some(address.split_whitespace().next()?.to_owned())
    }

    /// What it says on `/status`, when it answers within two seconds.
    pub async fn status(&self) -> Option<serde_json::Value> {
        let answer = self.get("/status").await?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Whether `/readyz` is green, when it answers within two seconds.
    pub async fn ready(&self) -> Option<bool> {
        let answer = self.get("/readyz").await?;
        Some(answer.split_whitespace().nth(1)? == "200")
    }

    /// What it says on `/readyz` about the daemons that are not ready, when it answers within two
    /// seconds.
    pub async fn failing(&self) -> Option<serde_json::Value> {
        let answer = self.get("/readyz").await?;
        let said: serde_json::Value =
            serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        Some(said["failing"].clone())
    }

    /// What it says on `/metrics`, when it answers within two seconds and has something to say.
    pub async fn metrics(&self) -> Option<String> {
        let answer = self.get("/metrics").await?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        (head.split_whitespace().nth(1)? == "200").then(|| body.to_owned())
    }

    /// What one of its counters says on `/status`.
    pub async fn counter(&self, name: &str) -> Option<u64> {
        let status = self.status().await?;
        let daemons = status["daemons"].as_array()?;
        daemons
            .iter()
            .find_map(|daemon| daemon["counters"][name].as_u64())
    }

    /// The whole answer to `GET path`, when it comes within two seconds.
    pub async fn get(&self, path: &str) -> Option<String> {
        let address = self.endpoint()?;
        let ask = async {
            let mut stream = tokio::net::TcpStream::connect(&address).await.ok()?;
            // HTTP/1.0: the server closes, so that the body ends where the bytes do.
            let request = format!("GET {path} HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.ok()?;
            String::from_utf8(answer).ok()
        };
        tokio::time::timeout(Duration::from_secs(2), ask)
            .await
            .ok()?
    }

    /// Peak resident set of the process, bytes (`VmHWM`).
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    }

    /// Waits until the log of this run contains `needle`.
    pub async fn logged(&mut self, needle: &str, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        while !self.log().contains(needle) {
            if !self.is_running() && !self.log().contains(needle) {
                bail!("ended without logging {needle:?}; its log:\n{}", self.log());
            }
            if Instant::now() > deadline {
                bail!(
                    "did not log {needle:?} within {within:?}; its log:\n{}",
                    self.log()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What a finished command printed.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; −1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// How long a command of the program may take that was given no time itself.
const COMMAND_WITHIN: Duration = Duration::from_secs(120);

/// Runs `trellara --config CONFIG ARGS…` to its end, within two minutes.
pub async fn trellara(config: &Path, arguments: &[&str]) -> Result<Finished> {
    trellara_with(config, arguments, &[]).await
}

/// The same with variables in its environment.
pub async fn trellara_with(
    config: &Path,
    arguments: &[&str],
    environment: &[(&str, String)],
) -> Result<Finished> {
    trellara_within(config, arguments, environment, COMMAND_WITHIN).await
}

/// The same with another limit: one that was told to wait must be able to say that it did in vain.
pub async fn trellara_within(
    config: &Path,
    arguments: &[&str],
    environment: &[(&str, String)],
    within: Duration,
) -> Result<Finished> {
    let run = tokio::process::Command::new(binary())
        .arg("--config")
        .arg(config)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(within, run)
        .await
        .with_context(|| format!("trellara {arguments:?} took more than {within:?}"))??;
    Ok(Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
