//! One piece of a table, read under the shared snapshot.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_postgres::{CopyOutStream, SimpleQueryMessage};
use trellara_postgres::{ConnectError, Fault, Session, fault, quote};

use super::tables::trees;
use super::{Item, Leaf, TableFacts};
use crate::SourceOptions;

/// What a session that reads pieces needs. The same rows must come in the same order when a piece
/// is read again, so the table is read from its first block to its last and in no other way.
const SETTINGS: &str = "\
SET row_security = off; SET synchronize_seqscans = off; SET max_parallel_workers_per_gather = 0; \
SET jit = off; SET enable_seqscan = off; SET enable_tidscan = on; SET enable_indexscan = off; \
SET enable_indexonlyscan = off; SET enable_bitmapscan = off";

/// A lock that is not had within this time is asked for again, and the wait gets a name.
const LOCK_TIMEOUT: &str = "3s";

/// A session that reads pieces, one after another.
#[derive(Debug)]
pub struct ItemReader {
    session: Session,
    /// A piece was begun and not ended.
    is_reading: AtomicBool,
}

/// Why a piece was not read.
#[derive(Debug)]
pub enum ItemError {
    /// The relation has another file than the snapshot knows, another name, or is gone: it was
    /// rewritten, emptied or replaced since, and what was read of the table so far is void (C49).
    Rewritten,
    /// The snapshot can no longer be had.
    SnapshotGone(Fault),
    /// The server refused, or was lost.
    Server(Fault),
}

impl From<tokio_postgres::Error> for ItemError {
    fn from(error: tokio_postgres::Error) -> Self {
        ItemError::Server(fault(&error))
    }
}

impl ItemReader {
    /// A session of its own.
    ///
    /// # Errors
    /// No session could be had.
    pub async fn connect(source: &SourceOptions) -> Result<Self, ConnectError> {
        let session = source.session().await?;
        Ok(Self {
            session,
            is_reading: AtomicBool::new(false),
        })
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Makes the session fit; to be called once, before the first piece.
    ///
    /// # Errors
    /// The server's.
    pub async fn prepare(&self) -> Result<(), ItemError> {
        let client = &self.session.client;
        client.batch_execute(SETTINGS).await?;
        if self.session.server_version().major() >= 17 {
            client.batch_execute("SET transaction_timeout = 0").await?;
        }
        Ok(())
    }

    /// Begins to read a piece: the rows come one by one, each with its line end. The table is
    /// locked (ACCESS SHARE) from here to [`ItemReader::finish`].
    ///
    /// # Errors
    /// See [`ItemError`]; the session is not fit for another piece.
    pub async fn open(
        &self,
        snapshot: &str,
        table: &TableFacts,
        item: Item,
    ) -> Result<CopyOutStream, ItemError> {
        let leaf = &table.leaves[item.leaf];
        self.is_reading.store(true, Ordering::Relaxed);
        self.import(snapshot).await?;
        self.lock(leaf).await?;
        let sql = copy_sql(table, leaf, item);
        Ok(self.session.client.copy_out(&sql).await?)
    }

    async fn import(&self, snapshot: &str) -> Result<(), ItemError> {
        let sql = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
            quote::literal(snapshot)
        );
        let begun = self.session.client.batch_execute(&sql).await;
        begun.map_err(|error| {
            let fault = fault(&error);
            match fault.sqlstate.as_str() {
                INVALID_PARAMETER | UNDEFINED_OBJECT => ItemError::SnapshotGone(fault),
                _ => ItemError::Server(fault),
            }
        })
    }

    /// A query that returns nothing takes the lock with no more rights than reading needs. Only
    /// then is it asked what is there: a name may have been given to another table.
    async fn lock(&self, leaf: &Leaf) -> Result<(), ItemError> {
        let name = quote::qualified(&leaf.schema, &leaf.name);
        let oid = leaf.relation.0;
        let sql = format!(
            "SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'; SELECT FROM ONLY {name} LIMIT 0; \
             SELECT pg_catalog.pg_relation_filenode({oid}), pg_catalog.to_regclass({})::oid",
            quote::literal(&name)
        );
        let messages = self.session.client.simple_query(&sql).await;
        let messages = messages.map_err(|error| {
            let fault = fault(&error);
            match fault.sqlstate.as_str() {
                UNDEFINED_TABLE | UNDEFINED_SCHEMA => ItemError::Rewritten,
                _ => ItemError::Server(fault),
            }
        })?;
        let found = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((row.get(0), row.get(1))),
            _ => None,
        });
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
        match found {
            Some((file, at)) if (number(file), number(at)) == (Some(leaf.filenode), Some(oid)) => {
                Ok(())
            }
            _ => Err(ItemError::Rewritten),
        }
    }

    /// Ends a piece that was read to its end.
    ///
    /// # Errors
    /// The server's; the rows were whole all the same.
    pub async fn finish(&self) -> Result<(), ItemError> {
        self.session.client.batch_execute("COMMIT").await?;
        self.is_reading.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether other partitions hold the table's rows now than the snapshot knows, or in other files.
    /// To be asked when nothing is being read.
    ///
    /// Nothing of that comes through the transaction stream where partitions are published under
    /// their root: the rows of one that is attached would be missing for good, and those of one that
    /// is detached or emptied would stay. (A TRUNCATE of the table itself does come, and a table
    /// without partitions that is emptied behind its last piece is emptied in the target as well.)
    ///
    /// # Errors
    /// The server's.
    pub async fn has_other_partitions(&self, table: &TableFacts) -> Result<bool, ItemError> {
        let root = table.relation.0;
        let trees = trees(&self.session.client, &[root]).await?;
        Ok(trees.get(&root).map_or("", String::as_str) != table.tree)
    }
}

impl Drop for ItemReader {
    fn drop(&mut self) {
        // Otherwise the connection would live until the last row of the piece was received.
        if self.is_reading.load(Ordering::Relaxed) {
            self.session.abandon();
        }
    }
}

const INVALID_PARAMETER: &str = "22023";
const UNDEFINED_OBJECT: &str = "42704";
const UNDEFINED_TABLE: &str = "42P01";
const UNDEFINED_SCHEMA: &str = "3F000";

/// The plain form is quicker, and cannot say which rows or compute columns. Neither reads what
/// inherits from the table: that has a place of its own in the publication, or none.
fn copy_sql(table: &TableFacts, leaf: &Leaf, item: Item) -> String {
    let name = quote::qualified(&leaf.schema, &leaf.name);
    let columns = quote::identifier_list(&table.columns);
    let filter = table.filter.as_ref().map(|filter| format!("({filter})"));
    let conditions: Vec<String> = item.range.condition().into_iter().chain(filter).collect();
    match conditions.is_empty() {
        true if !table.has_generated && !table.columns.is_empty() => {
            format!("COPY {name} ({columns}) TO STDOUT")
        }
        true => format!("COPY (SELECT {columns} FROM ONLY {name}) TO STDOUT"),
        false => format!(
            "COPY (SELECT {columns} FROM ONLY {name} WHERE {}) TO STDOUT",
            conditions.join(" AND ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use trellara_envelope::{CopyTable, Oid};

    use super::super::{BlockRange, ranges};
    use super::*;

    fn facts() -> TableFacts {
        let leaf = Leaf {
            relation: Oid(7),
            schema: "public".to_owned(),
            name: "T".to_owned(),
            filenode: 7,
            blocks: 20,
            block_bytes: 8192,
            has_ranges: true,
        };
        TableFacts {
            table: CopyTable {
                schema: "public".to_owned(),
                name: "root".to_owned(),
            },
            relation: Oid(5),
            columns: vec!["id".to_owned(), "a b".to_owned()],
            has_generated: false,
            filter: None,
            leaves: vec![leaf],
            tree: String::new(),
            estimated_rows: 0,
            estimated_bytes: 0,
        }
    }

    fn sql(table: &TableFacts, range: BlockRange) -> String {
        copy_sql(table, &table.leaves[0], Item { leaf: 0, range })
    }

    #[test]
    fn a_whole_table_is_read_the_quick_way_where_it_can() {
        let plain = facts();
        assert_eq!(
            sql(&plain, BlockRange::WHOLE),
            "COPY \"public\".\"T\" (\"id\",\"a b\") TO STDOUT"
        );
        let computed = TableFacts {
            has_generated: true,
            ..facts()
        };
        assert_eq!(
            sql(&computed, BlockRange::WHOLE),
            "COPY (SELECT \"id\",\"a b\" FROM ONLY \"public\".\"T\") TO STDOUT"
        );
        let without_columns = TableFacts {
            columns: vec![],
            ..facts()
        };
        assert_eq!(
            sql(&without_columns, BlockRange::WHOLE),
            "COPY (SELECT  FROM ONLY \"public\".\"T\") TO STDOUT"
        );
    }

    #[test]
    fn ranges_and_filters_hold_both() {
        let filtered = TableFacts {
            filter: Some("a OR b".to_owned()),
            ..facts()
        };
        assert_eq!(
            sql(&filtered, ranges(20, 10)[1]),
            "COPY (SELECT \"id\",\"a b\" FROM ONLY \"public\".\"T\" WHERE \
             ctid >= '(10,0)'::pg_catalog.tid AND (a OR b)) TO STDOUT"
        );
    }
}
