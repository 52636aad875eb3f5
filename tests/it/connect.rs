//! Every way to a server is the same on every connection: the relay's walsender, its own session,
//! the applier's, and those of the commands. The roles are those of `config/`, as in all tests.

mod strings;
mod tls;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use trellara_local::shared::CANARY;
use trellara_testkit::daemon::Finished;
use trellara_testkit::flow::Flow;

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

/// A port where nobody listens.
fn dead_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Runs a command; whatever it says, it tells no password.
async fn command(flow: &Flow, arguments: &[&str]) -> Result<Finished> {
    let done = flow.command(arguments).await?;
    let told = done.stdout.contains(CANARY) || done.stderr.contains(CANARY);
    ensure!(!told, "{arguments:?} tells a password");
    Ok(done)
}

/// Every command that asks the servers something and changes nothing.
const QUESTIONS: [&[&str]; 7] = [
    &["check"],
    &["check", "--output", "json"],
    &["status"],
    &["status", "--output", "json"],
    &["inspect"],
    &["config", "show", "--output", "json"],
    &["setup", "--dry-run"],
];

/// Asks all of them.
async fn questions(flow: &Flow) -> Result<()> {
    for arguments in QUESTIONS {
        let done = command(flow, arguments).await?;
        ensure!(
            done.code == 0,
            "{arguments:?} ended with {}: {}{}",
            done.code,
            done.stdout,
            done.stderr
        );
    }
    Ok(())
}

/// What a daemon serves at this path.
fn served(address: &str, path: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("connecting {address}"))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
