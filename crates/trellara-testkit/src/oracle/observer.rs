//! Photographs of the target while things are being killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

/// A set of ids, told apart from another by count, sum and exclusive or.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdSet {
    /// How many.
    pub count: i64,
    /// Their sum.
    pub sum: i128,
    /// Their exclusive or.
    pub xor: i64,
}

impl IdSet {
    /// Takes one more in.
    pub fn add(&mut self, id: i64) {
        self.count += 1;
        self.sum += i128::from(id);
        self.xor ^= id;
    }
}

/// One consistent look at the target.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    /// End LSN of the checkpoint.
    pub end_lsn: u64,
    /// What `tx` holds.
    pub transactions: IdSet,
    /// Per key of `la`: number of elements and sha256 of the list's text.
    pub lists: Vec<(i32, i32, String)>,
    /// Sum over `bank`.
    pub balance: i64,
    /// Rows in `keyless`.
    pub keyless: i64,
    /// Rows of `wide` whose digest does not match.
    pub torn_wide: i64,
}

/// Takes photographs until it is finished.
pub struct Observer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<Observation>>,
}

impl Observer {
    /// Starts looking at `url` every `every`; connections lost to the chaos are made anew.
    pub fn start(url: &str, flow: &str, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(run(
            url.to_owned(),
            flow.to_owned(),
            every,
            Arc::clone(&stop),
        ));
        Self { stop, task }
    }

    /// Everything seen.
    pub async fn finish(self) -> Result<Vec<Observation>> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(self.task.await?)
    }
}

async fn run(
    url: String,
    flow: String,
    every: Duration,
    stop: Arc<AtomicBool>,
) -> Vec<Observation> {
    let mut seen = Vec::new();
    let mut pace = tokio::time::interval(every);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        pace.tick().await;
        let connect = tokio_postgres::connect(&url, NoTls);
        let Ok(Ok((mut client, connection))) =
            tokio::time::timeout(Duration::from_secs(2), connect).await
        else {
            continue;
        };
        let driver = tokio::spawn(connection);
        while !stop.load(Ordering::Relaxed) {
            pace.tick().await;
            match tokio::time::timeout(Duration::from_secs(10), look(&mut client, &flow)).await {
                Ok(Ok(Some(observation))) => seen.push(observation),
                Ok(Ok(None)) => {}
                Ok(Err(_)) | Err(_) => break,
            }
        }
        driver.abort();
    }
    seen
}

/// One photograph, in one REPEATABLE READ transaction; `None` before the first checkpoint.
pub async fn look(client: &mut Client, flow: &str) -> Result<Option<Observation>> {
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let checkpoint = transaction
        .query_opt(
            "SELECT (end_lsn - '0/0'::pg_lsn)::bigint FROM trellara.applied
             WHERE flow = $1 AND lane = 0 ORDER BY first_ordinal DESC LIMIT 1",
            &[&flow],
        )
        .await?;
    let Some(checkpoint) = checkpoint else {
        return Ok(None);
    };
    let end_lsn: i64 = checkpoint.get(0);
    let tx = transaction
        .query_one(
            "SELECT count(*), coalesce(sum(id), 0)::text, coalesce(bit_xor(id), 0) FROM tx",
            &[],
        )
        .await?;
    let lists = transaction
        .query("SELECT k, cardinality(v), encode(sha256(convert_to(array_to_string(v, ','), 'UTF8')), 'hex') FROM la ORDER BY k", &[])
        .await?;
    let rest = transaction
        .query_one(
            "SELECT (SELECT coalesce(sum(balance), 0)::bigint FROM bank), (SELECT count(*) FROM keyless),
                    (SELECT count(*) FROM wide WHERE digest IS DISTINCT FROM md5(body))",
            &[],
        )
        .await?;
    Ok(Some(Observation {
        end_lsn: end_lsn as u64,
        transactions: IdSet {
            count: tx.get(0),
            sum: tx.get::<_, String>(1).parse()?,
            xor: tx.get(2),
        },
        lists: lists
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect(),
        balance: rest.get(0),
        keyless: rest.get(1),
        torn_wide: rest.get(2),
    }))
}
