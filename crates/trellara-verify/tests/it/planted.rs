//! Differences that other tools were blind to.

use crate::support::{LANES, VERSIONS, World, found};

/// Makes a table of these columns with these rows, changes the target, and expects.
async fn check(columns: &str, rows: &str, change: &str, expected: &[&str]) {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both(&format!(
                "CREATE TABLE t ({columns}); INSERT INTO t VALUES {rows};"
            ))
            .await;
        world.publish_all().await;
        for lane in LANES {
            let report = world.report_with(|o| o.lane = lane).await;
            assert_eq!(found(&report), [""; 0]);
            assert_eq!(report.source_sum, report.target_sum);
        }
        world.target.run(change).await;
        for lane in LANES {
            let report = world
                .report_with(|o| (o.range_rows, o.values, o.lane) = (2, true, lane))
                .await;
            assert_eq!(found(&report), expected, "{change} on {version}, {lane:?}");
            assert!(report.source_sum != report.target_sum, "{report:?}");
        }
    }
}

#[tokio::test]
async fn values_of_two_rows_swapped() {
    let change = "UPDATE t SET v = CASE k WHEN 1 THEN 'b' ELSE 'a' END";
    let expected = ["k=1 changed(v)", "k=2 changed(v)"];
    check(
        "k int PRIMARY KEY, v text",
        "(1, 'a'), (2, 'b')",
        change,
        &expected,
    )
    .await;
}

#[tokio::test]
async fn columns_of_a_row_swapped() {
    let expected = ["k=1 changed(a,b)"];
    check(
        "k int PRIMARY KEY, a text, b text",
        "(1, 'x', 'y'), (2, 'z', 'z')",
        "UPDATE t SET a = b, b = a",
        &expected,
    )
    .await;
}

#[tokio::test]
async fn null_is_not_the_empty_string() {
    check(
        "k int PRIMARY KEY, v text",
        "(1, NULL), (2, '')",
        "UPDATE t SET v = CASE k WHEN 1 THEN '' END",
        &["k=1 changed(v)", "k=2 changed(v)"],
    )
    .await;
}

#[tokio::test]
async fn where_one_column_ends_and_the_next_begins() {
    check(
        "k int PRIMARY KEY, a text, b text",
        "(1, 'a', 'bc'), (2, 'a,b', ''), (3, '\"', '')",
        "UPDATE t SET a = 'ab', b = 'c' WHERE k = 1; UPDATE t SET a = 'a', b = 'b,' WHERE k = 2;
         UPDATE t SET a = '', b = '\"' WHERE k = 3",
        &["k=1 changed(a,b)", "k=2 changed(a,b)", "k=3 changed(a,b)"],
    )
    .await;
}

#[tokio::test]
async fn what_is_equal_by_value_and_not_as_it_stands() {
    check(
        "k int PRIMARY KEY, t text, f float8, n numeric, a int[], i interval, j jsonb",
        "(1, 'x', '0', 1.0, '{1,2}', '1 day', '1.0'), (2, 'x', '0', 1.0, '{1,2}', '1 day', '1.0'), \
         (3, 'x', '0', 1.0, '{1,2}', '1 day', '1.0'), (4, 'x', '0', 1.0, '{1,2}', '1 day', '1.0'), \
         (5, 'x', '0', 1.0, '{1,2}', '1 day', '1.0'), (6, 'x', '0', 1.0, '{1,2}', '1 day', '1.0')",
        "UPDATE t SET t = 'x ' WHERE k = 1; UPDATE t SET f = '-0' WHERE k = 2;
         UPDATE t SET n = 1.00 WHERE k = 3; UPDATE t SET a = '[2:3]={1,2}' WHERE k = 4;
         UPDATE t SET i = '24:00' WHERE k = 5; UPDATE t SET j = '1.00' WHERE k = 6",
        &[
            "k=1 changed(t)",
            "k=2 changed(f)",
            "k=3 changed(n)",
            "k=4 changed(a)",
            "k=5 changed(i)",
            "k=6 changed(j)",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_key_that_is_equal_by_value_is_one_key() {
    check(
        "k numeric PRIMARY KEY, v int",
        "(1.0, 1), (2, 2), (3, 3)",
        "UPDATE t SET k = 1.00 WHERE k = 1",
        &["k=1 changed(k)"],
    )
    .await;
    check(
        "k float8 PRIMARY KEY, v int",
        "(0, 1), (2, 2)",
        "UPDATE t SET k = '-0' WHERE k = 0",
        &["k=0 changed(k)"],
    )
    .await;
}

#[tokio::test]
async fn differences_that_cancel_under_xor_or_without_the_key() {
    check(
        "k int PRIMARY KEY, v int",
        "(1, 10), (2, 20), (3, 30)",
        "UPDATE t SET v = v + CASE k WHEN 1 THEN 1 WHEN 2 THEN -1 ELSE 0 END",
        &["k=1 changed(v)", "k=2 changed(v)"],
    )
    .await;
    // Both rows of a pair go: nothing is left of them under XOR.
    check(
        "k int, v int",
        "(1, 1), (1, 1), (2, 2)",
        "DELETE FROM t WHERE k = 1",
        &["k=1,v=1 missing"],
    )
    .await;
}

#[tokio::test]
async fn one_a_thousand_and_many_differences() {
    for (version, keyed) in [(15, true), (18, true), (18, false)] {
        let world = World::new(version).await;
        let key = if keyed { "PRIMARY KEY" } else { "" };
        world
            .both(&format!(
                "CREATE TABLE t (k int {key}, v text, x text);
                 INSERT INTO t SELECT i, 'v' || i, 'x' FROM generate_series(1, 30000) i"
            ))
            .await;
        world.publish_all().await;
        // A changed row of a table without key is one row missing and one extra.
        let each = if keyed { 1 } else { 2 };
        for (change, rows) in [
            ("UPDATE t SET v = '' WHERE k = 17777", 1),
            ("UPDATE t SET v = 'w' || k WHERE k % 30 = 0", 1001),
            ("UPDATE t SET v = 'z' || k", 30000),
        ] {
            world.target.run(change).await;
            let lane = LANES[usize::from(rows != 1001)];
            let report = world
                .report_with(|o| (o.range_rows, o.max_diffs, o.lane) = (7000, 1500, lane))
                .await;
            let counted = report.changed + report.missing + report.extra;
            assert_eq!(counted, rows * each, "{change} {key} on {version}");
            assert_eq!(report.duplicate, 0);
            assert_eq!(report.differences.len() as u64, (rows * each).min(1500));
            let named = |d: &trellara_verify::report::Difference| d.columns == ["v"];
            assert!(!keyed || report.differences.iter().all(named));
            assert_eq!((report.source_rows, report.target_rows), (30000, 30000));
        }
    }
}

#[tokio::test]
async fn a_million_differences_are_counted() {
    const ROWS: u64 = 1_000_000;
    let world = World::new(18).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY, v int); ALTER TABLE t SET (autovacuum_enabled = off)")
        .await;
    let fill = |of: &str| format!("INSERT INTO t SELECT g, {of} FROM generate_series(1, {ROWS}) g");
    world.source.run(&fill("g")).await;
    world.target.run(&fill("-g")).await;
    world.publish_all().await;
    let report = world.report_with(|o| o.max_diffs = 3).await;
    assert_eq!(found(&report).len(), 3);
    assert_eq!((report.changed, report.differing()), (ROWS, ROWS));
}

#[tokio::test]
async fn values_are_told_when_asked_for_and_only_then() {
    let world = World::new(18).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'secret')")
        .await;
    world
        .target
        .run("UPDATE t SET v = NULL; INSERT INTO t VALUES (2, 'more')")
        .await;
    world.publish_all().await;
    let report = world.report().await;
    assert!(!format!("{report:?}").contains("secret"), "{report:?}");
    let digests = |d: &trellara_verify::report::Difference| (d.source_digest, d.target_digest);
    let (changed, extra) = (&report.differences[0], &report.differences[1]);
    assert!(matches!(digests(changed), (Some(a), Some(b)) if a != b));
    assert!(matches!(digests(extra), (None, Some(_))));
    let report = world.report_with(|o| o.values = true).await;
    let row = |cells: &[(&str, Option<&str>)]| {
        let cell = |(n, v): &(&str, Option<&str>)| ((*n).to_owned(), v.map(str::to_owned));
        Some(cells.iter().map(cell).collect::<Vec<_>>())
    };
    let (changed, extra) = (&report.differences[0], &report.differences[1]);
    assert_eq!(
        changed.source_row,
        row(&[("k", Some("1")), ("v", Some("secret"))])
    );
    assert_eq!(changed.target_row, row(&[("k", Some("1")), ("v", None)]));
    assert_eq!(extra.source_row, None);
    assert_eq!(
        extra.target_row,
        row(&[("k", Some("2")), ("v", Some("more"))])
    );
}

#[tokio::test]
async fn whole_numbers_that_the_database_hashes_alike() {
    let rows = "(1, 1, '12:00', 'epoch', 'epoch'), (2, 4294967296, '12:00', 'epoch', 'epoch'), \
                (3, 3, '00:00', 'epoch', 'epoch'), (4, 4, '00:00', 'epoch', 'epoch')";
    let alike = "SELECT hashint8extended(1, 7) = hashint8extended(4294967296, 7)";
    let world = World::new(18).await;
    assert_eq!(world.source.ask(alike).await, "t");
    // 4294967296 microseconds.
    check(
        "k bigint PRIMARY KEY, v bigint, t time, u timestamp, z timestamptz",
        rows,
        "UPDATE t SET v = 4294967296 WHERE k = 1; UPDATE t SET v = 1, k = 8589934593 WHERE k = 2;
         UPDATE t SET t = '01:11:34.967296' WHERE k = 3;
         UPDATE t SET u = u + interval '4294.967296 s', z = z + interval '4294.967296 s' WHERE k = 4",
        &[
            "k=1 changed(v)",
            "k=2 missing",
            "k=3 changed(t)",
            "k=4 changed(u,z)",
            "k=8589934593 extra",
        ],
    )
    .await;
}

#[tokio::test]
async fn values_that_trade_places_and_would_cancel_in_a_sum() {
    // A sum of 31·a + b is the same for both.
    for columns in [
        "k int PRIMARY KEY, v int, w int",
        "k int PRIMARY KEY, v text, w bytea",
        "k uuid PRIMARY KEY, v bigint, w timestamptz",
        "k int, v bool, w interval",
    ] {
        let world = World::new(18).await;
        world.both(&format!("CREATE TABLE t ({columns})")).await;
        world.publish_all().await;
        let kind = |of: &str| columns.contains(of);
        let key = |n| match kind("uuid") {
            true => format!("'00000000-0000-0000-0000-00000000000{n}'"),
            false => format!("{n}"),
        };
        let [[v1, v2], [w1, w2]] = if kind("int, w int") {
            [["10", "20"], ["30", "40"]]
        } else if kind("text") {
            [["'a'", "'b'"], [r"'\x01'", r"'\x02'"]]
        } else if kind("bool") {
            [["true", "false"], ["'1 day'", "'24:00'"]]
        } else {
            [["1", "4294967297"], ["'epoch'", "'now'"]]
        };
        let rows = |v1, v2| {
            let (a, b) = (key(1), key(2));
            format!("INSERT INTO t VALUES ({a}, {v1}, {w1}), ({b}, {v2}, {w2})")
        };
        world.source.run(&rows(v1, v2)).await;
        world.target.run(&rows(v2, v1)).await;
        let report = world.report().await;
        let both = if kind("PRIMARY") { 2 } else { 4 };
        assert_eq!(report.differing(), both, "{columns}: {report:?}");
        assert!(report.source_sum != report.target_sum, "{report:?}");
    }
}

#[tokio::test]
async fn tables_with_as_many_columns_as_there_can_be() {
    let columns: Vec<String> = (1..1600).map(|i| format!("c{i} int")).collect();
    let world = World::new(15).await;
    let table = format!(
        "CREATE TABLE t (k inet PRIMARY KEY, {})",
        columns.join(", ")
    );
    world.both(&table).await;
    world
        .both("INSERT INTO t (k, c1, c1599) VALUES ('::1', 1, 2), ('::2', NULL, 2)")
        .await;
    world.publish_all().await;
    assert_eq!(found(&world.report().await), [""; 0]);
    let change = "UPDATE t SET c1599 = 3 WHERE k = '::2'";
    world.target.run(change).await;
    assert_eq!(found(&world.report().await), ["k=::2 changed(c1599)"]);
}
