//! Are the two databases equal? Decided from nothing but what both servers print.
//!
//! For each table both servers hash the text of every row, and add the hashes up by their first two
//! digits; where a sum differs, the multisets of hashes are compared. No code of the applier, no key,
//! no order is involved.

use std::collections::{BTreeMap, BTreeSet};

use trellara_postgres::Session;

use super::place::session;
use crate::exit::Failure;

/// What was found.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Judgement {
    /// Rows compared on the source.
    pub(super) rows: u64,
    /// Rows of the source that the target lacks.
    pub(super) missing: u64,
    /// Rows of the target that the source lacks.
    pub(super) surplus: u64,
    /// Transactions on the source, by the journal.
    pub(super) transactions: u64,
    /// Transactions that the target lacks.
    pub(super) lost: u64,
    /// Transactions whose journal row is in the target more than once.
    pub(super) twice: u64,
}

impl Judgement {
    pub(super) fn equal(&self) -> bool {
        self.missing == 0 && self.surplus == 0 && self.lost == 0 && self.twice == 0
    }
}

const TABLES: [&str; 5] = ["customers", "orders", "payments", "clicks", "journal"];

pub(super) async fn compare(source_url: &str, target_url: &str) -> Result<Judgement, Failure> {
    let (source, target) = tokio::try_join!(session(source_url), session(target_url))?;
    let mut judgement = Judgement::default();
    for table in TABLES {
        let (ours, theirs) = tokio::try_join!(sums(&source, table), sums(&target, table))?;
        judgement.rows += ours.values().map(|(rows, _)| rows).sum::<u64>();
        let buckets: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        for bucket in buckets {
            if ours.get(bucket) == theirs.get(bucket) {
                continue;
            }
            let (ours, theirs) =
                tokio::try_join!(rows(&source, table, bucket), rows(&target, table, bucket))?;
            judgement.missing += surplus(&ours, &theirs);
            judgement.surplus += surplus(&theirs, &ours);
        }
    }
    let (ours, theirs) = tokio::try_join!(journal(&source), journal(&target))?;
    judgement.transactions = ours.values().sum();
    judgement.lost = ours.keys().filter(|key| !theirs.contains_key(*key)).count() as u64;
    judgement.twice = theirs.values().filter(|count| **count > 1).count() as u64;
    Ok(judgement)
}

/// How many rows have a hash that begins so, and the sum of 60 further bits of each.
async fn sums(session: &Session, table: &str) -> Result<BTreeMap<String, (u64, String)>, Failure> {
    let sql = format!(
        "SELECT left(hash, 2), count(*), sum(('x' || substr(hash, 3, 15))::bit(60)::bigint)::text \
           FROM (SELECT md5(t::text) AS hash FROM {table} AS t) AS hashes GROUP BY 1"
    );
    let rows = session.client.query(&sql, &[]).await?;
    let entry = |row: &tokio_postgres::Row| {
        let count: i64 = row.get(1);
        (row.get(0), (count.cast_unsigned(), row.get(2)))
    };
    Ok(rows.iter().map(entry).collect())
}

/// Each row's hash that begins so, and how often it is there.
async fn rows(
    session: &Session,
    table: &str,
    bucket: &str,
) -> Result<BTreeMap<String, u64>, Failure> {
    let sql = format!(
        "SELECT md5(t::text), count(*) FROM {table} AS t WHERE left(md5(t::text), 2) = $1 GROUP BY 1"
    );
    let rows = session.client.query(&sql, &[&bucket]).await?;
    Ok(rows
        .iter()
        .map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned()))
        .collect())
}

/// How many rows `a` has beyond those of `b`.
fn surplus(a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>) -> u64 {
    a.iter()
        .map(|(hash, count)| count.saturating_sub(b.get(hash).copied().unwrap_or(0)))
        .sum()
}

async fn journal(session: &Session) -> Result<BTreeMap<(i32, i64), u64>, Failure> {
    let sql = "SELECT worker, number, count(*) FROM journal GROUP BY 1, 2";
    let rows = session.client.query(sql, &[]).await?;
    let entry = |row: &tokio_postgres::Row| {
        (
            (row.get(0), row.get(1)),
            row.get::<_, i64>(2).cast_unsigned(),
        )
    };
    Ok(rows.iter().map(entry).collect())
}
