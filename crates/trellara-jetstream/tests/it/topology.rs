//! Making, checking and changing streams.

use trellara_jetstream::topology::{self, StreamSpec, TARGET_KEY};
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
