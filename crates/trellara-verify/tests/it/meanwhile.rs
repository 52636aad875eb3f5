//! What happens to the tables while two snapshots are compared.

use std::sync::atomic::{AtomicBool, Ordering};

use trellara_postgres::{ConnectOptions, Session};
use trellara_verify::report::TableReport;
use trellara_verify::{CompareOptions, Comparison, Progress, VerifyErrorKind, compare};

use crate::support::{VERSIONS, World, found, of, refusal, small, try_compare};

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

/// Runs a statement in a session of its own; the comparison stands still meanwhile.
fn run_beside(connect: &ConnectOptions, sql: &str) {
    let run = async {
        let session = Session::connect(connect).await.expect("connect");
        let done = session.client.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().expect("a runtime");
            runtime.block_on(run);
        });
    });
}

#[tokio::test]
async fn nobody_waits_for_a_lock_of_ours_between_two_ranges() {
    for version in VERSIONS {
        for on_source in [true, false] {
            for change in ["TRUNCATE t", "ALTER TABLE t ALTER v TYPE bigint"] {
                let world = small(version).await;
                let (source, _keep) = world.source.freeze(&world.source.connect).await;
                let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
                let mut options = CompareOptions::new("test", "p", 0x5eed);
                (options.range_rows, options.jobs) = (3, 1);
                let changed = AtomicBool::new(false);
                let side = if on_source { &source } else { &target };
                let interfere = |progress| {
                    let between = matches!(progress, Progress::Compared { .. });
                    if between && !changed.swap(true, Ordering::Relaxed) {
                        let settings = "SET lock_timeout = '1s'; SET search_path = public";
                        run_beside(&side.connect, &format!("{settings}; {change}"));
                    }
                };
                let got = compare(&source, &target, &options, &interfere).await;
                let got = got.expect("compare");
                assert!(changed.load(Ordering::Relaxed));
                refusal(of(&got, "t"));
            }
        }
    }
}

/// Freezes both, changes the source, compares all.
async fn after(world: &World, change: &str) -> Comparison {
    let (source, _keep) = world.source.freeze(&world.source.connect).await;
    let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
    world.source.run(change).await;
    let got = try_compare(&source, &target, |_| {}).await;
    got.expect("compare")
}

#[tokio::test]
async fn a_table_that_leaves_the_publication_by_itself_is_not_passed_over() {
    let tables = "CREATE SCHEMA s; CREATE TABLE s.t (k int PRIMARY KEY); CREATE TABLE s.u (k int PRIMARY KEY);
        CREATE TABLE s.p (k int PRIMARY KEY) PARTITION BY RANGE (k);
        CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES FROM (0) TO (10)";
    for version in VERSIONS {
        for (publish, change, gone) in [
            ("FOR ALL TABLES", "DROP TABLE s.t", "t"),
            ("FOR ALL TABLES", "ALTER TABLE s.t SET UNLOGGED", "t"),
            ("FOR ALL TABLES", "ALTER TABLE s.t SET SCHEMA public", "t"),
            ("FOR TABLES IN SCHEMA s", "DROP TABLE s.t", "t"),
            (
                "FOR TABLES IN SCHEMA s",
                "ALTER TABLE s.t SET SCHEMA public",
                "t",
            ),
            (
                "FOR TABLE s.p, s.u",
                "ALTER TABLE s.p DETACH PARTITION s.p1",
                "p1",
            ),
            (
                "FOR ALL TABLES WITH (publish_via_partition_root)",
                "DROP TABLE s.p",
                "p",
            ),
        ] {
            let world = World::new(version).await;
            world.both(tables).await;
            let create = format!("CREATE PUBLICATION p {publish}");
            world.source.run(&create).await;
            let got = after(&world, change).await;
            let (why, hint) = refusal(of(&got, gone));
            assert!(why.contains("behind the position"), "{change}: {why}");
            assert!(hint.contains("again"), "{hint}");
            assert_eq!(found(of(&got, "u")), [""; 0], "{publish} {change}");
            let twice = got.tables.iter().filter(|t| t.table.name == gone).count();
            assert_eq!(twice, 1, "{publish} {change}");
            let left_out = got
                .not_covered
                .iter()
                .find(|what| what.ends_with(&format!(".{gone}")));
            assert_eq!(left_out, None, "{publish} {change}");
        }
        let whole = World::new(version).await;
        whole.both(tables).await;
        whole.publish_all().await;
        let names = |got: &Comparison| -> Vec<String> {
            got.tables.iter().map(|t| t.table.to_string()).collect()
        };
        assert_eq!(names(&whole.compare().await), ["s.p1", "s.t", "s.u"]);
        let root = "ALTER PUBLICATION p SET (publish_via_partition_root)";
        whole.source.run(root).await;
        assert_eq!(names(&whole.compare().await), ["s.p", "s.t", "s.u"]);
    }
}

#[tokio::test]
async fn an_enum_whose_labels_were_renamed_is_not_comparable() {
    for version in VERSIONS {
        for (column, value) in [
            ("mood", "'sad'"),
            ("mood[]", "'{sad}'"),
            ("inner_mood", "'sad'"),
            ("moods", "'[sad,ok]'"),
        ] {
            let world = World::new(version).await;
            world
                .both(&format!(
                    "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN inner_mood AS mood;
                     CREATE TYPE moods AS RANGE (subtype = mood);
                     CREATE TABLE t (k int PRIMARY KEY, m {column}); INSERT INTO t VALUES (1, {value})"
                ))
                .await;
            world.publish_all().await;
            let add = "ALTER TYPE mood ADD VALUE 'new'";
            assert_eq!(found(&meanwhile(&world, add, add).await), [""; 0]);
            let rename = "ALTER TYPE mood RENAME VALUE 'sad' TO 'low'";
            let report = meanwhile(&world, rename, rename).await;
            let (why, _) = refusal(&report);
            assert!(why.contains("labels"), "{column}: {why}");
        }
    }
}

#[tokio::test]
async fn a_table_that_joins_the_publication_meanwhile_was_not_published() {
    for version in VERSIONS {
        for (publish, change, joined) in [
            ("FOR ALL TABLES", "ALTER TABLE s.u SET LOGGED", "u"),
            (
                "FOR TABLE s.p",
                "ALTER TABLE s.p ATTACH PARTITION s.t FOR VALUES FROM (0) TO (10)",
                "t",
            ),
            (
                "FOR TABLES IN SCHEMA x",
                "ALTER TABLE s.t SET SCHEMA x",
                "t",
            ),
        ] {
            let world = World::new(version).await;
            world
                .both(
                    "CREATE SCHEMA s; CREATE SCHEMA x; CREATE TABLE s.t (k int PRIMARY KEY); CREATE UNLOGGED TABLE s.u (k int PRIMARY KEY);
                     CREATE TABLE s.p (k int PRIMARY KEY) PARTITION BY RANGE (k); CREATE TABLE x.t (k int PRIMARY KEY);
                     CREATE TABLE x.other (k int PRIMARY KEY)",
                )
                .await;
            let row = format!("DROP TABLE x.t; INSERT INTO s.{joined} VALUES (1)");
            world.source.run(&row).await;
            let create = format!("CREATE PUBLICATION p {publish}");
            world.source.run(&create).await;
            // Nothing of it came to the target: it was not published.
            let got = after(&world, change).await;
            let (why, hint) = refusal(of(&got, joined));
            assert!(why.contains("behind the position"), "{change}: {why}");
            assert!(hint.contains("again"), "{hint}");
            assert!(got.tables.iter().all(|t| t.differing() == 0), "{got:?}");
        }
    }
}

#[tokio::test]
async fn a_composite_type_with_other_attributes_is_not_comparable() {
    for version in VERSIONS {
        for (column, value) in [
            ("pair", "'(1,a)'"),
            ("pair[]", "'{\"(1,a)\"}'"),
            ("inner_pair", "'(1,a)'"),
        ] {
            let world = World::new(version).await;
            world
                .both(&format!(
                    "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN inner_pair AS pair;
                     CREATE TABLE t (k int PRIMARY KEY, p {column}); INSERT INTO t VALUES (1, {value})"
                ))
                .await;
            world.publish_all().await;
            let rename = "ALTER TYPE pair RENAME ATTRIBUTE a TO aa";
            assert_eq!(found(&meanwhile(&world, rename, rename).await), [""; 0]);
            for change in ["ADD ATTRIBUTE c int", "DROP ATTRIBUTE b"] {
                let report =
                    meanwhile(&world, &format!("ALTER TYPE pair {change}"), "SELECT").await;
                let (why, _) = refusal(&report);
                assert!(why.contains("attributes"), "{column} {change}: {why}");
            }
        }
    }
}
