//! An error of the server, without the parts that may carry row values.

use crate::sqlstate::{ErrorClass, classify};

/// What the server said, safe to log: DETAIL and CONTEXT are left out because they quote values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind of trouble it is.
    pub class: ErrorClass,
    /// Five characters; empty when the connection was lost before the server answered.
    pub sqlstate: String,
    /// ERROR, FATAL, WARNING … (not translated).
    pub severity: String,
    /// The primary message, or what the client library said about a lost connection.
    pub message: String,
    /// The schema the server names, if any.
    pub schema: Option<String>,
    /// The table the server names, if any.
    pub table: Option<String>,
    /// The column the server names, if any.
    pub column: Option<String>,
    /// The constraint the server names, if any.
    pub constraint: Option<String>,
}

/// Reads a client error as a [`Fault`]; a lost connection is [`ErrorClass::Passing`].
pub fn fault(error: &tokio_postgres::Error) -> Fault {
    let sqlstate = error.code().map_or("", |c| c.code()).to_owned();
    Fault {
        class: classify(&sqlstate),
        sqlstate,
        severity: "ERROR".into(),
        message: error.to_string(),
        schema: None,
        table: None,
        column: None,
        constraint: None,
    }
}
