//! Asking a nats-server whether it is up, without a client library, and files that only we read.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use crate::LocalError;
use crate::error::io;

/// A server on this machine answers at once or is not ready.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether the monitoring port says that the server and its JetStream are up. Clients are let in when
/// the stores are read ([`greets`]).
///
/// A bare `/healthz` also wants each folder in the store to be a stream. One that was being deleted
/// when the server was killed is none ever after, and keeps nobody from working.
pub(crate) fn healthy(monitor: u16) -> bool {
    http_get(monitor, "/healthz?js-enabled-only=true")
        .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The whole answer to a GET of the monitoring port, head and body; at most 1 MiB.
pub(crate) fn http_get(monitor: u16, path: &str) -> Option<String> {
    const LIMIT: u64 = 1 << 20;
    let mut stream = connect(monitor)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Whether the client port sends its INFO line.
pub(crate) fn greets(port: u16) -> bool {
    let Some(mut stream) = connect(port) else {
        return false;
    };
    let mut start = [0; 5];
    stream.read_exact(&mut start).is_ok() && &start == b"INFO "
}

fn connect(port: u16) -> Option<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// Writes a file that holds a password: mode 0600 from its first moment, replaced as a whole.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), LocalError> {
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&fresh).and_then(|mut file| {
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
    });
    written.map_err(|e| io("write", &fresh, e))?;
    std::fs::rename(&fresh, path).map_err(|e| io("write", path, e))
}
