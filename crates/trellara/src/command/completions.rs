//! `trellara completions`: generated from the same definition as `--help`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Exit;

/// Prints a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  nothing
Writes: the script to stdout

Examples:
  trellara completions bash > /etc/bash_completion.d/trellara
  trellara completions zsh > ~/.zfunc/_trellara")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn execute(args: &Args, context: &Context) -> Exit {
    // The generator panics when its reader goes away (`… | head`); memory does not.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "trellara", &mut script);
    context.output.raw(&String::from_utf8_lossy(&script));
    Exit::Done
}
