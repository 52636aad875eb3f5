//! The one place that writes to stdout and stderr: data to the former, everything else to the
//! latter, so that a pipe only ever sees data.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is where printing happens"
)]

use std::fmt::Display;
use std::io::{IsTerminal, Write};

use serde::Serialize;

use crate::visible;

/// How data is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs: one document.
    Json,
    /// For programs: one JSON value a line; lists come item by item, `verify` event by event.
    Ndjson,
}

/// Where a command's words go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) quiet: bool,
}

impl Output {
    /// One value, as JSON when asked for, else as `text` renders it.
    pub(crate) fn data<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) {
        match self.format {
            Format::Json => {
                let json = serde_json::to_string_pretty(value)
                    .unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
                write_line(&visible::json(&json));
            }
            Format::Ndjson => json_line(value),
            Format::Text => write_line(&visible::lines(text(value).trim_end_matches('\n'))),
        }
    }

    /// Something that happened; only where each line is a value of its own.
    pub(crate) fn event(&self, value: &impl Serialize) {
        if self.format == Format::Ndjson {
            json_line(value);
        }
    }

    /// A list whose items come one by one, so that it need not fit into memory.
    pub(crate) fn list(&self) -> List {
        if self.format == Format::Json {
            write_part("[");
        }
        List {
            format: self.format,
            items: 0,
        }
    }

    /// Data that has one form only.
    pub(crate) fn raw(&self, text: &str) {
        write_line(text.trim_end_matches('\n'));
    }

    /// Something a person at the terminal wants to know; silent with `--quiet`.
    pub(crate) fn note(&self, text: impl Display) {
        if !self.quiet {
            alarm(text);
        }
    }
}

/// A list being written; in JSON one array.
pub(crate) struct List {
    format: Format,
    items: u64,
}

impl List {
    pub(crate) fn item<T: Serialize>(&mut self, value: &T, text: impl FnOnce(&T) -> String) {
        match self.format {
            Format::Text => write_line(&visible::lines(&text(value))),
            Format::Ndjson => json_line(value),
            Format::Json => {
                let json = serde_json::to_string(value).unwrap_or_default();
                write_part(if self.items == 0 { "\n  " } else { ",\n  " });
                write_part(&visible::json(&json));
            }
        }
        self.items += 1;
    }

    pub(crate) fn end(self) {
        if self.format == Format::Json {
            write_line(if self.items == 0 { "]" } else { "\n]" });
        }
    }
}

fn json_line(value: &impl Serialize) {
    let json =
        serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
    write_line(&visible::json(&json));
}

fn write_part(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// An error or a question: never silent.
pub(crate) fn alarm(text: impl Display) {
    let text = text.to_string();
    let _ = writeln!(std::io::stderr(), "{}", visible::lines(&text));
}

/// Asks at the terminal; without one the answer is no.
pub(crate) fn confirm(question: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    let question = visible::lines(question);
    let _ = write!(std::io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Asks at the terminal for a word that has to be typed out; without a terminal the answer is no.
pub(crate) fn typed(question: &str, word: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    let question = visible::lines(question);
    let _ = write!(std::io::stderr(), "{question} ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.is_ok() && answer.trim() == word
}

/// A reader that went away (`trellara inspect | head`) is no error of ours.
fn write_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.write_all(b"\n");
    let _ = out.flush();
}
