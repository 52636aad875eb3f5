//! From the catalogues to values.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use trellara_postgres::Session;

use super::{
    Column, ColumnValue, Constraint, ConstraintKind, Definitions, Index, Sequence, SequenceOwner,
    Table, Type, TypeKind,
};
use crate::publication::TableName;

/// The definitions of these tables, of what they are partitions of, and of their partitions, as of
/// one moment. Tables that are not there are left out. The session's `search_path` must be
/// `pg_catalog` alone, as every session of ours has it: names are then printed in full.
///
/// # Errors
/// The server's.
pub async fn read(
    session: &Session,
    tables: &[TableName],
) -> Result<Definitions, tokio_postgres::Error> {
    session
        .client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .await?;
    let definitions = read_now(session, tables).await;
    session.client.batch_execute("ROLLBACK").await?;
    definitions
}

async fn read_now(
    session: &Session,
    tables: &[TableName],
) -> Result<Definitions, tokio_postgres::Error> {
    let schemas: Vec<&str> = tables.iter().map(|table| table.schema.as_str()).collect();
    let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
    let client = &session.client;
    let rows = client
        .query(include_str!("sql/tables.sql"), &[&schemas, &names])
        .await?;
    let oids: Vec<u32> = rows.iter().map(|row| row.get(0)).collect();
    let mut tables: Vec<Table> = rows.iter().map(table).collect();
    let places: BTreeMap<u32, usize> = oids.iter().copied().zip(0..).collect();
    for row in &client
        .query(include_str!("sql/columns.sql"), &[&oids])
        .await?
    {
        tables[places[&row.get::<_, u32>(0)]]
            .columns
            .push(column(row));
    }
    for row in &client
        .query(include_str!("sql/constraints.sql"), &[&oids])
        .await?
    {
        tables[places[&row.get::<_, u32>(0)]]
            .constraints
            .push(constraint(row));
    }
    for row in &client
        .query(include_str!("sql/indexes.sql"), &[&oids])
        .await?
    {
        tables[places[&row.get::<_, u32>(0)]]
            .indexes
            .push(index(row));
    }
    let sequences = client
        .query(include_str!("sql/sequences.sql"), &[&oids])
        .await?;
    let types = client
        .query(include_str!("sql/types.sql"), &[&oids])
        .await?;
    Ok(Definitions {
        types: types.iter().map(type_of).collect(),
        sequences: sequences.iter().map(sequence).collect(),
        tables,
    })
}

fn named(row: &Row, at: usize) -> TableName {
    TableName {
        schema: row.get(at),
        name: row.get(at + 1),
    }
}

fn maybe_named(row: &Row, at: usize) -> Option<TableName> {
    let schema: Option<String> = row.get(at);
    schema.map(|schema| TableName {
        schema,
        name: row.get(at + 1),
    })
}

/// The catalogues' one-letter codes come as text.
fn letter(row: &Row, at: usize) -> char {
    row.get::<_, &str>(at).chars().next().unwrap_or(' ')
}

fn table(row: &Row) -> Table {
    let parents: Vec<String> = row.get(4);
    let parents_names: Vec<String> = row.get(5);
    let parents = parents
        .into_iter()
        .zip(parents_names)
        .map(|(schema, name)| TableName { schema, name });
    let bound: Option<String> = row.get(6);
    let mut parents: Vec<TableName> = parents.collect();
    let partition_of = bound.and_then(|bound| parents.pop().map(|parent| (parent, bound)));
    Table {
        name: named(row, 1),
        columns: Vec::new(),
        partition_key: row.get(3),
        partition_of,
        inherits: parents,
        replica_identity: letter(row, 7),
        constraints: Vec::new(),
        indexes: Vec::new(),
    }
}

fn column(row: &Row) -> Column {
    let expression: Option<String> = row.get(6);
    let value = match (letter(row, 4), letter(row, 5), expression) {
        ('a', _, _) => ColumnValue::Identity { always: true },
        ('d', _, _) => ColumnValue::Identity { always: false },
        (_, ' ', Some(expression)) => ColumnValue::Default {
            expression,
            foreign: row.get(7),
        },
        (_, generated, Some(expression)) => ColumnValue::Generated {
            expression,
            stored: generated == 's',
        },
        (_, _, None) => ColumnValue::None,
    };
    Column {
        name: row.get(1),
        type_name: row.get(2),
        not_null: row.get(3),
        not_null_name: row.get(9),
        value,
        collation: row.get(8),
    }
}

fn constraint(row: &Row) -> Constraint {
    let kind = match (letter(row, 2), maybe_named(row, 4)) {
        ('p', _) => ConstraintKind::Primary,
        ('c', _) => ConstraintKind::Check,
        ('f', Some(table)) => ConstraintKind::Foreign(table),
        _ => ConstraintKind::Unique,
    };
    Constraint {
        name: row.get(1),
        kind,
        definition: row.get(3),
    }
}

fn index(row: &Row) -> Index {
    let name: String = row.get(1);
    let definition: String = row.get(2);
    // A partitioned index is printed without its parts.
    let unique = if row.get(3) { "UNIQUE " } else { "" };
    let head = format!("CREATE {unique}INDEX {} ON ", row.get::<_, &str>(4));
    let whole = definition
        .strip_prefix(&head)
        .and_then(|rest| rest.strip_prefix("ONLY "))
        .map(|rest| format!("{head}{rest}"));
    Index {
        definition: whole.unwrap_or(definition),
        name,
        replica_identity: row.get(5),
    }
}

fn sequence(row: &Row) -> Sequence {
    let owner = maybe_named(row, 5).map(|table| SequenceOwner {
        table,
        column: row.get(7),
        identity: row.get(8),
    });
    Sequence {
        name: named(row, 1),
        type_name: row.get(3),
        options: row.get(4),
        owner,
    }
}

fn type_of(row: &Row) -> Type {
    let kind = match letter(row, 2) {
        'e' => TypeKind::Enum(row.get(3)),
        'd' => TypeKind::Domain(row.get(4)),
        _ => TypeKind::Other,
    };
    Type {
        name: named(row, 0),
        kind,
    }
}
