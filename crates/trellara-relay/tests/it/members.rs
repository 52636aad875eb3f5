//! The publication's members, however they became some (C06).

use trellara_envelope::{CopyOrder, HaltCode, Oid};

use crate::cases::TABLE;
use crate::copying::Target;
use crate::world::{Wishes, World};

const LEAVES: &str = "CREATE TABLE p (id int, v text) PARTITION BY LIST (id);
    CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
    CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)";

/// A flow whose publication is made by other words, and a relay that has run once.
async fn published(schema: &str, publication: &str) -> World {
    let world = World::new(Wishes::default(), schema).await;
    world.sql("DROP PUBLICATION trellara_shop");
    world.sql(&format!("CREATE PUBLICATION trellara_shop {publication}"));
    run_once(&world).await;
    world
}

async fn run_once(world: &World) {
    let relay = world.start();
    relay.streaming().await;
    relay.stop().await;
}

/// The relay refuses to go on, however often it is asked: what it refused is never written into
/// a marker.
async fn refused(world: &World) {
    for _ in 0..3 {
        let halt = world.start().halted().await;
        assert_eq!(halt.code, HaltCode::Config, "{halt}");
        assert!(halt.reason.contains("left the publication"), "{halt}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_schema_that_leaves_the_publication_halts() {
    let world = published(TABLE, "FOR TABLES IN SCHEMA public").await;
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLES IN SCHEMA public");
    refused(&world).await;
    world.sql("ALTER PUBLICATION trellara_shop ADD TABLES IN SCHEMA public");
    refused(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_schema_that_leaves_is_noticed_while_the_relay_runs() {
    let world = published(TABLE, "FOR TABLES IN SCHEMA public").await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLES IN SCHEMA public");
    let halt = relay.halted().await;
    assert_eq!(halt.code, HaltCode::Config, "{halt}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_table_that_leaves_a_published_schema_halts() {
    let world = published(TABLE, "FOR TABLES IN SCHEMA public").await;
    world.sql("CREATE SCHEMA other; ALTER TABLE t SET SCHEMA other");
    refused(&world).await;
}

/// A partition that is detached was taken out of the table on purpose; one whose table left the
/// publication was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_detached_partition_may_leave_and_its_table_may_not() {
    let world = published(LEAVES, "FOR TABLE p").await;
    world.sql("ALTER TABLE p DETACH PARTITION p1");
    run_once(&world).await;
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLE p");
    refused(&world).await;
    world.sql("ALTER PUBLICATION trellara_shop ADD TABLE p");
    refused(&world).await;
}

/// A table that becomes a partition of a published one goes on under that one's name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_table_attached_to_a_published_one_has_not_left() {
    let root = "FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)";
    let schema = format!("{LEAVES}; CREATE TABLE p3 (id int, v text)");
    let world = published(&schema, root).await;
    world.sql("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)");
    run_once(&world).await;
}

/// What an operator took out is no loss; a marker without it is written at once, so that it may come
/// back, and whoever begins later need not be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_table_that_leaves_on_an_operators_word_and_comes_back_halts_nobody() {
    let schema = format!("{TABLE}; CREATE TABLE u (id int PRIMARY KEY)");
    let world = published(&schema, "FOR TABLE t, u").await;
    let oid: u32 = world
        .sql("SELECT 'u'::regclass::oid")
        .trim()
        .parse()
        .expect("an oid");
    let left = |order: &mut CopyOrder| order.removed = vec![Oid(oid)];

    let target = Target::new(&world, &[]);
    target.order(left);
    let relay = world.start();
    let before = relay.streaming().await.incarnation;
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLE u");
    relay
        .until("another incarnation", |status| status.incarnation > before)
        .await;
    relay.streaming().await;
    relay.stop().await;

    // It says so to one that begins as well.
    world.sql("ALTER PUBLICATION trellara_shop ADD TABLE u");
    target.order(|order| order.removed.clear());
    run_once(&world).await;
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLE u");
    target.order(left);
    run_once(&world).await;
    drop(target);
    run_once(&world).await;

    // Nobody said so of this one.
    world.sql("ALTER PUBLICATION trellara_shop ADD TABLE u");
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLE t");
    refused(&world).await;
}
