//! What the conflict rules make of changes that do not find the target as they should.

use trellara_applier::quarantine::{ConflictRule, Conflicts, skipped};
use trellara_applier::{ApplyError, ApplyErrorKind, schema};
use trellara_envelope::{
    CommitTime, FlowName, Lane, Lsn, SourceId, SystemId, Timeline, TransactionIdentity, Xid,
};

use super::world::World;
use crate::on_each_version;

use ConflictRule::{Error, Overwrite, Skip};

fn missing(rule: ConflictRule) -> Conflicts {
    Conflicts {
        missing_row: rule,
        duplicate_key: Error,
    }
}

fn duplicate(rule: ConflictRule) -> Conflicts {
    Conflicts {
        missing_row: Error,
        duplicate_key: rule,
    }
}

/// Sessions that go row by row under rules.
async fn under(version: u32, tables: &str, rules: Conflicts) -> World {
    let mut world = World::new(version, tables).await;
    world.options.set_wise = false;
    world.rules.all = rules;
    world
}

/// What the rules did: `verb conflict rule table key`.
fn done(world: &World) -> Vec<String> {
    let one = |s: &trellara_applier::Skipped| {
        let key = s.key.iter();
        let key = key.map(|(name, value)| format!("{name}={}", value.as_deref().unwrap_or("~")));
        format!(
            "{} {} {} {} {} {}",
            s.change,
            s.verb,
            s.conflict.as_str(),
            s.rule.as_str(),
            s.table.name,
            key.collect::<Vec<_>>().join(",")
        )
    };
    world.skipped.iter().map(one).collect()
}

fn refused(result: Result<trellara_applier::Applied, ApplyError>) -> ApplyError {
    result.expect_err("it is in conflict")
}

const T: &str = "CREATE TABLE t (id int PRIMARY KEY, mail text UNIQUE, v text, \
     twice int GENERATED ALWAYS AS (id * 2) STORED)";

on_each_version! {
    async fn without_rules_a_conflict_is_an_error(version) {
        for rules in [missing(Error), duplicate(Overwrite)] {
            let mut world = under(version, T, rules).await;
            world.unseen("INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'x')").await;
            for statement in ["UPDATE t SET v = 'y' WHERE id = 1", "DELETE FROM t WHERE id = 2"] {
                let error = refused(world.run(statement).await);
                assert_eq!(error.kind, ApplyErrorKind::Count, "{error}");
                assert!(done(&world).is_empty());
            }
        }
        for rules in [missing(Skip), duplicate(Error)] {
            let mut world = under(version, T, rules).await;
            world.target.batch_execute("INSERT INTO t VALUES (1, 'a', 'mine')").await.unwrap();
            let error = refused(world.run("INSERT INTO t VALUES (1, 'b', 'x')").await);
            assert_eq!((error.kind, &*error.sqlstate), (ApplyErrorKind::Data, "23505"));
            assert_eq!(error.object.as_deref(), Some("t_pkey"));
        }
    }
}

on_each_version! {
    /// Together with others a change in conflict is no verdict (C36).
    async fn rules_act_only_row_by_row(version) {
        let both = Conflicts { missing_row: Skip, duplicate_key: Skip };
        let mut world = under(version, T, both).await;
        world.options.set_wise = true;
        world.unseen("INSERT INTO t VALUES (1, 'a', 'x')").await;
        refused(world.run("UPDATE t SET v = 'y' WHERE id = 1").await);
    }
}

on_each_version! {
    async fn a_missing_row_is_skipped(version) {
        let mut world = under(version, T, missing(Skip)).await;
        world.unseen("INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'x'), (3, 'c', 'x')").await;
        world.run("BEGIN; UPDATE t SET v = 'y' WHERE id = 1; DELETE FROM t WHERE id = 2; \
                   INSERT INTO t VALUES (4, 'd', 'x'); UPDATE t SET id = 9 WHERE id = 3; \
                   UPDATE t SET v = 'y' WHERE id = 4; COMMIT").await.unwrap();
        let expected = ["1 update missing_row skip t id=1", "2 delete missing_row skip t id=2",
            "4 update missing_row skip t id=9"];
        assert_eq!(done(&world), expected);
        assert_eq!(world.rows("t").await, ["(4,d,y,8)"]);
    }
}

on_each_version! {
    async fn a_missing_row_is_written_as_the_source_has_it(version) {
        let mut world = under(version, T, missing(Overwrite)).await;
        world.unseen("INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'x'), (3, 'c', 'x')").await;
        world.follows("BEGIN; UPDATE t SET v = 'y' WHERE id = 1; DELETE FROM t WHERE id = 2; \
                   UPDATE t SET id = 9 WHERE id = 3; COMMIT", &["t"]).await;
        let expected = ["1 update missing_row overwrite t id=1", "2 delete missing_row overwrite t id=2",
            "3 update missing_row overwrite t id=9"];
        assert_eq!(done(&world), expected);
        // Its unique value is another row's: the server says so, and nothing is taken from anybody.
        world.unseen("INSERT INTO t VALUES (5, 'e', 'x')").await;
        world.target.batch_execute("INSERT INTO t VALUES (50, 'e', 'mine')").await.unwrap();
        let error = refused(world.run("UPDATE t SET v = 'y' WHERE id = 5").await);
        assert_eq!((&*error.sqlstate, error.object.as_deref()), ("23505", Some("t_mail_key")));
    }
}

on_each_version! {
    /// A TOASTed value that did not change is not sent, and nobody makes one up.
    async fn a_missing_row_of_which_not_all_was_sent_is_not_made_up(version) {
        let large = "CREATE TABLE large (id int PRIMARY KEY, v text, n int);
             ALTER TABLE large ALTER v SET STORAGE EXTERNAL";
        let mut world = under(version, large, missing(Overwrite)).await;
        world.unseen("INSERT INTO large VALUES (1, repeat('x', 9000), 1)").await;
        let error = refused(world.run("UPDATE large SET n = 2").await);
        assert_eq!(error.kind, ApplyErrorKind::Count);
        assert!(error.message.contains("did not send all"), "{error}");
        assert!(done(&world).is_empty());
        world.source.batch_execute("ALTER TABLE large REPLICA IDENTITY FULL").await.unwrap();
        world.follows("UPDATE large SET n = 3", &["large"]).await;
        assert_eq!(done(&world), ["1 update missing_row overwrite large id=1"]);
    }
}

on_each_version! {
    async fn a_duplicate_key_is_skipped(version) {
        let mut world = under(version, T, duplicate(Skip)).await;
        world.target.batch_execute("INSERT INTO t VALUES (1, 'a', 'mine'), (50, 'e', 'mine')").await.unwrap();
        world.run("BEGIN; INSERT INTO t VALUES (1, 'b', 'x'); INSERT INTO t VALUES (2, 'e', 'x'); \
                   INSERT INTO t VALUES (3, 'c', 'x'); COMMIT").await.unwrap();
        let expected = ["1 insert duplicate_key skip t id=1", "2 insert duplicate_key skip t id=2"];
        assert_eq!(done(&world), expected);
        assert_eq!(world.rows("t").await, ["(1,a,mine,2)", "(3,c,x,6)", "(50,e,mine,100)"]);
    }
}

on_each_version! {
    async fn a_row_with_the_same_key_is_written_over(version) {
        let mut world = under(version, T, duplicate(Overwrite)).await;
        world.target.batch_execute("INSERT INTO t VALUES (1, 'a', 'mine'), (50, 'e', 'mine')").await.unwrap();
        world.run("INSERT INTO t VALUES (1, 'b', NULL)").await.unwrap();
        assert_eq!(done(&world), ["1 insert duplicate_key overwrite t id=1"]);
        assert_eq!(world.rows("t").await, ["(1,b,,2)", "(50,e,mine,100)"]);
        // A further unique value belongs to another row, whether the key is there or not.
        for row in ["(1, 'e', 'x')", "(2, 'e', 'x')"] {
            world.unseen("DELETE FROM t").await;
            let error = refused(world.run(&format!("INSERT INTO t VALUES {row}")).await);
            assert_eq!((&*error.sqlstate, error.object.as_deref()), ("23505", Some("t_mail_key")));
        }
        assert_eq!(world.rows("t").await, ["(1,b,,2)", "(50,e,mine,100)"]);
    }
}

on_each_version! {
    async fn rules_reach_into_partitions(version) {
        let both = Conflicts { missing_row: Overwrite, duplicate_key: Overwrite };
        let mut world = under(version, "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
            CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
            CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)", both).await;
        world.source.batch_execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)").await.unwrap();
        world.target.batch_execute("INSERT INTO p VALUES (1, 'mine'), (11, 'mine')").await.unwrap();
        world.unseen("INSERT INTO p VALUES (5, 'x')").await;
        world.follows("INSERT INTO p VALUES (1, 'x'), (11, 'y'); UPDATE p SET id = 6 WHERE id = 5; UPDATE p SET id = 15 WHERE id = 6", &["p"]).await;
        let expected = ["1 insert duplicate_key overwrite p id=1", "2 insert duplicate_key overwrite p id=11",
            "3 update missing_row overwrite p id=6"];
        assert_eq!(done(&world), expected);
    }
}

on_each_version! {
    async fn identities_that_are_always_generated_are_written_over(version) {
        let tables = "CREATE TABLE a (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);
             CREATE TABLE b (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text)";
        let mut world = under(version, tables, duplicate(Overwrite)).await;
        world.target.batch_execute("INSERT INTO a OVERRIDING SYSTEM VALUE VALUES (1, 'mine'); \
            INSERT INTO b OVERRIDING SYSTEM VALUE VALUES (1, 77, 'mine')").await.unwrap();
        world.follows("INSERT INTO a (v) VALUES ('x'); INSERT INTO b (id, v) VALUES (1, 'x')", &["a", "b"]).await;
        assert_eq!(done(&world).len(), 2);
        world.rules.all = missing(Overwrite);
        world.target.batch_execute("DELETE FROM a; DELETE FROM b").await.unwrap();
        world.follows("UPDATE a SET v = 'y'; UPDATE b SET v = 'y'", &["a", "b"]).await;
        assert_eq!(done(&world).len(), 2);
    }
}

on_each_version! {
    /// Nothing finds the row but all that it holds, and what was there instead is not known.
    async fn rows_without_a_key_are_only_skipped(version) {
        let log = "CREATE TABLE log (line text, n int)";
        let mut world = under(version, log, missing(Skip)).await;
        world.source.batch_execute("ALTER TABLE log REPLICA IDENTITY FULL").await.unwrap();
        world.unseen("INSERT INTO log VALUES ('a', 1), ('b', 2)").await;
        world.run("UPDATE log SET n = 5 WHERE line = 'a'; DELETE FROM log WHERE line = 'b'").await.unwrap();
        assert_eq!(done(&world), ["1 update missing_row skip log ", "2 delete missing_row skip log "]);
        world.rules.all = missing(Overwrite);
        for statement in ["UPDATE log SET n = 6", "DELETE FROM log"] {
            let error = refused(world.run(statement).await);
            assert_eq!(error.kind, ApplyErrorKind::Count, "{statement}");
        }
    }
}

on_each_version! {
    /// A trigger of the target that keeps rows out is no conflict.
    async fn what_a_trigger_keeps_out_is_an_error(version) {
        let both = Conflicts { missing_row: Skip, duplicate_key: Skip };
        let mut world = under(version, "CREATE TABLE t (id int PRIMARY KEY, v text)", both).await;
        world.target.batch_execute("INSERT INTO t VALUES (1, 'mine'); \
            CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
            CREATE TRIGGER no BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION no(); \
            ALTER TABLE t ENABLE ALWAYS TRIGGER no").await.unwrap();
        let error = refused(world.run("INSERT INTO t VALUES (2, 'x')").await);
        assert_eq!(error.kind, ApplyErrorKind::Count, "{error}");
        world.unseen("INSERT INTO t VALUES (1, 'x')").await;
        let error = refused(world.run("UPDATE t SET v = 'y' WHERE id = 1").await);
        assert_eq!(error.kind, ApplyErrorKind::Count, "{error}");
        // The row is truly missing, or truly there.
        world.unseen("INSERT INTO t VALUES (3, 'x'); DELETE FROM t WHERE id = 1").await;
        world.run("UPDATE t SET v = 'y' WHERE id = 3; INSERT INTO t VALUES (1, 'z')").await.unwrap();
        assert_eq!(done(&world), ["1 update missing_row skip t id=3", "2 insert duplicate_key skip t id=1"]);
    }
}

on_each_version! {
    async fn a_table_has_rules_of_its_own(version) {
        let mut world = under(version, "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)",
            missing(Skip)).await;
        world.rules.tables.insert(("public".into(), "u".into()), Conflicts::default());
        world.unseen("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)").await;
        world.run("DELETE FROM t").await.unwrap();
        assert_eq!(done(&world).len(), 1);
        refused(world.run("DELETE FROM u").await);
    }
}

on_each_version! {
    async fn what_rules_did_is_recorded_with_the_transaction(version) {
        let mut world = under(version, "CREATE TABLE t (n numeric, \"a b\" text, PRIMARY KEY (n, \"a b\")); \
            CREATE TABLE log (line text)", missing(Skip)).await;
        schema::install(&mut world.target).await.unwrap();
        world.source.batch_execute("ALTER TABLE log REPLICA IDENTITY FULL").await.unwrap();
        world.unseen("INSERT INTO t VALUES (1.50, 'é''\"'), (2, 'b'); INSERT INTO log VALUES ('l')").await;
        world.run("BEGIN; DELETE FROM t; DELETE FROM log; COMMIT").await.unwrap();
        assert_eq!(world.skipped.len(), 3);
        let identity = TransactionIdentity {
            source: SourceId { system: SystemId(1), timeline: Timeline(1) },
            commit_lsn: Lsn(0x10),
            xid: Xid(7),
            commit_time: CommitTime(0),
        };
        let flow: FlowName = "shop".parse().unwrap();
        skipped::record(&world.session, &flow, Lane(0), &identity, Lsn(0x20), &world.skipped).await.unwrap();
        let rows = world.target.query("SELECT change || ' ' || verb || ' ' || conflict || ' ' || rule || ' ' || \
            \"table\" || ' ' || coalesce(key::text, '-') || ' ' || end_lsn || ' ' || source_xid \
            FROM trellara.skipped WHERE hash = $1 AND flow = 'shop' AND lane = 0 ORDER BY change",
            &[&&identity.hash().0[..]]).await.unwrap();
        let rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let expected = [
            "1 delete missing_row skip t {\"n\": \"1.50\", \"a b\": \"é'\\\"\"} 0/20 7",
            "2 delete missing_row skip t {\"n\": \"2\", \"a b\": \"b\"} 0/20 7",
            "3 delete missing_row skip log - 0/20 7",
        ];
        assert_eq!(rows, expected);
    }
}
