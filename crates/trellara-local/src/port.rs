//! Free ports on the loopback interface.

use std::net::{Ipv4Addr, TcpListener};

use rand::Rng;

use crate::LocalError;
use crate::error::io;

/// Range that servers are put in: below the ports that the system hands to outgoing connections
/// (32768 and up by default). A server that is down for a moment must find its port free again,
/// which a port from `bind(0)` does not promise: any client's connection may be given it.
const LOWEST: u16 = 12_000;
const HIGHEST: u16 = 32_000;
const ATTEMPTS: usize = 200;

/// A port that nobody listens on at this moment. Somebody else may take it before the caller
/// does, so the caller tries again with another one when its server says "address in use".
pub fn free() -> Result<u16, LocalError> {
    let mut random = rand::rng();
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let port = random.random_range(LOWEST..HIGHEST);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| std::io::Error::other("no port tried"));
    Err(io(
        "find a free port on",
        std::path::Path::new("127.0.0.1"),
        error,
    ))
}
