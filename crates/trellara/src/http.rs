//! Just enough HTTP to ask an endpoint on this machine or a broker's monitor one question.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An endpoint that takes longer is not worth waiting for at a terminal.
const PATIENCE: Duration = Duration::from_secs(2);
/// No answer that we ask for comes near it.
const MOST_BYTES: u64 = 4 << 20;

/// The body of `GET http://{address}{path}` when the answer is 200.
pub(crate) async fn get(address: &str, path: &str) -> Result<String, String> {
    tokio::time::timeout(PATIENCE, ask(address, path))
        .await
        .map_err(|_| format!("{address}: no answer within {} s", PATIENCE.as_secs()))?
        .map_err(|error| format!("{address}: {error}"))
}

async fn ask(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0: the server closes, so that the body ends where the bytes do.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: */*\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(std::io::Error::other(format!("answered {status:?}")))
    }
}
