//! Values arrive as they were printed, whatever their type and whatever the roles' settings.

use anyhow::Result;

use crate::scenario::{WITHIN, carried, run, started, value};

#[tokio::test]
async fn b28_user_defined_types() -> Result<()> {
    for (version, name) in [(15, "b28on15"), (18, "b28on18")] {
        carried(
            version,
            name,
            &["CREATE TYPE mood AS ENUM ('a', 'b'); CREATE DOMAIN posint AS int CHECK (value > 0);
               CREATE TYPE comp AS (x int, y text);
               CREATE TABLE e (id int PRIMARY KEY, m mood, d posint, c comp, ma mood[], r int4range, mr int4multirange)"],
            &[
                r#"INSERT INTO e VALUES (1, 'a', 5, '(1,"a,""b")', '{a,b,NULL}', '[1,5)', '{[1,3),[5,9)}')"#,
                "INSERT INTO e VALUES (2, NULL, NULL, NULL, NULL, 'empty', '{}')",
                r#"UPDATE e SET c = '(,"")', ma = '{}' WHERE id = 1"#,
            ],
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn b69_role_and_database_settings_do_not_change_values() -> Result<()> {
    let schema = "CREATE TABLE g (id int PRIMARY KEY, at timestamptz, d date, i interval, f8 float8, f4 float4, b bytea, a text[])";
    let flow = crate::scenario::prepared(15, "b69", &[schema], &[schema], "").await?;
    let mut flow = flow;
    for (url, style) in [
        (&flow.source_admin, "SQL, DMY"),
        (&flow.target_admin, "SQL, MDY"),
    ] {
        run(
            url,
            &[&format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET datestyle = ''{style}''', current_database());
                   EXECUTE format('ALTER DATABASE %I SET intervalstyle = ''sql_standard''', current_database());
                   EXECUTE format('ALTER DATABASE %I SET extra_float_digits = 0', current_database());
                   EXECUTE format('ALTER DATABASE %I SET bytea_output = ''escape''', current_database());
                   EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Kolkata''', current_database());
                   EXECUTE format('ALTER DATABASE %I SET standard_conforming_strings = off', current_database());
                   EXECUTE format('ALTER DATABASE %I SET array_nulls = off', current_database());
                   EXECUTE format('ALTER DATABASE %I SET search_path = ''nowhere''', current_database());
                 END $$"
            )],
        )
        .await?;
    }
    flow.start().await?;
    run(
        &flow.source_admin,
        &["SET datestyle = 'ISO'; SET intervalstyle = 'postgres';
           INSERT INTO public.g VALUES (1, '2024-03-10 07:06:05.123456+00', '2024-03-10', '-2 days -03:04:05.6',
             0.1::float8 + 0.2::float8, 16777217.3, decode('deadbeef00', 'hex'), ARRAY['a', NULL, 'NULL']),
             (2, '2024-10-03 23:59:59.999999+00', '2024-10-03', '1 year -3 days', 1e-320, 1.17549435e-38, '', '{}')"],
    )
    .await?;
    flow.converges(WITHIN).await?;
    let nulls =
        "SELECT array_position(a, NULL) || ' of ' || cardinality(a) FROM public.g WHERE id = 1";
    anyhow::ensure!(value(&flow.target_admin, nulls).await? == "2 of 3");
    Ok(())
}

/// A name is printed with its schema only when that is not on the session's path: what arrives as
/// `t` would be nothing on a target that looks elsewhere.
#[tokio::test]
async fn b69_values_that_name_things_carry_their_schema() -> Result<()> {
    carried(
        15,
        "names",
        &[
            "CREATE TABLE t (id int PRIMARY KEY, c regclass, f regprocedure, ty regtype);
           CREATE FUNCTION f(t) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        ],
        &[
            "INSERT INTO t VALUES (1, 't', 'f(t)', 't')",
            "UPDATE t SET c = 't_pkey'",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b70_not_a_number_and_infinities() -> Result<()> {
    carried(
        15,
        "b70",
        &["CREATE TABLE nu (id int PRIMARY KEY, v numeric, w numeric(10,2));
           CREATE TABLE f8 (v float8); CREATE TABLE na (v numeric[]); CREATE TABLE nk (k numeric PRIMARY KEY, n int);
           ALTER TABLE f8 REPLICA IDENTITY FULL; ALTER TABLE na REPLICA IDENTITY FULL"],
        &[
            "INSERT INTO nu VALUES (1, 'NaN', 'NaN'), (2, 'Infinity', 0), (3, '-Infinity', 1.10)",
            "INSERT INTO f8 VALUES ('NaN'), ('-0'), (1e-320), (1.7976931348623157e308), ('Infinity')",
            "INSERT INTO na VALUES ('{NaN,Infinity,NULL}')",
            "INSERT INTO nk VALUES ('NaN', 1); UPDATE nk SET n = 2 WHERE k = 'NaN'",
            "DELETE FROM f8 WHERE v = 'NaN'; UPDATE f8 SET v = 5 WHERE v = '-0'",
            "UPDATE na SET v = v || 'NaN'::numeric",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b71_numbers_stay_digit_for_digit() -> Result<()> {
    carried(
        15,
        "b71",
        &["CREATE TABLE n (id bigint PRIMARY KEY, v numeric)"],
        &[
            "INSERT INTO n VALUES (9007199254740993, 0.00000000000000006938893903907228), (-9223372036854775808, 1e100)",
            "INSERT INTO n VALUES (1, 10.00), (2, (repeat('9', 131072))::numeric), (3, 2129020)",
            "UPDATE n SET v = v + 0.10 WHERE id = 1; DELETE FROM n WHERE id = -9223372036854775808",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b74_json_stays_byte_for_byte() -> Result<()> {
    carried(
        15,
        "b74",
        &["CREATE TABLE j (id int PRIMARY KEY, a json, b jsonb)"],
        &[
            r#"INSERT INTO j VALUES (1, '{"a":"\u0000","b":1,"b":2,  "n":123456789012345678901234567890.5}', '{"n":1e400,"z":1.10}')"#,
            r#"INSERT INTO j VALUES (2, '"\ud83d\ude00"', '"\ud83d\ude00"'), (3, E'"a\\nb\\tc\\\\d"', E'"a\\nb\\tc\\\\d"')"#,
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn b75_bytea_and_text_are_not_escaped_twice() -> Result<()> {
    carried(
        15,
        "b75",
        &["CREATE TABLE b (id int PRIMARY KEY, v bytea, t text)"],
        &[
            r"INSERT INTO b VALUES (1, '\xdeadbeef', ''), (2, '', NULL), (3, convert_to('\x41', 'UTF8'), '\x41')",
            "INSERT INTO b SELECT 4, string_agg(decode(lpad(to_hex(g), 2, '0'), 'hex'), '' ORDER BY g), repeat('\"''', 50000) FROM generate_series(0, 255) g",
            r"INSERT INTO b VALUES (5, NULL, E'line\nbreak\ttab\\slash'), (6, NULL, '\N'), (7, NULL, '\.'), (8, NULL, 'trail   ')",
            "INSERT INTO b VALUES (9, NULL, U&'\\FFFD \\0065\\0301 \\+01F600'), (10, NULL, '{NULL,\"x\"}'), (11, NULL, 'NULL')",
            "UPDATE b SET t = t || t WHERE id IN (5, 9)",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn every_built_in_kind_of_value() -> Result<()> {
    let flow = started(
        18,
        "allkinds",
        &["CREATE EXTENSION IF NOT EXISTS hstore; CREATE EXTENSION IF NOT EXISTS citext;
           CREATE DOMAIN short AS varchar(3); CREATE DOMAIN ints AS int[];
           CREATE TABLE k (id int PRIMARY KEY, c01 int2, c02 \"char\", c03 char(5), c04 varchar(7), c05 name, c06 timetz,
             c07 interval, c08 int[][], c09 text[], c10 hstore, c11 citext, c12 bit(3), c13 varbit, c14 inet, c15 macaddr8,
             c16 point, c17 box[], c18 tstzrange, c19 nummultirange, c20 xml, c21 pg_lsn, c22 tsvector, c23 tsquery,
             c24 money, c25 xid, c26 oidvector, c27 regclass, c28 jsonpath, c29 tid, c30 short, c31 ints, c32 date,
             c33 timestamp, c34 uuid, c35 boolean, c36 circle, c37 cidr, c38 int2vector, c39 float4)"],
        "",
    )
    .await?;
    run(
        &flow.source_admin,
        &[
            r#"INSERT INTO k VALUES (1, -32768, 'x', 'ab', 'ü', 'some name', '04:05:06.789-08', '1 mon -2 days 03:04:05.678',
                '{{1,2},{3,NULL}}', '{"a,b","c\"d","\\",NULL,"NULL","{}"}', '"a"=>"1", "b"=>NULL', 'MiXed', B'101', B'10110',
                '::1/64', '08:00:2b:01:02:03:04:05', '(1.5,-2)', '{(1,1),(0,0);(2,2),(1,1)}', '["2024-01-01 00:00+00",)',
                '{[1,2),(5,6]}', '<a b="c">d &amp; e</a>', '16/B374D848', '''fat'' & cat':: tsvector, 'a & !b | c:*',
                '$12,345.67', '123', '1 2 3', 'pg_class', '$.a[*] ? (@ > 1)', '(0,1)', 'abc', '{4,5}', '0044-03-15 BC',
                'infinity', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', true, '<(1,2),3>', '10.0.0.0/8', '1 2', '1.17549435e-38')"#,
            "INSERT INTO k (id) VALUES (2)",
            "UPDATE k SET c09 = '{}', c07 = '-1 year', c32 = 'infinity' WHERE id = 1",
        ],
    )
    .await?;
    flow.converges(WITHIN).await
}
