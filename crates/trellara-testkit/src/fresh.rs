//! A database pair and a flow per test, on servers that many tests share.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, Result, ensure};
use trellara_local::{NatsServer, PostgresServer, shared};

use crate::compare;
use crate::flow::{Flow, Places};

/// URLs of the shared servers of one PostgreSQL version.
#[derive(Debug, Clone)]
struct SharedServers {
    source: String,
    target: String,
}

/// Servers that this process had to start itself because `with-servers` did not; the watchdog of
/// `trellara-local` ends them with the process.
static OWN: Mutex<Vec<(u32, PostgresServer, PostgresServer)>> = Mutex::new(Vec::new());
static OWN_NATS: OnceLock<NatsServer> = OnceLock::new();

fn servers(version: u32) -> Result<SharedServers> {
    let named = |side: &str| std::env::var(shared::postgres_variable(version, side)).ok();
    if let (Some(source), Some(target)) = (named(shared::SIDES[0]), named(shared::SIDES[1])) {
        return Ok(SharedServers { source, target });
    }
    let mut own = OWN.lock().expect("no test panics while it starts servers");
    if !own.iter().any(|(have, ..)| *have == version) {
        own.push((
            version,
            shared::start_postgres(version)?,
            shared::start_postgres(version)?,
        ));
    }
    let (_, source, target) = own
        .iter()
        .find(|(have, ..)| *have == version)
        .expect("just made");
    Ok(SharedServers {
        source: source.url("postgres"),
        target: target.url("postgres"),
    })
}

fn broker() -> Result<(String, Option<String>)> {
    if let Ok(url) = std::env::var(shared::NATS_VARIABLE) {
        return Ok((url, std::env::var(shared::NATS_MONITOR_VARIABLE).ok()));
    }
    if let Some(server) = OWN_NATS.get() {
        return Ok((server.url(), Some(server.monitor_url())));
    }
    let server = NatsServer::start(&shared::nats())?;
    let server = OWN_NATS.get_or_init(|| server);
    Ok((server.url(), Some(server.monitor_url())))
}

/// The connection string with another database in it.
fn with_database(url: &str, database: &str) -> Result<String> {
    let (server, _) = url
        .rsplit_once('/')
        .context("a connection string ends in its database")?;
    Ok(format!("{server}/{database}"))
}

/// A fresh database pair on shared servers of `version`, and a flow between them. The name is
/// made unique, since several tests share the servers.
pub async fn fresh_flow(version: u32, name: &str, extra: &str) -> Result<Flow> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let servers = servers(version)?;
    let (nats_url, nats_monitor_url) = broker()?;
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let unique = format!("{name}_{:x}{number:x}", std::process::id());
    ensure!(unique.len() <= 23, "{unique} is too long for a flow");
    for url in [&servers.source, &servers.target] {
        let admin = compare::connect(url).await?;
        admin
            .batch_execute(&format!("CREATE DATABASE {unique}"))
            .await?;
    }
    let places = Places {
        source_url: with_database(&servers.source, &unique)?,
        target_url: with_database(&servers.target, &unique)?,
        nats_url,
        nats_monitor_url,
    };
    Flow::new(&unique, places, extra)
}

/// Runs pgbench of that version against a database.
pub fn pgbench(version: u32, url: &str, arguments: &[&str]) -> Result<()> {
    let program = trellara_local::postgres_bin(version)?.join("pgbench");
    let output = Command::new(&program)
        .args(arguments)
        .arg(url)
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "pgbench {arguments:?} failed: {text}"
    );
    Ok(())
}
