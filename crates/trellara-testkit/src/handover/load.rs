//! Sessions that write before, while and after a flow's first copy is taken.
//!
//! Every transaction adds a row to `journal`, so a lost, doubled or torn one shows there whatever
//! else it did. The tables are of every shape that a copy and a stream might understand differently.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::compare;

/// A session that is refused a deadlock or whose server went away tries again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Rows of a transaction that is streamed while it runs, half of them rolled back.
const BIG_ROWS: u64 = 600;

/// Tables on both sides, but for `parts`, `listed` and `filtered`.
pub(super) const SCHEMA: &str = "
    CREATE TABLE keyed (id bigint PRIMARY KEY, client int, body text);
    CREATE TABLE keyless (client int, n bigint, note text);
    CREATE INDEX ON keyless (client, n);
    ALTER TABLE keyless REPLICA IDENTITY FULL;
    CREATE TABLE parent (id bigint PRIMARY KEY, v bigint NOT NULL);
    CREATE TABLE child (id bigint PRIMARY KEY, parent bigint NOT NULL REFERENCES parent, v bigint);
    CREATE TABLE wide (id bigint PRIMARY KEY, body text, touched int NOT NULL DEFAULT 0);
    CREATE TABLE late (id bigint PRIMARY KEY);
    CREATE TABLE journal (client int NOT NULL, n bigint NOT NULL);
    ALTER TABLE journal REPLICA IDENTITY FULL;
";
/// Partitions as the source has them.
pub(super) const PARTS: &str = "
    CREATE TABLE parts (id bigint, k int, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
    CREATE TABLE parts_0 PARTITION OF parts FOR VALUES IN (0);
    CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
    CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
";
/// A table of which not all columns are published, and one of which not all rows are.
pub(super) const NARROWED: &str = "
    CREATE TABLE listed (id bigint PRIMARY KEY, a bigint, hidden text);
    CREATE TABLE filtered (id bigint PRIMARY KEY, v bigint NOT NULL);
    ALTER TABLE filtered REPLICA IDENTITY FULL;
";

/// How much of it.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Sessions.
    pub(super) clients: u32,
    /// Rows of each large table before anything begins.
    pub(super) rows: u64,
    /// Transactions of a session in a second, at most.
    pub(super) rate_per_client: u32,
    /// Whether [`NARROWED`] is there.
    pub(super) narrowed: bool,
    /// Of everything they choose.
    pub(super) seed: u64,
}

impl Load {
    /// Fills the tables.
    pub(super) async fn seed_rows(&self, client: &Client) -> Result<()> {
        let rows = self.rows;
        let few = (rows / 10).max(10);
        let mut script = format!(
            "SET search_path = public;
             INSERT INTO keyed SELECT g, -1, md5(g::text) FROM generate_series(1, {rows}) g;
             INSERT INTO keyless SELECT -1, g / 2, 'twice' FROM generate_series(1, {rows}) g;
             INSERT INTO parent SELECT g, 0 FROM generate_series(1, {few}) g;
             INSERT INTO child SELECT g, 1 + g % {few}, 0 FROM generate_series(1, {rows}) g;
             INSERT INTO parts SELECT g, g % 3, md5(g::text) FROM generate_series(1, {rows}) g;
             INSERT INTO wide SELECT g, (SELECT string_agg(md5((g * 1000 + i)::text), '')
                                           FROM generate_series(1, 200) i)
               FROM generate_series(1, {few}) g;"
        );
        if self.narrowed {
            script += &format!(
                "INSERT INTO listed SELECT g, g, 'secret' FROM generate_series(1, {rows}) g;
                 INSERT INTO filtered SELECT g, g FROM generate_series(1, {rows}) g;"
            );
        }
        client.batch_execute(&script).await?;
        Ok(())
    }
}

/// What the clients saw; an answer can be lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Transactions whose COMMIT was answered.
    pub committed: u64,
    /// Transactions of which nobody heard how they ended.
    pub unknown: u64,
}

#[derive(Debug, Default)]
struct Counters {
    stop: AtomicBool,
    committed: AtomicU64,
    unknown: AtomicU64,
}

/// Running sessions.
pub(super) struct Writers {
    counters: Arc<Counters>,
    tasks: JoinSet<Result<()>>,
}

impl Writers {
    pub(super) fn start(url: &str, load: &Load) -> Self {
        let counters = Arc::new(Counters::default());
        let mut tasks = JoinSet::new();
        for number in 0..load.clients {
            let writer = Writer {
                url: url.to_owned(),
                load: load.clone(),
                number,
                random: StdRng::seed_from_u64(load.seed ^ (u64::from(number) << 32)),
                n: 0,
                own: (u64::from(number) + 1) * 1_000_000_000,
                counters: Arc::clone(&counters),
            };
            tasks.spawn(writer.run());
        }
        Self { counters, tasks }
    }

    pub(super) fn committed(&self) -> u64 {
        self.counters.committed.load(Relaxed)
    }

    /// Waits until that many more transactions have been committed.
    pub(super) async fn commit(&self, more: u64, within: Duration) -> Result<()> {
        let to = self.committed() + more;
        let wait = async {
            while self.committed() < to {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(within, wait)
            .await
            .context("the sessions do not get on")
    }

    /// Lets each session end its transaction.
    pub(super) async fn finish(mut self) -> Result<Totals> {
        self.counters.stop.store(true, Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(Totals {
            committed: self.committed(),
            unknown: self.counters.unknown.load(Relaxed),
        })
    }
}

/// How a session writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// A few statements, then COMMIT or ROLLBACK.
    Short,
    /// With savepoints, and open for a while: over the moment a snapshot is taken.
    Long,
    /// Large enough to be streamed before it commits.
    Big,
    /// Prepared first.
    Prepared,
}

struct Writer {
    url: String,
    load: Load,
    number: u32,
    random: StdRng,
    n: u64,
    /// The last key of its own that it used.
    own: u64,
    counters: Arc<Counters>,
}

impl Writer {
    async fn run(mut self) -> Result<()> {
        let mut client = compare::connect(&self.url).await?;
        client.batch_execute("SET search_path = public").await?;
        let pause = 1_000_000 / u64::from(self.load.rate_per_client.max(1));
        let mut pace = tokio::time::interval(Duration::from_micros(pause));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.stopped() {
            pace.tick().await;
            self.n += 1;
            match self.transaction(&client).await {
                Ok(committed) => {
                    let count = u64::from(committed);
                    self.counters.committed.fetch_add(count, Relaxed);
                }
                Err(error) if is_conflict(&error) => {
                    client.batch_execute("ROLLBACK").await?;
                }
                Err(error) if is_gone(&error) => {
                    self.counters.unknown.fetch_add(1, Relaxed);
                    client = self.again().await?;
                }
                Err(error) => bail!("session {}: {error:?}", self.number),
            }
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.counters.stop.load(Relaxed)
    }

    async fn again(&self) -> Result<Client> {
        const TRIES: u32 = 600;
        for _ in 0..TRIES {
            tokio::time::sleep(AGAIN_AFTER).await;
            if let Ok(client) = compare::connect(&self.url).await {
                client.batch_execute("SET search_path = public").await?;
                return Ok(client);
            }
        }
        bail!("session {} found no server any more", self.number)
    }

    fn manner(&self) -> Manner {
        match self.number % 16 {
            13 => Manner::Long,
            14 => Manner::Big,
            15 => Manner::Prepared,
            _ => Manner::Short,
        }
    }

    /// One transaction; whether it committed.
    async fn transaction(&mut self, client: &Client) -> Result<bool, tokio_postgres::Error> {
        let (number, n) = (self.number, self.n);
        let begin = format!("BEGIN; INSERT INTO journal VALUES ({number}, {n});");
        match self.manner() {
            Manner::Short => {
                let commits = self.random.random_ratio(19, 20);
                let end = if commits { "COMMIT" } else { "ROLLBACK" };
                let statements = self.statements();
                client
                    .batch_execute(&format!("{begin} {statements} {end}"))
                    .await?;
                Ok(commits)
            }
            Manner::Long => {
                let (first, undone, last) =
                    (self.statements(), self.statements(), self.statements());
                let script = format!(
                    "{begin} SAVEPOINT a; {first} RELEASE a; SAVEPOINT b; {undone} ROLLBACK TO b;"
                );
                client.batch_execute(&script).await?;
                let open = self.random.random_range(50..500);
                tokio::time::sleep(Duration::from_millis(open)).await;
                let script = format!("SAVEPOINT c; {last} COMMIT");
                client.batch_execute(&script).await?;
                Ok(true)
            }
            Manner::Big => {
                let script = format!(
                    "{begin} INSERT INTO keyless SELECT {number}, {n}, 'kept ' || g FROM generate_series(1, {BIG_ROWS}) g;
                     SAVEPOINT a;
                     INSERT INTO keyless SELECT {number}, {n}, 'undone ' || g FROM generate_series(1, {BIG_ROWS}) g;
                     ROLLBACK TO a; {} COMMIT",
                    self.statements()
                );
                client.batch_execute(&script).await?;
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok(true)
            }
            Manner::Prepared => {
                // One name space for all databases of a server.
                let gid = format!("'handover {} {number} {n}'", self.load.seed);
                let script = format!("{begin} {} PREPARE TRANSACTION {gid}", self.statements());
                client.batch_execute(&script).await?;
                let open = self.random.random_range(10..200);
                tokio::time::sleep(Duration::from_millis(open)).await;
                client
                    .batch_execute(&format!("COMMIT PREPARED {gid}"))
                    .await?;
                Ok(true)
            }
        }
    }

    /// One to three changes, each of rows that were there before anybody began, or of its own.
    fn statements(&mut self) -> String {
        let count = self.random.random_range(1..=3);
        (0..count).map(|_| self.statement()).collect()
    }

    fn statement(&mut self) -> String {
        self.own += 1;
        let (number, n, own) = (self.number, self.n, self.own);
        let old = self.random.random_range(1..=self.load.rows);
        let few = (self.load.rows / 10).max(10);
        let some = self.random.random_range(1..=few);
        let choices = if self.load.narrowed { 15 } else { 12 };
        match self.random.random_range(0..choices) {
            0 => format!("INSERT INTO keyed VALUES ({own}, {number}, 'new');"),
            1 => format!("UPDATE keyed SET body = md5(body), client = {number} WHERE id = {old};"),
            2 => format!("DELETE FROM keyed WHERE id = {old};"),
            3 => format!("UPDATE keyed SET id = {own} WHERE id = {old};"),
            4 => format!(
                "INSERT INTO keyless VALUES ({number}, {n}, 'same'), ({number}, {n}, 'same');"
            ),
            5 => format!(
                "UPDATE keyless SET note = 'touched by {number}' WHERE client = -1 AND n = {};",
                old / 2
            ),
            6 => format!(
                "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless WHERE client = -1 AND n = {});",
                old / 2
            ),
            7 => format!(
                "INSERT INTO child VALUES ({own}, {some}, {n}); UPDATE parent SET v = v + 1 WHERE id = {some};"
            ),
            8 => format!("UPDATE parts SET k = (k + 1) % 3, v = 'moved' WHERE id = {old};"),
            9 => format!("INSERT INTO parts VALUES ({own}, {}, 'new');", own % 3),
            // The body is not touched: its value does not travel (unchanged TOAST).
            10 => format!("UPDATE wide SET touched = touched + 1 WHERE id = {some};"),
            11 => format!("INSERT INTO late VALUES ({own});"),
            12 => format!("UPDATE listed SET hidden = 'hidden {own}' WHERE id = {old};"),
            13 => format!("UPDATE listed SET a = a + 1 WHERE id = {old};"),
            // In and out of what is published.
            _ => format!("UPDATE filtered SET v = v + 1 WHERE id = {old};"),
        }
    }
}

/// The server has ended, or says that it is going to.
fn is_gone(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_none_or(|code| code.code().starts_with("57P"))
}

/// Sessions that write the same rows in different orders meet; that is theirs.
fn is_conflict(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "40P01" | "40001"))
}
