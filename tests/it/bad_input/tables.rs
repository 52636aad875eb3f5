//! Tables: missing on the target, without replica identity, already filled.

use anyhow::{Result, ensure};
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::fresh_flow;

use super::{accepted, as_superuser, refused};
use crate::scenario::{run, value};

async fn flow(name: &str, source: &[&str], target: &[&str], extra: &str) -> Result<Flow> {
    let flow = as_superuser(fresh_flow(18, name, extra).await?)?;
    run(&flow.source_admin, source).await?;
    run(&flow.target_admin, target).await?;
    Ok(flow)
}

const SOURCE: &[&str] = &[
    "CREATE TABLE missing (id int PRIMARY KEY)",
    "CREATE TABLE narrow (id int PRIMARY KEY, \"New One\" text)",
    "CREATE TABLE keyless (a int)",
    "CREATE TABLE nothing (a int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING",
    "CREATE TABLE filled (id int PRIMARY KEY); INSERT INTO filled VALUES (1)",
    "CREATE TABLE parted (id int, p int) PARTITION BY LIST (p)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
    "CREATE TABLE viewed (id int PRIMARY KEY)",
    // PostgreSQL takes no deferrable key for a replica identity.
    "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE halves (id int PRIMARY KEY DEFERRABLE) PARTITION BY HASH (id)",
    "CREATE TABLE halves_0 PARTITION OF halves FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
];
const TARGET: &[&str] = &[
    "CREATE TABLE narrow (id int PRIMARY KEY, needed int NOT NULL)",
    "CREATE TABLE keyless (a int)",
    "CREATE TABLE nothing (a int PRIMARY KEY)",
    "CREATE TABLE filled (id int GENERATED ALWAYS AS (1) STORED)",
    "CREATE TABLE parted (id int, p int)",
    "CREATE VIEW viewed AS SELECT 1 AS id",
    "CREATE TABLE late (id int PRIMARY KEY)",
    "CREATE TABLE halves (id int PRIMARY KEY)",
];

#[tokio::test]
async fn everything_wrong_with_tables_is_named_in_one_run() -> Result<()> {
    let flow = flow("tables", SOURCE, TARGET, "").await?;
    let identities = "SELECT string_agg(relname || relreplident::text, ' ' ORDER BY relname) \
                        FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')";
    let before = value(&flow.source_admin, identities).await?;
    let expected = [
        "TARGET_TABLE_MISSING",
        "TARGET_COLUMN_MISSING",
        "TARGET_COLUMN_NEEDED",
        "TARGET_COLUMN_GENERATED",
        "TARGET_TABLE_KIND",
        "SOURCE_NO_REPLICA_IDENTITY",
        "SOURCE_TABLE_HAS_ROWS",
    ];
    let found = refused(&flow, &expected, 11).await?;
    let about = |id: &str| -> Vec<String> {
        let of_id = found.iter().filter(|e| e["id"] == id);
        of_id
            .filter_map(|e| e["about"].as_str().map(str::to_owned))
            .collect()
    };
    let unidentified = about("SOURCE_NO_REPLICA_IDENTITY");
    for table in ["keyless", "nothing", "parted", "late", "halves"] {
        ensure!(
            unidentified.iter().any(|about| about.contains(table)),
            "{table} is not among {unidentified:?}"
        );
    }
    ensure!(unidentified.len() == 5, "{unidentified:?}");
    // A replica identity is the owner's to change, never ours.
    ensure!(value(&flow.source_admin, identities).await? == before);
    Ok(())
}

/// What the operator answers for is taken.
#[tokio::test]
async fn insert_only_tables_and_rows_loaded_elsewhere_are_accepted() -> Result<()> {
    let schema = &["CREATE TABLE log (a int)", "INSERT INTO log VALUES (1)"];
    let extra = "source.insert_only: [public.log]\nbackfill: {mode: none}";
    let flow = flow("answered", schema, schema, extra).await?;
    accepted(&flow).await?;
    let identity = "SELECT relreplident::text FROM pg_class WHERE relname = 'log'";
    ensure!(value(&flow.source_admin, identity).await? == "d");
    Ok(())
}

/// A pattern that matches nothing, and a publication that nobody made.
#[tokio::test]
async fn tables_that_are_not_there_are_named() -> Result<()> {
    let table = &["CREATE TABLE t (id int PRIMARY KEY)"];
    let extra = "source.tables: [public.t, public.absent, \"nowhere.*\"]";
    let flow = flow("absent", table, table, extra).await?;
    let found = refused(&flow, &["SOURCE_TABLE_MISSING"], 11).await?;
    ensure!(found.len() == 2, "{found:?}");
    Ok(())
}
