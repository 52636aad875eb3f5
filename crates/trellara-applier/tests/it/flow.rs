//! A target database, a broker and a flow whose frames are written by hand.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;
use trellara_applier::lane::{self, FlowIntent, FlowState};
use trellara_applier::{
    ApplierOptions, ApplierSnapshot, ApplierStatus, Checkpoint, HaltPolicy, StreamIdentity,
    Transport, ledger, schema,
};
use trellara_envelope::{
    Body, BundleEntry, Chunk, CommitTime, FlowName, Frame, FrameDigest, FrameOrdinal, Genesis,
    Halt, Header, Heartbeat, Incarnation, Lane, LedgerOrdinal, Lsn, Manifest, Marker, Oid,
    PositionReport, RunningDigest, SourceHistory, StreamSequence, SystemId, Timeline,
    TransactionIdentity, Xid, records,
};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::topology::{self, StreamSpec};
use trellara_jetstream::{Broker, CoreSubscription, NatsOptions};
use trellara_local::{NatsServer, PostgresServer, shared};
use trellara_postgres::{ConnectOptions, Environment};

/// Longest wait for anything in these tests; a test that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

static SERVERS: Mutex<Vec<PostgresServer>> = Mutex::new(Vec::new());
static BROKER: Mutex<Option<NatsServer>> = Mutex::new(None);
static NUMBER: AtomicU32 = AtomicU32::new(0);

fn postgres_url(version: u32) -> String {
    if let Ok(url) = std::env::var(shared::postgres_variable(version, shared::SIDES[1])) {
        return url;
    }
    let mut own = SERVERS.lock().unwrap();
    if !own.iter().any(|server| server.version() == version) {
        own.push(shared::start_postgres(version).unwrap());
    }
    let server = own.iter().find(|server| server.version() == version);
    server.unwrap().url("postgres")
}

pub(crate) fn nats_url() -> String {
    if let Ok(url) = std::env::var(shared::NATS_VARIABLE) {
        return url;
    }
    let mut own = BROKER.lock().unwrap();
    own.get_or_insert_with(|| NatsServer::start(&shared::nats()).unwrap())
        .url()
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A fresh target database with the schema in it.
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) client: Client,
    pub(crate) name: String,
}

impl Target {
    pub(crate) async fn new(version: u32) -> Self {
        Self::with(version, "").await
    }

    /// The same with options of CREATE DATABASE.
    async fn with(version: u32, options: &str) -> Self {
        let target = Self::bare_with(version, options).await;
        let mut client = connect(&target.url).await;
        schema::install(&mut client).await.unwrap();
        target
    }

    pub(crate) async fn bare(version: u32) -> Self {
        Self::bare_with(version, "").await
    }

    async fn bare_with(version: u32, options: &str) -> Self {
        let url = postgres_url(version);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("a{:x}_{number:x}", std::process::id());
        let admin = connect(&url).await;
        admin
            .batch_execute(&format!("CREATE DATABASE {name} {options}"))
            .await
            .unwrap();
        let url = format!("{}/{name}", url.rsplit_once('/').unwrap().0);
        let client = connect(&url).await;
        client
            .batch_execute("CREATE TABLE public.t (id integer, v text)")
            .await
            .unwrap();
        Self { url, client, name }
    }

    /// How often each id is in the keyless table, as `id:count` in order.
    pub(crate) async fn rows(&self) -> String {
        let rows = self
            .client
            .query(
                "SELECT id, count(*) FROM public.t GROUP BY id ORDER BY id",
                &[],
            )
            .await
            .unwrap();
        rows.iter()
            .map(|row| format!("{}:{}", row.get::<_, i32>(0), row.get::<_, i64>(1)))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Waits until somebody waits for a lock in this database.
    pub(crate) async fn blocked(&self) {
        let wait = async {
            let sql = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database \
                       WHERE NOT granted AND datname = current_database()";
            while self
                .client
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("a wait");
    }

    /// Genesis and intent of a flow that is set up in no stream.
    pub(crate) async fn set_up(&self, flow: &FlowName, genesis: &Checkpoint) {
        let intent = FlowIntent {
            state: FlowState::Ready,
            slot: flow.slot(),
            publication: flow.slot(),
            stream: flow.stream(),
            start: Some((genesis.source, genesis.end_lsn)),
        };
        lane::record_intent(&self.client, flow, Lane(0), &intent)
            .await
            .unwrap();
        assert!(
            ledger::write_genesis(&self.client, flow, Lane(0), genesis)
                .await
                .unwrap()
        );
    }

    pub(crate) async fn checkpoint(&self, flow: &FlowName) -> Checkpoint {
        ledger::checkpoint(&self.client, flow, Lane(0))
            .await
            .unwrap()
            .unwrap()
    }
}

pub(crate) fn history() -> SourceHistory {
    SourceHistory {
        system: SystemId(7_412_345_678_901_234_567),
        timeline: Timeline(1),
        switches: Vec::new(),
    }
}

/// A checkpoint behind a genesis frame that is in no stream.
pub(crate) fn genesis_checkpoint(flow: &FlowName) -> Checkpoint {
    Checkpoint {
        ordinal: LedgerOrdinal(0),
        source: history().source(),
        end_lsn: Lsn(0x100),
        transaction_end_lsn: Lsn(0x100),
        transport: Transport {
            stream: StreamIdentity {
                name: flow.stream(),
                created: "2026-11-30T08:00:00Z".into(),
            },
            sequence: StreamSequence(1),
            incarnation: Incarnation(0),
            ordinal: FrameOrdinal(0),
            digest: FrameDigest([7; 16]),
        },
    }
}

/// The identity of the transaction that [`Flow::bundle`] lets end there.
pub(crate) fn identity_of(end: u64) -> TransactionIdentity {
    TransactionIdentity {
        source: history().source(),
        commit_lsn: Lsn(end - 8),
        xid: Xid(end as u32),
        commit_time: CommitTime(end as i64),
    }
}

/// The records of a transaction that inserts `(id, 'x')` for each id.
pub(crate) fn inserts(ids: &[i32], xid: Option<u32>) -> Vec<u8> {
    inserts_of("x", ids, xid)
}

/// The same with another value in each row.
fn inserts_of(value: &str, ids: &[i32], xid: Option<u32>) -> Vec<u8> {
    let mut out = Vec::new();
    let prefix = |kind: u8| {
        let mut message = vec![kind];
        if let Some(xid) = xid {
            message.extend(xid.to_be_bytes());
        }
        message
    };
    let mut relation = prefix(b'R');
    relation.extend(4711u32.to_be_bytes());
    relation.extend(b"public\0t\0n");
    relation.extend(2u16.to_be_bytes());
    for (name, oid) in [(&b"id\0"[..], 23u32), (b"v\0", 25)] {
        relation.push(0);
        relation.extend(name);
        relation.extend(oid.to_be_bytes());
        relation.extend((-1i32).to_be_bytes());
    }
    records::push(&mut out, &relation);
    for id in ids {
        let mut insert = prefix(b'I');
        insert.extend(4711u32.to_be_bytes());
        insert.push(b'N');
        insert.extend(2u16.to_be_bytes());
        for value in [id.to_string().as_str(), value] {
            insert.push(b't');
            insert.extend((value.len() as u32).to_be_bytes());
            insert.extend(value.as_bytes());
        }
        records::push(&mut out, &insert);
    }
    out
}

/// A flow set up between a stream and a target, and the hand that writes its frames.
pub(crate) struct Flow {
    pub(crate) name: FlowName,
    pub(crate) target: Target,
    pub(crate) broker: Broker,
    publisher: Publisher,
    pub(crate) sequence: u64,
    ordinal: u64,
    pub(crate) incarnation: u64,
    previous: FrameDigest,
    pub(crate) position: u64,
    /// Where the oldest open transaction begins, when there is one.
    pub(crate) open_from: Option<u64>,
    /// Transactions from here on have commit times of another course of events.
    pub(crate) other_course: i64,
    /// Where it comes from, as what is published next says.
    pub(crate) history: SourceHistory,
    reports: CoreSubscription,
}

impl Flow {
    pub(crate) async fn new(version: u32) -> Self {
        Self::with_broker(version, nats_url()).await
    }

    /// The same with one bundle in it, and an applier that has applied it and runs.
    pub(crate) async fn applied(version: u32, transactions: &[&[i32]]) -> (Self, Running) {
        let mut flow = Self::new(version).await;
        flow.marker().await;
        flow.bundle(transactions).await;
        let applier = flow.start();
        flow.caught_up().await;
        (flow, applier)
    }

    /// A flow on a broker that the test may stop.
    pub(crate) async fn with_broker(version: u32, url: String) -> Self {
        Self::on(Target::new(version).await, url).await
    }

    /// A flow into a database whose encoding has fewer characters than UTF-8.
    pub(crate) async fn into_latin1(version: u32) -> Self {
        let latin = "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'";
        Self::on(Target::with(version, latin).await, nats_url()).await
    }

    pub(crate) async fn on(target: Target, url: String) -> Self {
        let name: FlowName = target.name.parse().unwrap();
        let options = NatsOptions {
            url,
            ..NatsOptions::default()
        };
        let broker = Broker::connect(&options).await.unwrap();
        let identity = schema::installed(&target.client).await.unwrap();
        let identity = identity.expect("a schema");
        let mut spec = StreamSpec::new(name.clone(), 64 << 20);
        spec.target = Some(identity.registration());
        let facts = topology::create(&broker, &spec).await.unwrap();
        let reports = broker
            .subscribe_core(&name.position_subject())
            .await
            .unwrap();
        let mut flow = Self {
            publisher: Publisher::new(&broker, &name.stream()),
            name,
            target,
            broker,
            sequence: 0,
            ordinal: u64::MAX,
            incarnation: 0,
            previous: FrameDigest::default(),
            position: 0x100,
            open_from: None,
            other_course: 0,
            history: history(),
            reports,
        };
        let genesis = flow.genesis().await;
        let mut checkpoint = genesis_checkpoint(&flow.name);
        checkpoint.transport.digest = genesis;
        checkpoint.transport.stream.created = facts.created;
        flow.target.set_up(&flow.name, &checkpoint).await;
        flow
    }

    async fn genesis(&mut self) -> FrameDigest {
        let body = Body::Genesis(Genesis {
            history: history(),
            slot: self.name.slot(),
            publication: self.name.slot(),
            consistent_point: Lsn(self.position),
            copy_epoch: 0,
            continues_at: Lsn(self.position),
        });
        self.publish(body, self.position, Bytes::new()).await
    }

    pub(crate) async fn marker(&mut self) -> FrameDigest {
        self.incarnation += 1;
        let body = Body::Marker(Marker {
            history: self.history.clone(),
            continues_at: Lsn(self.position),
            publication: Oid(1),
            publication_flags: 15,
            members_digest: FrameDigest::default(),
            members: Vec::new(),
        });
        self.publish(body, self.position, Bytes::new()).await
    }

    /// A standby is promoted that had everything below `left_at`.
    pub(crate) async fn promote(&mut self, left_at: u64) {
        let left = self.history.timeline;
        self.history.timeline = Timeline(left.0 + 1);
        self.history.switches.push((left, Lsn(left_at)));
        self.marker().await;
    }

    pub(crate) async fn heartbeat(&mut self, position: u64) -> FrameDigest {
        let body = Body::Heartbeat(Heartbeat {
            source_time: CommitTime(0),
        });
        self.publish(body, position, Bytes::new()).await
    }

    /// A bundle of transactions, each inserting its ids; transaction `n` ends 0x10 behind the one
    /// before.
    pub(crate) async fn bundle(&mut self, transactions: &[&[i32]]) -> FrameDigest {
        let transactions: Vec<(Vec<u8>, u32)> = transactions
            .iter()
            .map(|ids| (inserts(ids, None), ids.len() as u32))
            .collect();
        self.bundle_of(&transactions).await
    }

    /// The same of records, with their number of changes.
    pub(crate) async fn bundle_of(&mut self, transactions: &[(Vec<u8>, u32)]) -> FrameDigest {
        let mut entries = Vec::new();
        let mut payload = Vec::new();
        let mut end = self.position;
        for (records, changes) in transactions {
            end += 0x10;
            entries.push(BundleEntry {
                source: self.history.source(),
                commit_lsn: Lsn(end - 8),
                end_lsn: Lsn(end),
                xid: Xid(end as u32),
                commit_time: CommitTime(end as i64 + self.other_course),
                bytes: records.len() as u32,
                changes: *changes,
            });
            payload.extend(records);
        }
        self.publish(Body::Bundle(entries), end, Bytes::from(payload))
            .await
    }

    /// Two transactions, and between them a bundle of another course of events by a writer that had
    /// lost the stream; returns its sequence.
    pub(crate) async fn overtaken(&mut self, garbage: &[&[i32]]) -> StreamSequence {
        self.marker().await;
        self.bundle(&[&[1]]).await;
        let position = self.position;
        self.marker().await;
        self.incarnation -= 1;
        self.other_course = 1;
        self.bundle(garbage).await;
        let overtaken = StreamSequence(self.sequence);
        self.incarnation += 1;
        self.other_course = 0;
        self.go_back_to(position);
        self.marker().await;
        self.bundle(&[&[2]]).await;
        overtaken
    }

    /// A chunk of a transaction that stays open; it inserts row 1.
    pub(crate) async fn open(&mut self, xid: u32) {
        self.open_from.get_or_insert(self.sequence + 1);
        let records = inserts(&[1], Some(xid));
        let mut running = RunningDigest::new();
        running.update(&records);
        let chunk = Chunk {
            xid: Xid(xid),
            number: 0,
            running: running.current(),
        };
        let at = self.position;
        self.publish(Body::Chunk(chunk), at, Bytes::from(records))
            .await;
    }

    /// The manifest of the transaction that [`Flow::open`] began, whose chunk is at `first`.
    pub(crate) async fn commit_open(&mut self, xid: u32, first: u64) {
        let mut running = RunningDigest::new();
        running.update(&inserts(&[1], Some(xid)));
        let manifest = self.manifest(Xid(xid), first, 1, &running, 1);
        let end = manifest.end_lsn.0;
        self.open_from = None;
        self.publish(Body::Manifest(Box::new(manifest)), end, Bytes::new())
            .await;
    }

    /// What closes a transaction of `chunks` chunks that ends next.
    fn manifest(
        &self,
        xid: Xid,
        first: u64,
        chunks: u64,
        running: &RunningDigest,
        changes: u64,
    ) -> Manifest {
        let end = self.position + 0x10;
        Manifest {
            source: self.history.source(),
            commit_lsn: Lsn(end - 8),
            end_lsn: Lsn(end),
            xid,
            commit_time: CommitTime(end as i64),
            streamed: true,
            chunks,
            bytes: running.bytes(),
            first_sequence: StreamSequence(first),
            running: running.current(),
            aborts: 0,
            last_abort: None,
            aborts_digest: trellara_envelope::AbortedSet::EMPTY.digest(),
            relations: Vec::new(),
            changes,
        }
    }

    /// The chunks of a transaction and its manifest, which `damage` may change.
    pub(crate) async fn large(&mut self, ids: &[i32], damage: impl FnOnce(&mut Manifest)) {
        self.large_of("x", ids, 50, damage).await;
    }

    /// The same with another value in each row, and chunks of that many bytes.
    pub(crate) async fn large_of(
        &mut self,
        value: &str,
        ids: &[i32],
        chunk: usize,
        damage: impl FnOnce(&mut Manifest),
    ) {
        let xid = Xid(900 + self.position as u32);
        let records = inserts_of(value, ids, Some(xid.0));
        let mut running = RunningDigest::new();
        let first = self.sequence + 1;
        let pieces: Vec<&[u8]> = records.chunks(chunk).collect();
        for (number, piece) in pieces.iter().enumerate() {
            running.update(piece);
            let chunk = Chunk {
                xid,
                number: number as u64,
                running: running.current(),
            };
            let at = self.position;
            self.publish(Body::Chunk(chunk), at, Bytes::copy_from_slice(piece))
                .await;
        }
        let (chunks, changes) = (pieces.len() as u64, ids.len() as u64);
        let mut manifest = self.manifest(xid, first, chunks, &running, changes);
        let end = manifest.end_lsn.0;
        damage(&mut manifest);
        self.publish(Body::Manifest(Box::new(manifest)), end, Bytes::new())
            .await;
    }

    async fn publish(&mut self, body: Body, position: u64, payload: Bytes) -> FrameDigest {
        let positional = body.kind().is_positional();
        self.ordinal = self.ordinal.wrapping_add(1);
        let frame = Frame {
            header: Header {
                flow: self.name.clone(),
                source: self.history.source(),
                incarnation: Incarnation(self.incarnation),
                ordinal: FrameOrdinal(self.ordinal),
                previous: self.previous,
                position: Lsn(position),
                keep_from: StreamSequence(self.open_from.unwrap_or(self.sequence + 1)),
                lane: Lane(0),
                follows: Lsn(self.position),
                lanes: Vec::new(),
                mac: Vec::new(),
            },
            body,
            payload,
        };
        let bytes = frame.encode();
        self.previous = FrameDigest::of(&bytes);
        if positional {
            self.position = position;
        }
        self.store(&frame.subject(), bytes).await;
        self.previous
    }

    /// Stores bytes as they are.
    pub(crate) async fn store(&mut self, subject: &str, payload: Bytes) {
        let stored = self
            .publisher
            .publish(Outgoing {
                subject: subject.to_owned(),
                payload,
                expected_last: StreamSequence(self.sequence),
                message_id: None,
                headers: Vec::new(),
            })
            .await;
        self.sequence += 1;
        let sequence = StreamSequence(self.sequence);
        assert_eq!(stored, Outcome::Stored { sequence });
    }

    /// The stream is gone, and `setup --new-stream` makes another that continues at `position`.
    pub(crate) async fn replace_stream(&mut self, position: u64) {
        let name = self.name.stream();
        let old = topology::facts(&self.broker, &name).await.unwrap();
        assert!(topology::delete(&self.broker, &name).await.unwrap());
        let mut spec = StreamSpec::new(self.name.clone(), 64 << 20);
        spec.target = old.target().map(str::to_owned);
        topology::create(&self.broker, &spec).await.unwrap();
        self.publisher = Publisher::new(&self.broker, &name);
        self.sequence = 0;
        self.ordinal = u64::MAX;
        self.incarnation = 0;
        self.previous = FrameDigest::default();
        self.position = position;
        self.genesis().await;
    }

    /// Whatever the frames so far say, the next one says it again from `position`.
    pub(crate) fn go_back_to(&mut self, position: u64) {
        self.position = position;
    }

    pub(crate) fn options(&self) -> ApplierOptions {
        let target = ConnectOptions::parse(&self.target.url, &Environment::empty()).unwrap();
        let mut options = ApplierOptions::new(self.name.clone(), target);
        options.halt = HaltPolicy::Exit;
        options
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(self.options())
    }

    pub(crate) fn start_with(&self, options: ApplierOptions) -> Running {
        let cancel = CancellationToken::new();
        let status = Arc::new(ApplierStatus::default());
        let run =
            trellara_applier::run(options, self.broker.clone(), cancel.clone(), status.clone());
        Running {
            cancel,
            status,
            run: tokio::spawn(run),
        }
    }

    /// Waits until a report says that everything up to `position` is durable.
    pub(crate) async fn reported(
        &mut self,
        wanted: impl Fn(&PositionReport) -> bool,
    ) -> PositionReport {
        let wait = async {
            loop {
                let message = self.reports.next().await.expect("a connection");
                let report = PositionReport::decode(&message.payload).unwrap();
                if wanted(&report) {
                    return report;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("a report")
    }

    pub(crate) async fn caught_up(&mut self) -> PositionReport {
        let position = Lsn(self.position);
        self.reported(|report| report.end_lsn >= position).await
    }
}

/// An applier at work.
pub(crate) struct Running {
    pub(crate) cancel: CancellationToken,
    pub(crate) status: Arc<ApplierStatus>,
    run: JoinHandle<Result<(), Halt>>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.ended().await.expect("no halt");
    }

    /// Ends it in the middle of whatever it does.
    pub(crate) async fn kill(self) {
        self.run.abort();
        assert!(self.run.await.is_err(), "it had ended before");
    }

    /// Waits until the status is as wanted.
    pub(crate) async fn shows(&self, wanted: impl Fn(&ApplierSnapshot) -> bool) -> ApplierSnapshot {
        let began = Instant::now();
        loop {
            let status = self.status.snapshot();
            if wanted(&status) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it stays {status:?}");
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn halt(self) -> Halt {
        self.ended().await.expect_err("a halt")
    }

    async fn ended(self) -> Result<(), Halt> {
        tokio::time::timeout(PATIENCE, self.run)
            .await
            .expect("an end")
            .expect("no panic")
    }
}
