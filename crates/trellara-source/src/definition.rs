//! What the source's tables are made of, as statements that make the same ones elsewhere.
//!
//! For a target that has no tables yet: schemas, enums and domains, sequences, tables with their
//! columns, partitions, keys, constraints and indexes. Read from the catalogues by PostgreSQL's own
//! functions, in one snapshot; what is made of it is decided by pure code. Left out is what is no
//! part of the data or somebody else's to decide: owners, rights, row security, triggers, rules,
//! comments, statistics, storage and tablespaces.

mod present;
mod read;
mod render;

pub use present::Present;
pub use read::read;

use crate::publication::TableName;

/// Definitions of some tables and of all that they need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Definitions {
    /// Types of their columns that are not PostgreSQL's own, each behind those it is made of.
    pub types: Vec<Type>,
    /// Sequences that their columns own or take their defaults from.
    pub sequences: Vec<Sequence>,
    /// The tables, each behind those it belongs to.
    pub tables: Vec<Table>,
}

/// A type that some column has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: TableName,
    /// What it is.
    pub kind: TypeKind,
}

/// What a type is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeKind {
    /// An enum with its labels in order.
    Enum(Vec<String>),
    /// What stands behind `CREATE DOMAIN name AS`.
    Domain(String),
    /// A composite, a range, or an extension's: it has to be there.
    Other,
}

/// A sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Its name.
    pub name: TableName,
    /// The integer type that it counts in.
    pub type_name: String,
    /// `INCREMENT BY 1 MINVALUE 1 …`.
    pub options: String,
    /// The column that it goes with; an identity's is made by the column itself.
    pub owner: Option<SequenceOwner>,
}

/// Whose a sequence is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceOwner {
    /// The table.
    pub table: TableName,
    /// The column.
    pub column: String,
    /// Whether it is the column's identity.
    pub identity: bool,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: TableName,
    /// Its columns, in order.
    pub columns: Vec<Column>,
    /// What it is partitioned by: `RANGE (a)`.
    pub partition_key: Option<String>,
    /// What it is a partition of, and its bound: `FOR VALUES …`.
    pub partition_of: Option<(TableName, String)>,
    /// What it inherits from.
    pub inherits: Vec<TableName>,
    /// `d`, `n`, `f`, `i` as in `pg_class.relreplident`.
    pub replica_identity: char,
    /// Constraints of its own, not those it has from what it belongs to.
    pub constraints: Vec<Constraint>,
    /// Indexes that no constraint stands for, of its own.
    pub indexes: Vec<Index>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// `numeric(10,2)`.
    pub type_name: String,
    /// Another one than the type's, quoted.
    pub collation: Option<String>,
    /// NOT NULL.
    pub not_null: bool,
    /// What that is called, where it has a name.
    pub not_null_name: Option<String>,
    /// Where its values come from when nobody says.
    pub value: ColumnValue,
}

/// Where a column's value comes from when nobody says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnValue {
    /// NULL.
    None,
    /// An expression; `foreign` when it uses functions that are not PostgreSQL's own.
    Default {
        /// The expression.
        expression: String,
        /// Whether it may not work elsewhere.
        foreign: bool,
    },
    /// It is computed from other columns.
    Generated {
        /// The expression.
        expression: String,
        /// Whether it is stored.
        stored: bool,
    },
    /// An identity; `always` refuses values of one's own.
    Identity {
        /// GENERATED ALWAYS.
        always: bool,
    },
}

/// A constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// Its name.
    pub name: String,
    /// What it demands.
    pub kind: ConstraintKind,
    /// As `pg_get_constraintdef` prints it.
    pub definition: String,
}

/// What a constraint demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConstraintKind {
    /// The primary key.
    Primary,
    /// Another key, or an exclusion.
    Unique,
    /// A condition on each row.
    Check,
    /// A row of another table.
    Foreign(TableName),
}

/// An index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its name.
    pub name: String,
    /// As `pg_get_indexdef` prints it, with the parts of a partitioned one.
    pub definition: String,
    /// Whether rows are found by it.
    pub replica_identity: bool,
}

/// A statement that makes a part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The statement, without a semicolon.
    pub sql: String,
    /// What it is about, for people: `table "public"."orders"`.
    pub about: String,
    /// Whether rows cannot be carried without it; the others only make it more alike.
    pub essential: bool,
}

/// For whom the statements are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Major version of the server that they run on.
    pub server_major: u32,
    /// Who is to write the rows there; `None` when it is whoever makes the tables.
    pub writer: Option<String>,
    /// Whether foreign keys are made: not where they would be checked while rows arrive.
    pub foreign_keys: bool,
}
