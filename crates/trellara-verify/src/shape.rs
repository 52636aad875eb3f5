//! Whether a table is still what the snapshot shows.
//!
//! A statement in an old snapshot sees old rows but present definitions: behind a rewrite or a
//! TRUNCATE the old rows are simply gone from its view, and behind a rename the same text reads
//! another table. No lock keeps such statements out (a waiting ALTER would block everybody behind
//! it); instead the shape in the snapshot is compared with the present one before the first and
//! after the last read. A file number never comes back, so what is equal after was equal between.

use std::collections::BTreeSet;

use crate::error::{Failure, Side};
use crate::inventory::{FILLED, values};
use crate::reader::Reader;
use crate::report::TableName;

/// A table's identity, columns, the labels they print, partitions and files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    root: Option<String>,
    /// Each column, and again where it holds no NULL: ranges of a key pass NULLs over.
    columns: BTreeSet<String>,
    /// Of the columns' enum types, also those inside of other types.
    labels: BTreeSet<String>,
    /// Of the columns' composite types, also those inside of other types.
    attributes: BTreeSet<String>,
    /// Oid and file of the table and of each partition.
    files: BTreeSet<(String, String)>,
}

impl Shape {
    /// As the reader sees it: in its snapshot, or now.
    pub(crate) async fn read(reader: &Reader, table: &TableName) -> Result<Self, Failure> {
        let sql = format!(
            "WITH RECURSIVE root AS (SELECT c.oid, c.relfilenode \
               FROM (VALUES {}) w(i, s, n) JOIN pg_namespace n ON n.nspname = w.s \
               JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.n), \
             tree(oid, relfilenode, relkind) AS (SELECT r.oid, r.relfilenode, c.relkind FROM root r \
               JOIN pg_class c USING (oid) UNION ALL \
               SELECT c.oid, c.relfilenode, c.relkind FROM tree t JOIN pg_inherits h \
               ON h.inhparent = t.oid AND t.relkind = 'p' JOIN pg_class c ON c.oid = h.inhrelid), \
             types(oid) AS (SELECT a.atttypid FROM root r JOIN pg_attribute a ON a.attrelid = r.oid \
               WHERE a.attnum > 0 AND NOT a.attisdropped UNION \
               SELECT x.oid FROM types t JOIN pg_type y ON y.oid = t.oid CROSS JOIN LATERAL ( \
                 SELECT y.typelem UNION ALL SELECT y.typbasetype \
                 UNION ALL SELECT g.rngsubtype FROM pg_range g \
                   WHERE y.oid IN (g.rngtypid, g.rngmultitypid) \
                 UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = y.typrelid \
                   AND y.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped) x(oid) \
               WHERE x.oid <> 0) \
             SELECT 'root', oid::text, '' FROM root \
             UNION ALL SELECT 'file', oid::text, relfilenode::text FROM tree \
             UNION ALL SELECT 'column', concat_ws(' ', a.attnum, a.atttypid, a.atttypmod, a.attname), '' \
               FROM root r JOIN pg_attribute a ON a.attrelid = r.oid \
               WHERE a.attnum > 0 AND NOT a.attisdropped \
             UNION ALL SELECT 'column', concat_ws(' ', a.attnum, 'filled'), '' \
               FROM root r JOIN pg_attribute a ON a.attrelid = r.oid \
               WHERE a.attnum > 0 AND NOT a.attisdropped AND {FILLED} \
             UNION ALL SELECT 'label', concat_ws(' ', e.oid, e.xmin, e.enumlabel), '' \
               FROM pg_enum e JOIN types t ON t.oid = e.enumtypid \
             UNION ALL SELECT 'attribute', concat_ws(' ', a.attrelid, a.attnum, a.atttypid, a.atttypmod), '' \
               FROM types t JOIN pg_type y ON y.oid = t.oid AND y.typrelid <> 0 \
               JOIN pg_attribute a ON a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped",
            values(std::slice::from_ref(table))
        );
        let mut shape = Shape::default();
        for row in reader.rows(&sql).await? {
            let mut cells = row.into_iter().map(Option::unwrap_or_default);
            let mut next = || cells.next().unwrap_or_default();
            match (next().as_str(), next(), next()) {
                ("root", oid, _) => shape.root = Some(oid),
                ("file", oid, file) => _ = shape.files.insert((oid, file)),
                ("label", label, _) => _ = shape.labels.insert(label),
                ("attribute", attribute, _) => _ = shape.attributes.insert(attribute),
                (_, column, _) => _ = shape.columns.insert(column),
            }
        }
        Ok(shape)
    }

    /// All that makes rows mean what they mean; not the files, which change with the rows.
    pub(crate) fn definition(&self) -> String {
        let (columns, labels) = (&self.columns, &self.labels);
        format!("{:?}", (&self.root, columns, labels, &self.attributes))
    }

    /// In what way `now` has another definition: whatever its files are, the same statements mean
    /// something else. New columns and a new NOT NULL are no change.
    pub(crate) fn redefined(&self, now: &Shape) -> Option<&'static str> {
        if self.root != now.root {
            return Some("renamed, dropped or replaced");
        }
        if !self.columns.is_subset(&now.columns) {
            return Some("altered");
        }
        if !self.labels.is_subset(&now.labels) {
            return Some("given other labels of an enum");
        }
        // Unlike a column, a new one is printed for old values too.
        if self.attributes != now.attributes {
            return Some("given other attributes of a composite type");
        }
        None
    }

    /// The same where there is no snapshot that sees nothing of a new column.
    pub(crate) fn redefined_at_all(&self, now: &Shape) -> Option<&'static str> {
        let altered = (self.columns != now.columns).then_some("altered");
        self.redefined(now).or(altered)
    }

    /// Refuses when `now` is not what this (the snapshot's) is. New columns and new partitions are
    /// no change: the snapshot sees nothing of them.
    pub(crate) async fn check(
        &self,
        now: &Shape,
        frozen: &Reader,
        side: Side,
    ) -> Result<(), Failure> {
        let changed = |what: &str| {
            Err(Failure::NotComparable {
                reason: format!("the {side}'s table was {what} behind the position compared"),
                hint: "run it again".into(),
            })
        };
        if let Some(what) = self.redefined(now) {
            return changed(what);
        }
        if !self.files.is_subset(&now.files) {
            return changed("truncated or rewritten, or lost a partition,");
        }
        // A partition that is younger than the snapshot holds nothing it could see; an older table
        // that was attached does.
        let added: Vec<&str> = now
            .files
            .difference(&self.files)
            .map(|(oid, _)| oid.as_str())
            .collect();
        if added.is_empty() {
            return Ok(());
        }
        let older = format!(
            "SELECT 1 FROM pg_class WHERE oid IN ({}) LIMIT 1",
            added.join(",")
        );
        if frozen.rows(&older).await?.is_empty() {
            return Ok(());
        }
        changed("given another partition")
    }
}
