//! The contract suite against every server version we accept.

use trellara_jetstream::Support;
use trellara_jetstream::contract::{self, Promises, StreamLog};
use trellara_jetstream::topology::{self, StreamSpec};
use trellara_local::{NatsOptions, NatsServer};

use crate::rig;

async fn suite(version: &str) {
    let options = NatsOptions {
        version: version.to_owned(),
        ..NatsOptions::default()
    };
    let server = NatsServer::start(&options).expect("a nats-server");
    let broker = rig::connect(&server).await;
    let full = broker.server_version().support() == Support::Full;
    let promises = Promises {
        message_ids: full,
        pipelines_fenced: full,
    };
    contract::run(promises, async |name: &str| {
        let flow = name.parse().expect("a name");
        let facts = topology::create(&broker, &StreamSpec::new(flow, 64 << 20)).await;
        let stream = facts.expect("the stream");
        StreamLog::new(&broker, &stream, &format!("trellara.{name}"))
    })
    .await;
}

#[tokio::test]
async fn nats_2_15_1_keeps_the_contract() {
    suite("2.15.1").await;
}

#[tokio::test]
async fn nats_2_14_6_keeps_the_contract() {
    suite("2.14.6").await;
}

#[tokio::test]
async fn nats_2_12_8_keeps_the_contract() {
    suite("2.12.8").await;
}

#[tokio::test]
async fn nats_2_10_26_keeps_the_contract_without_message_ids() {
    suite("2.10.26").await;
}
