//! What of a table is copied: its columns, its rows, and the relations that hold them, as the
//! publication and the snapshot see it.

use std::collections::HashMap;

use tokio_postgres::{Client, Row};
use trellara_envelope::{CopyTable, Oid};
use trellara_postgres::quote;

use super::SharedSnapshot;

/// A table that can be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Its name in the publication.
    pub table: CopyTable,
    /// Its oid: that of the root, when partitions are published under its name.
    pub relation: Oid,
    /// What changes of it carry, in the order of the table's columns.
    pub columns: Vec<String>,
    /// Whether one of them is computed, which a plain COPY refuses.
    pub has_generated: bool,
    /// Which of its rows are published; `None` for all.
    pub filter: Option<String>,
    /// The relations that hold its rows: itself, or the partitions at the ends of its tree.
    pub leaves: Vec<Leaf>,
    /// Of a table with partitions, which ones there are and which files they have, under the
    /// snapshot; of another, nothing.
    pub tree: String,
    /// Rows, as far as the catalogues know.
    pub estimated_rows: u64,
    /// Bytes of all leaves with what is stored beside them, but without indexes.
    pub estimated_bytes: u64,
}

/// A relation that holds rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Its oid.
    pub relation: Oid,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The file that it had when the snapshot was taken. With another one it was rewritten or
    /// emptied since, and the snapshot finds too few rows, or finds them elsewhere (C49).
    pub filenode: u32,
    /// Blocks, counted when the facts were read.
    pub blocks: u32,
    /// Bytes of each.
    pub block_bytes: u32,
    /// Whether it can be read by ranges of blocks.
    pub has_ranges: bool,
}

/// Why a table cannot be copied until somebody changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Why.
    pub reason: String,
    /// What to do about it.
    pub hint: String,
}

/// By name, what the publication says. Its functions read what is committed now; a difference
/// between that and the snapshot shows when the rows are read. Generated columns are published
/// from 18 on alone, where the publication says so.
const PUBLISHED: &str = "\
SELECT p.schemaname::text, p.tablename::text, c.oid, p.rowfilter, \
       array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attnum IS NOT NULL), \
       coalesce(bool_or(a.attgenerated <> ''), false) \
  FROM pg_catalog.pg_publication_tables p \
  JOIN unnest($2::text[], $3::text[]) AS w(s, t) ON p.schemaname = w.s AND p.tablename = w.t \
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname \
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename \
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
       AND NOT a.attisdropped AND a.attname = ANY (p.attnames) \
       AND (a.attgenerated = '' OR pg_catalog.current_setting('server_version_num')::int >= 180000) \
 WHERE p.pubname = $1 GROUP BY 1, 2, 3, 4";

/// By root, the relations that hold its rows. The tree is walked in the tables themselves, so that
/// it is the snapshot's: what was attached or detached since counts as it was.
const LEAVES: &str = "\
WITH RECURSIVE tree (root, oid) AS ( \
  SELECT r, r FROM unnest($1::oid[]) AS r \
  UNION ALL \
  SELECT tree.root, i.inhrelid FROM tree \
    JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind = 'p' \
    JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid AND NOT i.inhdetachpending) \
SELECT tree.root, c.oid, n.nspname::text, c.relname::text, c.relkind::text, \
       c.relpersistence::text, c.relfilenode, coalesce(m.amname = 'heap', false), \
       coalesce(pg_catalog.pg_relation_size(c.oid), 0), \
       coalesce(pg_catalog.pg_table_size(c.oid), 0), \
       greatest(c.reltuples, 0)::float8 / greatest(c.relpages, 1), \
       pg_catalog.current_setting('block_size')::int, \
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') \
         AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT'), \
       pg_catalog.row_security_active(c.oid) \
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind <> 'p' \
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
  LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam ORDER BY 1, 2";

/// By root, its partitions with their files, as a text to be compared. A partition that left and came
/// back has another row in the catalogue, so that row's own id is in it.
const TREES: &str = "\
WITH RECURSIVE tree (root, oid, edge) AS ( \
  SELECT r, r, '' FROM unnest($1::oid[]) AS r \
  UNION ALL \
  SELECT tree.root, i.inhrelid, i.inhparent || '/' || i.xmin FROM tree \
    JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind = 'p' \
    JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid AND NOT i.inhdetachpending) \
SELECT tree.root, \
       string_agg(tree.oid || '/' || tree.edge || '/' || c.relfilenode, ' ' ORDER BY tree.oid) \
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid \
 WHERE tree.oid <> tree.root GROUP BY tree.root";

/// By root, [`TableFacts::tree`] as the session sees it; a root without partitions is not in it.
pub(super) async fn trees(
    client: &Client,
    roots: &[u32],
) -> Result<HashMap<u32, String>, tokio_postgres::Error> {
    let rows = client.query(TREES, &[&roots]).await?;
    let tree = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(tree).collect()
}

impl TableFacts {
    /// Whether its rows lie in partitions that are published under its name.
    pub fn is_partitioned(&self) -> bool {
        self.leaves
            .iter()
            .all(|leaf| leaf.relation != self.relation)
    }
}

/// What is to be known of these tables before they are read, in their order.
///
/// # Errors
/// The server's. What is wrong with a single table is its own answer.
pub async fn describe(
    snapshot: &SharedSnapshot,
    publication: &str,
    wanted: &[CopyTable],
) -> Result<Vec<Result<TableFacts, Unfit>>, tokio_postgres::Error> {
    let client = &snapshot.session().client;
    let schemas: Vec<&str> = wanted.iter().map(|table| table.schema.as_str()).collect();
    let names: Vec<&str> = wanted.iter().map(|table| table.name.as_str()).collect();
    let rows = client
        .query(PUBLISHED, &[&publication, &schemas, &names])
        .await?;
    let mut facts: HashMap<CopyTable, TableFacts> = HashMap::with_capacity(rows.len());
    for row in &rows {
        let found = published(row)?;
        facts.insert(found.table.clone(), found);
    }
    let roots: Vec<u32> = facts.values().map(|facts| facts.relation.0).collect();
    let leaves = client.query(LEAVES, &[&roots]).await?;
    let mut trees = trees(client, &roots).await?;
    for facts in facts.values_mut() {
        facts.tree = trees.remove(&facts.relation.0).unwrap_or_default();
    }
    let mut unfit: HashMap<u32, Unfit> = HashMap::new();
    let mut by_root: HashMap<u32, &mut TableFacts> = facts
        .values_mut()
        .map(|facts| (facts.relation.0, facts))
        .collect();
    for row in &leaves {
        let root: u32 = row.try_get(0)?;
        let Some(facts) = by_root.get_mut(&root) else {
            continue;
        };
        if let Some(why) = take_leaf(facts, row)? {
            unfit.entry(root).or_insert(why);
        }
    }
    let answer = |table: &CopyTable| match facts.remove(table) {
        None => Err(not_published(table, publication)),
        Some(facts) => match unfit.remove(&facts.relation.0) {
            Some(why) => Err(why),
            None => Ok(facts),
        },
    };
    Ok(wanted.iter().map(answer).collect())
}

fn published(row: &Row) -> Result<TableFacts, tokio_postgres::Error> {
    Ok(TableFacts {
        table: CopyTable {
            schema: row.try_get(0)?,
            name: row.try_get(1)?,
        },
        relation: Oid(row.try_get(2)?),
        filter: row.try_get(3)?,
        columns: row
            .try_get::<_, Option<Vec<String>>>(4)?
            .unwrap_or_default(),
        has_generated: row.try_get(5)?,
        leaves: Vec::new(),
        tree: String::new(),
        estimated_rows: 0,
        estimated_bytes: 0,
    })
}

/// Adds a leaf to its table, or says why it cannot be read.
fn take_leaf(facts: &mut TableFacts, row: &Row) -> Result<Option<Unfit>, tokio_postgres::Error> {
    let bytes = |at: usize| row.try_get::<_, i64>(at).map(i64::unsigned_abs);
    let (kind, persistence): (&str, &str) = (row.try_get(4)?, row.try_get(5)?);
    let block_bytes = row.try_get::<_, i32>(11)?.unsigned_abs().max(1);
    let blocks = bytes(8)? / u64::from(block_bytes);
    let leaf = Leaf {
        relation: Oid(row.try_get(1)?),
        schema: row.try_get(2)?,
        name: row.try_get(3)?,
        filenode: row.try_get(6)?,
        has_ranges: row.try_get(7)?,
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        block_bytes,
    };
    let name = quote::qualified(&leaf.schema, &leaf.name);
    let density: f64 = row.try_get(10)?;
    facts.estimated_rows += (density * blocks as f64) as u64;
    facts.estimated_bytes += bytes(9)?;
    facts.leaves.push(leaf);
    let unfit = |reason: &str, hint: String| {
        Ok(Some(Unfit {
            reason: format!("{name} {reason}"),
            hint,
        }))
    };
    if kind != "r" {
        return unfit(
            "is not an ordinary table, and its changes are never published",
            "detach the partition, or leave the table out of the publication".to_owned(),
        );
    }
    if persistence != "p" {
        return unfit(
            "is unlogged or temporary, and its changes are never published",
            format!("ALTER TABLE {name} SET LOGGED, or leave the table out of the publication"),
        );
    }
    if row.try_get::<_, Option<bool>>(12)? == Some(false) {
        return unfit(
            "cannot be read by the relay's role",
            format!("GRANT SELECT ON {name} to it, and USAGE on the schema"),
        );
    }
    if row.try_get(13)? {
        return unfit(
            "has row security that would hide rows from the relay's role",
            "give the role BYPASSRLS, or let the relay connect as the table's owner".to_owned(),
        );
    }
    Ok(None)
}

fn not_published(table: &CopyTable, publication: &str) -> Unfit {
    Unfit {
        reason: format!("{table} is not in publication {publication}"),
        hint: "add it with `trellara table add`, or take it out of the flow with `trellara table \
               remove`"
            .to_owned(),
    }
}
