//! Replica identities, keys and TOAST (cases.md 6, and B100, B104).

use trellara_applier::ApplyErrorKind;

use super::world::World;
use crate::on_each_version;

on_each_version! {
    async fn b82_an_unchanged_toast_value_keeps_what_it_is(version) {
        let mut world = World::new(version,
            "CREATE TABLE big(id int PRIMARY KEY, doc text, n int);
             ALTER TABLE big ALTER doc SET STORAGE external").await;
        world.follows("INSERT INTO big SELECT g, repeat('x', 20000 + g), 1 FROM generate_series(1, 3) g;
             UPDATE big SET n = 2 WHERE id = 1;
             UPDATE big SET n = 3, doc = NULL WHERE id = 2;
             UPDATE big SET n = 4, doc = 'unchanged' WHERE id = 3;
             UPDATE big SET id = 9 WHERE id = 1", &["big"]).await;
        assert!(world.rows("big").await.iter().any(|row| row.len() > 20_000));
    }
}

on_each_version! {
    async fn b84_identity_full_with_unchanged_toast(version) {
        let mut world = World::new(version,
            "CREATE TABLE keyed(id int PRIMARY KEY, t text, j jsonb, a text[], b bytea, n int);
             CREATE TABLE keyless(id int, t text, j jsonb, a text[], b bytea, n int);
             ALTER TABLE keyed REPLICA IDENTITY FULL; ALTER TABLE keyless REPLICA IDENTITY FULL;
             ALTER TABLE keyed ALTER t SET STORAGE external, ALTER j SET STORAGE external,
                 ALTER a SET STORAGE external, ALTER b SET STORAGE external;
             ALTER TABLE keyless ALTER t SET STORAGE external, ALTER j SET STORAGE external,
                 ALTER a SET STORAGE external, ALTER b SET STORAGE external").await;
        for table in ["keyed", "keyless"] {
            world.follows(&format!(
                "INSERT INTO {table} SELECT g, repeat('t', 20000) || g,
                     jsonb_build_object('k', repeat('j', 20000) || g), ARRAY[repeat('a', 20000), NULL, g::text],
                     convert_to(repeat('b', 20000) || g, 'UTF8'), 1 FROM generate_series(1, 3) g;
                 UPDATE {table} SET n = 2 WHERE id = 1;
                 UPDATE {table} SET t = 'short' WHERE id = 2;
                 UPDATE {table} SET id = 7 WHERE id = 2;
                 DELETE FROM {table} WHERE id = 3"), &[table]).await;
            assert_eq!(world.rows(table).await.len(), 2);
        }
    }
}

on_each_version! {
    async fn b85_of_a_key_tuple_only_the_key_counts(version) {
        let mut world = World::new(version,
            "CREATE TABLE t(a int NOT NULL, id int PRIMARY KEY, b text NOT NULL)").await;
        world.follows("INSERT INTO t SELECT g, g, 'b' || g FROM generate_series(1, 4) g", &["t"]).await;
        world.follows("UPDATE t SET id = id + 10", &["t"]).await;
        world.follows("DELETE FROM t WHERE id > 12", &["t"]).await;
        assert_eq!(world.rows("t").await, ["(1,11,b1)", "(2,12,b2)"]);
    }
}

on_each_version! {
    async fn b86_a_key_change_leaves_nothing_behind(version) {
        let mut world = World::new(version,
            "CREATE TABLE t(a int, b int, c text, PRIMARY KEY (a, b))").await;
        world.follows("INSERT INTO t SELECT g, 1, 'c' || g FROM generate_series(1, 1000) g", &["t"]).await;
        world.follows("UPDATE t SET b = 2 WHERE a <= 500", &["t"]).await;
        // A swap through a third value, and a key change with other columns.
        world.follows("BEGIN; UPDATE t SET a = 0 WHERE a = 1; UPDATE t SET a = 1 WHERE a = 2;
             UPDATE t SET a = 2, c = 'swapped' WHERE a = 0; COMMIT", &["t"]).await;
        // Whole rows move on by one: from the end, in one statement of the source.
        world.follows("CREATE TEMP TABLE o AS SELECT * FROM t ORDER BY a DESC;
             DO $$ DECLARE r record; BEGIN
                 FOR r IN SELECT a, b FROM o ORDER BY a DESC LOOP
                     UPDATE t SET a = a + 1 WHERE t.a = r.a AND t.b = r.b; END LOOP; END $$;
             DROP TABLE o", &["t"]).await;
        assert_eq!(world.rows("t").await.len(), 1000);
    }
}

on_each_version! {
    async fn b87_full_without_a_key_takes_exactly_one_row(version) {
        let mut world = World::new(version,
            "CREATE TABLE dup(a int, b text, j json, x xml, p point, f float8, n numeric);
             ALTER TABLE dup REPLICA IDENTITY FULL").await;
        world.follows(
            "INSERT INTO dup SELECT 1, NULL, '{\"k\": 1}', '<a/>', '(1,2)', 'NaN', 'NaN' FROM generate_series(1, 2);
             INSERT INTO dup SELECT 2, 'x', NULL, NULL, NULL, '-0', 1.00 FROM generate_series(1, 2);
             INSERT INTO dup VALUES (2, 'x', NULL, NULL, NULL, '0', 1.0)", &["dup"]).await;
        world.follows("DELETE FROM dup WHERE ctid = (SELECT min(ctid) FROM dup WHERE a = 1)", &["dup"]).await;
        world.follows("UPDATE dup SET b = 'y' WHERE ctid = (SELECT min(ctid) FROM dup WHERE a = 2)", &["dup"]).await;
        assert_eq!(world.rows("dup").await.len(), 4);
        // An index narrows the search; NULLs in its first column must still be found.
        world.target.batch_execute("CREATE INDEX ON dup (b, a)").await.unwrap();
        world.reconnect().await;
        world.follows("DELETE FROM dup WHERE b IS NULL; UPDATE dup SET a = 3 WHERE b = 'x' AND n::text = '1.0'", &["dup"]).await;
        world.follows("UPDATE dup SET b = NULL; DELETE FROM dup", &["dup"]).await;
        assert!(world.rows("dup").await.is_empty());
    }
}

on_each_version! {
    /// The first column of an index alone may have the same value in all rows.
    async fn b87_full_without_a_key_searches_by_all_columns_of_an_index(version) {
        let mut world = World::new(version,
            "CREATE TABLE many(client int, n int, note text); ALTER TABLE many REPLICA IDENTITY FULL;
             CREATE INDEX many_client_n ON many (client, n)").await;
        world.follows("INSERT INTO many SELECT 1, g, 'x' FROM generate_series(1, 5000) g", &["many"]).await;
        world.follows("UPDATE many SET note = 'y' WHERE n % 100 = 0; DELETE FROM many WHERE n % 100 = 50", &["many"]).await;
        world.session.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
        let read = "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'many_client_n'";
        let read = world.target.query_one(read, &[]).await.unwrap();
        let (scans, entries): (i64, i64) = (read.get(0), read.get(1));
        assert!(scans >= 100 && entries <= scans * 3, "{entries} entries read by {scans} scans");
    }
}

on_each_version! {
    async fn b87_full_with_a_key_on_the_target_uses_it(version) {
        let mut world = World::with(version,
            "CREATE TABLE t(a int, id int, b text); ALTER TABLE t REPLICA IDENTITY FULL",
            "CREATE TABLE t(a int, id int PRIMARY KEY, b text)").await;
        world.follows("INSERT INTO t SELECT g, g, NULL FROM generate_series(1, 100) g;
             UPDATE t SET b = 'x' WHERE id % 2 = 0; UPDATE t SET id = id + 1000 WHERE id < 10;
             DELETE FROM t WHERE id BETWEEN 20 AND 40", &["t"]).await;
    }
}

on_each_version! {
    async fn b93_the_key_is_what_the_relation_flags(version) {
        let tables = "CREATE SCHEMA other;
             CREATE TABLE parent(id int PRIMARY KEY);
             CREATE TABLE t(a int, fk int REFERENCES parent, b int NOT NULL, c text, UNIQUE (fk, c), PRIMARY KEY (b, a));
             CREATE UNIQUE INDEX ON t (c) WHERE a > 0; CREATE UNIQUE INDEX ON t (lower(c));
             CREATE TABLE other.t(c text NOT NULL, a int NOT NULL);
             CREATE UNIQUE INDEX other_c ON other.t (c); ALTER TABLE other.t REPLICA IDENTITY USING INDEX other_c";
        let mut world = World::new(version, tables).await;
        world.follows("INSERT INTO parent VALUES (1), (2);
             INSERT INTO t SELECT g, 1, g * 2, 'c' || g FROM generate_series(1, 10) g;
             INSERT INTO other.t SELECT 'k' || g, g FROM generate_series(1, 10) g", &["t", "other.t"]).await;
        world.follows("UPDATE t SET fk = 2; UPDATE other.t SET a = a + 1; UPDATE t SET b = b + 100 WHERE a = 3;
             UPDATE other.t SET c = 'moved' WHERE a = 3; DELETE FROM other.t WHERE a = 4;
             UPDATE t SET c = 'free' WHERE a = 1; UPDATE t SET c = 'c1' WHERE a = 2", &["t", "other.t"]).await;
    }
}

on_each_version! {
    async fn a_key_of_any_type_finds_its_row(version) {
        let mut world = World::new(version,
            "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('a', 'b c');
             CREATE DOMAIN code AS varchar(5);
             CREATE TABLE t(c citext, m mood, d code, b char(4), n numeric, f float8, u uuid, ts timestamptz, arr int[],
                 v int, PRIMARY KEY (c, m, d, b, n, f, u, ts, arr))").await;
        world.follows("INSERT INTO t SELECT 'Ab', 'b c', 'co', 'x ', 1.10, '-0', gen_random_uuid(), now(), ARRAY[1, g], 1
             FROM generate_series(1, 5) g; INSERT INTO t SELECT 'x', 'a', 'd', 'y', 'NaN', 'NaN', gen_random_uuid(), 'infinity', '{}', 1",
             &["t"]).await;
        world.follows("UPDATE t SET v = 2", &["t"]).await;
        world.follows("UPDATE t SET c = 'aB' WHERE arr[2] = 3; DELETE FROM t WHERE arr[2] = 4 OR n = 'NaN'", &["t"]).await;
        assert_eq!(world.rows("t").await.len(), 4);
    }
}

on_each_version! {
    async fn b104_identity_columns(version) {
        let tables = "CREATE TABLE t(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text, big text, u int UNIQUE);
             ALTER TABLE t ALTER big SET STORAGE external;
             CREATE TABLE child(id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, t bigint REFERENCES t);
             CREATE TABLE only_id(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
             CREATE TABLE beside(k text PRIMARY KEY, seq bigint GENERATED ALWAYS AS IDENTITY, v int)";
        let mut world = World::with(version, tables, &format!("{tables};
             ALTER TABLE t ADD extra text DEFAULT 'kept'; ALTER TABLE t ADD g int GENERATED ALWAYS AS (u * 2) STORED")).await;
        world.run("INSERT INTO t(v, big, u) SELECT 'v' || g, repeat('x', 20000), g FROM generate_series(1, 5) g;
             INSERT INTO child(t) SELECT id FROM t WHERE u <> 3; INSERT INTO only_id DEFAULT VALUES;
             INSERT INTO beside(k, v) VALUES ('a', 1), ('b', 2)").await.unwrap();
        world.target.batch_execute("UPDATE t SET extra = 'local'").await.unwrap();
        world.run("UPDATE t SET v = 'w'; UPDATE child SET id = id + 100; UPDATE only_id SET id = DEFAULT;
             UPDATE t SET id = DEFAULT WHERE u = 3; UPDATE beside SET v = 7; UPDATE beside SET seq = DEFAULT WHERE k = 'a';
             UPDATE beside SET k = 'c' WHERE k = 'b'").await.unwrap();
        for table in ["child", "only_id", "beside"] {
            world.equal(table).await;
        }
        world.source.batch_execute("CREATE VIEW seen AS SELECT id, v, big, u FROM t").await.unwrap();
        world.target.batch_execute("CREATE VIEW seen AS SELECT id, v, big, u FROM t").await.unwrap();
        world.equal("seen").await;
        assert!(world.rows("t").await.iter().all(|row| row.contains("local")));
    }
}

on_each_version! {
    async fn an_update_that_sets_nothing_still_needs_its_row(version) {
        let mut world = World::new(version, "CREATE TABLE k(id int PRIMARY KEY)").await;
        world.follows("INSERT INTO k VALUES (1), (2); UPDATE k SET id = id", &["k"]).await;
        world.target.batch_execute("DELETE FROM k WHERE id = 2").await.unwrap();
        let missing = world.run("UPDATE k SET id = id WHERE id = 2").await.unwrap_err();
        assert_eq!(missing.kind, ApplyErrorKind::Count);
    }
}

on_each_version! {
    async fn identity_nothing_is_refused_by_name(version) {
        // With another identity on the source than when the rows are described, by hand.
        let mut world = World::new(version, "CREATE TABLE t(a int, b int); ALTER TABLE t REPLICA IDENTITY NOTHING").await;
        world.follows("INSERT INTO t VALUES (1, 2)", &["t"]).await;
        world.source.batch_execute("ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET b = 3").await.unwrap();
        let mut messages = world.capture().await;
        for message in messages.iter_mut().filter(|message| message[0] == b'R') {
            let at = message.windows(2).position(|pair| pair == [0, b'f']).unwrap() + 1;
            message[at] = b'n';
        }
        let refused = world.apply(&messages).await.unwrap_err();
        assert_eq!(refused.kind, ApplyErrorKind::Schema);
        assert!(refused.hint.contains("REPLICA IDENTITY"), "{refused:?}");
        assert_eq!((refused.table.as_str(), refused.change_number), ("t", 1));
    }
}
