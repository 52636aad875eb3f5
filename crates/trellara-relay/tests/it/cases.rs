//! Field reports, by their numbers in the collection of cases.

use crate::world::{Wishes, World};

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_transactions_arrive_whole_and_are_confirmed() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("BEGIN; INSERT INTO t VALUES (1, 'a'), (2, 'b'); UPDATE t SET v = 'c'; COMMIT");
    world.sql("DELETE FROM t WHERE id = 1; TRUNCATE t");
    world
        .read_changes(&[
            "I t (1, a)",
            "I t (2, b)",
            "U t (1, c)",
            "U t (2, c)",
            "D t (1, null)",
            "T t",
        ])
        .await;
    let position = world.chain.position;
    relay
        .until("confirmed", |status| status.lsn_confirmed >= position)
        .await;
    relay.stop().await;
    assert!(world.confirmed() >= position, "the slot was told");
}
