//! The `trellara` program: configuration, commands, telemetry, exit codes.
//!
//! This crate composes; the rules live in `trellara-relay` and `trellara-applier`. It alone knows
//! YAML, clap and environment variables, and it alone prints.

mod acknowledge;
mod broker;
mod cli;
mod command;
mod config;
mod context;
mod copying;
mod daemon;
mod daemon_reports;
mod demo;
mod exit;
mod file;
mod forecast;
mod held;
mod http;
mod inspect;
mod link;
mod operator;
mod output;
mod preflight;
mod report;
mod setup;
mod survey;
mod target_ddl;
mod telemetry;
mod verdict;
mod visible;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::context::Context;
use crate::exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            let wrong = usage.use_stderr();
            let _ = usage.print();
            return ExitCode::from(if wrong {
                Exit::Usage.code()
            } else {
                Exit::Done.code()
            });
        }
    };
    // Both TLS users choose ring explicitly; this is for whoever asks for the process default.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let outcome = catch_unwind(AssertUnwindSafe(|| execute(cli)));
    let failure = match outcome {
        Ok(Ok(exit)) => return ExitCode::from(exit.code()),
        Ok(Err(failure)) => failure.with_page(),
        Err(_) => Failure::new(
            Exit::Bug,
            "trellara met a state that it believed to be impossible",
            "please report it with the lines above; nothing was acknowledged that is not stored",
        ),
    };
    output::alarm(&failure);
    ExitCode::from(failure.exit.code())
}

fn execute(cli: Cli) -> Result<Exit, Failure> {
    let context = Context::new(cli.global);
    // Commands without I/O first: they need no runtime.
    match &cli.command {
        Command::Config(args) => return command::config::execute(args, &context),
        Command::Completions(args) => return Ok(command::completions::execute(args, &context)),
        Command::Man(args) => return command::man::execute(args, &context),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
    let outcome = runtime.block_on(Box::pin(serve(cli.command, &context)));
    // A blocked DNS lookup or file read must not hold the process back.
    runtime.shutdown_background();
    outcome
}

async fn serve(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Check(args) => command::check::execute(&args, context).await,
        Command::Setup(args) => command::setup::execute(&args, context).await,
        Command::Run(args) => command::run::execute(&args, context).await,
        Command::Relay(args) => command::relay::execute(&args, context).await,
        Command::Applier(args) => command::applier::execute(&args, context).await,
        Command::Status(args) => command::status::execute(&args, context).await,
        Command::Wait(args) => command::wait::execute(&args, context).await,
        Command::Verify(args) => command::verify::execute(&args, context).await,
        Command::Inspect(args) => command::inspect::execute(&args, context).await,
        Command::Quarantine(command) => command::quarantine::execute(&command, context).await,
        Command::Pause(args) => command::pause::execute(&args, context).await,
        Command::Resume(args) => command::resume::execute(&args, context).await,
        Command::Backfill(args) => command::backfill::execute(&args, context).await,
        Command::Table(command) => command::table::execute(&command, context).await,
        Command::Cutover(args) => command::cutover::execute(&args, context).await,
        Command::Rewind(args) => command::rewind::execute(&args, context).await,
        Command::Remove(args) => command::remove::execute(&args, context).await,
        Command::Demo(args) => command::demo::execute(&args, context).await,
        Command::Config(_) | Command::Completions(_) | Command::Man(_) => Ok(Exit::Done),
    }
}
