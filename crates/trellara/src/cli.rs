//! Arguments only; each command's own are beside the command.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::command::{
    applier, backfill, check, completions, config, cutover, demo, inspect, man, pause, quarantine,
    relay, remove, resume, rewind, run, setup, status, table, verify, wait,
};
use crate::exit;
use crate::output::Format;

/// Carries committed PostgreSQL transactions into another PostgreSQL through NATS JetStream:
/// whole, in order, once in effect.
#[derive(Debug, Parser)]
#[command(name = "trellara", version, max_term_width = 100, after_help = exit::TABLE)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Configuration file.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "trellara.yml",
        env = "TRELLARA_CONFIG"
    )]
    pub(crate) config: PathBuf,
    /// Form of the data on stdout; everything else goes to stderr as text.
    #[arg(long, global = true, value_name = "FORM", default_value = "text")]
    pub(crate) output: Format,
    /// Only data, warnings and errors.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// More log lines: -v what is done, -vv why.
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Check(check::Args),
    Setup(setup::Args),
    Run(run::Args),
    Relay(relay::Args),
    Applier(applier::Args),
    Status(status::Args),
    Backfill(backfill::Args),
    #[command(subcommand)]
    Table(table::Command),
    Wait(wait::Args),
    Verify(Box<verify::Args>),
    Inspect(inspect::Args),
    #[command(subcommand)]
    Quarantine(quarantine::Command),
    Pause(pause::Args),
    Resume(resume::Args),
    Rewind(rewind::Args),
    Cutover(cutover::Args),
    Remove(remove::Args),
    Config(config::Args),
    Demo(demo::Args),
    Completions(completions::Args),
    Man(man::Args),
}
