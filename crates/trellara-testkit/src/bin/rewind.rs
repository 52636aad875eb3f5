//! `rewind [transactions] [postgres version]`: that many transactions are applied, then the stream
//! is read again from its beginning; exit 1 unless the ledger has all of them and no row version of the
//! target is another one.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio_postgres::Client;
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};

const SCHEMA: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text)";
/// A stream that keeps all of it.
const EXTRA: &str = "nats.history: \"6h or 8GiB\"\nnats.max_bytes: 10GiB";
/// Of each wait.
const PATIENCE: Duration = Duration::from_secs(900);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| {
        let text = arguments.get(at);
        text.map_or(Ok(default), |text| text.parse())
    };
    let transactions = number(0, 1_000_000).context("transactions")?;
    let version = number(1, 18).context("PostgreSQL version")? as u32;
    let options = GroundOptions::version(version)
        .source("max_wal_size", "8GB")
        .target("max_wal_size", "8GB");
    let ground = Ground::start(&options)?;
    let mut flow = ground.flow("rewind", SCHEMA, SCHEMA, EXTRA).await?;
    flow.start().await?;
    let began = Instant::now();
    let source = compare::connect(&flow.source_admin).await?;
    source
        .batch_execute("SET synchronous_commit = off; SET search_path = public")
        .await?;
    let every = format!(
        "DO $$ BEGIN FOR n IN 1..{transactions} LOOP \
             INSERT INTO public.t VALUES (n, 'x'); COMMIT; END LOOP; END $$"
    );
    source.batch_execute(&every).await?;
    flow.caught_up(PATIENCE).await?;
    let seconds = began.elapsed().as_secs_f64();
    println!("{transactions} transactions written and applied in {seconds:.1} s");
    let status = flow.applier.as_ref().context("applier")?.status().await;
    let status = status.context("no status")?;
    println!("applier: {}", status["daemons"][0]["counters"]);

    let target = compare::connect(&flow.target_admin).await?;
    let before = written(&target).await?;
    let words = [
        "rewind",
        "--to",
        "oldest",
        "--timeout",
        "15m",
        "--output",
        "json",
    ];
    let done = flow.command(&words).await?;
    ensure!(done.code == 0, "{done:?}");
    println!("{}", done.stdout.trim());
    let report: Value = serde_json::from_str(&done.stdout)?;
    ensure!(
        report["transactions"].as_u64() >= Some(transactions),
        "not all were delivered again: the stream did not keep them"
    );
    ensure!(
        report["confirmed_in_ledger"] == report["transactions"],
        "not all were found in the ledger"
    );
    ensure!(report["rows_written"] == 0, "rows were written");
    let after = written(&target).await?;
    println!("row versions in the table and in the ledger: {after:?}");
    ensure!(after == before, "rows were written: {before:?} before");
    flow.converges(PATIENCE).await
}

/// What the target itself says of its table and its ledger. Progress without transactions is left
/// out: an idle applier writes it down every ten seconds.
async fn written(target: &Client) -> Result<[(i64, String); 2]> {
    Ok([
        compare::row_versions(target, "public.t", "true").await?,
        compare::row_versions(target, "trellara.applied", "length(hashes) > 0").await?,
    ])
}
