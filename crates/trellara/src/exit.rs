//! Exit codes, and the one way in which a command fails.

use std::fmt;

use trellara_envelope::{Halt, HaltCode};

use crate::config::ConfigErrors;

/// How the program ends. Codes 3 to 5 are the judge's (`verify`, and the demo's comparison).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// Something unexpected, or a server that does not answer.
    Unexpected,
    /// The two databases differ.
    Different,
    /// The two databases could not be compared, all or in part.
    NotCompared,
    /// What differs is explained by transactions in quarantine.
    Explained,
    /// A stable halt code: 10, 11, 12, 13 or 77.
    Halted(HaltCode),
    /// The target is to stand as it does: a verify run holds the lane, or the flow is paused.
    StandsStill,
    /// A time limit passed.
    TimedOut,
    /// The command line is wrong.
    Usage,
    /// A program or server that is needed is not on this machine.
    Unavailable,
    /// Our bug.
    Bug,
    /// A right is missing.
    Rights,
    /// The configuration file is wrong.
    Configuration,
    /// A server's schema or configuration does not fit; nothing was created.
    Unfit,
}

/// Shown at the end of every `--help`.
pub(crate) const TABLE: &str = "\
Exit codes:
   0 done                              20 timed out
   1 unexpected, or no answer          64 usage
   3 the databases differ              69 a needed program is not here
   4 the databases were not compared
   5 they differ, explained by quarantine
  10 halted: gap, divergence, damage   70 our bug
  11 halted: schema or configuration   77 a right is missing
     of a server                       78 bad configuration file
  12 halted: a transaction was refused
  13 another instance is active";

impl Exit {
    /// The number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Unexpected => 1,
            Exit::Different => 3,
            Exit::NotCompared => 4,
            Exit::Explained => 5,
            Exit::Halted(code) => code.exit_code(),
            Exit::Unfit => 11,
            Exit::StandsStill => HaltCode::Fenced.exit_code(),
            Exit::TimedOut => 20,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Bug => 70,
            Exit::Rights => 77,
            Exit::Configuration => 78,
        }
    }
}

/// A command failed: how the program ends, the chain of causes, and what to check.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) causes: Vec<String>,
    pub(crate) hints: Vec<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, reason: impl Into<String>, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        Self {
            exit,
            causes: vec![reason.into()],
            hints: if hint.is_empty() {
                Vec::new()
            } else {
                vec![hint]
            },
        }
    }

    /// An error with its chain of sources.
    pub(crate) fn from_error(exit: Exit, error: &dyn std::error::Error) -> Self {
        let mut causes = vec![error.to_string()];
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Many errors repeat their source in their own text.
            if !causes.last().is_some_and(|last| last.ends_with(&text)) {
                causes.push(text);
            }
            source = cause.source();
        }
        Self {
            exit,
            causes,
            hints: Vec::new(),
        }
    }

    /// Says what was being done, in front of the chain.
    pub(crate) fn doing(mut self, doing: impl Into<String>) -> Self {
        self.causes.insert(0, doing.into());
        self
    }

    /// Names the page that says what to check and how to end it, where there is one.
    pub(crate) fn with_page(self) -> Self {
        match self.exit {
            Exit::Halted(code) => self.hint(format!("docs/operating/halts/{code}.md")),
            Exit::StandsStill => self.hint("docs/operating/quarantine.md"),
            _ => self,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        if !hint.is_empty() && !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cause) in self.causes.iter().enumerate() {
            let cause = indented(cause);
            match index {
                0 => write!(f, "error: {cause}")?,
                _ => write!(f, "\n  caused by: {cause}")?,
            }
        }
        self.hints
            .iter()
            .try_for_each(|hint| write!(f, "\nhint: {}", indented(hint)))
    }
}

/// What a server says stands in causes and hints: no line of it may begin as a line of ours does.
fn indented(text: &str) -> String {
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| match line.starts_with(' ') {
        true => format!("{text}\n{line}"),
        false => format!("{text}\n    {line}"),
    })
}

impl From<Halt> for Failure {
    fn from(halt: Halt) -> Self {
        Failure::new(Exit::Halted(halt.code), halt.to_string(), halt.hint)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        let mut failure = Failure {
            exit: Exit::Configuration,
            causes: vec!["the configuration cannot be used".to_owned()],
            hints: Vec::new(),
        };
        for error in errors.0 {
            failure
                .causes
                .push(format!("{error}\n    hint: {}", error.hint));
        }
        failure
    }
}

impl From<trellara_postgres::ConnectError> for Failure {
    fn from(error: trellara_postgres::ConnectError) -> Self {
        let exit = match error.kind {
            trellara_postgres::ConnectErrorKind::Refused => Exit::Rights,
            _ => Exit::Unexpected,
        };
        Failure::from_error(exit, &error).hint(error.hint)
    }
}

impl From<trellara_jetstream::BrokerError> for Failure {
    fn from(error: trellara_jetstream::BrokerError) -> Self {
        use trellara_jetstream::BrokerErrorKind as Kind;
        let exit = match error.kind() {
            Kind::Permission { .. } => Exit::Rights,
            Kind::Configuration => Exit::Unfit,
            Kind::Passing | Kind::Missing | Kind::Refused { .. } => Exit::Unexpected,
        };
        Failure::from_error(exit, &error).hint(error.hint().unwrap_or_default())
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let fault = trellara_postgres::fault(&error);
        let exit = if fault.sqlstate == "42501" {
            Exit::Rights
        } else {
            Exit::Unexpected
        };
        Failure::new(
            exit,
            format!("{} (SQLSTATE {})", fault.message, fault.sqlstate),
            "",
        )
    }
}
