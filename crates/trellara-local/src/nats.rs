//! A disposable nats-server with JetStream.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::LocalError;
use crate::error::io;
use crate::process::{POLL, Process, log_tail};
use crate::{binaries, port, probe};

/// A store of a test's size is read in well under a second; a loaded machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(30);
/// An orderly stop closes connections and flushes stores.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Other ports that are tried when the first were taken between looking and starting.
const PORT_ATTEMPTS: usize = 5;

/// What kind of broker to start.
#[derive(Clone)]
pub struct NatsOptions {
    /// Exact version, as the cache names it: `2.15.1`.
    pub version: String,
    /// `max_payload`, bytes.
    pub max_payload: usize,
    /// `sync_interval: always`, so that an acknowledgement is an fsync.
    pub sync_always: bool,
    /// Where the store is; absent, a temporary one that ends with the server.
    pub store_dir: Option<PathBuf>,
    /// What streams may reserve in all, bytes. The server counts each stream's `max_bytes` against
    /// it whether used or not, so the default is more than the disk has.
    pub max_store_bytes: u64,
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
            // Each stream of a test run promises itself 10 GiB of it, and none is written so full.
            max_store_bytes: 1 << 44,
            extra_config: String::new(),
            auth: None,
        }
    }
}

impl std::fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsOptions")
            .field("version", &self.version)
            .field("max_payload", &self.max_payload)
            .field("sync_always", &self.sync_always)
            .field("store_dir", &self.store_dir)
            .finish_non_exhaustive()
    }
}

/// A running (or stopped) broker; dropping it ends it and deletes its temporary store.
#[derive(Debug)]
pub struct NatsServer {
    options: NatsOptions,
    program: PathBuf,
    folder: PathBuf,
    store: PathBuf,
    port: u16,
    monitor: u16,
    process: Process,
}

impl NatsServer {
    /// Starts a broker and returns when it answers (within 30 s).
    pub fn start(options: &NatsOptions) -> Result<Self, LocalError> {
        let program = binaries::nats_server(&options.version)?;
        let parent = std::env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix("trellara-nats-")
            .tempdir_in(&parent)
            .map_err(|e| io("create a folder in", &parent, e))?
            .keep();
        let name = format!("nats-server {}", options.version);
        let process = Process::guarded(name, "TERM", Some(&folder))?;
        let store = options
            .store_dir
            .clone()
            .unwrap_or_else(|| folder.join("store"));
        let options = options.clone();
        let mut server = Self {
            options,
            program,
            folder,
            store,
            port: 0,
            monitor: 0,
            process,
        };
        for attempt in 1.. {
            (server.port, server.monitor) = (port::free()?, port::free()?);
            server.write_config()?;
            match server.start_again() {
                Err(LocalError::NotReady { log, .. })
                    if attempt < PORT_ATTEMPTS && log.contains("address already in use") => {}
                other => return other.map(|()| server),
            }
        }
        unreachable!("the loop above ends by returning");
    }

    /// Starts `count` servers of one cluster, together because none is ready alone.
    pub fn cluster(options: &NatsOptions, count: usize) -> Result<Vec<Self>, LocalError> {
        let ports: Vec<u16> = (0..count).map(|_| port::free()).collect::<Result<_, _>>()?;
        let routes: Vec<String> = ports
            .iter()
            .map(|port| format!("\"nats-route://127.0.0.1:{port}\""))
            .collect();
        let routes = routes.join(", ");
        std::thread::scope(|scope| {
            let starting: Vec<_> = ports
                .iter()
                .map(|port| {
                    let mut options = options.clone();
                    options.extra_config.push_str(&format!(
                        "\ncluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n"
                    ));
                    scope.spawn(move || Self::start(&options))
                })
                .collect();
            let servers = starting.into_iter().map(|starting| {
                let started = starting.join();
                started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            servers.collect()
        })
    }

    /// `nats://127.0.0.1:port`, with user and password when there are any.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.options.auth {
            Some((user, password)) => format!("nats://{user}:{password}@127.0.0.1:{}", self.port),
            None => format!("nats://127.0.0.1:{}", self.port),
        }
    }

    /// `http://127.0.0.1:port` of the monitoring endpoint.
    #[must_use]
    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor)
    }

    /// Client port on 127.0.0.1; the same after each restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// JetStream's store.
    #[must_use]
    pub fn store_dir(&self) -> &Path {
        &self.store
    }

    /// The server's own log.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Starts it again on the same store and ports; nothing happens when it runs.
    pub fn start_again(&mut self) -> Result<(), LocalError> {
        if self.pid().is_some() && self.process.ended()?.is_none() {
            return Ok(());
        }
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(|e| io("open", &self.log_path(), e))?;
        self.process.start(
            Command::new(&self.program)
                .arg("--config")
                .arg(self.config_path())
                .current_dir(&self.folder)
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log),
        )?;
        self.wait_ready()
    }

    /// Stops it in an orderly way and waits until it has ended (within 30 s).
    pub fn stop(&mut self) -> Result<(), LocalError> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait(STOP_LIMIT)
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) -> Result<(), LocalError> {
        self.process.kill_all()
    }

    /// Freezes it: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<(), LocalError> {
        self.process.pause_all()
    }

    /// Lets a frozen broker go on.
    pub fn resume(&self) -> Result<(), LocalError> {
        self.process.resume_all()
    }

    /// Replaces the appended configuration lines; [`NatsServer::reload`] or a restart applies them.
    pub fn set_extra_config(&mut self, extra: &str) -> Result<(), LocalError> {
        extra.clone_into(&mut self.options.extra_config);
        self.write_config()
    }

    /// Changes `max_payload`; [`NatsServer::reload`] or a restart applies it.
    pub fn set_max_payload(&mut self, bytes: usize) -> Result<(), LocalError> {
        self.options.max_payload = bytes;
        self.write_config()
    }

    /// Makes it read its configuration again. The server answers nothing; `/varz` shows the
    /// outcome, and its log says what it refused.
    pub fn reload(&self) -> Result<(), LocalError> {
        self.process.signal(Signal::SIGHUP)
    }

    fn config_path(&self) -> PathBuf {
        self.folder.join("server.conf")
    }

    fn write_config(&self) -> Result<(), LocalError> {
        let options = &self.options;
        let sync = if options.sync_always { "always" } else { "2m" };
        let mut text = format!(
            "listen: \"127.0.0.1:{}\"\nhttp: \"127.0.0.1:{}\"\n\
             server_name: \"trellara_{}\"\nmax_payload: {}\n\
             jetstream {{ store_dir: \"{}\", max_file_store: {}, sync_interval: {sync} }}\n",
            self.port,
            self.monitor,
            self.port,
            options.max_payload,
            quoted(&self.store.to_string_lossy()),
            options.max_store_bytes,
        );
        if let Some((user, password)) = &options.auth {
            text.push_str(&format!(
                "authorization {{ user: \"{}\", password: \"{}\" }}\n",
                quoted(user),
                quoted(password)
            ));
        }
        text.push_str(&options.extra_config);
        text.push('\n');
        probe::write_private(&self.config_path(), &text)
    }

    fn wait_ready(&mut self) -> Result<(), LocalError> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            // The client port opens last, after the stores are read.
            if probe::healthy(self.monitor) && probe::greets(self.port) {
                return Ok(());
            }
            let ended = self.process.ended()?;
            if ended.is_some() || Instant::now() >= deadline {
                let reason = match ended {
                    Some(status) => format!("it ended ({status})"),
                    None => format!("it did not answer within {START_LIMIT:?}"),
                };
                return Err(LocalError::NotReady {
                    server: format!("nats-server {}", self.options.version),
                    reason,
                    log: log_tail(&self.log_path()),
                });
            }
            sleep(POLL);
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // Its store is deleted anyway, or belongs to somebody who tests recovery: either way a
        // kill is what it must survive, and the quickest end.
        let _ = self.process.kill_all();
    }
}

/// Text for between double quotes in the server's configuration format.
pub(crate) fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
