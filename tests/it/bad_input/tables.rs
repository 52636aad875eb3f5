//! Tables: missing on the target, without replica identity, already filled.

use anyhow::{Result, ensure};
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::fresh_flow;

use super::{accepted, as_superuser, refused};
use crate::scenario::{prepared, run, value};

async fn flow(name: &str, source: &[&str], target: &[&str], extra: &str) -> Result<Flow> {
    as_superuser(prepared(18, name, source, target, extra).await?)
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
    "CREATE TABLE filled (id int GENERATED ALWAYS AS (1) STORED); INSERT INTO filled DEFAULT VALUES",
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
        "TARGET_TABLE_HAS_ROWS",
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

/// A conflict rule of a table that never comes is most likely a misspelt name, and no reason to
/// stop: the table may be published later.
#[tokio::test]
async fn a_conflict_rule_without_its_table_is_a_warning() -> Result<()> {
    let schema = &["CREATE TABLE stock (id int PRIMARY KEY)"];
    let extra = "conflicts: {tables: {public.stock: {missing_row: skip}, \
                 public.stok: {duplicate_key: skip}}}";
    let flow = flow("ruled", schema, schema, extra).await?;
    accepted(&flow).await?;
    let checked = super::run(&flow, &["check", "--output", "json"]).await?;
    let findings: Vec<serde_json::Value> = serde_json::from_str(&checked.stdout)?;
    let named: Vec<_> = (findings.iter())
        .filter(|finding| finding["id"] == "CONFLICTS_TABLE")
        .map(|finding| (finding["severity"].as_str(), finding["about"].as_str()))
        .collect();
    ensure!(
        matches!(named[..], [(Some("warning"), Some(about))] if about.contains("stok")),
        "{named:?}"
    );
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

/// A DBA's column lists and row filters: what is not published is nobody's business, and what
/// makes the source refuse changes is named.
#[tokio::test]
async fn column_lists_and_row_filters_are_taken_for_what_they_say() -> Result<()> {
    for version in [15, 18] {
        let source = [
            "CREATE TABLE listed (id int PRIMARY KEY, a text, secret text NOT NULL)",
            "CREATE TABLE hidden (id int PRIMARY KEY, a text)",
            "CREATE TABLE filtered (id int PRIMARY KEY, region text)",
            "CREATE TABLE whole (a int); ALTER TABLE whole REPLICA IDENTITY FULL",
            "CREATE TABLE listed_whole (a int, b int); ALTER TABLE listed_whole REPLICA IDENTITY FULL",
            "CREATE TABLE mixed (id int PRIMARY KEY, a text, b text)",
            "CREATE TABLE log (id int PRIMARY KEY, a text)",
        ];
        let target = [
            "CREATE TABLE listed (id int PRIMARY KEY, secret text NOT NULL)",
            "CREATE TABLE hidden (a text)",
            "CREATE TABLE filtered (id int PRIMARY KEY, region text)",
            "CREATE TABLE whole (a int)",
            "CREATE TABLE listed_whole (a int)",
            "CREATE TABLE mixed (id int PRIMARY KEY, a text)",
            "CREATE TABLE log (a text)",
        ];
        let extra = "source.insert_only: [public.log]";
        let flow = as_superuser(fresh_flow(version, "lists", extra).await?)?;
        run(&flow.source_admin, &source).await?;
        run(&flow.target_admin, &target).await?;
        let publication = format!("trellara_{}", flow.name);
        let create = format!(
            "CREATE PUBLICATION {publication} FOR TABLE listed (id, a), hidden (a), \
             filtered WHERE (region = 'eu'), whole WHERE (a > 0), listed_whole (a), \
             mixed (id, a) WHERE (id > 0), log (a)"
        );
        run(&flow.source_admin, &[&create]).await?;
        let expected = [
            "TARGET_COLUMN_MISSING",
            "TARGET_COLUMN_NEEDED",
            "PUBLICATION_COLUMN_LIST",
            "PUBLICATION_ROW_FILTER",
        ];
        let found = refused(&flow, &expected, 11).await?;
        let mut about: Vec<String> = found
            .iter()
            .map(|e| format!("{} {}", e["id"], e["about"]).replace(['"', '\\'], ""))
            .collect();
        about.sort();
        ensure!(
            about
                == [
                    "PUBLICATION_COLUMN_LIST public.hidden",
                    "PUBLICATION_COLUMN_LIST public.listed_whole",
                    "PUBLICATION_ROW_FILTER public.filtered",
                    "TARGET_COLUMN_MISSING public.listed",
                    "TARGET_COLUMN_NEEDED public.listed",
                ],
            "{about:?}"
        );
        // The source itself says so, in its words.
        for refused in [
            "hidden SET a = ''",
            "filtered SET region = ''",
            "listed_whole SET a = 1",
        ] {
            let update = format!("UPDATE {refused}");
            ensure!(
                run(&flow.source_admin, &[&update]).await.is_err(),
                "{update}"
            );
        }
        let mend = format!(
            "ALTER PUBLICATION {publication} SET TABLE listed (id, a), hidden (id), \
             filtered WHERE (id > 0), whole WHERE (a > 0), listed_whole, \
             mixed (id, a) WHERE (id > 0), log (a)"
        );
        run(&flow.source_admin, &[&mend]).await?;
        run(
            &flow.target_admin,
            &[
                "ALTER TABLE listed ADD a text, ALTER secret SET DEFAULT ''",
                "ALTER TABLE hidden ADD id int",
                "ALTER TABLE listed_whole ADD b int",
            ],
        )
        .await?;
        accepted(&flow).await?;
    }
    Ok(())
}
