//! What must not pass silently: wrong counts, unenforced constraints, rules and rights (A6, C31,
//! C37; cases.md 8).

use trellara_applier::{ApplyError, ApplyErrorKind};

use super::world::World;
use crate::on_each_version;

on_each_version! {
    async fn b111_a_change_that_touches_no_row_stops(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, v int); CREATE TABLE dup(id int PRIMARY KEY, v int)").await;
        world.run("INSERT INTO t SELECT g, g FROM generate_series(1, 9) g; INSERT INTO dup SELECT * FROM t").await.unwrap();
        world.target.batch_execute("DELETE FROM t WHERE id = 5; ALTER TABLE dup DROP CONSTRAINT dup_pkey; INSERT INTO dup VALUES (5, 0)").await.unwrap();
        for set_wise in [true, false] {
            world.options.set_wise = set_wise;
            world.catalog.forget();
            for (sql, table) in [("UPDATE t SET v = 0", "t"), ("DELETE FROM t", "t"), ("UPDATE dup SET v = 0", "dup"), ("DELETE FROM dup", "dup")] {
                world.source.batch_execute(&format!("BEGIN; {sql}; COMMIT")).await.unwrap();
                let missed = {
                    let messages = world.capture().await;
                    world.apply(&messages).await.unwrap_err()
                };
                assert_eq!((missed.kind, missed.table.as_str()), (ApplyErrorKind::Count, table), "{missed}");
                if !set_wise {
                    assert_eq!((missed.changes, missed.change_number), (1, 5), "{missed}");
                }
                // Both sides again as they were.
                world.unseen(&format!("DELETE FROM {table}; INSERT INTO {table} SELECT g, g FROM generate_series(1, 9) g")).await;
            }
        }
        assert_eq!(world.rows("t").await.len(), 8);
        assert_eq!(world.rows("dup").await.len(), 10);
    }
}

on_each_version! {
    async fn b111_a_trigger_or_rule_that_swallows_a_row_stops(version) {
        let mut world = World::with(version, "CREATE TABLE t(id int PRIMARY KEY); CREATE TABLE r(id int PRIMARY KEY)",
            "CREATE TABLE t(id int PRIMARY KEY); CREATE TABLE r(id int PRIMARY KEY);
             CREATE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER swallow BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION keep_out(); ALTER TABLE t ENABLE ALWAYS TRIGGER swallow;
             CREATE RULE nothing AS ON INSERT TO r WHERE NEW.id = 2 DO INSTEAD NOTHING; ALTER TABLE r ENABLE REPLICA RULE nothing").await;
        for table in ["t", "r"] {
            let swallowed = world.run(&format!("INSERT INTO {table} SELECT generate_series(1, 3)")).await.unwrap_err();
            assert_eq!((swallowed.kind, swallowed.change_number), (ApplyErrorKind::Count, 2), "{swallowed}");
            assert!(world.rows(table).await.is_empty());
        }
    }
}

on_each_version! {
    async fn row_security_is_an_error_and_hides_nothing(version) {
        let mut world = World::new(version, "CREATE TABLE t(id int PRIMARY KEY, v int)").await;
        world.run("INSERT INTO t VALUES (1, 1)").await.unwrap();
        let role = format!("plain_{}", world.target_url.rsplit_once('/').unwrap().1);
        world.target.batch_execute(&format!("CREATE ROLE {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON t TO {role}; ALTER TABLE t ENABLE ROW LEVEL SECURITY")).await.unwrap();
        world.session.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
        let hidden = world.run("UPDATE t SET v = 2").await.unwrap_err();
        assert_eq!((hidden.kind, hidden.sqlstate.as_str()), (ApplyErrorKind::Rights, "42501"));
        world.target.batch_execute(&format!("ALTER TABLE t DISABLE ROW LEVEL SECURITY; REVOKE UPDATE ON t FROM {role}")).await.unwrap();
        let refused = world.run("UPDATE t SET v = 3").await.unwrap_err();
        assert_eq!(refused.kind, ApplyErrorKind::Rights);
        world.session.batch_execute("RESET ROLE").await.unwrap();
        world.target.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    }
}

on_each_version! {
    async fn b113_a_failing_row_takes_the_whole_transaction_with_it(version) {
        let mut world = World::with(version, "CREATE TABLE t(id int PRIMARY KEY, v int)", "CREATE TABLE t(id int PRIMARY KEY, v int CHECK (v <> 3))").await;
        for set_wise in [true, false] {
            world.options.set_wise = set_wise;
            let refused = world.run("INSERT INTO t SELECT g, g FROM generate_series(1, 5) g").await.unwrap_err();
            assert_eq!((refused.kind, refused.sqlstate.as_str()), (ApplyErrorKind::Data, "23514"));
            assert_eq!(refused.object.as_deref(), Some("t_v_check"));
            assert_eq!((refused.change_number, refused.changes), if set_wise { (1, 5) } else { (3, 1) });
            assert!(world.rows("t").await.is_empty());
            world.unseen("DELETE FROM t").await;
        }
    }
}

on_each_version! {
    async fn the_first_failing_change_is_the_one_named(version) {
        let mut world = World::with(version, "CREATE TABLE a(id int PRIMARY KEY, v int); CREATE TABLE b(id int PRIMARY KEY)",
            "CREATE TABLE a(id int PRIMARY KEY, v int CHECK (v <> 3)); CREATE TABLE b(id int PRIMARY KEY)").await;
        world.options.set_wise = false;
        let refused = world.run("BEGIN; INSERT INTO a VALUES (1, 1), (2, 3); CREATE TABLE fresh(id int PRIMARY KEY); INSERT INTO fresh VALUES (1); INSERT INTO b VALUES (1); COMMIT").await.unwrap_err();
        // The table that is missing is found while the refusal is still under way.
        assert_eq!((refused.table.as_str(), refused.change_number), ("a", 2), "{refused}");
    }
}

fn violates(result: Result<impl Sized, ApplyError>, constraint: &str) -> ApplyError {
    let error = result.err().expect("a violated constraint");
    assert_eq!(error.kind, ApplyErrorKind::Data, "{error}");
    assert_eq!(error.object.as_deref(), Some(constraint), "{error}");
    error
}

on_each_version! {
    async fn c37_deferrable_constraints_are_checked(version) {
        let tables = "CREATE EXTENSION btree_gist;
             CREATE TABLE u(id int PRIMARY KEY, k text, n int, CONSTRAINT u_k UNIQUE (k, n) DEFERRABLE);
             CREATE TABLE nnd(id int PRIMARY KEY, k int, CONSTRAINT nnd_k UNIQUE NULLS NOT DISTINCT (k) DEFERRABLE INITIALLY DEFERRED);
             CREATE TABLE pk(id int, v int, CONSTRAINT pk_id PRIMARY KEY (id) DEFERRABLE); ALTER TABLE pk REPLICA IDENTITY FULL;
             CREATE TABLE x(id int PRIMARY KEY, room int, during int4range, off bool,
                 CONSTRAINT x_during EXCLUDE USING gist (room WITH =, during WITH &&) WHERE (NOT off) DEFERRABLE)";
        let mut world = World::new(version, tables).await;
        world.follows("INSERT INTO u VALUES (1, 'a', 1), (2, 'a', 2), (3, NULL, 1), (4, NULL, 1); INSERT INTO nnd VALUES (1, 1), (2, NULL); INSERT INTO pk VALUES (1, 1), (2, 2);
             INSERT INTO x VALUES (1, 1, '[1,5)', false), (2, 1, '[5,9)', false), (3, 1, '[1,9)', true)", &["u", "nnd", "pk", "x"]).await;
        // What the source may do in between is no violation.
        world.follows("BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE u SET n = 3 - n WHERE k = 'a'; UPDATE pk SET id = 3 - id; COMMIT", &["u", "pk"]).await;
        world.follows("BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE x SET during = '[5,8)' WHERE id = 1; UPDATE x SET during = '[1,4)' WHERE id = 2; COMMIT", &["x"]).await;
        // Rows that somebody else wrote on the target.
        world.target.batch_execute("INSERT INTO u VALUES (90, 'b', 9); INSERT INTO nnd VALUES (90, 9); INSERT INTO pk VALUES (90, 9); INSERT INTO x VALUES (90, 9, '[1,5)', false)").await.unwrap();
        violates(world.run("INSERT INTO u VALUES (5, 'b', 9)").await, "u_k");
        world.unseen("DELETE FROM u WHERE id = 5").await;
        violates(world.run("UPDATE u SET k = 'b', n = 9 WHERE id = 1").await, "u_k");
        violates(world.run("UPDATE nnd SET k = 9 WHERE id = 2").await, "nnd_k");
        violates(world.run("INSERT INTO pk VALUES (90, 1)").await, "pk_id");
        let excluded = violates(world.run("INSERT INTO x VALUES (4, 9, '[4,6)', false)").await, "x_during");
        assert_eq!((excluded.sqlstate.as_str(), excluded.table.as_str()), ("23P01", "x"));
        world.unseen("DELETE FROM x WHERE id = 4").await;
        world.run("INSERT INTO x VALUES (5, 9, '[4,6)', true)").await.unwrap();
        world.unseen("DELETE FROM nnd WHERE k IS NULL OR k = 9").await;
        violates(world.run("INSERT INTO nnd VALUES (3, NULL)").await, "nnd_k");
        let duplicates: i64 = world.target.query_one("SELECT count(*) FROM (SELECT k, n FROM u GROUP BY k, n HAVING count(*) > 1 AND k IS NOT NULL) d", &[]).await.unwrap().get(0);
        assert_eq!(duplicates, 0);
    }
}

on_each_version! {
    async fn c37_more_keys_than_are_remembered_are_checked_too(version) {
        let mut world = World::new(version, "CREATE TABLE u(id int PRIMARY KEY, k text, CONSTRAINT u_k UNIQUE (k) DEFERRABLE)").await;
        world.target.batch_execute("INSERT INTO u VALUES (0, repeat('k', 500) || 4000)").await.unwrap();
        violates(world.run("INSERT INTO u SELECT g, repeat('k', 500) || g FROM generate_series(1, 5000) g").await, "u_k");
        world.target.batch_execute("DELETE FROM u").await.unwrap();
        world.unseen("DELETE FROM u").await;
        world.follows("INSERT INTO u SELECT g, repeat('k', 500) || g FROM generate_series(1, 5000) g", &["u"]).await;
    }
}

on_each_version! {
    async fn b108_without_the_replica_role_the_order_across_tables_is_kept(version) {
        let tables = "CREATE TABLE pa(id int PRIMARY KEY); CREATE TABLE ch(id int PRIMARY KEY, p int REFERENCES pa DEFERRABLE);
             CREATE TABLE m(id int, CONSTRAINT m_id PRIMARY KEY (id) DEFERRABLE); ALTER TABLE m REPLICA IDENTITY FULL";
        let mut world = World::new(version, tables).await;
        world.options.role_replica = false;
        world.reconnect().await;
        world.follows("INSERT INTO pa VALUES (1); INSERT INTO ch VALUES (1, 1); INSERT INTO pa VALUES (2); INSERT INTO ch VALUES (2, 2);
             DELETE FROM ch WHERE id = 1; DELETE FROM pa WHERE id = 1; INSERT INTO m SELECT generate_series(1, 3)", &["pa", "ch"]).await;
        // A child before its parent, and keys that move through each other.
        world.follows("BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO ch VALUES (3, 3); INSERT INTO pa VALUES (3); UPDATE m SET id = id + 1; COMMIT", &["pa", "ch", "m"]).await;
        let orphan = {
            world.target.batch_execute("DELETE FROM ch WHERE p = 2; DELETE FROM pa WHERE id = 2").await.unwrap();
            world.source.batch_execute("INSERT INTO ch VALUES (4, 2)").await.unwrap();
            let messages = world.capture().await;
            world.session.batch_execute("BEGIN").await.unwrap();
            world.session.batch_execute("ROLLBACK").await.unwrap();
            world.apply(&messages).await
        };
        // A foreign key that is deferred speaks up at COMMIT, which is the caller's.
        assert!(orphan.is_ok());
        assert!(!world.rows("ch").await.iter().any(|row| row == "(4,2)"));
    }
}
