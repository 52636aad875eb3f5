//! Record keys do not depend on how the source happened to decode: the same transactions captured
//! with different memory, streamed or not, have the same keys.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;
use trellara_testkit::flow::{Flow, Places};
use trellara_testkit::ground::{Ground, GroundOptions};

use crate::scenario::{run, value};

const SCHEMA: &str = "
    CREATE TABLE big (id int PRIMARY KEY, body text);
    CREATE TABLE small (id int PRIMARY KEY, body text);
    CREATE TABLE full_rows (a int, b text);
    ALTER TABLE full_rows REPLICA IDENTITY FULL;
";

/// Transactions of [`load`] that change rows.
const TRANSACTIONS: usize = 8;

/// Transactions large and small, interleaved, with savepoints rolled back and DDL inside.
async fn load(url: &str) -> Result<()> {
    let one = compare::connect(url).await?;
    let two = compare::connect(url).await?;
    for client in [&one, &two] {
        client.batch_execute("SET search_path = public").await?;
    }
    let rows = |table: &str, from: u32, count: u32| {
        format!(
            "INSERT INTO {table} SELECT g, repeat('b', 300) FROM generate_series({from}, {}) g",
            from + count - 1
        )
    };
    two.batch_execute("INSERT INTO small VALUES (1, 'before')")
        .await?;
    one.batch_execute("BEGIN").await?;
    one.batch_execute(&rows("big", 1, 1500)).await?;
    two.batch_execute("BEGIN").await?;
    two.batch_execute(&rows("full_rows", 1, 800)).await?;
    one.batch_execute("SAVEPOINT a").await?;
    one.batch_execute(&rows("big", 10_000, 1500)).await?;
    one.batch_execute("SAVEPOINT b; UPDATE big SET body = 'undone' WHERE id < 200; ROLLBACK TO b")
        .await?;
    one.batch_execute("ROLLBACK TO a").await?;
    one.batch_execute("ALTER TABLE big ADD COLUMN late int")
        .await?;
    one.batch_execute("UPDATE big SET late = id WHERE id <= 700")
        .await?;
    two.batch_execute("UPDATE full_rows SET b = b || 'x' WHERE a < 400")
        .await?;
    one.batch_execute("DELETE FROM big WHERE id BETWEEN 100 AND 150")
        .await?;
    two.batch_execute("COMMIT").await?;
    one.batch_execute("COMMIT").await?;
    run(
        url,
        &[
            "BEGIN; INSERT INTO small VALUES (2, 'x'); SAVEPOINT s; INSERT INTO small VALUES (3, 'undone'); ROLLBACK TO s; UPDATE small SET id = 4 WHERE id = 2; COMMIT",
            // Rolled back as a whole: it has no keys.
            "BEGIN; INSERT INTO small SELECT g, repeat('r', 300) FROM generate_series(100, 1500) g; ROLLBACK",
            "DELETE FROM full_rows WHERE a > 700",
            "TRUNCATE small, full_rows",
            "INSERT INTO small SELECT g, repeat('s', 300) FROM generate_series(1, 900) g",
            "INSERT INTO full_rows VALUES (1, 'last')",
        ],
    )
    .await
}

/// A further flow over the source database of the first, with a target database of its own.
async fn capture(ground: &Ground, database: &str, number: usize, memory: &str) -> Result<Flow> {
    let target = format!("{database}{number}");
    let admin = compare::connect(&ground.target.url("postgres")).await?;
    admin
        .batch_execute(&format!("CREATE DATABASE {target}"))
        .await?;
    run(&ground.target.url(&target), &[SCHEMA]).await?;
    let mut flow = Flow::new(
        &format!("records{number}"),
        Places {
            source_url: ground.source.url(database),
            target_url: ground.target.url(&target),
            nats_url: ground.nats.url(),
            nats_monitor_url: Some(ground.nats.monitor_url()),
        },
        "",
    )?;
    flow.places.source_url.push_str(&format!(
        "?options=-c%20logical_decoding_work_mem%3D{memory}"
    ));
    flow.write_config()?;
    Ok(flow)
}

async fn inspect(flow: &Flow, arguments: &[&str]) -> Result<Vec<Value>> {
    let arguments = [&["--output", "json", "inspect"], arguments].concat();
    let done = flow.command(&arguments).await?;
    ensure!(
        done.code == 0,
        "inspect ended with {}: {}",
        done.code,
        done.stderr
    );
    serde_json::from_str(&done.stdout).context("inspect prints JSON")
}

fn text(value: &Value, name: &str) -> Result<String> {
    Ok(value[name].as_str().context("a text")?.to_owned())
}

/// Whether the flow's walsender streamed transactions that were still open. Its counters are
/// written a moment later, so what is expected is waited for.
pub(crate) async fn streamed(source: &str, flow: &str, expected: bool) -> Result<bool> {
    let sql = format!(
        "SELECT stream_txns > 0 FROM pg_stat_replication_slots WHERE slot_name = 'trellara_{flow}'"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let streamed = value(source, &sql).await? == "t";
        if streamed == expected || Instant::now() > deadline {
            return Ok(streamed);
        }
    }
}

/// Identity of each transaction → its record keys with what they do.
async fn records(flow: &Flow) -> Result<BTreeMap<String, Vec<String>>> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let transactions = loop {
        let found = inspect(flow, &["--limit", "0"]).await?;
        if found.len() >= TRANSACTIONS {
            break found;
        }
        ensure!(
            Instant::now() < deadline,
            "{} transactions in the stream: {found:?}\n{}",
            found.len(),
            flow.logs()
        );
    };
    let mut all = BTreeMap::new();
    for transaction in &transactions {
        let id = text(transaction, "id")?;
        let keys = inspect(flow, &["--transaction", &id])
            .await?
            .iter()
            .map(|record| {
                let (key, operation) = (text(record, "id")?, text(record, "operation")?);
                Ok(format!("{key} {operation} {}", text(record, "table")?))
            })
            .collect::<Result<Vec<String>>>()?;
        let chunked = transaction["chunks"].as_u64().context("a number")? > 0;
        // A manifest counts what the relay saw, rolled back savepoints included: only who reads
        // the chunks knows what survives.
        let counted = transaction["changes"].as_u64().context("a number")?;
        let kept = keys.len() as u64;
        ensure!(
            kept == counted || (chunked && kept < counted),
            "{kept} keys, but {transaction}"
        );
        all.insert(id, keys);
    }
    Ok(all)
}

async fn the_same_keys_however_the_source_decodes(version: u32) -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(version))?;
    let first = ground.flow("records", SCHEMA, SCHEMA, "").await?;
    let mut flows = Vec::new();
    for (number, memory) in ["64kB", "1GB", "64kB", "1GB"].into_iter().enumerate() {
        let mut flow = capture(&ground, "records", number, memory).await?;
        flow.setup().await?;
        flow.start_relay()?;
        flows.push((memory, flow));
    }
    load(&first.source_admin).await?;
    let mut seen = Vec::new();
    for (memory, flow) in &flows {
        let records = records(flow).await?;
        ensure!(records.len() == TRANSACTIONS, "{records:?}");
        // Large ones come in chunks either way; the source says whether it streamed.
        let streamed = streamed(&first.source_admin, &flow.name, *memory == "64kB").await?;
        ensure!(
            streamed == (*memory == "64kB"),
            "streamed with {memory}: {streamed}"
        );
        seen.push(records);
    }
    let total: usize = seen[0].values().map(Vec::len).sum();
    ensure!(total > 4000, "only {total} record keys");
    for (at, keys) in seen.iter().enumerate().skip(1) {
        for (id, expected) in &seen[0] {
            let found = keys
                .get(id)
                .with_context(|| format!("no transaction {id} in capture {at}"))?;
            let differing = expected.iter().zip(found).find(|(a, b)| a != b);
            ensure!(
                expected == found,
                "capture {at}, transaction {id}: {} keys against {}, first difference {differing:?}",
                expected.len(),
                found.len()
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_same_keys_however_the_source_decodes_on_15() -> Result<()> {
    the_same_keys_however_the_source_decodes(15).await
}

#[tokio::test]
async fn the_same_keys_however_the_source_decodes_on_18() -> Result<()> {
    the_same_keys_however_the_source_decodes(18).await
}
