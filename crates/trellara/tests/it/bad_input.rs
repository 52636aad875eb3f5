//! Bad input is found before anything is created, all in one run, each with its cure.

use trellara_local::PostgresOptions;

use crate::servers::World;

fn ids(findings: &serde_json::Value, severity: &str) -> Vec<String> {
    let findings = findings.as_array().expect("a list of findings").iter();
    let of_severity = findings.filter(|finding| finding["severity"] == severity);
    of_severity
        .map(|finding| finding["id"].as_str().expect("an id").to_owned())
        .collect()
}

#[test]
fn everything_wrong_is_named_in_one_run_and_nothing_is_created() {
    let world = World::start(PostgresOptions::version(18).with("wal_level", "replica"));
    world.source_sql(
        "CREATE TABLE keyless (a int); CREATE TABLE missing (id int PRIMARY KEY); \
         CREATE TABLE filled (id int PRIMARY KEY, extra text); INSERT INTO filled VALUES (1, 'x')",
    );
    world.target_sql(
        "CREATE TABLE keyless (a int); CREATE TABLE filled (id int PRIMARY KEY, needed int NOT NULL); INSERT INTO filled VALUES (1, 2)",
    );
    world.config("");
    let checked = world.run(&["check", "--output", "json"]).expect(11);
    let errors = ids(&checked.json(), "error");
    for expected in [
        "SOURCE_WAL_LEVEL",
        "SOURCE_NO_REPLICA_IDENTITY",
        "TARGET_TABLE_HAS_ROWS",
        "TARGET_TABLE_MISSING",
        "TARGET_COLUMN_MISSING",
        "TARGET_COLUMN_NEEDED",
    ] {
        assert!(
            errors.iter().any(|id| id == expected),
            "{expected} is not in {errors:?}"
        );
    }
    let findings = checked.json();
    for finding in findings.as_array().expect("a list") {
        if finding["severity"] == "error" {
            assert_ne!(finding["cure"], "", "no cure: {finding}");
        }
    }
    let setup = world.run(&["setup", "--yes"]).expect(11);
    assert!(setup.stderr.contains("nothing was created"), "{setup:?}");
    assert_eq!(world.source_sql("SELECT count(*) FROM pg_publication"), "0");
    assert_eq!(
        world.source_sql("SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
    assert_eq!(
        world.target_sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'trellara'"),
        "0"
    );
}

#[test]
fn servers_that_do_not_answer_are_named_each() {
    let world = World::start(PostgresOptions::version(18));
    world.config("");
    let nowhere = "postgresql://postgres@127.0.0.1:1/shop";
    let checked = world
        .program(&["check", "--output", "json"])
        .env("TRELLARA__SOURCE__URL", nowhere)
        .env("TRELLARA__TARGET__URL", nowhere)
        .output()
        .expect("the program starts");
    assert_eq!(checked.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(
        ids(&findings, "error"),
        ["SOURCE_UNREACHABLE", "TARGET_UNREACHABLE"]
    );
}
