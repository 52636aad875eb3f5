//! Runs a command with servers beside it that its tests share, and ends them afterwards.
//!
//! Usage: `with-servers [--postgres 15,18] [--nats 2.15.1] -- COMMAND [ARGUMENT …]`
//!
//! For each PostgreSQL version a source and a target server are started, and one broker; the
//! command finds them in the variables that `trellara_local::shared` names. Test runners start a
//! process per test, so servers that tests share have to outlive each of them. Exits with the
//! command's code; 69 when a server cannot be started, 64 for wrong usage.

use std::io::Write;
use std::process::{Command, ExitCode};

use trellara_local::{LocalError, NatsOptions, NatsServer, shared};

const USAGE: &str =
    "usage: with-servers [--postgres 15,18] [--nats 2.15.1] -- COMMAND [ARGUMENT ...]";
const EXIT_USAGE: u8 = 64;
const EXIT_UNAVAILABLE: u8 = 69;
const EXIT_UNEXPECTED: u8 = 1;

fn main() -> ExitCode {
    let Some(wanted) = Wanted::parse(std::env::args().skip(1)) else {
        return complain(USAGE, EXIT_USAGE);
    };
    match wanted.run() {
        Ok(code) => code,
        Err(error) => complain(&error.to_string(), EXIT_UNAVAILABLE),
    }
}

fn complain(text: &str, code: u8) -> ExitCode {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(std::io::stderr(), "with-servers: {text}");
    ExitCode::from(code)
}

/// What the arguments ask for.
struct Wanted {
    postgres: Vec<u32>,
    nats: String,
    command: Vec<String>,
}

impl Wanted {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let nats = NatsOptions::default().version;
        let mut wanted = Self {
            postgres: vec![15, 18],
            nats,
            command: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--postgres" => {
                    let list = arguments.next()?;
                    wanted.postgres = list
                        .split(',')
                        .map(str::parse)
                        .collect::<Result<_, _>>()
                        .ok()?;
                }
                "--nats" => wanted.nats = arguments.next()?,
                "--" => wanted.command = arguments.by_ref().collect(),
                _ => return None,
            }
        }
        (!wanted.command.is_empty()).then_some(wanted)
    }

    fn run(&self) -> Result<ExitCode, LocalError> {
        let (program, arguments) = self
            .command
            .split_first()
            .expect("parse keeps it non-empty");
        let mut command = Command::new(program);
        command.args(arguments);
        let mut servers = Vec::new();
        for &version in &self.postgres {
            for side in shared::SIDES {
                let server = shared::start_postgres(version)?;
                command.env(
                    shared::postgres_variable(version, side),
                    server.url("postgres"),
                );
                servers.push(server);
            }
        }
        let broker = NatsServer::start(&NatsOptions {
            version: self.nats.clone(),
            ..shared::nats()
        })?;
        command.env(shared::NATS_VARIABLE, broker.url());
        command.env(shared::NATS_MONITOR_VARIABLE, broker.monitor_url());
        let status = match command.status() {
            Ok(status) => status,
            Err(error) => {
                return Ok(complain(&format!("{program}: {error}"), EXIT_UNEXPECTED));
            }
        };
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(ExitCode::from(code.unwrap_or(EXIT_UNEXPECTED)))
    }
}
