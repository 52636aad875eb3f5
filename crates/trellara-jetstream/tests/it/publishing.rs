//! Publishing while servers die, freeze, fill up and change their limits.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use trellara_envelope::StreamSequence;
use trellara_jetstream::publish::{Outcome, UnknownReason};
use trellara_jetstream::{BrokerEvent, topology, trim};

use crate::rig::{Rig, message, payload, within};

fn stored(sequence: u64) -> Outcome {
    Outcome::Stored {
        sequence: StreamSequence(sequence),
    }
}

/// Every sequence up to the end is there and holds its own number.
async fn assert_contiguous(rig: &Rig) -> u64 {
    let last = rig.last_sequence().await;
    let facts = topology::facts(&rig.broker, &rig.stream)
        .await
        .expect("facts");
    assert_eq!(facts.messages, last, "a hole in the sequences");
    for sequence in 1..=last {
        let found = rig.reader.get(StreamSequence(sequence)).await.expect("get");
        let found = found.unwrap_or_else(|| panic!("{sequence} is missing"));
        assert_eq!(found.payload[..8], sequence.to_be_bytes(), "at {sequence}");
    }
    last
}

#[tokio::test]
async fn a3_a_pipeline_cut_by_kill_leaves_no_hole() {
    let mut rig = Rig::start().await;
    let mut waiting = Vec::new();
    // Some before, some on their way when it dies, some after it came back: all of one pipeline
    // whose writer has not noticed.
    for at in 0..600 {
        waiting.push(
            rig.publisher
                .publish(message("tx.0", at, payload(at + 1, 1000))),
        );
    }
    assert_eq!(waiting.remove(0).await, stored(1));
    let before = rig.generation();
    rig.server.kill().expect("kill");
    for at in 600..900 {
        waiting.push(
            rig.publisher
                .publish(message("tx.0", at, payload(at + 1, 1000))),
        );
    }
    rig.server.start_again().expect("start");
    rig.connected_after(before).await;
    for at in 900..1200 {
        waiting.push(
            rig.publisher
                .publish(message("tx.0", at, payload(at + 1, 1000))),
        );
    }
    let outcomes = within(join_all(waiting)).await;
    let acked = outcomes
        .iter()
        .take_while(|o| matches!(o, Outcome::Stored { .. }))
        .count()
        + 1;
    assert!(
        outcomes
            .iter()
            .any(|o| !matches!(o, Outcome::Stored { .. }))
    );
    let last = assert_contiguous(&rig).await;
    assert!(
        last >= acked as u64,
        "{acked} were acknowledged, {last} are there"
    );
    // The end says where to go on, and going on works.
    rig.fill("tx.0", last, 50, 100).await;
    assert_eq!(assert_contiguous(&rig).await, last + 50);
}

#[tokio::test]
async fn b44_a_publish_into_a_frozen_server_is_in_doubt_and_not_lost_silently() {
    let mut rig = Rig::start().await;
    rig.fill("tx.0", 0, 3, 100).await;
    rig.server.pause().expect("pause");
    let sent: Vec<_> = (3..6)
        .map(|at| {
            rig.publisher
                .publish(message("tx.0", at, payload(at + 1, 100)))
        })
        .collect();
    let before = rig.generation();
    rig.server.kill().expect("kill");
    let outcomes = within(join_all(sent)).await;
    let doubt = Outcome::Unknown {
        reason: UnknownReason::Disconnected,
    };
    assert_eq!(outcomes, vec![doubt; 3]);
    rig.server.start_again().expect("start");
    rig.connected_after(before).await;
    let last = assert_contiguous(&rig).await;
    assert!((3..=6).contains(&last));
    rig.fill("tx.0", last, 6 - last, 100).await;
    assert_eq!(assert_contiguous(&rig).await, 6);
}

#[tokio::test]
async fn while_disconnected_nothing_is_queued_behind_the_callers_back() {
    let mut rig = Rig::start().await;
    let mut connection = rig.broker.connection();
    let before = rig.generation();
    rig.server.kill().expect("kill");
    within(connection.wait_for(|now| !now.connected))
        .await
        .expect("the broker lives");
    let doubt = Outcome::Unknown {
        reason: UnknownReason::Disconnected,
    };
    assert_eq!(
        rig.publisher
            .publish(message("tx.0", 0, payload(1, 10)))
            .await,
        doubt
    );
    rig.server.start_again().expect("start");
    rig.connected_after(before).await;
    assert_eq!(rig.last_sequence().await, 0);
    assert_eq!(rig.publisher.in_flight(), 0);
}

#[tokio::test]
async fn a_full_stream_says_so_and_has_room_again_after_a_purge() {
    let rig = Rig::with(&trellara_local::NatsOptions::default(), 1 << 20).await;
    let mut at = 0;
    loop {
        match rig
            .publisher
            .publish(message("tx.0", at, payload(at + 1, 100_000)))
            .await
        {
            Outcome::Stored { .. } => at += 1,
            outcome => {
                assert_eq!(outcome, Outcome::Full);
                break;
            }
        }
    }
    assert!(at >= 9, "{at}");
    let purged = trim::purge_to(
        &rig.broker,
        &rig.stream,
        "trellara.shop.tx.>",
        StreamSequence(at),
    );
    assert_eq!(purged.await.expect("purge"), at - 1);
    rig.fill("tx.0", at, 5, 100_000).await;
    // Or the limit is raised while all is running.
    let raised = topology::update_max_bytes(&rig.broker, &rig.stream, 4 << 20).await;
    assert_eq!(raised.expect("update").max_bytes, Some(4 << 20));
    rig.fill("tx.0", at + 5, 20, 100_000).await;
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_and_by_the_stream() {
    let rig = Rig::start().await;
    let limit = rig.broker.max_payload();
    assert_eq!(limit, 1 << 20);
    let large = message("tx.0", 0, Bytes::from(vec![0; limit]));
    assert_eq!(
        rig.publisher.publish(large).await,
        Outcome::TooLarge { limit: Some(limit) }
    );
    // Headers count.
    let most = message("tx.0", 0, Bytes::from(vec![0; limit - 400]));
    assert_eq!(rig.publisher.publish(most).await, stored(1));
}

#[tokio::test]
async fn b43_a_lowered_max_payload_is_known_after_the_reconnect() {
    let mut rig = Rig::start().await;
    rig.fill("tx.0", 0, 1, 500_000).await;
    let mut events = rig.broker.events();
    rig.server.set_max_payload(100_000).expect("configuration");
    rig.server.reload().expect("reload");
    // The reload takes a moment, and nobody tells us: until then it is stored, then the server
    // ends the connection, and from then on we know.
    let mut at = 1;
    let outcome = loop {
        let publish = rig
            .publisher
            .publish(message("tx.0", at, payload(at + 1, 500_000)));
        match within(publish).await {
            Outcome::Stored { .. } => at += 1,
            outcome => break outcome,
        }
    };
    assert_eq!(
        outcome,
        Outcome::Unknown {
            reason: UnknownReason::Disconnected
        }
    );
    while within(events.recv()).await.expect("an event") != BrokerEvent::Connected {}
    assert_eq!(rig.broker.max_payload(), 100_000);
    let again = rig
        .publisher
        .publish(message("tx.0", at, payload(at + 1, 500_000)))
        .await;
    assert_eq!(
        again,
        Outcome::TooLarge {
            limit: Some(100_000)
        }
    );
    let last = assert_contiguous(&rig).await;
    rig.fill("tx.0", last, 5, 90_000).await;
}

#[tokio::test]
async fn b45_a_slow_server_never_makes_more_wait_than_the_limit() {
    let rig = Rig::start().await;
    rig.server.pause().expect("pause");
    let limit = trellara_jetstream::publish::Publisher::MAX_IN_FLIGHT;
    let sent: Vec<_> = (0..limit as u64 + 100)
        .map(|at| {
            rig.publisher
                .publish(message("tx.0", at, payload(at + 1, 16)))
        })
        .collect();
    assert_eq!(rig.publisher.in_flight(), limit);
    rig.server.resume().expect("resume");
    let outcomes = within(join_all(sent)).await;
    let too_many = Outcome::Unknown {
        reason: UnknownReason::TooManyInFlight,
    };
    for (outcome, sequence) in outcomes.into_iter().zip(1..) {
        let expected = if sequence <= limit as u64 {
            stored(sequence)
        } else {
            too_many.clone()
        };
        assert_eq!(outcome, expected, "{sequence}");
    }
    assert_eq!(rig.publisher.in_flight(), 0);
    assert_eq!(rig.last_sequence().await, limit as u64);
}

#[tokio::test]
async fn a_missing_stream_is_named() {
    let rig = Rig::start().await;
    topology::delete(&rig.broker, &rig.stream)
        .await
        .expect("delete");
    let outcome = within(rig.publisher.publish(message("tx.0", 0, payload(1, 10)))).await;
    assert_eq!(outcome, Outcome::NoStream);
}

/// Why `Publisher::fencing_pipelines` exists: this is what happens without.
#[tokio::test]
async fn an_unfenced_pipeline_slips_in_by_coincidence() {
    let rig = Rig::start().await;
    rig.fill("tx.0", 0, 10, 10).await;
    let other = trellara_jetstream::publish::Publisher::new(&rig.broker, &rig.stream);
    let marker = message("mark", 10, Bytes::from_static(b"marker"));
    assert_eq!(other.publish(marker).await, stored(11));
    let zombie: Vec<_> = (10..13)
        .map(|at| {
            rig.publisher
                .publish(message("tx.0", at, payload(at + 1, 10)))
        })
        .collect();
    let outcomes = within(join_all(zombie)).await;
    let refused = Outcome::WrongSequence {
        actual: Some(StreamSequence(11)),
    };
    assert_eq!(outcomes, [refused, stored(12), stored(13)]);
}

#[tokio::test]
async fn an_answer_that_never_comes_has_an_end() {
    let rig = Rig::start().await;
    rig.server.pause().expect("pause");
    let began = std::time::Instant::now();
    let outcome = rig
        .publisher
        .publish(message("tx.0", 0, payload(1, 10)))
        .await;
    assert!(matches!(outcome, Outcome::Unknown { .. }), "{outcome:?}");
    // The pings notice it before the deadline of the answer.
    assert!(
        began.elapsed() < Duration::from_secs(29),
        "{:?}",
        began.elapsed()
    );
    rig.server.resume().expect("resume");
}
