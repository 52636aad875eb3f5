//! Cases from the field that a copy meets, each a test named after its number. What types, names
//! and identities do to a copy is tried by the tests of the stream, which copy their rows as well.

use anyhow::{Result, ensure};
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::copied;
use super::resume::Held;
use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, value};

/// A slot is made when every transaction that runs is over, in whatever database and in whatever
/// state it is; so they are named before anything is begun.
#[tokio::test]
async fn b26_prepared_and_old_transactions_are_named_before_a_slot_waits_for_them() -> Result<()> {
    let options = GroundOptions::version(15).source("max_prepared_transactions", "5");
    let ground = Ground::start(&options)?;
    let schema = "CREATE TABLE t (id int PRIMARY KEY)";
    let flow = ground.flow("b26", schema, schema, "").await?;
    let elsewhere = compare::connect(&ground.source.url("postgres")).await?;
    elsewhere
        .batch_execute(
            "CREATE TABLE public.x (id int); BEGIN; INSERT INTO public.x VALUES (1); PREPARE TRANSACTION 'lost'",
        )
        .await?;
    flow.grant().await?;
    let checked = flow.command(&["check"]).await?;
    let said = format!("{}{}", checked.stdout, checked.stderr);
    ensure!(said.contains("lost"), "{said}");
    let slots = "SELECT count(*) FROM pg_replication_slots";
    ensure!(
        value(&flow.source_admin, slots).await? == "0",
        "a slot is left"
    );
    elsewhere.batch_execute("ROLLBACK PREPARED 'lost'").await?;
    flow.setup().await
}

#[tokio::test]
async fn b55_names_of_every_kind_are_copied() -> Result<()> {
    let schema = &[r#"CREATE SCHEMA "x.y";
        CREATE TABLE "a.b" (id int PRIMARY KEY, "v w" text);
        CREATE TABLE "a b" (id int PRIMARY KEY, v text);
        CREATE TABLE "a*" (id int PRIMARY KEY, v text);
        CREATE TABLE "a>" (id int PRIMARY KEY, v text);
        CREATE TABLE "Ünï" (id int PRIMARY KEY, "vé""x" text);
        CREATE TABLE "$JS" (id int PRIMARY KEY, v text);
        CREATE TABLE "A" (id int PRIMARY KEY, v text);
        CREATE TABLE a (id int PRIMARY KEY, v text);
        CREATE TABLE "x.y"."t" (id int PRIMARY KEY, "select" text)"#];
    let tables = [
        r#""a.b""#,
        r#""a b""#,
        r#""a*""#,
        r#""a>""#,
        r#""Ünï""#,
        r#""$JS""#,
        r#""A""#,
        "a",
        r#""x.y"."t""#,
    ];
    let rows: Vec<String> = tables
        .iter()
        .enumerate()
        .map(|(at, table)| {
            format!("INSERT INTO {table} SELECT g, '{at}' FROM generate_series(1, 20) g")
        })
        .collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let extra = "source.tables: [\"public.*\", '\"x.y\".*']";
    let flow = copied(15, "b55", schema, schema, &rows, extra).await?;
    for table in tables {
        run(
            &flow.source_admin,
            &[&format!("DELETE FROM {table} WHERE id = 7")],
        )
        .await?;
    }
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b61_a_parents_rows_are_copied_without_its_childrens() -> Result<()> {
    let schema = &["CREATE TABLE base (id int PRIMARY KEY, v text);
        CREATE TABLE kid (extra int, PRIMARY KEY (id)) INHERITS (base)"];
    let rows = &["INSERT INTO base VALUES (1, 'b'); INSERT INTO kid VALUES (2, 'k', 9)"];
    let flow = copied(18, "b61", schema, schema, rows, "").await?;
    run(&flow.source_admin, &["UPDATE base SET v = v || '!'"]).await?;
    flow.converges(WITHIN).await?;
    let only = "SELECT string_agg(id::text, ' ') FROM ONLY base";
    ensure!(value(&flow.target_admin, only).await? == "1");
    Ok(())
}

#[tokio::test]
async fn b63_keys_of_every_order_are_copied_once() -> Result<()> {
    let schema = &["
        CREATE TABLE words (id text PRIMARY KEY);
        CREATE TABLE pairs (tenant int, id bigint, PRIMARY KEY (tenant, id));
        CREATE TABLE padded (id char(5) PRIMARY KEY);
        CREATE TABLE maybe (id int UNIQUE, v text);
        ALTER TABLE maybe REPLICA IDENTITY FULL;
        CREATE TABLE numbers (id numeric PRIMARY KEY);
        CREATE TABLE ids (id uuid PRIMARY KEY)"];
    let rows = &["
        INSERT INTO words VALUES ('a'), ('B'), ('_x'), ('é'), ('a-b'), ('ab'), (E'a\\tb'), (E'\\\\N'), ('');
        INSERT INTO pairs SELECT g % 3, g FROM generate_series(1, 300) g;
        INSERT INTO padded VALUES ('a'), ('a b'), ('abcde');
        INSERT INTO maybe VALUES (1, 'x'), (NULL, 'y'), (NULL, 'y');
        INSERT INTO numbers VALUES ('NaN'), (0), (-1.50), (1e30);
        INSERT INTO ids SELECT md5(g::text)::uuid FROM generate_series(1, 50) g"];
    let flow = copied(15, "b63", schema, schema, rows, "").await?;
    flow.converges(WITHIN).await
}

/// While the copy lasts the stream takes the changes, so that the source may forget them; the
/// target shows none of them before all of the copy is there.
#[tokio::test]
async fn b66_the_source_keeps_no_wal_for_the_copy() -> Result<()> {
    let mut held = Held::start(15).await?;
    held.write().await?;
    let source = held.flow.source_admin.clone();
    let written = value(&source, "SELECT pg_current_wal_lsn()").await?;
    let passed = format!(
        "SELECT confirmed_flush_lsn >= '{written}' FROM pg_replication_slots \
          WHERE slot_name = 'trellara_held'"
    );
    until(&source, &passed, "t", WITHIN).await?;
    let early = "SELECT count(*) FROM large_1 WHERE body = 'changed'";
    ensure!(value(&held.flow.target_admin, early).await? == "0");
    held.ends_equal().await.map(drop)
}

#[tokio::test]
async fn b96_partitions_are_copied_by_leaf_and_by_root() -> Result<()> {
    let halves = "CREATE TABLE pt (id int PRIMARY KEY, k int) PARTITION BY RANGE (id);
        CREATE TABLE pt1 PARTITION OF pt FOR VALUES FROM (0) TO (100);
        CREATE TABLE pt2 PARTITION OF pt FOR VALUES FROM (100) TO (200)";
    let hashed = "CREATE TABLE pt (id int PRIMARY KEY, k int) PARTITION BY HASH (id);
        CREATE TABLE a PARTITION OF pt FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE b PARTITION OF pt FOR VALUES WITH (MODULUS 2, REMAINDER 1)";
    let rows = &["INSERT INTO pt SELECT g, g FROM generate_series(0, 199) g"];
    for (version, name, target, extra) in [
        (15, "leafcopy", halves, "source.partitions: leaf"),
        (18, "rootcopy", halves, "source.partitions: root"),
        (15, "hashcopy", hashed, "source.partitions: root"),
    ] {
        let flow = copied(version, name, &[halves], &[target], rows, extra).await?;
        run(&flow.source_admin, &["UPDATE pt SET id = id + 100 WHERE id < 10 AND false; UPDATE pt SET k = -1 WHERE id % 7 = 0; DELETE FROM pt WHERE id = 150"]).await?;
        flow.caught_up(WITHIN).await?;
        let rows = "SELECT string_agg(pt::text, ' ' ORDER BY id) FROM pt";
        let ours = value(&flow.source_admin, rows).await?;
        let theirs = value(&flow.target_admin, rows).await?;
        ensure!(ours == theirs, "{name}: {ours} and {theirs}");
    }
    Ok(())
}

#[tokio::test]
async fn b103_generated_and_dropped_columns_are_copied_as_the_stream_has_them() -> Result<()> {
    let source = &["CREATE TABLE g (id int PRIMARY KEY, gone int, b int,
            s int GENERATED ALWAYS AS (b * 2) STORED);
        ALTER TABLE g DROP COLUMN gone;
        CREATE TABLE bare (gone int); ALTER TABLE bare DROP COLUMN gone;
        ALTER TABLE bare ADD s int GENERATED ALWAYS AS (7) STORED;
        ALTER TABLE bare REPLICA IDENTITY FULL"];
    let target = &[
        "CREATE TABLE g (s int GENERATED ALWAYS AS (b * 2) STORED, b int, id int PRIMARY KEY);
        CREATE TABLE bare (s int GENERATED ALWAYS AS (7) STORED);
        ALTER TABLE bare REPLICA IDENTITY FULL",
    ];
    let rows = &["INSERT INTO g SELECT i, i FROM generate_series(1, 50) i;
        INSERT INTO bare DEFAULT VALUES; INSERT INTO bare DEFAULT VALUES"];
    for (version, name) in [(15, "b103a"), (18, "b103b")] {
        let flow = copied(version, name, source, target, rows, "").await?;
        run(&flow.source_admin, &["UPDATE g SET b = -b WHERE id < 5"]).await?;
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

#[tokio::test]
async fn tables_with_and_without_rows_many_and_few_are_copied() -> Result<()> {
    let tables: Vec<String> = (0..60)
        .map(|n| format!("CREATE TABLE t{n} (id int PRIMARY KEY, v text)"))
        .collect();
    let schema: Vec<&str> = tables.iter().map(String::as_str).collect();
    let fill: Vec<String> = (0..60)
        .step_by(2)
        .map(|n| format!("INSERT INTO t{n} SELECT g, 'x' FROM generate_series(1, {n}) g"))
        .collect();
    let rows: Vec<&str> = fill.iter().map(String::as_str).collect();
    let flow = copied(18, "many", &schema, &schema, &rows, "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO t1 VALUES (1, 'was empty')"],
    )
    .await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn rows_that_are_in_the_target_are_refused_emptied_or_kept() -> Result<()> {
    let schema = &["CREATE TABLE t (id int PRIMARY KEY, v text)"];
    let rows = &["INSERT INTO t VALUES (1, 'source'), (2, 'source')"];
    let there = &["INSERT INTO t VALUES (1, 'target'), (3, 'target')"];
    let flow = prepared(15, "refuse", schema, schema, "").await?;
    run(&flow.source_admin, rows).await?;
    run(&flow.target_admin, there).await?;
    flow.grant().await?;
    let refused = flow.command(&["setup", "--yes"]).await?;
    ensure!(
        refused.code != 0 && refused.stderr.contains("TARGET_TABLE_HAS_ROWS"),
        "{}",
        refused.stderr
    );

    let mut flow = prepared(
        15,
        "empty",
        schema,
        schema,
        "backfill: {existing: truncate}",
    )
    .await?;
    run(&flow.source_admin, rows).await?;
    run(&flow.target_admin, there).await?;
    flow.start().await?;
    flow.copied(WITHIN).await?;
    flow.converges(WITHIN).await?;

    let mut flow = prepared(18, "keep", schema, schema, "backfill: {existing: keep}").await?;
    run(&flow.source_admin, rows).await?;
    run(&flow.target_admin, rows).await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &["UPDATE t SET v = 'changed' WHERE id = 2"],
    )
    .await?;
    flow.converges(WITHIN).await
}
