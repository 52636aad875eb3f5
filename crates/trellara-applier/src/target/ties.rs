//! What ties the rows of a table to others, beyond the key that finds them: further unique columns,
//! foreign keys both ways, and which values can be compared by their texts.
//!
//! Read only when something is held, so that a flow without held transactions pays nothing for it.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::TargetTable;
use crate::execute::ApplyError;

/// A table's name on the target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
}

impl TableName {
    pub(crate) fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            schema: schema.into(),
            name: name.into(),
        }
    }
}

/// Ties of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ties {
    /// Root of its partition tree; itself where it has none. Rows of one tree are one table's.
    pub root: Option<TableName>,
    /// Columns whose equality shows in their texts.
    pub by_text: Vec<String>,
    /// Unique and exclusion indexes.
    pub uniques: Vec<UniqueTie>,
    /// A partition has a unique or exclusion index that the table itself has not.
    pub partition_alone: bool,
    /// Foreign keys of its own.
    pub references: Vec<ForeignTie>,
    /// Foreign keys of others that point to it.
    pub referenced_by: Vec<ForeignTie>,
    /// The database can store any character, so that any value can be written down as a key.
    pub unicode: bool,
}

/// A unique or exclusion index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueTie {
    /// It compares whole columns, of all rows, by their equality.
    pub plain: bool,
    /// NULLs count as equal.
    pub nulls_not_distinct: bool,
    /// Its columns; an expression is left out.
    pub columns: Vec<String>,
}

/// A foreign key, from one of its sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignTie {
    /// Root of the other side's partition tree.
    pub other: TableName,
    /// Own columns.
    pub own_columns: Vec<String>,
    /// The other side's, in the same order.
    pub other_columns: Vec<String>,
    /// Both sides print equal values alike.
    pub by_text: bool,
    /// Where foreign keys fire it changes rows of the referencing side: CASCADE, SET NULL or
    /// SET DEFAULT.
    pub acts: bool,
}

const CLASSES: &str = include_str!("class.sql");
const COLUMNS: &str = "SELECT name FROM shown WHERE class IS NOT NULL ORDER BY attnum";
const FOREIGN: &str = "SELECT DISTINCT k.outgoing, n.nspname::text, c.relname::text, \
     x.own_names, x.other_names, \
     x.comparable AND NOT coalesce((to_jsonb(con) ->> 'conperiod')::bool, false), \
     con.confdeltype IN ('c', 'n', 'd') OR con.confupdtype IN ('c', 'n', 'd') \
   FROM keys k \
   JOIN pg_catalog.pg_constraint con ON con.oid = k.oid \
   JOIN pg_catalog.pg_class c \
     ON c.oid = coalesce(pg_catalog.pg_partition_root(k.other)::pg_catalog.oid, k.other) \
   JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
  CROSS JOIN LATERAL ( \
     SELECT array_agg(o.name ORDER BY u.n) AS own_names, array_agg(p.name ORDER BY u.n) AS other_names, \
            bool_and(coalesce(o.class = p.class, false)) AS comparable \
     FROM unnest(k.own_columns, k.other_columns) WITH ORDINALITY AS u(own, other, n) \
     JOIN shown o ON o.attrelid = k.own AND o.attnum = u.own \
     JOIN shown p ON p.attrelid = k.other AND p.attnum = u.other) x \
  ORDER BY 1, 2, 3, 4, 5";
/// The table's tree, whether a partition has an index of its own, whether every character is known.
const FACTS: &str = "SELECT n.nspname::text, r.relname::text, \
     EXISTS (SELECT FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid) p \
       JOIN pg_catalog.pg_index i ON i.indrelid = p.relid \
      WHERE p.relid <> $1::pg_catalog.oid AND (i.indisunique OR i.indisexclusion) AND i.indislive \
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid)), \
     pg_catalog.getdatabaseencoding() = 'UTF8' \
   FROM pg_catalog.pg_class r JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace \
  WHERE r.oid = coalesce(pg_catalog.pg_partition_root($1::pg_catalog.oid)::pg_catalog.oid, \
                         $1::pg_catalog.oid)";
const UNIQUES: &str = "SELECT i.indisunique AND NOT i.indisexclusion AND i.indpred IS NULL \
       AND i.indexprs IS NULL AND m.amname = 'btree' \
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_collation l \
                        WHERE l.oid = ANY (i.indcollation) AND NOT l.collisdeterministic) \
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_opclass o \
                        WHERE o.oid = ANY (i.indclass) \
                          AND o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace), \
     i.indnullsnotdistinct, \
     ARRAY(SELECT a.attname::text \
             FROM unnest((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(n, o) \
             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n \
            ORDER BY k.o) \
   FROM pg_catalog.pg_index i \
   JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid \
   JOIN pg_catalog.pg_am m ON m.oid = x.relam \
  WHERE i.indrelid = $1::pg_catalog.oid AND (i.indisunique OR i.indisexclusion) AND i.indislive \
  ORDER BY x.relname";

/// Reads the ties of a table.
pub(super) async fn read(client: &Client, table: &TargetTable) -> Result<Ties, ApplyError> {
    let columns_sql = format!("{}{CLASSES}{COLUMNS}", include_str!("ties_columns.sql"));
    let foreign_sql = format!("{}{CLASSES}{FOREIGN}", include_str!("ties_foreign.sql"));
    let oid: [(&(dyn ToSql + Sync), Type); 1] = [(&table.oid, Type::OID)];
    let (facts, columns, uniques, foreign) = futures_util::try_join!(
        client.query_typed(FACTS, &oid),
        client.query_typed(&columns_sql, &oid),
        client.query_typed(UNIQUES, &oid),
        client.query_typed(&foreign_sql, &oid),
    )
    .map_err(|error| ApplyError::from_server(&error).on(&table.schema, &table.name))?;
    let mut ties = Ties {
        by_text: columns.iter().map(|row| row.get(0)).collect(),
        uniques: uniques.iter().map(unique).collect(),
        ..Ties::default()
    };
    if let Some(facts) = facts.first() {
        ties.root = Some(TableName::new(
            facts.get::<_, String>(0),
            facts.get::<_, String>(1),
        ));
        ties.partition_alone = facts.get(2);
        ties.unicode = facts.get(3);
    }
    for row in &foreign {
        let side = if row.get(0) {
            &mut ties.references
        } else {
            &mut ties.referenced_by
        };
        side.push(ForeignTie {
            other: TableName::new(row.get::<_, String>(1), row.get::<_, String>(2)),
            own_columns: row.get(3),
            other_columns: row.get(4),
            by_text: row.get(5),
            acts: row.get(6),
        });
    }
    Ok(ties)
}

fn unique(row: &Row) -> UniqueTie {
    UniqueTie {
        plain: row.get(0),
        nulls_not_distinct: row.get(1),
        columns: row.get(2),
    }
}
