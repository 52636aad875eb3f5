//! What the loader writes down in the target. Every statement holds only while the lane has our
//! epoch and the copy is still the one that is wanted; each says whether it did.

use std::collections::{HashMap, HashSet};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};
use trellara_envelope::{
    CopyBegin, CopyTable, FlowName, FrameDigest, Incarnation, Lane, LaneEpoch, SourceId,
};
use trellara_postgres::quote;

use super::store::{self, CopyState, TableCopy};
use crate::ledger::{lane as lane_number, pg, system, timeline};
use crate::trouble::Trouble;

/// Whose books they are.
#[derive(Debug, Clone)]
pub(super) struct Books {
    pub(super) flow: FlowName,
    pub(super) lane: Lane,
    pub(super) epoch: LaneEpoch,
}

/// A copy of a table: which, by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyKey {
    pub(super) table: CopyTable,
    pub(super) generation: u32,
    pub(super) writer: Incarnation,
}

/// A part that was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) part: u32,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) digest: FrameDigest,
}

/// The parts of a table that are in, and what they come to.
#[derive(Default)]
struct InParts {
    numbers: HashSet<u32>,
    rows: u64,
    bytes: u64,
}

const OURS: &str = "SELECT FROM trellara.lane WHERE flow = $1 AND lane = $2 AND epoch = $3";

const PARTS: &str = "\
SELECT p.schema_name, p.table_name, p.part, p.rows, p.bytes \
  FROM trellara.backfill_part AS p JOIN trellara.backfill AS b \
 USING (flow, schema_name, table_name, generation, writer) \
 WHERE p.flow = $1 AND b.state = 'copying'";

impl Books {
    /// All copies of the flow, with the parts that are in of those that are under way; only while
    /// the lane has our epoch.
    pub(super) async fn read(
        &self,
        client: &Client,
    ) -> Result<Vec<(TableCopy, HashSet<u32>)>, Trouble> {
        let key: [&(dyn ToSql + Sync); 3] =
            [&self.flow.as_str(), &lane_number(self.lane), &self.epoch.0];
        if client.query_opt(OURS, &key).await?.is_none() {
            return Err(Trouble::passing("another applier took the lane"));
        }
        let copies = store::read(client, &self.flow).await?;
        let mut parts: HashMap<CopyTable, InParts> = HashMap::new();
        if copies.iter().any(|copy| copy.state == CopyState::Copying) {
            for row in client.query(PARTS, &[&self.flow.as_str()]).await? {
                let table = CopyTable {
                    schema: row.try_get(0)?,
                    name: row.try_get(1)?,
                };
                let known = parts.entry(table).or_default();
                known
                    .numbers
                    .insert(row.try_get::<_, i32>(2)?.cast_unsigned());
                known.rows += row.try_get::<_, i64>(3)?.cast_unsigned();
                known.bytes += row.try_get::<_, i64>(4)?.cast_unsigned();
            }
        }
        let with_parts = |mut copy: TableCopy| {
            let parts = parts.remove(&copy.table).unwrap_or_default();
            if copy.state == CopyState::Copying {
                // The sums of just these parts: one more may have come in between the two looks,
                // and would be counted twice or never.
                copy.loaded = (parts.rows, parts.bytes);
            }
            (copy, parts.numbers)
        };
        Ok(copies.into_iter().map(with_parts).collect())
    }

    /// In the open transaction: whether the copy may begin, which it may until the transaction is
    /// over.
    pub(super) async fn may_begin(&self, client: &Client, copy: &CopyKey) -> Result<bool, Error> {
        let (lane, generation) = (lane_number(self.lane), copy.generation.cast_signed());
        let which: [&(dyn ToSql + Sync); 7] = [
            &self.flow.as_str(),
            &lane,
            &self.epoch.0,
            &copy.table.schema,
            &copy.table.name,
            &generation,
            &copy.writer.0.cast_signed(),
        ];
        let sql = include_str!("../sql/backfill_may_begin.sql");
        Ok(client.query_opt(sql, &which).await?.is_some())
    }

    /// In the open transaction: other rows come, so what those before them contradicted is tried
    /// again.
    pub(super) async fn forgive(&self, client: &Client, table: &CopyTable) -> Result<(), Error> {
        let sql = "UPDATE trellara.backfill_definition SET reason = NULL, hint = NULL \
                    WHERE flow = $1 AND restored_at IS NULL AND reason IS NOT NULL \
                      AND ($2, $3) IN ((schema_name, table_name), (refers_schema, refers_name))";
        let key: [&(dyn ToSql + Sync); 3] = [&self.flow.as_str(), &table.schema, &table.name];
        client.execute(sql, &key).await.map(drop)
    }

    /// In the open transaction: the copy begins.
    pub(super) async fn begin(
        &self,
        client: &Client,
        copy: &CopyKey,
        (source, begin): (SourceId, &CopyBegin),
    ) -> Result<bool, Error> {
        let relation = i64::from(begin.relation.0);
        let at = pg(begin.converges_at);
        let (rows, bytes) = (begin.estimated_rows, begin.estimated_bytes);
        let (rows, bytes) = (rows.cast_signed(), bytes.cast_signed());
        let facts: [&(dyn ToSql + Sync); 9] = [
            &copy.writer.0.cast_signed(),
            &relation,
            &begin.columns,
            &begin.snapshot,
            &at,
            &rows,
            &bytes,
            &system(source),
            &timeline(source),
        ];
        let sql = include_str!("../sql/backfill_begin.sql");
        self.update(client, sql, (&copy.table, copy.generation), &facts)
            .await
    }

    /// In the open transaction: empties the table and the ledger of its parts.
    ///
    /// TRUNCATE gives the room back at once, but is refused where foreign keys point at the table
    /// or the role may not, and waits for whoever reads it: then the rows are deleted.
    pub(super) async fn empty(&self, client: &Client, table: &CopyTable) -> Result<(), Error> {
        let name = quote::qualified(&table.schema, &table.name);
        let only = if self.is_partitioned(client, table).await? {
            ""
        } else {
            "ONLY "
        };
        let sql = format!("SELECT EXISTS (SELECT FROM {only}{name})");
        let has_rows: bool = client.query_one(&sql, &[]).await?.try_get(0)?;
        if has_rows {
            client
                .batch_execute("SAVEPOINT emptied; SET LOCAL lock_timeout = '2s'")
                .await?;
            let truncated = client
                .batch_execute(&format!("TRUNCATE {only}{name}"))
                .await;
            match truncated {
                Ok(()) => {
                    client
                        .batch_execute("RELEASE emptied; SET LOCAL lock_timeout = 0")
                        .await?
                }
                Err(error) if error.as_db_error().is_none() => return Err(error),
                Err(_) => {
                    client.batch_execute("ROLLBACK TO emptied").await?;
                    client
                        .batch_execute(&format!("DELETE FROM {only}{name}"))
                        .await?;
                }
            }
        }
        let sql = "DELETE FROM trellara.backfill_part \
                    WHERE flow = $1 AND schema_name = $2 AND table_name = $3";
        client
            .execute(sql, &[&self.flow.as_str(), &table.schema, &table.name])
            .await?;
        Ok(())
    }

    async fn is_partitioned(&self, client: &Client, table: &CopyTable) -> Result<bool, Error> {
        let sql = "SELECT c.relkind = 'p' FROM pg_catalog.pg_class AS c \
                     JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
                    WHERE n.nspname = $1 AND c.relname = $2";
        let row = client.query_opt(sql, &[&table.schema, &table.name]).await?;
        row.map_or(Ok(false), |row| row.try_get(0))
    }

    /// In the open transaction: a part is in. Fails with 23502 when the copy is not ours any more.
    pub(super) async fn part(
        &self,
        client: &Client,
        copy: &CopyKey,
        taken: &Taken,
    ) -> Result<(), Error> {
        let part = taken.part.cast_signed();
        let (rows, bytes) = (taken.rows.cast_signed(), taken.bytes.cast_signed());
        let facts: [&(dyn ToSql + Sync); 5] = [
            &copy.writer.0.cast_signed(),
            &part,
            &rows,
            &bytes,
            &taken.digest.0.as_slice(),
        ];
        let sql = include_str!("../sql/backfill_part.sql");
        self.update(client, sql, (&copy.table, copy.generation), &facts)
            .await
            .map(drop)
    }

    /// All parts are in, and something that was put off has to be made before the table is.
    pub(super) async fn whole(
        &self,
        client: &Client,
        copy: &CopyKey,
        parts: u32,
    ) -> Result<bool, Error> {
        let sql = include_str!("../sql/backfill_whole.sql");
        self.all_in(client, sql, (copy, parts)).await
    }

    /// All parts are in.
    pub(super) async fn loaded(
        &self,
        client: &Client,
        copy: &CopyKey,
        parts: u32,
    ) -> Result<bool, Error> {
        let sql = include_str!("../sql/backfill_loaded.sql");
        self.all_in(client, sql, (copy, parts)).await
    }

    async fn all_in(
        &self,
        client: &Client,
        sql: &str,
        (copy, parts): (&CopyKey, u32),
    ) -> Result<bool, Error> {
        let parts = parts.cast_signed();
        let facts: [&(dyn ToSql + Sync); 2] = [&copy.writer.0.cast_signed(), &parts];
        self.update(client, sql, (&copy.table, copy.generation), &facts)
            .await
    }

    /// An operator is needed.
    pub(super) async fn failed(
        &self,
        client: &Client,
        (table, generation): (&CopyTable, u32),
        (reason, hint): (&str, &str),
    ) -> Result<bool, Error> {
        let sql = include_str!("../sql/backfill_failed.sql");
        self.update(client, sql, (table, generation), &[&reason, &hint])
            .await
    }

    /// Another copy is wanted.
    pub(super) async fn again(
        &self,
        client: &Client,
        (table, generation): (&CopyTable, u32),
        reason: &str,
    ) -> Result<bool, Error> {
        let sql = include_str!("../sql/backfill_again.sql");
        self.update(client, sql, (table, generation), &[&reason])
            .await
    }

    async fn update(
        &self,
        client: &Client,
        sql: &str,
        (table, generation): (&CopyTable, u32),
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<bool, Error> {
        let (lane, generation) = (lane_number(self.lane), generation.cast_signed());
        let flow = self.flow.as_str();
        let which: [&(dyn ToSql + Sync); 6] = [
            &flow,
            &lane,
            &self.epoch.0,
            &table.schema,
            &table.name,
            &generation,
        ];
        let parameters: Vec<&(dyn ToSql + Sync)> = which.iter().chain(more).copied().collect();
        Ok(client.execute(sql, &parameters).await? == 1)
    }
}
