//! Sessions that keep writing transactions whose effects can be recognised on the target.
//!
//! Every transaction writes its id into `tx`, appends it to the lists of two to four keys of
//! `la`, moves money between two rows of `bank`, and adds a row to `keyless`. So a torn, lost,
//! doubled or reordered transaction shows in at least two tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

/// Tables of the workload, for source and target alike.
pub const SCHEMA: &str = "
    CREATE TABLE tx (id bigint PRIMARY KEY, client int NOT NULL, n int NOT NULL);
    CREATE TABLE la (k int PRIMARY KEY, v bigint[] NOT NULL DEFAULT '{}');
    CREATE TABLE bank (id int PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE keyless (tx bigint, note text);
    CREATE TABLE wide (id bigint PRIMARY KEY, body text, digest text, touched int NOT NULL DEFAULT 0);
";

/// How much and how wildly.
#[derive(Debug, Clone)]
pub struct WorkloadOptions {
    /// Sessions writing at once.
    pub clients: u32,
    /// Keys of `la`; fewer keys make longer lists.
    pub keys: i32,
    /// Rows of `bank`.
    pub accounts: i32,
    /// Transactions per second and client at most.
    pub rate_per_client: u32,
    /// Every n-th transaction writes this many extra rows, so that it is streamed; 0 never.
    pub big_every: u32,
    /// Rows of a big transaction, half of them rolled back to a savepoint.
    pub big_rows: u32,
    /// Seed.
    pub seed: u64,
}

/// What the clients saw; not the truth, since an answer can be lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkloadTotals {
    /// Transactions whose COMMIT was answered.
    pub committed: u64,
    /// Connections that had to be made anew.
    pub reconnects: u64,
}

/// A running workload.
pub struct Workload {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    reconnects: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Workload {
    /// Fills `la` and `bank`; run once on the source after the flow was set up, so that the rows
    /// travel like all others.
    pub async fn seed_rows(
        client: &tokio_postgres::Client,
        options: &WorkloadOptions,
    ) -> Result<()> {
        client
            .batch_execute(&format!(
                "INSERT INTO la SELECT g, '{{}}' FROM generate_series(0, {}) g;
                 INSERT INTO bank SELECT g, 1000 FROM generate_series(0, {}) g;",
                options.keys - 1,
                options.accounts - 1
            ))
            .await?;
        Ok(())
    }

    /// Starts the sessions against `url` (a libpq connection string).
    pub fn start(url: &str, options: &WorkloadOptions) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let committed = Arc::new(AtomicU64::new(0));
        let reconnects = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..options.clients {
            let session = Session {
                url: url.to_owned(),
                options: options.clone(),
                number,
                stop: Arc::clone(&stop),
                committed: Arc::clone(&committed),
                reconnects: Arc::clone(&reconnects),
            };
            tasks.spawn(session.run());
        }
        Self {
            stop,
            committed,
            reconnects,
            tasks,
        }
    }

    /// Transactions answered so far.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Lets the sessions finish their present transaction and ends them.
    pub async fn finish(mut self) -> WorkloadTotals {
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        WorkloadTotals {
            committed: self.committed.load(Ordering::Relaxed),
            reconnects: self.reconnects.load(Ordering::Relaxed),
        }
    }
}

struct Session {
    url: String,
    options: WorkloadOptions,
    number: u32,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    reconnects: Arc<AtomicU64>,
}

impl Session {
    async fn run(self) {
        let mut random = StdRng::seed_from_u64(self.options.seed ^ u64::from(self.number) << 32);
        let mut n = 0u32;
        while !self.stopped() {
            if let Err(error) = self.connected(&mut random, &mut n).await {
                tracing::debug!(client = self.number, %error, "workload session ended");
                self.reconnects.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(random.random_range(20..120))).await;
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    async fn connected(&self, random: &mut StdRng, n: &mut u32) -> Result<()> {
        let connect = tokio_postgres::connect(&self.url, NoTls);
        let (mut client, connection) =
            tokio::time::timeout(Duration::from_secs(5), connect).await??;
        let driver = tokio::spawn(connection);
        let pause =
            Duration::from_micros(1_000_000 / u64::from(self.options.rate_per_client.max(1)));
        let mut pace = tokio::time::interval(pause);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let result = loop {
            if self.stopped() {
                break Ok(());
            }
            pace.tick().await;
            // A number is never used twice, also when the answer was lost: ids are the oracle's
            // alphabet.
            *n += 1;
            let one = self.transaction(&mut client, random, *n);
            match tokio::time::timeout(Duration::from_secs(20), one).await {
                Ok(Ok(commits)) => {
                    self.committed
                        .fetch_add(u64::from(commits), Ordering::Relaxed);
                }
                Ok(Err(error)) if passes(&error) => {}
                Ok(Err(error)) => break Err(error.into()),
                Err(elapsed) => break Err(elapsed.into()),
            }
        };
        drop(client);
        driver.abort();
        result
    }

    /// One transaction; whether it committed.
    async fn transaction(
        &self,
        client: &mut tokio_postgres::Client,
        random: &mut StdRng,
        n: u32,
    ) -> Result<bool, tokio_postgres::Error> {
        let id = i64::from(self.number) << 32 | i64::from(n);
        let mut keys: Vec<i32> = (0..random.random_range(2..=4))
            .map(|_| random.random_range(0..self.options.keys))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let from = random.random_range(0..self.options.accounts);
        let to = random.random_range(0..self.options.accounts);
        let amount = random.random_range(1..50i64);
        let big = self.options.big_every > 0 && n.is_multiple_of(self.options.big_every);
        let rolled_back = random.random_ratio(1, 20);

        let transaction = client.transaction().await?;
        let mut script = format!(
            "INSERT INTO tx VALUES ({id}, {}, {n});
             INSERT INTO keyless VALUES ({id}, 'n{n}');",
            self.number
        );
        for key in &keys {
            script.push_str(&format!(
                "UPDATE la SET v = v || {id}::bigint WHERE k = {key};"
            ));
        }
        let (low, high) = (from.min(to), from.max(to));
        let signed = if low == from { -amount } else { amount };
        if low != high {
            script.push_str(&format!(
                "UPDATE bank SET balance = balance + ({signed}) WHERE id = {low};
                 UPDATE bank SET balance = balance - ({signed}) WHERE id = {high};"
            ));
        }
        if n.is_multiple_of(7) {
            script.push_str(&format!(
                "INSERT INTO wide SELECT {id}, b, md5(b) FROM repeat(md5({id}::text), 400) b;
                 UPDATE wide SET touched = touched + 1 WHERE id = {id};"
            ));
        }
        if big {
            let rows = self.options.big_rows;
            script.push_str(&format!(
                "INSERT INTO keyless SELECT {id}, 'kept ' || g || repeat('x', 100) FROM generate_series(1, {rows}) g;
                 SAVEPOINT undone;
                 INSERT INTO keyless SELECT {id}, 'undone ' || g || repeat('y', 100) FROM generate_series(1, {rows}) g;
                 ROLLBACK TO undone;
                 DELETE FROM wide WHERE id = {id};"
            ));
        }
        transaction.batch_execute(&script).await?;
        if rolled_back {
            transaction.rollback().await?;
        } else {
            transaction.commit().await?;
        }
        Ok(!rolled_back)
    }
}

/// Deadlocks between sessions are the workload's own; the session goes on.
fn passes(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "40P01" | "40001"))
}
