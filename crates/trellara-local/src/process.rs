//! One server process and the processes that it started.

use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::LocalError;
use crate::error::io;
use crate::watchdog::Watchdog;

/// How often a state that only polling can tell is looked at.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// A server process under a watchdog.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Option<Child>,
    watchdog: Option<Watchdog>,
}

impl Process {
    /// Nothing runs yet; `signal` and `folder` are what the watchdog uses if we die.
    pub(crate) fn guarded(
        name: String,
        signal: &str,
        folder: Option<&Path>,
    ) -> Result<Self, LocalError> {
        let watchdog = Some(Watchdog::start(signal, folder)?);
        Ok(Self {
            name,
            child: None,
            watchdog,
        })
    }

    /// As [`Process::guarded`], but without a guard where there is no shell to be one: for a
    /// server whose left-over process is found by other means.
    pub(crate) fn guarded_where_possible(name: String, signal: &str) -> Self {
        Self {
            name,
            child: None,
            watchdog: Watchdog::start(signal, None).ok(),
        }
    }

    /// Takes the pipe with the server's standard error, when it was started with one.
    pub(crate) fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.as_mut()?.stderr.take()
    }

    /// Starts the server.
    pub(crate) fn start(&mut self, command: &mut Command) -> Result<u32, LocalError> {
        let program = command.get_program().to_owned();
        let child = command
            .spawn()
            .map_err(|source| io("run", Path::new(&program), source))?;
        let pid = child.id();
        self.child = Some(child);
        self.guard(Some(pid));
        Ok(pid)
    }

    /// Tells the watchdog; one that somebody killed is done without from then on.
    fn guard(&mut self, pid: Option<u32>) {
        let told = self.watchdog.as_mut().map(|watchdog| watchdog.guard(pid));
        if let Some(Err(error)) = told {
            tracing::warn!(%error, server = self.name, "the watchdog is gone");
            self.watchdog = None;
        }
    }

    /// Its id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, LocalError> {
        let Some(child) = self.child.as_mut() else {
            return Ok(None);
        };
        let status = child
            .try_wait()
            .map_err(|source| io("wait for", Path::new(&self.name), source))?;
        if status.is_some() {
            self.child = None;
            self.guard(None);
        }
        Ok(status)
    }

    /// Sends a signal to the server alone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), LocalError> {
        match self.pid() {
            Some(pid) => send(pid, signal),
            None => Ok(()),
        }
    }

    /// Waits until it has ended; an error when `limit` passes first.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<(), LocalError> {
        let deadline = Instant::now() + limit;
        while self.child.is_some() {
            if self.ended()?.is_none() {
                if Instant::now() >= deadline {
                    return Err(LocalError::NotReady {
                        server: self.name.clone(),
                        reason: format!("it has not ended within {limit:?}"),
                        log: String::new(),
                    });
                }
                sleep(POLL);
            }
        }
        Ok(())
    }

    /// Kills the server and the processes that it started, and waits until none is left.
    pub(crate) fn kill_all(&mut self) -> Result<(), LocalError> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // Stopped first, so that it cannot start another one while we look.
        freeze(pid)?;
        let children = children(pid);
        send(pid, Signal::SIGKILL)?;
        for &child in &children {
            send(child, Signal::SIGKILL)?;
        }
        self.wait(Duration::from_secs(30))?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while children.iter().any(|&child| alive(child)) && Instant::now() < deadline {
            sleep(POLL);
        }
        Ok(())
    }

    /// Freezes the server, then the processes that it started.
    pub(crate) fn pause_all(&self) -> Result<(), LocalError> {
        let Some(pid) = self.pid() else { return Ok(()) };
        send(pid, Signal::SIGSTOP)?;
        children(pid)
            .into_iter()
            .try_for_each(|child| send(child, Signal::SIGSTOP))
    }

    /// The reverse of [`Process::pause_all`].
    pub(crate) fn resume_all(&self) -> Result<(), LocalError> {
        let Some(pid) = self.pid() else { return Ok(()) };
        children(pid)
            .into_iter()
            .try_for_each(|child| send(child, Signal::SIGCONT))?;
        send(pid, Signal::SIGCONT)
    }
}

/// Sends a signal; a process that is gone already is no error.
pub(crate) fn send(pid: u32, signal: Signal) -> Result<(), LocalError> {
    let Ok(raw) = i32::try_from(pid) else {
        return Ok(());
    };
    match kill(Pid::from_raw(raw), signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(errno) => Err(io(
            "signal process",
            Path::new(&pid.to_string()),
            errno.into(),
        )),
    }
}

/// Stops a process and returns when it has stopped: the signal alone may arrive a little later.
fn freeze(pid: u32) -> Result<(), LocalError> {
    const LIMIT: Duration = Duration::from_secs(5);
    send(pid, Signal::SIGSTOP)?;
    let deadline = Instant::now() + LIMIT;
    // A process in an uninterruptible wait on the disk stops when that ends, and does nothing
    // else before.
    while stat(pid).is_some_and(|(state, _)| state == 'R' || state == 'S')
        && Instant::now() < deadline
    {
        std::thread::yield_now();
    }
    Ok(())
}

/// Whether the process exists and is not merely waiting to be reaped.
pub(crate) fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// Processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|&candidate| stat(candidate).is_some_and(|(_, parent)| parent == pid))
        .collect()
}

/// The command line of a process, with its arguments as they were given.
pub(crate) fn command_line(pid: u32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments = bytes
        .split(|&byte| byte == 0)
        .filter(|argument| !argument.is_empty());
    arguments
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

/// Ends a process that is not our child: asks first, insists after `patience`.
pub(crate) fn end_stranger(pid: u32, patience: Duration) -> Result<(), LocalError> {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        send(pid, signal)?;
        send(pid, Signal::SIGCONT)?;
        let deadline = Instant::now() + patience;
        while alive(pid) && Instant::now() < deadline {
            sleep(POLL);
        }
        if !alive(pid) {
            return Ok(());
        }
    }
    let stubborn = std::io::Error::other("it does not end");
    Err(io("end process", Path::new(&pid.to_string()), stubborn))
}

/// State letter and parent from `/proc/<pid>/stat`; the name in it may hold anything, so what
/// follows its last parenthesis is read.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((state, parent))
}

/// The last lines of a log, for an error message.
pub(crate) fn log_tail(path: &Path) -> String {
    const LINES: usize = 20;
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
