//! What the target's tables look like: read from its catalogue on demand and cached.
//!
//! Names come from the target's catalogue or from RELATION messages, and every one of them is
//! quoted before it becomes part of a statement (B95). No OID of the source is ever sent (B77).

mod catalog;
mod definition;
mod mapping;
mod ties;

use trellara_postgres::quote;

pub use self::catalog::Catalog;
pub(crate) use self::definition::type_name as source_type_name;
pub(crate) use self::mapping::{Finding, Form, Mapping, Narrow, Shape};
pub use self::ties::{ForeignTie, TableName, Ties, UniqueTie};

/// A table of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetTable {
    /// Its OID on the target.
    pub oid: u32,
    /// The root of the partition tree it belongs to; its own OID otherwise. Changes of one tree
    /// keep their order.
    pub root: u32,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Whether it is partitioned; statements then leave ONLY out.
    pub partitioned: bool,
    /// Columns in order, dropped ones left out.
    pub columns: Vec<TargetColumn>,
    /// Unique and exclusion indexes, the primary key first.
    pub uniques: Vec<UniqueIndex>,
    /// Constraints that `session_replication_role = replica` leaves unenforced (C37).
    pub deferrable: Vec<DeferrableConstraint>,
    /// A trigger or rule with ENABLE REPLICA or ALWAYS is on it or on a partition.
    pub fires_as_replica: bool,
    /// An ordinary trigger or rule of a user is on it or on a partition.
    pub fires_as_origin: bool,
    /// Row-level security applies to the role we are.
    pub row_security: bool,
}

/// A column of a target table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetColumn {
    /// Name.
    pub name: String,
    /// Base type, quoted and without modifier: an explicit cast to `varchar(3)`, or to a domain
    /// over it, cuts silently; the assignment to the column does not.
    pub base_type: String,
    /// NOT NULL.
    pub not_null: bool,
    /// The target computes it.
    pub generated: bool,
    /// GENERATED ALWAYS AS IDENTITY: an UPDATE can set it only to DEFAULT.
    pub identity_always: bool,
    /// The equality operator of a B-tree index that holds the column, schema-qualified.
    pub equality: Option<String>,
    /// Such an index begins with it.
    pub leads_index: bool,
    /// How its text is read where a cast from text would not go through the type's input function.
    pub reading: Option<TextReading>,
}

/// The SQL around a text that makes a value of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextReading {
    /// What stands before the text.
    pub before: String,
    /// What stands behind it.
    pub after: String,
}

impl TargetColumn {
    /// The SQL that makes a value of the column's type of `text`.
    pub(crate) fn value(&self, text: &str) -> String {
        match &self.reading {
            Some(TextReading { before, after }) => format!("{before}{text}{after}"),
            None => format!("{text}::{}", self.base_type),
        }
    }
}

/// An index that keeps rows apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueIndex {
    /// Name.
    pub name: String,
    /// Of the primary key.
    pub primary: bool,
    /// Enforced at once, also under the replica role.
    pub immediate: bool,
    /// Rows can be found by it: unique, immediate, valid, whole, on plain NOT NULL columns.
    pub finds_rows: bool,
    /// Positions in [`TargetTable::columns`]; `None` for an expression.
    pub columns: Vec<Option<usize>>,
}

/// A deferrable unique or exclusion constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferrableConstraint {
    /// Name.
    pub name: String,
    /// An exclusion constraint, or one WITHOUT OVERLAPS.
    pub exclusion: bool,
    /// NULLs count as equal.
    pub nulls_not_distinct: bool,
    /// Positions in [`TargetTable::columns`]; empty when there are expressions.
    pub columns: Vec<usize>,
    /// What is compared, as SQL over the table's columns.
    pub expressions: Vec<String>,
    /// With what, schema-qualified: `OPERATOR("pg_catalog".=)`.
    pub operators: Vec<String>,
    /// Of which rows; all when absent.
    pub predicate: Option<String>,
}

impl TargetTable {
    /// `"schema"."name"`.
    pub fn quoted(&self) -> String {
        quote::qualified(&self.schema, &self.name)
    }

    /// The table as a statement names it: children are other tables, partitions are not.
    pub(crate) fn only(&self) -> String {
        let only = if self.partitioned { "" } else { "ONLY " };
        format!("{only}{}", self.quoted())
    }

    /// Whether something of the target's own happens when it is written to.
    pub(crate) fn fires(&self, role_replica: bool) -> bool {
        if role_replica {
            self.fires_as_replica
        } else {
            self.fires_as_origin
        }
    }

    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }
}
