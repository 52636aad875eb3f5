//! In what the definitions of published tables differ: a list for a human, beside the rows' verdict.
//!
//! Much of it is meant to differ (a target often has no foreign keys and other indexes), so nothing
//! here is right or wrong. Both sides are read as they are now: the functions that print
//! definitions look at the present, whatever snapshot they are called in.

use std::collections::BTreeMap;

use futures_util::try_join;

use crate::error::{Failure, VerifyError};
use crate::inventory::{Cells, values};
use crate::reader::Reader;
use crate::report::TableName;

/// What part of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A column: type, collation, NOT NULL, default, generated, identity.
    Column,
    /// A primary key, unique, check, foreign-key or exclusion constraint.
    Constraint,
    /// An index that no constraint stands for.
    Index,
    /// The replica identity.
    ReplicaIdentity,
    /// What the table is partitioned by.
    PartitionKey,
}

/// One part that differs. Constraints and indexes are the same when they are defined the same,
/// whatever they are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionDifference {
    /// The table, as the source calls it.
    pub table: TableName,
    /// What of it.
    pub part: Part,
    /// The part's own name; empty for what a table has one of.
    pub name: String,
    /// How the source defines it; `None` when only the target has it.
    pub source: Option<String>,
    /// How the target defines it; `None` when only the source has it.
    pub target: Option<String>,
}

/// Name and definition of each part of the same sort.
type Parts = Vec<(String, String)>;
/// By the table's place in the list.
type Definitions = BTreeMap<(usize, Part), Parts>;

/// Looks at the tables that both sides have.
pub(crate) async fn look(
    source: &Reader,
    target: &Reader,
    tables: &[TableName],
) -> Result<Vec<DefinitionDifference>, Failure> {
    if tables.is_empty() {
        return Ok(Vec::new());
    }
    let sql = definitions_sql(&values(tables));
    let (here, there) = try_join!(read(source, &sql), read(target, &sql))?;
    Ok(differences(tables, here, there))
}

async fn read(reader: &Reader, sql: &str) -> Result<Definitions, Failure> {
    let mut all = Definitions::new();
    for row in reader.rows(sql).await? {
        let mut row = Cells(row.into_iter());
        let (table, part, name) = (row.number()?, part(row.letter()?)?, row.text()?);
        // What was dropped while the catalogues were read has no definition any more.
        if let Some(definition) = row.optional() {
            all.entry((table, part))
                .or_default()
                .push((name, definition));
        }
    }
    Ok(all)
}

fn part(letter: char) -> Result<Part, Failure> {
    Ok(match letter {
        'a' => Part::Column,
        'c' => Part::Constraint,
        'i' => Part::Index,
        'r' => Part::ReplicaIdentity,
        'p' => Part::PartitionKey,
        _ => return Err(VerifyError::bug("no such part of a table").into()),
    })
}

fn differences(
    tables: &[TableName],
    mut here: Definitions,
    mut there: Definitions,
) -> Vec<DefinitionDifference> {
    const PARTS: [Part; 5] = [
        Part::Column,
        Part::Constraint,
        Part::Index,
        Part::ReplicaIdentity,
        Part::PartitionKey,
    ];
    let mut all = Vec::new();
    for (i, table) in tables.iter().enumerate() {
        // Every table has a replica identity: without one the side has no such table.
        let identity = (i, Part::ReplicaIdentity);
        if !here.contains_key(&identity) || !there.contains_key(&identity) {
            continue;
        }
        for part in PARTS {
            let source = here.remove(&(i, part)).unwrap_or_default();
            let target = there.remove(&(i, part)).unwrap_or_default();
            let differing = match part {
                Part::Constraint | Part::Index => unmatched(source, target),
                Part::Column | Part::ReplicaIdentity | Part::PartitionKey => (source, target),
            };
            all.extend(by_name(table, part, differing));
        }
    }
    all
}

/// What is left when equal definitions are taken away in pairs, those of equal names first.
fn unmatched(source: Parts, mut target: Parts) -> (Parts, Parts) {
    let mut left = Parts::new();
    for one in source {
        match target.iter().position(|other| *other == one) {
            Some(at) => _ = target.remove(at),
            None => left.push(one),
        }
    }
    left.retain(|(_, definition)| {
        let same = target.iter().position(|(_, other)| other == definition);
        same.map(|at| target.remove(at)).is_none()
    });
    (left, target)
}

/// Pairs by name, in order of the names.
fn by_name(
    table: &TableName,
    part: Part,
    (source, target): (Parts, Parts),
) -> Vec<DefinitionDifference> {
    let mut names: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    for (name, definition) in source {
        names.entry(name).or_default().0 = Some(definition);
    }
    for (name, definition) in target {
        names.entry(name).or_default().1 = Some(definition);
    }
    let differing = names.into_iter().filter(|(_, (s, t))| s != t);
    differing
        .map(|(name, (source, target))| DefinitionDifference {
            table: table.clone(),
            part,
            name,
            source,
            target,
        })
        .collect()
}

/// Rows of (table's place, part, name, definition).
fn definitions_sql(wanted: &str) -> String {
    // NOT NULL is told with its column: only from 18 on is it a constraint in the catalogue too.
    format!(
        "WITH root AS (SELECT w.i, c.oid, c.relkind, c.relreplident \
           FROM (VALUES {wanted}) w(i, s, n) JOIN pg_namespace n ON n.nspname = w.s \
           JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n \
           WHERE c.relkind IN ('r', 'p')) \
         SELECT r.i, 'a', a.attname, format_type(a.atttypid, a.atttypmod) \
           || CASE WHEN a.attcollation <> t.typcollation \
                THEN ' COLLATE ' || a.attcollation::regcollation::text ELSE '' END \
           || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END \
           || CASE a.attidentity WHEN 'a' THEN ' GENERATED ALWAYS AS IDENTITY' \
                WHEN 'd' THEN ' GENERATED BY DEFAULT AS IDENTITY' ELSE '' END \
           || CASE WHEN d.oid IS NULL THEN '' ELSE CASE a.attgenerated \
                WHEN '' THEN format(' DEFAULT %s', pg_get_expr(d.adbin, d.adrelid)) \
                ELSE format(' GENERATED ALWAYS AS (%s) %s', pg_get_expr(d.adbin, d.adrelid), \
                  CASE a.attgenerated WHEN 's' THEN 'STORED' ELSE 'VIRTUAL' END) END END \
         FROM root r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 \
           AND NOT a.attisdropped JOIN pg_type t ON t.oid = a.atttypid \
         LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         UNION ALL SELECT r.i, 'c', c.conname, pg_get_constraintdef(c.oid) \
         FROM root r JOIN pg_constraint c ON c.conrelid = r.oid \
           AND c.contype IN ('p', 'u', 'c', 'f', 'x') \
         UNION ALL SELECT r.i, 'i', ic.relname, \
           CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END \
           || substr(pg_get_indexdef(i.indexrelid), 1 + length(format('CREATE %sINDEX %I ON %s%s ', \
                CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END, ic.relname, \
                CASE WHEN ic.relkind = 'I' THEN 'ONLY ' ELSE '' END, r.oid::regclass))) \
           || CASE WHEN i.indisvalid THEN '' ELSE ' (invalid)' END \
         FROM root r JOIN pg_index i ON i.indrelid = r.oid JOIN pg_class ic ON ic.oid = i.indexrelid \
         WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid \
           AND c.contype IN ('p', 'u', 'x')) \
         UNION ALL SELECT r.i, 'r', '', CASE r.relreplident WHEN 'd' THEN 'DEFAULT' \
           WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING' ELSE (SELECT format('INDEX (%s)', \
             string_agg(quote_ident(a.attname), ', ' ORDER BY k.p)) FROM pg_index i \
             CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(attnum, p) \
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum \
             WHERE i.indrelid = r.oid AND i.indisreplident) END FROM root r \
         UNION ALL SELECT r.i, 'p', '', pg_get_partkeydef(r.oid) FROM root r WHERE r.relkind = 'p'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(list: &[(&str, &str)]) -> Parts {
        let owned = |(name, definition): &(&str, &str)| ((*name).into(), (*definition).into());
        list.iter().map(owned).collect()
    }

    #[test]
    fn what_is_defined_the_same_is_the_same_under_any_name() {
        let source = parts(&[("a", "x"), ("b", "y"), ("c", "y"), ("d", "z")]);
        let target = parts(&[("c", "y"), ("e", "x"), ("d", "zz"), ("f", "y"), ("g", "y")]);
        let (left, more) = unmatched(source, target);
        assert_eq!(left, parts(&[("d", "z")]));
        assert_eq!(more, parts(&[("d", "zz"), ("g", "y")]));
    }

    #[test]
    fn a_table_that_one_side_lacks_is_told_elsewhere() {
        let table = TableName {
            schema: "s".into(),
            name: "t".into(),
        };
        let column = ((0, Part::Column), parts(&[("k", "integer")]));
        let identity = ((0, Part::ReplicaIdentity), parts(&[("", "DEFAULT")]));
        let whole = Definitions::from([column, identity.clone()]);
        let tables = [table];
        assert!(differences(&tables, whole.clone(), Definitions::new()).is_empty());
        let bare = Definitions::from([identity]);
        let got = differences(&tables, whole, bare);
        let [one] = got.as_slice() else {
            panic!("{got:?}")
        };
        assert_eq!((one.name.as_str(), one.target.is_none()), ("k", true));
    }
}
