//! Customers of the shop: sessions that write until they are told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::place::session;
use crate::exit::{Exit, Failure};

/// Sessions that write small transactions.
const WORKERS: u64 = 4;
/// Ids of one worker stay within this many of another's.
const IDS_PER_WORKER: u64 = 1_000_000_000;
/// Keeps a small machine's cores for the things that are shown.
const BREATH: Duration = Duration::from_millis(4);
/// Rows of each large transaction; far more than the source decodes in memory, so that it is
/// streamed in chunks while it is still open.
const LARGE_ROWS: u64 = 15_000;
/// Time between two large transactions.
const LARGE_EVERY: Duration = Duration::from_secs(5);

/// A running workload.
pub(super) struct Workload {
    cancel: CancellationToken,
    tasks: JoinSet<Result<(), Failure>>,
    /// Transactions committed so far.
    pub(super) committed: Arc<AtomicU64>,
}

impl Workload {
    /// Starts the sessions; `round` keeps the ids of several workloads apart.
    pub(super) fn start(source_url: &str, seed: u64, round: u64) -> Self {
        let cancel = CancellationToken::new();
        let committed = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for worker in 0..WORKERS {
            let worker = round * (WORKERS + 1) + worker;
            let random = StdRng::seed_from_u64(seed ^ worker.wrapping_mul(0x9e37_79b9));
            tasks.spawn(small(
                source_url.to_owned(),
                worker,
                random,
                cancel.clone(),
                committed.clone(),
            ));
        }
        let last = round * (WORKERS + 1) + WORKERS;
        tasks.spawn(large(
            source_url.to_owned(),
            last,
            cancel.clone(),
            committed.clone(),
        ));
        Self {
            cancel,
            tasks,
            committed,
        }
    }

    /// Stops it: every transaction is either committed or was never begun.
    pub(super) async fn stop(mut self) -> Result<u64, Failure> {
        self.cancel.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.map_err(|panic| Failure::from_error(Exit::Bug, &panic))??;
        }
        Ok(self.committed.load(Relaxed))
    }
}

async fn small(
    url: String,
    worker: u64,
    mut random: StdRng,
    cancel: CancellationToken,
    committed: Arc<AtomicU64>,
) -> Result<(), Failure> {
    let session = session(&url).await?;
    let mut number = 0;
    while !cancel.is_cancelled() {
        number += 1;
        let (sql, commits) = transaction(worker, number, &mut random);
        session.client.batch_execute(&sql).await?;
        committed.fetch_add(u64::from(commits), Relaxed);
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

/// The statements of one transaction, and whether it commits.
fn transaction(worker: u64, number: u64, random: &mut StdRng) -> (String, bool) {
    let id = worker * IDS_PER_WORKER + number;
    let earlier = worker * IDS_PER_WORKER + random.random_range(1..=number);
    let first = worker * IDS_PER_WORKER + 1;
    // Of those that were there before, whether or not they have been copied yet.
    let old = random.random_range(1..=100_000);
    let mut sql = format!("BEGIN; INSERT INTO journal VALUES ({worker}, {number});");
    if number == 1 {
        sql += &customer(id);
    }
    sql += &match random.random_range(0..9) {
        0 if number > 1 => customer(id),
        1 | 2 => format!(
            "INSERT INTO orders VALUES ({id}, {first}, 'new', ARRAY[{number}, NULL, 7], {}.25);",
            number % 900
        ),
        3 => {
            format!(
                "UPDATE orders SET state = 'shipped', total = total + 1 WHERE id IN ({earlier}, -{old});"
            )
        }
        // Letters are not touched: their value does not travel (unchanged TOAST).
        4 => format!(
            "UPDATE customers SET tags = tags || '{{\"a,b\",NULL}}' WHERE id IN ({first}, -{old});"
        ),
        5 => format!(
            "INSERT INTO payments VALUES ({id}, date '2025-06-01' + {}, {number}); \
             UPDATE payments SET paid_on = date '2026-03-01' WHERE id IN ({earlier}, -{old});",
            number % 300
        ),
        6 => format!(
            "INSERT INTO clicks SELECT {worker}, {}, 'the same' FROM generate_series(1, 3); \
             UPDATE clicks SET what = 'other' WHERE ctid = \
               (SELECT min(ctid) FROM clicks WHERE worker = {worker} AND what = 'the same');",
            number % 5
        ),
        7 => format!(
            "SAVEPOINT a; INSERT INTO clicks VALUES ({worker}, {number}, 'never seen'); ROLLBACK TO a; \
             DELETE FROM orders WHERE id IN ({earlier}, -{old});"
        ),
        _ => format!("INSERT INTO clicks VALUES ({worker}, {number}, E'tab\\there, quote \\'');"),
    };
    // The first customer must exist for the orders that follow.
    let commits = number == 1 || random.random_range(0..30) > 0;
    sql += if commits { "COMMIT" } else { "ROLLBACK" };
    (sql, commits)
}

fn customer(id: u64) -> String {
    format!(
        "INSERT INTO customers SELECT {id}, 'customer {id}', '{{new}}', \
           string_agg(md5({id}::text || i::text), '') FROM generate_series(1, 400) AS i;"
    )
}

/// One large transaction after the other, each with a large part rolled back.
async fn large(
    url: String,
    worker: u64,
    cancel: CancellationToken,
    committed: Arc<AtomicU64>,
) -> Result<(), Failure> {
    let session = session(&url).await?;
    let mut number = 0;
    while !cancel.is_cancelled() {
        number += 1;
        let sql = format!(
            "BEGIN; INSERT INTO journal VALUES ({worker}, {number}); \
             INSERT INTO clicks SELECT {worker}, i, 'large ' || i FROM generate_series(1, {LARGE_ROWS}) AS i; \
             SAVEPOINT a; \
             INSERT INTO clicks SELECT {worker}, i, 'never seen' FROM generate_series(1, {LARGE_ROWS}) AS i; \
             ROLLBACK TO a; \
             INSERT INTO clicks SELECT {worker}, i, 'more' FROM generate_series(1, 1000) AS i; COMMIT"
        );
        session.client.batch_execute(&sql).await?;
        committed.fetch_add(1, Relaxed);
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(LARGE_EVERY) => {}
        }
    }
    Ok(())
}
