//! The copy's chain of frames, when the broker or another relay has done something to it: whoever
//! orders is told, nothing waits for ever, and nothing is begun twice under one number.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use trellara_envelope::{CopyEvent, FrameDigest, Incarnation, StreamSequence};
use trellara_jetstream::topology::{self, StreamSpec};
use trellara_jetstream::trim;
use trellara_relay::CopyOptions;

use crate::copying::{Target, source_rows, wanted, written};
use crate::world::{Relay, TARGET, Wishes, World};

const SMALL: &str = "CREATE TABLE t (id int); INSERT INTO t VALUES (1)";
const BOTH: &str = "CREATE TABLE t (id int); INSERT INTO t VALUES (1); \
    CREATE TABLE wide (id int PRIMARY KEY, v text); \
    INSERT INTO wide SELECT g, repeat(md5(g::text), 8) FROM generate_series(1, 100000) g";

/// The copy stream's end; the broker may have been away a moment ago.
async fn stored(world: &World, end: u64) {
    let stream = world.options.flow.copy_stream();
    loop {
        match topology::facts(&world.broker, &stream).await {
            Ok(facts) if facts.last_sequence.0 >= end => return,
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn copied(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp").success());
}

/// All of a copy was acknowledged when the broker went away; it comes back with an older state of
/// the copy stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_a_broker_lost_while_it_was_away_are_missed() {
    let schema = format!("{SMALL}; CREATE TABLE u (id int); INSERT INTO u VALUES (2)");
    let mut world = World::new(Wishes::default(), &schema).await;
    let relay = world.start();
    let first = Target::new(&world, &["t"]);
    written(&relay, 1).await;
    let flow = world.options.flow.clone();
    let facts = topology::facts(&world.broker, &flow.copy_stream()).await;
    let first_end = facts.expect("the stream").last_sequence.0;
    let store = world.nats.store_dir().join("jetstream/$G/streams");
    let stream = store.join(flow.copy_stream());
    let older = store.parent().expect("a folder").join("older");
    world.nats.stop().expect("an end");
    copied(&stream, &older);
    world.nats.start_again().expect("a start");
    first.order(|order| order.wanted.push(wanted("u", 1)));
    // What the relay says of the first copy and of the other one is the same; the stream tells.
    stored(&world, 2 * first_end).await;
    written(&relay, 1).await;
    world.nats.stop().expect("an end");
    std::fs::remove_dir_all(&stream).expect("removed");
    std::fs::rename(&older, &stream).expect("put back");
    world.nats.start_again().expect("a start");
    drop(first);
    let mut target = Target::new(&world, &["u"]);
    target.has_holes = true;
    target.is_copied_anew("u").await;
    assert_eq!(target.rows("u", 2), ["2"]);
    relay.stop().await;
}

/// Another relay had the slot for a while and began the copy anew: what this one wrote before is
/// void, and it begins again under a number of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_another_relay_began_meanwhile_is_begun_once_more() {
    let mut world = World::new(Wishes::default(), SMALL).await;
    world.options.copy.silence = Duration::from_secs(60);
    let relay = world.start();
    let mut target = Target::new(&world, &["t"]);
    target
        .read_until("the first copy", |target| target.is_ended("t", 1))
        .await;
    let mut frames = target.frames.iter();
    let begin = frames.find(|(_, frame)| matches!(frame.event, CopyEvent::Begin(_)));
    let mut frame = begin.expect("a beginning").1.clone();
    let own = frame.header.writer;
    frame.header.writer = Incarnation(own.0 + 1);
    frame.header.ordinal = 0;
    frame.header.previous = FrameDigest::default();
    let last = target.frames.last().expect("a frame").0;
    target.write(last, &frame).await;
    serve_twice_more(&world, &relay).await;
    target
        .read_until("the next copy", |target| {
            is_ended_above(target, 1, Incarnation(own.0 + 1))
        })
        .await;
    assert_eq!(target.rows("t", 1), ["1"]);
    relay.stop().await;
}

/// The next incarnation has the number of the relay that is played here; the one behind is newer.
async fn serve_twice_more(world: &World, relay: &Relay) {
    for restarts in 1..=2 {
        let end = "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots";
        relay.streaming().await;
        while relay.status.snapshot().restarts < restarts {
            world.sql(end);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    relay.streaming().await;
}

fn is_ended_above(target: &Target, generation: u32, number: Incarnation) -> bool {
    let copies = target.copies.iter();
    let mut newer = copies.filter(|((_, of, writer), _)| *of == generation && *writer > number);
    newer.any(|(_, copied)| copied.is_ended)
}

/// The same when everything was in before, and nothing of the other relay's frames is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_whose_beginning_was_trimmed_is_begun_under_a_newer_number() {
    let world = World::new(Wishes::default(), SMALL).await;
    let relay = world.start();
    let mut target = Target::new(&world, &["t"]);
    target
        .read_until("the first copy", |target| target.is_ended("t", 1))
        .await;
    let own = target.frames[0].1.header.writer;
    target.order(|order| order.wanted.clear());
    relay
        .until("cleared away", |status| status.copy.tables == 0)
        .await;
    let flow = world.options.flow.clone();
    let spec = StreamSpec {
        target: Some(TARGET.to_owned()),
        ..StreamSpec::copy(flow.clone(), 1 << 20)
    };
    topology::create(&world.broker, &spec).await.expect("made");
    let mut frame = target.frames[0].1.clone();
    frame.header.writer = Incarnation(own.0 + 1);
    frame.header.generation = 2;
    target.write(StreamSequence(0), &frame).await;
    let (stream, subject) = (flow.copy_stream(), flow.copy_subject());
    let trimmed = trim::purge_to(&world.broker, &stream, &subject, StreamSequence(2)).await;
    trimmed.expect("trimmed");
    serve_twice_more(&world, &relay).await;
    drop(target);
    let mut target = Target::new(&world, &["t"]);
    target.order(|order| order.wanted = vec![wanted("t", 2)]);
    target
        .read_until("the next copy", |target| target.is_ended("t", 2))
        .await;
    let above = Incarnation(own.0 + 1);
    assert!(
        is_ended_above(&target, 2, above),
        "{:?}",
        target.copies.keys()
    );
    relay.stop().await;
}

/// Nothing was wanted, so the stream went, and then the same is wanted after all: its frames are
/// gone, and under the same number it cannot be begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wanted_again_after_its_stream_went_has_failed() {
    let world = World::new(Wishes::default(), SMALL).await;
    let relay = world.start();
    let first = Target::new(&world, &["t"]);
    written(&relay, 1).await;
    first.order(|order| order.wanted.clear());
    relay
        .until("cleared away", |status| status.copy.tables == 0)
        .await;
    drop(first);
    let mut target = Target::new(&world, &["t"]);
    target.begins_anywhere();
    target.is_copied_anew("t").await;
    assert_eq!(target.rows("t", 2), ["1"]);
    relay.stop().await;
}

/// A message that the stream stopped to take fails the table that it is of. The chain has no hole,
/// so a table that was written before stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_is_never_taken_voids_its_own_table_alone() {
    let mut world = World::new(Wishes::default(), BOTH).await;
    world.options.copy = CopyOptions {
        max_bytes: 1 << 20,
        item_bytes: 64 << 10,
        ..CopyOptions::default()
    };
    let relay = world.start();
    let mut target = Target::new(&world, &["t"]);
    written(&relay, 1).await;
    target.order(|order| order.wanted.push(wanted("wide", 1)));
    relay
        .until("waiting for room", |status| {
            status.copy.waiting_for.contains("room")
        })
        .await;
    let stream = world.options.flow.copy_stream();
    world.edit_max_message_of(&stream, 24 << 10).await;
    target.trims = true;
    target
        .read_until("its failure", |target| target.failed("wide", 1).is_some())
        .await;
    assert!(target.is_ended("t", 1), "what was written before stays");
    target.order(|order| order.wanted = vec![wanted("wide", 2)]);
    target
        .read_until("the next copy", |target| target.is_ended("wide", 2))
        .await;
    let rows = source_rows(&world, "SELECT * FROM wide");
    assert_eq!(target.rows("wide", 2), rows);
    let facts = topology::facts(&world.broker, &stream).await;
    assert_eq!(facts.expect("facts").max_message_bytes, Some(24 << 10));
    relay.stop().await;
}
