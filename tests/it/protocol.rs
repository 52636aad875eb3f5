//! Streamed transactions, savepoints, large rows.

use anyhow::{Result, ensure};

use crate::records::streamed;
use crate::scenario::{WITHIN, prepared, run, started, value};

const SMALL_MEMORY: &str = "SET logical_decoding_work_mem = '64kB'";

/// Makes the walsender stream early by the database's default.
async fn stream_early(url: &str) -> Result<()> {
    run(
        url,
        &["DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET logical_decoding_work_mem = ''64kB''', current_database()); END $$"],
    )
    .await
}

#[tokio::test]
async fn b22_savepoints_rolled_back_inside_a_streamed_transaction() -> Result<()> {
    for (version, name) in [(15, "b22on15"), (18, "b22on18")] {
        let schema = "CREATE TABLE s (id int PRIMARY KEY, t text)";
        let mut flow = prepared(version, name, &[schema], &[schema], "").await?;
        stream_early(&flow.source_admin).await?;
        flow.start().await?;
        run(
            &flow.source_admin,
            &[
                SMALL_MEMORY,
                "BEGIN; INSERT INTO s SELECT g, repeat('k', 200) FROM generate_series(1, 600) g;
                 SAVEPOINT a; INSERT INTO s SELECT g, repeat('r', 200) FROM generate_series(1001, 1600) g; ROLLBACK TO a;
                 INSERT INTO s VALUES (5000, 'after');
                 SAVEPOINT b; INSERT INTO s VALUES (5001, 'b'); SAVEPOINT c; INSERT INTO s VALUES (5002, 'c'); ROLLBACK TO c; RELEASE b;
                 COMMIT",
                "DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO s VALUES (10000 + i, repeat('x', 500)); IF i % 3 = 0 THEN RAISE EXCEPTION 'undone'; END IF;
                 EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$",
            ],
        )
        .await?;
        flow.converges(WITHIN).await?;
        ensure!(
            streamed(&flow.source_admin, &flow.name, true).await?,
            "nothing was streamed on {version}"
        );
        ensure!(
            value(
                &flow.target_admin,
                "SELECT count(*) FROM s WHERE id <= 5002"
            )
            .await?
                == "602"
        );
        ensure!(
            value(
                &flow.target_admin,
                "SELECT count(*) FROM s WHERE id > 10000"
            )
            .await?
                == "200"
        );
    }
    Ok(())
}

#[tokio::test]
async fn c19_streamed_transactions_interleave_with_small_ones_and_with_ddl() -> Result<()> {
    let schema =
        "CREATE TABLE a (id int PRIMARY KEY, t text); CREATE TABLE b (id int PRIMARY KEY, t text)";
    let mut flow = prepared(
        15,
        "interleave",
        &[schema],
        &["CREATE TABLE a (id int PRIMARY KEY, t text, u text); CREATE TABLE b (id int PRIMARY KEY, t text)"],
        "",
    )
    .await?;
    stream_early(&flow.source_admin).await?;
    flow.start().await?;
    let one = trellara_testkit::compare::connect(&flow.source_admin).await?;
    let two = trellara_testkit::compare::connect(&flow.source_admin).await?;
    let big = |table: &str, from: u32| {
        format!(
            "INSERT INTO public.{table} (id, t) SELECT g, repeat('y', 300) FROM generate_series({from}, {}) g",
            from + 999
        )
    };
    one.batch_execute("BEGIN").await?;
    one.batch_execute(&big("a", 1)).await?;
    two.batch_execute("BEGIN").await?;
    two.batch_execute(&big("b", 1)).await?;
    run(
        &flow.source_admin,
        &["INSERT INTO b VALUES (100000, 'small')"],
    )
    .await?;
    one.batch_execute("ALTER TABLE public.a ADD COLUMN u text")
        .await?;
    one.batch_execute(&big("a", 2001)).await?;
    two.batch_execute(&big("b", 2001)).await?;
    two.batch_execute("ROLLBACK").await?;
    one.batch_execute("COMMIT").await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO a VALUES (100000, 'late', 'column')",
            "UPDATE b SET t = 'x' WHERE id = 100000",
        ],
    )
    .await?;
    flow.converges(WITHIN).await
}

async fn large_rows(mebibytes: u32, name: &str) -> Result<()> {
    let schema = "CREATE TABLE r (id int PRIMARY KEY, t text, n int); CREATE TABLE f (id int, t text, n int); ALTER TABLE f REPLICA IDENTITY FULL";
    let flow = started(15, name, &[schema], "").await?;
    for table in ["r", "f"] {
        run(
            &flow.source_admin,
            &[
                // md5 keeps it from being compressed away.
                &format!("INSERT INTO {table} SELECT 1, string_agg(md5(g::text), ''), 1 FROM generate_series(1, {}) g", mebibytes * 32768),
                &format!("UPDATE {table} SET n = 2"),
                &format!("UPDATE {table} SET id = 5"),
            ],
        )
        .await?;
    }
    flow.converges(std::time::Duration::from_secs(100)).await?;
    run(&flow.source_admin, &["DELETE FROM r; DELETE FROM f"]).await?;
    flow.converges(std::time::Duration::from_secs(100)).await?;
    let limit = 64 * 1024 * 1024 + 4 * u64::from(mebibytes) * 1024 * 1024;
    for (name, daemon) in [
        ("relay", flow.relay.as_ref()),
        ("applier", flow.applier.as_ref()),
    ] {
        let peak = daemon
            .and_then(|daemon| daemon.peak_memory_bytes())
            .expect("it runs");
        ensure!(
            peak <= limit,
            "{name}: peak {} MiB where {} MiB are allowed",
            peak >> 20,
            limit >> 20
        );
    }
    Ok(())
}

#[tokio::test]
async fn rows_of_one_mebibyte() -> Result<()> {
    large_rows(1, "rows1").await
}

#[tokio::test]
async fn rows_of_eight_mebibytes() -> Result<()> {
    large_rows(8, "rows8").await
}

#[tokio::test]
async fn rows_of_sixty_four_mebibytes() -> Result<()> {
    large_rows(64, "rows64").await
}
