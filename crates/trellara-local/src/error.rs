//! What can go wrong with a server on this machine, by what the caller can do about it.

use std::path::PathBuf;

/// Why a server could not be started, stopped or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The server's program is not on this machine. The hint says how to bring it.
    #[error("{program} is not on this machine (looked in {looked}); {hint}")]
    Missing {
        /// Program or version that was wanted.
        program: String,
        /// Folders that were looked in, in order.
        looked: String,
        /// The command that brings it.
        hint: String,
    },
    /// The server ended, or was not ready in time. `log` is the end of its own log.
    #[error("{server} did not start: {reason}; the end of its log:\n{log}")]
    NotReady {
        /// Which server.
        server: String,
        /// What was seen.
        reason: String,
        /// Last lines of the server's log.
        log: String,
    },
    /// A helper program of the server (`initdb`, `psql`, `cp` …) failed.
    #[error("{program} failed ({status}): {output}")]
    Tool {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// What it said.
        output: String,
    },
    /// A system call on a path or a process failed.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// Another process supervises this store; only one may.
    #[error("another `trellara run` is active on the store {}", store_dir.display())]
    StoreInUse {
        /// The store's folder.
        store_dir: PathBuf,
    },
    /// A folder or file of ours cannot be trusted or used; the text says why and what to do.
    #[error("{0}")]
    Store(String),
}

/// Shorthand for an [`LocalError::Io`].
pub(crate) fn io(what: &'static str, path: &std::path::Path, source: std::io::Error) -> LocalError {
    LocalError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Runs a helper program to its end and returns what it printed; failure carries what it said.
pub(crate) fn run(command: &mut std::process::Command) -> Result<String, LocalError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|source| io("run", std::path::Path::new(&program), source))?;
    finished(&program, &output)
}

/// The standard output of a program that succeeded, or the error that it made.
pub(crate) fn finished(program: &str, output: &std::process::Output) -> Result<String, LocalError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LocalError::Tool {
        program: program.to_owned(),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}
