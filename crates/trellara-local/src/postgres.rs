//! A disposable PostgreSQL server.

use std::path::{Path, PathBuf};

use crate::LocalError;

/// What kind of server to start.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Major version: 15, 16, 17 or 18.
    pub version: u32,
    /// Settings that override ours, in order, as in `postgresql.conf` (values are quoted for you).
    pub settings: Vec<(String, String)>,
    /// The whole of `pg_hba.conf`; absent, everybody on this machine is trusted.
    pub hba: Option<String>,
    /// Serve TLS with these.
    pub tls: Option<TlsFiles>,
}

/// Certificate and key of a server, as PEM text.
#[derive(Clone)]
pub struct TlsFiles {
    /// Certificate chain of the server.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// Authority that client certificates are checked against.
    pub client_authority: Option<String>,
}

impl std::fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsFiles").finish_non_exhaustive()
    }
}

impl PostgresOptions {
    /// A server of that major version with test settings.
    #[must_use]
    pub fn version(version: u32) -> Self {
        Self { version, settings: Vec::new(), hba: None, tls: None }
    }

    /// Adds or overrides one setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Sessions are ended, a checkpoint is written.
    Fast,
    /// Like a crash, but the processes end by themselves: recovery at the next start.
    Immediate,
}

/// A running (or stopped) server; dropping it ends it and deletes its data.
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    data: PathBuf,
}

impl PostgresServer {
    /// Starts a fresh server and returns when it accepts connections (within 60 s).
    pub fn start(_options: &PostgresOptions) -> Result<Self, LocalError> {
        Err(LocalError::Store("being written".to_owned()))
    }
    /// TCP port on 127.0.0.1; the same after each restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
    /// Folder of the Unix socket.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.data
    }
    /// Superuser's connection string for a database, over TCP.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgresql://postgres@127.0.0.1:{}/{database}", self.port)
    }
    /// The server's data folder.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data
    }
    /// The server's own log.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.data.join("server.log")
    }
    /// Process id of the postmaster, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        None
    }
    /// Stops it and waits until it has ended.
    pub fn stop(&mut self, _mode: StopMode) -> Result<(), LocalError> {
        Ok(())
    }
    /// Starts it again on the same data and port.
    pub fn start_again(&mut self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Kills the postmaster and all of its processes with SIGKILL.
    pub fn kill(&mut self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Freezes the server and all of its processes.
    pub fn pause(&self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Lets a frozen server go on.
    pub fn resume(&self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Runs SQL as superuser with `psql` and returns its rows (unaligned, `|` between columns).
    pub fn psql(&self, _database: &str, _sql: &str) -> Result<String, LocalError> {
        Ok(String::new())
    }
}
