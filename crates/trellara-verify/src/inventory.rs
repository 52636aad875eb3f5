//! What the catalogues say about the tables to compare, read inside of the snapshots.
//!
//! The publication's members are read through `pg_publication_tables`, which shows the present, not
//! the snapshot; [`definition`] tells whether the two publish by the same rules, [`implied`] which
//! tables those rules meant in the snapshot.

use std::collections::BTreeMap;

use trellara_postgres::quote;

use crate::error::{Failure, VerifyError};
use crate::reader::{Reader, TextRow};
use crate::report::TableName;

/// A table as the publication publishes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) table: TableName,
    /// The row filter, as SQL over the source's columns.
    pub(crate) filter: Option<String>,
    /// The published columns, in the table's order.
    pub(crate) columns: Vec<String>,
}

/// A table on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relation {
    /// `pg_class.relkind`.
    pub(crate) kind: char,
    /// `pg_class.relreplident`.
    pub(crate) identity: char,
    /// Whether row-level security would hide rows from us.
    pub(crate) guarded: bool,
    /// A guess at the number of rows, partitions included.
    pub(crate) estimate: u64,
    pub(crate) columns: Vec<Column>,
    pub(crate) indexes: Vec<Index>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The declared type with its modifier, with a schema when it is not PostgreSQL's own.
    pub(crate) declared: String,
    /// The type's own name.
    pub(crate) base: String,
    /// One of PostgreSQL's own types.
    pub(crate) builtin: bool,
    pub(crate) not_null: bool,
    /// Whether its text is ordered by bytes.
    pub(crate) bytewise: bool,
    /// What a domain is a domain over, through all domains between.
    pub(crate) under: Option<Under>,
    /// Name and version of the extension that the type (or an array's elements') comes from.
    pub(crate) extension: Option<String>,
}

/// The type under a domain; fields as a [`Column`]'s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Under {
    pub(crate) declared: String,
    pub(crate) base: String,
    pub(crate) builtin: bool,
}

impl Column {
    /// The column as one of the type under its domain.
    pub(crate) fn bare(&self) -> Self {
        let mut bare = self.clone();
        if let Some(under) = bare.under.take() {
            (bare.declared, bare.base) = (under.declared, under.base);
            bare.builtin = under.builtin;
        }
        bare
    }
}

/// A b-tree over whole columns and every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) primary: bool,
    pub(crate) identity: bool,
    pub(crate) columns: Vec<String>,
    /// Ascending in every column, by the types' own order and the columns' own collations.
    pub(crate) plain: bool,
}

/// Whether column `a` holds no NULL, as SQL. From PostgreSQL 18 on a NOT NULL that is NOT VALID sets
/// `attnotnull` and says nothing of older rows; before, no such constraint is in the catalogue.
pub(crate) const FILLED: &str = "(a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint v \
    WHERE v.conrelid = a.attrelid AND v.contype = 'n' AND NOT v.convalidated \
      AND a.attnum = ANY (v.conkey)))";

/// `(ordinal, schema, name)` as rows of a VALUES list.
pub(crate) fn values(tables: &[TableName]) -> String {
    let row = |(i, t): (usize, &TableName)| {
        let (schema, name) = (quote::literal(&t.schema), quote::literal(&t.name));
        format!("({i},{schema}::text,{name}::text)")
    };
    let rows: Vec<String> = tables.iter().enumerate().map(row).collect();
    rows.join(",")
}

/// A digest of all that defines the publication, as the reader sees it: in its snapshot, or now.
pub(crate) async fn definition(source: &Reader, publication: &str) -> Result<TextRow, Failure> {
    let name = quote::literal(publication);
    let sql = format!(
        "WITH p AS (SELECT * FROM pg_publication WHERE pubname = {name}) \
         SELECT sum(hashtextextended(part, 0)) FROM (SELECT p::text FROM p \
           UNION ALL SELECT r::text FROM pg_publication_rel r JOIN p ON p.oid = r.prpubid \
           UNION ALL SELECT n::text FROM pg_publication_namespace n JOIN p ON p.oid = n.pnpubid) \
           AS parts(part)"
    );
    Ok(source.rows(&sql).await?.pop().unwrap_or_default())
}

/// The tables of the publication, in order of their names.
pub(crate) async fn published(
    source: &Reader,
    publication: &str,
) -> Result<Vec<Published>, Failure> {
    let name = quote::literal(publication);
    let exists = format!("SELECT 1 FROM pg_publication WHERE pubname = {name}");
    if source.rows(&exists).await?.is_empty() {
        return Err(VerifyError::unusable(
            source.side(),
            format!("the source has no publication {publication:?}"),
            "name the flow's publication, or run its setup",
        )
        .into());
    }
    // Before 18 generated columns are never published.
    let generated = if source.major() < 18 {
        "a.attgenerated = ''"
    } else {
        "true"
    };
    let sql = format!(
        "SELECT t.schemaname, t.tablename, t.rowfilter, a.attname \
         FROM pg_publication_tables t \
         JOIN pg_namespace n ON n.nspname = t.schemaname \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename \
         LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
           AND a.attname = ANY (t.attnames) AND {generated} \
         WHERE t.pubname = {name} ORDER BY t.schemaname, t.tablename, a.attnum"
    );
    let mut tables: Vec<Published> = Vec::new();
    for row in source.rows(&sql).await? {
        let mut row = Cells(row.into_iter());
        let table = TableName {
            schema: row.text()?,
            name: row.text()?,
        };
        if tables.last().is_none_or(|last| last.table != table) {
            tables.push(Published {
                table,
                filter: row.optional(),
                columns: Vec::new(),
            });
        } else {
            row.optional();
        }
        if let (Some(last), Some(column)) = (tables.last_mut(), row.optional()) {
            last.columns.push(column);
        }
    }
    Ok(tables)
}

/// The names of the tables that the publication had in the snapshot, by the catalogues' own rows:
/// a table can leave by itself (dropped, made unlogged, moved, detached) without a change of the
/// publication.
pub(crate) async fn implied(source: &Reader, publication: &str) -> Result<Vec<TableName>, Failure> {
    let name = quote::literal(publication);
    // Below 16384 are the server's own tables.
    let sql = format!(
        "WITH RECURSIVE p AS (SELECT * FROM pg_publication WHERE pubname = {name}), \
         fit AS (SELECT oid, relkind, relnamespace FROM pg_class \
           WHERE relkind IN ('r', 'p') AND relpersistence = 'p' AND oid >= 16384), \
         named AS (SELECT f.oid, f.relkind FROM fit f JOIN p ON p.puballtables \
           UNION SELECT f.oid, f.relkind FROM p \
             JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN fit f ON f.oid = r.prrelid \
           UNION SELECT f.oid, f.relkind FROM p \
             JOIN pg_publication_namespace n ON n.pnpubid = p.oid \
             JOIN fit f ON f.relnamespace = n.pnnspid), \
         tree(oid, relkind, parted) AS (SELECT oid, relkind, false FROM named UNION \
           SELECT f.oid, f.relkind, true FROM tree t \
           JOIN pg_inherits h ON h.inhparent = t.oid AND t.relkind = 'p' \
           JOIN fit f ON f.oid = h.inhrelid) \
         SELECT n.nspname, c.relname FROM p CROSS JOIN tree t \
           JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace \
         GROUP BY n.nspname, c.relname, p.pubviaroot, t.relkind \
         HAVING CASE WHEN p.pubviaroot THEN NOT bool_or(t.parted) ELSE t.relkind = 'r' END \
         ORDER BY 1, 2"
    );
    let rows = source.rows(&sql).await?.into_iter();
    rows.map(|row| {
        let mut row = Cells(row.into_iter());
        Ok(TableName {
            schema: row.text()?,
            name: row.text()?,
        })
    })
    .collect()
}

/// What one side has of these tables; what it has not is not in the map.
pub(crate) async fn relations(
    reader: &Reader,
    tables: &[TableName],
) -> Result<BTreeMap<TableName, Relation>, Failure> {
    if tables.is_empty() {
        return Ok(BTreeMap::new());
    }
    let wanted = values(tables);
    let mut found: BTreeMap<usize, Relation> = BTreeMap::new();
    for row in reader.rows(&relations_sql(&wanted)).await? {
        let mut row = Cells(row.into_iter());
        let relation = (
            row.number()?,
            Relation {
                kind: row.letter()?,
                identity: row.letter()?,
                guarded: row.flag()?,
                estimate: row.number()? as u64,
                columns: Vec::new(),
                indexes: Vec::new(),
            },
        );
        found.insert(relation.0, relation.1);
    }
    for row in reader.rows(&columns_sql(&wanted)).await? {
        let mut row = Cells(row.into_iter());
        let ordinal = row.number()?;
        let column = Column {
            name: row.text()?,
            declared: row.text()?,
            base: row.text()?,
            builtin: row.flag()?,
            not_null: row.flag()?,
            bytewise: row.flag()?,
            extension: row.optional(),
            under: match row.optional() {
                Some(declared) => Some(Under {
                    declared,
                    base: row.text()?,
                    builtin: row.flag()?,
                }),
                None => None,
            },
        };
        if let Some(relation) = found.get_mut(&ordinal) {
            relation.columns.push(column);
        }
    }
    let mut last = None;
    for row in reader.rows(&indexes_sql(&wanted)).await? {
        let mut row = Cells(row.into_iter());
        let (ordinal, index) = (row.number()?, row.number()?);
        let (primary, identity) = (row.flag()?, row.flag()?);
        let (column, plain) = (row.text()?, row.flag()?);
        let Some(relation) = found.get_mut(&ordinal) else {
            continue;
        };
        if last.replace((ordinal, index)) != Some((ordinal, index)) {
            relation.indexes.push(Index {
                primary,
                identity,
                columns: Vec::new(),
                plain: true,
            });
        }
        if let Some(index) = relation.indexes.last_mut() {
            index.columns.push(column);
            index.plain &= plain;
        }
    }
    let name = |(i, relation): (usize, Relation)| Some((tables.get(i)?.clone(), relation));
    Ok(found.into_iter().filter_map(name).collect())
}

fn relations_sql(wanted: &str) -> String {
    format!(
        "WITH RECURSIVE wanted(i, s, n) AS (VALUES {wanted}), \
         root AS (SELECT w.i, c.* FROM wanted w JOIN pg_namespace n ON n.nspname = w.s \
                  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n), \
         tree(i, oid) AS (SELECT i, oid FROM root UNION ALL \
           SELECT t.i, h.inhrelid FROM tree t JOIN pg_class p ON p.oid = t.oid AND p.relkind = 'p' \
           JOIN pg_inherits h ON h.inhparent = t.oid) \
         SELECT r.i, r.relkind, r.relreplident, row_security_active(r.oid), \
           (SELECT coalesce(sum(greatest(l.reltuples, 0))::bigint, 0) FROM tree t \
             JOIN pg_class l ON l.oid = t.oid WHERE t.i = r.i AND l.relkind <> 'p') \
         FROM root r ORDER BY r.i"
    )
}

fn columns_sql(wanted: &str) -> String {
    // The default collation is the database's; provider b orders by code point, which is by byte.
    format!(
        "SELECT w.i, a.attname, format_type(a.atttypid, a.atttypmod), t.typname, \
           tn.nspname = 'pg_catalog', {FILLED}, \
           coalesce(CASE o.collprovider WHEN 'c' THEN o.collcollate IN ('C', 'POSIX') \
             WHEN 'b' THEN true \
             WHEN 'd' THEN d.datlocprovider = 'b' \
               OR d.datlocprovider = 'c' AND d.datcollate IN ('C', 'POSIX') \
             ELSE false END, false), \
           (SELECT x.extname || ' ' || x.extversion FROM pg_depend e \
             JOIN pg_extension x ON x.oid = e.refobjid WHERE e.classid = 'pg_type'::regclass \
               AND e.objid IN (t.oid, t.typelem, u.type) AND e.deptype = 'e' \
               AND e.refclassid = 'pg_extension'::regclass LIMIT 1), \
           format_type(u.type, u.modifier), ut.typname, un.nspname = 'pg_catalog' \
         FROM (VALUES {wanted}) w(i, s, n) JOIN pg_namespace n ON n.nspname = w.s \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n \
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
         JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace tn ON tn.oid = t.typnamespace \
         LEFT JOIN pg_collation o ON o.oid = a.attcollation \
         LEFT JOIN LATERAL (WITH RECURSIVE d(type, modifier, depth) AS ( \
             SELECT t.typbasetype, t.typtypmod, 1 WHERE t.typtype = 'd' UNION ALL \
             SELECT y.typbasetype, y.typtypmod, d.depth + 1 FROM d \
               JOIN pg_type y ON y.oid = d.type AND y.typtype = 'd') \
           SELECT type, modifier FROM d ORDER BY depth DESC LIMIT 1) u ON true \
         LEFT JOIN pg_type ut ON ut.oid = u.type LEFT JOIN pg_namespace un ON un.oid = ut.typnamespace \
         JOIN pg_database d ON d.datname = current_database() \
         ORDER BY w.i, a.attnum"
    )
}

fn indexes_sql(wanted: &str) -> String {
    format!(
        "SELECT w.i, i.indexrelid, i.indisprimary, i.indisreplident, a.attname, \
           i.indoption[(k.p - 1)::int] = 0 AND o.opcdefault \
             AND i.indcollation[(k.p - 1)::int] = a.attcollation \
         FROM (VALUES {wanted}) w(i, s, n) JOIN pg_namespace n ON n.nspname = w.s \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n \
         JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL \
           AND i.indexprs IS NULL \
         JOIN pg_class ic ON ic.oid = i.indexrelid \
         JOIN pg_am am ON am.oid = ic.relam AND am.amname = 'btree' \
         CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, p) \
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum \
         JOIN pg_opclass o ON o.oid = i.indclass[(k.p - 1)::int] \
         WHERE k.p <= i.indnkeyatts ORDER BY w.i, i.indexrelid, k.p"
    )
}

/// What stands outside of every comparison: tables that are not published, and what cannot be.
pub(crate) async fn not_covered(
    source: &Reader,
    publication: &str,
    tables: &[TableName],
) -> Result<Vec<String>, Failure> {
    const NAMED_MAX: usize = 100;
    let published = if tables.is_empty() {
        "SELECT 0, '', '' WHERE false".to_owned()
    } else {
        format!("VALUES {}", values(tables))
    };
    let sql = format!(
        "WITH published AS (SELECT c.oid FROM ({published}) w(i, s, n) \
           JOIN pg_namespace n ON n.nspname = w.s \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n) \
         SELECT CASE WHEN c.relkind = 'm' THEN 'materialized view ' \
             WHEN c.relkind = 'f' THEN 'foreign table ' \
             WHEN c.relpersistence = 'u' THEN 'unlogged table ' ELSE 'table ' END \
           || n.nspname || '.' || c.relname \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'm', 'f') AND c.relpersistence <> 't' \
           AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'trellara') \
           AND c.oid NOT IN (SELECT oid FROM published) \
           AND NOT EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a JOIN published p ON p.oid = a.relid) \
           AND NOT EXISTS (SELECT FROM pg_partition_tree(c.oid) t JOIN published p ON p.oid = t.relid) \
         ORDER BY 1"
    );
    let mut all = unpublished_operations(source, publication).await?;
    let mut objects = source
        .rows("SELECT 1 FROM pg_largeobject_metadata LIMIT 1")
        .await?;
    if objects.pop().is_some() {
        all.push("large objects".to_owned());
    }
    let rows = source.rows(&sql).await?;
    let more = rows.len().saturating_sub(NAMED_MAX);
    all.extend(rows.into_iter().take(NAMED_MAX).flatten().flatten());
    if more > 0 {
        all.push(format!("{more} more tables that are not published"));
    }
    Ok(all)
}

/// What the publication leaves out of every table: rows may differ by it and nothing be broken.
async fn unpublished_operations(
    source: &Reader,
    publication: &str,
) -> Result<Vec<String>, Failure> {
    let sql = format!(
        "SELECT what || ' (the publication leaves them out)' FROM pg_publication p \
         CROSS JOIN LATERAL (VALUES (1, 'inserts', p.pubinsert), (2, 'updates', p.pubupdate), \
           (3, 'deletes', p.pubdelete), (4, 'truncates', p.pubtruncate)) o(i, what, is_published) \
         WHERE p.pubname = {} AND NOT o.is_published ORDER BY o.i",
        quote::literal(publication)
    );
    let rows = source.rows(&sql).await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// Takes a row apart from left to right.
pub(crate) struct Cells(pub(crate) std::vec::IntoIter<Option<String>>);

impl Cells {
    pub(crate) fn optional(&mut self) -> Option<String> {
        self.0.next().flatten()
    }

    pub(crate) fn text(&mut self) -> Result<String, Failure> {
        self.optional().ok_or_else(|| unexpected("no text"))
    }

    pub(crate) fn letter(&mut self) -> Result<char, Failure> {
        let text = self.text()?;
        text.chars().next().ok_or_else(|| unexpected("no letter"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Failure> {
        Ok(self.text()? == "t")
    }

    pub(crate) fn number(&mut self) -> Result<usize, Failure> {
        let text = self.text()?;
        text.parse().map_err(|_| unexpected("no number"))
    }

    pub(crate) fn whole(&mut self) -> Result<i64, Failure> {
        let text = self.text()?;
        text.parse().map_err(|_| unexpected("no whole number"))
    }
}

/// The first cells of the only row.
pub(crate) fn only(rows: Vec<TextRow>) -> Result<Cells, Failure> {
    let row = rows.into_iter().next();
    Ok(Cells(row.ok_or_else(|| unexpected("no row"))?.into_iter()))
}

fn unexpected(what: &str) -> Failure {
    VerifyError::bug(&format!("the catalogues gave {what} where one belongs")).into()
}
