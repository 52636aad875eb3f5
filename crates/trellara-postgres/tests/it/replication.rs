//! The replication connection and its stream, over every kind of socket.

use std::time::Duration;

use bytes::BytesMut;
use trellara_envelope::{Lsn, Timeline};
use trellara_postgres::{
    ConnectOptions, CopyBoth, CopyReader, ReplicationConnection, ServerMessage, Session,
    SnapshotAction,
};

use crate::support::{LIMIT, Server, VERSIONS, server};

/// The ways in that a stream can take.
fn ways(server: &Server) -> [(&'static str, ConnectOptions); 3] {
    let root = server.files.path("root.crt");
    let socket = server.postgres.socket_dir().display().to_string();
    let port = server.postgres.port();
    [
        ("plain", server.options("user=trusted sslmode=disable")),
        (
            "tls",
            server.options(&format!(
                "user=scram password=secret sslmode=verify-full sslrootcert={root}"
            )),
        ),
        (
            "socket",
            crate::support::options(&format!(
                "host={socket} port={port} user=scram password=secret dbname=postgres"
            )),
        ),
    ]
}

/// Each test has its own publication, because all share a server.
fn stream_options(table: &str) -> Vec<(String, String)> {
    let publication = format!("\"My-Pub, {table}\"");
    let options = [
        ("proto_version", "2"),
        ("publication_names", publication.as_str()),
        ("streaming", "on"),
    ];
    options
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

fn prepare(server: &Server, table: &str) {
    server.psql(&format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, v text);
         GRANT ALL ON {table} TO PUBLIC;
         DROP PUBLICATION IF EXISTS \"My-Pub, {table}\";
         CREATE PUBLICATION \"My-Pub, {table}\" FOR TABLE {table};"
    ));
}

/// Reads messages until one fits; a hang is a failure.
fn read_until<T>(
    reader: &mut CopyReader,
    buffer: &mut BytesMut,
    mut look: impl FnMut(ServerMessage) -> Option<T>,
) -> T {
    reader.set_read_timeout(Some(LIMIT)).expect("a timeout");
    loop {
        while let Some(message) = ServerMessage::take(buffer).expect("a message") {
            if let Some(found) = look(message) {
                return found;
            }
        }
        let count = reader.read_some(buffer).expect("more of the stream");
        assert!(count > 0, "the stream ended early");
    }
}

/// The end LSN of a pgoutput Commit inside an XLogData.
fn commit_end(message: &ServerMessage) -> Option<Lsn> {
    let ServerMessage::CopyData(payload) = message else {
        return None;
    };
    let commit = payload
        .get(25..)
        .filter(|m| payload[0] == b'w' && m[0] == b'C')?;
    Some(Lsn(u64::from_be_bytes(commit[10..18].try_into().ok()?)))
}

fn status(position: Lsn) -> Vec<u8> {
    let mut update = vec![b'r'];
    for _ in 0..3 {
        update.extend_from_slice(&position.0.to_be_bytes());
    }
    update.extend_from_slice(&0_i64.to_be_bytes());
    update.push(1);
    update
}

fn is_keepalive(message: &ServerMessage) -> bool {
    matches!(message, ServerMessage::CopyData(payload) if payload[0] == b'k')
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b129_the_stream_is_encrypted_and_confirms() {
    for version in VERSIONS {
        let server = server(version);
        for (way, options) in ways(server) {
            let (table, slot) = (format!("s_{way}"), format!("s_{way}"));
            prepare(server, &table);
            let mut connection = ReplicationConnection::connect(&options)
                .await
                .expect("connect");
            let pid = connection.pid();
            let identified = connection.identify_system().await.expect("IDENTIFY_SYSTEM");
            assert_eq!(identified.dbname.as_deref(), Some("postgres"));
            let history = connection.history().await.expect("history");
            assert_eq!(
                (history.system, history.timeline),
                (identified.system, Timeline(1))
            );
            let created = connection
                .create_logical_slot(&slot, true, SnapshotAction::Export, false)
                .await
                .expect("a slot");
            assert!(created.name == slot && created.consistent_point > Lsn::ZERO);
            import(&options, created.snapshot.as_deref().expect("exported")).await;
            let stream = connection
                .start_replication(&slot, Lsn::ZERO, &stream_options(&table))
                .await
                .expect("START_REPLICATION");
            let ask =
                format!("SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = {pid}), false)");
            assert_eq!(
                server.psql(&ask),
                if way == "tls" { "t" } else { "f" },
                "{way}"
            );
            let insert = format!(
                "INSERT INTO {table} SELECT i, repeat(i::text, 100000) FROM generate_series(1, 40) i"
            );
            server.psql(&insert);
            let (stream, end) = tokio::task::spawn_blocking(move || receive_and_confirm(stream))
                .await
                .expect("the reading thread");
            let confirmed = server.psql(&format!(
                "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
            ));
            assert_eq!(
                confirmed.parse::<Lsn>().expect("an LSN"),
                end,
                "{way} on {version}"
            );
            end_in_peace(stream).await;
        }
    }
}

/// An exported snapshot can be used by an ordinary session.
async fn import(options: &ConnectOptions, snapshot: &str) {
    let session = Session::connect(options).await.expect("connect");
    let name = trellara_postgres::quote::literal(snapshot);
    let sql =
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT {name}; COMMIT");
    session
        .client
        .batch_execute(&sql)
        .await
        .expect("import the snapshot");
}

/// Reads to the commit, counts what came, confirms, and waits until the server has taken note.
fn receive_and_confirm(mut stream: CopyBoth) -> (CopyBoth, Lsn) {
    let mut buffer = BytesMut::new();
    let (mut inserts, mut bytes) = (0, 0);
    let end = read_until(&mut stream.reader, &mut buffer, |message| {
        if let ServerMessage::CopyData(payload) = &message
            && payload[0] == b'w'
            && payload[25] == b'I'
        {
            inserts += 1;
            bytes += payload.len();
        }
        commit_end(&message).filter(|_| inserts > 0)
    });
    assert!(
        inserts == 40 && bytes > 4_000_000,
        "{inserts} inserts, {bytes} bytes"
    );
    // The first answer may come before the first update was acted on, the second cannot.
    for _ in 0..2 {
        stream
            .writer
            .send_copy_data(&status(end))
            .expect("send an update");
        read_until(&mut stream.reader, &mut buffer, |m| {
            is_keepalive(&m).then_some(())
        });
    }
    (stream, end)
}

/// CopyDone is answered by CopyDone.
async fn end_in_peace(mut stream: CopyBoth) {
    let reading = tokio::task::spawn_blocking(move || {
        stream.writer.send_copy_done().expect("CopyDone");
        let mut buffer = BytesMut::new();
        read_until(&mut stream.reader, &mut buffer, |message| {
            matches!(message, ServerMessage::CopyDone).then_some(())
        });
    });
    reading.await.expect("the reading thread");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_do_not_wait_for_the_reader_and_shutdown_wakes_it() {
    let server = server(18);
    for (way, options) in ways(server) {
        prepare(server, "w");
        let mut connection = ReplicationConnection::connect(&options)
            .await
            .expect("connect");
        let slot = format!("w_{way}");
        let created = connection.create_logical_slot(&slot, true, SnapshotAction::NoExport, false);
        assert_eq!(created.await.expect("a slot").snapshot, None);
        let list = stream_options("w");
        let started = connection.start_replication(&slot, Lsn::ZERO, &list);
        let CopyBoth { mut reader, writer } = started.await.expect("START_REPLICATION");
        // Reads and counts answers until the socket is shut down under it.
        let reading = std::thread::spawn(move || {
            let (mut buffer, mut keepalives) = (BytesMut::new(), 0_u32);
            reader.set_read_timeout(Some(LIMIT)).expect("a timeout");
            loop {
                match reader.read_some(&mut buffer) {
                    Ok(0) => return Ok(keepalives),
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        return Err(error);
                    }
                    Err(_) => return Ok(keepalives),
                }
                while let Some(message) = ServerMessage::take(&mut buffer).expect("a message") {
                    keepalives += u32::from(is_keepalive(&message));
                }
            }
        });
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let writer = writer.clone();
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        writer
                            .send_copy_data(&status(Lsn(1)))
                            .expect("send while reading");
                    }
                })
            })
            .collect();
        for thread in writers {
            thread.join().expect("a writer");
        }
        // The session still works after 800 interleaved updates: the server acted on them all.
        server.psql("INSERT INTO w VALUES (1, 'x')");
        writer.shutdown();
        let keepalives = tokio::task::spawn_blocking(move || reading.join());
        let keepalives = keepalives.await.expect("join").expect("the reader");
        keepalives.unwrap_or_else(|error| panic!("{way}: shutdown did not wake it: {error}"));
        assert!(
            writer.send_copy_data(&status(Lsn(1))).is_err(),
            "{way}: nothing can be sent now"
        );
        assert!(writer.send_copy_done().is_err(), "{way}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_last_words_are_read() {
    let server = server(15);
    for (way, options) in ways(server) {
        prepare(server, "l");
        let mut connection = ReplicationConnection::connect(&options)
            .await
            .expect("connect");
        let pid = connection.pid();
        let slot = format!("l_{way}");
        let created = connection.create_logical_slot(&slot, true, SnapshotAction::NoExport, false);
        created.await.expect("a slot");
        let list = stream_options("l");
        let started = connection.start_replication(&slot, Lsn::ZERO, &list);
        let mut stream = started.await.expect("START_REPLICATION");
        server.psql(&format!("SELECT pg_terminate_backend({pid})"));
        let reading = tokio::task::spawn_blocking(move || {
            let mut buffer = BytesMut::new();
            let fault = read_until(&mut stream.reader, &mut buffer, |message| match message {
                ServerMessage::Error(fault) => Some(fault),
                _ => None,
            });
            let rest = stream.reader.read_some(&mut buffer);
            (fault, rest.unwrap_or(0))
        });
        let (fault, rest) = reading.await.expect("the reading thread");
        assert_eq!((fault.sqlstate.as_str(), rest), ("57P01", 0), "{way}");
    }
}

#[tokio::test]
async fn a_refused_command_leaves_the_connection_usable() {
    let server = server(18);
    let options = server.options("user=scram password=secret sslmode=require");
    let mut connection = ReplicationConnection::connect(&options)
        .await
        .expect("connect");
    let error = connection
        .simple_query("SELECT * FROM missing")
        .await
        .expect_err("no table");
    assert!(matches!(&error, trellara_postgres::QueryError::Server(f) if f.sqlstate == "42P01"));
    let rows = connection
        .simple_query("SELECT 1, NULL, 'é'")
        .await
        .expect("it goes on");
    assert_eq!(
        rows,
        [vec![Some("1".to_owned()), None, Some("é".to_owned())]]
    );
    let missing = connection
        .start_replication("missing", Lsn::ZERO, &stream_options("none"))
        .await;
    let error = missing.err().expect("no slot");
    assert!(matches!(&error, trellara_postgres::QueryError::Server(f) if f.sqlstate == "42704"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b94_names_of_publications_and_slots_are_quoted() {
    let server = server(18);
    server.psql("DROP PUBLICATION IF EXISTS \"a,b 'c\"; CREATE PUBLICATION \"a,b 'c\"");
    let options = server.options("user=scram password=secret");
    let mut connection = ReplicationConnection::connect(&options)
        .await
        .expect("connect");
    let slot = "order";
    let created = connection.create_logical_slot(slot, true, SnapshotAction::NoExport, false);
    created.await.expect("a slot named like a keyword");
    let publications = trellara_postgres::quote::identifier_list(&["a,b 'c"]);
    let list = [
        ("proto_version", "1"),
        ("publication_names", publications.as_str()),
    ];
    let list = list.map(|(n, v)| (n.to_owned(), v.to_owned()));
    let started = connection.start_replication(slot, Lsn::ZERO, &list).await;
    let mut stream = started.expect("START_REPLICATION");
    // The publication is loaded when the first change is decoded.
    server.psql("CREATE TABLE IF NOT EXISTS b94 (); INSERT INTO b94 DEFAULT VALUES");
    let reading = tokio::task::spawn_blocking(move || {
        let mut buffer = BytesMut::new();
        stream
            .writer
            .send_copy_data(&status(Lsn(1)))
            .expect("ask for a reply");
        read_until(&mut stream.reader, &mut buffer, |message| match message {
            ServerMessage::Error(fault) => panic!("{fault}"),
            message => is_keepalive(&message).then_some(()),
        });
    });
    reading.await.expect("the reading thread");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c01_the_history_of_a_promoted_server() {
    for version in VERSIONS {
        let options =
            trellara_local::PostgresOptions::version(version).with("restore_command", "false");
        let mut postgres = trellara_local::PostgresServer::start(&options).expect("start");
        let options = crate::support::options(&postgres.url("postgres"));
        let before = ReplicationConnection::connect(&options)
            .await
            .expect("connect")
            .history()
            .await
            .expect("history");
        postgres.stop(trellara_local::StopMode::Fast).expect("stop");
        // Recovery from an empty archive ends at once, on a new timeline.
        let signal = postgres.data_dir().join("recovery.signal");
        std::fs::write(&signal, "").expect("ask for recovery");
        let owner = std::fs::metadata(postgres.data_dir()).expect("the data folder");
        use std::os::unix::fs::MetadataExt;
        std::os::unix::fs::chown(&signal, Some(owner.uid()), Some(owner.gid())).expect("chown");
        postgres.start_again().expect("start again");
        let after = retry(|| async {
            let mut connection = ReplicationConnection::connect(&options).await.ok()?;
            connection
                .history()
                .await
                .ok()
                .filter(|history| history.timeline > Timeline(1))
        })
        .await;
        assert_eq!((after.system, after.timeline), (before.system, Timeline(2)));
        let [(Timeline(1), left_at)] = after.switches[..] else {
            panic!("{after:?}")
        };
        assert!(left_at > Lsn::ZERO && after.source_at(Lsn(left_at.0 - 1)) == before.source());
        assert_eq!(after.source_at(left_at), after.source());
    }
}

/// Asks again until there is an answer; the server is still recovering meanwhile.
async fn retry<T, F: Future<Output = Option<T>>>(mut ask: impl FnMut() -> F) -> T {
    let patient = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, patient).await.expect("in time")
}
