//! The records of one transaction, with their keys; values only when asked for.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use trellara_envelope::{
    AbortedSet, Body, FlowName, Frame, FrameDigest, Manifest, RecordKey, RunningDigest,
    TransactionIdentity,
};
use trellara_jetstream::Broker;
use trellara_jetstream::read::{Reader, SubjectReader};
use trellara_pgoutput::{ChangeReader, Message, ReadChange, Relation, TupleRef, Value};

use super::frames::Place;
use crate::exit::{Exit, Failure};

/// One surviving change.
#[derive(Serialize)]
pub(crate) struct Record {
    /// `{source_id}:{commit_lsn}:{xid}:{total_order}`.
    pub(crate) id: String,
    pub(crate) operation: &'static str,
    pub(crate) table: String,
    /// What the row was, as far as the source sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) old: Option<BTreeMap<String, Shown>>,
    /// What the row is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) new: Option<BTreeMap<String, Shown>>,
}

/// A value, or what is known of it when values are not asked for.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Shown {
    Text(Option<String>),
    Length { bytes: usize },
    Unchanged { unchanged: bool },
}

/// Reads one transaction; each record is handed to `each` as it comes, so that memory does not
/// grow with the transaction. The number of records.
pub(crate) async fn read_transaction(
    broker: &Broker,
    flow: &FlowName,
    place: &Place,
    values: bool,
    mut each: impl FnMut(&Record),
) -> Result<u64, Failure> {
    match &place.stored.frame.body {
        Body::Bundle(entries) => {
            let before: usize = entries[..place.entry]
                .iter()
                .map(|entry| entry.bytes as usize)
                .sum();
            let length = entries[place.entry].bytes as usize;
            let payload = &place.stored.frame.payload;
            if before + length > payload.len() {
                return Err(damaged("the bundle's entries are longer than its payload"));
            }
            let none = AbortedSet::new();
            let mut reader = ChangeReader::new(false, &none);
            // A bundle describes each table once, in the first transaction that needs it.
            reader
                .describe(&payload[..before])
                .map_err(|error| damaged(&error.to_string()))?;
            feed(
                &mut reader,
                payload.slice(before..before + length),
                place.identity,
                values,
                &mut each,
            )?;
            reader.finish().map_err(|error| damaged(&error.to_string()))
        }
        Body::Manifest(manifest) => {
            read_chunks(broker, flow, place, manifest, values, &mut each).await
        }
        _ => Err(damaged("it is not a transaction")),
    }
}

async fn read_chunks(
    broker: &Broker,
    flow: &FlowName,
    place: &Place,
    manifest: &Manifest,
    values: bool,
    each: &mut impl FnMut(&Record),
) -> Result<u64, Failure> {
    let stream = flow.stream();
    let aborted = read_aborts(&Reader::new(broker, &stream), manifest).await?;
    let subject = flow.open_subject(place.stored.frame.header.incarnation, manifest.xid);
    let (first, last) = (manifest.first_sequence, place.stored.sequence);
    let mut chunks = SubjectReader::open(broker, &stream, &subject, first, last).await?;
    let mut reader = ChangeReader::new(manifest.streamed, &aborted);
    let mut running = RunningDigest::new();
    let mut number = 0;
    while let Some(message) = chunks.next().await? {
        let frame = Frame::decode(&message.payload).map_err(|error| damaged(&error.to_string()))?;
        let Body::Chunk(chunk) = frame.body else {
            continue;
        };
        running.update(&frame.payload);
        if chunk.number != number || chunk.running != running.current() {
            return Err(damaged(&format!(
                "chunk {number} is not the one that belongs here"
            )));
        }
        number += 1;
        feed(&mut reader, frame.payload, place.identity, values, each)?;
    }
    if number == 0 && manifest.chunks > 0 {
        return Err(Failure::new(
            Exit::Unexpected,
            "its chunks are no longer in the stream: it was applied",
            "nats.history says what is kept after it was applied",
        ));
    }
    if number != manifest.chunks || running.current() != manifest.running {
        return Err(damaged("its chunks are not what the manifest says"));
    }
    reader.finish().map_err(|error| damaged(&error.to_string()))
}

/// The ids that were rolled back: abort frames name one another backwards.
async fn read_aborts(reader: &Reader, manifest: &Manifest) -> Result<AbortedSet, Failure> {
    let mut aborted = AbortedSet::new();
    let mut next = manifest.last_abort;
    for _ in 0..manifest.aborts {
        let Some(sequence) = next else { break };
        let message = reader.get(sequence).await?;
        let Some(message) = message else {
            return Err(damaged("an abort frame is missing"));
        };
        let frame = Frame::decode(&message.payload).map_err(|error| damaged(&error.to_string()))?;
        let Body::Abort(abort) = frame.body else {
            return Err(damaged("an abort frame is another kind of frame"));
        };
        aborted.extend(abort.ranges);
        next = abort.earlier;
    }
    let none = FrameDigest::of(&[]);
    if aborted.digest() != manifest.aborts_digest
        && !(aborted.is_empty() && manifest.aborts_digest == none)
    {
        return Err(damaged(
            "the rolled back parts are not what the manifest says",
        ));
    }
    Ok(aborted)
}

fn feed(
    reader: &mut ChangeReader<'_>,
    piece: Bytes,
    identity: TransactionIdentity,
    values: bool,
    each: &mut impl FnMut(&Record),
) -> Result<(), Failure> {
    reader.feed(piece);
    loop {
        let change = reader
            .next_change()
            .map_err(|error| damaged(&error.to_string()))?;
        let Some(change) = change else { return Ok(()) };
        if let Some(order) = change.total_order {
            each(&record(identity.record_key(order), &change, values));
        }
    }
}

fn record(key: RecordKey, change: &ReadChange<'_>, values: bool) -> Record {
    let relation = |oid| change.relations.get(oid).map(|relation| relation.as_ref());
    let name = |relation: Option<&Relation>| {
        relation.map_or("unknown".to_owned(), |relation| {
            trellara_postgres::quote::qualified(&relation.namespace, &relation.name)
        })
    };
    let row = |tuple: TupleRef<'_>, of: Option<&Relation>| Some(row(tuple, of, values));
    let id = key.to_string();
    match change.message {
        Message::Insert {
            relation: oid, new, ..
        } => {
            let of = relation(oid);
            Record {
                id,
                operation: "insert",
                table: name(of),
                old: None,
                new: row(new, of),
            }
        }
        Message::Update {
            relation: oid,
            old,
            new,
            ..
        } => {
            let of = relation(oid);
            let old = old.and_then(|old| row(old.tuple(), of));
            Record {
                id,
                operation: "update",
                table: name(of),
                old,
                new: row(new, of),
            }
        }
        Message::Delete {
            relation: oid, old, ..
        } => {
            let of = relation(oid);
            Record {
                id,
                operation: "delete",
                table: name(of),
                old: row(old.tuple(), of),
                new: None,
            }
        }
        Message::Truncate { relations, .. } => {
            let tables: Vec<String> = relations.map(|oid| name(relation(oid))).collect();
            Record {
                id,
                operation: "truncate",
                table: tables.join(", "),
                old: None,
                new: None,
            }
        }
        _ => Record {
            id,
            operation: "message",
            table: String::new(),
            old: None,
            new: None,
        },
    }
}

fn row(tuple: TupleRef<'_>, relation: Option<&Relation>, values: bool) -> BTreeMap<String, Shown> {
    let column = |at: usize| {
        let known = relation.and_then(|relation| relation.columns.get(at));
        known.map_or(format!("column {at}"), |column| column.name.clone())
    };
    let shown = |value: Value<'_>| match value {
        Value::Null => Shown::Text(None),
        Value::Unchanged => Shown::Unchanged { unchanged: true },
        Value::Text(text) if values => {
            Shown::Text(Some(String::from_utf8_lossy(text).into_owned()))
        }
        Value::Text(bytes) | Value::Binary(bytes) => Shown::Length { bytes: bytes.len() },
    };
    tuple
        .iter()
        .enumerate()
        .map(|(at, value)| (column(at), shown(value)))
        .collect()
}

fn damaged(what: &str) -> Failure {
    Failure::new(
        Exit::Halted(trellara_envelope::HaltCode::Corrupt),
        format!("damaged: {what}"),
        "the applier refuses it too; restore the stream",
    )
}
