//! Odd values of every type: the same text by the copy and by the stream, whatever the databases and
//! roles say about text.

use anyhow::{Result, ensure};
use trellara_testkit::compare;

use crate::scenario::{WITHIN, prepared, run, value};

/// Types that are nowhere on the path; the target has others before them, so that no number of a type
/// is the same.
const TYPES: &str = "
    CREATE SCHEMA types;
    CREATE EXTENSION hstore SCHEMA types; CREATE EXTENSION citext SCHEMA types;
    CREATE TYPE types.mood AS ENUM ('a', 'b', 'with \"quote', '');
    CREATE DOMAIN types.posint AS int CHECK (value > 0);
    CREATE DOMAIN types.words AS text[] CHECK (cardinality(value) < 9);
    CREATE TYPE types.inner_one AS (x int, y text);
    CREATE TYPE types.outer_one AS (i types.inner_one, m types.mood[], t timestamptz);";
const OTHERS: &str = "CREATE TYPE aside1 AS ENUM ('x'); CREATE TYPE aside2 AS (a int);
    CREATE TABLE aside3 (a int); DROP TABLE aside3";

const TABLES: &str = r#"
    CREATE TABLE numbers (id int PRIMARY KEY, n numeric, m numeric(10,2), na numeric[], f8 float8, f4 float4,
        i8 bigint, i2 smallint, money money, oid oid, o xid, b boolean);
    CREATE TABLE texts (id int PRIMARY KEY, t text, v varchar(7), c char(5), q "char", n name, b bytea, x xml,
        j json, jb jsonb, jp jsonpath, ta text[]);
    CREATE TABLE times (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, t time, tt timetz, i interval,
        r tstzrange, mr int4multirange, r4 int4range, nr nummultirange);
    CREATE TABLE others (id int PRIMARY KEY, bit bit(3), vb varbit, inet inet, cidr cidr, m8 macaddr8, u uuid,
        p point, bx box[], ci circle, l pg_lsn, tv tsvector, tq tsquery, ov oidvector, iv int2vector, tid tid,
        rc regclass, aa int[][]);
    CREATE TABLE own (id int PRIMARY KEY, m types.mood, ma types.mood[], d types.posint, w types.words,
        c types.outer_one, ca types.inner_one[], h types.hstore, ct types.citext)"#;

/// Sections 5 of the cases: B69 to B79.
const ROWS: &[&str] = &[
    "INSERT INTO numbers VALUES
        (1, 'NaN', 'NaN', '{NaN,Infinity,NULL,-Infinity}', 'NaN', 'NaN', 9007199254740993, -32768, '12345.67', 4294967295, '7', true),
        (2, 'Infinity', 0, '{}', '-0', '-0', -9223372036854775808, 32767, '-0.01', 0, NULL, false),
        (3, '-Infinity', 1.10, NULL, 1e-320, 1.17549435e-38, 9223372036854775807, 0, NULL, NULL, '1', NULL),
        (4, 0.00000000000000006938893903907228, 10.00, '{{1.0,2.00},{3,4}}', 1.7976931348623157e308, 16777217.3, 0, 1, 0, 1, '1', true),
        (5, 1e100, NULL, NULL, 0.1::float8 + 0.2::float8, 'Infinity', 2129020, 1, 1, 1, '1', true),
        (6, repeat('9', 131072)::numeric, -1.50, NULL, '-Infinity', 3.4e38, 1, 1, 1, 1, '1', true),
        (7, 10.000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    r#"INSERT INTO texts VALUES
        (1, E'line\nbreak\ttab\\back\r', E'\\x41', 'ab', 'x', 'some name', '\xdeadbeef',
            '<?xml version="1.0" encoding="ISO-8859-1"?><a b="c">d &amp; e</a>',
            '{"a":"\u0000","b":1,"b":2,  "n":123456789012345678901234567890.5}', '{"n":1e400,"z":1.10}', '$.a[*] ? (@ > 1)',
            '{"a,b","c\"d","\\",NULL,"NULL","{}",""}'),
        (2, '\N', '\.', '', '', '', '', NULL, '"\ud83d\ude00"', '"\ud83d\ude00"', NULL, '{}'),
        (3, '', NULL, NULL, NULL, NULL, convert_to('\x41', 'UTF8'), NULL, E'"a\\nb\\tc\\\\d"', E'"a\\nb\\tc\\\\d"', NULL, NULL),
        (4, NULL, 'ü', 'é', E'\\', 'é', NULL, NULL, 'null', 'null', NULL, '{{a,b},{c,NULL}}'),
        (5, U&'\FFFD \0065\0301 \+01F600', 'NULL', '\N', NULL, NULL, '\x00', NULL, '[]', '[]', NULL, '[0:1]={x,y}'),
        (6, 'trail   ', '  lead', '     ', NULL, NULL, '\x0a5c00', NULL, '1', '1', NULL, NULL)"#,
    "INSERT INTO texts (id, b, t) SELECT 7, string_agg(decode(lpad(to_hex(g), 2, '0'), 'hex'), '' ORDER BY g),
        repeat('\"''\\', 40000) FROM generate_series(0, 255) g",
    "INSERT INTO texts (id, t) SELECT 8, string_agg(chr(g), '' ORDER BY g) FROM generate_series(1, 3000) g",
    "INSERT INTO times VALUES
        (1, '0044-03-15 BC', 'infinity', '2024-03-10 07:06:05.123456+00', '24:00', '04:05:06.789-08', '-2 days -03:04:05.6',
            '[\"2024-01-01 00:00+00\",)', '{[1,3),[5,9)}', '[1,5)', '{[1,2),(5,6]}'),
        (2, 'infinity', '-infinity', '4714-11-24 00:00:00+00 BC', '00:00', '00:00+15:59:59', '1 mon -2 days 03:04:05.678', 'empty', '{}', 'empty', '{}'),
        (3, '5874897-12-31', '294276-12-31 23:59:59.999999', '1900-01-01 00:00:00+05:53:28', '23:59:59.999999', NULL, '-1 year', '(,)', NULL, '(,5)', NULL),
        (4, '2024-10-03', '2024-10-03 02:30', '2024-10-27 02:30+01', NULL, NULL, '178000000 years', NULL, NULL, NULL, NULL)",
    r#"INSERT INTO others VALUES
        (1, B'101', B'10110', '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03:04:05', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
            '(1.5,-2)', '{(1,1),(0,0);(2,2),(1,1)}', '<(1,2),3>', '16/B374D848', '''fat'' & cat'::tsvector, 'a & !b | c:*',
            '1 2 3', '1 2', '(0,1)', 'pg_catalog.pg_class', '{{1,2},{3,NULL}}'),
        (2, B'000', B'', '192.168.0.1', '::/0', NULL, NULL, '(1e-320,Infinity)', '{}', NULL, '0/0', '', '', '', '', NULL, 'public.others', '[-1:0]={7,8}')"#,
    r#"INSERT INTO own VALUES
        (1, 'a', '{a,b,NULL,"with \"quote",""}', 5, '{x,"y z"}', ROW(ROW(1, 'a,"b\'), '{a}', '2024-03-10 07:06:05+00'),
            ARRAY[ROW(1, NULL), ROW(NULL, '')]::types.inner_one[], '"a"=>"1", "b"=>NULL, "c\"d"=>"\\"', 'MiXed'),
        (2, '', '{}', NULL, NULL, ROW(NULL, NULL, NULL), '{NULL}', '', ''),
        (3, NULL, NULL, NULL, '{}', NULL, NULL, NULL, NULL)"#,
];

/// The same values under other keys.
const AGAIN: &str = "DO $$ DECLARE t regclass; others text; BEGIN
    FOR t IN SELECT unnest('{public.numbers,public.texts,public.times,public.others,public.own}'::regclass[]) LOOP
      SELECT string_agg(format('%I', attname), ', ' ORDER BY attnum) INTO others FROM pg_attribute
       WHERE attrelid = t AND attnum > 1;
      EXECUTE format('INSERT INTO %s (id, %s) SELECT id + 1000, %s FROM %s WHERE id < 1000', t, others, others, t);
    END LOOP; END $$";

async fn odd_settings(url: &str, style: &str) -> Result<()> {
    let settings = [
        ("datestyle", style),
        ("intervalstyle", "sql_standard"),
        ("extra_float_digits", "0"),
        ("bytea_output", "escape"),
        ("timezone", "Asia/Kolkata"),
        ("standard_conforming_strings", "off"),
        ("array_nulls", "off"),
        ("xmloption", "document"),
        ("search_path", "nowhere"),
        ("lc_monetary", "C"),
    ];
    let database = value(url, "SELECT quote_ident(current_database())").await?;
    for (name, to) in settings {
        run(
            url,
            &[&format!("ALTER DATABASE {database} SET {name} = '{to}'")],
        )
        .await?;
    }
    Ok(())
}

async fn both_ways(version: u32, name: &str) -> Result<()> {
    let source = &[TYPES, TABLES];
    let target = &[OTHERS, TYPES, TABLES];
    let mut flow = prepared(version, name, source, target, "").await?;
    run(&flow.source_admin, ROWS).await?;
    odd_settings(&flow.source_admin, "SQL, DMY").await?;
    odd_settings(&flow.target_admin, "SQL, MDY").await?;
    flow.start().await?;
    flow.copied(WITHIN).await?;
    run(&flow.source_admin, &[AGAIN]).await?;
    flow.converges(WITHIN).await?;
    // On the target alone: what was copied, and what came by the stream.
    let target = compare::connect(&flow.target_admin).await?;
    for table in ["numbers", "texts", "times", "others", "own"] {
        let text = |rows: &str| {
            format!(
                "SELECT substr(t::text, strpos(t::text, ',')) FROM public.{table} AS t WHERE id {rows}"
            )
        };
        let copied = compare::answers(&target, &text("< 1000")).await?;
        let streamed = compare::answers(&target, &text(">= 1000")).await?;
        let difference = compare::difference(table, &copied, &streamed);
        ensure!(
            !copied.is_empty() && difference.is_none(),
            "{table}: {difference:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn b65_odd_values_of_every_type_are_the_same_by_copy_and_by_stream_on_15() -> Result<()> {
    both_ways(15, "b65on15").await
}

#[tokio::test]
async fn b65_odd_values_of_every_type_are_the_same_by_copy_and_by_stream_on_18() -> Result<()> {
    both_ways(18, "b65on18").await
}

/// B81: a source whose encoding is not UTF-8, in its names and its values.
#[tokio::test]
async fn b65_a_source_in_latin_1_is_copied_and_streamed_as_it_reads() -> Result<()> {
    use trellara_testkit::flow::{Flow, Places};
    use trellara_testkit::ground::{Ground, GroundOptions};
    let ground = Ground::start(&GroundOptions::version(18))?;
    let admin = compare::connect(&ground.source.url("postgres")).await?;
    let latin =
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    admin.batch_execute(latin).await?;
    let admin = compare::connect(&ground.target.url("postgres")).await?;
    admin.batch_execute("CREATE DATABASE latin").await?;
    let places = Places {
        source_url: ground.source.url("latin"),
        target_url: ground.target.url("latin"),
        nats_url: ground.nats.url(),
        nats_monitor_url: Some(ground.nats.monitor_url()),
    };
    let mut flow = Flow::new("latin", places, "")?;
    let schema = "CREATE TABLE \"Öl\" (id int PRIMARY KEY, \"Preis in £\" text)";
    for url in [&flow.source_admin, &flow.target_admin] {
        run(url, &[schema]).await?;
    }
    let rows = "INSERT INTO \"Öl\" SELECT g, string_agg(chr(c), '' ORDER BY c) \
                  FROM generate_series(1, 50) g, generate_series(160, 255) c GROUP BY g";
    run(&flow.source_admin, &[rows]).await?;
    flow.start().await?;
    flow.copied(WITHIN).await?;
    run(
        &flow.source_admin,
        &["INSERT INTO \"Öl\" SELECT id + 1000, \"Preis in £\" FROM \"Öl\""],
    )
    .await?;
    flow.converges(WITHIN).await?;
    let kinds = "SELECT count(DISTINCT \"Preis in £\") || ' ' || count(*) FROM \"Öl\"";
    ensure!(value(&flow.target_admin, kinds).await? == "1 100");
    Ok(())
}
