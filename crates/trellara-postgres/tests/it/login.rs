//! Authentication, password files, hosts.

use trellara_postgres::{
    ConnectError, ConnectErrorKind, ConnectOptions, ReplicationConnection, Session,
};

use crate::support::{VERSIONS, options, server};

async fn both(options: &ConnectOptions) -> Result<(), ConnectError> {
    let ordinary = Session::connect(options).await.map(|_| ());
    let replication = ReplicationConnection::connect(options).await.map(|_| ());
    match (ordinary, replication) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(a), Err(b)) => {
            assert_eq!(a.kind, b.kind, "{a} / {b}");
            Err(a)
        }
        (a, b) => panic!("{options:?}: {a:?} / {b:?}"),
    }
}

#[tokio::test]
async fn scram_plus_is_bound_to_the_channel() {
    for version in VERSIONS {
        let server = server(version);
        let require = "channel_binding=require";
        let tls = server.options(&format!(
            "user=scram password=secret sslmode=require {require}"
        ));
        both(&tls)
            .await
            .unwrap_or_else(|e| panic!("SCRAM-SHA-256-PLUS: {e}"));
        // Only a SCRAM over TLS can be bound.
        for rest in [
            "user=scram password=secret sslmode=disable",
            "user=md5_user password=secret sslmode=require",
            "user=trusted sslmode=require",
        ] {
            let error = both(&server.options(&format!("{rest} {require}"))).await;
            assert_eq!(
                error.expect_err(rest).kind,
                ConnectErrorKind::Refused,
                "{rest}"
            );
        }
        let unbound = "user=scram password=secret sslmode=require channel_binding=disable";
        both(&server.options(unbound))
            .await
            .unwrap_or_else(|e| panic!("{unbound}: {e}"));
    }
}

#[tokio::test]
async fn every_password_method_and_require_auth() {
    for version in VERSIONS {
        let server = server(version);
        for (user, method) in [
            ("scram", "scram-sha-256"),
            ("md5_user", "md5"),
            ("clear_user", "password"),
        ] {
            for mode in ["disable", "require"] {
                let rest = format!("user={user} password=secret sslmode={mode}");
                let named = format!("{rest} require_auth={method}");
                both(&server.options(&named))
                    .await
                    .unwrap_or_else(|e| panic!("{named}: {e}"));
                let forbidden = format!("{rest} require_auth=!{method}");
                let error = both(&server.options(&forbidden))
                    .await
                    .expect_err(&forbidden);
                assert_eq!(error.kind, ConnectErrorKind::Refused);
            }
            let wrong = server.options(&format!("user={user} password=wr0ng sslmode=disable"));
            let error = both(&wrong).await.expect_err("a wrong password");
            assert_eq!(error.kind, ConnectErrorKind::Refused);
            let fault = error.fault.as_ref().expect("the server's words");
            assert_eq!(fault.sqlstate, "28P01");
            assert!(!error.is_passing() && !format!("{error:?}").contains("wr0ng"));
        }
        let error = both(&server.options("user=scram"))
            .await
            .expect_err("no password");
        assert_eq!(error.kind, ConnectErrorKind::Refused);
        assert!(error.hint.contains("password"), "{}", error.hint);
    }
}

#[tokio::test]
async fn b128_hostile_passwords() {
    let hostile = "a@b:c/d?e#f[g]%h\\i{j} k'l\"mü ";
    let (percent, quoted) = (
        "a%40b%3Ac%2Fd%3Fe%23f%5Bg%5D%25h%5Ci%7Bj%7D%20k%27l%22m%C3%BC%20",
        "'a@b:c/d?e#f[g]%h\\\\i{j} k\\'l\"mü '",
    );
    for version in VERSIONS {
        let server = server(version);
        let literal = hostile.replace('\'', "''");
        server.psql(&format!(
            "DROP DATABASE IF EXISTS \"My-Db-1\";
             DROP ROLE IF EXISTS \"Repl User\";
             CREATE ROLE \"Repl User\" LOGIN REPLICATION PASSWORD '{literal}';
             CREATE DATABASE \"My-Db-1\";"
        ));
        let port = server.postgres.port();
        let socket = server
            .postgres
            .socket_dir()
            .display()
            .to_string()
            .replace('/', "%2F");
        let passfile = server.files.write(
            "hostile.pgpass",
            &format!(
                "# comment\nother:*:*:*:no\n127.0.0.1:*:My-Db-1:Repl User:{}\n",
                hostile.replace('\\', "\\\\").replace(':', "\\:")
            ),
            0o600,
        );
        for text in [
            format!("postgresql://Repl%20User:{percent}@127.0.0.1:{port}/My-Db-1"),
            format!("host=127.0.0.1 port={port} user='Repl User' password={quoted} dbname=My-Db-1"),
            format!("postgresql://Repl%20User@127.0.0.1:{port}/My-Db-1?passfile={passfile}"),
            format!("postgresql://Repl%20User:{percent}@{socket}:{port}/My-Db-1"),
        ] {
            let options = options(&text);
            both(&options)
                .await
                .unwrap_or_else(|error| panic!("{error} ({})", error.hint));
            assert!(!format!("{options:?}").contains("b:c"), "{options:?}");
        }
    }
}

#[tokio::test]
async fn a_password_file_that_others_may_read_is_not_used() {
    let server = server(18);
    let open = server.files.write("open.pgpass", "*:*:*:*:secret\n", 0o644);
    let error = both(&server.options(&format!("user=scram passfile={open}"))).await;
    let error = error.expect_err("the file must not be used");
    assert!(error.hint.contains("chmod 0600"), "{}", error.hint);
    // The name in the string counts, not the address.
    let good = server
        .files
        .write("good.pgpass", "localhost:*:*:scram:secret\n", 0o600);
    both(&server.options(&format!("user=scram passfile={good}")))
        .await
        .expect("connect");
}

#[tokio::test]
async fn b131_every_host_and_address_is_tried() {
    let server = server(15);
    let port = server.postgres.port();
    // A listener that was closed again leaves a port where nobody answers.
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        listener.local_addr().expect("an address").port()
    };
    let list = format!("postgres://scram:secret@127.0.0.1:{dead},127.0.0.1:{port}/postgres");
    both(&options(&list))
        .await
        .expect("the second host answers");
    let none = format!("postgres://scram:secret@127.0.0.1:{dead},127.0.0.1:{dead}/postgres");
    let error = both(&options(&none)).await.expect_err("no host answers");
    assert_eq!(error.kind, ConnectErrorKind::Unreachable);
    assert!(
        error.is_passing() && error.reason.contains("before that"),
        "{error}"
    );
    // A wrong password is not cured by another host.
    let wrong = format!("postgres://scram:no@127.0.0.1:{port},127.0.0.1:{dead}/postgres");
    let error = both(&options(&wrong)).await.expect_err("a wrong password");
    assert_eq!(error.kind, ConnectErrorKind::Refused);
    // localhost may be ::1 first, where nobody listens.
    both(&options(&format!(
        "postgres://scram:secret@localhost:{port}/postgres"
    )))
    .await
    .expect("the name's other address answers");
}

#[tokio::test]
async fn b128_abstract_sockets() {
    let name = format!("@trellara-test-{}", std::process::id());
    let options =
        trellara_local::PostgresOptions::version(18).with("unix_socket_directories", &name);
    let postgres = trellara_local::PostgresServer::start(&options).expect("start PostgreSQL");
    let port = postgres.port();
    for text in [
        format!("host={name} port={port} user=postgres dbname=postgres"),
        format!(
            "postgresql://postgres@{}:{port}/postgres",
            name.replace('@', "%40")
        ),
    ] {
        both(&crate::support::options(&text))
            .await
            .unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

#[tokio::test]
async fn target_session_attrs_choose_the_server() {
    let server = server(18);
    for (attrs, fits) in [
        ("any", true),
        ("primary", true),
        ("read-write", true),
        ("prefer-standby", true),
        ("standby", false),
        ("read-only", false),
    ] {
        let rest = format!("user=scram password=secret target_session_attrs={attrs}");
        let result = both(&server.options(&rest)).await;
        match result {
            Ok(()) => assert!(fits, "{attrs}"),
            Err(error) => {
                assert!(!fits, "{attrs}: {error}");
                assert_eq!(error.kind, ConnectErrorKind::NoSuitableServer);
                assert!(error.is_passing());
            }
        }
    }
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let server = server(18);
    let error = both(&server.options("user=scram password=secret dbname=nowhere"))
        .await
        .expect_err("no such database");
    assert_eq!(error.kind, ConnectErrorKind::Refused);
    assert!(error.hint.contains("nowhere"), "{}", error.hint);
    let plain = server.options("user=nobody_special password=secret");
    Session::connect(&plain)
        .await
        .expect("an ordinary session needs no REPLICATION");
    let error = ReplicationConnection::connect(&plain)
        .await
        .err()
        .expect("no REPLICATION");
    let fault = error.fault.as_ref().expect("the server's words");
    assert!(
        error.hint.contains("REPLICATION"),
        "{error} {} {fault:?}",
        error.hint
    );
    assert_eq!(error.kind, ConnectErrorKind::Refused);
}

#[tokio::test]
async fn whatever_answers_but_does_not_speak_is_named_within_the_limit() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bind");
    let port = listener.local_addr().expect("an address").port();
    let silent = options(&format!(
        "host=127.0.0.1 port={port} user=u sslmode=disable connect_timeout=2"
    ));
    let error = Session::connect(&silent).await.expect_err("nobody answers");
    assert_eq!(error.kind, ConnectErrorKind::Unreachable);
    let web = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let (mut socket, _) = listener.accept().await.expect("the silent one's");
        let _ = socket.shutdown().await;
        let (mut socket, _) = listener.accept().await.expect("accept");
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        socket
    });
    let error = Session::connect(&silent).await.expect_err("a web server");
    assert_eq!(error.kind, ConnectErrorKind::Protocol, "{error}");
    assert!(!error.hint.is_empty());
    drop(web.await);
}
