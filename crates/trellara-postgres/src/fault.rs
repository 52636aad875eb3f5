//! An error or notice of the server, without the parts that may carry row values.

use std::error::Error as _;
use std::io;

use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::ErrorFields;
use tokio_postgres::error::DbError;

use crate::sqlstate::{ErrorClass, classify};

/// What the server said, safe to log: DETAIL, CONTEXT and HINT are left out because they quote
/// values. The primary message of a data error can quote one too; see [`Fault::message`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind of trouble it is.
    pub class: ErrorClass,
    /// Five characters; empty when the connection was lost before the server answered.
    pub sqlstate: String,
    /// ERROR, FATAL, WARNING …, untranslated.
    pub severity: String,
    /// The primary message, or what was said about a lost connection. For the classes 22 and P0,
    /// whose messages quote the offending value, everything in quotes is replaced by `"…"`.
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
        Fault::new(severity, db.code().code().to_owned(), db.message()).at(
            db.schema(),
            db.table(),
            db.column(),
            db.constraint(),
        )
    }
}

impl Fault {
    fn new(severity: String, sqlstate: String, message: &str) -> Self {
        Self {
            class: classify(&sqlstate),
            message: without_values(&sqlstate, message),
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
                _ => {}
            }
        }
        Ok(
            Self::new(plain_severity.unwrap_or(severity), sqlstate, &message).at(
                schema.as_deref(),
                table.as_deref(),
                column.as_deref(),
                constraint.as_deref(),
            ),
        )
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

/// `invalid input syntax for type integer: "4x"` quotes the value, as do most messages of class
/// 22; what a trigger raises (P0) can say anything. Names of objects come in fields of their own.
fn without_values(sqlstate: &str, message: &str) -> String {
    if !sqlstate.starts_with("22") && !sqlstate.starts_with("P0") {
        return message.to_owned();
    }
    let mut parts = message.split('"');
    let mut out = parts.next().unwrap_or_default().to_owned();
    let quoted = parts.clone().count() > 0;
    if quoted {
        // A value may itself hold quotes, so everything from the first to the last one goes.
        out.push_str("\"…\"");
        out.push_str(parts.next_back().unwrap_or_default());
    }
    if sqlstate.starts_with("P0") && !quoted {
        return "(message of a trigger or function, not shown)".to_owned();
    }
    out
}

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

    #[test]
    fn values_in_messages_of_data_errors_are_not_kept() {
        let fault = Fault::new(
            "ERROR".into(),
            "22P02".into(),
            r#"invalid input syntax for type integer: "se"cret""#,
        );
        assert_eq!(
            fault.to_string(),
            r#"invalid input syntax for type integer: "…" (SQLSTATE 22P02)"#
        );
        let raised = Fault::new("ERROR".into(), "P0001".into(), "customer 4711 is a secret");
        assert!(!raised.message.contains("4711"));
        let name = Fault::new(
            "ERROR".into(),
            "42P01".into(),
            r#"relation "t" does not exist"#,
        );
        assert!(name.message.contains(r#""t""#));
    }
}
