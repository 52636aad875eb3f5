//! One process per store keeps its broker running.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::EmbeddedOptions;
use super::access::Access;
use super::log::{LastLines, pass_on};
use crate::error::{LocalError, io};
use crate::nats::quoted;
use crate::process::{POLL, Process, alive, command_line, end_stranger};
use crate::{port, probe};

const CONFIG: &str = "nats-server.conf";
const LOCK: &str = "lock";
/// How often the supervisor looks whether the broker still runs.
const WATCH: Duration = Duration::from_millis(100);
/// Pauses before a restart double from the first to the last of these…
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(10);
/// … and start anew after the broker has run this long.
const SETTLED: Duration = Duration::from_secs(60);
/// An orderly stop flushes the store.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Other ports that are tried when the stored ones are taken.
const PORT_ATTEMPTS: usize = 5;
/// What streams may reserve in all. The server's own default is three quarters of what is free
/// when it starts, so a store that has filled up could not be opened again; our streams have
/// limits of their own.
const MAX_STORE_BYTES: u64 = 1 << 42;

/// The supervising thread and what it shares with its owner.
#[derive(Debug)]
pub(super) struct Supervisor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Held for as long as we supervise; the broker does not inherit it.
    _lock: File,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    process: Process,
    stopping: bool,
    restarts: u64,
}

/// What is needed to start the broker once more.
struct Launch {
    program: PathBuf,
    store_dir: PathBuf,
    max_payload: usize,
    start_limit: Duration,
    last_lines: LastLines,
}

impl Supervisor {
    pub(super) fn start(
        options: &EmbeddedOptions,
        program: PathBuf,
    ) -> Result<(Self, Access), LocalError> {
        let store_dir = open_store(&options.store_dir)?;
        let lock = lock(&store_dir)?;
        let mut access = Access::read(&store_dir)?.unwrap_or_else(Access::invent);
        end_left_over(&access, &store_dir)?;
        let launch = Launch {
            program,
            store_dir,
            max_payload: options.max_payload,
            start_limit: options.start_limit,
            last_lines: LastLines::default(),
        };
        let mut process =
            Process::guarded_where_possible("embedded nats-server".to_owned(), "TERM");
        launch.first_start(&mut process, &mut access)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                process,
                stopping: false,
                restarts: 0,
            }),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name("broker".to_owned())
            .spawn({
                let (shared, access) = (Arc::clone(&shared), access.clone());
                move || shared.watch(&launch, access)
            })
            .map_err(|e| io("start a thread for", &options.store_dir, e))?;
        Ok((
            Self {
                shared,
                thread: Some(thread),
                _lock: lock,
            },
            access,
        ))
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.shared.lock().process.pid()
    }

    pub(super) fn restarts(&self) -> u64 {
        self.shared.lock().restarts
    }

    pub(super) fn stop(&mut self) -> Result<(), LocalError> {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It never panics; if it did, the broker is still ours to stop.
            let _ = thread.join();
        }
        let mut state = self.shared.lock();
        state.process.signal(Signal::SIGTERM)?;
        match state.process.wait(STOP_LIMIT) {
            Ok(()) => Ok(()),
            Err(_) => state.process.kill_all(),
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the embedded broker was not stopped in order");
        }
    }
}

impl Shared {
    /// Nothing that could panic runs under this lock, so a poisoned one is as good as whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, or returns true at once when the owner wants to stop.
    fn stopped_within(&self, limit: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), limit, |state| !state.stopping);
        waited.unwrap_or_else(PoisonError::into_inner).0.stopping
    }

    /// How the broker ended, when it has.
    fn why_down(&self) -> Option<String> {
        let mut state = self.lock();
        match state.process.ended() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) if state.process.pid().is_some() => None,
            Ok(None) => Some("it was not started".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// The supervisor's thread.
    fn watch(&self, launch: &Launch, mut access: Access) {
        let mut pause = PAUSE_FIRST;
        let mut started = Instant::now();
        while !self.stopped_within(WATCH) {
            let Some(reason) = self.why_down() else {
                continue;
            };
            if started.elapsed() >= SETTLED {
                pause = PAUSE_FIRST;
            }
            tracing::warn!(
                reason,
                pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "the embedded broker ended; it is started again"
            );
            if self.stopped_within(pause) {
                return;
            }
            pause = (pause * 2).min(PAUSE_LAST);
            started = Instant::now();
            let mut state = self.lock();
            state.restarts += 1;
            if let Err(error) = launch.spawn(&mut state.process, &mut access) {
                tracing::error!(%error, "the embedded broker could not be started");
            }
        }
    }
}

impl Launch {
    /// Starts on the stored ports, on others if those are taken, and waits until it answers.
    fn first_start(&self, process: &mut Process, access: &mut Access) -> Result<(), LocalError> {
        access.starts += 1;
        for attempt in 1.. {
            if access.port == 0 || attempt > 1 {
                (access.port, access.monitor_port) = (port::free()?, port::free()?);
            }
            self.spawn(process, access)?;
            match self.wait_ready(process, access) {
                Err(LocalError::NotReady { log, .. })
                    if attempt < PORT_ATTEMPTS && log.contains("address already in use") => {}
                other => return other,
            }
        }
        unreachable!("the loop above ends by returning");
    }

    fn spawn(&self, process: &mut Process, access: &mut Access) -> Result<(), LocalError> {
        let config = self.store_dir.join(CONFIG);
        probe::write_private(&config, &self.config(access))?;
        let pid = process.start(
            Command::new(&self.program)
                .arg("--config")
                .arg(&config)
                .current_dir(&self.store_dir)
                // Ctrl-C is for us; we stop the broker when its clients are done.
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped()),
        )?;
        if let Some(stderr) = process.take_stderr() {
            let last_lines = self.last_lines.clone();
            std::thread::Builder::new()
                .name("broker-log".to_owned())
                .spawn(move || pass_on(stderr, &last_lines))
                .map_err(|e| io("start a thread for", &self.program, e))?;
        }
        access.pid = Some(pid);
        access.write(&self.store_dir)
    }

    fn wait_ready(&self, process: &mut Process, access: &Access) -> Result<(), LocalError> {
        let deadline = Instant::now() + self.start_limit;
        loop {
            if probe::healthy(access.monitor_port) && probe::greets(access.port) {
                return Ok(());
            }
            let ended = process.ended()?;
            if ended.is_some() || Instant::now() >= deadline {
                let reason = match ended {
                    Some(status) => format!("it ended ({status})"),
                    None => format!("it did not answer within {:?}", self.start_limit),
                };
                process.kill_all()?;
                return Err(LocalError::NotReady {
                    server: "the embedded nats-server".to_owned(),
                    reason,
                    log: self.last_lines.text(),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    fn config(&self, access: &Access) -> String {
        format!(
            "# Written at every start; changes are lost.\n\
             server_name: trellara\n\
             listen: \"127.0.0.1:{}\"\n\
             http: \"127.0.0.1:{}\"\n\
             max_payload: {}\n\
             logtime: false\n\
             authorization {{ user: \"{}\", password: \"{}\" }}\n\
             # An acknowledgement is an fsync: the relay counts on it.\n\
             jetstream {{ store_dir: \"{}\", max_file_store: {MAX_STORE_BYTES}, sync_interval: always }}\n",
            access.port,
            access.monitor_port,
            self.max_payload,
            access.user(),
            access.password,
            quoted(&self.store_dir.to_string_lossy()),
        )
    }
}

/// Makes the folder if it is not there; one that others can read or own is not used.
fn open_store(folder: &Path) -> Result<PathBuf, LocalError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|e| io("create", folder, e))?;
    let meta = std::fs::metadata(folder).map_err(|e| io("read", folder, e))?;
    if meta.uid() != nix::unistd::Uid::effective().as_raw() {
        return Err(LocalError::Store(format!(
            "the store {} belongs to another account; run as that account or set nats.store_dir",
            folder.display()
        )));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, Permissions::from_mode(0o700))
            .map_err(|e| io("close to others", folder, e))?;
    }
    folder.canonicalize().map_err(|e| io("read", folder, e))
}

fn lock(store_dir: &Path) -> Result<File, LocalError> {
    let path = store_dir.join(LOCK);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.map_err(|e| io("create", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LocalError::StoreInUse {
            store_dir: store_dir.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(io("lock", &path, error)),
    }
}

/// A broker that outlived its supervisor: told from a stranger with the same process id by its
/// command line, which names our configuration file.
fn end_left_over(access: &Access, store_dir: &Path) -> Result<(), LocalError> {
    let config = store_dir.join(CONFIG).to_string_lossy().into_owned();
    let ours = |pid: &u32| alive(*pid) && command_line(*pid).contains(&config);
    match access.pid.filter(ours) {
        Some(pid) => {
            tracing::warn!(
                pid,
                "ending the broker that an earlier run left on this store"
            );
            end_stranger(pid, STOP_LIMIT)
        }
        None => Ok(()),
    }
}
