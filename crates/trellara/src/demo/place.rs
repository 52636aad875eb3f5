//! The servers, and the files that describe a flow between them.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;
use tokio_util::task::TaskTracker;
use trellara_local::{LocalError, NatsOptions, NatsServer, PostgresOptions, PostgresServer};
use trellara_postgres::{ConnectOptions, Environment, Session};

use crate::exit::{Exit, Failure};

/// The shop on both sides.
const SCHEMA: &str = include_str!("schema.sql");
/// What the shop holds before anything of ours is there.
const FILL: &str = include_str!("fill.sql");
/// Rows of it.
pub(super) const OLD_ROWS: u64 = 1_000_000;
/// The newest version that is tested; `make servers` brings it.
const POSTGRES: u32 = 18;

/// Both databases and the broker; dropping it ends them and deletes everything.
pub(super) struct Place {
    pub(super) source_url: String,
    pub(super) target_url: String,
    pub(super) broker_url: String,
    pub(super) broker: Arc<Mutex<NatsServer>>,
    folder: TempDir,
    blocking: TaskTracker,
    _source: PostgresServer,
    _target: PostgresServer,
}

impl Place {
    /// Starts the servers, creates the shop in both, and fills that of the source.
    pub(super) async fn prepare(blocking: &TaskTracker) -> Result<Self, Failure> {
        let started = off_thread(blocking, start_servers).await?;
        let (source, target, broker, folder) = started.map_err(|error| missing(&error))?;
        let broker_url = broker.url();
        for server in [&source, &target] {
            let admin = session(&server.url("postgres")).await?;
            admin.client.batch_execute("CREATE DATABASE shop").await?;
            session(&server.url("shop"))
                .await?
                .client
                .batch_execute(SCHEMA)
                .await?;
        }
        let shop = session(&source.url("shop")).await?;
        shop.client.batch_execute(FILL).await?;
        Ok(Self {
            source_url: source.url("shop"),
            target_url: target.url("shop"),
            broker_url,
            broker: Arc::new(Mutex::new(broker)),
            folder,
            blocking: blocking.clone(),
            _source: source,
            _target: target,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the file of a flow; without `broker` the flow brings its own. `backfill` is what
    /// becomes of the rows that are there: `copy` or `none`.
    pub(super) fn write_config(
        &self,
        flow: &str,
        broker: Option<&str>,
        listen: &str,
        backfill: &str,
    ) -> Result<PathBuf, Failure> {
        let nats = match broker {
            Some(url) => format!("nats: {{url: {url:?}, durable: true, max_bytes: 2GiB}}"),
            None => format!(
                "nats: {{store_dir: {:?}, max_bytes: 1GiB}}",
                self.folder().join("store")
            ),
        };
        let text = format!(
            "flow: {flow}\nsource: {{url: {:?}, tables: [public.*]}}\ntarget: {{url: {:?}}}\n{nats}\n\
             ops: {{listen: {listen:?}}}\nbackfill: {{mode: {backfill}}}\nhalt: exit\n",
            self.source_url, self.target_url
        );
        let path = self.folder().join(format!("{flow}.yml"));
        let mut options = std::fs::OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
        Ok(path)
    }

    /// Kills the broker and starts it again on the same store.
    pub(super) async fn kill_broker(&self) -> Result<(), Failure> {
        let broker = self.broker.clone();
        let restarted = off_thread(&self.blocking, move || {
            let mut broker = broker.lock().unwrap_or_else(PoisonError::into_inner);
            broker.kill()?;
            broker.start_again()
        });
        restarted.await?.map_err(|error| missing(&error))
    }
}

/// Runs what blocks. When nobody waits any more, what came of it is dropped before the tracker
/// counts it as ended: servers that nobody wants are gone by then.
async fn off_thread<T: Send + 'static>(
    blocking: &TaskTracker,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let (send, receive) = tokio::sync::oneshot::channel();
    blocking.spawn_blocking(move || {
        let _ = send.send(work());
    });
    receive
        .await
        .map_err(|_| Failure::new(Exit::Bug, "starting a server panicked", "please report it"))
}

fn start_servers() -> Result<(PostgresServer, PostgresServer, NatsServer, TempDir), LocalError> {
    let folder = tempfile::Builder::new().prefix("trellara-demo-").tempdir();
    let folder =
        folder.map_err(|error| LocalError::Store(format!("no temporary folder: {error}")))?;
    // The configuration files in it hold connection strings.
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.path(), private)
        .map_err(|error| LocalError::Store(format!("temporary folder: {error}")))?;
    // A small decoding memory makes large transactions stream before they commit.
    let options = PostgresOptions::version(POSTGRES).with("logical_decoding_work_mem", "64kB");
    let source = PostgresServer::start(&options)?;
    let target = PostgresServer::start(&PostgresOptions::version(POSTGRES))?;
    let broker = NatsServer::start(&NatsOptions {
        sync_always: true,
        ..NatsOptions::default()
    })?;
    Ok((source, target, broker, folder))
}

fn missing(error: &LocalError) -> Failure {
    let exit = match error {
        LocalError::Missing { .. } => Exit::Unavailable,
        _ => Exit::Unexpected,
    };
    Failure::from_error(exit, error).doing("the demo's servers")
}

/// A superuser's session on one of the servers, in which the shop's tables need no schema.
pub(super) async fn session(url: &str) -> Result<Session, Failure> {
    let options = ConnectOptions::parse(url, &Environment::empty())
        .map_err(|error| Failure::from_error(Exit::Bug, &error))?;
    let options = options.with_application_name("trellara-demo");
    let session = Session::connect(&options).await?;
    let path = "SET search_path = public";
    session.client.batch_execute(path).await?;
    Ok(session)
}
