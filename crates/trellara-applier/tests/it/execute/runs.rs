//! How changes share statements, and what is kept in mind for them.

use trellara_applier::ApplyErrorKind;

use super::world::World;
use crate::on_each_version;

on_each_version! {
    async fn like_changes_share_a_statement(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, v int, w text); CREATE TABLE log(t int, v int)").await;
        world.source.batch_execute("INSERT INTO t SELECT g, 0, 'w' FROM generate_series(1, 500) g;
             DO $$ BEGIN FOR i IN 1..500 LOOP UPDATE t SET v = i WHERE id = i; INSERT INTO log VALUES (i, i); END LOOP; END $$;
             DELETE FROM t WHERE id % 2 = 0").await.unwrap();
        let messages = world.capture().await;
        let applied = world.apply(&messages).await.unwrap();
        assert_eq!((applied.changes, applied.statements), (1750, 4));
        world.equal("t").await;
        world.equal("log").await;
    }
}

on_each_version! {
    async fn the_same_key_twice_is_two_statements(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, v int)").await;
        world.run("INSERT INTO t VALUES (1, 0), (2, 0)").await.unwrap();
        let applied = world.run("UPDATE t SET v = 1; UPDATE t SET v = 2; UPDATE t SET v = 3 WHERE id = 2").await.unwrap();
        assert_eq!(applied.statements, 3);
        world.equal("t").await;
        // Deleted and inserted again, twice over.
        world.follows("DO $$ BEGIN FOR i IN 1..2 LOOP DELETE FROM t; INSERT INTO t VALUES (1, i), (2, i); END LOOP; END $$", &["t"]).await;
    }
}

on_each_version! {
    async fn values_of_another_unique_index_move_row_by_row(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, email text UNIQUE)").await;
        world.run("INSERT INTO t SELECT g, 'm' || g FROM generate_series(1, 50) g").await.unwrap();
        world.follows("DO $$ BEGIN UPDATE t SET email = NULL WHERE id = 1; FOR i IN 2..50 LOOP UPDATE t SET email = 'm' || i - 1 WHERE id = i; END LOOP; END $$", &["t"]).await;
    }
}

on_each_version! {
    async fn a_table_on_which_something_fires_keeps_its_place(version) {
        let mut world = World::with(version, "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE t(id int PRIMARY KEY)",
            "CREATE TABLE a(id int PRIMARY KEY); CREATE TABLE t(id int PRIMARY KEY); CREATE TABLE seen(id int, a bigint);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES (NEW.id, (SELECT count(*) FROM public.a)); RETURN NEW; END';
             CREATE TRIGGER see AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION see(); ALTER TABLE t ENABLE REPLICA TRIGGER see").await;
        world.follows("INSERT INTO a VALUES (1); INSERT INTO t VALUES (1); INSERT INTO a VALUES (2), (3); INSERT INTO t VALUES (2); INSERT INTO a VALUES (4)", &["a", "t"]).await;
        let messages = {
            world.source.batch_execute("BEGIN; INSERT INTO a VALUES (5); INSERT INTO t VALUES (3); INSERT INTO a VALUES (6); INSERT INTO t VALUES (4); COMMIT").await.unwrap();
            world.capture().await
        };
        world.apply(&messages).await.unwrap();
        assert_eq!(world.rows("seen").await, ["(1,1)", "(2,3)", "(3,5)", "(4,6)"]);
    }
}

on_each_version! {
    async fn a_huge_row_goes_alone(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, n int, big text, more bytea); ALTER TABLE t ALTER big SET STORAGE external;
             CREATE TABLE f(id int, n int, big text, more bytea); ALTER TABLE f REPLICA IDENTITY FULL").await;
        for table in ["t", "f"] {
            world.follows(&format!("INSERT INTO {table} VALUES (1, 1, repeat('x', 8000000), repeat('y', 2000000)::bytea), (2, 2, 'small', ''), (3, 3, repeat('z', 3000000), NULL);
                 UPDATE {table} SET n = 5; UPDATE {table} SET id = 9 WHERE id = 1; UPDATE {table} SET big = repeat('w', 4000000) WHERE id = 2; DELETE FROM {table} WHERE id = 3"), &[table]).await;
        }
    }
}

on_each_version! {
    async fn b120_a_pooler_throws_the_statements_away(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, v int)").await;
        for n in 0..4 {
            world.run(&format!("INSERT INTO t VALUES ({n}, 0); UPDATE t SET v = {n}")).await.unwrap();
        }
        world.session.batch_execute("DEALLOCATE ALL").await.unwrap();
        world.source.batch_execute("INSERT INTO t VALUES (9, 0)").await.unwrap();
        let messages = world.capture().await;
        let thrown = world.apply(&messages).await.unwrap_err();
        assert_eq!((thrown.kind, thrown.sqlstate.as_str()), (ApplyErrorKind::Passing, "26000"));
        world.apply(&messages).await.unwrap();
        world.equal("t").await;
    }
}

on_each_version! {
    async fn b120_many_tables_and_many_columns(version) {
        let columns: String = (1..=100).map(|n| format!(", c{n} text")).collect();
        let tables: String = (1..=600).map(|n| format!("CREATE TABLE t{n}(id int PRIMARY KEY{});", if n == 1 { columns.as_str() } else { "" })).collect();
        let mut world = World::new(version, &tables).await;
        let sql: String = (1..=600).map(|n| format!("INSERT INTO t{n}(id) VALUES (1);")).collect();
        world.run(&sql).await.unwrap();
        for _ in 0..2 {
            let sql: String = (1..=600).map(|n| format!("INSERT INTO t{n}(id) SELECT max(id) + 1 FROM t{n};")).collect();
            world.run(&sql).await.unwrap();
        }
        let values: String = (1..=100).map(|n| format!(", 'v' || g || {n}")).collect();
        world.follows(&format!("INSERT INTO t1 SELECT g{values} FROM generate_series(10, 5000) g; UPDATE t1 SET c7 = NULL"), &["t1", "t2", "t600"]).await;
        let held: i64 = world.session.query_one("SELECT count(*) FROM pg_catalog.pg_prepared_statements", &[]).await.unwrap().get(0);
        assert!(held <= 520, "{held} statements are held");
    }
}

/// One source transaction of random changes with savepoints rolled back inside, over tables whose
/// rows move in every way that a run could get wrong.
const HISTORY: &str = "DO $$ DECLARE k int; o int; BEGIN FOR i IN 1..600 LOOP
    k := floor(random() * 25); o := floor(random() * 25);
    BEGIN
        CASE floor(random() * 12)::int
            WHEN 0 THEN INSERT INTO t VALUES (k, 'v' || i, o, CASE WHEN o < 5 THEN repeat('x', 9000 + i) END);
            WHEN 1 THEN UPDATE t SET v = 'u' || i WHERE id = k;
            WHEN 2 THEN UPDATE t SET id = o WHERE id = k;
            WHEN 3 THEN DELETE FROM t WHERE id = k;
            WHEN 4 THEN INSERT INTO plain VALUES (k, i), (o, i);
            WHEN 5 THEN UPDATE plain SET v = i WHERE id BETWEEN k AND o;
            WHEN 6 THEN DELETE FROM plain WHERE id BETWEEN k AND o AND v % 3 = 0;
            WHEN 7 THEN INSERT INTO keyless VALUES (k % 4, NULLIF(o % 3, 0));
            WHEN 8 THEN UPDATE keyless SET v = o % 3 WHERE ctid = (SELECT ctid FROM keyless WHERE id = k % 4 LIMIT 1);
            WHEN 9 THEN DELETE FROM keyless WHERE ctid = (SELECT ctid FROM keyless WHERE id = k % 4 LIMIT 1);
            WHEN 10 THEN UPDATE t SET u = o WHERE id = k;
            ELSE IF random() < 0.02 THEN TRUNCATE plain; ELSE UPDATE plain SET id = id + 25 WHERE id = k; END IF;
        END CASE;
        IF random() < 0.05 THEN RAISE unique_violation; END IF;
    EXCEPTION WHEN unique_violation THEN NULL; END;
END LOOP; END $$";

on_each_version! {
    async fn random_histories_arrive_equal(version) {
        let mut world = World::new(version,
            "CREATE TABLE t(id int PRIMARY KEY, v text, u int UNIQUE, big text); ALTER TABLE t ALTER big SET STORAGE external;
             CREATE TABLE plain(id int PRIMARY KEY, v int); CREATE TABLE keyless(id int, v int); ALTER TABLE keyless REPLICA IDENTITY FULL").await;
        for round in 0..12 {
            world.options.set_wise = round % 3 != 2;
            let seed = f64::from(round) / 16.0 - 0.4;
            world.source.batch_execute(&format!("SELECT setseed({seed})")).await.unwrap();
            world.follows(HISTORY, &["t", "plain", "keyless"]).await;
        }
    }
}
