//! Constraints that may wait for the end of a transaction, in sessions where they act.

use super::world::World;
use crate::on_each_version;

const TABLES: &str = "CREATE TABLE parent(id int PRIMARY KEY);
     CREATE TABLE child(id int PRIMARY KEY, parent int REFERENCES parent DEFERRABLE, v text)";

async fn without_replica_role(version: u32) -> World {
    let mut world = World::new(version, TABLES).await;
    world.options.role_replica = false;
    world.reconnect().await;
    world
}

on_each_version! {
    async fn a_row_inserted_and_emptied_away_leaves_no_check_outstanding(version) {
        let mut world = without_replica_role(version).await;
        world.run("INSERT INTO parent VALUES (1)").await.unwrap();
        for set_wise in [true, false] {
            world.options.set_wise = set_wise;
            // Two transactions in one batch, then both statements in one transaction.
            world.follows("INSERT INTO child VALUES (1, 1)", &["child"]).await;
            world.source.batch_execute("INSERT INTO child VALUES (2, 1)").await.unwrap();
            world.source.batch_execute("TRUNCATE child").await.unwrap();
            world.follows("INSERT INTO child VALUES (3, 1)", &["child"]).await;
            world.follows("BEGIN; INSERT INTO child VALUES (4, 1); TRUNCATE child; INSERT INTO child VALUES (5, 1); COMMIT", &["child"]).await;
            // Behind it the checks wait again.
            world.follows("BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO child VALUES (6, 2); INSERT INTO parent VALUES (2); COMMIT", &["child", "parent"]).await;
            world.follows("TRUNCATE child; DELETE FROM parent WHERE id = 2", &["child", "parent"]).await;
        }
    }
}

on_each_version! {
    async fn a_trigger_that_waits_is_fired_before_its_table_is_emptied(version) {
        let table = "CREATE TABLE t(id int PRIMARY KEY)";
        let mut world = World::with(version, table, &format!("{table}; CREATE TABLE seen(id int);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES (NEW.id); RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER see AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see(); ALTER TABLE t ENABLE ALWAYS TRIGGER see")).await;
        world.source.batch_execute("INSERT INTO t VALUES (1)").await.unwrap();
        world.source.batch_execute("TRUNCATE t").await.unwrap();
        world.follows("INSERT INTO t VALUES (2)", &["t"]).await;
        assert_eq!(world.rows("seen").await, ["(1)", "(2)"]);
    }
}

on_each_version! {
    async fn a_large_row_may_come_before_the_one_it_refers_to(version) {
        let mut world = without_replica_role(version).await;
        world.follows("BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO child VALUES (1, 1, repeat('x', 1200000)); INSERT INTO parent VALUES (1); COMMIT", &["child", "parent"]).await;
    }
}
