//! Rules, by their numbers.

use std::time::Duration;

use trellara_envelope::{Body, FrameKind, HaltCode, Incarnation};
use trellara_jetstream::read::Reader;
use trellara_jetstream::{topology, trim};
use trellara_relay::Acknowledge;

use crate::cases::TABLE;
use crate::world::{Wishes, World, changes};

/// The slot falls back when the source crashes: behind is normal, and nothing comes twice (C03).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_a_slot_that_fell_behind_resends_nothing() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("INSERT INTO t VALUES (1, 'a'); INSERT INTO t VALUES (2, 'b')");
    world.read_changes(&["I t (1, a)", "I t (2, b)"]).await;
    let position = world.chain.position;
    relay
        .until("confirmed", |status| status.lsn_confirmed >= position)
        .await;
    world.postgres.kill().expect("kill");
    world.postgres.start_again().expect("start");
    world.sql("INSERT INTO t VALUES (3, 'c')");
    world
        .read_changes(&["I t (1, a)", "I t (2, b)", "I t (3, c)"])
        .await;
    assert_eq!(world.chain.transactions.len(), 3, "each once");
    relay.stop().await;
}

/// A slot that was told more than the stream holds: the broker lost it (C03, 0.4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_a_stream_behind_the_slot_halts_published() {
    let world = World::new(Wishes::default(), TABLE).await;
    world.sql("INSERT INTO t VALUES (1, 'gone')");
    world.sql(
        "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn())
         FROM pg_replication_slots",
    );
    let halt = world.start().halted().await;
    assert_eq!(halt.code, HaltCode::StreamLostTail, "{halt}");
}

/// The relay names what is missing and creates nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_slot_or_stream_is_refused_by_name() {
    let world = World::new(Wishes::default(), TABLE).await;
    let session = world.session().await;
    let name = &world.options.source.slot;
    assert!(
        trellara_source::slot::drop(&session, name)
            .await
            .expect("SQL")
    );
    let halt = world.start().halted().await;
    assert_eq!(halt.code, HaltCode::SlotLost, "{halt}");
    let stream = world.options.flow.stream();
    topology::delete(&world.broker, &stream)
        .await
        .expect("deleted");
    let halt = world.start().halted().await;
    assert_eq!(halt.code, HaltCode::Config, "{halt}");
    assert!(halt.hint.contains("trellara setup"), "{halt}");
}

/// The applier trims everything but the newest marker and the newest transaction: the last frame
/// says where to go on, and the marker which tables there were. Without it nobody knows (C06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trimmed_stream_without_genesis_goes_on() {
    let (mut world, relay) = World::with_a_row().await;
    relay.stop().await;
    let flow = &world.options.flow;
    let reader = Reader::new(&world.broker, &flow.stream());
    let last = reader.end().await.expect("an answer").last_sequence;
    let marker = reader.last_on(&flow.mark_subject()).await;
    let marker = marker.expect("an answer").expect("a marker").sequence;
    trim::purge_to(&world.broker, &flow.stream(), &flow.mark_subject(), marker)
        .await
        .expect("trimmed");
    let beats = flow.beat_subject();
    trim::purge_to(&world.broker, &flow.stream(), &beats, last)
        .await
        .expect("trimmed");
    let relay = world.start();
    world.sql("INSERT INTO t VALUES (2, 'b')");
    world.read_changes(&["I t (1, a)", "I t (2, b)"]).await;
    assert_eq!(relay.streaming().await.incarnation, Incarnation(2));
    relay.stop().await;
    let flow = &world.options.flow;
    let last = reader.end().await.expect("an answer").last_sequence;
    trim::purge_to(&world.broker, &flow.stream(), &flow.all_subjects(), last)
        .await
        .expect("trimmed");
    for _ in 0..2 {
        let halt = world.start().halted().await;
        assert_eq!(halt.code, HaltCode::Config, "{halt}");
        assert!(halt.reason.contains("marker of incarnation 2"), "{halt}");
    }
}

/// A source that shuts down is let go although nothing can be confirmed to it (C04).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c04_a_source_can_be_shut_down_while_the_target_is_silent() {
    let wishes = Wishes {
        acknowledge: Acknowledge::Applied,
        ..Wishes::default()
    };
    let mut world = World::new(wishes, TABLE).await;
    world.options.shutdown_grace = Duration::from_secs(2);
    let relay = world.start();
    relay.streaming().await;
    world.sql("INSERT INTO t VALUES (1, 'never applied')");
    world.read_changes(&["I t (1, never applied)"]).await;
    let stopped =
        tokio::task::block_in_place(|| world.postgres.stop(trellara_local::StopMode::Fast));
    stopped.expect("the server stops");
    world.postgres.start_again().expect("start");
    world.sql("INSERT INTO t VALUES (2, 'later')");
    world
        .read_changes(&["I t (1, never applied)", "I t (2, later)"])
        .await;
    relay.stop().await;
}

/// A dropped publication ends the relay before another position is confirmed, on every version
/// (C06: PostgreSQL 18 only warns).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_dropped_publication_halts() {
    let (world, relay) = World::with_a_row().await;
    world.sql("DROP PUBLICATION trellara_shop");
    world.sql("INSERT INTO t VALUES (2, 'lost')");
    let halt = relay.halted().await;
    assert_eq!(halt.code, HaltCode::Config, "{halt}");
    assert!(!halt.hint.is_empty());
}

/// A table that left the publication and came back has lost rows, though the set looks equal (C06).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_a_member_that_came_back_halts_running_and_starting() {
    let world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("ALTER PUBLICATION trellara_shop DROP TABLE t");
    world.sql("ALTER PUBLICATION trellara_shop ADD TABLE t");
    let halt = relay.halted().await;
    assert_eq!(halt.code, HaltCode::Config, "{halt}");
    let halt = world.start().halted().await;
    assert_eq!(
        halt.code,
        HaltCode::Config,
        "the marker in the stream remembers: {halt}"
    );
}

/// Every successful START_REPLICATION is an incarnation with a marker of its own (C07).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_every_connection_is_an_incarnation() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    for number in 1..=3 {
        relay
            .until("the next incarnation", |status| {
                status.incarnation == Incarnation(number)
                    && status.state == trellara_relay::RelayState::Streaming
            })
            .await;
        world.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots");
    }
    world
        .read_until("three markers", |chain| {
            let markers = chain.frames.iter();
            markers
                .filter(|(_, frame)| frame.body.kind() == FrameKind::Marker)
                .count()
                >= 3
        })
        .await;
    relay.stop().await;
}

/// An open transaction that would fill the stream is aborted and read again after its commit (C12).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c12_an_open_transaction_cannot_fill_the_stream() {
    let mut wishes = Wishes::default();
    wishes.postgres = wishes.postgres.with("logical_decoding_work_mem", "64kB");
    wishes.max_bytes = 64 << 20;
    let mut world = World::new(wishes, TABLE).await;
    world.options.open_bytes = Some(4 << 20);
    let relay = world.start();
    relay.streaming().await;
    let open = world.session().await;
    let fill =
        "BEGIN; INSERT INTO public.t SELECT g, repeat('x', 1000) FROM generate_series(1, 12000) g";
    open.client.batch_execute(fill).await.expect("SQL");
    relay
        .until("restarted", |status| status.restarts >= 1)
        .await;
    let again = relay.streaming().await;
    assert!(again.last_error.contains("budget"), "{again:?}");
    world.sql("INSERT INTO t VALUES (0, 'meanwhile')");
    open.client.batch_execute("COMMIT").await.expect("SQL");
    // The chunks were purged, so the reader meets a hole in the numbers: only what is there counts.
    let stream = world.options.flow.stream();
    relay
        .until("both stored", |status| status.transactions >= 2)
        .await;
    let facts = topology::facts(&world.broker, &stream)
        .await
        .expect("facts");
    assert!(
        facts.bytes < 24 << 20,
        "the aborted chunks are gone: {}",
        facts.bytes
    );
    relay.stop().await;
}

/// A stream may take smaller messages than its server (B43). Frames are cut to fit, also when that
/// changes while the relay runs; below what every frame needs it says so instead of trying for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b43_a_stream_that_takes_only_small_messages_is_filled_with_them() {
    let mut world = World::new(Wishes::default(), TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.edit_max_message(64 << 10).await;
    world.sql("INSERT INTO t VALUES (1, repeat('x', 1000000))");
    world
        .read_until("the row", |chain| !chain.transactions.is_empty())
        .await;
    relay.stop().await;
    let relay = world.start();
    world.sql("INSERT INTO t VALUES (2, repeat('y', 1000000))");
    world
        .read_until("another", |chain| chain.transactions.len() == 2)
        .await;
    assert_eq!(relay.status.snapshot().restarts, 0, "it is known at once");
    world.edit_max_message(10_000).await;
    world.sql("INSERT INTO t VALUES (3, repeat('z', 1000000))");
    let halt = relay.halted().await;
    assert_eq!(halt.code, HaltCode::Broker, "{halt}");
    assert!(halt.hint.contains("max_msg_size"), "{halt}");
}

/// A message id that is already known at another place is doubt, not success (C17).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c17_only_the_expected_sequence_counts() {
    let (world, relay) = World::with_a_row().await;
    // Somebody else writes: the relay's next frame is refused, and it does not go on from memory.
    let facts = topology::facts(&world.broker, &world.options.flow.stream()).await;
    let last = facts.expect("facts").last_sequence;
    world
        .publish(
            last,
            &world.options.flow.mark_subject(),
            bytes::Bytes::from_static(b"?"),
        )
        .await;
    world.sql("INSERT INTO t VALUES (2, 'b')");
    let halt = relay.halted().await;
    assert_eq!(halt.code, HaltCode::Corrupt, "{halt}");
}

/// A streamed transaction that is already in the stream is streamed again by PostgreSQL and ends
/// with an abort frame (C20).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c20_a_streamed_transaction_sent_again_is_aborted() {
    let mut wishes = Wishes::default();
    wishes.postgres = wishes.postgres.with("logical_decoding_work_mem", "64kB");
    wishes.acknowledge = Acknowledge::Applied;
    let mut world = World::new(wishes, TABLE).await;
    let relay = world.start();
    relay.streaming().await;
    world.sql("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 3000) g");
    world
        .read_until("the transaction", |chain| chain.transactions.len() == 1)
        .await;
    // Nothing was applied, so nothing was confirmed: all of it comes again.
    relay.kill().await;
    let relay = world.start();
    world
        .read_until("its second copy is called off", |chain| {
            chain.frames.iter().any(|(_, frame)| match &frame.body {
                Body::Abort(abort) => abort.whole,
                _ => false,
            })
        })
        .await;
    world.sql("INSERT INTO t VALUES (0, 'next')");
    world
        .read_until("the next one", |chain| chain.transactions.len() == 2)
        .await;
    assert_eq!(changes(&world.chain).len(), 3001);
    relay.stop().await;
}

/// In `applied` the slot moves with the registered target's reports and with nobody else's (C27).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c27_only_the_registered_target_moves_the_slot() {
    let wishes = Wishes {
        acknowledge: Acknowledge::Applied,
        ..Wishes::default()
    };
    let mut world = World::new(wishes, TABLE).await;
    let relay = world.start();
    let before = relay.streaming().await.lsn_confirmed;
    world.sql("INSERT INTO t VALUES (1, 'a')");
    world.read_changes(&["I t (1, a)"]).await;
    let report = world.report();
    let mut other = report.clone();
    other.target = "somebody@2".to_owned();
    world.send_report(&other).await;
    let mut wrong = report.clone();
    wrong.digest = Default::default();
    world.send_report(&wrong).await;
    world.sql("INSERT INTO t VALUES (2, 'b')");
    world.read_changes(&["I t (1, a)", "I t (2, b)"]).await;
    assert_eq!(
        relay.status.snapshot().lsn_confirmed,
        before,
        "neither is believed"
    );
    world.send_report(&report).await;
    let status = relay
        .until("confirmed", |status| status.lsn_confirmed > before)
        .await;
    assert_eq!(status.lsn_confirmed, report.end_lsn);
    relay.stop().await;
}
