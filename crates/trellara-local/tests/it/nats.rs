//! Disposable brokers.

use std::io::{Read, Write};
use std::net::TcpStream;

use trellara_local::{NatsOptions, NatsServer};

/// The INFO line that the server greets with.
fn greeting(server: &NatsServer) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.write_all(b"PING\r\n")?;
    let mut start = vec![0; 4096];
    let read = stream.read(&mut start)?;
    Ok(String::from_utf8_lossy(&start[..read]).into_owned())
}

#[test]
fn starts_restarts_on_its_port_and_deletes_its_folder() -> anyhow::Result<()> {
    let options = NatsOptions {
        max_payload: 65_536,
        sync_always: true,
        ..Default::default()
    };
    let mut server = NatsServer::start(&options)?;
    assert!(greeting(&server)?.contains("\"max_payload\":65536"));
    let (port, folder) = (server.port(), server.log_path());
    server.kill()?;
    assert_eq!(server.pid(), None);
    server.start_again()?;
    server.stop()?;
    server.set_max_payload(131_072)?;
    server.start_again()?;
    assert!(greeting(&server)?.contains("\"max_payload\":131072"));
    assert_eq!(server.port(), port);
    drop(server);
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_frozen_broker_goes_on() -> anyhow::Result<()> {
    let server = NatsServer::start(&NatsOptions::default())?;
    server.pause()?;
    server.resume()?;
    assert!(greeting(&server)?.starts_with("INFO "));
    Ok(())
}

#[test]
fn a_bad_configuration_is_told_in_the_servers_words() {
    let options = NatsOptions {
        extra_config: "jetstrem: no".to_owned(),
        ..Default::default()
    };
    let error = NatsServer::start(&options)
        .err()
        .map(|error| error.to_string());
    assert!(
        error.as_ref().is_some_and(|text| text.contains("jetstrem")),
        "{error:?}"
    );
}

#[test]
fn a_store_outlives_its_server() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    let options = NatsOptions {
        store_dir: Some(store.path().to_owned()),
        ..NatsOptions::default()
    };
    drop(NatsServer::start(&options)?);
    assert!(store.path().join("jetstream").is_dir());
    Ok(())
}
