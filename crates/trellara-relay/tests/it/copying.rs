//! What a target sees that orders a copy and reads it: orders that are repeated, frames in their
//! chain, parts that are whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;
use trellara_envelope::{
    CopyBegin, CopyEvent, CopyFrame, CopyOrder, CopyTable, CopyWanted, FrameDigest, Incarnation,
    LaneEpoch, StreamSequence,
};
use trellara_jetstream::consume::{Consumer, ConsumerOptions};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::{Broker, trim};

use crate::world::{Relay, TARGET, World};

const PATIENCE: Duration = Duration::from_secs(60);

/// The copy of one table by one writer under one generation.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    pub(crate) begin: Option<CopyBegin>,
    open: BTreeMap<u32, Vec<u8>>,
    pub(crate) parts: u32,
    pub(crate) bytes: u64,
    pub(crate) rows: Vec<String>,
    pub(crate) is_ended: bool,
    pub(crate) failed: Option<(String, bool)>,
}

/// Table, generation, writer.
pub(crate) type Of = (String, u32, Incarnation);

/// Orders on one side, reads on the other.
pub(crate) struct Target {
    broker: Broker,
    order: Arc<Mutex<CopyOrder>>,
    _ordering: AbortOnDropHandle<()>,
    consumer: Option<Consumer>,
    stream: String,
    subject: String,
    pub(crate) copies: BTreeMap<Of, Copied>,
    chains: BTreeMap<Incarnation, (u64, FrameDigest)>,
    pub(crate) frames: Vec<(StreamSequence, CopyFrame)>,
    /// Removes what was read at once.
    pub(crate) trims: bool,
    is_middle: bool,
    /// Frames may be missing in the chain.
    pub(crate) has_holes: bool,
}

pub(crate) fn wanted(name: &str, generation: u32) -> CopyWanted {
    CopyWanted {
        table: CopyTable {
            schema: "public".to_owned(),
            name: name.to_owned(),
        },
        generation,
    }
}

/// What the relay copies now, of so many tables, is in the stream.
pub(crate) async fn written(relay: &Relay, tables: usize) {
    relay
        .until("over and stored", |status| {
            status.copy.tables_over == tables && status.copy.snapshot_since.is_none()
        })
        .await;
}

impl Target {
    /// Orders these tables from now on, several times a second.
    pub(crate) fn new(world: &World, tables: &[&str]) -> Target {
        let flow = world.options.flow.clone();
        let order = CopyOrder {
            flow: flow.clone(),
            target: TARGET.to_owned(),
            epoch: LaneEpoch(1),
            holds_lane: true,
            wanted: tables.iter().map(|name| wanted(name, 1)).collect(),
            trimmed_to: 0,
            removed: Vec::new(),
            mac: Vec::new(),
        };
        let order = Arc::new(Mutex::new(order));
        let ordering = tokio::spawn(repeat(
            world.broker.clone(),
            flow.copy_order_subject(),
            order.clone(),
        ));
        Target {
            broker: world.broker.clone(),
            order,
            _ordering: AbortOnDropHandle::new(ordering),
            consumer: None,
            stream: flow.copy_stream(),
            subject: flow.copy_subject(),
            copies: BTreeMap::new(),
            chains: BTreeMap::new(),
            frames: Vec::new(),
            trims: false,
            is_middle: false,
            has_holes: false,
        }
    }

    pub(crate) fn order(&self, change: impl FnOnce(&mut CopyOrder)) {
        change(&mut self.order.lock().expect("not poisoned"));
    }

    /// The first frame may be any: those before it are gone.
    pub(crate) fn begins_anywhere(&mut self) {
        self.is_middle = true;
    }

    /// Reads on until it is as wanted.
    pub(crate) async fn read_until(&mut self, what: &str, is_there: impl Fn(&Target) -> bool) {
        let reading = async {
            while !is_there(self) {
                self.read().await;
            }
        };
        if tokio::time::timeout(PATIENCE, reading).await.is_err() {
            let seen: Vec<_> = self
                .copies
                .iter()
                .map(|(of, copied)| (of, copied.rows.len(), copied.is_ended, &copied.failed))
                .collect();
            panic!(
                "{what} did not come; {} frames, {seen:?}",
                self.frames.len()
            );
        }
    }

    /// The first copy of a table fails, and the one that is ordered then comes to its end.
    pub(crate) async fn is_copied_anew(&mut self, name: &str) {
        self.read_until("its failure", |target| target.failed(name, 1).is_some())
            .await;
        self.order(|order| order.wanted = vec![wanted(name, 2)]);
        self.read_until("the next copy", |target| target.is_ended(name, 2))
            .await;
    }

    async fn read(&mut self) {
        if self.consumer.is_none() {
            self.consumer = Some(self.open().await);
        }
        let consumer = self.consumer.as_mut().expect("opened above");
        let delivery = consumer.next().await.expect("a delivery");
        let sequence = delivery.sequence;
        let frame = CopyFrame::decode(&delivery.payload).expect("a copy frame");
        self.accept(sequence, frame, FrameDigest::of(&delivery.payload));
        if self.trims {
            let below = StreamSequence(sequence.0 + 1);
            let trimmed = trim::purge_to(&self.broker, &self.stream, &self.subject, below).await;
            trimmed.expect("trimmed");
            self.order(|order| order.trimmed_to = sequence.0);
        }
    }

    /// The stream comes with the first order; nobody says when.
    async fn open(&self) -> Consumer {
        loop {
            let options = ConsumerOptions::new(
                &self.stream,
                "test_copy",
                vec![self.subject.clone()],
                StreamSequence(1),
            );
            if let Ok(consumer) = Consumer::open(&self.broker, options).await {
                return consumer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn accept(&mut self, sequence: StreamSequence, frame: CopyFrame, digest: FrameDigest) {
        let header = &frame.header;
        let expected = self.chains.get(&header.writer).copied();
        let expected =
            expected.map_or((0, FrameDigest::default()), |(at, digest)| (at + 1, digest));
        if !std::mem::take(&mut self.is_middle) && !self.has_holes {
            assert_eq!((header.ordinal, header.previous), expected, "the chain");
        }
        self.chains.insert(header.writer, (header.ordinal, digest));
        let of = (header.table.name.clone(), header.generation, header.writer);
        let copied = self.copies.entry(of).or_default();
        assert!(!copied.is_ended && copied.failed.is_none(), "{frame:?}");
        match &frame.event {
            CopyEvent::Begin(begin) => {
                assert_eq!(copied.begin.replace(begin.clone()), None, "begun twice");
            }
            CopyEvent::Chunk { part, number } => {
                let bytes = copied.open.entry(*part).or_default();
                assert_eq!(bytes.is_empty(), *number == 0);
                bytes.extend_from_slice(&frame.payload);
            }
            CopyEvent::Part {
                part,
                rows,
                bytes,
                digest,
                ..
            } => {
                let whole = copied.open.remove(part).expect("its chunks came");
                assert_eq!(FrameDigest::of(&whole), *digest);
                assert_eq!(whole.len() as u64, *bytes);
                let text = String::from_utf8(whole).expect("UTF-8");
                assert!(text.ends_with('\n'), "whole rows");
                assert_eq!(text.lines().count() as u64, *rows);
                copied.rows.extend(text.lines().map(str::to_owned));
                copied.parts += 1;
                copied.bytes += bytes;
            }
            CopyEvent::End { parts, rows, bytes } => {
                assert!(copied.open.is_empty() && copied.begin.is_some());
                let had = (copied.parts, copied.rows.len() as u64, copied.bytes);
                assert_eq!((*parts, *rows, *bytes), had);
                copied.is_ended = true;
            }
            CopyEvent::Failed {
                reason, lasting, ..
            } => {
                copied.failed = Some((reason.clone(), *lasting));
            }
        }
        self.frames.push((sequence, frame));
    }

    /// Writes into the copy stream, as another relay would.
    pub(crate) async fn write(&self, last: StreamSequence, frame: &CopyFrame) {
        let outgoing = Outgoing {
            subject: self.subject.clone(),
            payload: frame.encode(),
            expected_last: last,
            message_id: None,
            headers: Vec::new(),
        };
        let outcome = Publisher::new(&self.broker, &self.stream)
            .publish(outgoing)
            .await;
        let sequence = StreamSequence(last.0 + 1);
        assert_eq!(outcome, Outcome::Stored { sequence });
    }

    /// The newest writer's copy of this table.
    pub(crate) fn copied(&self, name: &str, generation: u32) -> Option<&Copied> {
        let range = (name.to_owned(), generation, Incarnation(0))
            ..=(name.to_owned(), generation, Incarnation(u64::MAX));
        self.copies
            .range(range)
            .next_back()
            .map(|(_, copied)| copied)
    }

    pub(crate) fn is_ended(&self, name: &str, generation: u32) -> bool {
        let copied = self.copied(name, generation);
        copied.is_some_and(|copied| copied.is_ended)
    }

    pub(crate) fn failed(&self, name: &str, generation: u32) -> Option<(String, bool)> {
        self.copied(name, generation)?.failed.clone()
    }

    /// What is in, sorted.
    pub(crate) fn rows(&self, name: &str, generation: u32) -> Vec<String> {
        let mut rows = self.copied(name, generation).expect("a copy").rows.clone();
        rows.sort();
        rows
    }
}

async fn repeat(broker: Broker, subject: String, order: Arc<Mutex<CopyOrder>>) {
    let mut ticker = tokio::time::interval(Duration::from_millis(200));
    loop {
        ticker.tick().await;
        let bytes = order.lock().expect("not poisoned").encode();
        // A lost one is followed by the next.
        let _ = broker.publish_core(&subject, bytes.into()).await;
    }
}

/// What the source's own COPY says, sorted.
pub(crate) fn source_rows(world: &World, query: &str) -> Vec<String> {
    let text = world.sql(&format!(
        "SET datestyle = iso; SET extra_float_digits = 3; COPY ({query}) TO STDOUT"
    ));
    let mut rows: Vec<String> = text
        .lines()
        .filter(|line| *line != "SET")
        .map(str::to_owned)
        .collect();
    rows.sort();
    rows
}
