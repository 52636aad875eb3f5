//! A source, a broker, a flow that was set up, and a relay that can be started and stopped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use trellara_envelope::{
    FlowName, Frame, FrameDigest, Genesis, Halt, Lane, LaneEpoch, Lsn, PositionReport,
    StreamSequence,
};
use trellara_jetstream::consume::{Consumer, ConsumerOptions};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::topology::{self, StreamSpec};
use trellara_jetstream::{Broker, NatsOptions};
use trellara_local::{NatsServer, PostgresOptions, PostgresServer};
use trellara_postgres::{
    ConnectOptions, Environment, ReplicationConnection, Session, SnapshotAction,
};
use trellara_relay::{
    Acknowledge, RelayOptions, RelayState, RelayStatus, StatusSnapshot, genesis_frame, run,
};
use trellara_source::publication::{self, Partitions};
use trellara_source::{SourceOptions, slot};

use crate::cases::TABLE;
use crate::chain::Chain;

/// Longer than anything here takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const DATABASE: &str = "postgres";
pub(crate) const TARGET: &str = "target@1";

pub(crate) struct World {
    pub(crate) postgres: PostgresServer,
    pub(crate) nats: NatsServer,
    pub(crate) broker: Broker,
    pub(crate) options: RelayOptions,
    consumer: Option<Consumer>,
    pub(crate) chain: Chain,
}

pub(crate) struct Relay {
    cancel: CancellationToken,
    pub(crate) status: Arc<RelayStatus>,
    task: JoinHandle<Result<(), Halt>>,
}

/// How a test wants its world.
pub(crate) struct Wishes {
    pub(crate) postgres: PostgresOptions,
    pub(crate) nats: trellara_local::NatsOptions,
    pub(crate) acknowledge: Acknowledge,
    pub(crate) max_bytes: u64,
}

impl Default for Wishes {
    fn default() -> Self {
        let version = std::env::var("TRELLARA_TEST_VERSION").ok();
        let version = version.and_then(|text| text.parse().ok()).unwrap_or(18);
        Self {
            postgres: PostgresOptions::version(version),
            nats: trellara_local::NatsOptions::default(),
            acknowledge: Acknowledge::Published,
            max_bytes: 1 << 30,
        }
    }
}

impl World {
    /// Servers, the tables of `schema`, and a flow over everything in schema public.
    pub(crate) async fn new(wishes: Wishes, schema: &str) -> World {
        Self::made(wishes, schema, Partitions::Root).await
    }

    /// The usual one, with partitions published under these names.
    pub(crate) async fn partitioned(schema: &str, partitions: Partitions) -> World {
        Self::made(Wishes::default(), schema, partitions).await
    }

    async fn made(wishes: Wishes, schema: &str, partitions: Partitions) -> World {
        let nats = NatsServer::start(&wishes.nats).expect("a broker");
        let postgres = PostgresServer::start(&wishes.postgres).expect("a source");
        postgres.psql(DATABASE, schema).expect("the schema");
        let flow: FlowName = "shop".parse().expect("a flow name");
        let connect = ConnectOptions::parse(&postgres.url(DATABASE), &Environment::empty())
            .expect("a connection string");
        let source = SourceOptions::new(&flow, connect);
        let mut options = RelayOptions::new(flow, source, wishes.acknowledge);
        options.membership_interval = Duration::from_secs(2);
        let broker = connect_broker(&nats).await;
        let mut world = World {
            postgres,
            nats,
            broker,
            options,
            consumer: None,
            chain: Chain::default(),
        };
        world.set_up(wishes.max_bytes, partitions).await;
        world
    }

    /// The usual world, where a relay runs that has carried the row `(1, a)` of table `t`.
    pub(crate) async fn with_a_row() -> (World, Relay) {
        let mut world = World::new(Wishes::default(), TABLE).await;
        let relay = world.start();
        relay.streaming().await;
        world.sql("INSERT INTO t VALUES (1, 'a')");
        world.read_changes(&["I t (1, a)"]).await;
        (world, relay)
    }

    async fn set_up(&mut self, max_bytes: u64, partitions: Partitions) {
        let source = &self.options.source;
        let session = self.session().await;
        let pattern = ["public.*".parse().expect("a pattern")];
        let tables = publication::expand(&session, &pattern)
            .await
            .expect("tables");
        publication::create(&session, &source.publication, &tables, partitions)
            .await
            .expect("a publication");
        let mut connection = ReplicationConnection::connect(&source.connect)
            .await
            .expect("a replication connection");
        let history = connection.history().await.expect("a history");
        let created = slot::create(
            &mut connection,
            session.server_version(),
            &source.slot,
            SnapshotAction::NoExport,
        )
        .await
        .expect("a slot");
        let flow = &self.options.flow;
        let mut spec = StreamSpec::new(flow.clone(), max_bytes);
        spec.target = Some(TARGET.to_owned());
        topology::create(&self.broker, &spec)
            .await
            .expect("a stream");
        let genesis = genesis_frame(
            flow.clone(),
            Genesis {
                history,
                slot: source.slot.clone(),
                publication: source.publication.clone(),
                consistent_point: created.consistent_point,
                copy_epoch: 0,
                continues_at: created.consistent_point,
            },
        );
        self.publish(StreamSequence(0), &genesis.subject(), genesis.encode())
            .await;
    }

    /// Publishes as anyone might.
    pub(crate) async fn publish(&self, last: StreamSequence, subject: &str, payload: Bytes) {
        assert!(self.try_publish(last, subject, payload).await);
    }

    /// Publishes behind the sequence `last`, unless something else is there by now.
    pub(crate) async fn try_publish(
        &self,
        last: StreamSequence,
        subject: &str,
        payload: Bytes,
    ) -> bool {
        let publisher = Publisher::new(&self.broker, &self.options.flow.stream());
        let outgoing = Outgoing {
            subject: subject.to_owned(),
            payload,
            expected_last: last,
            message_id: None,
            headers: Vec::new(),
        };
        let outcome = publisher.publish(outgoing).await;
        let sequence = StreamSequence(last.0 + 1);
        if matches!(outcome, Outcome::WrongSequence { .. }) {
            return false;
        }
        assert_eq!(outcome, Outcome::Stored { sequence });
        true
    }

    pub(crate) fn start(&self) -> Relay {
        let cancel = CancellationToken::new();
        let status = Arc::new(RelayStatus::new());
        let task = tokio::spawn(run(
            self.options.clone(),
            self.broker.clone(),
            cancel.clone(),
            status.clone(),
        ));
        Relay {
            cancel,
            status,
            task,
        }
    }

    pub(crate) async fn session(&self) -> Session {
        self.options.source.session().await.expect("a session")
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        let answer = self.postgres.psql(DATABASE, sql).expect("SQL");
        answer.trim().to_owned()
    }

    /// The slot's confirmed position.
    pub(crate) fn confirmed(&self) -> Lsn {
        let text = self.sql("SELECT confirmed_flush_lsn FROM pg_replication_slots");
        text.parse().expect("an LSN")
    }

    /// Reads the stream on until the reader's chain is as wanted.
    pub(crate) async fn read_until(&mut self, what: &str, wanted: impl Fn(&Chain) -> bool) {
        if self.consumer.is_none() {
            let flow = &self.options.flow;
            let options = ConsumerOptions::new(
                &flow.stream(),
                "test",
                vec![flow.all_subjects()],
                StreamSequence(1),
            );
            let consumer = Consumer::open(&self.broker, options).await;
            self.consumer = Some(consumer.expect("a consumer"));
        }
        let consumer = self.consumer.as_mut().expect("opened above");
        let chain = &mut self.chain;
        let reading = async {
            while !wanted(chain) {
                let delivery = consumer.next().await.expect("a delivery");
                chain.accept(delivery.sequence, &delivery.payload);
            }
        };
        if tokio::time::timeout(PATIENCE, reading).await.is_err() {
            panic!(
                "{what} did not come; {} frames, changes {:?}",
                self.chain.frames.len(),
                changes(&self.chain)
            );
        }
    }

    /// Reads on until exactly these changes have come.
    pub(crate) async fn read_changes(&mut self, expected: &[&str]) {
        let what = format!("{expected:?}");
        self.read_until(&what, |chain| changes(chain).len() >= expected.len())
            .await;
        assert_eq!(changes(&self.chain), expected);
    }

    /// What an applier would say that has applied everything up to the last frame read.
    pub(crate) fn report(&self) -> PositionReport {
        let (sequence, frame) = self.chain.frames.last().expect("a frame");
        PositionReport {
            flow: self.options.flow.clone(),
            lane: Lane(0),
            source: frame.header.source,
            target: TARGET.to_owned(),
            epoch: LaneEpoch(1),
            incarnation: frame.header.incarnation,
            sequence: *sequence,
            ordinal: frame.header.ordinal,
            digest: FrameDigest::of(&Frame::encode(frame)),
            end_lsn: frame.header.position,
            mac: Vec::new(),
        }
    }

    /// What `nats stream edit --max-msg-size` does.
    pub(crate) async fn edit_max_message(&self, bytes: u64) {
        let stream = self.options.flow.stream();
        self.edit_max_message_of(&stream, bytes).await;
    }

    pub(crate) async fn edit_max_message_of(&self, stream: &str, bytes: u64) {
        let ask = async |verb: &str, payload: Bytes| -> serde_json::Value {
            let subject = format!("$JS.API.STREAM.{verb}.{stream}");
            let answer = self.broker.request_core(&subject, payload, PATIENCE).await;
            let answer: serde_json::Value =
                serde_json::from_slice(&answer.expect("an answer")).expect("JSON");
            assert_eq!(answer["error"], serde_json::Value::Null, "{answer}");
            answer
        };
        let mut config = ask("INFO", Bytes::new()).await["config"].take();
        config["max_msg_size"] = bytes.into();
        ask("UPDATE", config.to_string().into()).await;
    }

    pub(crate) async fn send_report(&self, report: &PositionReport) {
        let subject = self.options.flow.position_subject();
        let payload = Bytes::from(report.encode());
        let sent = self.broker.publish_core(&subject, payload).await;
        sent.expect("a core message");
    }
}

pub(crate) async fn connect_broker(nats: &NatsServer) -> Broker {
    let options = NatsOptions {
        url: nats.url(),
        ..NatsOptions::default()
    };
    Broker::connect(&options)
        .await
        .expect("a connection to the broker")
}

impl Relay {
    /// Waits until the status is as wanted.
    pub(crate) async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&StatusSnapshot) -> bool,
    ) -> StatusSnapshot {
        let mut status = self.status.subscribe();
        let waited = tokio::time::timeout(PATIENCE, status.wait_for(|status| wanted(status))).await;
        match waited {
            Ok(Ok(status)) => status.clone(),
            _ => panic!("never {what}: {:?}", self.status.snapshot()),
        }
    }

    pub(crate) async fn streaming(&self) -> StatusSnapshot {
        self.until("streaming", |status| status.state == RelayState::Streaming)
            .await
    }

    /// Waits for the halt.
    pub(crate) async fn halted(self) -> Halt {
        match tokio::time::timeout(PATIENCE, self.task).await {
            Ok(joined) => joined
                .expect("no panic")
                .expect_err("a halt, not an orderly stop"),
            Err(_) => panic!("no halt: {:?}", self.status.snapshot()),
        }
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        let joined = tokio::time::timeout(PATIENCE, self.task).await;
        joined
            .expect("it stops")
            .expect("no panic")
            .expect("no halt");
    }

    /// Ends it without a word, like a crash of its process.
    pub(crate) async fn kill(self) {
        self.task.abort();
        // Its threads end with the connection, which is dropped with the task.
        let _ = self.task.await;
    }
}

/// All changes, each transaction once: a later incarnation's copy says nothing new.
pub(crate) fn changes(chain: &Chain) -> Vec<String> {
    let mut done = Lsn::ZERO;
    let mut all = Vec::new();
    for transaction in &chain.transactions {
        if transaction.end > done {
            done = transaction.end;
            all.extend(transaction.changes.iter().cloned());
        }
    }
    all
}
