//! Why the target did not take a change, shaped by what the caller will do about it.

use std::fmt;
use std::ops::Deref;

use trellara_postgres::sqlstate::ErrorClass;
use trellara_postgres::{Fault, fault};

/// What the caller does about an [`ApplyError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApplyErrorKind {
    /// Passes by itself: roll back, back off, repeat for ever (A5). Lost connection, deadlock,
    /// lock timeout, read-only target, full disk, cancelled statement, a statement cache that a
    /// pooler threw away.
    Passing,
    /// The target's tables do not fit the source's. Ends when somebody runs the statement in the
    /// hint; the catalogue was forgotten, so that a repetition sees it.
    Schema,
    /// A right is missing, or row-level security would hide rows.
    Rights,
    /// The target refused a value or a constraint. A verdict only when the transaction ran alone,
    /// row by row, at the head (C36).
    Data,
    /// A change did not touch exactly the rows it must (A6).
    Count,
    /// The message does not fit the relation it names: never applied.
    Corrupt,
    /// Something that no table of ours knows; treated like [`ApplyErrorKind::Data`].
    Unknown,
}

/// A change that was not applied. It names table, place and cause, never a row value; what it
/// knows is in [`ApplyErrorDetails`], to which it dereferences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyError(Box<ApplyErrorDetails>);

/// What an [`ApplyError`] knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyErrorDetails {
    /// What to do about it.
    pub kind: ApplyErrorKind,
    /// Schema of the table; empty when no table is concerned.
    pub schema: String,
    /// The table; empty when no table is concerned.
    pub table: String,
    /// Which transaction of those given to this executor, from 1 (0: not known).
    pub transaction: u64,
    /// Which surviving change of that transaction, from 1 (0: not known). Of a statement for
    /// several changes it is the first.
    pub change_number: u64,
    /// How many changes the failing statement carried; with more than one the failing one is
    /// somewhere among them, not necessarily the first.
    pub changes: u64,
    /// Five characters; empty when the server did not answer or we refused by ourselves.
    pub sqlstate: String,
    /// The column or constraint the server named.
    pub object: Option<String>,
    /// What happened, without row values.
    pub message: String,
    /// What to check or to run next; often a statement. Empty when there is nothing to say.
    pub hint: String,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.table.is_empty() {
            write!(f, " (table {}.{}", self.schema, self.table)?;
            if self.change_number > 0 {
                write!(f, ", change {}", self.change_number)?;
            }
            if self.changes > 1 {
                write!(f, " or one of the {} after it", self.changes - 1)?;
            }
            f.write_str(")")?;
        }
        if !self.sqlstate.is_empty() {
            write!(f, " [{}]", self.sqlstate)?;
        }
        Ok(())
    }
}

impl std::error::Error for ApplyError {}

impl Deref for ApplyError {
    type Target = ApplyErrorDetails;

    fn deref(&self) -> &ApplyErrorDetails {
        &self.0
    }
}

impl ApplyError {
    /// An error that we found ourselves.
    pub(crate) fn new(kind: ApplyErrorKind, message: impl Into<String>) -> Self {
        ApplyError(Box::new(ApplyErrorDetails {
            kind,
            schema: String::new(),
            table: String::new(),
            transaction: 0,
            change_number: 0,
            changes: 1,
            sqlstate: String::new(),
            object: None,
            message: message.into(),
            hint: String::new(),
        }))
    }

    /// Adds the SQLSTATE, and the column or constraint it is about.
    pub(crate) fn refused(mut self, sqlstate: &str, object: Option<String>) -> Self {
        sqlstate.clone_into(&mut self.0.sqlstate);
        self.0.object = object;
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = hint.into();
        self
    }

    pub(crate) fn on(mut self, schema: &str, table: &str) -> Self {
        if self.table.is_empty() {
            schema.clone_into(&mut self.0.schema);
            table.clone_into(&mut self.0.table);
        }
        self
    }

    pub(crate) fn at(mut self, place: Place, changes: u64) -> Self {
        if self.change_number == 0 {
            self.0.transaction = place.transaction;
            self.0.change_number = place.change;
            self.0.changes = changes;
        }
        self
    }

    /// An error of the server or of the connection.
    pub(crate) fn from_server(error: &tokio_postgres::Error) -> Self {
        let fault = fault(error);
        let kind = kind(&fault);
        let object = fault.constraint.clone().or_else(|| fault.column.clone());
        let hint = hint(kind, &fault.sqlstate);
        Self::new(kind, without_values(&fault))
            .hint(hint)
            .refused(&fault.sqlstate, object)
    }
}

/// Where a change stands: the transaction (from 1, within one executor) and the change in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) transaction: u64,
    pub(crate) change: u64,
}

fn kind(fault: &Fault) -> ApplyErrorKind {
    match fault.sqlstate.as_str() {
        // Our prepared statement is gone or stale: a clean repetition prepares it again (B120).
        "26000" | "0A000" if fault.message.contains("cached plan") => {
            return ApplyErrorKind::Passing;
        }
        "26000" | "25P02" => return ApplyErrorKind::Passing,
        // A table in use by our own session: checks outstanding on it, or a trigger's statement.
        // Of the same transaction it will be so again.
        "55006" => return ApplyErrorKind::Data,
        "42501" => return ApplyErrorKind::Rights,
        // A bound statement or trigger function can fail this way without any fault of a table.
        code if code.starts_with("42") || code == "3F000" || code == "428C9" => {
            return ApplyErrorKind::Schema;
        }
        _ => {}
    }
    match fault.class {
        ErrorClass::Passing | ErrorClass::Suspicious | ErrorClass::TargetCannotWrite => {
            ApplyErrorKind::Passing
        }
        ErrorClass::Configuration => ApplyErrorKind::Schema,
        ErrorClass::DataFault | ErrorClass::NotMyPredecessor => ApplyErrorKind::Data,
        ErrorClass::Unknown => ApplyErrorKind::Unknown,
    }
}

fn hint(kind: ApplyErrorKind, sqlstate: &str) -> &'static str {
    match (kind, sqlstate) {
        (ApplyErrorKind::Rights, _) => {
            "grant the apply role SELECT, INSERT, UPDATE, DELETE and TRUNCATE on the table, and \
             BYPASSRLS where row-level security is on; UPDATE on the table's sequences for \
             TRUNCATE … RESTART IDENTITY"
        }
        (ApplyErrorKind::Data, "23505") => {
            "a row with this key is on the target already: look for other writers"
        }
        (ApplyErrorKind::Data, "23502") => {
            "give the target's own NOT NULL column a default, or drop the constraint"
        }
        (ApplyErrorKind::Data, _) => {
            "compare the column types, enum labels, partitions and constraints of both tables, then \
             restart the applier"
        }
        (ApplyErrorKind::Schema, _) => "compare the table's definition with the source's",
        _ => "",
    }
}

/// Messages of class 22 quote the value they refuse, and functions raise what they like.
fn without_values(fault: &Fault) -> String {
    let message = fault.message.as_str();
    if fault.sqlstate.starts_with("P0") {
        return "a function on the target raised an exception".to_owned();
    }
    if !fault.sqlstate.starts_with("22") {
        return message.to_owned();
    }
    match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            format!("{}\"…\"{}", &message[..first], &message[last + 1..])
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(sqlstate: &str, message: &str) -> Fault {
        Fault {
            class: trellara_postgres::sqlstate::classify(sqlstate),
            sqlstate: sqlstate.into(),
            severity: "ERROR".into(),
            message: message.into(),
            schema: None,
            table: None,
            column: None,
            constraint: None,
        }
    }

    #[test]
    fn a_refused_value_is_not_repeated() {
        let refused = fault(
            "22P02",
            "invalid input syntax for type integer: \"sec\"ret\"",
        );
        assert_eq!(
            without_values(&refused),
            "invalid input syntax for type integer: \"…\""
        );
        let raised = fault("P0001", "secret");
        assert!(!without_values(&raised).contains("secret"));
        let named = fault(
            "23505",
            "duplicate key value violates unique constraint \"k\"",
        );
        assert!(without_values(&named).contains("\"k\""));
    }

    #[test]
    fn b114_passing_faults_are_never_the_rows() {
        for code in [
            "40P01", "55P03", "53300", "53100", "57P01", "25006", "40001", "57014", "",
        ] {
            if code.is_empty() {
                continue;
            }
            assert_eq!(kind(&fault(code, "x")), ApplyErrorKind::Passing, "{code}");
        }
        assert_eq!(kind(&fault("26000", "x")), ApplyErrorKind::Passing);
        assert_eq!(
            kind(&fault("0A000", "cached plan must not change result type")),
            ApplyErrorKind::Passing
        );
        assert_eq!(kind(&fault("42703", "x")), ApplyErrorKind::Schema);
        assert_eq!(kind(&fault("23505", "x")), ApplyErrorKind::Data);
        assert_eq!(kind(&fault("42501", "x")), ApplyErrorKind::Rights);
    }
}
