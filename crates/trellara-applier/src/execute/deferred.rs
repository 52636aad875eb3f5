//! Constraints that the replica role leaves unenforced, checked by query (C37).
//!
//! Under `session_replication_role = replica` deferrable unique and exclusion constraints are not
//! enforced at all: their recheck is an ordinary trigger. So the rows that a transaction leaves
//! behind are compared with the others in the same transaction, before COMMIT.

use std::sync::Arc;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use trellara_postgres::quote;

use super::{ApplyError, ApplyErrorKind};
use crate::plan::{Deferrable, Parameter, TouchedTable, arrays};
use crate::target::{Catalog, DeferrableConstraint, TargetTable};

/// Checks the constraints of one table against what was touched in it.
pub(super) async fn check(client: &Client, touched: &TouchedTable) -> Result<(), ApplyError> {
    let table = &touched.table;
    for (constraint, values) in table.deferrable.iter().zip(&touched.values) {
        let (sql, parameters) = match values {
            Some(values) => (
                duplicates_of(table, constraint),
                values.iter().cloned().map(Parameter::Rows).collect(),
            ),
            None => (conflicts_of_written_rows(table, constraint), Vec::new()),
        };
        let typed: Vec<(&(dyn ToSql + Sync), Type)> = parameters
            .iter()
            .map(|parameter: &Parameter<'_>| {
                (parameter as &(dyn ToSql + Sync), parameter.sql_type())
            })
            .collect();
        let found = client
            .query_typed(&sql, &typed)
            .await
            .map_err(|error| ApplyError::from_server(&error).on(&table.schema, &table.name))?;
        if !found.is_empty() {
            return Err(violated(table, constraint));
        }
    }
    Ok(())
}

/// Checks the constraints of one table against all of its rows: what COPY wrote under the replica role
/// nobody has compared with anything.
pub(crate) async fn check_whole(
    client: &Client,
    (schema, name): (&str, &str),
) -> Result<(), ApplyError> {
    let Some(table) = Catalog::new().table(client, schema, name).await? else {
        return Ok(());
    };
    for constraint in &table.deferrable {
        let sql = match constraint.exclusion {
            true => conflicts(&table, constraint, ""),
            false => repeated(&table, constraint),
        };
        let found = client.query_typed(&sql, &[]).await;
        let found = found.map_err(|error| ApplyError::from_server(&error).on(schema, name))?;
        if !found.is_empty() {
            return Err(violated(&table, constraint));
        }
    }
    Ok(())
}

/// The constraints whose checks may wait on one of the tables, those of ALWAYS triggers among them,
/// and whether they wait by themselves: TRUNCATE refuses a table with checks outstanding, and the
/// source had none at that moment.
pub(super) async fn constraints(
    client: &Client,
    tables: &[Arc<TargetTable>],
) -> Result<Vec<Deferrable>, ApplyError> {
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let rows = client
        .query_typed(
            "SELECT DISTINCT n.nspname::text, c.conname::text, c.condeferred \
             FROM pg_catalog.unnest($1) AS t(oid) \
             CROSS JOIN LATERAL (SELECT t.oid UNION \
                  SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid) AS p) AS r(oid) \
             JOIN pg_catalog.pg_constraint AS c ON r.oid IN (c.conrelid, c.confrelid) \
             JOIN pg_catalog.pg_namespace AS n ON n.oid = c.connamespace \
             WHERE c.condeferrable AND c.contype IN ('f', 't') ORDER BY 1, 2",
            &[(&oids, Type::OID_ARRAY)],
        )
        .await
        .map_err(|error| ApplyError::from_server(&error))?;
    let deferrable = |row: &tokio_postgres::Row| Deferrable {
        name: quote::qualified(row.get(0), row.get(1)),
        waits: row.get(2),
    };
    Ok(rows.iter().map(deferrable).collect())
}

fn violated(table: &TargetTable, constraint: &DeferrableConstraint) -> ApplyError {
    let (sqlstate, what) = if constraint.exclusion {
        ("23P01", "rows that exclude each other")
    } else {
        ("23505", "rows with the same key")
    };
    let message = format!(
        "there would be {what}, against constraint {}",
        constraint.name
    );
    ApplyError::new(ApplyErrorKind::Data, message)
        .refused(sqlstate, Some(constraint.name.clone()))
        .hint("a row with this key is on the target already: look for other writers")
        .on(&table.schema, &table.name)
}

/// For each touched key the table is asked, through the constraint's own index, whether it has two
/// rows with it.
fn duplicates_of(table: &TargetTable, constraint: &DeferrableConstraint) -> String {
    let conditions: Vec<String> = constraint
        .columns
        .iter()
        .zip(&constraint.operators)
        .enumerate()
        .map(|(n, (&c, operator))| {
            let column = &table.columns[c];
            let name = quote::identifier(&column.name);
            let key = format!("u.c{}", n + 1);
            let equal = format!("t.{name} {operator} {}", column.value(&key));
            if constraint.nulls_not_distinct {
                format!("({equal} OR (t.{name} IS NULL AND {key} IS NULL))")
            } else {
                equal
            }
        })
        .collect();
    let keys = arrays(constraint.columns.len()).replacen(" AS u(", " WITH ORDINALITY AS u(", 1);
    let keys = format!("{}, n)", keys.trim_end_matches(')'));
    format!(
        "SELECT 1 FROM {keys} CROSS JOIN LATERAL \
         (SELECT 1 FROM {} AS t WHERE {} LIMIT 2) AS x \
         GROUP BY u.n HAVING pg_catalog.count(*) > 1 LIMIT 1",
        table.only(),
        conditions.join(" AND ")
    )
}

/// Every row that this transaction wrote against all others. It knows its rows by their `xmin`,
/// so there must be no savepoints in an apply transaction.
fn conflicts_of_written_rows(table: &TargetTable, constraint: &DeferrableConstraint) -> String {
    let written = "AND xmin = pg_catalog.pg_current_xact_id()::pg_catalog.xid";
    conflicts(table, constraint, written)
}

/// Keys that more than one row has.
fn repeated(table: &TargetTable, constraint: &DeferrableConstraint) -> String {
    let keys = constraint.expressions.join(", ");
    let conditions = constraint.expressions.iter();
    let mut conditions: Vec<String> = match constraint.nulls_not_distinct {
        true => Vec::new(),
        false => conditions
            .map(|key| format!("({key}) IS NOT NULL"))
            .collect(),
    };
    let predicate = constraint.predicate.as_deref().unwrap_or("true");
    conditions.push(format!("({predicate})"));
    format!(
        "SELECT 1 FROM {} WHERE {} GROUP BY {keys} HAVING pg_catalog.count(*) > 1 LIMIT 1",
        table.only(),
        conditions.join(" AND ")
    )
}

/// The rows of which `which` holds against all others.
fn conflicts(table: &TargetTable, constraint: &DeferrableConstraint, which: &str) -> String {
    let values: Vec<String> = constraint
        .expressions
        .iter()
        .enumerate()
        .map(|(n, expression)| format!("{expression} AS e{n}"))
        .collect();
    let conflict: Vec<String> = constraint
        .operators
        .iter()
        .enumerate()
        .map(|(n, operator)| {
            let conflict = format!("a.e{n} {operator} b.e{n}");
            if constraint.nulls_not_distinct {
                format!("({conflict} OR (a.e{n} IS NULL AND b.e{n} IS NULL))")
            } else {
                conflict
            }
        })
        .collect();
    let rows = format!(
        "SELECT tableoid AS place_table, ctid AS place, {} FROM {}",
        values.join(", "),
        table.only()
    );
    let predicate = constraint.predicate.as_deref().unwrap_or("true");
    format!(
        "SELECT 1 FROM ({rows} WHERE ({predicate}) {which}) AS a \
         JOIN ({rows} WHERE ({predicate})) AS b ON {} \
         AND (a.place_table <> b.place_table OR a.place <> b.place) LIMIT 1",
        conflict.join(" AND ")
    )
}
