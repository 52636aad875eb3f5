//! Which tables hold nothing, while somebody changes them.

use std::time::Duration;

use trellara_local::{PostgresOptions, PostgresServer};
use trellara_postgres::{ConnectOptions, Environment, Session};
use trellara_source::publication::TableName;
use trellara_source::settled;

async fn session(server: &PostgresServer) -> Session {
    let url = server.url("postgres");
    let options = ConnectOptions::parse(&url, &Environment::from_map([]));
    let session = Session::connect(&options.expect("options")).await;
    session.expect("a session")
}

fn table(name: &str) -> TableName {
    TableName {
        schema: "public".into(),
        name: name.into(),
    }
}

/// Resolves when somebody waits for a lock.
async fn somebody_waits(session: &Session) {
    const WAITS: &str =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')";
    let waits = async {
        while !session
            .client
            .query_one(WAITS, &[])
            .await
            .expect("an answer")
            .get::<_, bool>(0)
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waits = tokio::time::timeout(Duration::from_secs(20), waits).await;
    waits.expect("nobody waits");
}

/// C49: under a snapshot from before, a table that was rewritten shows no row.
#[tokio::test]
async fn c49_a_table_that_is_rewritten_meanwhile_is_not_taken_for_empty() {
    for change in [
        "ALTER TABLE public.t ALTER v TYPE bigint",
        "TRUNCATE public.t",
        "ALTER TABLE public.leaf ALTER v TYPE bigint",
    ] {
        let server = PostgresServer::start(&PostgresOptions::version(18)).expect("a server");
        let tables = "CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 1); \
                      CREATE TABLE none (id int, v int); \
                      CREATE TABLE root (id int) PARTITION BY LIST (id); \
                      CREATE TABLE part PARTITION OF root FOR VALUES IN (1); \
                      CREATE TABLE leaf (id int, v int); INSERT INTO leaf VALUES (1, 1)";
        server.psql("postgres", tables).expect("tables");
        let (other, looking) = (session(&server).await, session(&server).await);
        let begin = format!("BEGIN; {change}");
        other.client.batch_execute(&begin).await.expect("a change");
        let names = ["none", "root", "t", "leaf"].map(table);
        let sight = settled::sight(&looking, &names);
        let ends = async {
            let watching = session(&server).await;
            somebody_waits(&watching).await;
            other
                .client
                .batch_execute("COMMIT")
                .await
                .expect("a commit");
        };
        let (sight, ()) = tokio::join!(sight, ends);
        let empty = sight.expect("a sight").empty;
        let names: Vec<&str> = empty.iter().map(|table| table.name.as_str()).collect();
        assert_eq!(names, ["none", "root"], "{change}");
    }
}
