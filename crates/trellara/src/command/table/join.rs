//! How a table comes into a flow that runs, step by step; each step finds out what was done before.
//!
//! 1. It is announced: the applier applies nothing of it from then on. Otherwise changes that the
//!    copy will hold could come first.
//! 2. It is published, under a lock that waits for everybody who has written to it.
//! 3. Every transaction that was open at that moment is waited for: the stream does not have what
//!    they did to the table before, and the copy's snapshot must see it.
//! 4. Its copy is ordered.

use std::time::Duration;

use tokio::time::Instant;
use trellara_applier::lane;
use trellara_envelope::Lane;
use trellara_postgres::{fault, quote, writers};
use trellara_source::publication::TableName;

use super::{LOOK_EVERY, Place};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::visible;

/// One table on its way in.
pub(super) struct Joining<'a> {
    pub(super) place: &'a Place,
    /// As it is published.
    pub(super) table: &'a TableName,
    /// As its changes are named.
    pub(super) tables: &'a [TableName],
    /// How long others may wait behind our attempt to lock it.
    pub(super) lock_timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) output: Output,
}

/// A table that comes back begins anew.
const ANNOUNCE: &str = "\
INSERT INTO trellara.backfill AS b (flow, schema_name, table_name, state, initial) \
SELECT $1, t.s, t.n, 'announced', false FROM unnest($2::text[], $3::text[]) AS t(s, n) \
ON CONFLICT (flow, schema_name, table_name) DO UPDATE \
   SET state = 'announced', initial = false, generation = b.generation + 1, noticed_epoch = NULL, \
       reason = NULL, hint = NULL, writer = NULL, parts = NULL, rows = 0, bytes = 0, \
       snapshot = NULL, converges_at = NULL, in_vain = 0, abandoned = false, \
       abandoned_below = NULL, asked_at = clock_timestamp(), started_at = NULL, loaded_at = NULL, \
       changed_at = clock_timestamp() \
 WHERE b.state <> 'announced'";

const ORDER: &str = "\
UPDATE trellara.backfill AS b SET state = $4, changed_at = clock_timestamp() \
  FROM unnest($2::text[], $3::text[]) AS t(s, n) \
 WHERE b.flow = $1 AND b.schema_name = t.s AND b.table_name = t.n AND b.state = 'announced'";

/// Announced ones that the lane's present applier has not said to have seen.
const UNNOTICED: &str = "\
SELECT count(*) FROM trellara.backfill AS b \
  JOIN trellara.lane AS l ON l.flow = b.flow AND l.lane = 0 \
 WHERE b.flow = $1 AND b.state = 'announced' AND b.noticed_epoch IS DISTINCT FROM l.epoch";

impl Joining<'_> {
    /// All four steps. `adopt` orders no copy: the rows that are there are taken for the source's.
    pub(super) async fn join(&self, adopt: bool) -> Result<(), Failure> {
        self.announce().await?;
        if !self.tables.iter().all(|table| self.place.publishes(table)) {
            self.publish().await?;
        }
        self.outlast().await?;
        let state = if adopt { "kept" } else { "wanted" };
        let order = async {
            self.order(state).await?;
            self.place.record("table added", self.tables).await
        };
        self.place.at_once(order).await?;
        self.say("it is in the flow");
        Ok(())
    }

    fn say(&self, what: &str) {
        self.output.note(format!("{}: {what}", self.table));
    }

    fn names(&self) -> (Vec<&str>, Vec<&str>) {
        self.tables
            .iter()
            .map(|table| (table.schema.as_str(), table.name.as_str()))
            .unzip()
    }

    async fn announce(&self) -> Result<(), Failure> {
        let (schemas, names) = self.names();
        let flow = self.place.config.flow.as_str();
        let target = &self.place.target.client;
        target.execute(ANNOUNCE, &[&flow, &schemas, &names]).await?;
        let mut told = false;
        loop {
            self.place.notify().await?;
            let unnoticed: i64 = target.query_one(UNNOTICED, &[&flow]).await?.get(0);
            if unnoticed == 0 {
                return Ok(());
            }
            // Without an applier nothing is applied, and the next one reads the row before it does.
            if lane::holder(target, &self.place.config.flow, Lane(0))
                .await?
                .is_none()
            {
                return Ok(());
            }
            if !std::mem::replace(&mut told, true) {
                self.say("waiting for the applier to notice it");
            }
            self.in_time("the applier has not said that it noticed the table")
                .await?;
        }
    }

    async fn publish(&self) -> Result<(), Failure> {
        let table = self.table;
        let publication = quote::identifier(&self.place.config.source.publication);
        let timeout = self.lock_timeout.as_millis();
        // A write of a session that began before the lock was granted would be in nobody's hands.
        let sql = format!(
            "BEGIN; SET LOCAL lock_timeout = {timeout}; LOCK TABLE {table} IN SHARE MODE; \
             ALTER PUBLICATION {publication} ADD TABLE {table}; COMMIT"
        );
        let source = &self.place.source.client;
        loop {
            let Err(error) = source.batch_execute(&sql).await else {
                self.say("it is published");
                return Ok(());
            };
            source.batch_execute("ROLLBACK").await?;
            match fault(&error).sqlstate.as_str() {
                // It is there: a former attempt, or somebody else.
                "42710" => return Ok(()),
                "55P03" | "40P01" => {}
                "42501" => {
                    let cure = format!(
                        "let their owner run: ALTER PUBLICATION {publication} ADD TABLE {table}; \
                         then run this again"
                    );
                    return Err(Failure::from(error)
                        .doing("cannot publish the table")
                        .hint(cure));
                }
                _ => return Err(Failure::from(error).doing("cannot publish the table")),
            }
            let holders = self.lock_holders().await?;
            self.say(&format!("locked by {holders}; trying again"));
            self.in_time(&format!("the table is locked by {holders}"))
                .await?;
        }
    }

    async fn lock_holders(&self) -> Result<String, Failure> {
        let sql = "SELECT coalesce(string_agg(DISTINCT 'backend ' || l.pid, ', '), 'somebody') \
                     FROM pg_locks AS l WHERE l.relation = to_regclass($1) AND l.granted \
                      AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', \
                          'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')";
        let name = self.table.to_string();
        Ok(self
            .place
            .source
            .client
            .query_one(sql, &[&name])
            .await?
            .get(0))
    }

    /// Every transaction that was open when the table was published.
    async fn outlast(&self) -> Result<(), Failure> {
        let source = &self.place.source.client;
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        let limit: i64 = source.query_one(sql, &[]).await?.get(0);
        let sql = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
        let mut told = false;
        loop {
            let oldest: i64 = source.query_one(sql, &[]).await?.get(0);
            if oldest >= limit {
                return Ok(());
            }
            let who = writers::named(&writers::writers(&self.place.source).await?);
            let who = visible::inline(&who).into_owned();
            if !std::mem::replace(&mut told, true) {
                self.say(&format!("waiting for transactions that were open: {who}"));
            }
            self.in_time(&format!("transactions that were open are not over: {who}"))
                .await?;
        }
    }

    async fn order(&self, state: &str) -> Result<(), Failure> {
        let (schemas, names) = self.names();
        let flow = self.place.config.flow.as_str();
        let target = &self.place.target.client;
        target
            .execute(ORDER, &[&flow, &schemas, &names, &state])
            .await?;
        Ok(())
    }

    /// Waits a moment; fails once the time is up.
    async fn in_time(&self, what: &str) -> Result<(), Failure> {
        if Instant::now() >= self.deadline {
            let hint = format!(
                "`trellara table add {}` goes on where this stopped",
                self.table
            );
            return Err(Failure::new(Exit::TimedOut, what, hint));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        Ok(())
    }
}
