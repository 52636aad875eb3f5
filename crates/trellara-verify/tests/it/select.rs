//! How much is looked at: samples, counts, some tables, parts of ranges that take too long.

use std::time::{Duration, Instant};

use trellara_verify::report::{Method, Outcome};

use crate::support::{VERSIONS, World, found, of, refusal};

async fn ranges(version: u32, rows: u32) -> World {
    let world = World::new(version).await;
    let fill = format!(
        "CREATE TABLE t (k int PRIMARY KEY, v int); CREATE TABLE log (v int);
         INSERT INTO t SELECT i, i FROM generate_series(1, {rows}) i; INSERT INTO log SELECT k FROM t"
    );
    world.both(&fill).await;
    world.publish_all().await;
    world
}

#[tokio::test]
async fn a_sample_finds_what_is_in_it_and_never_says_equal() {
    for version in VERSIONS {
        let world = ranges(version, 1000).await;
        let sampled = async |run: u32, fraction: f64| {
            world
                .compare_with(|o| {
                    (o.range_rows, o.sample) = (10, Some(fraction));
                    o.run = format!("r{run}");
                })
                .await
        };
        let got = sampled(0, 0.3).await;
        for name in ["t", "log"] {
            let table = of(&got, name);
            assert_eq!(table.outcome, Outcome::NoneFound, "{table:?}");
            let share = f64::from(table.coverage.compared) / f64::from(table.coverage.of);
            assert!((0.1..0.5).contains(&share), "{table:?}");
            assert!(
                table.rows_compared > 0 && table.rows_compared < 600,
                "{table:?}"
            );
        }
        assert_eq!(of(&got, "t").method, Some(Method::Range(100)));
        assert_eq!(of(&got, "log").method, Some(Method::Bucket(4096)));
        let least = sampled(0, 0.000_001).await;
        assert_eq!(of(&least, "t").coverage.compared, 1);
        assert_eq!(of(&least, "t").rows_compared, 10);
        assert_eq!(of(&least, "t").coverage.of, 100);
        let whole = sampled(0, 1.0).await;
        assert!(whole.tables.iter().all(|t| t.outcome == Outcome::Equal));
        // One run sees it or does not; runs of other names see other pieces.
        world
            .target
            .run("UPDATE t SET v = 0 WHERE k = 500; DELETE FROM log WHERE v = 7")
            .await;
        let mut seen = [0; 2];
        for run in 0..20 {
            let got = sampled(run, 0.3).await;
            for (seen, name) in seen.iter_mut().zip(["t", "log"]) {
                let table = of(&got, name);
                match table.outcome {
                    Outcome::Different => *seen += 1,
                    _ => assert_eq!(table.outcome, Outcome::NoneFound),
                }
            }
        }
        assert!(seen.iter().all(|seen| (1..20).contains(seen)), "{seen:?}");
    }
}

#[tokio::test]
async fn counts_alone_say_different_and_not_which() {
    for version in VERSIONS {
        let world = ranges(version, 1000).await;
        let quick = || {
            world.compare_with(|o| {
                (o.range_rows, o.sample, o.count) = (10, Some(0.000_001), true);
            })
        };
        let table = of(&quick().await, "t").clone();
        assert_eq!(table.outcome, Outcome::NoneFound);
        assert_eq!((table.source_rows, table.rows_compared), (1000, 10));
        world
            .target
            .run("INSERT INTO t SELECT i, i FROM generate_series(1001, 1005) i")
            .await;
        let table = of(&quick().await, "t").clone();
        assert_eq!(table.outcome, Outcome::Different);
        assert_eq!((table.source_rows, table.target_rows), (1000, 1005));
        assert_eq!(table.differing(), 0, "which ones is not known");
    }
}

#[tokio::test]
async fn tables_that_nobody_asked_for_are_named() {
    let world = ranges(18, 10).await;
    world.target.run("DROP TABLE log").await;
    let got = world
        .compare_with(|o| o.tables = vec!["public.t".parse().unwrap()])
        .await;
    assert_eq!(got.tables.len(), 1);
    assert_eq!(found(of(&got, "t")), [""; 0]);
    let left_out: Vec<String> = got.left_out.iter().map(ToString::to_string).collect();
    assert_eq!(left_out, ["public.log"]);
    assert!(
        !got.not_covered.iter().any(|what| what.contains("log")),
        "{got:?}"
    );
}

/// Rows that take long to print, so that the limit falls between one row and all of them.
#[tokio::test]
async fn a_range_that_takes_too_long_is_halved() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both(
                "CREATE TABLE t (k int PRIMARY KEY, v jsonb);
                 INSERT INTO t SELECT i, to_jsonb(repeat('x', 2000000)) FROM generate_series(1, 64) i",
            )
            .await;
        world.publish_all().await;
        world
            .target
            .run("UPDATE t SET v = '1' WHERE k IN (1, 40); DELETE FROM t WHERE k = 64")
            .await;
        let began = Instant::now();
        let whole = world.report().await;
        let limit = (began.elapsed() / 3).max(Duration::from_millis(50));
        let expected = ["k=1 changed(v)", "k=40 changed(v)", "k=64 missing"];
        assert_eq!(found(&whole), expected);
        let halved = world
            .report_with(|o| {
                o.statement_timeout = Some(limit);
                o.range_rows_least = 1;
            })
            .await;
        assert_eq!(found(&halved), expected, "within {limit:?}");
        assert_eq!(halved.source_sum, whole.source_sum);
        assert_eq!(halved.coverage.of, 1);
        let (why, hint) = refusal(
            &world
                .report_with(|o| {
                    o.statement_timeout = Some(limit / 4);
                    o.range_rows_least = 60;
                })
                .await,
        );
        assert!(
            why.contains("60") && hint.contains("timeout"),
            "{why} {hint}"
        );
    }
}

#[tokio::test]
async fn a_rate_is_kept() {
    let world = ranges(18, 20_000).await;
    world.both("ANALYZE t").await;
    let began = Instant::now();
    // About 700 kB of it, the first second's worth of which is read at once.
    let got = world
        .compare_with(|o| {
            (o.range_rows, o.rate_bytes_per_second) = (1000, Some(200_000));
            o.tables = vec!["t".parse().unwrap()];
        })
        .await;
    assert_eq!(found(of(&got, "t")), [""; 0]);
    let took = began.elapsed().as_secs_f64();
    assert!((1.5..20.0).contains(&took), "{took}");
}
