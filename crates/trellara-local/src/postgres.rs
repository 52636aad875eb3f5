//! A disposable PostgreSQL server.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::LocalError;
use crate::account::Account;
use crate::error::{io, run};
use crate::process::{POLL, Process, log_tail};
use crate::template::{self, SUPERUSER};
use crate::{binaries, port, psql};

/// Recovery after a crash of a test's size takes well under a second; a loaded machine, minutes.
const START_LIMIT: Duration = Duration::from_secs(60);
/// A fast stop waits for walsenders to hand over their WAL, which a frozen reader can delay for
/// all of `wal_sender_timeout`.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Other ports that are tried when the first was taken between looking and starting.
const PORT_ATTEMPTS: usize = 5;

/// Settings that a test wants: logical decoding on, small, quick, and with time-outs that a test
/// can wait for. `fsync` off loses nothing when processes are killed, only when the machine is.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_wal_senders", "20"),
    ("max_replication_slots", "40"),
    ("wal_sender_timeout", "10s"),
    ("max_connections", "100"),
    ("max_prepared_transactions", "10"),
    ("shared_buffers", "32MB"),
    ("max_wal_size", "256MB"),
    ("fsync", "off"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_line_prefix", "%m [%p] %q%a %u@%d "),
    // In files of the data folder, not in /dev/shm where a killed server would leave them.
    ("dynamic_shared_memory_type", "mmap"),
];

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
        Self {
            version,
            settings: Vec::new(),
            hba: None,
            tls: None,
        }
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
    options: PostgresOptions,
    account: Account,
    bin: PathBuf,
    folder: PathBuf,
    port: u16,
    process: Process,
}

impl PostgresServer {
    /// Starts a fresh server and returns when it accepts connections (within 60 s).
    pub fn start(options: &PostgresOptions) -> Result<Self, LocalError> {
        let account = Account::for_postgres()?;
        let bin = binaries::postgres_bin(options.version)?;
        let folder = new_folder(account)?;
        let name = format!("PostgreSQL {}", options.version);
        // From here on the watchdog deletes the folder, on every way out.
        let process = Process::guarded(name, "QUIT", Some(&folder))?;
        let mut server = Self {
            options: options.clone(),
            account,
            bin,
            folder,
            port: 0,
            process,
        };
        template::new_cluster(account, &server.bin, options.version, &server.data_dir())?;
        server.write_access()?;
        for attempt in 1.. {
            server.port = port::free()?;
            server.write_settings()?;
            match server.start_again() {
                Err(LocalError::NotReady { log, .. })
                    if attempt < PORT_ATTEMPTS && log.contains("Address already in use") => {}
                other => return other.map(|()| server),
            }
        }
        unreachable!("the loop above ends by returning");
    }

    /// A hot standby of this server, by `pg_basebackup` and a physical slot of that name, with
    /// settings on top of this one's; returns when it takes connections. [`PostgresServer::psql`]
    /// with `SELECT pg_promote()` makes it a primary.
    pub fn standby(&self, slot: &str, settings: &[(&str, &str)]) -> Result<Self, LocalError> {
        let folder = new_folder(self.account)?;
        let name = format!("a standby of PostgreSQL {}", self.options.version);
        let process = Process::guarded(name, "QUIT", Some(&folder))?;
        let primary = format!(
            "host=127.0.0.1 port={} user={SUPERUSER} dbname=postgres",
            self.port
        );
        let mut options = self
            .options
            .clone()
            .with("primary_conninfo", &primary)
            .with("primary_slot_name", slot);
        for (name, value) in settings {
            options = options.with(name, value);
        }
        let mut server = Self {
            options,
            account: self.account,
            bin: self.bin.clone(),
            folder,
            port: port::free()?,
            process,
        };
        run(self
            .account
            .command(&self.bin.join("pg_basebackup"))
            .arg("-d")
            .arg(self.url("postgres"))
            .arg("-D")
            .arg(server.data_dir())
            .args(["-X", "stream", "-c", "fast", "-C", "-S", slot])
            .current_dir("/"))?;
        server.write("standby.signal", "")?;
        server.write_settings()?;
        server.start_again()?;
        Ok(server)
    }

    /// Major version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.options.version
    }

    /// TCP port on 127.0.0.1; the same after each restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Folder of the Unix socket.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        &self.folder
    }

    /// Superuser's connection string for a database, over TCP.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgresql://{SUPERUSER}@127.0.0.1:{}/{database}",
            self.port
        )
    }

    /// The server's data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The server's own log.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Folder of the server's programs (`pg_dump`, `pg_recvlogical` …).
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// Process id of the postmaster, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Starts it again on the same data and port; nothing happens when it runs.
    pub fn start_again(&mut self) -> Result<(), LocalError> {
        if self.pid().is_some() && self.process.ended()?.is_none() {
            return Ok(());
        }
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(|e| io("open", &self.log_path(), e))?;
        let log_too = log
            .try_clone()
            .map_err(|e| io("open", &self.log_path(), e))?;
        let pid = self.process.start(
            self.account
                .command(&self.bin.join("postgres"))
                .arg("-D")
                .arg(self.data_dir())
                .current_dir(self.data_dir())
                // What the caller's shell says about PostgreSQL is not about this server.
                .env_remove("PGDATA")
                .env_remove("PGPORT")
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(log)
                .stderr(log_too),
        )?;
        self.wait_ready(pid)
    }

    /// Stops it and waits until it has ended (within 60 s).
    pub fn stop(&mut self, mode: StopMode) -> Result<(), LocalError> {
        self.process.signal(match mode {
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
        })?;
        self.process.wait(STOP_LIMIT)
    }

    /// Kills the postmaster and all of its processes with SIGKILL, and waits until they are gone.
    pub fn kill(&mut self) -> Result<(), LocalError> {
        self.process.kill_all()
    }

    /// Freezes the server and all of its processes: connections stay open and nothing answers.
    pub fn pause(&self) -> Result<(), LocalError> {
        self.process.pause_all()
    }

    /// Lets a frozen server go on.
    pub fn resume(&self) -> Result<(), LocalError> {
        self.process.resume_all()
    }

    /// Changes settings of the running server; those that need a restart wait for one.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), LocalError> {
        self.options
            .settings
            .push((name.to_owned(), value.to_owned()));
        self.write_settings()?;
        self.process.signal(Signal::SIGHUP)
    }

    /// Runs SQL as superuser; see [`crate::psql`].
    pub fn psql(&self, database: &str, sql: &str) -> Result<String, LocalError> {
        psql::run_in(&self.bin, &self.url(database), sql)
    }

    /// `postmaster.pid` is where the server itself says that it is ready, so no connection is
    /// tried and no client library needed. A killed server leaves its old file behind: only one
    /// with the new process's id counts.
    fn wait_ready(&mut self, pid: u32) -> Result<(), LocalError> {
        let path = self.data_dir().join("postmaster.pid");
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let mut lines = text.lines();
            let ours = lines
                .next()
                .is_some_and(|line| line.trim() == pid.to_string());
            if ours && lines.nth(6).is_some_and(|status| status.trim() == "ready") {
                return Ok(());
            }
            let ended = self.process.ended()?;
            if ended.is_some() || Instant::now() >= deadline {
                let reason = match ended {
                    Some(status) => format!("it ended ({status})"),
                    None => format!("it was not ready within {START_LIMIT:?}"),
                };
                return Err(LocalError::NotReady {
                    server: format!("PostgreSQL {}", self.options.version),
                    reason,
                    log: log_tail(&self.log_path()),
                });
            }
            sleep(POLL);
        }
    }

    /// Settings live in a file of their own, read after `initdb`'s.
    fn write_settings(&self) -> Result<(), LocalError> {
        let mut text = String::new();
        let mut add = |name: &str, value: &str| {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        };
        for (name, value) in SETTINGS {
            add(name, value);
        }
        add("port", &self.port.to_string());
        add("unix_socket_directories", &self.folder.to_string_lossy());
        if let Some(tls) = &self.options.tls {
            add("ssl", "on");
            if tls.client_authority.is_some() {
                add("ssl_ca_file", "client-authority.crt");
            }
        }
        for (name, value) in &self.options.settings {
            add(name, value);
        }
        self.write("trellara.conf", &text)
    }

    /// Who may connect, and the TLS files.
    fn write_access(&self) -> Result<(), LocalError> {
        let main = self.data_dir().join("postgresql.conf");
        let include = fs::OpenOptions::new()
            .append(true)
            .open(&main)
            .and_then(|mut file| file.write_all(b"\ninclude 'trellara.conf'\n"));
        include.map_err(|e| io("write", &main, e))?;
        if let Some(hba) = &self.options.hba {
            self.write("pg_hba.conf", hba)?;
        }
        if let Some(tls) = &self.options.tls {
            self.write("server.crt", &tls.certificate)?;
            self.write("server.key", &tls.key)?;
            if let Some(authority) = &tls.client_authority {
                self.write("client-authority.crt", authority)?;
            }
        }
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LocalError> {
        let path = self.data_dir().join(name);
        fs::write(&path, text).map_err(|e| io("write", &path, e))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .map_err(|e| io("write", &path, e))?;
        self.account.own(&path)
    }

    /// Removes the System V segment that a killed server leaves: 56 bytes each, but the kernel
    /// has room for 4096 of them only. Its id stands in `postmaster.pid`.
    fn remove_segment(&self) {
        let text = fs::read_to_string(self.data_dir().join("postmaster.pid")).unwrap_or_default();
        let id = text
            .lines()
            .nth(6)
            .and_then(|line| line.split_whitespace().nth(1));
        if let Some(id) = id {
            // Without ipcrm on the machine the segment stays; there is nothing better to do.
            let _ = run(Command::new("ipcrm").arg("-m").arg(id));
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.process.resume_all();
        if self.stop(StopMode::Immediate).is_err() {
            let _ = self.process.kill_all();
        }
        // After an orderly end the file is gone, after a kill it names what is left.
        self.remove_segment();
    }
}

/// A folder for one server. The socket lies in it, and a socket's path must be below 108 bytes.
fn new_folder(account: Account) -> Result<PathBuf, LocalError> {
    const LONGEST: usize = 70;
    let mut parent = account.temporary_folder();
    if parent.as_os_str().len() > LONGEST {
        parent = PathBuf::from("/tmp");
    }
    let folder = tempfile::Builder::new()
        .prefix("trellara-")
        .tempdir_in(&parent)
        .map_err(|e| io("create a folder in", &parent, e))?
        .keep();
    account.own(&folder)?;
    Ok(folder)
}
