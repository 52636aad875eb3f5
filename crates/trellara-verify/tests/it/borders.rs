//! Ranges: no row falls between two of them, below the first or above the last.

use trellara_verify::report::Method;

use crate::support::{VERSIONS, World, found};

#[tokio::test]
async fn a_row_at_each_border() {
    for version in VERSIONS {
        let world = World::new(version).await;
        // Ranges of ten rows begin at 20, 220, 420 …
        world
            .both(
                "CREATE TABLE t (k int PRIMARY KEY, v int);
                 INSERT INTO t SELECT i * 20, i FROM generate_series(1, 60) i",
            )
            .await;
        world.publish_all().await;
        let ten = world.report_with(|o| o.range_rows = 10).await;
        assert_eq!(found(&ten), [""; 0]);
        assert_eq!(ten.method, Some(Method::Range(6)));
        for k in [20, 200, 220, 240, 400, 420, 1000, 1020, 1180, 1200] {
            world
                .target
                .run(&format!("BEGIN; DELETE FROM t WHERE k = {k}; COMMIT"))
                .await;
            let report = world.report_with(|o| o.range_rows = 10).await;
            assert_eq!(found(&report), [format!("k={k} missing")]);
            world
                .target
                .run(&format!("INSERT INTO t VALUES ({k}, -1)"))
                .await;
            let report = world.report_with(|o| o.range_rows = 10).await;
            assert_eq!(found(&report), [format!("k={k} changed(v)")]);
            world
                .target
                .run(&format!("UPDATE t SET v = k / 20 WHERE k = {k}"))
                .await;
        }
        for k in [i32::MIN, 0, 19, 21, 219, 221, 1199, 1201, i32::MAX] {
            world
                .target
                .run(&format!("INSERT INTO t VALUES ({k}, 0)"))
                .await;
            let report = world.report_with(|o| o.range_rows = 10).await;
            assert_eq!(found(&report), [format!("k={k} extra")]);
            world
                .target
                .run(&format!("DELETE FROM t WHERE k = {k}"))
                .await;
        }
    }
}

#[tokio::test]
async fn keys_of_several_columns_and_hostile_text() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both(
                r#"CREATE TABLE t (a int, "B b" text COLLATE "C", v text, PRIMARY KEY ("B b", a));
                   INSERT INTO t SELECT i % 3, chr(33 + i / 3) || E'''\\"', 'v' FROM generate_series(0, 200) i"#,
            )
            .await;
        world.publish_all().await;
        let all = world.report_with(|o| o.range_rows = 7).await;
        assert_eq!(found(&all), [""; 0]);
        assert_eq!(all.method, Some(Method::Range(29)));
        assert_eq!((all.source_rows, all.target_rows), (201, 201));
        world
            .target
            .run(r#"DELETE FROM t WHERE a = 2 AND "B b" LIKE '5%'; UPDATE t SET v = '' WHERE a = 0 AND "B b" LIKE '6%';
                    INSERT INTO t VALUES (9, '', '')"#)
            .await;
        let report = world.report_with(|o| (o.range_rows, o.jobs) = (1, 3)).await;
        assert_eq!(
            found(&report),
            [
                "B b=,a=9 extra",
                r#"B b=5'\",a=2 missing"#,
                r#"B b=6'\",a=0 changed(v)"#
            ]
        );
    }
}

#[tokio::test]
async fn ranges_of_every_size_agree() {
    let world = World::new(18).await;
    world
        .both(
            "CREATE TABLE t (k bigint PRIMARY KEY, v text);
             INSERT INTO t SELECT i * i, md5(i::text) FROM generate_series(-50, 50) i WHERE i * i <> 4 OR i > 0
             ON CONFLICT DO NOTHING",
        )
        .await;
    world
        .target
        .run("DELETE FROM t WHERE k = 49; UPDATE t SET v = 'x' WHERE k IN (0, 2500)")
        .await;
    world.publish_all().await;
    let expected = ["k=0 changed(v)", "k=49 missing", "k=2500 changed(v)"];
    let mut sums = Vec::new();
    for rows in [1, 2, 3, 50, 51, 52, 100_000] {
        let report = world.report_with(|o| o.range_rows = rows).await;
        assert_eq!(found(&report), expected, "{rows}");
        assert_eq!(
            report.method,
            Some(Method::Range(51u64.div_ceil(rows) as u32))
        );
        sums.push((report.source_sum, report.target_sum));
    }
    sums.dedup();
    assert_eq!(sums.len(), 1, "{sums:?}");
}

#[tokio::test]
async fn differences_within_one_large_range_are_narrowed() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both(
                "CREATE TABLE t (k int PRIMARY KEY, v int);
                 INSERT INTO t SELECT i, i FROM generate_series(1, 20000) i",
            )
            .await;
        world
            .target
            .run("UPDATE t SET v = 0 WHERE k IN (1, 10000, 20000); DELETE FROM t WHERE k = 3; INSERT INTO t VALUES (0, 0)")
            .await;
        world.publish_all().await;
        let report = world.report().await;
        assert_eq!(
            found(&report),
            [
                "k=0 extra",
                "k=1 changed(v)",
                "k=3 missing",
                "k=10000 changed(v)",
                "k=20000 changed(v)"
            ]
        );
        assert_eq!(report.method, Some(Method::Range(1)));
    }
}

/// From 18 on a NOT NULL can be there and say nothing of older rows, which no range of the key holds.
#[tokio::test]
async fn a_null_behind_a_constraint_that_was_never_checked_is_found() {
    let world = World::new(18).await;
    world
        .source
        .run("CREATE TABLE t (k int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 2)")
        .await;
    world
        .target
        .run(
            "CREATE TABLE t (k int UNIQUE, v int); INSERT INTO t VALUES (1, 1), (2, 2), (NULL, 3);
             ALTER TABLE t ADD CONSTRAINT filled NOT NULL k NOT VALID",
        )
        .await;
    world.publish_all().await;
    let narrow = || world.report_with(|o| o.range_rows = 1);
    assert_eq!(found(&narrow().await), ["k=NULL extra"]);
    world.target.run("DELETE FROM t WHERE k IS NULL").await;
    assert_eq!(found(&narrow().await), [""; 0]);
}
