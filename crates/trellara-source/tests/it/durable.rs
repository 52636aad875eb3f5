//! What a snapshot saw stays, whatever becomes of the source.

use std::time::Duration;

use trellara_local::{PostgresOptions, PostgresServer, StopMode};
use trellara_postgres::{ConnectOptions, Environment, ReplicationConnection, SnapshotAction};
use trellara_source::copy::SharedSnapshot;
use trellara_source::publication::TableName;
use trellara_source::{SourceOptions, settled, slot};

fn source(server: &PostgresServer) -> SourceOptions {
    let url = server.url("postgres");
    let options = ConnectOptions::parse(&url, &Environment::from_map([]));
    let flow = "shop".parse().expect("a flow");
    SourceOptions::new(&flow, options.expect("options"))
}

/// Commits do not wait for the disk, and the log gets there every few seconds.
fn lazy(version: u32) -> PostgresOptions {
    PostgresOptions::version(version)
        .with("synchronous_commit", "off")
        .with("wal_writer_delay", "3s")
}

async fn survives_a_crash(version: u32) {
    let mut server = PostgresServer::start(&lazy(version)).expect("a server");
    let table = "CREATE TABLE t (id int); CHECKPOINT; INSERT INTO t VALUES (1)";
    server.psql("postgres", table).expect("a table");
    let snapshot = SharedSnapshot::take(&source(&server)).await;
    let snapshot = snapshot.expect("a snapshot");
    server.stop(StopMode::Immediate).expect("a crash");
    server.start_again().expect("a start");
    let rows = server.psql("postgres", "SELECT count(*) FROM t");
    assert_eq!(rows.expect("rows").trim(), "1");
    let end = server.psql("postgres", "SELECT pg_current_wal_insert_lsn()");
    let end = end.expect("a position").trim().parse().expect("an LSN");
    assert!(snapshot.converges_at() <= end, "{end}: given out again");
}

#[tokio::test]
async fn what_a_copy_reads_survives_a_crash_of_the_source_15() {
    survives_a_crash(15).await;
}

#[tokio::test]
async fn what_a_copy_reads_survives_a_crash_of_the_source_18() {
    survives_a_crash(18).await;
}

/// The same of what setup sees: here that a table holds nothing any more.
#[tokio::test]
async fn a_table_that_setup_sees_empty_is_empty_after_a_crash() {
    let mut server = PostgresServer::start(&lazy(18)).expect("a server");
    let table = "CREATE TABLE t (id int); INSERT INTO t VALUES (1); CHECKPOINT; DELETE FROM t";
    server.psql("postgres", table).expect("a table");
    let session = source(&server).session().await.expect("a session");
    let names = [TableName {
        schema: "public".into(),
        name: "t".into(),
    }];
    let sight = settled::sight(&session, &names).await.expect("a sight");
    assert_eq!(sight.empty.len(), 1);
    server.stop(StopMode::Immediate).expect("a crash");
    server.start_again().expect("a start");
    let rows = server.psql("postgres", "SELECT count(*) FROM t");
    assert_eq!(rows.expect("rows").trim(), "0");
}

/// A slot that is kept on standbys waits for them, and so does the copy: otherwise the target would
/// have rows that are gone after a failover.
#[tokio::test]
async fn a_copy_waits_for_the_standbys_that_its_slot_waits_for() {
    let mut server = PostgresServer::start(&PostgresOptions::version(18)).expect("a server");
    let source = source(&server);
    let session = source.session().await.expect("a session");
    let connection = ReplicationConnection::connect(&source.connect).await;
    let mut connection = connection.expect("a connection");
    let version = session.server_version();
    let created = slot::create(
        &mut connection,
        version,
        &source.slot,
        SnapshotAction::NoExport,
    );
    created.await.expect("a slot");
    let standby = "SELECT pg_create_physical_replication_slot('standby', true)";
    server.psql("postgres", standby).expect("a slot");
    server
        .set("synchronized_standby_slots", "\"standby\"")
        .expect("a setting");
    let is_set = "SELECT current_setting('synchronized_standby_slots')";
    while server.psql("postgres", is_set).expect("an answer").trim() != "\"standby\"" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server
        .psql("postgres", "CREATE TABLE t (id int)")
        .expect("a table");
    let taking = SharedSnapshot::take(&source);
    let mut taking = std::pin::pin!(taking);
    // Longer than it takes by far.
    let early = tokio::time::timeout(Duration::from_secs(2), &mut taking).await;
    assert!(early.is_err(), "it did not wait");
    let advance = "SELECT pg_replication_slot_advance('standby', pg_current_wal_flush_lsn())";
    server.psql("postgres", advance).expect("a position");
    let snapshot = taking.await.expect("a snapshot");
    let source = snapshot.source();
    let system = "SELECT system_identifier FROM pg_control_system()";
    let system = server.psql("postgres", system).expect("an identifier");
    assert_eq!(source.system.to_string(), system.trim());
    assert_eq!(source.timeline.0, 1);
}
