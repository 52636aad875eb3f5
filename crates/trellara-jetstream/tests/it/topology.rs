//! Making, checking and changing streams.

use trellara_envelope::StreamSequence;
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::topology::{self, StreamKind, StreamSpec, TARGET_KEY};
use trellara_jetstream::{Broker, BrokerErrorKind};
use trellara_local::{NatsOptions, NatsServer};

use crate::rig::{self, Rig};

async fn start(version: &str) -> (NatsServer, Broker) {
    let options = NatsOptions {
        version: version.to_owned(),
        ..NatsOptions::default()
    };
    let server = NatsServer::start(&options).expect("a nats-server");
    let broker = rig::connect(&server).await;
    (server, broker)
}

fn spec() -> StreamSpec {
    let flow = "shop".parse().expect("a name");
    StreamSpec {
        target: Some("target-1".to_owned()),
        ..StreamSpec::new(flow, 1 << 20)
    }
}

async fn creates_and_recognises(version: &str) {
    let (_server, broker) = start(version).await;
    assert_eq!(
        topology::check(&broker, &spec()).await.expect("check"),
        None
    );
    let missing = topology::facts(&broker, "TRELLARA_shop")
        .await
        .expect_err("none yet");
    assert!(missing.is_missing(), "{missing}");
    let facts = topology::create(&broker, &spec()).await.expect("create");
    assert_eq!(facts.name, "TRELLARA_shop");
    assert_eq!(facts.subjects, ["trellara.shop.>"]);
    assert_eq!((facts.max_bytes, facts.replicas), (Some(1 << 20), 1));
    assert_eq!(facts.target(), Some("target-1"));
    assert!(!facts.created.is_empty());
    // What we made is as it must be, and making it again changes nothing.
    let (again, differences) = topology::check(&broker, &spec())
        .await
        .expect("check")
        .expect("it is there");
    assert_eq!(
        (again.created, differences),
        (facts.created.clone(), vec![])
    );
    assert_eq!(
        topology::create(&broker, &spec())
            .await
            .expect("create")
            .created,
        facts.created
    );
    let facts = topology::register_target(&broker, "TRELLARA_shop", "target-2").await;
    assert_eq!(facts.expect("register").metadata[TARGET_KEY], "target-2");
    let facts = topology::update_max_bytes(&broker, "TRELLARA_shop", 2 << 20).await;
    let facts = facts.expect("update");
    assert_eq!(
        (facts.max_bytes, facts.target()),
        (Some(2 << 20), Some("target-2"))
    );
    assert!(
        topology::delete(&broker, "TRELLARA_shop")
            .await
            .expect("delete")
    );
    assert!(
        !topology::delete(&broker, "TRELLARA_shop")
            .await
            .expect("delete")
    );
}

#[tokio::test]
async fn nats_2_15_1_makes_the_stream_as_told() {
    creates_and_recognises("2.15.1").await;
}

#[tokio::test]
async fn nats_2_14_6_makes_the_stream_as_told() {
    creates_and_recognises("2.14.6").await;
}

#[tokio::test]
async fn nats_2_10_26_makes_the_stream_as_told() {
    creates_and_recognises("2.10.26").await;
}

#[tokio::test]
async fn a_stream_that_can_lose_data_is_refused_by_name_and_left_alone() {
    let (_server, broker) = start("2.15.1").await;
    let body = r#"{"name":"TRELLARA_shop","subjects":["trellara.shop.>"],"storage":"memory",
        "retention":"limits","discard":"old","max_age":3600000000000,"num_replicas":1}"#;
    let timeout = std::time::Duration::from_secs(10);
    let subject = "$JS.API.STREAM.CREATE.TRELLARA_shop";
    broker
        .request_core(subject, body.into(), timeout)
        .await
        .expect("an answer");
    let before = topology::facts(&broker, "TRELLARA_shop")
        .await
        .expect("facts");
    let error = topology::create(&broker, &spec())
        .await
        .expect_err("a refusal");
    assert!(
        matches!(error.kind(), BrokerErrorKind::Refused { .. }),
        "{error}"
    );
    let text = error.to_string();
    for setting in ["storage", "discard", "max_age", "deny_delete"] {
        assert!(text.contains(setting), "{text}");
    }
    assert_eq!(
        topology::facts(&broker, "TRELLARA_shop")
            .await
            .expect("facts"),
        before
    );
}

#[tokio::test]
async fn subjects_that_another_stream_takes_are_refused_with_a_hint() {
    let rig = Rig::start().await;
    let body = r#"{"name":"OTHER","subjects":["trellara.orders.>"],"storage":"file"}"#;
    let timeout = std::time::Duration::from_secs(10);
    let subject = "$JS.API.STREAM.CREATE.OTHER";
    rig.broker
        .request_core(subject, body.into(), timeout)
        .await
        .expect("an answer");
    let flow = "orders".parse().expect("a name");
    let error = topology::create(&rig.broker, &StreamSpec::new(flow, 1 << 20)).await;
    let error = error.expect_err("a refusal");
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("another stream")),
        "{error}"
    );
}

/// The copy's stream stands beside the transactions', with the settings that lose nothing, and
/// goes without touching them.
#[tokio::test]
async fn a_copy_has_a_stream_of_its_own() {
    let (_server, broker) = start("2.15.1").await;
    topology::create(&broker, &spec()).await.expect("create");
    let copy = StreamSpec {
        target: Some("target-1".to_owned()),
        ..StreamSpec::copy("shop".parse().expect("a name"), 1 << 20)
    };
    let facts = topology::create(&broker, &copy).await.expect("create");
    assert_eq!(facts.name, "TRELLARA_shop_COPY");
    assert_eq!(facts.subjects, ["trellara-copy.shop"]);
    assert_eq!(facts.target(), Some("target-1"));
    let checked = topology::check(&broker, &copy).await.expect("check");
    assert_eq!(checked.map(|(_, differences)| differences), Some(vec![]));
    let deleted = topology::delete(&broker, "TRELLARA_shop_COPY").await;
    assert!(deleted.expect("delete"));
    let facts = topology::facts(&broker, "TRELLARA_shop").await;
    assert_eq!(facts.expect("it is there").subjects, ["trellara.shop.>"]);
}

/// What a server leaves that is killed while it deletes a stream: messages without their stream.
fn forget(server: &NatsServer, stream: &str) {
    let accounts = std::fs::read_dir(server.store_dir().join("jetstream")).expect("a store");
    let forgotten = accounts.flatten().filter(|account| {
        let meta = account.path().join("streams").join(stream).join("meta.inf");
        std::fs::remove_file(meta).is_ok()
    });
    assert_eq!(forgotten.count(), 1, "the folder of {stream}");
}

async fn does_not_take_over_what_was_deleted(version: &str) {
    for kind in [StreamKind::Copy, StreamKind::Transactions] {
        let (mut server, broker) = start(version).await;
        let spec = StreamSpec { kind, ..spec() };
        let stream = spec.stream();
        topology::create(&broker, &spec).await.expect("create");
        let subject = match kind {
            StreamKind::Copy => spec.flow.copy_subject(),
            StreamKind::Transactions => spec.flow.beat_subject(),
        };
        let publisher = Publisher::new(&broker, &stream);
        for last in 0..3 {
            let message = Outgoing {
                subject: subject.clone(),
                payload: rig::payload(last, 100),
                expected_last: StreamSequence(last),
                message_id: None,
                headers: Vec::new(),
            };
            let sequence = StreamSequence(last + 1);
            let stored = publisher.publish(message).await;
            assert_eq!(stored, Outcome::Stored { sequence });
        }
        server.kill().expect("kill");
        forget(&server, &stream);
        // It is up, although there is a folder that is no stream.
        server.start_again().expect("start");
        let broker = rig::connect(&server).await;
        let facts = topology::facts(&broker, &stream).await;
        assert!(facts.expect_err("forgotten").is_missing());
        let made = topology::create(&broker, &spec).await;
        match kind {
            StreamKind::Copy => {
                let facts = made.expect("create");
                assert_eq!((facts.messages, facts.last_sequence.0), (0, 0));
            }
            StreamKind::Transactions => {
                let refused = made.expect_err("it has messages");
                let text = refused.to_string();
                assert!(text.contains("3 message(s)"), "{text}");
                // They may be all that there is of them.
                let facts = topology::create(&broker, &spec).await.expect("again");
                assert_eq!((facts.messages, facts.last_sequence.0), (3, 3));
            }
        }
    }
}

#[tokio::test]
async fn what_was_deleted_does_not_come_back_with_2_10() {
    does_not_take_over_what_was_deleted("2.10.26").await;
}

#[tokio::test]
async fn what_was_deleted_does_not_come_back_with_2_15() {
    does_not_take_over_what_was_deleted("2.15.1").await;
}
