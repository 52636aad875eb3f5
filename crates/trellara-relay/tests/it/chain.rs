//! A reader of the stream that believes nothing: every frame must fit the one before.

use std::collections::BTreeMap;

use trellara_envelope::{
    AbortedSet, Body, Frame, FrameDigest, FrameKind, FrameOrdinal, Incarnation, Lsn, RunningDigest,
    StreamSequence, TransactionIdentity, Xid,
};
use trellara_pgoutput::{ChangeReader, Message, Value};

/// A transaction as a reader sees it: its changes in text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transaction {
    pub(crate) identity: TransactionIdentity,
    pub(crate) end: Lsn,
    pub(crate) incarnation: Incarnation,
    pub(crate) chunked: bool,
    /// `I table (a, b)`, in order.
    pub(crate) changes: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Chain {
    last: Option<(StreamSequence, FrameOrdinal, FrameDigest)>,
    incarnation: Incarnation,
    pub(crate) position: Lsn,
    chunks: BTreeMap<(Incarnation, Xid), Chunked>,
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) frames: Vec<(StreamSequence, Frame)>,
    /// Where the test itself put frames of a writer that had lost the stream.
    pub(crate) strays: Vec<StreamSequence>,
}

#[derive(Debug, Default)]
struct Chunked {
    first: StreamSequence,
    bytes: Vec<bytes::Bytes>,
    running: RunningDigest,
    aborted: AbortedSet,
    aborts: u64,
    last_abort: Option<StreamSequence>,
}

impl Chain {
    /// Takes the next message of the stream.
    pub(crate) fn accept(&mut self, sequence: StreamSequence, payload: &bytes::Bytes) {
        let frame = Frame::decode(payload).expect("a frame");
        let header = &frame.header;
        if self.strays.contains(&sequence) {
            return;
        }
        if let Some((_, ordinal, digest)) = self.last {
            assert_eq!(
                header.ordinal.0,
                ordinal.0 + 1,
                "numbers follow one another"
            );
            assert_eq!(header.previous, digest, "the frame before is named");
        }
        assert!(header.keep_from <= sequence);
        assert!(
            header.incarnation >= self.incarnation,
            "writers only get newer"
        );
        if header.incarnation > self.incarnation {
            assert_eq!(
                frame.body.kind(),
                FrameKind::Marker,
                "a marker comes first (C07)"
            );
            self.incarnation = header.incarnation;
        }
        if frame.body.kind().is_positional() {
            if self.last.is_some() {
                assert_eq!(
                    header.follows, self.position,
                    "positions follow one another"
                );
            }
            assert!(header.position >= header.follows);
            self.position = header.position;
        } else {
            assert_eq!(
                (header.position, header.follows),
                (self.position, self.position)
            );
        }
        self.last = Some((sequence, header.ordinal, Frame::digest_of(payload)));
        self.body(sequence, &frame);
        self.frames.push((sequence, frame));
    }

    fn body(&mut self, sequence: StreamSequence, frame: &Frame) {
        let incarnation = frame.header.incarnation;
        match &frame.body {
            Body::Bundle(entries) => {
                let none = AbortedSet::EMPTY;
                let mut reader = ChangeReader::new(false, &none);
                let mut rest = frame.payload.clone();
                for entry in entries {
                    reader.feed(rest.split_to(entry.bytes as usize));
                    let before = reader.changes();
                    let changes = changes(&mut reader);
                    assert_eq!(reader.changes() - before, u64::from(entry.changes));
                    self.transactions.push(Transaction {
                        identity: entry.identity(),
                        end: entry.end_lsn,
                        incarnation,
                        chunked: false,
                        changes,
                    });
                }
                assert!(rest.is_empty(), "entries cover the payload");
                let last = entries.last().expect("a bundle is never empty");
                assert_eq!(last.end_lsn, frame.header.position);
            }
            Body::Chunk(chunk) => {
                let open = self.chunks.entry((incarnation, chunk.xid)).or_default();
                assert_eq!(chunk.number, open.bytes.len() as u64);
                if chunk.number == 0 {
                    open.first = sequence;
                }
                open.running.update(&frame.payload);
                assert_eq!(chunk.running, open.running.current());
                open.bytes.push(frame.payload.clone());
            }
            Body::Abort(abort) if abort.whole => {
                assert!(self.chunks.remove(&(incarnation, abort.xid)).is_some());
            }
            Body::Abort(abort) => {
                let open = self.chunks.entry((incarnation, abort.xid)).or_default();
                assert_eq!(abort.number, open.aborts);
                assert_eq!(abort.earlier, open.last_abort);
                open.aborts += 1;
                open.last_abort = Some(sequence);
                open.aborted.extend(abort.ranges.iter().copied());
            }
            Body::Manifest(manifest) => {
                let open = self
                    .chunks
                    .remove(&(incarnation, manifest.xid))
                    .expect("its chunks came before");
                assert_eq!(manifest.chunks, open.bytes.len() as u64);
                assert_eq!(manifest.bytes, open.running.bytes());
                assert_eq!(manifest.running, open.running.current());
                assert_eq!(manifest.first_sequence, open.first);
                assert_eq!(manifest.aborts, open.aborts);
                assert_eq!(manifest.last_abort, open.last_abort);
                assert_eq!(manifest.aborts_digest, open.aborted.digest());
                let mut reader = ChangeReader::new(manifest.streamed, &open.aborted);
                let mut all = Vec::new();
                for piece in open.bytes {
                    reader.feed(piece);
                    all.extend(changes(&mut reader));
                }
                reader.finish().expect("nothing is left over");
                self.transactions.push(Transaction {
                    identity: manifest.identity(),
                    end: manifest.end_lsn,
                    incarnation,
                    chunked: true,
                    changes: all,
                });
                assert_eq!(manifest.end_lsn, frame.header.position);
            }
            Body::Genesis(_) | Body::Marker(_) | Body::Heartbeat(_) => {}
        }
        // Whatever an open transaction needs is kept (C14).
        let needed = self.chunks.iter().filter(|((of, _), _)| *of == incarnation);
        for (_, open) in needed {
            assert!(frame.header.keep_from <= open.first);
        }
    }
}

fn changes(reader: &mut ChangeReader<'_>) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(change) = reader.next_change().expect("readable records") {
        let name = |relation| {
            let relation = change.relations.get(relation).expect("described");
            relation.name.clone()
        };
        let text = match change.message {
            Message::Insert { relation, new, .. } => {
                format!("I {} {}", name(relation), values(new.iter()))
            }
            Message::Update { relation, new, .. } => {
                format!("U {} {}", name(relation), values(new.iter()))
            }
            Message::Delete { relation, old, .. } => {
                format!("D {} {}", name(relation), values(old.tuple().iter()))
            }
            Message::Truncate { relations, .. } => {
                let names: Vec<String> = relations.map(name).collect();
                format!("T {}", names.join(" "))
            }
            _ => continue,
        };
        all.push(text);
    }
    all
}

fn values<'a>(values: impl Iterator<Item = Value<'a>>) -> String {
    let texts: Vec<String> = values
        .map(|value| match value {
            Value::Null => "null".to_owned(),
            Value::Unchanged => "unchanged".to_owned(),
            Value::Text(text) if text.len() > 40 => format!("{} bytes", text.len()),
            Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Value::Binary(bytes) => format!("{} bytes", bytes.len()),
        })
        .collect();
    format!("({})", texts.join(", "))
}
