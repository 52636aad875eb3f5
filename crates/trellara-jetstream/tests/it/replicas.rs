//! Three servers, three copies: the same contract, and a leader that goes away.

use futures_util::future::join_all;
use trellara_envelope::StreamSequence;
use trellara_jetstream::contract::{self, Promises, StreamLog};
use trellara_jetstream::publish::{Outcome, Publisher};
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::{self, StreamFacts, StreamSpec};
use trellara_jetstream::{Broker, NatsOptions};
use trellara_local::{NatsOptions as ServerOptions, NatsServer};

use crate::rig::{message, payload, within};

fn cluster(version: &str) -> Vec<NatsServer> {
    let options = ServerOptions {
        version: version.to_owned(),
        ..ServerOptions::default()
    };
    NatsServer::cluster(&options, 3).expect("three servers")
}

async fn connect(servers: &[NatsServer]) -> Broker {
    let urls: Vec<String> = servers.iter().map(NatsServer::url).collect();
    let options = NatsOptions {
        url: urls.join(","),
        ..NatsOptions::default()
    };
    Broker::connect(&options).await.expect("a connection")
}

async fn create(broker: &Broker, flow: &str) -> StreamFacts {
    let flow = flow.parse().expect("a name");
    let spec = StreamSpec {
        replicas: 3,
        ..StreamSpec::new(flow, 64 << 20)
    };
    let created = async {
        loop {
            match topology::create(broker, &spec).await {
                Err(error) if error.is_passing() => {}
                created => break created.expect("the stream"),
            }
        }
    };
    within(created).await
}

#[tokio::test]
async fn three_copies_keep_the_contract() {
    let servers = cluster("2.15.1");
    let broker = connect(&servers).await;
    let promises = Promises {
        message_ids: true,
        pipelines_fenced: false,
    };
    contract::run(promises, async |name: &str| {
        let stream = create(&broker, name).await;
        StreamLog::new(&broker, &stream, &format!("trellara.{name}"))
    })
    .await;
}

#[tokio::test]
async fn a_leader_that_steps_down_leaves_no_hole() {
    let servers = cluster("2.15.1");
    let broker = connect(&servers).await;
    let stream = create(&broker, "shop").await.name;
    let publisher = Publisher::new(&broker, &stream);
    let reader = Reader::new(&broker, &stream);
    let mut at = 0;
    let mut doubts = 0;
    while at < 1000 {
        let window: Vec<_> = (at..at + 100)
            .map(|at| publisher.publish(message("tx.0", at, payload(at + 1, 1000))))
            .collect();
        if at % 200 == 0 {
            let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}");
            let timeout = std::time::Duration::from_secs(10);
            let _ = broker.request_core(&subject, "".into(), timeout).await;
        }
        let outcomes = within(join_all(window)).await;
        doubts += outcomes
            .iter()
            .filter(|o| !matches!(o, Outcome::Stored { .. }))
            .count();
        let end = async {
            loop {
                if let Ok(end) = reader.end().await {
                    break end.last_sequence.0;
                }
            }
        };
        at = within(end).await;
    }
    assert!(doubts > 0, "no step-down was noticed");
    for sequence in 1..=at {
        let found = reader
            .get(StreamSequence(sequence))
            .await
            .expect("get")
            .expect("no hole");
        assert_eq!(found.payload[..8], sequence.to_be_bytes());
    }
}
