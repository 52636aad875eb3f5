//! Every TLS mode means the same on ordinary and on replication connections (B129).

use trellara_postgres::{
    ConnectError, ConnectErrorKind, ConnectOptions, ReplicationConnection, Session,
};

use crate::support::{Authority, Server, VERSIONS, self_signed, server, start};

/// Whether this very session is encrypted, asked over both kinds of connection.
const ASK: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

/// Connects both ways; they must agree. Whether both were encrypted.
async fn both(options: &ConnectOptions) -> Result<bool, ConnectError> {
    let ordinary = match Session::connect(options).await {
        Ok(session) => {
            let row = session
                .client
                .query_one(ASK, &[])
                .await
                .expect("pg_stat_ssl");
            Ok(row.get::<_, bool>(0))
        }
        Err(error) => Err(error),
    };
    let replication = match ReplicationConnection::connect(options).await {
        Ok(mut connection) => {
            let rows = connection.simple_query(ASK).await.expect("pg_stat_ssl");
            Ok(rows[0][0].as_deref() == Some("t"))
        }
        Err(error) => Err(error),
    };
    match (ordinary, replication) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a, b, "one connection encrypted, the other not: {options:?}");
            Ok(a)
        }
        (Err(a), Err(b)) => {
            assert_eq!(a.kind, b.kind, "{a} / {b}");
            assert!(!a.hint.is_empty(), "{a} has no hint");
            Err(a)
        }
        (a, b) => panic!("one connected, the other not: {options:?}: {a:?} / {b:?}"),
    }
}

async fn encrypted(server: &Server, rest: &str) -> bool {
    both(&server.options(rest))
        .await
        .unwrap_or_else(|e| panic!("{rest}: {e} ({})", e.hint))
}

async fn refused(server: &Server, rest: &str) -> ConnectErrorKind {
    match both(&server.options(rest)).await {
        Ok(_) => panic!("{rest} was let in"),
        Err(error) => {
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
            error.kind
        }
    }
}

#[tokio::test]
async fn b129_sslmode_is_the_same_on_every_connection() {
    for version in VERSIONS {
        let server = server(version);
        let (root, other) = (
            server.files.path("root.crt"),
            server.files.path("other.crt"),
        );
        let scram = "user=scram password=secret";
        assert!(!encrypted(server, &format!("{scram} sslmode=disable")).await);
        assert!(!encrypted(server, &format!("{scram} sslmode=allow")).await);
        for mode in ["prefer", "require"] {
            assert!(
                encrypted(server, &format!("{scram} sslmode={mode}")).await,
                "{mode}"
            );
        }
        for mode in ["require", "verify-ca", "verify-full"] {
            let rest = format!("{scram} sslmode={mode} sslrootcert={root}");
            assert!(encrypted(server, &rest).await, "{mode}");
            let rest = format!("{scram} sslmode={mode} sslrootcert={other}");
            assert_eq!(
                refused(server, &rest).await,
                ConnectErrorKind::Tls,
                "{mode}, other root"
            );
            let rest = format!("{scram} sslmode={mode} sslrootcert={root}.missing");
            assert_eq!(
                refused(server, &rest).await,
                ConnectErrorKind::Tls,
                "{mode}, no file"
            );
        }
        // verify-ca does not ask for the name, verify-full does.
        let wrong_name = format!("{scram} host=db.test sslrootcert={root}");
        assert!(encrypted(server, &format!("{wrong_name} sslmode=verify-ca")).await);
        assert_eq!(
            refused(server, &format!("{wrong_name} sslmode=verify-full")).await,
            ConnectErrorKind::Tls
        );
        // Without any root certificate, verifying is refused instead of left out.
        for mode in ["verify-ca", "verify-full"] {
            let kind = refused(server, &format!("{scram} sslmode={mode}")).await;
            assert_eq!(kind, ConnectErrorKind::Tls);
        }
    }
}

#[tokio::test]
async fn b129_hostssl_and_hostnossl_lines() {
    for version in VERSIONS {
        let server = server(version);
        let tls_only = "user=tls_only password=secret";
        assert_eq!(
            refused(server, &format!("{tls_only} sslmode=disable")).await,
            ConnectErrorKind::Refused
        );
        // `allow` begins without TLS and must come back with it.
        for mode in ["allow", "prefer", "require"] {
            assert!(
                encrypted(server, &format!("{tls_only} sslmode={mode}")).await,
                "{mode}"
            );
        }
        // `prefer` begins with TLS and must come back without.
        let plain_only = "user=plain_only password=secret";
        assert!(!encrypted(server, &format!("{plain_only} sslmode=prefer")).await);
        assert_eq!(
            refused(server, &format!("{plain_only} sslmode=require")).await,
            ConnectErrorKind::Refused
        );
    }
}

#[tokio::test]
async fn b129_a_server_without_tls() {
    let options = trellara_local::PostgresOptions::version(18);
    let postgres = trellara_local::PostgresServer::start(&options).expect("start PostgreSQL");
    let at = |mode: &str| {
        let port = postgres.port();
        crate::support::options(&format!(
            "host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode={mode}"
        ))
    };
    assert!(!both(&at("prefer")).await.expect("prefer goes on without"));
    let error = both(&at("require")).await.expect_err("require must not");
    assert_eq!(error.kind, ConnectErrorKind::Tls);
}

#[tokio::test]
async fn b129_expired_and_other_certificates() {
    let authority = Authority::new();
    let scram = "user=scram password=secret";
    let expired = start(18, &authority.expired("localhost"));
    let root = expired.files.path("root.crt");
    for mode in ["verify-ca", "verify-full"] {
        let rest = format!("{scram} sslmode={mode} sslrootcert={root}");
        assert_eq!(
            refused(&expired, &rest).await,
            ConnectErrorKind::Tls,
            "{mode}"
        );
    }
    // `require` alone asks for no proof, so it does not ask for dates either.
    assert!(encrypted(&expired, &format!("{scram} sslmode=require")).await);
    drop(expired);

    let named = start(18, &authority.common_name_only("localhost"));
    let root = named.files.path("root.crt");
    let rest = format!("{scram} sslmode=verify-full sslrootcert={root}");
    assert!(
        encrypted(&named, &rest).await,
        "the common name counts where it is the only one"
    );
    let rest = format!("{scram} host=db.test sslmode=verify-full sslrootcert={root}");
    assert_eq!(refused(&named, &rest).await, ConnectErrorKind::Tls);
    drop(named);

    let own = start(15, &self_signed("localhost"));
    let root = own.files.path("root.crt");
    let rest = format!("{scram} sslmode=verify-full sslrootcert={root}");
    assert!(
        encrypted(&own, &rest).await,
        "a server's own certificate can be the root"
    );
    let rest = format!("{scram} host=db.test sslmode=verify-full sslrootcert={root}");
    assert_eq!(refused(&own, &rest).await, ConnectErrorKind::Tls);
}

#[tokio::test]
async fn b129_revoked_certificates() {
    let authority = Authority::new();
    let server = start(18, &authority.numbered("localhost", 4711));
    let root = server.files.path("root.crt");
    let good = server
        .files
        .write("good.crl", &authority.revoked(&[1]), 0o644);
    let bad = server
        .files
        .write("bad.crl", &authority.revoked(&[1, 4711]), 0o644);
    let user = format!("user=scram password=secret sslmode=verify-full sslrootcert={root}");
    assert!(encrypted(&server, &format!("{user} sslcrl={good}")).await);
    assert_eq!(
        refused(&server, &format!("{user} sslcrl={bad}")).await,
        ConnectErrorKind::Tls
    );
    let missing = format!("{user} sslcrl={bad}.missing");
    assert_eq!(refused(&server, &missing).await, ConnectErrorKind::Tls);
}

#[tokio::test]
async fn b129_client_certificates() {
    for version in VERSIONS {
        let server = server(version);
        let (cert, key) = (
            server.files.path("client.crt"),
            server.files.path("client.key"),
        );
        let user = "user=cert_user sslmode=require";
        assert!(encrypted(server, &format!("{user} sslcert={cert} sslkey={key}")).await);
        assert_eq!(
            refused(server, user).await,
            ConnectErrorKind::Refused,
            "without one"
        );
        let loose = server.files.path("loose.key");
        std::fs::copy(&key, &loose).expect("copy the key");
        server.files.write(
            "loose.key",
            &std::fs::read_to_string(&key).expect("read"),
            0o644,
        );
        let rest = format!("{user} sslcert={cert} sslkey={loose}");
        assert_eq!(
            refused(server, &rest).await,
            ConnectErrorKind::Tls,
            "a key others may read"
        );
    }
}

#[tokio::test]
async fn b129_direct_negotiation() {
    let direct = "user=scram password=secret sslmode=require sslnegotiation=direct";
    assert!(encrypted(server(18), direct).await);
    assert_eq!(
        refused(server(15), direct).await,
        ConnectErrorKind::Tls,
        "15 does not know it"
    );
}
