//! A server, a connection and a stream for one test.

use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::StreamSequence;
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::{self, StreamSpec};
use trellara_jetstream::{Broker, NatsOptions};
use trellara_local::NatsServer;

/// Longest wait for anything in these tests; a test that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) server: NatsServer,
    pub(crate) broker: Broker,
    pub(crate) stream: String,
    pub(crate) publisher: Publisher,
    pub(crate) reader: Reader,
}

impl Rig {
    /// A server of the recommended version with the stream of flow `shop`.
    pub(crate) async fn start() -> Self {
        Self::with(&trellara_local::NatsOptions::default(), 256 << 20).await
    }

    pub(crate) async fn with(options: &trellara_local::NatsOptions, max_bytes: u64) -> Self {
        let server = NatsServer::start(options).expect("a nats-server");
        let broker = connect(&server).await;
        let flow = "shop".parse().expect("a name");
        let facts = topology::create(&broker, &StreamSpec::new(flow, max_bytes)).await;
        let stream = facts.expect("the stream").name;
        let publisher = Publisher::new(&broker, &stream);
        let reader = Reader::new(&broker, &stream);
        Rig {
            server,
            broker,
            stream,
            publisher,
            reader,
        }
    }

    /// Publishes `count` messages of `size` bytes behind `last` on one subject, and waits.
    pub(crate) async fn fill(&self, subject: &str, last: u64, count: u64, size: usize) {
        let sent: Vec<_> = (last..last + count)
            .map(|at| {
                self.publisher
                    .publish(message(subject, at, payload(at + 1, size)))
            })
            .collect();
        for (outcome, at) in futures_util::future::join_all(sent)
            .await
            .into_iter()
            .zip(last..)
        {
            assert_eq!(
                outcome,
                Outcome::Stored {
                    sequence: StreamSequence(at + 1)
                }
            );
        }
    }

    pub(crate) async fn last_sequence(&self) -> u64 {
        let facts = topology::facts(&self.broker, &self.stream).await;
        facts.expect("the stream").last_sequence.0
    }

    /// Kills the server, starts it again and waits for the new connection.
    pub(crate) async fn crash(&mut self) {
        let before = self.generation();
        self.server.kill().expect("kill");
        self.server.start_again().expect("start");
        self.connected_after(before).await;
    }

    pub(crate) fn generation(&self) -> u64 {
        self.broker.connection().borrow().generation
    }

    /// Waits for a connection newer than `before`: the loss of the old one may not be noticed yet.
    pub(crate) async fn connected_after(&self, before: u64) {
        let mut connection = self.broker.connection();
        let again = connection.wait_for(|now| now.connected && now.generation > before);
        within(again).await.expect("the broker lives");
    }
}

pub(crate) async fn connect(server: &NatsServer) -> Broker {
    let options = NatsOptions {
        url: server.url(),
        ..NatsOptions::default()
    };
    Broker::connect(&options).await.expect("a connection")
}

pub(crate) fn message(subject: &str, expected_last: u64, payload: Bytes) -> Outgoing {
    Outgoing {
        subject: format!("trellara.shop.{subject}"),
        payload,
        expected_last: StreamSequence(expected_last),
        message_id: Some(format!("shop:{expected_last}:{}", payload_id())),
        headers: Vec::new(),
    }
}

/// Never the same twice: a message id must not be used again.
fn payload_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Bytes that name their sequence.
pub(crate) fn payload(sequence: u64, size: usize) -> Bytes {
    let mut bytes = sequence.to_be_bytes().to_vec();
    bytes.resize(size.max(8), 0xa5);
    bytes.into()
}

pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("it took too long")
}
