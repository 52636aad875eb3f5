//! Servers that belong to one test, so that it may kill them.

use anyhow::Result;
use trellara_local::{NatsOptions, NatsServer, PostgresOptions, PostgresServer, TlsFiles, shared};

use crate::compare;
use crate::flow::{Flow, Places};

/// Two PostgreSQL servers and a broker of one test's own.
#[derive(Debug)]
pub struct Ground {
    /// The source server.
    pub source: PostgresServer,
    /// The target server.
    pub target: PostgresServer,
    /// The broker.
    pub nats: NatsServer,
}

/// What kind of servers.
#[derive(Debug, Clone)]
pub struct GroundOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// The broker.
    pub nats: NatsOptions,
    /// Settings of the source server.
    pub source: Vec<(String, String)>,
    /// Settings of the target server.
    pub target: Vec<(String, String)>,
    /// Who may come in how, to both PostgreSQL servers.
    pub hba: String,
    /// What both PostgreSQL servers serve TLS with, if they do.
    pub tls: Option<TlsFiles>,
}

impl GroundOptions {
    /// PostgreSQL of that version and the recommended broker with `sync_interval: always`.
    pub fn version(version: u32) -> Self {
        Self {
            version,
            nats: shared::nats(),
            source: Vec::new(),
            target: Vec::new(),
            hba: shared::HBA.to_owned(),
            tls: None,
        }
    }

    /// Adds a setting of the source server.
    #[must_use]
    pub fn source(mut self, name: &str, value: &str) -> Self {
        self.source.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a setting of the target server.
    #[must_use]
    pub fn target(mut self, name: &str, value: &str) -> Self {
        self.target.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl Ground {
    /// Starts all three.
    pub fn start(options: &GroundOptions) -> Result<Self> {
        let server = |settings: &[(String, String)]| {
            let server = PostgresOptions {
                hba: Some(options.hba.clone()),
                tls: options.tls.clone(),
                ..PostgresOptions::version(options.version)
            };
            let server = settings
                .iter()
                .fold(server, |server, (name, value)| server.with(name, value));
            PostgresServer::start(&server)
        };
        Ok(Self {
            source: server(&options.source)?,
            target: server(&options.target)?,
            nats: NatsServer::start(&options.nats)?,
        })
    }

    /// Makes a database `name` on both servers, with their schemas, and a flow of that name.
    pub async fn flow(
        &self,
        name: &str,
        source_schema: &str,
        target_schema: &str,
        extra: &str,
    ) -> Result<Flow> {
        for (server, schema) in [(&self.source, source_schema), (&self.target, target_schema)] {
            let admin = compare::connect(&server.url("postgres")).await?;
            admin
                .batch_execute(&format!("CREATE DATABASE {name}"))
                .await?;
            let database = compare::connect(&server.url(name)).await?;
            database.batch_execute("SET search_path = public").await?;
            database.batch_execute(schema).await?;
        }
        let places = Places {
            source_url: self.source.url(name),
            target_url: self.target.url(name),
            nats_url: self.nats.url(),
            nats_monitor_url: Some(self.nats.monitor_url()),
        };
        Flow::new(name, places, extra)
    }
}
