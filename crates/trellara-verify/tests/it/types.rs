//! Each type: a row deleted, one added, one changed; as a value and, where it can be, as the key.

use trellara_verify::report::Method;

use crate::support::{LANES, VERSIONS, World, found, of};

/// Declared type, then three different values. `k` may be a key.
const TYPES: &[(&str, &str, [&str; 3])] = &[
    ("smallint", "k", ["-32768", "0", "32767"]),
    ("integer", "k", ["-5", "0", "2147483647"]),
    ("bigint", "k", ["-9223372036854775808", "0", "7"]),
    ("numeric", "k", ["'-1.50'", "'1e40'", "'NaN'"]),
    ("numeric(10,2)", "k", ["'-1.50'", "'0'", "'1.51'"]),
    ("real", "k", ["'0.1'", "'Infinity'", "'0.100000024'"]),
    (
        "double precision",
        "k",
        ["'0.3'", "'0.30000000000000004'", "'NaN'"],
    ),
    ("money", "k", ["'1.00'", "'-2.50'", "'3.01'"]),
    ("text", "k", ["'a'", "''", "'é '"]),
    ("varchar(20)", "k", ["'a'", "'A'", "'a '"]),
    ("char(5)", "k", ["'a'", "'b'", "'a b'"]),
    ("\"char\"", "k", ["'a'", "'b'", "''"]),
    ("name", "k", ["'a'", "'b'", "'c'"]),
    ("bytea", "k", [r"'\x00'", r"'\x'", r"'\xff00'"]),
    (
        "date",
        "k",
        ["'2024-02-29'", "'infinity'", "'0044-03-15 BC'"],
    ),
    ("time", "k", ["'00:00'", "'24:00'", "'12:00:00.000001'"]),
    ("time(3)", "k", ["'00:00'", "'23:59:59.999'", "'12:00'"]),
    ("timetz", "k", ["'12:00+00'", "'13:00+01'", "'12:00-08'"]),
    (
        "timestamp",
        "k",
        ["'2024-01-01'", "'-infinity'", "'12345-01-01'"],
    ),
    (
        "timestamptz",
        "k",
        [
            "'2024-01-01 00:00+00'",
            "'infinity'",
            "'2024-01-01 00:00-01'",
        ],
    ),
    (
        "interval",
        "k",
        ["'1 month'", "'1 day 00:00:01'", "'-1 year'"],
    ),
    ("interval day to second(2)", "k", ["'1'", "'2'", "'3.25'"]),
    (
        "uuid",
        "k",
        [
            "'00000000-0000-0000-0000-000000000000'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'8a8a8a8a-0000-4000-8000-000000000001'",
        ],
    ),
    ("json", "", ["'{\"a\":1}'", "'{\"a\": 1}'", "'null'"]),
    ("jsonb", "", ["'{\"a\":1}'", "'{\"a\":1.0}'", "'null'"]),
    ("jsonpath", "", ["'$.a'", "'$.b'", "'$[0]'"]),
    ("inet", "k", ["'10.0.0.1'", "'10.0.0.1/8'", "'::1'"]),
    ("cidr", "k", ["'10.0.0.0/8'", "'10.0.0.0/16'", "'::/0'"]),
    (
        "macaddr",
        "k",
        [
            "'08:00:2b:01:02:03'",
            "'00:00:00:00:00:00'",
            "'ff:00:2b:01:02:03'",
        ],
    ),
    (
        "macaddr8",
        "k",
        [
            "'08:00:2b:01:02:03:04:05'",
            "'00:00:00:00:00:00:00:00'",
            "'ff:00:2b:01:02:03:04:05'",
        ],
    ),
    ("bit(4)", "k", ["B'0000'", "B'1010'", "B'1111'"]),
    ("varbit", "k", ["B''", "B'0'", "B'00'"]),
    ("point", "", ["'(0,0)'", "'(-0,0)'", "'(1e-300,2)'"]),
    ("line", "", ["'{1,2,3}'", "'{1,2,4}'", "'{0,1,0}'"]),
    (
        "lseg",
        "",
        ["'[(0,0),(1,1)]'", "'[(1,1),(0,0)]'", "'[(0,0),(1,2)]'"],
    ),
    (
        "box",
        "",
        ["'(1,1),(0,0)'", "'(2,1),(0,0)'", "'(1,2),(0,0)'"],
    ),
    (
        "path",
        "",
        ["'[(0,0),(1,1)]'", "'((0,0),(1,1))'", "'[(0,0),(1,2)]'"],
    ),
    (
        "polygon",
        "",
        [
            "'((0,0),(1,1),(2,0))'",
            "'((0,0),(2,0),(1,1))'",
            "'((0,0),(1,1))'",
        ],
    ),
    ("circle", "", ["'<(0,0),1>'", "'<(0,0),2>'", "'<(1,0),1>'"]),
    ("tsvector", "k", ["'a:1'", "'a:2'", "'a b'"]),
    ("tsquery", "k", ["'a & b'", "'a | b'", "'!a'"]),
    ("int4range", "k", ["'[1,2)'", "'empty'", "'(,)'"]),
    ("numrange", "k", ["'[1,2)'", "'[1,2]'", "'(1,2)'"]),
    (
        "tstzrange",
        "k",
        ["'[2024-01-01,2024-01-02)'", "'empty'", "'[2024-01-01,)'"],
    ),
    (
        "daterange",
        "k",
        ["'[2024-01-01,2024-01-02)'", "'empty'", "'(,2024-01-01)'"],
    ),
    (
        "int4multirange",
        "k",
        ["'{}'", "'{[1,2)}'", "'{[1,2),[4,5)}'"],
    ),
    (
        "integer[]",
        "k",
        ["'{1,2}'", "'[2:3]={1,2}'", "'{{1},{2}}'"],
    ),
    ("text[]", "k", ["'{NULL}'", "'{\"NULL\"}'", "'{\"\"}'"]),
    ("mood", "k", ["'sad'", "'ok'", "'happy'"]),
    ("positive", "k", ["1", "2", "3"]),
    ("pair", "k", ["ROW(1,'a')", "ROW(NULL,NULL)", "ROW(1,'')"]),
    ("boolean", "", ["true", "false", "NULL"]),
    ("oid", "k", ["1", "2", "4294967295"]),
    ("xid", "", ["'1'", "'2'", "'3'"]),
    ("xid8", "k", ["'1'", "'2'", "'3'"]),
    ("pg_lsn", "k", ["'0/0'", "'1/0'", "'FFFFFFFF/0'"]),
    ("regclass", "k", ["'pg_class'", "'public.other'", "0"]),
    ("pg_snapshot", "", ["'10:20:10,14'", "'10:20:'", "'10:10:'"]),
    ("regtype", "k", ["'int4'", "'public.mood'", "0"]),
    ("regproc", "k", ["'now'", "'pg_typeof'", "0"]),
    ("oidvector", "k", ["'1 2'", "'1'", "''"]),
    ("xml", "", ["'<a/>'", "'<a></a>'", "'a<b/>'"]),
    ("bpchar", "k", ["'a'", "'b'", "'c'"]),
    ("numeric(3,-2)", "k", ["100", "0", "-99900"]),
    (
        "timestamptz(0)",
        "k",
        [
            "'2024-01-01 00:00+00'",
            "'infinity'",
            "'2024-01-01 00:00-01'",
        ],
    ),
    (
        "int8range",
        "k",
        ["'[1,9223372036854775807)'", "'empty'", "'(,)'"],
    ),
    (
        "tsrange",
        "k",
        ["'[2024-01-01,2024-01-02)'", "'empty'", "'[2024-01-01,)'"],
    ),
    (
        "datemultirange",
        "k",
        ["'{}'", "'{[2024-01-01,2024-01-02)}'", "'{(,)}'"],
    ),
    (
        "bytea[]",
        "k",
        ["ARRAY[decode('00', 'hex')]", "'{}'", "'{NULL}'"],
    ),
    (
        "uuid[]",
        "k",
        [
            "'{00000000-0000-0000-0000-000000000000}'",
            "'{}'",
            "'{NULL}'",
        ],
    ),
    ("jsonb[]", "", ["'{1.0}'", "'{1.00}'", "'{NULL}'"]),
    ("pair[]", "", ["'{\"(1,a)\"}'", "'{\"(1,)\"}'", "'{NULL}'"]),
    ("spans", "k", ["'[1.5,2)'", "'empty'", "'[1.50,)'"]),
    ("hstore", "k", ["'a=>1'", "'a=>NULL'", "''"]),
    ("citext", "k", ["'a'", "'B'", "'c '"]),
    ("ltree", "k", ["'a.b'", "'a'", "''"]),
    ("cube", "k", ["'(1,2)'", "'(1,3)'", "'0'"]),
    (
        "isbn",
        "k",
        [
            "'978-0-393-04002-9'",
            "'978-3-16-148410-0'",
            "'978-0-306-40615-7'",
        ],
    ),
];

const BEFORE: &str = "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
    CREATE TYPE pair AS (a integer, b text);
    CREATE TYPE spans AS RANGE (subtype = numeric);
    CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree; CREATE EXTENSION cube;
    CREATE EXTENSION isn;
    CREATE TABLE other ();";

#[tokio::test]
async fn each_type_deleted_added_changed() {
    assert!(TYPES.len() >= 40);
    for (source, target) in [(15, 15), (18, 18), (15, 18)] {
        let world = World::of((source, ""), (target, "")).await;
        world.both(BEFORE).await;
        let (mut make, mut spoil) = (String::new(), String::new());
        for (i, (declared, _, [a, b, c])) in TYPES.iter().enumerate() {
            make += &format!(
                "CREATE TABLE v{i} (id integer PRIMARY KEY, v {declared}, w text DEFAULT 'w');
                 INSERT INTO v{i} VALUES (1, {a}), (2, {b}), (3, {c}), (4, {a}), (5, {b}), (6, NULL), (7, {c});"
            );
            spoil += &format!(
                "DELETE FROM v{i} WHERE id = 2; INSERT INTO v{i} VALUES (8, {b});
                 UPDATE v{i} SET v = {b} WHERE id = 4; UPDATE v{i} SET v = {a} WHERE id = 6;
                 UPDATE v{i} SET v = {c} WHERE id = 5;"
            );
        }
        world.both(&make).await;
        world.publish_all().await;
        for lane in LANES {
            let equal = world.compare_with(|o| o.lane = lane).await;
            for report in &equal.tables {
                assert_eq!(found(report), [""; 0], "{:?} {lane:?}", report.table);
            }
        }
        world.target.run(&spoil).await;
        let by_hash = world.compare().await;
        let by_proof = world.compare_with(|o| o.lane = LANES[1]).await;
        let both = TYPES
            .iter()
            .enumerate()
            .flat_map(|(i, of)| [(i, of, &by_hash), (i, of, &by_proof)]);
        for (i, (declared, _, _), got) in both {
            assert_eq!(
                found(of(got, &format!("v{i}"))),
                [
                    "id=2 missing",
                    "id=4 changed(v)",
                    "id=5 changed(v)",
                    "id=6 changed(v)",
                    "id=8 extra"
                ],
                "{declared} on {source} and {target}"
            );
        }
    }
}

#[tokio::test]
async fn each_type_as_the_key() {
    for version in VERSIONS {
        let world = World::new(version).await;
        world.both(BEFORE).await;
        let keys: Vec<_> = TYPES.iter().filter(|(_, kind, _)| *kind == "k").collect();
        assert!(keys.len() >= 40);
        let (mut make, mut spoil) = (String::new(), String::new());
        for (i, (declared, _, [a, b, c])) in keys.iter().enumerate() {
            let declared = match *declared {
                "text" | "varchar(20)" => format!("{declared} COLLATE \"C\""),
                other => other.to_owned(),
            };
            make += &format!(
                "CREATE TABLE k{i} (v {declared} PRIMARY KEY, w text);
                 INSERT INTO k{i} VALUES ({a}, 'a'), ({b}, 'b');"
            );
            spoil += &format!(
                "DELETE FROM k{i} WHERE w = 'a'; UPDATE k{i} SET w = '' WHERE w = 'b';
                 INSERT INTO k{i} VALUES ({c}, 'c');"
            );
        }
        world.both(&make).await;
        world.publish_all().await;
        for report in &world.compare_with(|o| o.range_rows = 1).await.tables {
            assert_eq!(found(report), [""; 0], "{:?}", report.table);
        }
        world.target.run(&spoil).await;
        let got = world.compare_with(|o| o.range_rows = 1).await;
        let mut ranges = 0;
        for (i, (declared, _, _)) in keys.iter().enumerate() {
            let report = of(&got, &format!("k{i}"));
            let mut kinds: Vec<String> = found(report);
            for kind in kinds.iter_mut() {
                *kind = kind.rsplit(' ').next().unwrap_or_default().to_owned();
            }
            kinds.sort();
            assert_eq!(kinds, ["changed(w)", "extra", "missing"], "{declared}");
            ranges += u32::from(matches!(report.method, Some(Method::Range(_))));
        }
        // int ×3, numeric ×3, text ×2, bytea, date, timestamp, timestamptz ×2, uuid.
        assert_eq!(ranges, 14, "on {version}");
    }
}
