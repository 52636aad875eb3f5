//! Ordinary sessions: settings, notices, endings, faults, positions.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::time::timeout;
use trellara_postgres::settle::{SettleError, Snapshot, settle};
use trellara_postgres::sqlstate::ErrorClass;
use trellara_postgres::stragglers::Stragglers;
use trellara_postgres::{
    ConnectErrorKind, ReplicationConnection, SESSION_SETTINGS, Session, SnapshotAction, fault,
    insert_position,
};

use crate::support::{LIMIT, VERSIONS, server};

#[tokio::test]
async fn b69_session_settings_win_over_those_of_the_role() {
    for version in VERSIONS {
        let server = server(version);
        server.psql(
            "DROP ROLE IF EXISTS odd; CREATE ROLE odd LOGIN REPLICATION PASSWORD 'secret';
             ALTER ROLE odd SET datestyle = 'SQL, DMY'; ALTER ROLE odd SET intervalstyle = 'sql_standard';
             ALTER ROLE odd SET extra_float_digits = 0; ALTER ROLE odd SET bytea_output = 'escape';
             ALTER ROLE odd SET timezone = 'Asia/Kolkata'; ALTER ROLE odd SET client_encoding = 'LATIN1';
             ALTER ROLE odd SET standard_conforming_strings = off; ALTER ROLE odd SET array_nulls = off;
             ALTER ROLE odd SET quote_all_identifiers = on;
             ALTER ROLE odd SET search_path = public, pg_catalog; ALTER ROLE odd SET lc_monetary = 'POSIX';
             ALTER ROLE odd SET statement_timeout = '1ms'; ALTER ROLE odd SET lock_timeout = '1ms';
             ALTER ROLE odd SET idle_in_transaction_session_timeout = '1ms';
             ALTER ROLE odd SET idle_session_timeout = '1ms';",
        );
        let mut names: Vec<&str> = SESSION_SETTINGS.iter().map(|(name, _)| *name).collect();
        if version >= 17 {
            server.psql("ALTER ROLE odd SET transaction_timeout = '1ms'");
            names.push("transaction_timeout");
        }
        let options = server
            .options("user=odd password=secret sslmode=require options='-c datestyle=German'")
            .with_application_name("b69");
        let session = Session::connect(&options).await.expect("connect");
        let mut walsender = ReplicationConnection::connect(&options)
            .await
            .expect("connect");
        for name in names {
            let ask = format!("SELECT current_setting('{name}')");
            let row = session
                .client
                .query_one(&ask, &[])
                .await
                .expect("a setting");
            let ordinary: String = row.get(0);
            let rows = walsender.simple_query(&ask).await.expect("a setting");
            assert_eq!(rows[0][0].as_ref(), Some(&ordinary), "{name} on {version}");
            let wanted = SESSION_SETTINGS
                .iter()
                .find(|(n, _)| *n == name)
                .map_or("0", |(_, v)| v);
            assert!(
                ordinary.starts_with(wanted),
                "{name} is {ordinary} on {version}"
            );
        }
        assert_eq!(session.server_version().major(), version);
        assert_eq!(walsender.server_version(), session.server_version());
        assert_eq!(session.parameter("server_encoding"), Some("UTF8"));
        let text = "SELECT '-2 days -03:04:05.6'::interval::text, (0.1::float8 + 0.2)::text, \
                    '\\xdeadbeef00'::bytea::text, '2024-03-10 07:06:05.123456+00'::timestamptz::text";
        let rows = walsender.simple_query(text).await.expect("values");
        let values: Vec<&str> = rows[0]
            .iter()
            .map(|v| v.as_deref().expect("no NULL"))
            .collect();
        let wanted = [
            "-2 days -03:04:05.6",
            "0.30000000000000004",
            "\\xdeadbeef00",
            "2024-03-10 07:06:05.123456+00",
        ];
        assert_eq!(values, wanted);
    }
}

#[tokio::test]
async fn notifications_arrive_and_the_end_is_noticed() {
    let server = server(18);
    let options = server.options("user=scram password=secret sslmode=require");
    let mut session = Session::connect(&options).await.expect("connect");
    let mut notifications = session
        .take_notifications()
        .expect("the first taker gets them");
    assert!(session.take_notifications().is_none());
    session
        .client
        .batch_execute("LISTEN news; NOTIFY news, 'hello'")
        .await
        .expect("notify");
    let got = timeout(LIMIT, notifications.recv())
        .await
        .expect("in time")
        .expect("one");
    assert_eq!(
        (got.channel.as_str(), got.payload.as_str()),
        ("news", "hello")
    );
    assert_eq!(got.pid, session.pid());
    assert!(!session.is_closed());
    server.psql(&format!("SELECT pg_terminate_backend({})", session.pid()));
    timeout(LIMIT, session.closed())
        .await
        .expect("the end is noticed");
    let reason = session.end_reason().expect("the server said why");
    assert_eq!(
        (reason.sqlstate.as_str(), reason.class),
        ("57P01", ErrorClass::Passing)
    );
    let error = session
        .client
        .simple_query("SELECT 1")
        .await
        .expect_err("it is gone");
    assert_eq!(fault(&error).class, ErrorClass::Passing);
}

#[tokio::test]
async fn a_session_is_silent_until_it_is_answered_and_ends_without_an_answer() {
    let server = server(18);
    let options = server.options("user=scram password=secret sslmode=require");
    let blocker = Session::connect(&options).await.expect("connect");
    let lock = "SELECT pg_advisory_lock(7)";
    blocker.client.batch_execute(lock).await.expect("free");
    let session = Session::connect(&options).await.expect("connect");
    let blocked = session.client.batch_execute(lock);
    tokio::pin!(blocked);
    let silent = async {
        while session.silent_for() < Duration::from_millis(300) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        biased;
        answered = &mut blocked => panic!("{answered:?}"),
        () = silent => {}
    }
    let unlocked = Instant::now();
    let unlock = "SELECT pg_advisory_unlock(7)";
    blocker.client.batch_execute(unlock).await.expect("unlock");
    let answered = timeout(LIMIT, &mut blocked).await.expect("in time");
    answered.expect("locked");
    assert!(session.silent_for() < unlocked.elapsed());

    let unanswered = blocker.client.batch_execute(lock);
    tokio::pin!(unanswered);
    assert!((&mut unanswered).now_or_never().is_none());
    blocker.abandon();
    timeout(LIMIT, blocker.closed())
        .await
        .expect("the end does not wait for the answer");
    let answered = timeout(LIMIT, unanswered).await.expect("in time");
    let error = answered.expect_err("nobody answers");
    assert_eq!(fault(&error).class, ErrorClass::Passing);
}

#[tokio::test]
async fn a_running_statement_can_be_cancelled_the_way_the_session_came() {
    let server = server(18);
    for rest in [
        "user=scram password=secret sslmode=require",
        "user=trusted sslmode=disable",
    ] {
        let session = Session::connect(&server.options(rest))
            .await
            .expect("connect");
        let handle = session.cancel_handle();
        let began = session
            .client
            .query_one("SELECT pg_advisory_lock(1)", &[])
            .await;
        began.expect("the lock is free");
        let other = Session::connect(&server.options(rest))
            .await
            .expect("connect");
        let pid = other.pid();
        let waiting = async {
            let blocked = other
                .client
                .query_one("SELECT pg_advisory_lock(1)", &[])
                .await;
            fault(&blocked.expect_err("cancelled"))
        };
        let cancel = async {
            let ask = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted";
            while session
                .client
                .query_one(ask, &[&pid])
                .await
                .expect("locks")
                .get::<_, i64>(0)
                == 0
            {
                tokio::task::yield_now().await;
            }
            other
                .cancel_handle()
                .cancel()
                .await
                .expect("send the request");
        };
        let (fault, ()) = timeout(LIMIT, async { tokio::join!(waiting, cancel) })
            .await
            .expect("in time");
        assert_eq!(
            (fault.sqlstate.as_str(), fault.class),
            ("57014", ErrorClass::Suspicious)
        );
        handle
            .cancel()
            .await
            .expect("cancelling nothing harms nothing");
        let one = session
            .client
            .query_one("SELECT 1", &[])
            .await
            .expect("goes on");
        assert_eq!(one.get::<_, i32>(0), 1);
    }
}

#[tokio::test]
async fn faults_name_places_and_never_values() {
    for version in VERSIONS {
        let server = server(version);
        server.psql(
            "DROP SCHEMA IF EXISTS trellara CASCADE; CREATE SCHEMA trellara;
             CREATE TABLE trellara.applied (lane int PRIMARY KEY, before int NOT NULL);
             DROP TABLE IF EXISTS public.f; CREATE TABLE public.f (id int PRIMARY KEY, v varchar(3));
             GRANT ALL ON SCHEMA trellara TO PUBLIC; GRANT ALL ON f, trellara.applied TO PUBLIC;",
        );
        let options = server.options("user=scram password=secret");
        let session = Session::connect(&options).await.expect("connect");
        let run = |sql: &'static str| {
            let client = &session.client;
            async move { fault(&client.batch_execute(sql).await.expect_err(sql)) }
        };
        let twice = run("INSERT INTO public.f VALUES (4711, 'a'), (4711, 'b')").await;
        assert_eq!(
            (twice.class, twice.sqlstate.as_str()),
            (ErrorClass::DataFault, "23505")
        );
        assert_eq!(twice.table.as_deref(), Some("f"));
        assert_eq!(twice.constraint.as_deref(), Some("f_pkey"));
        let bad = run("SELECT 'topsecret'::int").await;
        assert_eq!(bad.class, ErrorClass::DataFault);
        for shown in [format!("{twice:?}"), format!("{bad:?} {bad}")] {
            assert!(
                !shown.contains("4711") && !shown.contains("topsecret"),
                "{shown}"
            );
        }
        let raised =
            run("DO $$ BEGIN RAISE EXCEPTION 'about 4711' USING ERRCODE = '23514'; END $$").await;
        assert_eq!(raised.sqlstate, "23514");
        assert!(!format!("{raised:?}").contains("4711"), "{raised:?}");
        let first = run("INSERT INTO trellara.applied VALUES (0, NULL)").await;
        assert_eq!(
            (first.class, first.sqlstate.as_str()),
            (ErrorClass::NotMyPredecessor, "23502")
        );
        let second = run("INSERT INTO trellara.applied VALUES (0, 0), (0, 0)").await;
        assert_eq!(second.class, ErrorClass::NotMyPredecessor);
        assert_eq!(
            run("SELECT * FROM missing").await.class,
            ErrorClass::Configuration
        );
    }
}

#[tokio::test]
async fn c09_the_insert_position_is_one_that_an_idle_walsender_reaches() {
    for version in VERSIONS {
        // A server of its own: the shared one is never idle.
        let options = trellara_local::PostgresOptions::version(version);
        let postgres = trellara_local::PostgresServer::start(&options).expect("start PostgreSQL");
        let options = crate::support::options(&postgres.url("postgres"));
        let session = Session::connect(&options).await.expect("connect");
        let mut walsender = ReplicationConnection::connect(&options)
            .await
            .expect("connect");
        session
            .client
            .batch_execute("CREATE TABLE public.t ()")
            .await
            .expect("some WAL");
        // A background process may write in between, so the idle moment is looked for.
        let mut idle = false;
        for _ in 0..50 {
            session
                .client
                .batch_execute("SELECT pg_switch_wal()")
                .await
                .expect("switch");
            let position = insert_position(&session).await.expect("a position");
            let flushed = walsender.identify_system().await.expect("identify").xlogpos;
            let ask = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint % 8192";
            let raw: i64 = session
                .client
                .query_one(ask, &[])
                .await
                .expect("raw")
                .get(0);
            if raw == 40 {
                assert_eq!(position, flushed, "on {version}");
                idle = true;
                break;
            }
            session
                .client
                .batch_execute("INSERT INTO public.t DEFAULT VALUES")
                .await
                .expect("more");
        }
        assert!(idle, "the server was never idle just behind a page header");
    }
}

#[tokio::test]
async fn the_settle_barrier_waits_for_whom_the_snapshot_calls_finished() {
    let server = server(18);
    let options = server.options("user=scram password=secret");
    let session = Session::connect(&options).await.expect("connect");
    let other = Session::connect(&options).await.expect("connect");
    let running = other.client.query_one("SELECT 1", &[]).await;
    running.expect("it answers");
    other
        .client
        .batch_execute("BEGIN; SELECT pg_current_xact_id()")
        .await
        .expect("begin");
    let row = other
        .client
        .query_one("SELECT pg_current_xact_id()::text", &[])
        .await
        .expect("xid");
    let xid: u64 = row.get::<_, &str>(0).parse().expect("a number");
    // What an exported snapshot says in the gap: the transaction is finished.
    let early = Snapshot {
        xmin: xid + 1,
        xmax: xid + 1,
        in_progress: vec![],
    };
    let limit = Duration::from_millis(20);
    match settle(&session, &early, limit).await {
        Err(SettleError::TimedOut { waiting, .. }) => {
            assert!(waiting.contains(&xid.to_string()), "{waiting}");
        }
        other => panic!("{other:?}"),
    }
    // What an honest one says: it is running, nobody waits for it.
    let honest = Snapshot {
        xmin: xid,
        xmax: xid + 1,
        in_progress: vec![xid],
    };
    settle(&session, &honest, LIMIT).await.expect("no wait");
    other.client.batch_execute("COMMIT").await.expect("commit");
    settle(&session, &early, LIMIT).await.expect("settled");
}

/// A commit that waits for a standby is in the log, and in no snapshot.
#[tokio::test]
async fn who_may_have_committed_unseen_is_waited_for_and_nobody_else() {
    let server = server(18);
    let options = server.options("user=postgres");
    let session = Session::connect(&options).await.expect("connect");
    let [waits, works] = [
        Session::connect(&options).await.expect("connect"),
        Session::connect(&options).await.expect("connect"),
    ];
    let mut none = Stragglers::of(&session).await.expect("a snapshot");
    assert_eq!(none.left(&session).await.expect("an answer"), None);

    let idle = begin(&waits).await;
    let mut listed = Stragglers::of(&session).await.expect("a snapshot");
    let left = listed.left(&session).await.expect("an answer");
    assert_eq!(left, None, "{idle} waits for its client");

    let hold = "SELECT pg_advisory_lock(4711)";
    session.client.batch_execute(hold).await.expect("a lock");
    let busy = begin(&works).await;
    let working = works.client.batch_execute(hold);
    tokio::pin!(working);
    assert!(
        timeout(Duration::from_millis(100), &mut working)
            .await
            .is_err()
    );
    let mut listed = Stragglers::of(&session).await.expect("a snapshot");
    let left = listed.left(&session).await.expect("an answer");
    assert!(left.is_some_and(|left| left.contains(&busy.to_string())));
    let give = "SELECT pg_advisory_unlock(4711)";
    session.client.batch_execute(give).await.expect("unlocked");
    working.await.expect("it goes on");
    works.client.batch_execute("ROLLBACK").await.expect("over");
    let left = listed.left(&session).await.expect("an answer");
    assert_eq!(left, None);

    let standby = |name: &str| {
        server.psql(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{name}'"
        ));
        server.psql("SELECT pg_reload_conf()");
    };
    standby("nobody");
    let wait = "ROLLBACK; SET synchronous_commit = on";
    waits.client.batch_execute(wait).await.expect("set");
    // From some moment on, when all of the server has heard of it.
    let began = Instant::now();
    let commit = loop {
        assert!(began.elapsed() < LIMIT, "no commit waits");
        begin(&waits).await;
        let mut commit = Box::pin(waits.client.batch_execute("COMMIT"));
        match timeout(Duration::from_millis(200), &mut commit).await {
            Ok(committed) => committed.expect("committed"),
            Err(_) => break commit,
        }
    };
    let mut listed = Stragglers::of(&session).await.expect("a snapshot");
    let left = listed.left(&session).await.expect("an answer");
    assert!(left.is_some_and(|left| left.contains("SyncRep")));
    standby("");
    timeout(LIMIT, commit)
        .await
        .expect("in time")
        .expect("committed");
    let left = listed.left(&session).await.expect("an answer");
    assert_eq!(left, None);
}

/// Opens a transaction with a number of its own, which is returned.
async fn begin(session: &Session) -> u64 {
    let begun = session.client.batch_execute("BEGIN").await;
    begun.expect("begin");
    let sql = "SELECT pg_current_xact_id()::text";
    let row = session.client.query_one(sql, &[]).await.expect("xid");
    row.get::<_, &str>(0).parse().expect("a number")
}

/// Logical decoding raises xmin whenever it hears who is running, and xmax at commits alone.
#[tokio::test]
async fn a_slot_made_while_nobody_commits_has_a_snapshot_that_can_be_read() {
    for version in VERSIONS {
        let server = trellara_local::PostgresOptions::version(version).with("autovacuum", "off");
        let postgres = trellara_local::PostgresServer::start(&server).expect("start PostgreSQL");
        let options = crate::support::options(&postgres.url("postgres"));
        let session = || async { Session::connect(&options).await.expect("connect") };
        let (watching, first, second, third) = (
            session().await,
            session().await,
            session().await,
            session().await,
        );
        let mut walsender = ReplicationConnection::connect(&options)
            .await
            .expect("connect");
        let waits_for = async |xid: u64| {
            let sql =
                format!("SELECT FROM pg_locks WHERE NOT granted AND transactionid::text = '{xid}'");
            let deadline = Instant::now() + LIMIT;
            while watching
                .client
                .query(&sql, &[])
                .await
                .expect("locks")
                .is_empty()
            {
                assert!(Instant::now() < deadline, "nobody waits for {xid}");
            }
        };
        let xid = begin(&first).await;
        let making = tokio::spawn(async move {
            let created = walsender
                .create_logical_slot("odd", true, SnapshotAction::Export, false)
                .await
                .expect("a slot");
            (created, walsender)
        });
        waits_for(xid).await;
        // At every step of the slot's somebody runs who did not at the one before.
        let next = begin(&second).await;
        first.client.batch_execute("ROLLBACK").await.expect("end");
        waits_for(next).await;
        begin(&third).await;
        second.client.batch_execute("ROLLBACK").await.expect("end");
        let (created, _walsender) = making.await.expect("the slot");
        let exported = created.snapshot.expect("exported");
        let import =
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{exported}'");
        first.client.batch_execute(&import).await.expect("import");
        let sql = "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text, \
                   pg_snapshot_xmax(pg_current_snapshot())::text";
        let row = first.client.query_one(sql, &[]).await.expect("a snapshot");
        let number = |at: usize| row.get::<_, &str>(at).parse::<u64>().expect("a number");
        assert!(
            number(2) < number(1),
            "not the odd case on {version}: {}",
            row.get::<_, &str>(0)
        );
        let snapshot: Snapshot = row.get::<_, &str>(0).parse().expect("a snapshot");
        // The third runs on, and the snapshot knows it.
        settle(&watching, &snapshot, LIMIT).await.expect("settled");
    }
}

#[tokio::test]
async fn a_stopped_server_is_passing_trouble() {
    let options = trellara_local::PostgresOptions::version(15);
    let mut postgres = trellara_local::PostgresServer::start(&options).expect("start PostgreSQL");
    let options = crate::support::options(&postgres.url("postgres"));
    let session = Session::connect(&options).await.expect("connect");
    postgres.kill().expect("kill");
    timeout(LIMIT, session.closed())
        .await
        .expect("the end is noticed");
    let error = session
        .client
        .simple_query("SELECT 1")
        .await
        .expect_err("it is gone");
    assert_eq!(fault(&error).class, ErrorClass::Passing);
    let error = Session::connect(&options)
        .await
        .expect_err("nobody is there");
    assert_eq!(error.kind, ConnectErrorKind::Unreachable);
    assert!(error.is_passing());
}
