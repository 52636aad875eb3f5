//! How far a flow's copy is, as the target's own records say.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio_postgres::Client;

use crate::compare;
use crate::flow::Flow;

/// The rows of `trellara.backfill`, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copying {
    /// Tables that are, or were, copied.
    pub tables: i64,
    /// Not in yet.
    pub waiting: i64,
    /// Need an operator.
    pub failed: i64,
    /// Parts that are in, of all tables.
    pub parts: i64,
    /// Rows that are in, of all tables.
    pub rows: i64,
    /// How often a table was begun anew, over all tables.
    pub begun_anew: i64,
}

impl Copying {
    /// As a session on the target sees it.
    pub async fn read(target: &Client, flow: &str) -> Result<Self> {
        let sql = "
            SELECT count(*), \
                   count(*) FILTER (WHERE state IN ('announced', 'wanted', 'copying')), \
                   count(*) FILTER (WHERE state = 'failed'), \
                   (SELECT count(*) FROM trellara.backfill_part WHERE flow = $1), \
                   coalesce(sum(rows), 0)::bigint, \
                   coalesce(sum(generation - 1), 0)::bigint \
              FROM trellara.backfill WHERE flow = $1";
        let row = target.query_one(sql, &[&flow]).await?;
        Ok(Self {
            tables: row.get(0),
            waiting: row.get(1),
            failed: row.get(2),
            parts: row.get(3),
            rows: row.get(4),
            begun_anew: row.get(5),
        })
    }

    /// Whether every table is in.
    pub fn is_in(&self) -> bool {
        self.tables > 0 && self.waiting == 0 && self.failed == 0
    }
}

impl Flow {
    /// How far its copy is.
    pub async fn copying(&self) -> Result<Copying> {
        let target = compare::connect(&self.target_admin).await?;
        Copying::read(&target, &self.name).await
    }

    /// Waits until `there` of the copy; the logs of both daemons are in the error.
    pub async fn copying_until(
        &self,
        there: impl Fn(&Copying) -> bool,
        within: Duration,
    ) -> Result<Copying> {
        let target = compare::connect(&self.target_admin).await?;
        let deadline = Instant::now() + within;
        loop {
            let copying = Copying::read(&target, &self.name).await?;
            if there(&copying) {
                return Ok(copying);
            }
            ensure!(
                Instant::now() < deadline,
                "the copy is at {copying:?} after {within:?}\n{}",
                self.logs()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until every table is in.
    pub async fn copied(&self, within: Duration) -> Result<Copying> {
        self.copying_until(Copying::is_in, within).await
    }
}
