//! Two writers of one stream: the newer one wins, and what the older one had on its way harms
//! nothing (R3).

use bytes::Bytes;
use trellara_envelope::{
    Body, BundleEntry, CommitTime, Frame, FrameDigest, FrameOrdinal, Header, Heartbeat,
    Incarnation, Lane, Lsn, StreamSequence, Xid,
};
use trellara_jetstream::read::Reader;

use crate::world::World;

/// On a stream with one copy each frame of a pipeline names the one before by its id, so that the
/// broker refuses the rest of a pipeline whose beginning it refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_each_frame_of_a_pipeline_names_the_one_before() {
    let (world, relay) = World::with_a_row().await;
    relay.stop().await;
    let reader = Reader::new(&world.broker, &world.options.flow.stream());
    let mut named = 0;
    let mut before = None;
    for (sequence, frame) in &world.chain.frames {
        let stored = reader.get(*sequence).await.expect("an answer");
        let headers = stored.expect("the frame").headers;
        let header = |wanted: &str| {
            let found = headers.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        };
        let expects = header("Nats-Expected-Last-Msg-Id");
        if matches!(frame.body, Body::Genesis(_) | Body::Marker(_)) {
            assert_eq!(expects, None, "its writer has sent nothing before");
        } else {
            assert_eq!(expects, before);
            named += 1;
        }
        before = header("Nats-Msg-Id");
    }
    assert!(named > 0);
}

/// Where the broker cannot refuse it, a frame that an older writer had on its way lands behind the
/// newer one's marker. The relay passes over it, whether it runs at the time or begins later: the
/// next marker continues its own flow, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_frames_of_a_fenced_writer_are_passed_over() {
    let (mut world, relay) = World::with_a_row().await;
    stray(&mut world, Incarnation(0), heartbeat()).await;
    world.sql("INSERT INTO t VALUES (2, 'b')");
    world.read_changes(&["I t (1, a)", "I t (2, b)"]).await;
    let status = relay.streaming().await;
    assert_eq!(status.incarnation, Incarnation(2), "a marker closes it");
    relay.stop().await;
    stray(&mut world, Incarnation(1), heartbeat()).await;
    let relay = world.start();
    world.sql("INSERT INTO t VALUES (3, 'c')");
    world
        .read_changes(&["I t (1, a)", "I t (2, b)", "I t (3, c)"])
        .await;
    assert_eq!(relay.streaming().await.incarnation, Incarnation(3));
    relay.stop().await;
}

/// A bundle among them stays the newest transaction in the stream until another commits. The source
/// does not owe it: nothing says that it was set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_a_transaction_of_a_fenced_writer_is_not_asked_for() {
    let (mut world, relay) = World::with_a_row().await;
    relay.stop().await;
    let source = world.chain.frames[0].1.header.source;
    let entry = BundleEntry {
        source,
        commit_lsn: Lsn(u64::MAX / 2 - 8),
        end_lsn: Lsn(u64::MAX / 2),
        xid: Xid(9),
        commit_time: CommitTime(0),
        bytes: 0,
        changes: 0,
    };
    stray(&mut world, Incarnation(0), Body::Bundle(vec![entry])).await;
    // Its marker is all that this one adds.
    let relay = world.start();
    relay.streaming().await;
    relay.kill().await;
    let relay = world.start();
    world.sql("INSERT INTO t VALUES (2, 'b')");
    world.read_changes(&["I t (1, a)", "I t (2, b)"]).await;
    assert_eq!(relay.streaming().await.incarnation, Incarnation(3));
    relay.stop().await;
}

fn heartbeat() -> Body {
    Body::Heartbeat(Heartbeat {
        source_time: CommitTime(0),
    })
}

/// A marker that stands on another frame than it names counts for nothing: the flow goes on from
/// the frame below it, with a higher incarnation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_a_marker_on_another_frame_is_passed_over() {
    let (mut world, relay) = World::with_a_row().await;
    relay.stop().await;
    for incarnation in [7, 8] {
        let mut marker = newest_marker(&world);
        marker.header.incarnation = Incarnation(incarnation);
        marker.header.previous = FrameDigest::of(b"lost");
        marker.header.position = Lsn(u64::MAX / 2);
        marker.header.follows = marker.header.position;
        let reader = Reader::new(&world.broker, &world.options.flow.stream());
        let last = reader.end().await.expect("an answer").last_sequence;
        let stored = world
            .try_publish(last, &marker.subject(), marker.encode())
            .await;
        assert!(stored, "nobody else writes");
        world.chain.strays.push(last.next());
    }
    for (incarnation, id, row) in [(9, 2, "b"), (10, 3, "c")] {
        let relay = world.start();
        let status = relay.streaming().await;
        assert_eq!(status.incarnation, Incarnation(incarnation));
        world.sql(&format!("INSERT INTO t VALUES ({id}, '{row}')"));
        if row == "b" {
            world.read_changes(&["I t (1, a)", "I t (2, b)"]).await;
        } else {
            world
                .read_changes(&["I t (1, a)", "I t (2, b)", "I t (3, c)"])
                .await;
        }
        relay.stop().await;
    }
}

fn newest_marker(world: &World) -> Frame {
    let mut frames = world.chain.frames.iter().rev().map(|(_, frame)| frame);
    let marker = frames.find(|frame| matches!(frame.body, Body::Marker(_)));
    marker.expect("a marker").clone()
}

/// Puts a frame of an older writer at the stream's end: it follows one that was refused, and its
/// position lies far beyond everything.
async fn stray(world: &mut World, incarnation: Incarnation, body: Body) {
    let reader = Reader::new(&world.broker, &world.options.flow.stream());
    let flow = world.options.flow.clone();
    let source = world.chain.frames[0].1.header.source;
    loop {
        let last = reader.end().await.expect("an answer").last_sequence;
        let frame = Frame {
            header: Header {
                flow: flow.clone(),
                source,
                incarnation,
                ordinal: FrameOrdinal(last.0),
                previous: FrameDigest::of(b"refused"),
                position: Lsn(u64::MAX / 2),
                keep_from: last,
                lane: Lane(0),
                follows: Lsn(u64::MAX / 2 - 8),
                lanes: Vec::new(),
                mac: Vec::new(),
            },
            body: body.clone(),
            payload: Bytes::new(),
        };
        // The relay may be quicker with a heartbeat of its own.
        if world
            .try_publish(last, &frame.subject(), frame.encode())
            .await
        {
            world.chain.strays.push(StreamSequence(last.0 + 1));
            return;
        }
    }
}
