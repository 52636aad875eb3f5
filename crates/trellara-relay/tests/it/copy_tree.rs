//! Partitions that come and go while their root is copied: the stream says nothing of it.

use trellara_relay::CopyOptions;

use crate::copying::{Target, source_rows, wanted};
use crate::world::{Wishes, World};

/// The first partition is read at once, the second keeps whoever reads it waiting, the third is
/// read last.
const TREE: &str = "CREATE TABLE root (id int, v text) PARTITION BY RANGE (id); \
    CREATE TABLE early PARTITION OF root FOR VALUES FROM (-10) TO (0); \
    INSERT INTO root VALUES (-1, 'early'); \
    CREATE TABLE wide PARTITION OF root FOR VALUES FROM (0) TO (200000); \
    INSERT INTO root SELECT g, repeat(md5(g::text), 8) FROM generate_series(1, 100000) g; \
    CREATE TABLE late PARTITION OF root FOR VALUES FROM (200000) TO (300000); \
    INSERT INTO root VALUES (200000, 'late')";

async fn changes(statements: &str) {
    let mut world = World::new(Wishes::default(), TREE).await;
    world.options.copy = CopyOptions {
        workers: 1,
        max_bytes: 1 << 20,
        item_bytes: 64 << 10,
        ..CopyOptions::default()
    };
    let relay = world.start();
    let mut target = Target::new(&world, &["root"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    world.sql(statements);
    target.trims = true;
    target
        .read_until("its failure", |target| target.failed("root", 1).is_some())
        .await;
    let (reason, lasting) = target.failed("root", 1).expect("failed");
    assert!(reason.contains("partitions") && !lasting, "{reason}");
    target.order(|order| order.wanted = vec![wanted("root", 2)]);
    target
        .read_until("the next copy", |target| target.is_ended("root", 2))
        .await;
    let rows = source_rows(&world, "SELECT * FROM root");
    assert_eq!(target.rows("root", 2), rows);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_attached_meanwhile_is_copied() {
    changes(
        "CREATE TABLE more (id int, v text); INSERT INTO more VALUES (300000, 'more'); \
         ALTER TABLE root ATTACH PARTITION more FOR VALUES FROM (300000) TO (300001)",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_detached_meanwhile_is_not_copied() {
    changes("ALTER TABLE root DETACH PARTITION early").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_away_meanwhile_is_read_again() {
    changes(
        "ALTER TABLE root DETACH PARTITION early; UPDATE early SET v = 'changed'; \
         ALTER TABLE root ATTACH PARTITION early FOR VALUES FROM (-10) TO (0)",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_emptied_behind_its_last_piece_is_read_again() {
    changes("TRUNCATE early").await;
}
