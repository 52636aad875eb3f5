//! What PostgreSQL prints, PostgreSQL reads (cases.md 5): byte for byte, alone and in runs.

use trellara_applier::ApplyErrorKind;

use super::world::World;
use crate::on_each_version;

/// The types of the 44 columns of prototypes B, with what they need.
const TYPES: &str = r#"
CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE SCHEMA types;
CREATE TYPE types.mood AS ENUM ('a', 'b "q" c', 'it''s');
CREATE TYPE types.comp AS (x int, y text, z varchar(3));
CREATE DOMAIN types.posint AS int CHECK (value > 0);
CREATE DOMAIN types.code AS varchar(3);
CREATE DOMAIN types.deeper AS types.code CHECK (value <> 'bad');
CREATE DOMAIN types.ints AS int[];
CREATE TYPE types.floatrange AS RANGE (subtype = float8);
CREATE TABLE every(
    id int PRIMARY KEY, c_int2 int2, c_int8 int8, c_numeric numeric, c_numeric2 numeric(10,2), c_float4 float4,
    c_float8 float8, c_char "char", c_name name, c_bytea bytea, c_date date, c_timestamp timestamp,
    c_timestamptz timestamptz(3), c_timetz timetz, c_interval interval, c_json json, c_jsonb jsonb, c_uuid uuid,
    c_ints int[][], c_texts text[], c_mood types.mood, c_moods types.mood[], c_comp types.comp, c_comps types.comp[],
    c_posint types.posint, c_code types.deeper, c_dints types.ints, c_codes types.code[], c_citext citext, c_hstore hstore,
    c_bit bit(5), c_varbit bit varying(7), c_inet inet, c_macaddr macaddr8, c_point point, c_boxes box[],
    c_range int4range, c_tsrange tstzrange, c_multirange int4multirange, c_own types.floatrange, c_xml xml,
    c_lsn pg_lsn, c_tsvector tsvector, c_tsquery tsquery, c_money money, c_xid xid, c_oidvector oidvector,
    c_regclass regclass, c_jsonpath jsonpath, c_tid tid, c_bpchar char(4), c_varchar varchar(3)[], c_bool bool, c_cidr cidr)
"#;

const ROWS: &str = r#"
INSERT INTO every VALUES (1, -32768, 9007199254740993, 'NaN', -0.5, 'NaN', '-0', '\', 'n"ame', '\x00ff5c27', '0044-03-15 BC',
    'infinity', '2024-02-29 23:59:59.999+00', '23:59:59.999999-15:59', '-2 days -03:04:05.6',
    '{"a":"\u0000","b":1,"b":2,  "n":123456789012345678901234567890.5}', '{"n":1e400,"z":1.10}', '00000000-0000-0000-0000-000000000001',
    '{{1,NULL},{3,4}}', E'{"quote\\"","back\\\\slash",NULL,"NULL","{}",""}', 'b "q" c', '{a,"b \"q\" c",NULL}',
    '(1,"a,""b""",abc)', '{"(1,\"x y\",)",NULL}', 7, 'abc', '{{1},{2}}', '{abc,NULL}', 'CiText', 'a=>"1", "b c"=>NULL', '10101', '101',
    '::1/64', '08:00:2b:01:02:03:04:05', '(1.5,-0)', '{(2,2),(1,1);(4,4),(3,3)}', '[1,5)', '["2024-01-01 00:00:00+00",)',
    '{[1,3),[5,9)}', '[0.1,0.30000000000000004]', '<a b="&amp;">t<!-- c --></a>', '16/B374D848', $$'a:1A' & 'cat' 'it''s':2$$, '''fat'' & !rat',
    '$12,345.67', '4294967295', '1 2 3', 'every', '$.a[*] ? (@ > 1)', '(4,5)', 'x', '{abc,"a b"}', true, '10.0.0.0/8');
INSERT INTO every(id) VALUES (2);
INSERT INTO every(id, c_texts, c_ints, c_name, c_bytea, c_citext, c_hstore, c_multirange, c_range, c_json, c_xml, c_bpchar) VALUES
    (3, '{}', '{}', '', '', '', '', '{}', 'empty', '""', '', ''),
    (4, '{NULL}', '[0:1]={1,2}', 'NULL', '\x4e554c4c', 'NULL', 'NULL=>"NULL"', '{(,)}', '(,)', 'null', 'NULL', 'NULL'),
    (5, E'{"\\\\N"}', '{{{1}}}', E'\\N', E'\\\\N', E'\\N', E'"\\\\N"=>"\\\\N"', NULL, NULL, E'"\\\\N"', E'\\N', E'\\N'),
    (6, E'{"\\\\."}', NULL, E'\\.', E'\\\\.', E'\\.', NULL, NULL, NULL, E'"\\\\."', E'\\.', E'\\.  ');
INSERT INTO every(id, c_numeric, c_float4, c_float8, c_numeric2, c_interval) VALUES
    (7, 'Infinity', 'Infinity', 1e-320, 'NaN', '1 mon -1 days'), (8, '-Infinity', '16777217.3', 1.7976931348623157e308, 10.00, '0'),
    (9, 0.00000000000000006938893903907228, 1e-45, 0.1::float8 + 0.2::float8, 99999999.99, '178000000 years'),
    (10, 1e100, '-0', 'Infinity', 0, NULL), (11, 10.00, 0, '-Infinity', NULL, NULL)
"#;

on_each_version! {
    async fn c39_every_type_arrives_byte_for_byte(version) {
        let mut world = World::new(version, TYPES).await;
        let money = "SET lc_monetary = 'C'; SET xmloption = content; ";
        world.follows(&format!("{money}{ROWS}"), &["every"]).await;
        assert_eq!(world.rows("every").await.len(), 11);
        // Row by row the forms are others.
        world.options.set_wise = false;
        world.follows("UPDATE every SET c_bool = NOT c_bool; UPDATE every SET id = id + 100", &["every"]).await;
        // And without a key every column is compared.
        world.source.batch_execute("ALTER TABLE every DROP CONSTRAINT every_pkey; ALTER TABLE every REPLICA IDENTITY FULL").await.unwrap();
        world.target.batch_execute("ALTER TABLE every DROP CONSTRAINT every_pkey").await.unwrap();
        world.reconnect().await;
        world.follows("UPDATE every SET c_int2 = 5; DELETE FROM every WHERE id IN (101, 104, 107)", &["every"]).await;
        assert_eq!(world.rows("every").await.len(), 8);
    }
}

on_each_version! {
    async fn b28_types_of_users(version) {
        let mut world = World::new(version,
            "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE DOMAIN posint AS int CHECK (value > 0);
             CREATE TYPE comp AS (x int, y text);
             CREATE TABLE e(id int PRIMARY KEY, m mood, d posint, c comp, ma mood[], r int4range, mr int4multirange)").await;
        world.follows("INSERT INTO e VALUES (1, 'a', 5, '(1,\"a,\"\"b\")', '{a,b,NULL}', '[1,5)', '{[1,3),[5,9)}');
             INSERT INTO e VALUES (2, NULL, NULL, NULL, NULL, 'empty', '{}'); UPDATE e SET m = 'b' WHERE id = 2", &["e"]).await;
    }
}

on_each_version! {
    async fn b70_nan_and_infinities(version) {
        let mut world = World::new(version,
            "CREATE TABLE n(k numeric PRIMARY KEY, two numeric(10,2), f float8, na numeric[]); CREATE TABLE f(k float8 PRIMARY KEY, v int)").await;
        world.follows("INSERT INTO n VALUES ('NaN', 'NaN', 'NaN', '{NaN,Infinity,NULL}'), ('Infinity', 1, '-0', '{}'), ('-Infinity', 0, 1e-320, NULL);
             INSERT INTO f VALUES ('NaN', 1), ('-0', 2), (1e-320, 3), (1.7976931348623157e308, 4), ('-Infinity', 5);
             UPDATE n SET two = 2; UPDATE f SET v = v + 1; UPDATE f SET k = 0 WHERE k = 0; DELETE FROM n WHERE k = 'NaN'; DELETE FROM f WHERE k = 'NaN'",
             &["n", "f"]).await;
    }
}

on_each_version! {
    async fn b71_numbers_do_not_pass_through_a_float(version) {
        let mut world = World::new(version, "CREATE TABLE n(id bigint PRIMARY KEY, v numeric)").await;
        world.follows("INSERT INTO n VALUES (9007199254740993, 0.00000000000000006938893903907228), (-9223372036854775808, 1e100),
             (9223372036854775807, repeat('9', 131072)::numeric), (2129020, 10.00); UPDATE n SET v = v + 0 WHERE id = 9007199254740993",
             &["n"]).await;
    }
}

on_each_version! {
    async fn b74_json(version) {
        let mut world = World::with(version, "CREATE TABLE j(id int PRIMARY KEY, j json, b jsonb); CREATE TABLE other(id int PRIMARY KEY, j json)",
            "CREATE TABLE j(id int PRIMARY KEY, j json, b jsonb); CREATE TABLE other(id int PRIMARY KEY, j jsonb)").await;
        world.follows(r#"INSERT INTO j VALUES (1, '{"a":"\u0000","b":1,"b":2,  "n":123456789012345678901234567890.5}', '{"n":1e400,"z":1.10}'),
             (2, '"\ud83d\ude00"', E'"line\\nbreak\\ttab\\\\back"')"#, &["j"]).await;
        // What only the target refuses is an error of that transaction.
        let refused = world.run(r#"INSERT INTO j VALUES (3, NULL, NULL); INSERT INTO other VALUES (1, '{"a":"\u0000"}')"#).await.unwrap_err();
        assert_eq!((refused.kind, refused.sqlstate.as_str()), (ApplyErrorKind::Data, "22P05"));
        assert_eq!(world.rows("j").await.len(), 2);
    }
}

on_each_version! {
    async fn b75_bytes_and_awkward_texts(version) {
        let mut world = World::new(version, "CREATE TABLE b(id int PRIMARY KEY, b bytea, t text)").await;
        world.follows(r#"INSERT INTO b SELECT 1, decode(string_agg(lpad(to_hex(g), 2, '0'), ''), 'hex'), E'line\nbreak' FROM generate_series(0, 255) g;
             INSERT INTO b VALUES (2, '', ''), (3, '\xdeadbeef', NULL), (4, convert_to('\x41', 'UTF8'), '\x41'), (5, NULL, '\N'), (6, NULL, '\.'),
                 (7, NULL, E'back\\slash\ttab'), (8, NULL, repeat('''""', 50000)), (9, NULL, chr(65535)), (10, NULL, chr(101) || chr(769)),
                 (11, NULL, chr(128512)), (12, NULL, 'trailing  '); UPDATE b SET t = t || '!' WHERE id <> 8"#, &["b"]).await;
    }
}

on_each_version! {
    async fn b77_types_have_other_oids_on_the_target(version) {
        let mut world = World::with(version, "CREATE SCHEMA types; CREATE EXTENSION hstore SCHEMA types; CREATE EXTENSION citext SCHEMA types;
             CREATE TYPE types.mood AS ENUM ('a', 'b'); CREATE TABLE t(k types.citext PRIMARY KEY, h types.hstore, m types.mood)",
            "CREATE TYPE dummy AS (a int); CREATE SCHEMA types; CREATE EXTENSION citext SCHEMA types; CREATE TYPE types.mood AS ENUM ('b', 'a');
             CREATE EXTENSION hstore SCHEMA types; DROP TYPE dummy; CREATE TABLE t(m types.mood, h types.hstore, k types.citext PRIMARY KEY)").await;
        world.run("SET search_path = public, types; INSERT INTO t VALUES ('K', 'a=>1', 'b'), ('l', '', 'a'); UPDATE t SET m = 'a' WHERE k = 'k'; DELETE FROM t WHERE k = 'L'").await.unwrap();
        assert_eq!(world.rows("t").await, ["(a,\"\"\"a\"\"=>\"\"1\"\"\",K)"]);
    }
}

on_each_version! {
    async fn an_over_long_value_fails_and_is_not_cut(version) {
        let source = "CREATE DOMAIN code AS varchar(9);
             CREATE TABLE t(id int PRIMARY KEY, v varchar(9), c char(9), b bit varying(9), d code, n numeric(9,2), a varchar(9)[])";
        let target = "CREATE DOMAIN code AS varchar(3);
             CREATE TABLE t(id int PRIMARY KEY, v varchar(3), c char(3), b bit varying(3), d code, n numeric(3,2), a varchar(3)[])";
        let mut world = World::with(version, source, target).await;
        world.run("INSERT INTO t VALUES (1, 'abc', 'abc', '101', 'abc', 1.25, '{abc}'), (2, 'abc', 'abc', '101', 'abc', 1.25, '{abc}')").await.unwrap();
        for (column, value) in [("v", "'abcd'"), ("c", "'abcd'"), ("b", "'1011'"), ("d", "'abcd'"), ("n", "123.25"), ("a", "'{abcd}'")] {
            for set_wise in [true, false] {
                world.options.set_wise = set_wise;
                let refused = world.run(&format!("UPDATE t SET {column} = {value}")).await.unwrap_err();
                assert_eq!(refused.kind, ApplyErrorKind::Data, "{column}: {refused}");
                assert!(refused.sqlstate.starts_with("22"), "{column}: {refused}");
                let refused = world.run(&format!("DELETE FROM t WHERE id > 2; INSERT INTO t(id, {column}) VALUES (3, {value})")).await.unwrap_err();
                assert!(refused.sqlstate.starts_with("22"), "{column}: {refused}");
                world.unseen("DELETE FROM t WHERE id = 3").await;
            }
        }
        assert_eq!(world.rows("t").await.len(), 2);
    }
}

on_each_version! {
    async fn a_wrong_value_is_not_quoted_in_the_error(version) {
        let mut world = World::with(version, "CREATE TABLE t(id int PRIMARY KEY, v text)", "CREATE TABLE t(id int PRIMARY KEY, v int)").await;
        let refused = world.run("INSERT INTO t VALUES (1, 'my \"secret\" text')").await.unwrap_err();
        assert_eq!((refused.kind, refused.sqlstate.as_str()), (ApplyErrorKind::Data, "22P02"));
        assert!(!format!("{refused} {refused:?}").contains("secret"));
        assert_eq!((refused.schema.as_str(), refused.table.as_str(), refused.change_number), ("public", "t", 1));
    }
}

on_each_version! {
    /// Some types have a cast from text that does not read all that they print.
    async fn values_go_through_the_input_function_of_their_type(version) {
        let types = "CREATE DOMAIN place AS regclass; CREATE TYPE pair AS (a int, b int);
             CREATE FUNCTION pair(text) RETURNS pair LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN ROW(0, 0); END'; CREATE CAST (text AS pair) WITH FUNCTION pair(text);
             CREATE TABLE t(c regclass PRIMARY KEY, d place, a regclass[], p pair, ch \"char\", x xml, n name);
             CREATE TABLE keyless(c regclass, p pair); ALTER TABLE keyless REPLICA IDENTITY FULL";
        let mut world = World::new(version, types).await;
        for set_wise in [true, false] {
            world.options.set_wise = set_wise;
            world.follows("INSERT INTO t VALUES (0, 0, '{-,999999}', (1, 2), 'x', '<a/>', 'n'), (999999, 999999, NULL, NULL, '', 'text', ''), ('t', 't', '{t}', (3, 4), NULL, NULL, NULL);
                 INSERT INTO keyless VALUES (0, (1, 2)), (999999, (3, 4))", &["t", "keyless"]).await;
            assert_eq!(world.rows("t").await.len(), 3);
            world.follows("UPDATE t SET n = 'other', d = 0; UPDATE keyless SET p = (5, 6)", &["t", "keyless"]).await;
            world.follows("DELETE FROM t; DELETE FROM keyless", &["t", "keyless"]).await;
        }
    }
}
