//! Frames one after the other, and the transactions in them.

use serde::Serialize;
use trellara_envelope::{Body, Frame, Lsn, StreamSequence, TransactionIdentity};
use trellara_jetstream::read::Reader;
use trellara_jetstream::{Broker, BrokerError};

use super::time;
use crate::exit::{Exit, Failure};

/// Walks over what a subject filter matches.
pub(crate) struct Walk {
    reader: Reader,
    filter: String,
    next: StreamSequence,
}

/// One stored frame.
pub(crate) struct Stored {
    pub(crate) sequence: StreamSequence,
    pub(crate) subject: String,
    pub(crate) bytes: usize,
    pub(crate) frame: Frame,
}

/// A frame in a list.
#[derive(Serialize)]
pub(crate) struct FrameItem {
    id: u64,
    kind: &'static str,
    subject: String,
    ordinal: u64,
    incarnation: u64,
    position: String,
    bytes: usize,
    /// Transactions in it, or the number of the chunk.
    about: String,
}

/// A transaction in a list.
#[derive(Serialize)]
pub(crate) struct TransactionItem {
    /// `{source_id}:{commit_lsn}:{xid}:{commit_time}`.
    id: String,
    sequence: u64,
    xid: u32,
    commit_lsn: String,
    end_lsn: String,
    committed_at: String,
    changes: u64,
    bytes: u64,
    /// Chunks that carry it; 0 when it stands in a bundle.
    chunks: u64,
}

/// Where one transaction is.
pub(crate) struct Place {
    pub(crate) identity: TransactionIdentity,
    pub(crate) stored: Stored,
    /// Which entry of a bundle; unused for a manifest.
    pub(crate) entry: usize,
}

impl Walk {
    pub(crate) fn new(broker: &Broker, stream: &str, filter: String, from: StreamSequence) -> Self {
        Self {
            reader: Reader::new(broker, stream),
            filter,
            next: from,
        }
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Stored>, Failure> {
        let found: Result<_, BrokerError> = self.reader.next_on(&self.filter, self.next).await;
        let Some(message) = found? else {
            return Ok(None);
        };
        self.next = StreamSequence(message.sequence.0 + 1);
        let frame = Frame::decode(&message.payload).map_err(|error| {
            Failure::new(
                Exit::Unexpected,
                format!(
                    "message {} is damaged or foreign: {error}",
                    message.sequence
                ),
                format!("--from {} goes on behind it", self.next),
            )
        })?;
        let (sequence, subject) = (message.sequence, message.subject);
        Ok(Some(Stored {
            sequence,
            subject,
            bytes: message.payload.len(),
            frame,
        }))
    }
}

impl Stored {
    pub(crate) fn item(&self) -> FrameItem {
        let header = &self.frame.header;
        FrameItem {
            id: self.sequence.0,
            kind: self.frame.body.kind().as_str(),
            subject: self.subject.clone(),
            ordinal: header.ordinal.0,
            incarnation: header.incarnation.0,
            position: header.position.to_string(),
            bytes: self.bytes,
            about: match &self.frame.body {
                Body::Genesis(genesis) => {
                    format!("slot {} from {}", genesis.slot, genesis.consistent_point)
                }
                Body::Marker(marker) => format!("goes on at {}", marker.continues_at),
                Body::Heartbeat(heartbeat) => time::text(heartbeat.source_time),
                Body::Bundle(entries) => format!("{} transaction(s)", entries.len()),
                Body::Chunk(chunk) => {
                    format!("chunk {} of transaction {}", chunk.number, chunk.xid)
                }
                Body::Abort(abort) if abort.whole => {
                    format!("transaction {} rolled back", abort.xid)
                }
                Body::Abort(abort) => format!("part of transaction {} rolled back", abort.xid),
                Body::Manifest(manifest) => {
                    format!("transaction {} in {} chunks", manifest.xid, manifest.chunks)
                }
            },
        }
    }

    /// The transactions that it completes.
    pub(crate) fn transactions(&self) -> Vec<TransactionItem> {
        let item =
            |identity: TransactionIdentity, end: Lsn, changes: u64, bytes: u64, chunks: u64| {
                TransactionItem {
                    id: identity.to_string(),
                    sequence: self.sequence.0,
                    xid: identity.xid.0,
                    commit_lsn: identity.commit_lsn.to_string(),
                    end_lsn: end.to_string(),
                    committed_at: time::text(identity.commit_time),
                    changes,
                    bytes,
                    chunks,
                }
            };
        match &self.frame.body {
            Body::Bundle(entries) => entries
                .iter()
                .map(|entry| {
                    let (changes, bytes) = (u64::from(entry.changes), u64::from(entry.bytes));
                    item(entry.identity(), entry.end_lsn, changes, bytes, 0)
                })
                .collect(),
            Body::Manifest(manifest) => {
                let (changes, bytes) = (manifest.changes, manifest.bytes);
                vec![item(
                    manifest.identity(),
                    manifest.end_lsn,
                    changes,
                    bytes,
                    manifest.chunks,
                )]
            }
            _ => Vec::new(),
        }
    }

    fn identities(&self) -> Vec<TransactionIdentity> {
        match &self.frame.body {
            Body::Bundle(entries) => entries.iter().map(|entry| entry.identity()).collect(),
            Body::Manifest(manifest) => vec![manifest.identity()],
            _ => Vec::new(),
        }
    }
}

impl FrameItem {
    pub(crate) fn text(&self) -> String {
        let Self {
            id,
            kind,
            ordinal,
            incarnation,
            position,
            bytes,
            about,
            ..
        } = self;
        format!(
            "{id:>8}  {kind:<9} frame {ordinal:<8} incarnation {incarnation:<4} {position:>16} {bytes:>8} bytes  {about}"
        )
    }
}

impl TransactionItem {
    pub(crate) fn text(&self) -> String {
        let Self {
            id,
            sequence,
            committed_at,
            changes,
            bytes,
            chunks,
            ..
        } = self;
        let carried = if *chunks == 0 {
            String::new()
        } else {
            format!(" in {chunks} chunks")
        };
        format!("{id}  at {sequence}, {committed_at}, {changes} changes, {bytes} bytes{carried}")
    }
}

/// The first transaction that `wanted` names: its identity, its commit LSN or its xid.
pub(crate) async fn find(walk: &mut Walk, wanted: &str) -> Result<Option<Place>, Failure> {
    let is_it = |identity: &TransactionIdentity| {
        identity.to_string() == wanted
            || identity.commit_lsn.to_string() == wanted
            || identity.xid.to_string() == wanted
    };
    while let Some(stored) = walk.next().await? {
        let identities = stored.identities();
        if let Some(entry) = identities.iter().position(is_it) {
            return Ok(Some(Place {
                identity: identities[entry],
                stored,
                entry,
            }));
        }
    }
    Ok(None)
}
