//! The supervised broker of `trellara run`.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trellara_local::LocalError;
use trellara_local::embedded::{Access, EmbeddedBroker, EmbeddedOptions, Search};

fn start(store_dir: &Path) -> Result<EmbeddedBroker, LocalError> {
    let server = Some(trellara_local::nats_server("2.15.1")?);
    let search = Search {
        server,
        ..Search::default()
    };
    EmbeddedBroker::start(&EmbeddedOptions::new(store_dir.to_owned(), search))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode() & 0o777)
}

fn port(access: &Access) -> Option<u16> {
    access.url().rsplit_once(':')?.1.parse().ok()
}

fn answers(access: &Access) -> bool {
    port(access).is_some_and(|port| TcpStream::connect(("127.0.0.1", port)).is_ok())
}

/// Polls: the supervisor's work is not signalled to the outside. Fails after 30 s.
fn wait_until(what: &str, mut fits: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !fits() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Changes the process id that the store's file names.
fn write_pid(store_dir: &Path, pid: u32) -> anyhow::Result<()> {
    let path = store_dir.join("broker.json");
    let mut value: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
    value["pid"] = pid.into();
    std::fs::write(&path, value.to_string())?;
    Ok(())
}

#[test]
fn the_store_is_closed_to_others_and_one_process_has_it() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("deep/store");
    let broker = start(&store)?;
    assert_eq!(mode(&store), 0o700);
    assert_eq!(mode(&store.join("broker.json")), 0o600);
    assert_eq!(mode(&store.join("nats-server.conf")), 0o600);
    assert!(!format!("{broker:?}").contains(broker.access().password()));
    assert!(matches!(start(&store), Err(LocalError::StoreInUse { .. })));
    assert_eq!(
        Access::read(&store)?.as_ref().map(Access::url),
        Some(broker.access().url())
    );
    Ok(())
}

/// A broker that was killed while it deleted a stream has a folder that is none.
#[test]
fn remains_of_a_stream_keep_no_broker_from_starting() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    start(store.path())?.stop()?;
    let remains = "jetstream/$G/streams/TRELLARA_shop_COPY/msgs";
    std::fs::create_dir_all(store.path().join(remains))?;
    let broker = start(store.path())?;
    assert!(answers(broker.access()));
    Ok(())
}

#[test]
fn a_restart_keeps_port_and_password() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    let broker = start(store.path())?;
    let before = broker.access().clone();
    assert!(!broker.store_survived_a_restart());
    broker.stop()?;
    assert!(!answers(&before));
    let broker = start(store.path())?;
    let after = broker.access();
    assert_eq!(
        (after.url(), after.password()),
        (before.url(), before.password())
    );
    assert!(broker.store_survived_a_restart());
    Ok(())
}

#[test]
fn a_broker_that_dies_is_started_again() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    let broker = start(store.path())?;
    for round in 1..=2 {
        let pid = broker
            .pid()
            .and_then(|pid| i32::try_from(pid).ok())
            .unwrap_or(0);
        assert!(pid > 0);
        kill(Pid::from_raw(pid), Signal::SIGKILL)?;
        wait_until("started again", || {
            broker.restarts() == round && answers(broker.access())
        });
    }
    Ok(())
}

#[test]
fn a_left_over_broker_is_ended_and_a_stranger_is_not() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    start(store.path())?.stop()?;
    let mut left_over = spawn_quietly(
        Command::new(trellara_local::nats_server("2.15.1")?)
            .arg("--config")
            .arg(store.path().canonicalize()?.join("nats-server.conf")),
    )?;
    let access = Access::read(store.path())?.ok_or_else(|| anyhow::anyhow!("no file"))?;
    wait_until("the left-over broker answers", || answers(&access));
    write_pid(store.path(), left_over.id())?;
    let broker = start(store.path())?;
    assert!(left_over.try_wait()?.is_some());
    assert_ne!(broker.pid(), Some(left_over.id()));
    broker.stop()?;

    let mut stranger = spawn_quietly(Command::new("sleep").arg("600"))?;
    write_pid(store.path(), stranger.id())?;
    let broker = start(store.path())?;
    assert!(stranger.try_wait()?.is_none());
    stranger.kill()?;
    stranger.wait()?;
    broker.stop()?;
    Ok(())
}

fn spawn_quietly(command: &mut Command) -> std::io::Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

#[test]
fn a_taken_port_is_replaced() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    let broker = start(store.path())?;
    let before = port(broker.access()).unwrap_or(0);
    broker.stop()?;
    let _taken = TcpListener::bind(("127.0.0.1", before))?;
    let broker = start(store.path())?;
    assert_ne!(port(broker.access()), Some(before));
    assert!(answers(broker.access()));
    Ok(())
}

#[test]
fn a_program_that_is_too_old_or_missing_names_the_cure() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let old = folder.path().join("nats-server");
    std::fs::write(&old, "#!/bin/sh\necho nats-server: v2.9.10\n")?;
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755))?;
    let search = Search {
        server: Some(old),
        ..Search::default()
    };
    let store = folder.path().join("store");
    let error = EmbeddedBroker::start(&EmbeddedOptions::new(store, search));
    let error = error
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(
        error.contains("v2.9.10") && error.contains("nats.server"),
        "{error}"
    );
    Ok(())
}
