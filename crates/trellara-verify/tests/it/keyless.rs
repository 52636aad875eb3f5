//! Tables without key are multisets.

use trellara_verify::report::{Method, Outcome};

use crate::support::{VERSIONS, World, found};

async fn world(version: u32, rows: &str) -> World {
    let world = World::new(version).await;
    world
        .both(&format!(
            "CREATE TABLE t (a int, b text); INSERT INTO t VALUES {rows}"
        ))
        .await;
    world.publish_all().await;
    world
}

#[tokio::test]
async fn equal_rows_are_counted() {
    for version in VERSIONS {
        let world = world(version, "(1, 'x'), (1, 'x'), (2, NULL), (3, ''), (3, '')").await;
        let report = world.report().await;
        assert_eq!(found(&report), [""; 0]);
        assert!(matches!(report.method, Some(Method::Bucket(4096))));
        world
            .target
            .run(
                "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (4, 'new'), (4, 'new');
                  DELETE FROM t WHERE ctid IN (SELECT max(ctid) FROM t WHERE a = 3);
                  UPDATE t SET b = '' WHERE a = 2",
            )
            .await;
        let report = world.report_with(|o| o.values = true).await;
        assert_eq!(
            found(&report),
            [
                "a=1,b=x duplicate(2:4)",
                "a=2,b=NULL missing",
                "a=2,b= extra",
                "a=3,b= duplicate(2:1)",
                "a=4,b=new extra",
            ],
            "on {version}"
        );
        let kinds = (
            report.missing,
            report.extra,
            report.changed,
            report.duplicate,
        );
        assert_eq!(kinds, (1, 3, 0, 3));
    }
}

#[tokio::test]
async fn a_million_equal_rows_need_no_memory() {
    let world = world(18, "(1, 'x')").await;
    let many = "INSERT INTO t SELECT 7, 'same' FROM generate_series(1, 300000)";
    world.both(many).await;
    world.target.run("INSERT INTO t VALUES (7, 'same')").await;
    let report = world.report_with(|o| o.values = true).await;
    assert_eq!(found(&report), ["a=7,b=same duplicate(300000:300001)"]);
    assert_eq!(report.differing(), 1);
}

#[tokio::test]
async fn empty_tables_and_tables_without_columns() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE e (k int PRIMARY KEY); CREATE TABLE n ()")
            .await;
        world.publish_all().await;
        let got = world.compare().await;
        assert!(
            got.tables.iter().all(|t| t.outcome == Outcome::Equal),
            "{got:?}"
        );
        world
            .target
            .run("INSERT INTO e VALUES (5); INSERT INTO n DEFAULT VALUES")
            .await;
        let got = world.compare().await;
        assert_eq!(found(&got.tables[0]), ["k=5 extra"]);
        assert_eq!(found(&got.tables[1]), [" extra"]);
        world.source.run("INSERT INTO e VALUES (4); INSERT INTO n DEFAULT VALUES; INSERT INTO n DEFAULT VALUES").await;
        let got = world.compare().await;
        assert_eq!(found(&got.tables[0]), ["k=4 missing", "k=5 extra"]);
        assert_eq!(found(&got.tables[1]), [" duplicate(2:1)"]);
    }
}

#[tokio::test]
async fn all_rows_on_one_side_only() {
    for (version, key) in [(15, "PRIMARY KEY"), (18, "PRIMARY KEY"), (18, "")] {
        let world = World::new(version).await;
        let make = format!("CREATE TABLE t (k int {key}, v text)");
        world.both(&make).await;
        world.publish_all().await;
        let fill = "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 1000) g";
        for (filled, expected) in [(&world.source, (1000, 0)), (&world.target, (0, 1000))] {
            filled.run(fill).await;
            let report = world
                .report_with(|o| (o.range_rows, o.max_diffs) = (300, 5))
                .await;
            assert_eq!(
                (report.missing, report.extra),
                expected,
                "{key} on {version}"
            );
            assert_eq!((report.source_rows, report.target_rows), expected);
            assert_eq!((report.changed, report.duplicate), (0, 0));
            assert_eq!(found(&report).len(), 5);
            filled.run("TRUNCATE t").await;
            assert_eq!(found(&world.report().await), [""; 0]);
        }
    }
}

#[tokio::test]
async fn a_key_that_the_target_does_not_keep_unique() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .source
            .run("CREATE TABLE t (k int PRIMARY KEY, v text)")
            .await;
        world.target.run("CREATE TABLE t (k int, v text)").await;
        world
            .both("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
            .await;
        world.publish_all().await;
        assert_eq!(found(&world.report().await), [""; 0]);
        world
            .target
            .run("INSERT INTO t VALUES (2, 'b'), (3, 'other'), (4, 'd'), (4, 'd'), (NULL, 'n')")
            .await;
        let report = world.report().await;
        assert_eq!(
            found(&report),
            [
                "k=2 duplicate(1:2)",
                "k=3 duplicate(1:2)",
                "k=4 extra",
                "k=NULL extra"
            ]
        );
        assert_eq!((report.extra, report.duplicate), (3, 2));
        // With an index there are ranges only where no NULL can be.
        world.target.run("CREATE INDEX ON t (k)").await;
        assert_eq!(
            found(&world.report_with(|o| o.range_rows = 1).await).len(),
            4
        );
    }
}

#[tokio::test]
async fn rows_that_nobody_asked_for_are_named_by_digest() {
    let world = world(18, "(1, 'x'), (2, 'y')").await;
    let change =
        "INSERT INTO t VALUES (1, 'x'), (3, repeat('z', 1000000)); DELETE FROM t WHERE a = 2";
    world.target.run(change).await;
    let report = world.report().await;
    let mut shown = found(&report);
    shown.sort();
    assert_eq!(shown, [" duplicate(1:2)", " extra", " missing"]);
    let digests = report.differences.iter().map(|difference| {
        assert_eq!(
            (&difference.source_row, &difference.target_row),
            (&None, &None)
        );
        let digest = difference.source_digest.or(difference.target_digest);
        digest.expect("a digest")
    });
    assert!(digests.is_sorted(), "the same order in each run");
    assert_eq!((report.missing, report.extra, report.duplicate), (1, 1, 1));
}

#[tokio::test]
async fn more_rows_than_one_statement_names_are_listed() {
    let world = world(18, "(0, 'x')").await;
    let many = "INSERT INTO t SELECT i, 'y' FROM generate_series(1, 12000) i";
    world.source.run(many).await;
    let report = world
        .report_with(|o| (o.values, o.max_diffs) = (true, 11_000))
        .await;
    assert_eq!((report.missing, report.differences.len()), (12_000, 11_000));
    let whole = |d: &trellara_verify::report::Difference| d.key.len() == 2;
    assert!(report.differences.iter().all(whole));
}

/// The planner's part: it plans workers only where it sees that the scan may be divided.
#[tokio::test]
async fn buckets_are_counted_by_parallel_scans() {
    let world = World::new(18).await;
    // By their size neither these nor the catalogues would be worth a worker.
    let make = "CREATE TABLE n (a int, b text) WITH (parallel_workers = 2);
                CREATE TABLE k (a float8 PRIMARY KEY, b text) WITH (parallel_workers = 2);
                INSERT INTO n SELECT i, 'x' FROM generate_series(1, 50000) i;
                INSERT INTO k SELECT i, 'x' FROM generate_series(1, 50000) i; ANALYZE";
    world.both(make).await;
    world.publish_all().await;
    let database = world.source.ask("SELECT current_database()").await;
    // What a worker sends has its price, so only groups are worth sending, not every row.
    let free = format!("ALTER DATABASE {database} SET parallel_setup_cost = 0");
    world.source.run(&free).await;
    let got = world.compare_with(|o| o.jobs = 1).await;
    for table in &got.tables {
        assert!(matches!(table.method, Some(Method::Bucket(_))), "{table:?}");
    }
    // A session tells of itself when it ends, which is some time after it was told to.
    let planned = "SELECT pg_stat_clear_snapshot(), parallel_workers_to_launch = 4
        FROM pg_stat_database WHERE datname = current_database()";
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while world
        .source
        .ask(&format!("SELECT p FROM ({planned}) AS x(c, p)"))
        .await
        != "t"
    {
        assert!(
            std::time::Instant::now() < deadline,
            "no worker was planned"
        );
    }
}
