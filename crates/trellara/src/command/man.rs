//! `trellara man`: manual pages generated from the same definition as `--help`.

use std::path::{Path, PathBuf};

use clap::CommandFactory;

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Writes manual pages, one for each command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  nothing
Writes: trellara.1, trellara-check.1 … into DIRECTORY, or the first of them to stdout

Examples:
  trellara man | man -l -
  trellara man --directory /usr/local/share/man/man1")]
pub(crate) struct Args {
    /// Where the pages go.
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

pub(crate) fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let command = Cli::command();
    let fail = |error: std::io::Error| Failure::from_error(Exit::Unexpected, &error);
    match &args.directory {
        None => context.output.raw(&page(&command).map_err(fail)?),
        Some(directory) => write_all(&command, directory)
            .map_err(|error| fail(error).doing(format!("cannot write {}", directory.display())))?,
    }
    Ok(Exit::Done)
}

fn page(command: &clap::Command) -> std::io::Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn write_all(command: &clap::Command, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("trellara.1"), page(command)?)?;
    for verb in command.get_subcommands() {
        let name = format!("trellara-{}", verb.get_name());
        let file = directory.join(format!("{name}.1"));
        // clap keeps names as static text, unless it builds the whole tree itself.
        let verb = verb.clone().display_name(name);
        std::fs::write(file, page(&verb)?)?;
    }
    Ok(())
}
