//! Identifiers, partitions, and tables that change while the flow runs.

use anyhow::{Context, Result, ensure};
use trellara_testkit::flow::Flow;

use crate::scenario::{WITHIN, carried, prepared, run, started, value};

#[tokio::test]
async fn b27_truncate() -> Result<()> {
    for (version, name) in [(15, "b27on15"), (18, "b27on18")] {
        carried(
            version,
            name,
            &["CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id serial PRIMARY KEY, p int REFERENCES p); CREATE TABLE t (id int PRIMARY KEY)"],
            &[
                "INSERT INTO p VALUES (1), (2); INSERT INTO c (p) VALUES (1), (2); INSERT INTO t VALUES (1)",
                "BEGIN; INSERT INTO t VALUES (2); TRUNCATE t; INSERT INTO t VALUES (3); COMMIT",
                "TRUNCATE p, c RESTART IDENTITY",
                "INSERT INTO p VALUES (9); INSERT INTO c (p) VALUES (9)",
            ],
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn b94_mixed_case_publication() -> Result<()> {
    let schema = "CREATE TABLE t (id int PRIMARY KEY)";
    let mut flow = prepared(
        15,
        "b94",
        &[schema],
        &[schema],
        "source.publication: \"My-Pub, \\\"odd\\\" one\"",
    )
    .await?;
    run(
        &flow.source_admin,
        &["CREATE PUBLICATION \"My-Pub, \"\"odd\"\" one\" FOR TABLE t"],
    )
    .await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO t VALUES (1), (2)",
            "DELETE FROM t WHERE id = 1",
        ],
    )
    .await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b95_identifiers_that_need_quotes() -> Result<()> {
    let long = "l".repeat(63);
    let schema = [
        r#"CREATE SCHEMA "Weird.Sch""ema""#.to_owned(),
        r#"CREATE TABLE "Weird.Sch""ema"."select * > é 😀" ("User" int PRIMARY KEY, "a""b" text, "order" int, "имя" text, "with space" int, "x'); drop table t; --" int)"#.to_owned(),
        format!("CREATE TABLE {long} (id int PRIMARY KEY)"),
        r#"CREATE TABLE "$1" (id int PRIMARY KEY, "$2" text)"#.to_owned(),
    ];
    let schema: Vec<&str> = schema.iter().map(String::as_str).collect();
    let mut flow = prepared(
        15,
        "b95",
        &schema,
        &schema,
        r#"source.tables: ["public.*", '"Weird.Sch""ema".*']"#,
    )
    .await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &[
            r#"INSERT INTO "Weird.Sch""ema"."select * > é 😀" VALUES (1, 'a', 2, 'б', 3, 4), (2, NULL, NULL, NULL, NULL, NULL)"#,
            r#"UPDATE "Weird.Sch""ema"."select * > é 😀" SET "a""b" = 'c', "x'); drop table t; --" = 7 WHERE "User" = 1"#,
            r#"DELETE FROM "Weird.Sch""ema"."select * > é 😀" WHERE "User" = 2"#,
            &format!("INSERT INTO {long} VALUES (1), (2)"),
            &format!("TRUNCATE {long}"),
            r#"INSERT INTO "$1" VALUES (1, 'x'); UPDATE "$1" SET "$2" = 'y'"#,
        ],
    )
    .await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b100_tables_that_change_in_mid_transaction() -> Result<()> {
    // The target has every column already, in another order, and a dropped one of its own.
    let mut flow = prepared(
        15,
        "b100",
        &["CREATE TABLE d (id int PRIMARY KEY, a int, b int)"],
        &["CREATE TABLE d (z text, gone int, b int, id int PRIMARY KEY, a int, bb int); ALTER TABLE d DROP gone"],
        "",
    )
    .await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO d VALUES (1, 1, 1)",
            "BEGIN; INSERT INTO d (id, b) VALUES (5, 5); ALTER TABLE d ADD COLUMN z int; INSERT INTO d (id, b, z) VALUES (6, 6, 6);
             ALTER TABLE d ALTER COLUMN z TYPE text; INSERT INTO d (id, b, z) VALUES (7, 7, 't'); COMMIT",
            "ALTER TABLE d DROP COLUMN a; ALTER TABLE d RENAME COLUMN b TO bb; INSERT INTO d (id, bb) VALUES (8, 8)",
        ],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let rows = value(
        &flow.target_admin,
        "SELECT string_agg(concat_ws('/', id, a, b, z, bb), ' ' ORDER BY id) FROM d",
    )
    .await?;
    ensure!(rows == "1/1/1 5/5 6/6/6 7/7/t 8/8", "{rows}");
    Ok(())
}

#[tokio::test]
async fn b100_a_missing_target_column_holds_until_it_is_added() -> Result<()> {
    let mut flow = started(15, "b100held", &["CREATE TABLE d (id int PRIMARY KEY)"], "").await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO d VALUES (1)",
            "ALTER TABLE d ADD COLUMN extra text",
            "INSERT INTO d VALUES (2, 'x')",
        ],
    )
    .await?;
    flow.applier
        .as_mut()
        .expect("it was started")
        .logged("SCHEMA", WITHIN)
        .await?;
    ensure!(
        flow.applier
            .as_ref()
            .expect("it was started")
            .log()
            .contains("extra"),
        "the column is named"
    );
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM d").await? == "1");
    run(&flow.target_admin, &["ALTER TABLE d ADD COLUMN extra text"]).await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b100_a_renamed_table_holds_until_the_target_has_it() -> Result<()> {
    let schema = &["CREATE TABLE d (id int PRIMARY KEY, v text)"];
    let mut flow = started(15, "b100renamed", schema, "").await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO d VALUES (1, 'before')",
            "BEGIN; INSERT INTO d VALUES (2, 'of this name'); ALTER TABLE d RENAME TO dd; COMMIT",
            "INSERT INTO dd VALUES (3, 'of that name')",
        ],
    )
    .await?;
    let applier = flow.applier.as_mut().context("applier")?;
    applier.logged("code=SCHEMA", WITHIN).await?;
    ensure!(applier.log().contains("public.dd"), "the table is named");
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM d").await? == "2");
    run(&flow.target_admin, &["ALTER TABLE d RENAME TO dd"]).await?;
    flow.converges(WITHIN).await
}

/// A table in two partitions.
const HALVES: &str = "CREATE TABLE pt (id int PRIMARY KEY, k int) PARTITION BY RANGE (id);
    CREATE TABLE pt1 PARTITION OF pt FOR VALUES FROM (0) TO (100);
    CREATE TABLE pt2 PARTITION OF pt FOR VALUES FROM (100) TO (200)";

/// Rows that move between them, and what every kind of change does.
const MOVES: &[&str] = &[
    "INSERT INTO pt VALUES (1, 1), (50, 5), (150, 1)",
    "UPDATE pt SET id = 160 WHERE id = 1",
    "UPDATE pt SET k = 5",
    "DELETE FROM pt WHERE id = 150",
    "TRUNCATE pt",
    "INSERT INTO pt VALUES (7, 7), (107, 7)",
];

/// A started flow between two such tables, whose publication setup made by leaf: the one that
/// `source.sql` makes is by root, and is left alone.
async fn by_leaf(version: u32, name: &str) -> Result<Flow> {
    let extra = "source.partitions: leaf\nsource.publication: made_by_setup";
    let mut flow = prepared(version, name, &[HALVES], &[HALVES], extra).await?;
    flow.roles.grant_on_source(&flow.source_admin).await?;
    // Only the owner of a table may publish it.
    let admin = flow.roles.admin();
    for table in ["pt", "pt1", "pt2"] {
        let sql = format!("ALTER TABLE {table} OWNER TO {admin}");
        run(&flow.source_admin, &[&sql]).await?;
    }
    flow.start().await?;
    Ok(flow)
}

#[tokio::test]
async fn b96_partitions_by_leaf_into_the_same_ones() -> Result<()> {
    for (version, name) in [(15, "leaf15"), (18, "leaf18")] {
        let flow = by_leaf(version, name).await?;
        run(&flow.source_admin, MOVES).await?;
        run(&flow.source_admin, &["TRUNCATE pt1"]).await?;
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

#[tokio::test]
async fn b96_partitions_by_root_the_same_another_way_and_not_at_all() -> Result<()> {
    let columns = "CREATE TABLE pt (id int PRIMARY KEY, k int)";
    for (name, target) in [
        ("rootsame", HALVES.to_owned()),
        (
            "rootother",
            format!(
                "{columns} PARTITION BY HASH (id);
                 CREATE TABLE a PARTITION OF pt FOR VALUES WITH (MODULUS 2, REMAINDER 0);
                 CREATE TABLE b PARTITION OF pt FOR VALUES WITH (MODULUS 2, REMAINDER 1)"
            ),
        ),
        ("rootnone", columns.to_owned()),
    ] {
        let mut flow = prepared(15, name, &[HALVES], &[&target], "source.partitions: root").await?;
        flow.start().await?;
        run(&flow.source_admin, MOVES).await?;
        // Nobody has to be told of a new partition.
        let more = "CREATE TABLE pt3 PARTITION OF pt FOR VALUES FROM (200) TO (300); INSERT INTO pt VALUES (250, 1)";
        if name != "rootsame" {
            run(&flow.source_admin, &[more]).await?;
        }
        flow.caught_up(WITHIN).await?;
        let rows = "SELECT string_agg(pt::text, ' ' ORDER BY id) FROM pt";
        let (ours, theirs) = (
            value(&flow.source_admin, rows).await?,
            value(&flow.target_admin, rows).await?,
        );
        ensure!(ours == theirs, "{name}: {ours} and {theirs}");
    }
    Ok(())
}

#[tokio::test]
async fn b96_a_partition_that_the_target_lacks_is_named_and_nothing_passes_it() -> Result<()> {
    let mut flow = by_leaf(18, "leafnew").await?;
    let third = "CREATE TABLE pt3 PARTITION OF pt FOR VALUES FROM (200) TO (300)";
    run(
        &flow.source_admin,
        &[
            "INSERT INTO pt VALUES (1, 1)",
            third,
            "INSERT INTO pt VALUES (250, 1)",
            "INSERT INTO pt VALUES (2, 2)",
        ],
    )
    .await?;
    let applier = flow.applier.as_mut().expect("it was started");
    applier.logged("SCHEMA", WITHIN).await?;
    ensure!(applier.log().contains("pt3"), "the partition is named");
    let rows = "SELECT count(*) FROM pt";
    ensure!(value(&flow.target_admin, rows).await? == "1");
    run(&flow.target_admin, &[third]).await?;
    flow.grant().await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b96_a_dbas_publication_says_how_partitions_are_named() -> Result<()> {
    let mut flow = prepared(
        18,
        "dbaleaf",
        &[HALVES],
        &[HALVES],
        "source.partitions: root\nsource.publication: theirs",
    )
    .await?;
    let publication = "CREATE PUBLICATION theirs FOR TABLE pt";
    run(&flow.source_admin, &[publication]).await?;
    flow.start().await?;
    run(&flow.source_admin, MOVES).await?;
    flow.converges(WITHIN).await?;
    let via_root = "SELECT pubviaroot FROM pg_publication WHERE pubname = 'theirs'";
    ensure!(value(&flow.source_admin, via_root).await? == "f");
    Ok(())
}

#[tokio::test]
async fn generated_columns_are_left_to_the_target() -> Result<()> {
    let mut flow = prepared(
        15,
        "generated",
        &["CREATE TABLE g (id int PRIMARY KEY, b int, s int GENERATED ALWAYS AS (b * 2) STORED)"],
        &["CREATE TABLE g (id int PRIMARY KEY, s int GENERATED ALWAYS AS (b * 2) STORED, b int, local text DEFAULT 'mine')"],
        "",
    )
    .await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO g VALUES (1, 5), (2, 6)",
            "UPDATE g SET b = 50 WHERE id = 1",
        ],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let rows = value(
        &flow.target_admin,
        "SELECT string_agg(concat_ws('/', id, b, s, local), ' ' ORDER BY id) FROM g",
    )
    .await?;
    ensure!(rows == "1/50/100/mine 2/6/12/mine", "{rows}");
    Ok(())
}
