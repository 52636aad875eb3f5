//! The hand that writes a copy's frames, and the eyes that see what the target made of them.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use tokio_postgres::Client;
use trellara_envelope::{
    CopyBegin, CopyEvent, CopyFrame, CopyHeader, CopyOrder, CopyTable, FrameDigest, Incarnation,
    Lsn, Oid, RunningDigest, SourceId, StreamSequence,
};
use trellara_jetstream::CoreSubscription;
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::topology::{self, StreamSpec};

use crate::flow::{Flow, PATIENCE, connect, history};

/// Bytes of a chunk as the relay cuts it.
pub(crate) const PART: usize = 512 << 10;

/// A flow whose copy is written by hand.
pub(crate) struct Copy {
    pub(crate) flow: Flow,
    pub(crate) sequence: u64,
    orders: CoreSubscription,
    publisher: Publisher,
    writer: u64,
    ordinal: u64,
    previous: FrameDigest,
    generations: HashMap<String, u32>,
    parts: HashMap<u32, RunningDigest>,
    bytes: u64,
    /// Where its rows come from.
    pub(crate) source: SourceId,
}

/// A row of `trellara.backfill`.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) state: String,
    pub(crate) generation: i32,
    pub(crate) rows: i64,
    pub(crate) parts: Option<i32>,
    pub(crate) reason: String,
}

impl Copy {
    /// With tables of the target.
    pub(crate) async fn of(flow: Flow, ddl: &str) -> Self {
        flow.target
            .client
            .batch_execute(&format!("SET search_path = public; {ddl}"))
            .await
            .unwrap();
        let subject = flow.name.copy_order_subject();
        let orders = flow.broker.subscribe_core(&subject).await.unwrap();
        Self {
            publisher: Publisher::new(&flow.broker, &flow.name.copy_stream()),
            flow,
            sequence: 0,
            orders,
            writer: 1,
            ordinal: 0,
            previous: FrameDigest::default(),
            generations: HashMap::new(),
            parts: HashMap::new(),
            bytes: 0,
            source: history().source(),
        }
    }

    /// Asks for a table, before the flow's lane goes on.
    pub(crate) async fn wants(&self, name: &str) {
        let sql = "INSERT INTO trellara.backfill (flow, schema_name, table_name, initial) \
                   VALUES ($1, 'public', $2, true)";
        let flow = self.flow.name.as_str();
        let client = &self.flow.target.client;
        client.execute(sql, &[&flow, &name]).await.unwrap();
    }

    /// Asks for a table beside a lane that goes on, and does not say so.
    pub(crate) async fn wants_later(&self, name: &str) {
        let sql = "INSERT INTO trellara.backfill (flow, schema_name, table_name, initial) \
                   VALUES ($1, 'public', $2, false)";
        let flow = self.flow.name.as_str();
        let client = &self.flow.target.client;
        client.execute(sql, &[&flow, &name]).await.unwrap();
    }

    /// Forgets the orders that came.
    pub(crate) async fn orders_from_now_on(&mut self) {
        let subject = self.flow.name.copy_order_subject();
        self.orders = self.flow.broker.subscribe_core(&subject).await.unwrap();
    }

    /// Says that somebody changed what is wanted.
    pub(crate) async fn notify(&self) {
        let channel = trellara_applier::channel(&self.flow.name);
        let payload = trellara_applier::backfill::LOOK;
        let notify = "SELECT pg_notify($1, $2)";
        let client = &self.flow.target.client;
        client.execute(notify, &[&channel, &payload]).await.unwrap();
    }

    pub(crate) async fn make_stream(&mut self) {
        let main = topology::facts(&self.flow.broker, &self.flow.name.stream())
            .await
            .unwrap();
        let mut spec = StreamSpec::copy(self.flow.name.clone(), 64 << 20);
        spec.target = main.target().map(str::to_owned);
        topology::create(&self.flow.broker, &spec).await.unwrap();
        self.publisher = Publisher::new(&self.flow.broker, &self.flow.name.copy_stream());
        self.sequence = 0;
    }

    pub(crate) async fn delete_stream(&self) {
        let stream = self.flow.name.copy_stream();
        assert!(topology::delete(&self.flow.broker, &stream).await.unwrap());
    }

    /// Another relay writes from here on.
    pub(crate) fn new_writer(&mut self) {
        self.writer += 1;
        self.ordinal = 0;
        self.previous = FrameDigest::default();
        self.parts.clear();
    }

    /// Lets a relay that was replaced write, which the stream lets through as if by a mishap.
    pub(crate) async fn as_older_writer(&mut self, write: impl AsyncFnOnce(&mut Self)) {
        let ours = (self.writer, self.ordinal, self.previous, self.bytes);
        let parts = std::mem::take(&mut self.parts);
        (self.writer, self.ordinal, self.previous) = (self.writer - 1, 0, FrameDigest::default());
        write(self).await;
        (self.writer, self.ordinal, self.previous, self.bytes) = ours;
        self.parts = parts;
    }

    /// The next frame stands behind one that is in no stream.
    pub(crate) fn lose_a_frame(&mut self) {
        self.ordinal += 1;
        self.previous = FrameDigest([3; 16]);
    }

    pub(crate) async fn begin(&mut self, name: &str, columns: &[&str]) {
        self.parts.clear();
        self.bytes = 0;
        let begin = CopyBegin {
            relation: Oid(4712),
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            snapshot: "100:100:".into(),
            converges_at: Lsn(0x100),
            estimated_rows: 10,
            estimated_bytes: 8192,
        };
        self.event(name, CopyEvent::Begin(begin)).await;
    }

    pub(crate) async fn chunk(&mut self, name: &str, part: u32, number: u32, bytes: &[u8]) {
        self.parts.entry(part).or_default().update(bytes);
        self.bytes += bytes.len() as u64;
        let bytes = Bytes::copy_from_slice(bytes);
        self.frame(name, CopyEvent::Chunk { part, number }, bytes)
            .await;
    }

    pub(crate) async fn part(&mut self, name: &str, part: u32, chunks: u32, rows: u64) {
        let digest = self.parts.remove(&part).unwrap_or_default();
        let event = CopyEvent::Part {
            part,
            chunks,
            rows,
            bytes: digest.bytes(),
            digest: digest.current(),
        };
        self.event(name, event).await;
    }

    pub(crate) async fn whole_part(&mut self, name: &str, part: u32, bytes: &[u8], rows: u64) {
        self.chunk(name, part, 0, bytes).await;
        self.part(name, part, 1, rows).await;
    }

    pub(crate) async fn end(&mut self, name: &str, parts: u32, rows: u64) {
        let bytes = self.bytes;
        self.event(name, CopyEvent::End { parts, rows, bytes })
            .await;
    }

    pub(crate) async fn event(&mut self, name: &str, event: CopyEvent) {
        self.frame(name, event, Bytes::new()).await;
    }

    async fn frame(&mut self, name: &str, event: CopyEvent, payload: Bytes) {
        let frame = CopyFrame {
            header: CopyHeader {
                flow: self.flow.name.clone(),
                source: self.source,
                writer: Incarnation(self.writer),
                ordinal: self.ordinal,
                previous: self.previous,
                table: table(name),
                generation: self.generations.get(name).copied().unwrap_or(1),
                mac: Vec::new(),
            },
            event,
            payload,
        };
        let bytes = frame.encode();
        self.previous = FrameDigest::of(&bytes);
        self.ordinal += 1;
        self.store(bytes).await;
    }

    /// Stores bytes as they are.
    pub(crate) async fn store(&mut self, payload: Bytes) {
        let stored = self
            .publisher
            .publish(Outgoing {
                subject: self.flow.name.copy_subject(),
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

    /// Waits for an order like that.
    pub(crate) async fn ordered(&mut self, wanted: impl Fn(&CopyOrder) -> bool) -> CopyOrder {
        let wait = async {
            loop {
                let message = self.orders.next().await.expect("a connection");
                let order = CopyOrder::decode(&message.payload).unwrap();
                if wanted(&order) {
                    return order;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("an order")
    }

    pub(crate) async fn row(&self, name: &str) -> Row {
        let sql = "SELECT state, generation, rows, parts, coalesce(reason, '') \
                     FROM trellara.backfill WHERE flow = $1 AND table_name = $2";
        let flow = self.flow.name.as_str();
        let row = self
            .flow
            .target
            .client
            .query_one(sql, &[&flow, &name])
            .await
            .unwrap();
        Row {
            state: row.get(0),
            generation: row.get(1),
            rows: row.get(2),
            parts: row.get(3),
            reason: row.get(4),
        }
    }

    async fn until(&self, name: &str, wanted: impl Fn(&Row) -> bool) -> Row {
        let began = Instant::now();
        loop {
            let row = self.row(name).await;
            if wanted(&row) {
                return row;
            }
            assert!(began.elapsed() < PATIENCE, "it stays {row:?}");
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn loaded(&self, name: &str) -> Row {
        // The lane may have passed what the snapshot saw.
        self.until(name, |row| row.state == "loaded" || row.state == "done")
            .await
    }

    pub(crate) async fn failed(&self, name: &str) -> Row {
        self.until(name, |row| row.state == "failed").await
    }

    /// Waits until another copy is wanted, and writes that one from here on.
    pub(crate) async fn generation(&mut self, name: &str, generation: u32) -> Row {
        let wanted = generation.cast_signed();
        let row = self
            .until(name, |row| {
                row.state == "wanted" && row.generation == wanted
            })
            .await;
        self.generations.insert(name.to_owned(), generation);
        row
    }

    /// Waits until rows of the table may come.
    pub(crate) async fn begun(&self, name: &str) {
        self.until(name, |row| row.state == "copying").await;
    }

    /// Another copy of the table is wanted, and the loader has read that.
    pub(crate) async fn replaced(&self, name: &str) {
        let now = self.now().await;
        let sql = "UPDATE trellara.backfill SET state = 'wanted', generation = generation + 1, \
                   writer = NULL, rows = 0, bytes = 0 WHERE flow = $1 AND table_name = $2";
        let flow = self.flow.name.as_str();
        let client = &self.flow.target.client;
        client.execute(sql, &[&flow, &name]).await.unwrap();
        self.notify().await;
        self.reread_since(&now).await;
    }

    pub(crate) async fn now(&self) -> String {
        self.text("SELECT clock_timestamp()::text").await
    }

    /// Waits until the loader has read what is wanted, while something is copied.
    pub(crate) async fn reread_since(&self, now: &str) {
        let read = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity \
              WHERE datname = current_database() AND state = 'idle' AND query_start > '{now}' \
                AND query LIKE 'SELECT p.schema_name, p.table_name, p.part%')::text"
        );
        self.becomes_true(&read).await;
    }

    /// Waits until somebody waits for a lock of the table.
    pub(crate) async fn waiting_for(&self, name: &str) {
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pg_locks \
              WHERE NOT granted AND relation = 'public.{name}'::regclass)::text"
        );
        self.becomes_true(&sql).await;
    }

    pub(crate) async fn becomes_true(&self, sql: &str) {
        let began = Instant::now();
        while self.text(sql).await != "true" {
            assert!(began.elapsed() < PATIENCE, "never true: {sql}");
            tokio::task::yield_now().await;
        }
    }

    /// Waits until so many parts of the table are in.
    pub(crate) async fn parts_in(&self, name: &str, parts: i64) {
        let sql = "SELECT count(*) FROM trellara.backfill_part WHERE table_name = $1";
        let began = Instant::now();
        loop {
            let row = self
                .flow
                .target
                .client
                .query_one(sql, &[&name])
                .await
                .unwrap();
            if row.get::<_, i64>(0) == parts {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{parts} parts do not come in");
            tokio::task::yield_now().await;
        }
    }

    /// Waits until a session copies into the table.
    pub(crate) async fn copying(&self, name: &str) {
        let sql = "SELECT count(*) FROM pg_stat_progress_copy AS p \
                    WHERE p.datname = current_database() AND p.relid = $1::text::regclass";
        let began = Instant::now();
        let name = format!("public.{name}");
        loop {
            let row = self
                .flow
                .target
                .client
                .query_one(sql, &[&name])
                .await
                .unwrap();
            if row.get::<_, i64>(0) > 0 {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "nobody copies");
            tokio::task::yield_now().await;
        }
    }

    /// Waits until everything up to there is gone from the stream.
    pub(crate) async fn trimmed(&mut self, to: u64) {
        self.ordered(|order| order.trimmed_to == to).await;
        assert_eq!(self.first_sequence().await, to + 1);
    }

    pub(crate) async fn first_sequence(&self) -> u64 {
        let stream = self.flow.name.copy_stream();
        let facts = topology::facts(&self.flow.broker, &stream).await.unwrap();
        facts.first_sequence.0
    }

    /// What is in the table, as `id=v` in order.
    pub(crate) async fn values(&self, name: &str) -> String {
        let sql = format!(
            "SELECT coalesce(string_agg(id || '=' || v, ' ' ORDER BY id), '') FROM public.{name}"
        );
        self.text(&sql).await
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        self.flow
            .target
            .client
            .query_one(sql, &[])
            .await
            .unwrap()
            .get(0)
    }

    /// A session in whose open transaction that statement was executed.
    pub(crate) async fn lock(&self, sql: &str) -> Client {
        let client = connect(&self.flow.target.url).await;
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute(sql).await.unwrap();
        client
    }
}

fn table(name: &str) -> CopyTable {
    CopyTable {
        schema: "public".into(),
        name: name.into(),
    }
}
