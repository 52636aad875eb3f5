//! Two databases of one test's own, on servers that tests share where there are such.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::SimpleQueryMessage;
use trellara_local::{PostgresServer, shared};
use trellara_postgres::{ConnectOptions, Environment, Session};
use trellara_verify::report::{Difference, DigestLane, Kind, Outcome, TableReport};
use trellara_verify::{CompareOptions, Comparison, Frozen, VerifyError, compare};

/// The oldest and the newest version supported.
pub(crate) const VERSIONS: [u32; 2] = [15, 18];

/// What rows can be digested by.
pub(crate) const LANES: [DigestLane; 2] = [DigestLane::Row64, DigestLane::Blake3];

/// Two databases.
pub(crate) struct World {
    pub(crate) source: Database,
    pub(crate) target: Database,
}

/// One database, and a superuser's session in it.
pub(crate) struct Database {
    pub(crate) session: Session,
    pub(crate) connect: ConnectOptions,
    /// Ends with the test, where no shared one was found.
    _server: Option<PostgresServer>,
}

impl Database {
    async fn new(version: u32, side: &str, how: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (url, server) = match std::env::var(shared::postgres_variable(version, side)) {
            Ok(url) => (url, None),
            Err(_) => {
                let server = shared::start_postgres(version).expect("start PostgreSQL");
                (server.url("postgres"), Some(server))
            }
        };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("verify_{}_{number}", std::process::id());
        let parsed = ConnectOptions::parse(&url, &Environment::empty());
        let maintenance = parsed.expect("a connection string");
        let admin = Session::connect(&maintenance).await.expect("connect");
        let create = format!("CREATE DATABASE {name} {how}");
        let created = admin.client.batch_execute(&create).await;
        created.expect("create a database");
        let connect = maintenance.with_database(&name);
        let session = Session::connect(&connect).await.expect("connect");
        let database = Self {
            session,
            connect,
            _server: server,
        };
        database.run("SET search_path = public").await;
        database
    }

    pub(crate) async fn run(&self, sql: &str) {
        let done = self.session.client.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The first cell of the first row.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let messages = self.session.client.simple_query(sql).await;
        let messages = messages.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        });
        row.expect("a row")
    }

    /// Freezes the database; the session keeps the snapshot.
    pub(crate) async fn freeze(&self, connect: &ConnectOptions) -> (Frozen, Session) {
        let session = Session::connect(&self.connect).await.expect("connect");
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        session.client.batch_execute(begin).await.expect("begin");
        let exported = session.client.query_one("SELECT pg_export_snapshot()", &[]);
        let snapshot = exported.await.expect("export").get(0);
        let connect = connect.clone();
        (Frozen { connect, snapshot }, session)
    }
}

impl World {
    pub(crate) async fn new(version: u32) -> Self {
        Self::of((version, ""), (version, "")).await
    }

    /// Two versions, and how each database is made.
    pub(crate) async fn of(source: (u32, &str), target: (u32, &str)) -> Self {
        Self {
            source: Database::new(source.0, "SOURCE", source.1).await,
            target: Database::new(target.0, "TARGET", target.1).await,
        }
    }

    pub(crate) async fn both(&self, sql: &str) {
        self.source.run(sql).await;
        self.target.run(sql).await;
    }

    /// Publishes every table that there is and will be.
    pub(crate) async fn publish_all(&self) {
        self.source.run("CREATE PUBLICATION p FOR ALL TABLES").await;
    }

    pub(crate) async fn compare(&self) -> Comparison {
        self.compare_with(|_| {}).await
    }

    pub(crate) async fn compare_with(&self, set: impl FnOnce(&mut CompareOptions)) -> Comparison {
        let (source, _keep) = self.source.freeze(&self.source.connect).await;
        let (target, _keep_too) = self.target.freeze(&self.target.connect).await;
        try_compare(&source, &target, set).await.expect("compare")
    }

    /// Compares the only table.
    pub(crate) async fn report(&self) -> TableReport {
        self.report_with(|_| {}).await
    }

    pub(crate) async fn report_with(&self, set: impl FnOnce(&mut CompareOptions)) -> TableReport {
        let mut got = self.compare_with(set).await;
        assert_eq!(got.tables.len(), 1, "{got:?}");
        got.tables.remove(0)
    }
}

pub(crate) async fn try_compare(
    source: &Frozen,
    target: &Frozen,
    set: impl FnOnce(&mut CompareOptions),
) -> Result<Comparison, VerifyError> {
    let mut options = CompareOptions::new("test", "p", 0x5eed);
    set(&mut options);
    compare(source, target, &options, &|_| {}).await
}

/// `k=1 changed(v)` for each difference, in the order reported.
pub(crate) fn found(report: &TableReport) -> Vec<String> {
    assert!(
        !matches!(report.outcome, Outcome::NotComparable { .. }),
        "{report:?}"
    );
    assert_eq!(
        report.outcome == Outcome::Equal,
        report.differing() == 0,
        "{report:?}"
    );
    report.differences.iter().map(shown).collect()
}

fn shown(difference: &Difference) -> String {
    let key: Vec<String> = difference
        .key
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_deref().unwrap_or("NULL")))
        .collect();
    let kind = match difference.kind {
        Kind::Missing => "missing".to_owned(),
        Kind::Extra => "extra".to_owned(),
        Kind::Changed => format!("changed({})", difference.columns.join(",")),
        Kind::Duplicate => format!(
            "duplicate({}:{})",
            difference.source_count, difference.target_count
        ),
    };
    format!("{} {kind}", key.join(","))
}

/// Why a table was not compared, and what to do.
pub(crate) fn refusal(report: &TableReport) -> (String, String) {
    match &report.outcome {
        Outcome::NotComparable { reason, hint } => (reason.clone(), hint.clone()),
        other => panic!("{other:?} of {report:?}"),
    }
}

/// The report of a table.
pub(crate) fn of<'a>(comparison: &'a Comparison, name: &str) -> &'a TableReport {
    let table = comparison.tables.iter().find(|t| t.table.name == name);
    table.unwrap_or_else(|| panic!("no {name} in {comparison:?}"))
}

/// A role with a password, and how it connects to the source.
pub(crate) async fn role(world: &World, name: &str) -> ConnectOptions {
    let name = format!(
        "{name}_{}",
        world.source.ask("SELECT current_database()").await
    );
    let make =
        format!("CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA public TO {name}");
    world.source.run(&make).await;
    let host = &world.source.connect.hosts()[0];
    let (address, database) = (&host.name, world.source.connect.database());
    let url = format!("postgresql://{name}:x@{address}:{}/{database}", host.port);
    ConnectOptions::parse(&url, &Environment::empty()).expect("a connection string")
}

/// A table of ten rows, published.
pub(crate) async fn small(version: u32) -> World {
    let world = World::new(version).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY, v int, w int); INSERT INTO t SELECT i, i, i FROM generate_series(1, 10) i")
        .await;
    world.publish_all().await;
    world
}
