//! The servers that both contenders share, and what they were set to.

use anyhow::{Context, Result};
use tokio_postgres::Client;
use trellara_local::NatsOptions;

use super::contender::PUBLICATION;
use super::cpu::{Role, Server};
use super::workload::Workload;
use crate::compare;
use crate::ground::{Ground, GroundOptions};

/// Of both PostgreSQL servers, as the bars were set with; autovacuum and checkpoints at moments of
/// their own would be noise, and everything else is PostgreSQL's default.
pub const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
    ("autovacuum", "off"),
    ("wal_sender_timeout", "60s"),
];

/// Two PostgreSQL servers, a broker whose acknowledgement is an fsync, and a session on each.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) ground: Ground,
    pub(super) source: Client,
    pub(super) target: Client,
    pub(super) version: u32,
}

impl Arena {
    pub(super) async fn start(version: u32) -> Result<Self> {
        let nats = NatsOptions {
            sync_always: true,
            ..NatsOptions::default()
        };
        let options = GroundOptions {
            nats,
            ..GroundOptions::version(version)
        };
        let options = SETTINGS.iter().fold(options, |options, (name, value)| {
            options.source(name, value).target(name, value)
        });
        let ground = Ground::start(&options)?;
        let source = compare::connect(&ground.source.url("postgres")).await?;
        let target = compare::connect(&ground.target.url("postgres")).await?;
        Ok(Self {
            ground,
            source,
            target,
            version,
        })
    }

    /// Makes the source's database, and one on the target that each round's is copied from.
    pub(super) async fn lay_out(&self, workload: &Workload) -> Result<()> {
        let name = workload.kind.database();
        let create = format!("CREATE DATABASE {name}");
        self.source.batch_execute(&create).await?;
        self.target.batch_execute(&create).await?;
        let source = self.connect_source(&name).await?;
        source.batch_execute(&workload.schema()).await?;
        let publish = format!("CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES");
        source.batch_execute(&publish).await?;
        let target = self.connect_target(&name).await?;
        target.batch_execute(&workload.schema()).await?;
        Ok(())
    }

    /// A database on the target that is equal to the one each round begins with.
    pub(super) async fn clone_target(&self, from: &str, name: &str) -> Result<()> {
        // Nobody may be connected to the one that is copied; ours may still be leaving.
        let end = format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_catalog.pg_stat_activity
              WHERE datname = '{from}'"
        );
        self.target.batch_execute(&end).await?;
        let create = format!("CREATE DATABASE {name} TEMPLATE {from} STRATEGY FILE_COPY");
        self.target.batch_execute(&create).await?;
        Ok(())
    }

    pub(super) async fn drop_layout(&self, workload: &Workload) -> Result<()> {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", workload.kind.database());
        self.source.batch_execute(&drop).await?;
        self.target.batch_execute(&drop).await?;
        Ok(())
    }

    pub(super) async fn connect_source(&self, database: &str) -> Result<Client> {
        compare::connect(&self.ground.source.url(database)).await
    }

    pub(super) async fn connect_target(&self, database: &str) -> Result<Client> {
        compare::connect(&self.ground.target.url(database)).await
    }

    /// Runs one statement in a database of the target, in a session of its own.
    pub(super) async fn in_target(&self, database: &str, statement: &str) -> Result<()> {
        let client = self.connect_target(database).await?;
        client
            .batch_execute(statement)
            .await
            .with_context(|| format!("in {database} of the target"))
    }

    pub(super) fn servers(&self) -> Result<[Server<'_>; 2]> {
        let ended = "a server has ended";
        Ok([
            Server {
                postmaster: self.ground.source.pid().context(ended)?,
                admin: &self.source,
                rest: Role::Source,
            },
            Server {
                postmaster: self.ground.target.pid().context(ended)?,
                admin: &self.target,
                rest: Role::Target,
            },
        ])
    }
}
