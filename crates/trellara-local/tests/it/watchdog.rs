//! Servers end with the process that started them.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trellara_local::shared;

/// `with-servers` running a command that prints where two servers are and then waits for the
/// end of its input.
fn with_servers() -> Command {
    let script = format!(
        "echo ${}; echo ${}; cat",
        shared::postgres_variable(18, "TARGET"),
        shared::NATS_VARIABLE
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-servers"));
    command.args(["--postgres", "18", "--", "sh", "-c", &script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn port(url: &str) -> Option<u16> {
    url.rsplit_once(':')?
        .1
        .split('/')
        .next()?
        .trim()
        .parse()
        .ok()
}

/// Polls, since nothing signals the end of a process that is not our child; fails after 30 s.
fn wait_until_closed(ports: &[u16]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while ports
        .iter()
        .any(|&port| TcpStream::connect(("127.0.0.1", port)).is_ok())
    {
        assert!(
            Instant::now() < deadline,
            "servers on {ports:?} are still there"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ports_of(child: &mut std::process::Child) -> Option<Vec<u16>> {
    let lines = BufReader::new(child.stdout.take()?).lines().take(2);
    lines.map(|line| port(&line.ok()?)).collect()
}

#[test]
fn a_killed_parent_leaves_no_server() -> anyhow::Result<()> {
    let mut child = with_servers().spawn()?;
    let ports = ports_of(&mut child).unwrap_or_default();
    assert_eq!(ports.len(), 2);
    assert!(
        ports
            .iter()
            .all(|&port| TcpStream::connect(("127.0.0.1", port)).is_ok())
    );
    child.kill()?;
    child.wait()?;
    wait_until_closed(&ports);
    Ok(())
}

#[test]
fn the_commands_code_is_passed_on_and_the_servers_end() -> anyhow::Result<()> {
    let mut child = with_servers().spawn()?;
    let ports = ports_of(&mut child).unwrap_or_default();
    assert_eq!(ports.len(), 2);
    drop(child.stdin.take());
    assert!(child.wait()?.success());
    // Ended before the program did: no waiting here.
    assert!(
        ports
            .iter()
            .all(|&port| TcpStream::connect(("127.0.0.1", port)).is_err())
    );

    let failing = Command::new(env!("CARGO_BIN_EXE_with-servers"))
        .args(["--postgres", "18", "--", "sh", "-c", "exit 7"])
        .status()?;
    assert_eq!(failing.code(), Some(7));
    Ok(())
}
