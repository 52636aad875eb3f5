//! Publications and tables of other shapes.

use trellara_verify::report::{Method, Outcome};

use crate::support::{VERSIONS, World, found, of, refusal};

#[tokio::test]
async fn what_the_target_lacks_is_not_comparable_and_the_rest_is_compared() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .source
            .run("CREATE TABLE gone (k int PRIMARY KEY); CREATE TABLE narrow (k int PRIMARY KEY, v int);
                  CREATE TABLE seen (k int PRIMARY KEY); CREATE TABLE fine (k int PRIMARY KEY); INSERT INTO fine VALUES (1)")
            .await;
        world
            .target
            .run(
                "CREATE TABLE narrow (k int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS k;
                  CREATE TABLE fine (k int PRIMARY KEY)",
            )
            .await;
        world.publish_all().await;
        let got = world.compare().await;
        let names: Vec<&str> = got.tables.iter().map(|t| t.table.name.as_str()).collect();
        assert_eq!(names, ["fine", "gone", "narrow", "seen"]);
        assert_eq!(found(of(&got, "fine")), ["k=1 missing"]);
        for (table, reason) in [
            ("gone", "no table"),
            ("narrow", "\"v\""),
            ("seen", "not a table"),
        ] {
            let (why, hint) = refusal(of(&got, table));
            assert!(why.contains(reason) && !hint.is_empty(), "{why}: {hint}");
        }
    }
}

#[tokio::test]
async fn columns_in_another_order_dropped_and_more_of_them() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .source
            .run("CREATE TABLE t (gone int, a text, k int PRIMARY KEY, b text); ALTER TABLE t DROP gone;
                  INSERT INTO t VALUES ('a', 1, 'b'), ('x', 2, 'y')")
            .await;
        world
            .target
            .run(
                "CREATE TABLE t (b text, at timestamptz DEFAULT now(), k int PRIMARY KEY, a text);
                  INSERT INTO t (k, a, b) VALUES (1, 'a', 'b'), (2, 'y', 'x')",
            )
            .await;
        world.publish_all().await;
        let report = world.report().await;
        assert_eq!(found(&report), ["k=2 changed(a,b)"]);
        assert!(
            report.mapped.iter().any(|note| note.ends_with(": at")),
            "{report:?}"
        );
    }
}

#[tokio::test]
async fn column_list_and_row_filter() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .source
            .run(r#"CREATE TABLE t (k int PRIMARY KEY, "Is it?" bool, secret text);
                    INSERT INTO t VALUES (1, true, 's'), (2, false, 's'), (3, NULL, 's'), (4, true, 's');
                    CREATE PUBLICATION p FOR TABLE t (k, "Is it?") WHERE ("Is it?" AND k < 100) WITH (publish = 'insert')"#)
            .await;
        world
            .target
            .run(r#"CREATE TABLE t (k int PRIMARY KEY, "Is it?" bool); INSERT INTO t VALUES (1, true), (4, true)"#)
            .await;
        let report = world.report().await;
        assert_eq!(found(&report), [""; 0]);
        assert_eq!((report.source_rows, report.target_rows), (2, 2));
        world
            .target
            .run("DELETE FROM t WHERE k = 1; INSERT INTO t VALUES (2, false)")
            .await;
        assert_eq!(found(&world.report().await), ["k=1 missing", "k=2 extra"]);
    }
}

#[tokio::test]
async fn a_key_that_is_not_published_makes_a_multiset() {
    let world = World::new(18).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'a')")
        .await;
    world
        .source
        .run("CREATE PUBLICATION p FOR TABLE t (v) WITH (publish = 'insert')")
        .await;
    let report = world.report().await;
    assert_eq!(found(&report), [""; 0]);
    assert!(matches!(report.method, Some(Method::Bucket(_))));
    world.target.run("INSERT INTO t VALUES (3, 'a')").await;
    let report = world.report_with(|o| o.values = true).await;
    assert_eq!(found(&report), ["v=a duplicate(2:3)"]);
}

#[tokio::test]
async fn generated_columns_as_they_are_published() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .source
            .run(
                "CREATE TABLE t (k int PRIMARY KEY, g int GENERATED ALWAYS AS (k * 2) STORED);
                  INSERT INTO t VALUES (1), (2)",
            )
            .await;
        world
            .target
            .run("CREATE TABLE t (k int PRIMARY KEY, g int); INSERT INTO t VALUES (1, 2), (2, 7)")
            .await;
        world.publish_all().await;
        assert_eq!(found(&world.report().await), [""; 0], "not published");
        if version >= 18 {
            let set = "ALTER PUBLICATION p SET (publish_generated_columns = stored)";
            world.source.run(set).await;
            assert_eq!(found(&world.report().await), ["k=2 changed(g)"]);
        }
        // What the target computes by itself is compared by its value.
        world
            .target
            .run("DROP TABLE t; CREATE TABLE t (k int, g int GENERATED ALWAYS AS (k * 2) STORED); INSERT INTO t VALUES (1), (2)")
            .await;
        assert_eq!(found(&world.report().await), [""; 0]);
    }
}

#[tokio::test]
async fn other_types_on_the_target() {
    for version in VERSIONS {
        let world = World::new(version).await;
        let mood = "CREATE TYPE mood AS ENUM ('sad', 'ok')";
        world.both(mood).await;
        world
            .source
            .run("CREATE TABLE t (k int PRIMARY KEY, c char(3), n numeric, b bool, e mood, m text, j json, s timestamp, x text);
                  INSERT INTO t SELECT i, 'a', 1.005, true, 'ok', 'sad', '{\"b\": 1, \"a\":2}', '2024-01-01 00:00:00.123456', 'x' FROM generate_series(1, 9) i;
                  INSERT INTO t (k) VALUES (10)")
            .await;
        world
            .target
            .run("CREATE TABLE t (k bigint PRIMARY KEY, c char(5), n numeric(10,2), b text, e text, m mood, j jsonb, s timestamptz(3), x varchar(9));
                  INSERT INTO t SELECT i, 'a', 1.005, 't', 'ok', 'sad', '{\"a\": 2, \"b\": 1}', '2024-01-01 00:00:00.123456+00', 'x' FROM generate_series(1, 9) i;
                  INSERT INTO t (k) VALUES (10)")
            .await;
        world.publish_all().await;
        let report = world.report_with(|o| o.range_rows = 3).await;
        assert_eq!(found(&report), [""; 0], "on {version}");
        assert_eq!(report.method, Some(Method::Range(4)));
        assert_eq!(report.mapped.len(), 9, "{:?}", report.mapped);
        world
            .target
            .run("UPDATE t SET c = 'b' WHERE k = 1; UPDATE t SET n = 1.00 WHERE k = 2; UPDATE t SET b = 'true' WHERE k = 3;
                  UPDATE t SET e = 'sad' WHERE k = 4; UPDATE t SET m = 'ok' WHERE k = 5; UPDATE t SET j = '{}' WHERE k = 6;
                  UPDATE t SET s = s + '1 ms' WHERE k = 7; UPDATE t SET x = 'x ' WHERE k = 8; UPDATE t SET c = '' WHERE k = 10;
                  INSERT INTO t (k) VALUES (9223372036854775807)")
            .await;
        assert_eq!(
            found(&world.report().await),
            [
                "k=1 changed(c)",
                "k=2 changed(n)",
                "k=3 changed(b)",
                "k=4 changed(e)",
                "k=5 changed(m)",
                "k=6 changed(j)",
                "k=7 changed(s)",
                "k=8 changed(x)",
                "k=10 changed(c)",
                "k=9223372036854775807 extra",
            ]
        );
    }
}

#[tokio::test]
async fn a_value_that_does_not_fit_the_target_s_type() {
    let world = World::new(18).await;
    world
        .source
        .run("CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'topsecret')")
        .await;
    world
        .target
        .run("CREATE TABLE t (k int PRIMARY KEY, v int)")
        .await;
    world.publish_all().await;
    let (reason, hint) = refusal(&world.report().await);
    assert!(hint.contains("does not fit"), "{hint}");
    assert!(!reason.contains("topsecret"), "{reason}");
}

const PARTITIONED: &str = "CREATE TABLE t (k int, v text, PRIMARY KEY (k)) PARTITION BY RANGE (k);
    CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
    CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);
    INSERT INTO t SELECT i, 'v' FROM generate_series(0, 19) i;";

#[tokio::test]
async fn partitions_under_the_root_s_name() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.source.run(PARTITIONED).await;
        let publish = "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)";
        world.source.run(publish).await;
        // The target may be divided in another way.
        world
            .target
            .run(
                "CREATE TABLE t (k int, v text, PRIMARY KEY (k)) PARTITION BY HASH (k);
                  CREATE TABLE ta PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);
                  CREATE TABLE tb PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1);
                  INSERT INTO t SELECT i, 'v' FROM generate_series(0, 19) i",
            )
            .await;
        let report = world.report_with(|o| o.range_rows = 6).await;
        assert_eq!(found(&report), [""; 0]);
        assert_eq!(report.method, Some(Method::Range(4)));
        world
            .target
            .run("DELETE FROM t WHERE k = 10; UPDATE t SET v = '' WHERE k = 3")
            .await;
        let report = world.report_with(|o| o.range_rows = 6).await;
        assert_eq!(found(&report), ["k=3 changed(v)", "k=10 missing"]);
        // Or not at all.
        world
            .target
            .run("DROP TABLE t; CREATE TABLE t (k int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 19) i")
            .await;
        assert_eq!(found(&world.report().await), ["k=0 missing"]);
        assert_eq!(world.compare().await.not_covered, [""; 0]);
    }
}

#[tokio::test]
async fn partitions_under_their_own_names_and_a_row_moved_between_them() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.source.run(PARTITIONED).await;
        world.source.run("CREATE PUBLICATION p FOR TABLE t").await;
        world
            .target
            .run("CREATE TABLE t1 (k int PRIMARY KEY, v text); CREATE TABLE t2 (k int PRIMARY KEY, v text);
                  INSERT INTO t1 SELECT i, 'v' FROM generate_series(0, 9) i; INSERT INTO t2 SELECT i, 'v' FROM generate_series(10, 19) i")
            .await;
        let got = world.compare().await;
        assert_eq!(
            (found(of(&got, "t1")), found(of(&got, "t2"))),
            (vec![], vec![])
        );
        assert_eq!(got.not_covered, [""; 0]);
        world
            .target
            .run("DELETE FROM t1 WHERE k = 5; INSERT INTO t2 VALUES (5, 'v')")
            .await;
        let got = world.compare().await;
        assert_eq!(found(of(&got, "t1")), ["k=5 missing"]);
        assert_eq!(found(of(&got, "t2")), ["k=5 extra"]);
    }
}

#[tokio::test]
async fn children_by_inheritance_are_tables_of_their_own() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE parent (k int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (k)) INHERITS (parent);
                   INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2)")
            .await;
        world.publish_all().await;
        world.target.run("DELETE FROM child").await;
        let got = world.compare().await;
        assert_eq!(found(of(&got, "parent")), [""; 0]);
        assert_eq!(found(of(&got, "child")), ["k=2 missing"]);
        assert_eq!(of(&got, "parent").source_rows, 1);
    }
}

#[tokio::test]
async fn names_with_quotes_dots_and_keywords() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both(
                r#"CREATE SCHEMA "We""ird.S'"; CREATE TABLE "We""ird.S'"."sel\ect;--" ("a""b" int, "SELECT" text COLLATE "C", "x'y\" text, "sel\ect;--" int,
                     PRIMARY KEY ("a""b", "SELECT"));
                   INSERT INTO "We""ird.S'"."sel\ect;--" SELECT i, 'k', 'v', i FROM generate_series(1, 5) i"#,
            )
            .await;
        world.source.run(r#"CREATE PUBLICATION "P'""ub" FOR TABLE "We""ird.S'"."sel\ect;--" WHERE ("a""b" > 0)"#).await;
        world
            .target
            .run(r#"UPDATE "We""ird.S'"."sel\ect;--" SET "x'y\" = NULL WHERE "a""b" = 3"#)
            .await;
        let report = world
            .report_with(|o| {
                o.publication = "P'\"ub".into();
                o.run = "it's \"x\"".into();
                o.range_rows = 2;
            })
            .await;
        assert_eq!(found(&report), [r#"a"b=3,SELECT=k changed(x'y\)"#]);
        assert_eq!(report.method, Some(Method::Range(3)));
    }
}

#[tokio::test]
async fn the_replica_identity_is_the_key() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world
            .both("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL COLLATE \"C\", v int);
                   CREATE UNIQUE INDEX by_code ON t (code); ALTER TABLE t REPLICA IDENTITY USING INDEX by_code;
                   INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
            .await;
        world.publish_all().await;
        world.target.run("UPDATE t SET v = 0 WHERE id = 2").await;
        assert_eq!(found(&world.report().await), ["code=b changed(v)"]);
        // FULL says nothing of identity; the primary key still does.
        world
            .source
            .run("ALTER TABLE t REPLICA IDENTITY FULL")
            .await;
        assert_eq!(found(&world.report().await), ["id=2 changed(v)"]);
    }
}

#[tokio::test]
async fn what_is_not_covered_is_named() {
    let world = World::new(18).await;
    world
        .source
        .run("CREATE TABLE t (k int PRIMARY KEY); CREATE TABLE apart (k int); CREATE UNLOGGED TABLE u ();
              CREATE MATERIALIZED VIEW m AS SELECT 1; SELECT lo_create(0); CREATE PUBLICATION p FOR TABLE t")
        .await;
    world.target.run("CREATE TABLE t (k int PRIMARY KEY)").await;
    let got = world.compare().await;
    let expected = [
        "large objects",
        "materialized view public.m",
        "table public.apart",
        "unlogged table public.u",
    ];
    assert_eq!(got.not_covered, expected);
    assert_eq!(got.tables[0].outcome, Outcome::Equal);
}

#[tokio::test]
async fn a_shorter_type_on_the_target_hides_nothing() {
    for version in VERSIONS {
        for (source, target, long, cut, equal) in [
            ("text", "char(3)", "'abcdef'", "'abc'", "'ab'"),
            ("char(6)", "char(3)", "'abcdef'", "'abc'", "'ab'"),
            (
                "text[]",
                "char(3)[]",
                "'{abcdef}'",
                "'{abc}'",
                "'{ab,NULL}'",
            ),
            ("text", "varchar(3)", "'abcdef'", "'abc'", "'ab '"),
            ("int", "varchar(3)", "123456", "'123'", "12"),
            ("varbit", "bit(3)", "B'1011'", "B'101'", "B'111'"),
            ("text", "name", "repeat('x', 70)", "repeat('x', 63)", "'x'"),
        ] {
            let world = World::new(version).await;
            let table = |of| format!("CREATE TABLE t (k int PRIMARY KEY, v {of})");
            world.source.run(&table(source)).await;
            world.target.run(&table(target)).await;
            let equal = format!("INSERT INTO t VALUES (1, {equal}), (2, NULL)");
            world.both(&equal).await;
            world.publish_all().await;
            assert_eq!(found(&world.report().await), [""; 0], "{source} {target}");
            let row = |value| format!("INSERT INTO t VALUES (3, {value})");
            world.source.run(&row(long)).await;
            world.target.run(&row(cut)).await;
            let report = world.report().await;
            assert_eq!(found(&report), ["k=3 changed(v)"], "{source} {target}");
            assert_eq!(report.mapped.len(), 1, "{:?}", report.mapped);
        }
    }
}

#[tokio::test]
async fn names_that_are_printed_as_of_now_are_noted() {
    let world = World::new(18).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY, c regclass, a regtype[]); INSERT INTO t VALUES (1, 'pg_class', '{int4}')")
        .await;
    world.publish_all().await;
    let report = world.report().await;
    assert_eq!(found(&report), [""; 0]);
    let noted = report.mapped.iter().filter(|note| note.contains("now"));
    assert_eq!(noted.count(), 2, "{:?}", report.mapped);
}

#[tokio::test]
async fn operations_that_the_publication_leaves_out_are_named() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.both("CREATE TABLE t (k int PRIMARY KEY)").await;
        world
            .source
            .run("CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert, update')")
            .await;
        let got = world.compare().await;
        let left_out = |what: &str| format!("{what} (the publication leaves them out)");
        assert_eq!(
            got.not_covered,
            [left_out("deletes"), left_out("truncates")]
        );
    }
}

#[tokio::test]
async fn domains_are_compared_as_what_they_are_over() {
    for version in VERSIONS {
        for (source, target, equal, other) in [
            ("char(3)", "char(5)", "'ab'", "'abc'"),
            ("numeric", "numeric(10,2)", "1.5", "1.51"),
            ("varchar(9)", "char(5)", "'ab'", "'abc'"),
        ] {
            let world = World::new(version).await;
            let make = |of| format!("CREATE DOMAIN d AS {of}; CREATE DOMAIN dd AS d");
            world.source.run(&make(source)).await;
            world.target.run(&make(target)).await;
            for (here, there) in [("d", "d"), ("dd", "dd"), ("d", target), (source, "dd")] {
                let table = |of| {
                    format!("DROP TABLE IF EXISTS t; CREATE TABLE t (k int PRIMARY KEY, v {of})")
                };
                world.source.run(&table(here)).await;
                world.target.run(&table(there)).await;
                let rows = format!("INSERT INTO t VALUES (1, {equal}), (2, {equal}), (3, NULL)");
                world.both(&rows).await;
                world.source.run("DROP PUBLICATION IF EXISTS p").await;
                world.publish_all().await;
                let report = world.report().await;
                assert_eq!(found(&report), [""; 0], "{here} {there}, {source} {target}");
                assert_eq!(report.mapped.len(), 1, "{:?}", report.mapped);
                let change = format!("UPDATE t SET v = {other} WHERE k = 2");
                world.target.run(&change).await;
                assert_eq!(found(&world.report().await), ["k=2 changed(v)"]);
            }
        }
    }
}

#[tokio::test]
async fn numbers_of_a_cluster_are_noted() {
    let world = World::new(18).await;
    world
        .both("CREATE TABLE t (k int PRIMARY KEY, o oid, x xid[], i int); INSERT INTO t VALUES (1, 1, '{2}', 3)")
        .await;
    world.publish_all().await;
    let report = world.report().await;
    assert_eq!(found(&report), [""; 0]);
    let noted = report.mapped.iter().filter(|note| note.contains("cluster"));
    assert_eq!(noted.count(), 2, "{:?}", report.mapped);
}

#[tokio::test]
async fn another_version_of_a_type_s_extension_is_noted() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.source.run("CREATE EXTENSION hstore").await;
        world
            .target
            .run("CREATE EXTENSION hstore VERSION '1.4'")
            .await;
        world
            .both("CREATE DOMAIN d AS hstore; CREATE TABLE t (k int PRIMARY KEY, h hstore, a hstore[], d d); INSERT INTO t VALUES (1, 'a=>1', '{b=>2}', 'c=>3')")
            .await;
        world.publish_all().await;
        let report = world.report().await;
        assert_eq!(found(&report), [""; 0]);
        let noted = |note: &&String| note.contains("hstore 1.8 on the source, hstore 1.4 on");
        assert_eq!(
            report.mapped.iter().filter(noted).count(),
            3,
            "{:?}",
            report.mapped
        );
        world
            .target
            .run("ALTER EXTENSION hstore UPDATE; UPDATE t SET h = 'a=>2'")
            .await;
        let report = world.report().await;
        assert_eq!(found(&report), ["k=1 changed(h)"]);
        assert_eq!(report.mapped, [""; 0]);
    }
}
