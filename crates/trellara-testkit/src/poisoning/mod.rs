//! `hold_dependents` under load: of many small transactions some are refused by the target, and
//! everything that has nothing to do with them arrives all the same.
//!
//! What has to be held is known before: one session writes the load, so its order is known, and the
//! model has one rule about keys and shares no code with the program.

pub mod heavy;
mod history;
mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::compare;
use crate::daemon::Daemon;
use crate::flow::Flow;
use crate::ground::{Ground, GroundOptions};

use history::History;
use load::{Expected, Key, Planned, Row, TABLES, Why};

/// The end of the load; no transaction of it has this key.
const LAST: i64 = -1;
/// Transactions that the writer sends in one message.
const WRITE_TOGETHER: usize = 200;
const TARGET_CHECK: &str = "refused";
/// More than any load of it holds: what happens at the limits is shown elsewhere.
const EXTRA: &str = "\
    quarantine: {policy: hold_dependents, max_transactions: 10000000, max_keys: 100000000}\n\
    nats.max_bytes: 8GiB";

/// How much of it.
#[derive(Debug, Clone)]
pub struct PoisoningOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Of the load.
    pub transactions: usize,
    /// How many of a thousand are poisoned.
    pub poisoned_per_mille: u32,
    /// Of the load.
    pub seed: u64,
    /// Limit of each wait.
    pub patience: Duration,
}

/// What was seen.
#[derive(Debug, Clone)]
pub struct PoisoningReport {
    /// Of the load.
    pub transactions: usize,
    /// Those that the target refused.
    pub poisoned: usize,
    /// Those that were held behind them.
    pub dependent: usize,
    /// Rows of the target that a test saw change, in order.
    pub changes: u64,
    /// From the start of the applier until all of the backlog was done with, nothing poisoned.
    pub clean: Duration,
    /// The same with the poison in it.
    pub with_poison: Duration,
    /// From the operator's command until everything that was held was in.
    pub replay: Duration,
}

impl fmt::Display for PoisoningReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = |count: usize, took: Duration| count as f64 / took.as_secs_f64();
        let clean = per_second(self.transactions, self.clean);
        let with_poison = per_second(self.transactions, self.with_poison);
        let held = self.poisoned + self.dependent;
        writeln!(
            f,
            "without poison: {} transactions in {:.1} s, {clean:.0} in a second",
            self.transactions,
            self.clean.as_secs_f64()
        )?;
        writeln!(
            f,
            "with poison: {} transactions in {:.1} s, {with_poison:.0} in a second, {:.2} of that \
             without; {} poisoned and {} behind them held, everything else applied",
            self.transactions,
            self.with_poison.as_secs_f64(),
            with_poison / clean,
            self.poisoned,
            self.dependent
        )?;
        write!(
            f,
            "replayed: {held} in {:.1} s, {:.0} in a second; verify says equal; {} changes of the \
             target in order",
            self.replay.as_secs_f64(),
            per_second(held, self.replay),
            self.changes
        )
    }
}

/// Runs the load without poison and with it, each from an empty database pair to equality.
pub async fn poisoning(options: &PoisoningOptions) -> Result<PoisoningReport> {
    let ground = GroundOptions::version(options.version)
        .source("max_wal_size", "8GB")
        .target("max_wal_size", "8GB")
        .target("wal_level", "logical");
    let ground = Ground::start(&ground)?;
    let load = |per_mille| load::draw(options.seed, options.transactions, per_mille);

    let mut clean = Run::begin(&ground, "clean", options, load(0)).await?;
    let clean_took = clean.applied(options).await?;
    let (held, _) = clean.held().await?;
    ensure!(held.is_empty(), "{} are held without poison", held.len());
    clean
        .as_expected(&load::expect(&clean.load, &BTreeMap::new()))
        .await?;
    clean.ended(options).await?;
    drop(clean);

    let load = load(options.poisoned_per_mille);
    let mut run = Run::begin(&ground, "poisoned", options, load).await?;
    let with_poison = run.applied(options).await?;
    let (held, widened) = run.held().await?;
    let expected = load::expect(&run.load, &widened);
    if let Some(difference) = difference(&held, &expected.held) {
        anyhow::bail!("{difference}\n{}", run.flow.logs());
    }
    run.as_expected(&expected).await?;
    let replay = run.repaired(options).await?;
    run.ended(options).await?;
    let poisoned = held.values().filter(|why| **why == Why::Poisoned).count();
    Ok(PoisoningReport {
        transactions: options.transactions,
        poisoned,
        dependent: held.len() - poisoned,
        changes: run.history.changes,
        clean: clean_took,
        with_poison,
        replay,
    })
}

/// The first that is held and should not be, or should be and is not.
fn difference(held: &BTreeMap<usize, Why>, expected: &BTreeMap<usize, Why>) -> Option<String> {
    let mut numbers = held
        .keys()
        .chain(expected.keys())
        .collect::<BTreeSet<_>>()
        .into_iter();
    let number = numbers.find(|number| held.get(number) != expected.get(number))?;
    Some(format!(
        "{} are held where {} should be; transaction {number} is {:?}, expected {:?}",
        held.len(),
        expected.len(),
        held.get(number),
        expected.get(number)
    ))
}

/// One database pair with a load in it.
struct Run {
    flow: Flow,
    target: Client,
    history: History,
    load: Vec<Planned>,
    /// Transaction ids of the source to numbers of the load.
    numbers: BTreeMap<i64, usize>,
}

impl Run {
    /// Writes the load and has it published: a backlog for an applier that does not run yet.
    async fn begin(
        ground: &Ground,
        name: &str,
        options: &PoisoningOptions,
        load: Vec<Planned>,
    ) -> Result<Self> {
        let schema = |check: &str| {
            let table = |number| {
                format!(
                    "CREATE TABLE t{number} (id bigint PRIMARY KEY, version bigint NOT NULL, \
                     amount bigint NOT NULL{check}, writer bigint NOT NULL);"
                )
            };
            (0..TABLES).map(table).collect::<String>()
        };
        let refuses = format!(" CONSTRAINT {TARGET_CHECK} CHECK (amount > 0)");
        let mut flow = ground
            .flow(name, &schema(""), &schema(&refuses), EXTRA)
            .await?;
        flow.setup().await?;
        flow.start_relay()?;
        let source = compare::connect(&flow.source_admin).await?;
        source
            .batch_execute("SET synchronous_commit = off; SET search_path = public")
            .await?;
        let mut numbers = BTreeMap::new();
        for piece in load.chunks(WRITE_TOGETHER) {
            let sql: String = piece.iter().map(Planned::sql).collect();
            for message in source.simple_query(&sql).await? {
                if let SimpleQueryMessage::Row(row) = message {
                    let xid = row.get(0).context("an id")?.parse()?;
                    numbers.insert(xid, numbers.len());
                }
            }
        }
        let end = source
            .query_one(
                "WITH last AS (INSERT INTO t0 VALUES ($1, 1, 1, $1) RETURNING 1) \
                 SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint FROM last",
                &[&LAST],
            )
            .await?;
        let target = compare::connect(&flow.target_admin).await?;
        let history = History::begin(&target, name).await?;
        let mut run = Self {
            flow,
            target,
            history,
            load,
            numbers,
        };
        run.published(end.get::<_, i64>(0).cast_unsigned(), options)
            .await?;
        Ok(run)
    }

    async fn published(&mut self, end: u64, options: &PoisoningOptions) -> Result<()> {
        let deadline = Instant::now() + options.patience;
        let relay = self.flow.relay.as_ref().context("relay")?;
        while published(relay).await < Some(end) {
            ensure!(
                Instant::now() < deadline,
                "the relay did not publish the load\n{}",
                self.flow.logs()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Starts the applier, and waits until the last transaction of the load is in.
    async fn applied(&mut self, options: &PoisoningOptions) -> Result<Duration> {
        let began = Instant::now();
        self.flow.start_applier()?;
        let last = self
            .target
            .prepare("SELECT EXISTS (SELECT FROM public.t0 WHERE id = $1)")
            .await?;
        while !self
            .target
            .query_one(&last, &[&LAST])
            .await?
            .get::<_, bool>(0)
        {
            ensure!(
                began.elapsed() < options.patience,
                "the end of the load did not arrive\n{}",
                self.flow.logs()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(began.elapsed())
    }

    /// What is held, by number of the load, and which tables as a whole since which transaction.
    async fn held(&self) -> Result<(BTreeMap<usize, Why>, BTreeMap<usize, BTreeSet<u8>>)> {
        let rows = self
            .target
            .query(
                "SELECT source_xid, reason FROM trellara.held WHERE state = 'held'",
                &[],
            )
            .await?;
        let mut held = BTreeMap::new();
        for row in rows {
            let why = match row.get(1) {
                "poisoned" => Why::Poisoned,
                "dependent" => Why::Dependent,
                other => anyhow::bail!("held as {other}\n{}", self.flow.logs()),
            };
            held.insert(self.number(row.get(0))?, why);
        }
        let rows = self
            .target
            .query(
                "SELECT DISTINCT h.source_xid, k.\"table\" FROM trellara.held_key k \
                   JOIN trellara.held h ON h.id = k.held_id WHERE k.key IS NULL",
                &[],
            )
            .await?;
        let mut widened: BTreeMap<usize, BTreeSet<u8>> = BTreeMap::new();
        for row in rows {
            let table: &str = row.get(1);
            let table = table.strip_prefix('t').context("a table of the load")?;
            let number = self.number(row.get(0))?;
            widened.entry(number).or_default().insert(table.parse()?);
        }
        Ok((held, widened))
    }

    fn number(&self, xid: i64) -> Result<usize> {
        let number = self.numbers.get(&xid);
        number
            .copied()
            .with_context(|| format!("transaction {xid} is not of the load"))
    }

    /// Fails unless the target's rows are exactly those, and came there in order.
    async fn as_expected(&mut self, expected: &Expected) -> Result<()> {
        let mut found = BTreeMap::new();
        for table in 0..TABLES {
            let sql = format!("SELECT id, version, amount, writer FROM public.t{table}");
            for row in self.target.query(&sql, &[]).await? {
                let key = Key {
                    table,
                    id: row.get(0),
                };
                let row = Row {
                    version: row.get(1),
                    amount: row.get(2),
                    writer: row.get(3),
                };
                found.insert(key, row);
            }
        }
        found.retain(|key, _| key.id != LAST);
        let keys: BTreeSet<_> = found.keys().chain(expected.rows.keys()).collect();
        let wrong = keys
            .into_iter()
            .find(|key| found.get(key) != expected.rows.get(key));
        if let Some(key) = wrong {
            anyhow::bail!(
                "{key:?} is {:?} on the target, expected {:?}",
                found.get(key),
                expected.rows.get(key)
            );
        }
        self.history.read_on(&self.target).await
    }

    /// Mends the target, and has everything that was held replayed.
    async fn repaired(&mut self, options: &PoisoningOptions) -> Result<Duration> {
        for table in 0..TABLES {
            let sql = format!("ALTER TABLE public.t{table} DROP CONSTRAINT {TARGET_CHECK}");
            self.target.batch_execute(&sql).await?;
        }
        let began = Instant::now();
        heavy::replay(&self.flow, options.patience).await?;
        Ok(began.elapsed())
    }

    /// Fails unless nothing is open, both databases are equal, and all of it came in order.
    async fn ended(&mut self, options: &PoisoningOptions) -> Result<()> {
        let open: i64 = self
            .target
            .query_one(
                "SELECT count(*) FROM trellara.held WHERE state <> 'replayed'",
                &[],
            )
            .await?
            .get(0);
        ensure!(open == 0, "{open} are still open\n{}", self.flow.logs());
        self.flow.converges(options.patience).await?;
        self.history.read_on(&self.target).await
    }
}

/// Up to where the relay has published.
async fn published(relay: &Daemon) -> Option<u64> {
    let status = relay.status().await?;
    let text = status["daemons"][0]["lsn_published"].as_str()?;
    let (high, low) = text.split_once('/')?;
    let part = |text| u64::from_str_radix(text, 16).ok();
    Some(part(high)? << 32 | part(low)?)
}
