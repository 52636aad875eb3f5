//! What the benchmark replicates: schemas, backlogs, and the bars of each workload.

use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::compare;
use crate::fresh::pgbench;

/// pgbench's TPC-B without its SELECT, which replication never sees.
const SMALL_TRANSACTION: &str = "\\set aid random(1, :accounts)
\\set bid random(1, 10)
\\set tid random(1, 100)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
";
/// Sessions that write the small transactions; the backlog is interleaved as in a real log.
const CLIENTS: u64 = 4;
/// pgbench's scale 10.
const ACCOUNTS: u64 = 1_000_000;
/// The row committed last has this table to itself.
pub(super) const MARKER: &str = "public.marker";

/// A workload of the table of bars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Small transactions of three updates and an insert.
    W1,
    /// Transactions of a thousand inserts.
    W3,
    /// Transactions of one insert.
    W4,
}

/// A workload with its size.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Which.
    pub kind: Kind,
    /// Source transactions in the backlog.
    pub transactions: u64,
}

impl Kind {
    /// All that are measured, in the order of the table.
    pub const ALL: [Kind; 3] = [Kind::W1, Kind::W3, Kind::W4];

    /// As the table of bars calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::W1 => "W1",
            Kind::W3 => "W3",
            Kind::W4 => "W4",
        }
    }

    /// Parses the name, in either case.
    pub fn parse(text: &str) -> Result<Self> {
        let found = Kind::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(text));
        match found {
            Some(kind) => Ok(kind),
            None => bail!("there is no workload {text:?}; there are W1, W3 and W4"),
        }
    }

    /// The transactions of the full workload.
    pub fn full_transactions(self) -> u64 {
        match self {
            Kind::W1 => 200_000,
            Kind::W3 => 1_000,
            Kind::W4 => 500_000,
        }
    }

    /// The least rate, in multiples of native replication's.
    pub fn rate_bar(self) -> f64 {
        match self {
            Kind::W1 => 1.5,
            Kind::W3 => 0.9,
            Kind::W4 => 1.6,
        }
    }

    /// The most CPU seconds, in multiples of native replication's, where there is such a bar.
    pub fn cost_bar(self) -> Option<f64> {
        match self {
            Kind::W1 => Some(1.5),
            Kind::W3 | Kind::W4 => None,
        }
    }

    /// What its rate counts.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::W1 | Kind::W4 => "tx/s",
            Kind::W3 => "rows/s",
        }
    }

    /// The database and the first part of a flow's name.
    pub(super) fn database(self) -> String {
        self.name().to_lowercase()
    }

    /// Further configuration of its flows.
    pub(super) fn flow_configuration(self) -> &'static str {
        // The rows that are there before the backlog are on both sides already. pgbench's history
        // has no key.
        match self {
            Kind::W1 => "backfill: {mode: none}\nsource.insert_only: [\"public.history\"]",
            Kind::W3 | Kind::W4 => "backfill: {mode: none}",
        }
    }
}

impl Workload {
    /// A part of the full workload; never less than a few transactions.
    pub fn scaled(kind: Kind, scale: f64) -> Self {
        let transactions = (kind.full_transactions() as f64 * scale).round() as u64;
        Self {
            kind,
            transactions: transactions.max(2 * CLIENTS),
        }
    }

    /// What is counted in [`Kind::unit`].
    pub fn work(&self) -> u64 {
        match self.kind {
            Kind::W1 | Kind::W4 => self.transactions,
            Kind::W3 => self.transactions * 1000,
        }
    }

    /// What it is, in words.
    pub fn describe(&self) -> String {
        let transactions = self.transactions;
        match self.kind {
            Kind::W1 => format!("{transactions} transactions of 3 updates and 1 insert"),
            Kind::W3 => format!("{transactions} transactions of 1000 inserts"),
            Kind::W4 => format!("{transactions} transactions of 1 insert"),
        }
    }

    /// A tenth of a workload would otherwise spend most of its time loading accounts.
    fn accounts(&self) -> u64 {
        ACCOUNTS.min(self.transactions * 50)
    }

    /// Tables, and the rows that both sides have from the beginning.
    pub(super) fn schema(&self) -> String {
        let marker = format!("CREATE TABLE {MARKER} (id int PRIMARY KEY);");
        match self.kind {
            Kind::W1 => format!(
                "{marker}
                 CREATE TABLE public.branches (bid int PRIMARY KEY, bbalance int, filler char(88));
                 CREATE TABLE public.tellers
                     (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
                 CREATE TABLE public.accounts
                     (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
                 CREATE TABLE public.history
                     (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
                 INSERT INTO public.branches SELECT n, 0, '' FROM generate_series(1, 10) AS n;
                 INSERT INTO public.tellers
                     SELECT n, (n - 1) / 10 + 1, 0, '' FROM generate_series(1, 100) AS n;
                 INSERT INTO public.accounts
                     SELECT n, (n - 1) / 100000 + 1, 0, '' FROM generate_series(1, {}) AS n;
                 ANALYZE;",
                self.accounts()
            ),
            Kind::W3 | Kind::W4 => format!(
                "{marker}
                 CREATE TABLE public.entries
                     (id bigint PRIMARY KEY, number int, at timestamptz, words text);"
            ),
        }
    }

    /// Writes the backlog into the source database, its marker last and durable. Replication is
    /// what is measured, so the source does not wait for its disk before the marker.
    pub(super) async fn generate(&self, version: u32, url: &str) -> Result<()> {
        match self.kind {
            Kind::W1 => self.small_transactions(version, url)?,
            Kind::W3 => {
                let loaded = format!(
                    "DO $$ BEGIN FOR i IN 0..{} LOOP
                         INSERT INTO public.entries
                             SELECT i * 1000 + n, n, clock_timestamp(), repeat(md5(n::text), 5)
                               FROM generate_series(1, 1000) AS n;
                         COMMIT;
                     END LOOP; END $$",
                    self.transactions - 1
                );
                load(url, &loaded).await?;
            }
            Kind::W4 => {
                let loaded = format!(
                    "DO $$ BEGIN FOR i IN 1..{} LOOP
                         INSERT INTO public.entries
                             VALUES (i, i, clock_timestamp(), repeat(md5(i::text), 3));
                         COMMIT;
                     END LOOP; END $$",
                    self.transactions
                );
                load(url, &loaded).await?;
            }
        }
        let source = compare::connect(url).await?;
        let marker = format!("INSERT INTO {MARKER} VALUES (1)");
        source.batch_execute(&marker).await?;
        Ok(())
    }

    fn small_transactions(&self, version: u32, url: &str) -> Result<()> {
        let mut script = tempfile::NamedTempFile::new()?;
        script.write_all(SMALL_TRANSACTION.as_bytes())?;
        let path = script.path().to_str().context("a path in UTF-8")?;
        let accounts = format!("accounts={}", self.accounts());
        let clients = CLIENTS.to_string();
        let each = (self.transactions / CLIENTS).to_string();
        let arguments = [
            "-n",
            "-M",
            "prepared",
            "--random-seed=1",
            "-c",
            &clients,
            "-t",
            &each,
            "-D",
            &accounts,
            "-f",
            path,
        ];
        let url = format!("{url}?options=-csynchronous_commit%3Doff");
        pgbench(version, &url, &arguments)
    }
}

async fn load(url: &str, statement: &str) -> Result<()> {
    let source = compare::connect(url).await?;
    source
        .batch_execute("SET search_path = pg_catalog; SET synchronous_commit = off")
        .await?;
    source.batch_execute(statement).await?;
    Ok(())
}
