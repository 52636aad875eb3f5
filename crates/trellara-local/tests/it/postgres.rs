//! Disposable PostgreSQL servers.

use trellara_local::{PostgresOptions, PostgresServer, StopMode};

fn start(version: u32) -> anyhow::Result<PostgresServer> {
    Ok(PostgresServer::start(&PostgresOptions::version(version))?)
}

#[test]
fn starts_answers_and_deletes_its_folder() -> anyhow::Result<()> {
    for version in [15, 18] {
        let server = start(version)?;
        let answer = server.psql("postgres", "show server_version_num; show wal_level")?;
        assert!(answer.starts_with(&version.to_string()), "{answer}");
        assert!(answer.ends_with("\nlogical"), "{answer}");
        let (folder, port) = (server.socket_dir().to_owned(), server.port());
        drop(server);
        assert!(!folder.exists());
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }
    Ok(())
}

/// Copies of one template must not pass for one and the same source.
#[test]
fn each_server_has_its_own_system_identifier() -> anyhow::Result<()> {
    let identifier = "select system_identifier from pg_control_system()";
    let (one, two) = (start(18)?, start(18)?);
    assert_ne!(
        one.psql("postgres", identifier)?,
        two.psql("postgres", identifier)?
    );
    assert_ne!(one.port(), two.port());
    Ok(())
}

#[test]
fn committed_rows_survive_every_way_to_end() -> anyhow::Result<()> {
    let mut server = start(15)?;
    server.psql(
        "postgres",
        "create table t (a int); insert into t values (1)",
    )?;
    let port = server.port();
    server.kill()?;
    assert_eq!(server.pid(), None);
    server.start_again()?;
    server.psql("postgres", "insert into t values (2)")?;
    server.stop(StopMode::Immediate)?;
    server.start_again()?;
    server.psql("postgres", "insert into t values (3)")?;
    server.stop(StopMode::Fast)?;
    server.start_again()?;
    assert_eq!(
        server.psql("postgres", "select a from t order by a")?,
        "1\n2\n3"
    );
    assert_eq!(server.port(), port);
    Ok(())
}

#[test]
fn a_frozen_server_goes_on_and_can_be_dropped() -> anyhow::Result<()> {
    let server = start(18)?;
    server.pause()?;
    let state = |server: &PostgresServer| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid()?)).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    assert_eq!(state(&server), Some('T'));
    server.resume()?;
    assert_eq!(server.psql("postgres", "select 1")?, "1");
    server.pause()?;
    let folder = server.socket_dir().to_owned();
    drop(server);
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn settings_and_access_rules_are_the_callers() -> anyhow::Result<()> {
    let mut options = PostgresOptions::version(18).with("work_mem", "5MB");
    options.hba = Some("host all postgres 127.0.0.1/32 trust\n".to_owned());
    let mut server = PostgresServer::start(&options)?;
    assert_eq!(server.psql("postgres", "show work_mem")?, "5MB");
    server.psql("postgres", "create role somebody login")?;
    let rules = "select count(*) from pg_hba_file_rules";
    assert_eq!(server.psql("postgres", rules)?, "1");
    server.set("work_mem", "6MB")?;
    server.stop(StopMode::Fast)?;
    server.start_again()?;
    assert_eq!(server.psql("postgres", "show work_mem")?, "6MB");
    Ok(())
}

#[test]
fn a_failed_start_shows_the_servers_own_words() {
    let options = PostgresOptions::version(18).with("shared_buffers", "never");
    let error = PostgresServer::start(&options)
        .err()
        .map(|error| error.to_string());
    assert!(
        error
            .as_ref()
            .is_some_and(|text| text.contains("shared_buffers")),
        "{error:?}"
    );
}

#[test]
fn an_sql_error_is_an_error() -> anyhow::Result<()> {
    let server = start(18)?;
    let error = server
        .psql("postgres", "select 1/0")
        .err()
        .map(|error| error.to_string());
    assert!(
        error
            .as_ref()
            .is_some_and(|text| text.contains("division by zero")),
        "{error:?}"
    );
    Ok(())
}

#[test]
fn a_missing_version_names_the_cure() {
    let error = start(9).err().map(|error| error.to_string());
    assert!(
        error
            .as_ref()
            .is_some_and(|text| text.contains("make servers")),
        "{error:?}"
    );
}
