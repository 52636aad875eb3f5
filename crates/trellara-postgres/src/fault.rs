//! An error or notice of the server, without the parts that may carry row values.

use std::error::Error as _;
use std::io;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;
use tokio_postgres::error::DbError;

use crate::sqlstate::{ErrorClass, classify};

/// What the server said, safe to log: DETAIL, CONTEXT and HINT are left out because they quote
/// values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind of trouble it is.
    pub class: ErrorClass,
    /// Five characters; empty when the connection was lost before the server answered.
    pub sqlstate: String,
    /// ERROR, FATAL, WARNING …, untranslated.
    pub severity: String,
    /// The primary message, or what was said about a lost connection, without values: in class 22,
    /// which quotes the offending value, what stands in quotes is replaced by `"..."`; what functions
    /// and triggers raise, and what classes 22 and 23 say in other languages, is not kept at all. The server's own log has both.
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

/// Reads a client error as a [`Fault`]. A connection that was lost, whatever the reason, is
/// [`ErrorClass::Passing`] with an empty SQLSTATE; errors of our own making (a parameter that does
/// not encode, a row of another shape) are [`ErrorClass::Unknown`].
pub fn fault(error: &tokio_postgres::Error) -> Fault {
    if let Some(db) = error.as_db_error() {
        return Fault::from(db);
    }
    let io = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    let class = if error.is_closed() || io.is_some() {
        ErrorClass::Passing
    } else {
        ErrorClass::Unknown
    };
    Fault {
        class,
        sqlstate: String::new(),
        severity: "FATAL".into(),
        message: match io {
            Some(io) => format!("connection lost: {io}"),
            None => error.to_string(),
        },
        schema: None,
        table: None,
        column: None,
        constraint: None,
    }
}

impl From<&DbError> for Fault {
    fn from(db: &DbError) -> Self {
        let severity = db
            .parsed_severity()
            .map_or_else(|| db.severity().to_owned(), |severity| severity.to_string());
        let raised = db.routine() == Some(RAISE);
        let sqlstate = db.code().code().to_owned();
        Fault::new(severity, sqlstate, raised, db.message()).at(
            db.schema(),
            db.table(),
            db.column(),
            db.constraint(),
        )
    }
}

impl Fault {
    fn new(severity: String, sqlstate: String, raised: bool, message: &str) -> Self {
        Self {
            class: classify(&sqlstate),
            message: without_values(&sqlstate, raised, message),
            sqlstate,
            severity,
            schema: None,
            table: None,
            column: None,
            constraint: None,
        }
    }

    fn at(
        mut self,
        schema: Option<&str>,
        table: Option<&str>,
        column: Option<&str>,
        constraint: Option<&str>,
    ) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        self.schema = owned(schema);
        self.table = owned(table);
        self.column = owned(column);
        self.constraint = owned(constraint);
        let broken = matches!(self.sqlstate.as_str(), "23502" | "23505");
        if broken && schema == Some("trellara") && table == Some("applied") {
            self.class = ErrorClass::NotMyPredecessor;
        }
        self
    }

    /// Reads the fields of an ErrorResponse or NoticeResponse.
    pub(crate) fn from_fields(fields: &mut ErrorFields<'_>) -> io::Result<Self> {
        let (mut severity, mut plain_severity) = (String::new(), None);
        let (mut sqlstate, mut message) = (String::new(), String::new());
        let mut raised = false;
        let (mut schema, mut table, mut column, mut constraint) = (None, None, None, None);
        while let Some(field) = fields.next()? {
            let value = String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'S' => severity = value,
                b'V' => plain_severity = Some(value),
                b'C' => sqlstate = value,
                b'M' => message = value,
                b's' => schema = Some(value),
                b't' => table = Some(value),
                b'c' => column = Some(value),
                b'n' => constraint = Some(value),
                b'R' => raised = value == RAISE,
                _ => {}
            }
        }
        Ok(Self::new(
            plain_severity.unwrap_or(severity),
            sqlstate,
            raised,
            &message,
        )
        .at(
            schema.as_deref(),
            table.as_deref(),
            column.as_deref(),
            constraint.as_deref(),
        ))
    }

    /// Puts a notice into the log: nobody asked for it, and somebody may want it.
    pub(crate) fn log_notice(&self) {
        let Self {
            severity,
            sqlstate,
            message,
            ..
        } = self;
        match severity.as_str() {
            "WARNING" => tracing::warn!(%sqlstate, "the server warns: {message}"),
            _ => tracing::debug!(%sqlstate, %severity, "the server says: {message}"),
        }
    }
}

/// Stands for a message that could hold anything.
const HIDDEN: &str = "(a message that may hold values; see the server's log)";

/// `invalid input syntax for type integer: "4x"` quotes the value, as most messages of class 22 do;
/// 22021 and 22P05 print the bytes. Those of class 23 quote names alone, in English. What a function raises can say anything under any code, and is
/// known by the routine that raises. Names of objects have fields of their own.
fn without_values(sqlstate: &str, raised: bool, message: &str) -> String {
    let class = sqlstate.get(..2).unwrap_or_default();
    if raised || matches!(sqlstate, "22021" | "22P05") || matches!(class, "P0" | "38" | "39") {
        return HIDDEN.to_owned();
    }
    if !matches!(class, "22" | "23") {
        return message.to_owned();
    }
    // A value may itself hold quotes, so everything from the first to the last one goes.
    let quoted = message.split_once('"').zip(message.rsplit_once('"'));
    let around = quoted.map(|((before, _), (_, after))| (before, after));
    let (before, after) = around.unwrap_or((message, ""));
    // A server that speaks another language quotes in another manner, such as »4711«.
    let plain = |text: &str| text.is_ascii() && !text.contains(['\'', '`']);
    match (class, around) {
        _ if !plain(before) || !plain(after) => HIDDEN.to_owned(),
        ("22", Some(_)) => format!("{before}\"...\"{after}"),
        _ => message.to_owned(),
    }
}

/// The function inside PL/pgSQL that RAISE runs.
const RAISE: &str = "exec_stmt_raise";

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.sqlstate.is_empty() {
            write!(f, " (SQLSTATE {})", self.sqlstate)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sqlstate: &str, raised: bool, message: &str) -> String {
        Fault::new("ERROR".into(), sqlstate.into(), raised, message).to_string()
    }

    #[test]
    fn values_in_messages_of_data_errors_are_not_kept() {
        assert_eq!(
            message(
                "22P02",
                false,
                r#"invalid input syntax for type integer: "se"cret""#
            ),
            r#"invalid input syntax for type integer: "..." (SQLSTATE 22P02)"#
        );
        let name = r#"null value in column "größe" violates not-null constraint"#;
        assert!(message("23502", false, name).contains(name));
        let relation = message("42P01", false, r#"relation "t" does not exist"#);
        assert!(relation.contains(r#""t""#), "{relation}");
        for shown in [
            message("P0001", false, "customer 4711 is unknown"),
            message("23514", true, "customer 4711 is unknown"),
            // German, French, and what stands in quotes within quotes.
            message(
                "22P02",
                false,
                "ungültige Eingabesyntax für Typ integer: »4711«",
            ),
            message(
                "22P02",
                false,
                "syntaxe en entrée invalide pour le type integer : « 4711 »",
            ),
            message("22P02", false, "ogiltig indata: '4711 \"x\" 4711'"),
            message("22P02", false, "»4711 \"x\" 4711«"),
            message("23505", false, "doppelter Schlüsselwert: »4711«"),
            message(
                "22021",
                false,
                r#"invalid byte sequence for encoding "UTF8": 0x4711"#,
            ),
        ] {
            assert!(
                !shown.contains("4711") && shown.contains("SQLSTATE"),
                "{shown}"
            );
        }
    }
}
