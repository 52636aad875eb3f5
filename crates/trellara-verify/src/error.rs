//! Why a run ended without a result, shaped by what the caller does.

use std::fmt;

use trellara_postgres::{ConnectError, Fault};

/// Which of the two databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where the rows come from.
    Source,
    /// Where they go.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
        })
    }
}

/// What the caller does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VerifyErrorKind {
    /// No session could be had. Nothing was compared.
    Connect {
        /// Whether trying again later can help without anybody changing anything.
        passing: bool,
    },
    /// A server or the way to it failed in the middle; what had been compared counts for nothing,
    /// because the snapshot went with the session. Run it again.
    Server,
    /// Something that the run was given does not exist (publication, snapshot) or cannot be read
    /// (names that are not UTF-8). Mend it first.
    Unusable,
    /// A mistake of ours.
    Bug,
}

/// A run that ended without a result. It never means "equal".
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct VerifyError {
    /// What the caller does about it.
    pub kind: VerifyErrorKind,
    /// The database it is about.
    pub side: Option<Side>,
    /// What happened, without values of rows.
    pub reason: String,
    /// What to check next; empty when the reason says it all.
    pub hint: String,
}

impl VerifyError {
    pub(crate) fn connect(side: Side, error: &ConnectError) -> Self {
        Self {
            kind: VerifyErrorKind::Connect {
                passing: error.is_passing(),
            },
            side: Some(side),
            reason: format!("no session on the {side}: {error}"),
            hint: error.hint.clone(),
        }
    }

    pub(crate) fn server(side: Side, fault: &Fault) -> Self {
        Self {
            kind: VerifyErrorKind::Server,
            side: Some(side),
            reason: format!("the {side} failed while it was being read: {fault}"),
            hint: "run it again; a comparison cannot go on behind a lost session".into(),
        }
    }

    pub(crate) fn unusable(side: Side, reason: String, hint: &str) -> Self {
        Self {
            kind: VerifyErrorKind::Unusable,
            side: Some(side),
            reason,
            hint: hint.into(),
        }
    }

    /// What would make one table incomparable was met where there is no table yet.
    pub(crate) fn incomparable(reason: String, hint: String) -> Self {
        Self {
            kind: VerifyErrorKind::Unusable,
            side: None,
            reason,
            hint,
        }
    }

    pub(crate) fn bug(reason: &str) -> Self {
        Self {
            kind: VerifyErrorKind::Bug,
            side: None,
            reason: reason.into(),
            hint: "this is an error in Trellara".into(),
        }
    }
}

/// Why one step failed: about the table alone, or about the whole run.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server refused a statement, and the session goes on.
    Refused {
        /// Which server.
        side: Side,
        /// What it said.
        fault: Box<Fault>,
    },
    /// The table cannot be compared.
    NotComparable {
        /// Why.
        reason: String,
        /// What to do about it.
        hint: String,
    },
    /// The run is over.
    Run(VerifyError),
}

impl From<VerifyError> for Failure {
    fn from(error: VerifyError) -> Self {
        Failure::Run(error)
    }
}

impl Failure {
    /// About the table alone: why, and what to do about it.
    pub(crate) fn about_table(
        self,
        guarded: impl Fn(Side) -> bool,
    ) -> Result<(String, String), VerifyError> {
        match self {
            Failure::Run(error) => Err(error),
            Failure::NotComparable { reason, hint } => Ok((reason, hint)),
            Failure::Refused { side, fault } => {
                let hint = hint(&fault.sqlstate, guarded(side));
                Ok((format!("the {side} refused: {fault}"), hint.into()))
            }
        }
    }
}

/// What to do about a statement that a server refused.
fn hint(sqlstate: &str, guarded: bool) -> &'static str {
    match sqlstate {
        "42501" if guarded => {
            "row-level security hides rows from this role: ALTER ROLE … BYPASSRLS, or read as the owner"
        }
        "42501" => "GRANT USAGE on the schema and SELECT on the table to the role that compares",
        "42P01" | "42703" => {
            "the table was altered, renamed or dropped behind the position compared; run it again"
        }
        "55P03" => "somebody holds a lock that keeps readers out; run it again when it is gone",
        "57014" => "raise the statement timeout, or see who cancelled the statement",
        "53100" | "53400" => "give the server room for temporary files",
        "54000" | "22026" => "a row's text is larger than the server can make (1 GB)",
        "42704" | "42846" => "the types of this column do not exist on both sides",
        _ if sqlstate.starts_with("22") => {
            "a value of the source does not fit the target's type: make the types equal"
        }
        _ => "see the server's log",
    }
}
