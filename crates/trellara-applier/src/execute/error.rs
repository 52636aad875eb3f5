//! Why the target did not take a change, shaped by what the caller will do about it.

use std::fmt;
use std::ops::Deref;

use trellara_postgres::{Fault, fault};

use crate::disposition::kind;

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
    /// PostgreSQL's DETAIL.
    pub(crate) detail: Detail,
}

/// What the server said in detail: often the values of the row. It goes into quarantine, which is
/// as well guarded as the tables themselves; nothing prints it.
#[derive(Clone, PartialEq, Eq, Default)]
pub(crate) struct Detail(pub(crate) String);

impl fmt::Debug for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "none"
        } else {
            "(hidden)"
        })
    }
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
            detail: Detail::default(),
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
        let mut refused = Self::new(kind, without_values(&fault))
            .hint(hint)
            .refused(&fault.sqlstate, object);
        refused.0.detail = Detail(detail(error));
        refused
    }

    /// The same of a COMMIT, which no single change is behind: the table is the one that the server
    /// names.
    pub(crate) fn of_commit(error: &tokio_postgres::Error) -> Self {
        let fault = fault(error);
        let (schema, table) = (fault.schema.as_deref(), fault.table.as_deref());
        Self::from_server(error).on(schema.unwrap_or_default(), table.unwrap_or_default())
    }
}

/// Where a change stands: the transaction (from 1, within one executor) and the change in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) transaction: u64,
    pub(crate) change: u64,
}

fn hint(kind: ApplyErrorKind, sqlstate: &str) -> &'static str {
    match (kind, sqlstate) {
        (ApplyErrorKind::Rights, _) => {
            "grant the apply role SELECT, INSERT, UPDATE, DELETE and TRUNCATE on the table, and \
             BYPASSRLS where row-level security is on; UPDATE on the table's sequences for \
             TRUNCATE ... RESTART IDENTITY"
        }
        (ApplyErrorKind::Data, "23505") => {
            "a row with this key is on the target already: look for other writers"
        }
        (ApplyErrorKind::Data, "23502") => {
            "give the target's own NOT NULL column a default, or drop the constraint"
        }
        (ApplyErrorKind::Data, _) => {
            "compare the column types, enum labels, partitions and constraints of both tables"
        }
        (ApplyErrorKind::Schema, _) => "compare the table's definition with the source's",
        _ => "",
    }
}

/// DETAIL, and behind it the message where that was kept out of [`ApplyErrorDetails::message`].
fn detail(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else {
        return String::new();
    };
    let said = Fault::from(db).message != db.message();
    let parts = [said.then(|| db.message()), db.detail(), db.where_()];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    parts.join("\n")
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
            format!("{}\"...\"{}", &message[..first], &message[last + 1..])
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
            "invalid input syntax for type integer: \"...\""
        );
        let raised = fault("P0001", "secret");
        assert!(!without_values(&raised).contains("secret"));
        let named = fault(
            "23505",
            "duplicate key value violates unique constraint \"k\"",
        );
        assert!(without_values(&named).contains("\"k\""));
    }
}
