//! Tables made from definitions are the tables that were defined, by PostgreSQL's own functions.

use tokio_postgres::{Client, NoTls};
use trellara_local::{PostgresOptions, PostgresServer};
use trellara_postgres::{ConnectOptions, Environment, Session};
use trellara_source::definition::{self, Options, Present};
use trellara_source::publication::TableName;

const SCHEMA: &str = include_str!("definition/schema.sql");
/// What only servers from 18 on know.
const SCHEMA_18: &str = "\
CREATE TABLE public.computed (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a + 1) VIRTUAL);
";

/// What the test compares: said by the server about everything outside of its own schemas, by
/// questions other than those of the code under test.
const SAID: &str = include_str!("definition/said.sql");

struct Pair {
    server: PostgresServer,
}

impl Pair {
    fn start(version: u32, schema: &str) -> Self {
        let server = PostgresServer::start(&PostgresOptions::version(version)).expect("a server");
        for database in ["here", "there"] {
            server
                .psql("postgres", &format!("CREATE DATABASE {database}"))
                .expect("a database");
        }
        server
            .psql("postgres", "CREATE ROLE \"wri\"\"ter\" LOGIN")
            .expect("a role");
        server.psql("here", schema).expect("the schema");
        Self { server }
    }

    async fn session(&self, database: &str) -> Session {
        let url = self.server.url(database);
        let options = ConnectOptions::parse(&url, &Environment::from_map([]));
        let session = Session::connect(&options.expect("options")).await;
        session.expect("a session")
    }

    async fn said(&self, database: &str) -> Vec<String> {
        let (client, connection) = tokio_postgres::connect(&self.server.url(database), NoTls)
            .await
            .expect("a connection");
        tokio::spawn(connection);
        said(&client).await
    }
}

async fn said(client: &Client) -> Vec<String> {
    client
        .batch_execute("SET search_path = ''")
        .await
        .expect("set");
    let rows = client.query(SAID, &[]).await.expect("said");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn tables(session: &Session) -> Vec<TableName> {
    let rows = session
        .client
        .query(
            "SELECT n.nspname::text, c.relname::text FROM pg_class AS c \
               JOIN pg_namespace AS n ON n.oid = c.relnamespace \
              WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname <> 'information_schema' \
                AND n.nspname !~ '^pg_' AND c.relname <> 'not_published' ORDER BY 1, 2",
            &[],
        )
        .await
        .expect("tables");
    rows.iter()
        .map(|row| TableName {
            schema: row.get(0),
            name: row.get(1),
        })
        .collect()
}

fn options(version: u32) -> Options {
    Options {
        server_major: version,
        writer: Some("wri\"ter".to_owned()),
        foreign_keys: true,
    }
}

async fn what_is_made_is_what_was_defined(version: u32, schema: &str) {
    let pair = Pair::start(version, schema);
    let (here, there) = (pair.session("here").await, pair.session("there").await);
    let definitions = definition::read(&here, &tables(&here).await)
        .await
        .expect("definitions");
    let present = Present::read(&there, &definitions).await.expect("present");
    assert_eq!(definitions.unmade_types(&present).count(), 0);
    for statement in definitions.statements(&present, &options(version)) {
        let made = there.client.batch_execute(&statement.sql).await;
        made.unwrap_or_else(|error| panic!("{}: {error:?}", statement.sql));
    }
    let (expected, made) = (pair.said("here").await, pair.said("there").await);
    assert!(expected.len() > 100, "{}", expected.len());
    for line in &expected {
        let left_out = line.contains("not_published");
        assert!(
            left_out || made.contains(line),
            "missing: {line}\n{made:#?}"
        );
    }
    for line in &made {
        assert!(expected.contains(line), "too much: {line}");
    }
    // Once more, and there is nothing left to make.
    let present = Present::read(&there, &definitions).await.expect("present");
    assert_eq!(definitions.statements(&present, &options(version)), []);
    let rights = "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                   WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' AND c.relkind IN ('r', 'p') \
                     AND NOT (has_table_privilege('wri\"ter', c.oid, 'TRUNCATE') \
                              AND has_schema_privilege('wri\"ter', n.oid, 'USAGE'))";
    let without: i64 = there
        .client
        .query_one(rights, &[])
        .await
        .expect("rights")
        .get(0);
    assert_eq!(without, 0);
}

#[tokio::test]
async fn what_is_made_is_what_was_defined_on_15() {
    what_is_made_is_what_was_defined(15, SCHEMA).await;
}

#[tokio::test]
async fn what_is_made_is_what_was_defined_on_18() {
    what_is_made_is_what_was_defined(18, &format!("{SCHEMA}{SCHEMA_18}")).await;
}

/// A type that nothing can make is named, and so is what uses functions that the other side lacks.
#[tokio::test]
async fn what_cannot_be_made_is_told() {
    let schema = "\
        CREATE TYPE pair AS (a int, b int);
        CREATE FUNCTION one() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
        CREATE TABLE t (id int PRIMARY KEY, p pair, n int DEFAULT one(), CHECK (n >= one()));
        CREATE INDEX by_one ON t ((n + one()));";
    let pair = Pair::start(18, schema);
    let (here, there) = (pair.session("here").await, pair.session("there").await);
    let definitions = definition::read(&here, &tables(&here).await)
        .await
        .expect("definitions");
    let present = Present::read(&there, &definitions).await.expect("present");
    let unmade: Vec<String> = definitions
        .unmade_types(&present)
        .map(TableName::to_string)
        .collect();
    assert_eq!(unmade, ["\"public\".\"pair\""]);
    pair.server
        .psql("there", "CREATE TYPE pair AS (a int, b int)")
        .expect("the type");
    let present = Present::read(&there, &definitions).await.expect("present");
    let mut failed = Vec::new();
    for statement in definitions.statements(&present, &options(18)) {
        if there.client.batch_execute(&statement.sql).await.is_err() {
            assert!(!statement.essential, "{}", statement.sql);
            failed.push(statement.about);
        }
    }
    assert_eq!(
        failed,
        [
            "table \"public\".\"t\"",
            "constraint \"t_n_check\" of \"public\".\"t\"",
            "index \"by_one\" of \"public\".\"t\"",
        ]
    );
}
