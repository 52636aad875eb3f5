//! What happens to the tables while two snapshots are compared.

use trellara_verify::VerifyErrorKind;
use trellara_verify::report::TableReport;

use crate::support::{VERSIONS, World, found, refusal, small, try_compare};

/// Freezes both, changes something, compares the only table `t`.
async fn meanwhile(world: &World, source_sql: &str, target_sql: &str) -> TableReport {
    let (source, _keep) = world.source.freeze(&world.source.connect).await;
    let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
    world.source.run(source_sql).await;
    world.target.run(target_sql).await;
    let got = try_compare(&source, &target, |o| o.range_rows = 3).await;
    let mut tables = got.expect("compare").tables;
    tables.retain(|table| table.table.name == "t");
    tables.remove(0)
}

#[tokio::test]
async fn changes_behind_the_snapshots_are_not_seen() {
    for version in VERSIONS {
        for (source, target) in [
            ("DELETE FROM t WHERE k = 1", "UPDATE t SET v = 0"),
            ("ALTER TABLE t ADD more int", "ALTER TABLE t ADD other text"),
            ("CREATE INDEX ON t (v)", "VACUUM t"),
        ] {
            let world = small(version).await;
            let report = meanwhile(&world, source, target).await;
            assert_eq!(found(&report), [""; 0], "{source} {target} on {version}");
            assert_eq!((report.source_rows, report.target_rows), (10, 10));
        }
    }
}

#[tokio::test]
async fn a_table_that_is_another_one_now_is_not_comparable() {
    for version in VERSIONS {
        for (change, reason) in [
            ("TRUNCATE t", "truncated"),
            ("VACUUM FULL t", "rewritten"),
            ("ALTER TABLE t ALTER v TYPE bigint", "altered"),
            ("ALTER TABLE t DROP v", "altered"),
            (
                "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w",
                "altered",
            ),
            (
                "ALTER TABLE t RENAME TO old; CREATE TABLE t (k int PRIMARY KEY, v int, w int)",
                "renamed",
            ),
        ] {
            let world = small(version).await;
            let report = meanwhile(&world, "", change).await;
            let (why, hint) = refusal(&report);
            assert!(
                why.contains(reason) && why.contains("target"),
                "{change}: {why}"
            );
            assert!(hint.contains("again"), "{hint}");
        }
        let world = small(version).await;
        let (why, _) = refusal(&meanwhile(&world, "TRUNCATE t", "").await);
        assert!(why.contains("source"), "{why}");
    }
}

#[tokio::test]
async fn partitions_that_come_and_go_meanwhile() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (k int PRIMARY KEY) PARTITION BY RANGE (k); CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
                   INSERT INTO t VALUES (1); CREATE TABLE older (k int PRIMARY KEY); INSERT INTO older VALUES (20)")
            .await;
        world
            .source
            .run("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
            .await;
        let new = "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20); INSERT INTO t VALUES (11)";
        assert_eq!(found(&meanwhile(&world, new, "").await), [""; 0]);
        let attach = "ALTER TABLE t ATTACH PARTITION older FOR VALUES FROM (20) TO (30)";
        let (why, _) = refusal(&meanwhile(&world, attach, "").await);
        assert!(why.contains("another partition"), "{why}");
        let detach = "ALTER TABLE t DETACH PARTITION t1";
        let (why, _) = refusal(&meanwhile(&world, "", detach).await);
        assert!(why.contains("lost a partition"), "{why}");
    }
}

#[tokio::test]
async fn a_publication_that_is_another_one_now_is_refused() {
    for version in VERSIONS {
        for change in [
            "ALTER PUBLICATION p SET TABLE t WHERE (k > 5)",
            "ALTER PUBLICATION p SET TABLE t (k, v)",
            "ALTER PUBLICATION p ADD TABLES IN SCHEMA public",
            "ALTER PUBLICATION p SET (publish_via_partition_root)",
            "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t",
        ] {
            let world = small(version).await;
            world
                .source
                .run("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t")
                .await;
            let (source, _keep) = world.source.freeze(&world.source.connect).await;
            let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
            world.source.run(change).await;
            let got = try_compare(&source, &target, |_| {}).await;
            let error = got.expect_err(change);
            assert_eq!(error.kind, VerifyErrorKind::Unusable, "{change}");
            assert!(error.hint.contains("again"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_root_without_partitions_is_empty() {
    let world = World::new(18).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY) PARTITION BY RANGE (k)")
        .await;
    let publish = "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)";
    world.source.run(publish).await;
    assert_eq!(found(&world.report().await), [""; 0]);
}
