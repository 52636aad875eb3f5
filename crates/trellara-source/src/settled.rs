//! What is to be known before a flow's first row is read: that nobody is left who committed in front
//! of the slot, and which tables hold nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use trellara_envelope::{Lsn, SourceId};
use trellara_postgres::settle::{self, SettleError, Snapshot};
use trellara_postgres::{Session, insert_position, quote};

use crate::durable::{identity, until_flushed};
use crate::publication::TableName;

/// What an ordinary snapshot of the source says of tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sight {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Whatever it sees committed before this position.
    pub converges_at: Lsn,
    /// The cluster and timeline that the position is one of.
    pub source: SourceId,
    /// Those that hold no row in it.
    pub empty: BTreeSet<TableName>,
}

/// Waits until every transaction that a slot's exported snapshot calls finished has left the list of
/// running ones: from then on every ordinary snapshot sees whatever committed in front of the slot.
/// The snapshot is imported for what it says alone; no table is read under it, ever.
///
/// # Errors
/// As [`settle::settle`], which names whom it waited for; the exporter must be there still.
pub async fn settle_behind(
    session: &Session,
    exported: &str,
    limit: Duration,
) -> Result<(), SettleError> {
    let begin = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
        quote::literal(exported)
    );
    let client = &session.client;
    client.batch_execute(&begin).await?;
    let row = client
        .query_one("SELECT pg_catalog.pg_current_snapshot()::text", &[])
        .await;
    client.batch_execute("ROLLBACK").await?;
    let finished: Snapshot = row?.try_get::<_, &str>(0)?.parse()?;
    settle::settle(session, &finished, limit).await
}

/// Looks which tables are empty, all under one snapshot, and waits until no crash of the source can
/// take back what it sees.
///
/// # Errors
/// The server's: a right is missing, row-level security would hide rows, a table is gone; or its log
/// does not get to its disk.
pub async fn sight(session: &Session, tables: &[TableName]) -> Result<Sight, SettleError> {
    let client = &session.client;
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL row_security = off",
        )
        .await?;
    let seen = look(session, tables).await;
    client.batch_execute("ROLLBACK").await?;
    let (snapshot, empty) = seen?;
    // Asked when the snapshot is there: whatever it sees wrote its commit record before it left the
    // list of running transactions.
    let converges_at = insert_position(session).await?;
    let source = identity(session).await?;
    until_flushed(session, converges_at).await?;
    Ok(Sight {
        snapshot,
        converges_at,
        source,
        empty,
    })
}

async fn look(
    session: &Session,
    tables: &[TableName],
) -> Result<(Snapshot, BTreeSet<TableName>), SettleError> {
    let client = &session.client;
    let row = client
        .query_one("SELECT pg_catalog.pg_current_snapshot()::text", &[])
        .await?;
    let snapshot: Snapshot = row.try_get::<_, &str>(0)?.parse()?;
    let mut empty = BTreeSet::new();
    for table in tables {
        if !has_rows(session, table).await? && is_what_it_was(session, table).await? {
            empty.insert(table.clone());
        }
    }
    Ok((snapshot, empty))
}

/// Whether the files that hold a table's rows are those that the snapshot knows. Of a table that was
/// rewritten or emptied since, an older snapshot sees no row at all (C49). Asked behind the look at
/// the table, whose lock keeps it as it is until the end of the transaction.
async fn is_what_it_was(
    session: &Session,
    table: &TableName,
) -> Result<bool, tokio_postgres::Error> {
    const SAME: &str = "\
        WITH RECURSIVE tree (oid) AS ( \
          SELECT $1::text::regclass::oid \
          UNION ALL \
          SELECT i.inhrelid FROM tree \
            JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind = 'p' \
            JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid) \
        SELECT coalesce(bool_and(c.relfilenode = coalesce(pg_catalog.pg_relation_filenode(c.oid), 0)), true) \
          FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind <> 'p'";
    let name = table.to_string();
    Ok(session.client.query_one(SAME, &[&name]).await?.get(0))
}

/// Whether a table holds a row of its own, or one of its partitions does.
///
/// # Errors
/// The server's.
pub async fn has_rows(session: &Session, table: &TableName) -> Result<bool, tokio_postgres::Error> {
    let kind = "SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = $1::text::regclass";
    let name = table.to_string();
    let partitioned: bool = session.client.query_one(kind, &[&name]).await?.get(0);
    let only = if partitioned { "" } else { "ONLY " };
    let any = format!("SELECT EXISTS (SELECT FROM {only}{table})");
    Ok(session.client.query_one(&any, &[]).await?.get(0))
}
