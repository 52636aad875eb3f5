//! The files of `config/` against real servers: an example that does not work is worse than none.

use std::path::PathBuf;
use std::process::Command;

use trellara_local::{NatsOptions, NatsServer, PostgresOptions, PostgresServer};

/// Tests run in their package's folder.
fn config(name: &str) -> PathBuf {
    PathBuf::from("../../config").join(name)
}

const PASSWORDS: [&str; 3] = [
    "TRELLARA_RELAY_PASSWORD",
    "TRELLARA_APPLIER_PASSWORD",
    "TRELLARA_ADMIN_PASSWORD",
];

#[test]
fn nats_server_accepts_its_file() -> anyhow::Result<()> {
    let mut check = Command::new(trellara_local::nats_server("2.15.1")?);
    check
        .arg("--config")
        .arg(config("nats-server.conf"))
        .arg("-t");
    for variable in PASSWORDS {
        check.env(variable, "secret");
    }
    let output = check.output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Every user of the permissions file can log in, and nobody else.
#[test]
fn permissions_make_three_users() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(config("nats/permissions.conf"))?;
    let text = PASSWORDS
        .iter()
        .fold(text, |text, name| text.replace(&format!("${name}"), name));
    let server = NatsServer::start(&NatsOptions {
        extra_config: text,
        ..Default::default()
    })?;
    let url = server.monitor_url();
    // The monitoring port tells what the server made of the file.
    let accounts = http_get(&url, "/accountz?acc=TRELLARA")?;
    assert!(
        accounts.contains("\"jetstream_enabled\": true"),
        "{accounts}"
    );
    assert!(http_get(&url, "/varz")?.contains("\"auth_required\": true"));
    Ok(())
}

fn http_get(url: &str, path: &str) -> anyhow::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(url.trim_start_matches("http://"))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The settings files start a server; the SQL files run twice and give just the rights they say.
#[test]
fn postgres_accepts_settings_and_grants() -> anyhow::Result<()> {
    for (version, side) in [
        (15, "source"),
        (18, "source"),
        (15, "target"),
        (18, "target"),
    ] {
        let settings = config(&format!("postgres/{side}.conf"));
        let mut options = PostgresOptions::version(version);
        for line in std::fs::read_to_string(settings)?.lines() {
            if let Some((name, value)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
                options = options.with(name, value);
            }
        }
        let server = PostgresServer::start(&options)?;
        server.psql("postgres", "create database shop")?;
        server.psql(
            "shop",
            "create table orders (id int primary key); insert into orders values (1)",
        )?;
        let sql = std::fs::read_to_string(config(&format!("postgres/{side}.sql")))?;
        for _ in 0..2 {
            server.psql("shop", &sql)?;
        }
        if side == "source" {
            source_rights(&server)?
        } else {
            target_rights(&server)?
        }
    }
    Ok(())
}

/// Runs SQL as a role; whether it was allowed.
fn may(server: &PostgresServer, role: &str, sql: &str) -> anyhow::Result<bool> {
    match server.psql("shop", &format!("set role {role}; {sql}")) {
        Ok(_) => Ok(true),
        Err(error) if error.to_string().contains("permission denied") => Ok(false),
        Err(error) if error.to_string().contains("must be owner") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn source_rights(server: &PostgresServer) -> anyhow::Result<()> {
    assert!(may(server, "trellara_capture", "select * from orders")?);
    for sql in [
        "delete from orders",
        "create table own (a int)",
        "create publication p",
    ] {
        assert!(!may(server, "trellara_capture", sql)?, "{sql}");
    }
    let slot = "select pg_create_logical_replication_slot('trellara_shop', 'pgoutput')";
    assert!(may(server, "trellara_capture", slot)?);
    let published = "select string_agg(tablename, ',') from pg_publication_tables \
                     where pubname = 'trellara_shop'";
    assert_eq!(server.psql("shop", published)?, "orders");
    assert!(may(server, "trellara_admin", "create publication p")?);
    Ok(())
}

fn target_rights(server: &PostgresServer) -> anyhow::Result<()> {
    let sql = "set session_replication_role = replica; insert into orders values (2); \
               update orders set id = 3 where id = 2; delete from orders; truncate orders";
    assert!(may(server, "trellara_apply", sql)?);
    for sql in [
        "create table own (a int)",
        "drop table orders",
        "create schema s",
    ] {
        assert!(!may(server, "trellara_apply", sql)?, "{sql}");
    }
    assert!(may(server, "trellara_admin", "create schema trellara")?);
    assert!(!may(server, "trellara_admin", "delete from orders")?);
    Ok(())
}
