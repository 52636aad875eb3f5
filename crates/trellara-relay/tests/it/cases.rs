//! Field reports, by their numbers in the collection of cases.

use trellara_envelope::FrameKind;
use trellara_local::PostgresOptions;
use trellara_relay::RelayState;

use crate::world::{Wishes, World, changes};

pub(crate) const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, v text)";

fn postgres(settings: &[(&str, &str)]) -> PostgresOptions {
    let with = |options: PostgresOptions, (name, value): &(&str, &str)| options.with(name, value);
    settings.iter().fold(Wishes::default().postgres, with)
}

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

/// The first transaction after a restart is not taken for an old one, and those that overlap it
/// are not either: what counts is the end of the commit record (B01, B02).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b01_b02_nothing_is_lost_around_a_restart() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let (early, late) = (world.session().await, world.session().await);
    let mut expected = Vec::new();
    for round in 0..4 {
        let relay = world.start();
        relay.streaming().await;
        let id = |of: i32| round * 10 + of;
        let insert = |of: i32| format!("INSERT INTO public.t VALUES ({}, 'v')", id(of));
        early.client.batch_execute("BEGIN").await.expect("SQL");
        early.client.batch_execute(&insert(1)).await.expect("SQL");
        late.client.batch_execute(&insert(2)).await.expect("SQL");
        early.client.batch_execute(&insert(3)).await.expect("SQL");
        late.client.batch_execute("BEGIN").await.expect("SQL");
        late.client.batch_execute(&insert(4)).await.expect("SQL");
        early.client.batch_execute("COMMIT").await.expect("SQL");
        late.client.batch_execute("COMMIT").await.expect("SQL");
        expected.extend([2, 1, 3, 4].map(|of| format!("I t ({}, v)", id(of))));
        if round % 2 == 0 {
            // Killed with everything, something or nothing of it stored.
            relay.kill().await;
        } else {
            let so_far: Vec<&str> = expected.iter().map(String::as_str).collect();
            world.read_changes(&so_far).await;
            relay.stop().await;
        }
    }
}

/// Keepalives of a source whose transactions the broker has not stored confirm nothing, and the
/// walsender stays all the while (B04, B15).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b04_b15_a_stalled_broker_confirms_nothing_and_keeps_the_walsender() {
    let wishes = Wishes {
        postgres: postgres(&[("wal_sender_timeout", "4s")]),
        ..Wishes::default()
    };
    let mut world = World::new(wishes, TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("INSERT INTO t VALUES (0, 'stored')");
    world.read_changes(&["I t (0, stored)"]).await;
    let pid = world.sql("SELECT active_pid FROM pg_replication_slots");
    world.nats.pause().expect("pause");
    world.sql("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) g");
    let stored = world.chain.position;
    // More than twice the timeout, by the server's clock.
    world.sql("SELECT pg_sleep(9)");
    let status = relay.status.snapshot();
    assert!(status.lsn_received > stored, "{status:?}");
    let flush = world
        .sql("SELECT pg_current_wal_flush_lsn()")
        .parse()
        .expect("an LSN");
    assert!(
        world.confirmed() < flush,
        "the transaction is not confirmed"
    );
    assert_eq!(
        world.sql("SELECT active_pid FROM pg_replication_slots"),
        pid
    );
    world.nats.resume().expect("resume");
    world
        .read_until("the large transaction", |chain| {
            changes(chain).len() == 30_001
        })
        .await;
    let status = relay.status.snapshot();
    assert_eq!(status.restarts, 0, "published once: {status:?}");
    assert!(world.chain.transactions.iter().any(|one| one.chunked));
    relay.stop().await;
}

/// Writes that are not published do not hold the slot, and need no write of ours (B06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b06_unpublished_writes_move_the_slot() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("CREATE TABLE noise (t text)");
    world.sql("INSERT INTO noise SELECT repeat('x', 500) FROM generate_series(1, 20000)");
    let flush = world
        .sql("SELECT pg_current_wal_flush_lsn()")
        .parse()
        .expect("an LSN");
    relay
        .until("confirmed behind the noise", |status| {
            status.lsn_confirmed >= flush
        })
        .await;
    world
        .read_until("the position as a heartbeat", |chain| {
            chain.position >= flush
        })
        .await;
    let last = world
        .chain
        .frames
        .last()
        .map(|(_, frame)| frame.body.kind());
    assert_eq!(last, Some(FrameKind::Heartbeat));
    relay.stop().await;
    assert!(world.confirmed() >= flush);
}

/// A slot that another relay reads from is waited for, not crashed on (B17).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b17_a_taken_slot_is_waited_for() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let first = world.start();
    first.streaming().await;
    let second = world.start();
    let waiting = second
        .until("waiting for the slot", |status| {
            status.waiting_for.contains("55006")
        })
        .await;
    assert_eq!(waiting.state, RelayState::Waiting);
    world.sql("INSERT INTO t VALUES (1, 'first')");
    world.read_changes(&["I t (1, first)"]).await;
    first.kill().await;
    second.streaming().await;
    world.sql("INSERT INTO t VALUES (2, 'second')");
    world
        .read_changes(&["I t (1, first)", "I t (2, second)"])
        .await;
    second.stop().await;
}

/// A walsender that is terminated, or a source that restarts, is met by reconnecting (B18).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b18_a_terminated_walsender_comes_back_by_itself() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    relay
        .until("restarted", |status| status.restarts >= 1)
        .await;
    world.sql("INSERT INTO t VALUES (1, 'after the walsender')");
    world.read_changes(&["I t (1, after the walsender)"]).await;
    world.postgres.kill().expect("kill");
    world.postgres.start_again().expect("start");
    world.sql("INSERT INTO t VALUES (2, 'after the crash')");
    world
        .read_changes(&["I t (1, after the walsender)", "I t (2, after the crash)"])
        .await;
    relay.stop().await;
}

/// Savepoints rolled back inside a streamed transaction take their rows and nothing else (B22).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b22_rolled_back_savepoints_inside_a_streamed_transaction() {
    let wishes = Wishes {
        postgres: postgres(&[("logical_decoding_work_mem", "64kB")]),
        ..Wishes::default()
    };
    let mut world = World::new(wishes, TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql(
        "BEGIN;
         INSERT INTO t SELECT g, 'k' || repeat('k', 200) FROM generate_series(1, 600) g;
         SAVEPOINT a;
         INSERT INTO t SELECT g, 'r' || repeat('r', 200) FROM generate_series(1001, 1600) g;
         ROLLBACK TO a;
         INSERT INTO t VALUES (5000, 'after');
         SAVEPOINT b; INSERT INTO t VALUES (5001, 'b');
         SAVEPOINT c; INSERT INTO t VALUES (5002, 'c'); ROLLBACK TO c; RELEASE b;
         COMMIT",
    );
    world
        .read_until("the transaction", |chain| !chain.transactions.is_empty())
        .await;
    let all = changes(&world.chain);
    assert_eq!(all.len(), 602);
    assert_eq!(all[600..], ["I t (5000, after)", "I t (5001, b)"]);
    assert!(world.chain.transactions[0].chunked);
    relay.stop().await;
}

/// Rows larger than the broker's limit, and a limit that is lowered while running (B43).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b43_rows_larger_than_the_brokers_limit() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    let large = |id: i32| {
        world.sql(&format!(
            "INSERT INTO t VALUES ({id}, repeat('x', 3000000))"
        ))
    };
    large(1);
    world.sql("INSERT INTO t SELECT g, 'small' FROM generate_series(2, 20000) g");
    world
        .read_until("both", |chain| changes(chain).len() == 20_000)
        .await;
    assert_eq!(changes(&world.chain)[0], "I t (1, 3000000 bytes)");
    world.nats.set_max_payload(100_000).expect("the limit");
    world.nats.reload().expect("reload");
    world.sql("INSERT INTO t VALUES (20001, repeat('y', 1000000))");
    world
        .read_until("the row behind the new limit", |chain| {
            changes(chain).len() == 20_001
        })
        .await;
    relay.stop().await;
}

/// A broker killed with publishes in flight: what it did not store comes again, in order, and what
/// it did store does not (B44).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b44_a_killed_broker_loses_nothing_and_doubles_nothing() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world
        .read_until("the marker", |chain| chain.frames.len() >= 2)
        .await;
    for round in 0..3 {
        world.nats.pause().expect("pause");
        for row in 0..20 {
            world.sql(&format!(
                "INSERT INTO public.t VALUES ({}, 'v')",
                round * 20 + row
            ));
        }
        world.nats.kill().expect("kill");
        world.nats.start_again().expect("start");
    }
    world
        .read_until("all rows", |chain| changes(chain).len() >= 60)
        .await;
    let expected: Vec<String> = (0..60).map(|id| format!("I t ({id}, v)")).collect();
    assert_eq!(changes(&world.chain), expected);
    assert_eq!(world.chain.transactions.len(), 60, "each once");
    relay.stop().await;
}
