//! Two databases on one server, and messages carried between them by hand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{Client, NoTls};
use trellara_applier::quarantine::ConflictRules;
use trellara_applier::{
    APPLY_SETTINGS, Applied, ApplyError, Catalog, Executor, ExecutorOptions, Skipped,
};
use trellara_local::{PostgresServer, shared};
use trellara_pgoutput::{Message, RelationMap, decode};
use trellara_postgres::SESSION_SETTINGS;

/// Servers of this process, for want of shared ones; the watchdog ends them with it.
static OWN: Mutex<Vec<PostgresServer>> = Mutex::new(Vec::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

fn server(version: u32) -> String {
    if let Ok(url) = std::env::var(shared::postgres_variable(version, shared::SIDES[1])) {
        return url;
    }
    let mut own = OWN.lock().unwrap();
    if !own.iter().any(|server| server.version() == version) {
        own.push(shared::start_postgres(version).unwrap());
    }
    own.iter()
        .find(|server| server.version() == version)
        .unwrap()
        .url("postgres")
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn set(client: &Client, settings: &[(&str, &str)]) {
    let sql: String = settings
        .iter()
        .map(|(name, value)| format!("SET {name} = '{value}';"))
        .collect();
    client.batch_execute(&sql).await.unwrap();
}

/// A source and a target database.
pub(crate) struct World {
    /// Runs SQL on the source.
    pub(crate) source: Client,
    /// Looks at the target, and prepares it.
    pub(crate) target: Client,
    /// The apply session.
    pub(crate) session: Client,
    pub(crate) catalog: Catalog,
    pub(crate) options: ExecutorOptions,
    pub(crate) rules: ConflictRules,
    /// What rules did in the last target transaction.
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) version: u32,
    pub(crate) target_url: String,
    slot: String,
    capture: Client,
}

impl World {
    /// Both databases with the same tables.
    pub(crate) async fn new(version: u32, tables: &str) -> World {
        World::with(version, tables, tables).await
    }

    /// Databases whose tables differ.
    pub(crate) async fn with(version: u32, on_source: &str, on_target: &str) -> World {
        let url = server(version);
        let admin = connect(&url).await;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let slot = format!("x{:x}_{number:x}", std::process::id());
        let mut urls = Vec::new();
        for side in ["src", "dst"] {
            let database = format!("{slot}_{side}");
            admin
                .batch_execute(&format!("CREATE DATABASE {database}"))
                .await
                .unwrap();
            urls.push(format!("{}/{database}", url.rsplit_once('/').unwrap().0));
        }
        let source = connect(&urls[0]).await;
        let target = connect(&urls[1]).await;
        source.batch_execute(on_source).await.unwrap();
        target.batch_execute(on_target).await.unwrap();
        source
            .batch_execute("CREATE PUBLICATION p FOR ALL TABLES")
            .await
            .unwrap();
        let slot_sql = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
        source.batch_execute(&slot_sql).await.unwrap();
        let capture = connect(&urls[0]).await;
        set(&capture, SESSION_SETTINGS).await;
        set(&capture, &[("search_path", "pg_catalog")]).await;
        let mut world = World {
            source,
            target,
            session: connect(&urls[1]).await,
            catalog: Catalog::new(),
            options: ExecutorOptions::default(),
            rules: ConflictRules::default(),
            skipped: Vec::new(),
            version,
            target_url: urls[1].clone(),
            slot,
            capture,
        };
        world.reconnect().await;
        world
    }

    /// A new apply session, as after a lost connection.
    pub(crate) async fn reconnect(&mut self) {
        self.session = connect(&self.target_url).await;
        self.catalog = Catalog::new();
        set(&self.session, SESSION_SETTINGS).await;
        set(&self.session, APPLY_SETTINGS).await;
        let role = if self.options.role_replica {
            "replica"
        } else {
            "origin"
        };
        set(&self.session, &[("session_replication_role", role)]).await;
    }

    /// Every message since the last time.
    pub(crate) async fn capture(&self) -> Vec<Vec<u8>> {
        let sql = format!(
            "SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes('{}', NULL, NULL, \
             'proto_version', '1', 'publication_names', 'p')",
            self.slot
        );
        let rows = self.capture.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Runs SQL on the source and applies what came of it.
    pub(crate) async fn run(&mut self, sql: &str) -> Result<Applied, ApplyError> {
        self.source.batch_execute(sql).await.unwrap();
        let messages = self.capture().await;
        self.apply(&messages).await
    }

    /// Runs SQL on the source of which the target hears nothing.
    pub(crate) async fn unseen(&self, sql: &str) {
        self.source.batch_execute(sql).await.unwrap();
        self.capture().await;
    }

    /// Applies messages in one target transaction, whatever number of source transactions.
    pub(crate) async fn apply(&mut self, messages: &[Vec<u8>]) -> Result<Applied, ApplyError> {
        self.session.batch_execute("BEGIN").await.unwrap();
        let applied = self.apply_open(messages).await;
        let end = if applied.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let _ = self.session.batch_execute(end).await;
        applied
    }

    async fn apply_open(&mut self, messages: &[Vec<u8>]) -> Result<Applied, ApplyError> {
        let mut relations = RelationMap::new();
        let executor = Executor::new(&self.session, &mut self.catalog, self.options);
        let mut executor = executor.with_conflicts(&self.rules);
        self.skipped.clear();
        let mut begun = 0;
        for message in messages {
            let message = decode(message, false).unwrap();
            relations.observe(&message);
            if matches!(message, Message::Begin { .. }) {
                begun += 1;
                if begun > 1 {
                    executor.next_transaction();
                }
            }
            executor.apply_message(&message, &relations).await?;
        }
        let applied = executor.flush().await;
        self.skipped = executor.take_skipped().await?;
        applied
    }

    /// The rows of both tables must be the same text.
    pub(crate) async fn equal(&self, table: &str) {
        let (source, target) = (
            rows(&self.source, table).await,
            rows(&self.target, table).await,
        );
        assert_eq!(source, target, "{table} on PostgreSQL {}", self.version);
    }

    /// Runs SQL on the source, applies it, and compares `tables`, which must not be empty in vain.
    pub(crate) async fn follows(&mut self, sql: &str, tables: &[&str]) {
        if let Err(error) = self.run(sql).await {
            panic!("{error} (hint: {}) after {sql}", error.hint);
        }
        for table in tables {
            self.equal(table).await;
        }
    }

    /// The rows of a table on the target, as text.
    pub(crate) async fn rows(&self, table: &str) -> Vec<String> {
        rows(&self.target, table).await
    }
}

async fn rows(client: &Client, table: &str) -> Vec<String> {
    client
        .batch_execute("SET extra_float_digits = 3; SET bytea_output = hex")
        .await
        .unwrap();
    let sql = format!("SELECT r::text COLLATE \"C\" FROM {table} AS r ORDER BY 1");
    let found = client.query(&sql, &[]).await.unwrap();
    found.iter().map(|row| row.get(0)).collect()
}

/// Both versions that the tests run on.
#[macro_export]
macro_rules! on_each_version {
    ($(#[$doc:meta])* async fn $name:ident($version:ident) $body:block) => {
        $(#[$doc])*
        mod $name {
            use super::*;

            async fn case($version: u32) $body

            #[tokio::test]
            async fn on_postgres_15() {
                case(15).await;
            }

            #[tokio::test]
            async fn on_postgres_18() {
                case(18).await;
            }
        }
    };
}
