//! Settings, rights, locks, and what happens while two snapshots are compared.

use std::time::Duration;

use trellara_postgres::{ConnectOptions, Environment, Session};
use trellara_verify::report::{Method, Outcome};
use trellara_verify::{CompareOptions, Progress, Side, VerifyErrorKind, compare};

use crate::support::{VERSIONS, World, found, of, refusal, role, small, try_compare};

/// Reached only when something hangs.
const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn settings_of_a_database_change_nothing() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (k timestamptz PRIMARY KEY, f float8, i interval, b bytea, m money, c regclass, d date, x text);
                   CREATE TABLE other ();
                   INSERT INTO t SELECT '2024-03-04 05:06:07+00'::timestamptz + i * '1 h'::interval, 0.1::float8 + 0.2::float8, '1 day 02:03:04', '\\xff00', 1.5, 'other', '2024-03-04', 'x'
                   FROM generate_series(1, 40) i")
            .await;
        let name = world.target.ask("SELECT current_database()").await;
        for setting in [
            "DateStyle = 'SQL, DMY'",
            "TimeZone = 'Asia/Kolkata'",
            "IntervalStyle = 'iso_8601'",
            "extra_float_digits = 0",
            "bytea_output = 'escape'",
            "search_path = public, pg_catalog",
            "row_security = on",
            "statement_timeout = '1ms'",
            "idle_in_transaction_session_timeout = '1ms'",
            "client_encoding = 'LATIN1'",
            "quote_all_identifiers = on",
            "default_transaction_isolation = 'serializable'",
            "standard_conforming_strings = off",
            "jit = on",
        ] {
            world
                .target
                .run(&format!("ALTER DATABASE {name} SET {setting}"))
                .await;
        }
        // What stands in for PostgreSQL's own where the path allows it.
        world
            .target
            .run("CREATE FUNCTION public.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
                  CREATE FUNCTION public.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT ''''';
                  CREATE TABLE public.pg_class (oid oid)")
            .await;
        world.publish_all().await;
        world
            .source
            .run("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE t")
            .await;
        let report = world.report_with(|o| o.range_rows = 9).await;
        assert_eq!(found(&report), [""; 0], "on {version}");
        world
            .target
            .run("UPDATE t SET f = 0.3 WHERE k = '2024-03-04 06:06:07+00'")
            .await;
        let report = world.report_with(|o| o.range_rows = 9).await;
        assert_eq!(found(&report), ["k=2024-03-04 06:06:07+00 changed(f)"]);
    }
}

#[tokio::test]
async fn settings_of_a_role_change_nothing() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (k timestamptz PRIMARY KEY, f float8, i interval, b bytea, d date);
                   INSERT INTO t SELECT '2024-03-04 05:06:07+00'::timestamptz + g * '1 h'::interval, 0.1::float8 + 0.2::float8, '1 day 02:03:04', '\\xff00', '2024-03-04'
                   FROM generate_series(1, 40) g")
            .await;
        world.publish_all().await;
        let connect = role(&world, "styled").await;
        let user = connect.user();
        world
            .source
            .run(&format!("GRANT SELECT ON t TO {user}"))
            .await;
        for setting in [
            "DateStyle = 'SQL, DMY'",
            "TimeZone = 'Asia/Kolkata'",
            "IntervalStyle = 'sql_standard'",
            "extra_float_digits = 0",
            "bytea_output = 'escape'",
            "search_path = public",
            "default_transaction_isolation = 'serializable'",
            "enable_hashagg = off",
        ] {
            let set = format!("ALTER ROLE {user} SET {setting}");
            world.source.run(&set).await;
        }
        let (source, _keep) = world.source.freeze(&connect).await;
        let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
        let got = try_compare(&source, &target, |o| o.range_rows = 9).await;
        let got = got.expect("compare");
        assert_eq!(found(&got.tables[0]), [""; 0], "on {version}");
        assert_eq!(got.tables[0].source_rows, 40);
    }
}

#[tokio::test]
async fn another_collation_makes_buckets() {
    for version in VERSIONS {
        let other = "TEMPLATE template0 LC_COLLATE 'C.UTF-8' LC_CTYPE 'C.UTF-8'";
        let world = World::of((version, ""), (version, other)).await;
        // Not every build has ICU, and only ICU has collations that call different texts equal.
        let icu = "SELECT count(*) FROM pg_collation WHERE collname = 'en-x-icu'";
        let (mut k, mut v) = ("text", "text");
        if world.target.ask(icu).await != "0" {
            (k, v) = ("text COLLATE \"en-x-icu\"", "text COLLATE ci");
            let make = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
            world.target.run(make).await;
        }
        world
            .target
            .run(&format!("CREATE TABLE t (k {k} PRIMARY KEY, v {v})"))
            .await;
        world
            .source
            .run("CREATE TABLE t (k text PRIMARY KEY, v text)")
            .await;
        world
            .both("INSERT INTO t SELECT p || i, 'Abc' FROM generate_series(1, 20) i, unnest('{a,B,_c,é}'::text[]) p")
            .await;
        world.publish_all().await;
        let report = world.report_with(|o| o.range_rows = 5).await;
        assert_eq!(found(&report), [""; 0]);
        assert!(matches!(report.method, Some(Method::Bucket(_))));
        world
            .target
            .run("UPDATE t SET v = 'ABC' WHERE k = 'é7'; DELETE FROM t WHERE k = '_c1'")
            .await;
        let expected = ["k=_c1 missing", "k=é7 changed(v)"];
        assert_eq!(found(&world.report().await), expected);
        // An explicit collation makes it one order again.
        world
            .both("ALTER TABLE t ALTER k TYPE text COLLATE \"C\"")
            .await;
        let report = world.report_with(|o| o.range_rows = 5).await;
        assert_eq!(found(&report), expected);
        assert!(matches!(report.method, Some(Method::Range(16))));
    }
}

/// The version of a collation's rules is the library's, and differs between machines of one name.
#[tokio::test]
async fn only_bytes_are_an_order_that_both_sides_share() {
    for version in VERSIONS {
        let world = World::new(version).await;
        let make = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
        // Not every build has ICU.
        let icu = "SELECT to_regcollation('\"en-x-icu\"') IS NOT NULL";
        if world.target.ask(icu).await == "t" {
            world.both(make).await;
        }
        for (collation, ranges) in [
            ("\"C\"", true),
            ("\"POSIX\"", true),
            ("\"C.utf8\"", false),
            ("\"en-x-icu\"", false),
            ("loose", false),
        ] {
            // Not every machine has every locale.
            let known = format!("SELECT to_regcollation('{collation}') IS NOT NULL");
            if world.target.ask(&known).await == "f" {
                continue;
            }
            world
                .both(&format!(
                    "DROP TABLE IF EXISTS t; CREATE TABLE t (k text COLLATE {collation} PRIMARY KEY);
                     INSERT INTO t SELECT chr(97 + i) FROM generate_series(1, 20) i"
                ))
                .await;
            world.source.run("DROP PUBLICATION IF EXISTS p").await;
            world.publish_all().await;
            let report = world.report_with(|o| o.range_rows = 5).await;
            assert_eq!(found(&report), [""; 0]);
            let ranged = matches!(report.method, Some(Method::Range(_)));
            assert_eq!(ranged, ranges, "{collation} on {version}");
        }
    }
}

#[tokio::test]
async fn another_encoding_is_compared_as_utf8() {
    for version in VERSIONS {
        let latin = "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'";
        let world = World::of((version, ""), (version, latin)).await;
        world
            .both("CREATE TABLE t (k text PRIMARY KEY, v text); INSERT INTO t VALUES ('é', 'ü'), ('a', 'ß'), ('z', NULL);
                   CREATE TABLE n (v text); INSERT INTO n VALUES ('é'), ('é')")
            .await;
        world.publish_all().await;
        let got = world.compare().await;
        assert!(
            got.tables.iter().all(|t| t.outcome == Outcome::Equal),
            "{got:?}"
        );
        world
            .target
            .run("UPDATE t SET v = 'u' WHERE k = 'é'; INSERT INTO n VALUES ('é')")
            .await;
        let got = world.compare_with(|o| o.values = true).await;
        assert_eq!(found(&got.tables[0]), ["v=é duplicate(2:3)"]);
        assert_eq!(found(&got.tables[1]), ["k=é changed(v)"]);
    }
}

async fn refused(world: &World, connect: &ConnectOptions) -> (String, String) {
    let (source, _keep) = world.source.freeze(connect).await;
    let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
    let mut got = try_compare(&source, &target, |_| {})
        .await
        .expect("compare");
    refusal(&got.tables.remove(0))
}

#[tokio::test]
async fn rows_that_policies_hide_are_never_left_out_silently() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (k int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
            .await;
        world.publish_all().await;
        let connect = role(&world, "reader").await;
        let (reason, hint) = refused(&world, &connect).await;
        assert!(
            hint.contains("GRANT") && hint.contains("SELECT"),
            "{reason}: {hint}"
        );
        let user = connect.user().to_owned();
        world
            .source
            .run(&format!("GRANT SELECT ON t TO {user}; ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY one ON t USING (k = 1)"))
            .await;
        let (reason, hint) = refused(&world, &connect).await;
        assert!(hint.contains("BYPASSRLS"), "{reason}: {hint}");
        world
            .source
            .run(&format!("ALTER ROLE {user} BYPASSRLS"))
            .await;
        let (source, _keep) = world.source.freeze(&connect).await;
        let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
        let got = try_compare(&source, &target, |_| {})
            .await
            .expect("compare");
        assert_eq!(
            (found(&got.tables[0]), got.tables[0].source_rows),
            (vec![], 2)
        );
    }
}

#[tokio::test]
async fn a_lock_and_a_timeout_end_one_table_only() {
    let world = small(18).await;
    world
        .both("CREATE TABLE big (k int PRIMARY KEY); INSERT INTO big SELECT generate_series(1, 10)")
        .await;
    let holder = Session::connect(&world.target.connect)
        .await
        .expect("connect");
    holder
        .client
        .batch_execute("BEGIN; LOCK TABLE public.t")
        .await
        .expect("lock");
    let got = world.compare_with(|o| o.jobs = 1).await;
    let (_, hint) = refusal(of(&got, "t"));
    assert!(hint.contains("lock"), "{hint}");
    // The same sessions go on.
    assert_eq!(found(of(&got, "big")), [""; 0]);
    holder
        .client
        .batch_execute("ROLLBACK")
        .await
        .expect("rollback");
    world
        .both("ALTER TABLE t ADD x text; UPDATE t SET x = repeat('x', 100000000) WHERE k <= 3")
        .await;
    let got = world
        .compare_with(|o| (o.jobs, o.statement_timeout) = (1, Some(Duration::from_millis(50))))
        .await;
    let (_, hint) = refusal(of(&got, "t"));
    assert!(hint.contains("timeout"), "{hint}");
    assert_eq!(found(of(&got, "big")), [""; 0]);
}

#[tokio::test]
async fn a_statement_that_nobody_waits_for_any_more_harms_no_other_table() {
    let world = World::new(18).await;
    world
        .source
        .run("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'no number')")
        .await;
    world
        .target
        .run("CREATE TABLE t (k int PRIMARY KEY, v int)")
        .await;
    world.both("CREATE TABLE u (k int PRIMARY KEY)").await;
    world.publish_all().await;
    // The source refuses at once; the target's statement fails two seconds later.
    let holder = Session::connect(&world.target.connect)
        .await
        .expect("connect");
    let lock = holder.client.batch_execute("BEGIN; LOCK TABLE public.t");
    lock.await.expect("lock");
    let got = world.compare_with(|o| o.jobs = 1).await;
    let (_, hint) = refusal(of(&got, "t"));
    assert!(hint.contains("does not fit"), "{hint}");
    assert_eq!(found(of(&got, "u")), [""; 0]);
}

#[tokio::test]
async fn what_cannot_be_compared_at_all_is_an_error() {
    let world = small(18).await;
    let (source, keep) = world.source.freeze(&world.source.connect).await;
    let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
    let absent = try_compare(&source, &target, |o| o.publication = "q".into()).await;
    let absent = absent.expect_err("no such publication");
    assert_eq!(absent.kind, VerifyErrorKind::Unusable);
    keep.client.batch_execute("COMMIT").await.expect("commit");
    let gone = try_compare(&source, &target, |_| {})
        .await
        .expect_err("no snapshot");
    assert_eq!(
        (gone.kind, gone.side),
        (VerifyErrorKind::Unusable, Some(Side::Source))
    );
    assert!(gone.reason.contains("snapshot"), "{gone}");
    let nobody = "postgresql://nobody@127.0.0.1:1/x?connect_timeout=5";
    let mut nowhere = target.clone();
    nowhere.connect = ConnectOptions::parse(nobody, &Environment::empty()).expect("a string");
    let (source, _keep) = world.source.freeze(&world.source.connect).await;
    let error = try_compare(&source, &nowhere, |_| {})
        .await
        .expect_err("nobody there");
    assert_eq!(error.kind, VerifyErrorKind::Connect { passing: true });
    assert_eq!(error.side, Some(Side::Target));
}

#[tokio::test]
async fn a_session_that_is_lost_ends_the_run_and_never_says_equal() {
    for version in VERSIONS {
        let world = small(version).await;
        let holder = Session::connect(&world.target.connect)
            .await
            .expect("connect");
        holder
            .client
            .batch_execute("BEGIN; LOCK TABLE public.t")
            .await
            .expect("lock");
        let (source, _keep) = world.source.freeze(&world.source.connect).await;
        let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
        let run = format!("r{}", std::process::id());
        let options = CompareOptions::new(run.as_str(), "p", 1);
        let quiet = |_: Progress| {};
        let comparing = compare(&source, &target, &options, &quiet);
        let terminating = async {
            let kill = format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE application_name = 'trellara-verify/{run}' AND wait_event_type = 'Lock'"
            );
            while world.target.ask(&kill).await == "0" {
                tokio::task::yield_now().await;
            }
        };
        let both = async { tokio::join!(comparing, terminating) };
        let (got, ()) = tokio::time::timeout(LIMIT, both).await.expect("an end");
        let error = got.expect_err("the session is gone");
        assert_eq!(
            (error.kind, error.side),
            (VerifyErrorKind::Server, Some(Side::Target))
        );
    }
}

#[tokio::test]
async fn progress_is_told_and_the_future_can_be_spawned() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let world = small(18).await;
    let (source, _keep) = world.source.freeze(&world.source.connect).await;
    let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
    let mut options = CompareOptions::new("run", "p", 1);
    options.range_rows = 4;
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |progress| told.lock().expect("no panic").push(progress);
    let got = assert_send(compare(&source, &target, &options, &tell)).await;
    assert_eq!(got.expect("compare").tables.len(), 1);
    let told = told.into_inner().expect("no panic");
    let rows: u64 = told
        .iter()
        .map(|progress| match progress {
            Progress::Compared { source_rows, .. } => *source_rows,
            _ => 0,
        })
        .sum();
    assert_eq!(rows, 10);
    assert!(matches!(told.first(), Some(Progress::Planned { tables }) if tables.len() == 1));
    let equal = Outcome::Equal;
    assert!(matches!(told.last(), Some(Progress::Finished { report }) if report.outcome == equal));
}

/// Not a fault of ours, and not of one table: nothing can be said, and it says why.
#[tokio::test]
async fn names_that_are_not_utf8_end_the_run_without_a_verdict() {
    for version in VERSIONS {
        let ascii = "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'";
        let world = World::of((version, ascii), (version, "")).await;
        world
            .source
            .run("SET client_encoding = 'SQL_ASCII';
                  DO $$BEGIN EXECUTE 'CREATE TABLE t' || convert_from('\\xff', 'SQL_ASCII') || '(k int PRIMARY KEY)'; END$$")
            .await;
        world.publish_all().await;
        let (source, _keep) = world.source.freeze(&world.source.connect).await;
        let (target, _keep_too) = world.target.freeze(&world.target.connect).await;
        let error = try_compare(&source, &target, |_| {})
            .await
            .expect_err("a verdict");
        assert_eq!(error.kind, VerifyErrorKind::Unusable, "{error:?}");
        assert!(error.reason.contains("not UTF-8"), "{error:?}");
        assert!(!error.hint.is_empty(), "{error:?}");
    }
}
