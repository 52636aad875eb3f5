//! The durable consumer, moved, deleted, cut off and tempted to trust.

use std::time::Duration;

use futures_util::FutureExt;
use trellara_envelope::StreamSequence;
use trellara_jetstream::consume::{self, Consumer, ConsumerOptions};
use trellara_jetstream::topology;
use trellara_local::NatsOptions;

use crate::rig::{Rig, message, payload, within};

fn options(rig: &Rig, start: u64) -> ConsumerOptions {
    let filters = ["tx.>", "mark", "barrier"]
        .map(|s| format!("trellara.shop.{s}"))
        .to_vec();
    ConsumerOptions::new(&rig.stream, "applier", filters, StreamSequence(start))
}

async fn open(rig: &Rig, start: u64) -> Consumer {
    Consumer::open(&rig.broker, options(rig, start))
        .await
        .expect("a consumer")
}

async fn expect(consumer: &mut Consumer, sequences: impl IntoIterator<Item = u64>) {
    for sequence in sequences {
        let delivery = within(consumer.next()).await.expect("a delivery");
        assert_eq!(delivery.sequence.0, sequence);
        assert_eq!(delivery.payload[..8], sequence.to_be_bytes());
    }
}

async fn api(rig: &Rig, endpoint: &str, body: &str) -> serde_json::Value {
    let subject = format!("$JS.API.{endpoint}");
    let timeout = Duration::from_secs(10);
    let answer = rig
        .broker
        .request_core(&subject, body.to_owned().into(), timeout)
        .await;
    serde_json::from_slice(&answer.expect("an answer")).expect("JSON")
}

async fn positions(version: &str) {
    let options = NatsOptions {
        version: version.to_owned(),
        ..NatsOptions::default()
    };
    let rig = Rig::with(&options, 64 << 20).await;
    rig.fill("tx.0", 0, 100, 50).await;
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=40).await;
    consumer.ack(StreamSequence(40));
    // The checkpoint of the target decides, not what was delivered or acknowledged.
    for start in [21, 1, 90, 101] {
        drop(consumer);
        consumer = open(&rig, start).await;
        expect(&mut consumer, start..=100).await;
    }
    rig.fill("mark", 100, 1, 50).await;
    expect(&mut consumer, [101]).await;
    consumer
        .reposition(StreamSequence(50))
        .await
        .expect("a move");
    expect(&mut consumer, 50..=101).await;
}

#[tokio::test]
async fn nats_2_15_1_starts_where_it_is_told() {
    positions("2.15.1").await;
}

#[tokio::test]
async fn nats_2_12_8_starts_where_it_is_told() {
    positions("2.12.8").await;
}

#[tokio::test]
async fn nats_2_10_26_starts_where_it_is_told() {
    positions("2.10.26").await;
}

#[tokio::test]
async fn chunks_are_left_aside_and_the_rest_comes_in_order() {
    let rig = Rig::start().await;
    let subjects = [
        "tx.0", "open.1.7", "open.1.7", "mark", "open.1.8", "barrier", "tx.3",
    ];
    for (at, subject) in (0..).zip(subjects) {
        rig.fill(subject, at, 1, 50).await;
    }
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, [1, 4, 6, 7]).await;
}

#[tokio::test]
async fn b51_a_deleted_consumer_is_made_again_at_our_own_position() {
    let rig = Rig::start().await;
    rig.fill("tx.0", 0, 10, 50).await;
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=5).await;
    let gone = api(&rig, &format!("CONSUMER.DELETE.{}.applier", rig.stream), "").await;
    assert_eq!(gone["success"], true);
    rig.fill("tx.0", 10, 10, 50).await;
    // What was read ahead, and what comes from the new one: each once.
    expect(&mut consumer, 6..=20).await;
    assert_eq!(consumer.counters().delivered, 20);
}

#[tokio::test]
async fn redelivery_is_neither_needed_nor_seen() {
    let rig = Rig::start().await;
    rig.fill("tx.0", 0, 50, 50).await;
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=10).await;
    // Somebody makes the server send everything unacknowledged again, quickly.
    let stream = &rig.stream;
    let mut config =
        api(&rig, &format!("CONSUMER.INFO.{stream}.applier"), "").await["config"].take();
    config["ack_wait"] = serde_json::json!(200_000_000);
    let body = serde_json::json!({"stream_name": stream, "config": config, "action": "update"});
    let endpoint = format!("CONSUMER.CREATE.{stream}.applier");
    let updated = api(&rig, &endpoint, &body.to_string()).await;
    assert_eq!(updated["config"]["ack_wait"], 200_000_000, "{updated}");
    expect(&mut consumer, 11..=50).await;
    for at in 50..60 {
        // Deliveries of the new ones with the old ones between them.
        let seen = consumer.counters().dropped;
        let next = async {
            while rig_redelivered(&rig).await <= seen {}
            rig.fill("tx.0", at, 1, 50).await;
        };
        within(next).await;
        expect(&mut consumer, [at + 1]).await;
    }
    assert!(consumer.counters().dropped > 0);
    assert_eq!(consumer.counters().delivered, 60);
}

/// Deliveries beyond one for each message, as the server counts them.
async fn rig_redelivered(rig: &Rig) -> u64 {
    let info = api(rig, &format!("CONSUMER.INFO.{}.applier", rig.stream), "").await;
    let delivered = &info["delivered"];
    let count = |name: &str| delivered[name].as_u64().expect("a number");
    count("consumer_seq") - count("stream_seq")
}

#[tokio::test]
async fn a_consumer_moved_back_from_outside_delivers_again_and_says_so() {
    let rig = Rig::start().await;
    rig.fill("tx.0", 0, 20, 50).await;
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=20).await;
    let moved = consume::move_back(&rig.broker, &rig.stream, "applier", StreamSequence(5)).await;
    moved.expect("a move");
    for sequence in 5..=20 {
        let delivery = within(consumer.next()).await.expect("a delivery");
        assert_eq!((delivery.sequence.0, delivery.again), (sequence, true));
    }
    rig.fill("tx.0", 20, 1, 50).await;
    let delivery = within(consumer.next()).await.expect("a delivery");
    assert_eq!((delivery.sequence.0, delivery.again), (21, false));
    assert_eq!(consumer.counters().rebuilt, 0);
}

#[tokio::test]
async fn a_killed_server_neither_skips_nor_repeats() {
    let mut rig = Rig::start().await;
    rig.fill("tx.0", 0, 2000, 5000).await;
    let mut consumer = open(&rig, 1).await;
    let mut next = 1;
    for upto in [7, 1000, 1990] {
        expect(&mut consumer, next..=upto).await;
        next = upto + 1;
        consumer.ack(StreamSequence(upto));
        rig.crash().await;
    }
    expect(&mut consumer, next..=2000).await;
    assert!(consumer.counters().rebuilt >= 1);
}

/// The next delivery to a reader that has no patience: each call is polled once and dropped.
async fn next_by_looks(consumer: &mut Consumer) -> u64 {
    let looking = async {
        loop {
            if let Some(delivery) = consumer.next().now_or_never() {
                return delivery.expect("a delivery").sequence.0;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(looking).await
}

#[tokio::test]
async fn a_reader_without_patience_outlives_an_outage_of_the_broker() {
    let mut rig = Rig::start().await;
    rig.fill("tx.0", 0, 5, 50).await;
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=5).await;
    let before = rig.generation();
    rig.server.kill().expect("kill");
    for _ in 0..10 {
        // Dropped more often while nobody answers than failures are borne.
        let early = tokio::time::timeout(Duration::from_millis(20), consumer.next()).await;
        assert!(early.is_err(), "{early:?}");
    }
    rig.server.start_again().expect("start");
    rig.connected_after(before).await;
    rig.fill("tx.0", 5, 1, 50).await;
    assert_eq!(next_by_looks(&mut consumer).await, 6);
    assert_eq!(consumer.counters().rebuilt, 1);
}

async fn pause(rig: &Rig, until: &str) -> serde_json::Value {
    let endpoint = format!("CONSUMER.PAUSE.{}.applier", rig.stream);
    let body = serde_json::json!({ "pause_until": until });
    api(rig, &endpoint, &body.to_string()).await
}

/// A consumer that the server holds back, with five messages read and five waiting: open pulls,
/// heartbeats, and no messages.
async fn held_back() -> (Rig, Consumer) {
    let rig = Rig::start().await;
    rig.fill("tx.0", 0, 5, 50).await;
    let mut options = options(&rig, 1);
    options.watchdog = Duration::from_millis(300);
    let mut consumer = Consumer::open(&rig.broker, options)
        .await
        .expect("a consumer");
    expect(&mut consumer, 1..=5).await;
    let paused = pause(&rig, "2100-01-01T00:00:00Z").await;
    assert_eq!(paused["paused"], true, "{paused}");
    rig.fill("tx.0", 5, 5, 50).await;
    (rig, consumer)
}

#[tokio::test]
async fn a_reader_without_patience_notices_that_messages_wait() {
    let (rig, mut consumer) = held_back().await;
    let rebuilt = async {
        while consumer.counters().rebuilt == 0 {
            let early = consumer.next().now_or_never();
            assert!(early.is_none(), "{early:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within(rebuilt).await;
    let free = pause(&rig, "2000-01-01T00:00:00Z").await;
    assert_eq!(free["paused"], false, "{free}");
    assert_eq!(next_by_looks(&mut consumer).await, 6);
}

#[tokio::test]
async fn b46_messages_that_wait_while_nothing_comes_are_noticed() {
    let (rig, mut consumer) = held_back().await;
    let rebuilt = async {
        while consumer.counters().rebuilt == 0 {
            // Never answers while it is paused; only the watchdog does something.
            let _ = tokio::time::timeout(Duration::from_millis(200), consumer.next()).await;
        }
    };
    within(rebuilt).await;
    let free = pause(&rig, "2000-01-01T00:00:00Z").await;
    assert_eq!(free["paused"], false, "{free}");
    expect(&mut consumer, 6..=10).await;
}

#[tokio::test]
async fn a_consumer_that_can_lose_messages_is_refused_by_name() {
    let rig = Rig::start().await;
    let body = serde_json::json!({
        "stream_name": rig.stream, "action": "create",
        "config": {"durable_name": "applier", "ack_policy": "explicit", "max_deliver": 3},
    });
    let endpoint = format!("CONSUMER.CREATE.{}.applier", rig.stream);
    api(&rig, &endpoint, &body.to_string()).await;
    let error = Consumer::open(&rig.broker, options(&rig, 1))
        .await
        .expect_err("a refusal");
    let text = error.to_string();
    for setting in [
        "ack_policy",
        "max_deliver",
        "filter_subjects",
        "max_ack_pending",
    ] {
        assert!(text.contains(setting), "{text}");
    }
}

#[tokio::test]
async fn a_stream_that_is_gone_ends_the_reading() {
    let rig = Rig::start().await;
    let mut consumer = open(&rig, 1).await;
    topology::delete(&rig.broker, &rig.stream)
        .await
        .expect("delete");
    let error = within(consumer.next()).await.expect_err("no stream");
    assert!(error.is_missing(), "{error}");
}

#[tokio::test]
async fn a_message_larger_than_todays_max_payload_still_comes() {
    let mut rig = Rig::with(
        &NatsOptions {
            max_payload: 8 << 20,
            ..NatsOptions::default()
        },
        256 << 20,
    )
    .await;
    for at in 0..3 {
        let outcome = rig
            .publisher
            .publish(message("tx.0", at, payload(at + 1, 7 << 20)))
            .await;
        assert!(matches!(
            outcome,
            trellara_jetstream::publish::Outcome::Stored { .. }
        ));
    }
    rig.server.set_max_payload(100_000).expect("configuration");
    rig.crash().await;
    let mut options = options(&rig, 1);
    options.buffer_bytes = 1 << 20;
    let mut consumer = Consumer::open(&rig.broker, options)
        .await
        .expect("a consumer");
    expect(&mut consumer, 1..=3).await;
}

#[tokio::test]
async fn a_stream_that_lost_its_tail_is_noticed() {
    let rig = Rig::start().await;
    rig.fill("tx.0", 0, 10, 50).await;
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=10).await;
    topology::delete(&rig.broker, &rig.stream)
        .await
        .expect("delete");
    let flow = "shop".parse().expect("a name");
    let spec = topology::StreamSpec::new(flow, 1 << 20);
    topology::create(&rig.broker, &spec)
        .await
        .expect("a stream");
    rig.fill("tx.0", 0, 3, 50).await;
    // The target would stand at 10; what is at 1 to 3 now is not what was there.
    let error = within(consumer.next()).await.expect_err("it lost its tail");
    assert!(error.is_rewound() && error.is_passing(), "{error}");
    let error = Consumer::open(&rig.broker, options(&rig, 5))
        .await
        .expect_err("the same");
    assert!(error.is_rewound(), "{error}");
    let mut consumer = open(&rig, 1).await;
    expect(&mut consumer, 1..=3).await;
}
