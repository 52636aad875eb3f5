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
    let mut command = Cli::command();
    // Gives the verbs their whole name and the options of every command.
    command.build();
    let fail = |error: std::io::Error| Failure::from_error(Exit::Unexpected, &error);
    match &args.directory {
        None => context.output.raw(&page(&command).map_err(fail)?),
        Some(directory) => write_all(&command, directory)
            .map_err(|error| fail(error).doing(format!("cannot write {}", directory.display())))?,
    }
    Ok(Exit::Done)
}

fn page(command: &clap::Command) -> std::io::Result<String> {
    let manual = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    manual.render_title(&mut page)?;
    manual.render_name_section(&mut page)?;
    manual.render_synopsis_section(&mut page)?;
    manual.render_description_section(&mut page)?;
    manual.render_options_section(&mut page)?;
    if command.has_subcommands() {
        manual.render_subcommands_section(&mut page)?;
    }
    let mut page = String::from_utf8_lossy(&page).into_owned();
    if let Some(notes) = command.get_after_help() {
        page += &as_written(&notes.to_string());
    }
    Ok(page)
}

/// A section whose lines stay as they are: tables and examples are no running text.
fn as_written(text: &str) -> String {
    let mut section = ".SH NOTES\n.nf\n".to_owned();
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line must not begin with what roff takes for a request.
        if line.starts_with(['.', '\'']) {
            section += "\\&";
        }
        section += &line;
        section.push('\n');
    }
    section + ".fi\n"
}

fn write_all(command: &clap::Command, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("trellara.1"), page(command)?)?;
    for verb in command.get_subcommands() {
        let file = directory.join(format!("trellara-{}.1", verb.get_name()));
        std::fs::write(file, page(verb)?)?;
    }
    Ok(())
}
