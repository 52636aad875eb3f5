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
    /// The store of an embedded broker is in use or cannot be trusted.
    #[error("{0}")]
    Store(String),
}
