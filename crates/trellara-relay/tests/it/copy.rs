//! The copy: every row once, whatever the table looks like and whatever happens meanwhile.

use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::{CopyEvent, FrameDigest, Incarnation};
use trellara_relay::CopyOptions;
use trellara_source::publication::Partitions;

use crate::copying::{Target, source_rows, wanted, written};
use crate::world::{Wishes, World};

/// Pieces of 8 blocks, so that a small table has many.
fn small() -> CopyOptions {
    CopyOptions {
        item_bytes: 64 << 10,
        ..CopyOptions::default()
    }
}

/// A stream that holds a fraction of the table: whoever does not trim stops the copy.
fn narrow() -> CopyOptions {
    CopyOptions {
        max_bytes: 1 << 20,
        ..small()
    }
}

/// About 30 MB in some 3,800 blocks: more than the sockets in between, the reader and a narrow stream
/// take together, so that whoever reads it waits in the middle of it until the stream is trimmed.
const WIDE: &str = "CREATE TABLE wide (id int PRIMARY KEY, v text); \
    INSERT INTO wide SELECT g, repeat(md5(g::text), 8) FROM generate_series(1, 100000) g";

const SHAPES: &str = "\
CREATE TABLE gaps (id int PRIMARY KEY, v text); \
INSERT INTO gaps SELECT g, repeat('x', 200) FROM generate_series(1, 20000) g; \
DELETE FROM gaps WHERE id % 1000 < 700; VACUUM gaps; \
CREATE TABLE empty (id int PRIMARY KEY); \
CREATE TABLE dropped (gone int, id int PRIMARY KEY, also text, v text); \
INSERT INTO dropped SELECT 1, g, 'y', E'a\\tb\\\\c\\n' || g FROM generate_series(1, 100) g; \
ALTER TABLE dropped DROP COLUMN gone, DROP COLUMN also; INSERT INTO dropped VALUES (0, NULL); \
CREATE TABLE computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text); \
INSERT INTO computed (id, v) SELECT g, 'z' FROM generate_series(1, 500) g; \
CREATE TABLE nothing (gone int); INSERT INTO nothing VALUES (1), (2); \
ALTER TABLE nothing DROP COLUMN gone; \
CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent); \
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2), (3); \
CREATE TABLE \"Odd name\" (\"Some id\" int PRIMARY KEY, f float8, t timestamptz, b bytea); \
INSERT INTO \"Odd name\" VALUES (1, 0.1::float8 + 0.2, '2026-01-01 12:00+02', '\\x00ff'); \
CREATE TABLE root (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id); \
CREATE TABLE leaf1 PARTITION OF root FOR VALUES FROM (0) TO (1000); \
CREATE TABLE leaf2 (v text, junk int, id int NOT NULL); ALTER TABLE leaf2 DROP COLUMN junk; \
ALTER TABLE root ATTACH PARTITION leaf2 FOR VALUES FROM (1000) TO (5000); \
INSERT INTO root SELECT g, 'p' || g FROM generate_series(1, 4000) g; \
CREATE TABLE hollow (id int PRIMARY KEY) PARTITION BY RANGE (id); \
CREATE TABLE listed (id int PRIMARY KEY, secret text, v int); \
INSERT INTO listed SELECT g, 's', g FROM generate_series(1, 300) g";

const NAMES: &[&str] = &[
    "gaps", "empty", "dropped", "computed", "nothing", "parent", "child", "Odd name", "root",
    "hollow", "listed",
];

async fn shapes(version: &str) {
    let wishes = Wishes {
        postgres: trellara_local::PostgresOptions::version(version.parse().expect("a version")),
        ..Wishes::default()
    };
    let mut world = World::new(wishes, SHAPES).await;
    world.sql(
        "ALTER PUBLICATION trellara_shop DROP TABLE listed; \
         ALTER PUBLICATION trellara_shop ADD TABLE listed (id, v) WHERE (id > 100 OR v = 7)",
    );
    world.options.copy = small();
    let relay = world.start();
    let mut target = Target::new(&world, NAMES);
    target
        .read_until("all tables", |target| {
            NAMES.iter().all(|name| target.is_ended(name, 1))
        })
        .await;
    let queries = [
        ("gaps", "SELECT * FROM gaps"),
        ("empty", "SELECT * FROM empty"),
        ("dropped", "SELECT * FROM dropped"),
        ("computed", "SELECT id, v FROM computed"),
        ("parent", "SELECT * FROM ONLY parent"),
        ("child", "SELECT * FROM child"),
        ("Odd name", "SELECT * FROM \"Odd name\""),
        ("root", "SELECT id, v FROM root"),
        ("hollow", "SELECT * FROM hollow"),
        ("listed", "SELECT id, v FROM listed WHERE id > 100 OR v = 7"),
    ];
    for (name, query) in queries {
        assert_eq!(target.rows(name, 1), source_rows(&world, query), "{name}");
    }
    assert!(
        target.copied("gaps", 1).expect("a copy").parts > 3,
        "many pieces"
    );
    let begun = target
        .copied("computed", 1)
        .and_then(|copied| copied.begin.clone());
    assert_eq!(begun.expect("begun").columns, ["id", "v"]);
    relay
        .until("over", |status| {
            status.copy.tables == NAMES.len() && status.copy.tables_over == NAMES.len()
        })
        .await;
    // Nothing is wanted any more: nothing is left of it on either side.
    target.order(|order| order.wanted.clear());
    relay
        .until("cleared away", |status| status.copy.tables == 0)
        .await;
    let stream = world.options.flow.copy_stream();
    let facts = trellara_jetstream::topology::facts(&world.broker, &stream).await;
    assert!(facts.expect_err("deleted").is_missing());
    let holders = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(world.sql(holders), "0");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_copied_once_whatever_the_table_looks_like_on_15() {
    shapes("15").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_copied_once_whatever_the_table_looks_like_on_18() {
    shapes("18").await;
}

/// A stream that holds a sixth of the table and is trimmed by a reader that takes its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c48_a_copy_larger_than_its_stream_goes_through_it() {
    let mut world = World::new(Wishes::default(), WIDE).await;
    world.options.copy = narrow();
    let relay = world.start();
    let mut target = Target::new(&world, &["wide"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    target.trims = true;
    target
        .read_until("the table", |target| target.is_ended("wide", 1))
        .await;
    let rows = source_rows(&world, "SELECT * FROM wide");
    assert_eq!(target.rows("wide", 1), rows);
    relay.stop().await;
}

/// Between two pieces of a table its rows move away: what was read of it is void, and it is read
/// again under another snapshot.
async fn moved(statement: &'static str, rows_left: &str) {
    let mut world = World::new(Wishes::default(), WIDE).await;
    world.options.copy = narrow();
    let relay = world.start();
    let mut target = Target::new(&world, &["wide"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    // It waits for the pieces that are being read, and the next ones wait for it; between two pieces
    // nobody stands in its way, and it is over before anybody could see it wait.
    let session = world.session().await;
    let moving = tokio::spawn(async move { session.client.batch_execute(statement).await });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    while !moving.is_finished() && world.sql(waits) == "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    target.trims = true;
    target
        .read_until("its failure", |target| target.failed("wide", 1).is_some())
        .await;
    let (reason, lasting) = target.failed("wide", 1).expect("failed");
    assert!(reason.contains("rewritten") && !lasting, "{reason}");
    moving.await.expect("no panic").expect("done");
    target.order(|order| order.wanted = vec![wanted("wide", 2)]);
    target
        .read_until("the next copy", |target| target.is_ended("wide", 2))
        .await;
    assert_eq!(target.rows("wide", 2).len().to_string(), rows_left);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c49_a_table_that_is_emptied_meanwhile_is_copied_anew() {
    moved("TRUNCATE public.wide", "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c49_a_table_that_is_rewritten_meanwhile_is_copied_anew() {
    moved("VACUUM FULL public.wide", "100000").await;
}

/// The session that holds the snapshot is ended, like by a restart of the source: what was begun is
/// taken back, and begun anew under the next generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_snapshot_voids_what_was_begun_and_nothing_else() {
    let schema =
        format!("{WIDE}; CREATE TABLE quick (id int PRIMARY KEY); INSERT INTO quick VALUES (7)");
    let mut world = World::new(Wishes::default(), &schema).await;
    world.options.copy = narrow();
    let relay = world.start();
    let mut target = Target::new(&world, &["quick"]);
    target
        .read_until("the small one", |target| target.is_ended("quick", 1))
        .await;
    target.order(|order| order.wanted = vec![wanted("wide", 1)]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    let ended = world.sql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE state = 'idle in transaction' AND query NOT LIKE 'COPY %'",
    );
    assert_eq!(ended, "1", "the holder");
    target.trims = true;
    target
        .read_until("its failure", |target| target.failed("wide", 1).is_some())
        .await;
    let (reason, lasting) = target.failed("wide", 1).expect("failed");
    assert!(reason.contains("snapshot") && !lasting, "{reason}");
    target.order(|order| order.wanted = vec![wanted("wide", 2)]);
    target
        .read_until("the next copy", |target| target.is_ended("wide", 2))
        .await;
    let rows = source_rows(&world, "SELECT * FROM wide");
    assert_eq!(target.rows("wide", 2), rows);
    assert_eq!(target.copied("quick", 1).expect("a copy").failed, None);
    relay.stop().await;
}

/// Nobody loads and nobody orders: the source is let go of, and when the target is back it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_stays_away_does_not_hold_the_source() {
    let mut world = World::new(Wishes::default(), WIDE).await;
    world.options.copy = CopyOptions {
        silence: Duration::from_secs(1),
        ..narrow()
    };
    let relay = world.start();
    let target = Target::new(&world, &["wide"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    drop(target);
    relay
        .until("given up", |status| {
            status.copy.waiting_for.contains("silent") && status.copy.snapshot_since.is_none()
        })
        .await;
    let holders = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    while world.sql(holders) != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut target = Target::new(&world, &["wide"]);
    target.trims = true;
    target.is_copied_anew("wide").await;
    assert_eq!(target.rows("wide", 2).len(), 100_000);
    relay.stop().await;
}

/// A session that reads is ended: it reads its piece again, and nothing comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_lost_reads_its_piece_again() {
    let mut world = World::new(Wishes::default(), WIDE).await;
    world.options.copy = CopyOptions {
        item_bytes: 64 << 20,
        ..narrow()
    };
    let relay = world.start();
    let mut target = Target::new(&world, &["wide"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    let ended = world.sql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'COPY %' \
         AND state = 'active' AND pid <> pg_backend_pid()",
    );
    assert_eq!(ended, "1", "the reader");
    target.trims = true;
    target
        .read_until("the table", |target| target.is_ended("wide", 1))
        .await;
    let rows = source_rows(&world, "SELECT * FROM wide");
    assert_eq!(target.rows("wide", 1), rows);
    relay.stop().await;
}

/// Whatever the snapshot sees committed before the position that goes with it, and what it does
/// not see is not in the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_holds_what_its_snapshot_sees() {
    let mut world = World::new(
        Wishes::default(),
        "CREATE TABLE t (xid xid8 DEFAULT pg_current_xact_id(), v int)",
    )
    .await;
    world.options.copy = small();
    let open = world.session().await;
    let begin = "BEGIN; INSERT INTO public.t (v) VALUES (1)";
    open.client.batch_execute(begin).await.expect("SQL");
    world.sql("INSERT INTO t (v) VALUES (2)");
    let relay = world.start();
    let mut target = Target::new(&world, &["t"]);
    target
        .read_until("the table", |target| target.is_ended("t", 1))
        .await;
    open.client.batch_execute("COMMIT").await.expect("SQL");
    let begin = target
        .copied("t", 1)
        .and_then(|copied| copied.begin.clone());
    let begin = begin.expect("begun");
    let snapshot = &begin.snapshot;
    let seen = format!("SELECT * FROM t WHERE pg_visible_in_snapshot(xid, '{snapshot}')");
    assert_eq!(target.rows("t", 1), source_rows(&world, &seen));
    assert_eq!(target.rows("t", 1).len(), 1);
    assert!(begin.converges_at.0 > 0);
    relay.stop().await;
}

/// A killed relay's copy is begun anew by the next one, under a higher number and another snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_dies_leaves_the_copy_to_the_next() {
    let mut world = World::new(Wishes::default(), WIDE).await;
    world.options.copy = narrow();
    let relay = world.start();
    let mut target = Target::new(&world, &["wide"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    relay.kill().await;
    let relay = world.start();
    target.trims = true;
    target
        .read_until("the table", |target| target.is_ended("wide", 1))
        .await;
    assert_eq!(target.copies.len(), 2, "two writers");
    let rows = source_rows(&world, "SELECT * FROM wide");
    assert_eq!(target.rows("wide", 1), rows);
    relay.stop().await;
}

/// A frame of a newer relay's copy stands in the stream: this one writes no more, says why, and
/// lets go of the source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_a_newer_writer_of_the_copy_ends_this_one() {
    let mut world = World::new(Wishes::default(), WIDE).await;
    world.options.copy = narrow();
    let relay = world.start();
    let mut target = Target::new(&world, &["wide"]);
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    let stream = world.options.flow.copy_stream();
    let facts = trellara_jetstream::topology::facts(&world.broker, &stream).await;
    let last = facts.expect("the stream").last_sequence;
    target
        .read_until("what is there", |target| {
            target.frames.last().is_some_and(|(at, _)| *at == last)
        })
        .await;
    let (_, mut frame) = target.frames.last().expect("a frame").clone();
    let old = frame.header.writer;
    frame.header.writer = Incarnation(old.0 + 100);
    frame.header.ordinal = 0;
    frame.header.previous = FrameDigest::default();
    frame.event = CopyEvent::Failed {
        reason: "it begins".to_owned(),
        hint: String::new(),
        lasting: false,
    };
    frame.payload = Bytes::new();
    target.write(last, &frame).await;
    relay
        .until("fenced", |status| {
            status.copy.waiting_for.contains("newer relay") && status.copy.tables == 0
        })
        .await;
    let facts = trellara_jetstream::topology::facts(&world.broker, &stream).await;
    let end = facts.expect("the stream").last_sequence;
    assert_eq!(end.0, last.0 + 1, "nothing behind the newer one's");
    let holders = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    while world.sql(holders) != "0" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.streaming().await;
    relay.stop().await;
}

/// What cannot be copied is said with its cure, and the others are copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_copied_fails_by_name_and_alone() {
    let schema = "CREATE TABLE hidden (id int PRIMARY KEY); INSERT INTO hidden VALUES (1); \
        ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON hidden USING (id > 1); \
        CREATE TABLE closed (id int PRIMARY KEY); CREATE TABLE fine (id int PRIMARY KEY); \
        INSERT INTO fine VALUES (1); CREATE TABLE large (id int PRIMARY KEY, v text); \
        INSERT INTO large VALUES (1, repeat('x', 300000)); \
        CREATE ROLE reader SUPERUSER LOGIN; \
        GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON hidden, fine, large TO reader";
    let mut world = World::new(Wishes::default(), schema).await;
    world.sql("ALTER ROLE reader NOSUPERUSER REPLICATION");
    let source = &mut world.options.source;
    source.connect = source.connect.clone().with_parameter("role", "reader");
    world.options.copy = narrow();
    let relay = world.start();
    let names = ["hidden", "closed", "fine", "large", "absent"];
    let mut target = Target::new(&world, &names);
    target
        .read_until("all of them", |target| {
            let is_over =
                |name: &&str| target.is_ended(name, 1) || target.failed(name, 1).is_some();
            names.iter().all(is_over)
        })
        .await;
    assert_eq!(target.rows("fine", 1), ["1"]);
    for (name, word) in [
        ("hidden", "row security"),
        ("closed", "cannot be read"),
        ("large", "300003 bytes"),
        ("absent", "not in publication"),
    ] {
        let (reason, lasting) = target.failed(name, 1).expect(name);
        assert!(reason.contains(word) && lasting, "{name}: {reason}");
    }
    relay.stop().await;
}

/// Orders of a target that is not the registered one move nothing (C24).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c24_only_the_registered_target_orders() {
    let world = World::new(Wishes::default(), "CREATE TABLE t (id int)").await;
    let relay = world.start();
    let foreign = Target::new(&world, &["t"]);
    foreign.order(|order| order.target = "another@1".to_owned());
    relay.streaming().await;
    let subject = world.options.flow.copy_order_subject();
    let mut orders = world
        .broker
        .subscribe_core(&subject)
        .await
        .expect("a subscription");
    for _ in 0..5 {
        orders.next().await.expect("an order");
    }
    let stream = world.options.flow.copy_stream();
    let facts = trellara_jetstream::topology::facts(&world.broker, &stream).await;
    assert!(facts.expect_err("no copy").is_missing());
    let mut target = Target::new(&world, &["t"]);
    target
        .read_until("the table", |target| target.is_ended("t", 1))
        .await;
    relay.stop().await;
}

/// Frames that were stored are gone with their stream: the target is told, and orders anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_deleted_voids_what_was_in_it() {
    let mut world = World::new(
        Wishes::default(),
        "CREATE TABLE t (id int); INSERT INTO t VALUES (1)",
    )
    .await;
    world.options.copy = small();
    let relay = world.start();
    let first = Target::new(&world, &["t"]);
    written(&relay, 1).await;
    let stream = world.options.flow.copy_stream();
    let deleted = trellara_jetstream::topology::delete(&world.broker, &stream).await;
    assert!(deleted.expect("deleted"));
    drop(first);
    let mut target = Target::new(&world, &["t"]);
    target.begins_anywhere();
    target.is_copied_anew("t").await;
    assert_eq!(target.rows("t", 2), ["1"]);
    relay.stop().await;
}

/// Published by their own names, partitions are tables of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_copied_under_the_names_they_are_published_by() {
    let schema = "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id); \
        CREATE TABLE leaf1 PARTITION OF root FOR VALUES FROM (0) TO (10); \
        CREATE TABLE leaf2 PARTITION OF root FOR VALUES FROM (10) TO (20); \
        INSERT INTO root SELECT generate_series(5, 14)";
    let world = World::partitioned(schema, Partitions::Leaf).await;
    let relay = world.start();
    let mut target = Target::new(&world, &["leaf1", "leaf2"]);
    target
        .read_until("both", |target| {
            target.is_ended("leaf1", 1) && target.is_ended("leaf2", 1)
        })
        .await;
    for leaf in ["leaf1", "leaf2"] {
        let rows = source_rows(&world, &format!("SELECT * FROM {leaf}"));
        assert_eq!(target.rows(leaf, 1), rows);
    }
    relay.stop().await;
}
