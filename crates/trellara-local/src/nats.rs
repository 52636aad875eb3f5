//! A disposable nats-server with JetStream.

use std::path::{Path, PathBuf};

use crate::LocalError;

/// What kind of broker to start.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Exact version, as the cache names it: `2.15.1`.
    pub version: String,
    /// `max_payload`, bytes.
    pub max_payload: usize,
    /// `sync_interval: always`, so that an acknowledgement is an fsync.
    pub sync_always: bool,
    /// Where the store is; absent, a temporary one that ends with the server.
    pub store_dir: Option<PathBuf>,
    /// Lines appended to the configuration file as they are.
    pub extra_config: String,
    /// User and password that clients must give.
    pub auth: Option<(String, String)>,
}

impl Default for NatsOptions {
    fn default() -> Self {
        Self {
            version: "2.15.1".to_owned(),
            max_payload: 1024 * 1024,
            sync_always: false,
            store_dir: None,
            extra_config: String::new(),
            auth: None,
        }
    }
}

/// A running (or stopped) broker; dropping it ends it and deletes its temporary store.
#[derive(Debug)]
pub struct NatsServer {
    port: u16,
    monitor: u16,
    store: PathBuf,
}

impl NatsServer {
    /// Starts a broker and returns when it answers (within 30 s).
    pub fn start(_options: &NatsOptions) -> Result<Self, LocalError> {
        Err(LocalError::Store("being written".to_owned()))
    }
    /// `nats://127.0.0.1:port`, with user and password when there are any.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
    /// `http://127.0.0.1:port` of the monitoring endpoint.
    #[must_use]
    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor)
    }
    /// Client port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
    /// JetStream's store.
    #[must_use]
    pub fn store_dir(&self) -> &Path {
        &self.store
    }
    /// Process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        None
    }
    /// The server's own log.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.store.join("server.log")
    }
    /// Stops it in an orderly way and waits until it has ended.
    pub fn stop(&mut self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Starts it again on the same store and ports.
    pub fn start_again(&mut self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Freezes it.
    pub fn pause(&self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Lets a frozen broker go on.
    pub fn resume(&self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Makes it read its configuration again, after [`NatsServer::set_extra_config`].
    pub fn reload(&self) -> Result<(), LocalError> {
        Ok(())
    }
    /// Replaces the appended configuration lines; [`NatsServer::reload`] or a restart applies them.
    pub fn set_extra_config(&mut self, _extra: &str) -> Result<(), LocalError> {
        Ok(())
    }
}
