//! The bytes of held transactions: kept in the target, and read back piece by piece.
//!
//! Of a bundle a frame of its own is kept, cut down to the one transaction, with the descriptions
//! that it needs. Of a chunked transaction every frame is kept as it came, each as one row, so that
//! neither keeping nor reading back ever holds more than one of them in memory.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;
use trellara_envelope::records::{self, Records};
use trellara_envelope::{
    AbortedSet, Body, BundleEntry, Frame, FrameDigest, Halt, HaltCode, Manifest, StreamSequence,
};
use trellara_pgoutput::{Kind, peek};

use super::{Held, HeldId, HeldStorage};
use crate::apply::Source;
use crate::batch::Unit;
use crate::chunks::{self, AbortWalk, BadChunk, ChunkCheck, ChunkStream, Gathering, Large};
use crate::machine::Delivered;
use crate::position;
use crate::trouble::Trouble;

const INSERT_MANY: &str = "\
INSERT INTO trellara.held_frame (held_id, number, sequence, digest, bytes) \
SELECT f.id, 0, f.sequence, f.digest, f.bytes \
  FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[]) AS f (id, sequence, digest, bytes)";
const INSERT_ONE: &str = "\
INSERT INTO trellara.held_frame (held_id, number, sequence, digest, bytes) \
VALUES ($1, $2, $3, $4, $5)";
const READ: &str = "\
SELECT sequence, digest, bytes FROM trellara.held_frame WHERE held_id = $1 AND number = $2";
const KEPT: &str = "\
UPDATE trellara.held SET storage = 'target', frames = $2, bytes = $3 WHERE id = $1";

/// A frame that holds one transaction of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recut {
    pub(crate) bytes: Bytes,
    pub(crate) digest: FrameDigest,
    /// Where the bundle stood.
    pub(crate) sequence: StreamSequence,
}

impl Recut {
    /// The frame of the one transaction: its header is the bundle's, its payload the descriptions
    /// in front of it that are in force for it, and its records.
    ///
    /// # Errors
    /// When its records cannot be read.
    pub(crate) fn of(unit: &Unit) -> Result<Self, Halt> {
        let mut payload = descriptions(unit).map_err(|what| unreadable(unit, &what))?;
        payload.extend_from_slice(&unit.records);
        let length = u32::try_from(payload.len());
        let entry = BundleEntry {
            bytes: length.map_err(|_| unreadable(unit, "it is longer than any frame"))?,
            ..unit.entry
        };
        let frame = Frame {
            header: unit.origin.header.clone(),
            body: Body::Bundle(vec![entry]),
            payload: Bytes::from(payload),
        };
        let bytes = frame.encode();
        Ok(Self {
            digest: FrameDigest::of(&bytes),
            bytes,
            sequence: unit.origin.sequence,
        })
    }
}

/// The records of the earlier transactions that describe what this one changes: of each table the
/// last, and every type, in their order.
fn descriptions(unit: &Unit) -> Result<Vec<u8>, String> {
    let mut tables = BTreeSet::new();
    for record in Records::new(&unit.records) {
        let record = record.map_err(|error| error.to_string())?;
        let seen = peek(record, false).map_err(|error| error.to_string())?;
        tables.extend(seen.relations);
    }
    let mut types = Vec::new();
    let mut last = BTreeMap::new();
    for (place, record) in Records::new(&unit.earlier).enumerate() {
        let record = record.map_err(|error| error.to_string())?;
        let seen = peek(record, false).map_err(|error| error.to_string())?;
        match seen.kind {
            Kind::Type => types.push((place, record)),
            Kind::Relation => {
                if let Some(table) = seen.relations.first().filter(|oid| tables.contains(oid)) {
                    last.insert(table, (place, record));
                }
            }
            Kind::Begin
            | Kind::Commit
            | Kind::Origin
            | Kind::Insert
            | Kind::Update
            | Kind::Delete
            | Kind::Truncate
            | Kind::Logical
            | Kind::StreamStart
            | Kind::StreamStop
            | Kind::StreamCommit
            | Kind::StreamAbort => {}
        }
    }
    let mut kept: Vec<_> = types.into_iter().chain(last.into_values()).collect();
    kept.sort_unstable_by_key(|(place, _)| *place);
    let mut out = Vec::new();
    for (_, record) in kept {
        records::push(&mut out, record);
    }
    Ok(out)
}

fn unreadable(unit: &Unit, what: &str) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!("transaction {} cannot be read: {what}", unit.identity),
        "nothing of it was applied; look at it with trellara inspect",
    )
}

/// Keeps small transactions, whose rows of `trellara.held` are there and say how many frames and
/// bytes: one statement in the target transaction that is open on `client`.
pub(crate) async fn keep_small(
    client: &Client,
    kept: &[(HeldId, &Recut)],
) -> Result<(), tokio_postgres::Error> {
    let ids: Vec<i64> = kept.iter().map(|(id, _)| id.0).collect();
    let sequences: Vec<i64> = kept.iter().map(|(_, one)| signed(one.sequence)).collect();
    let digests: Vec<&[u8]> = kept.iter().map(|(_, one)| &one.digest.0[..]).collect();
    let bytes: Vec<&[u8]> = kept.iter().map(|(_, one)| &one.bytes[..]).collect();
    let parameters: [&(dyn ToSql + Sync); 4] = [&ids, &sequences, &digests, &bytes];
    client.execute(INSERT_MANY, &parameters).await.map(drop)
}

/// Copies a chunked transaction out of the stream, frame by frame, in the target transaction that
/// is open on `client`, and makes its row of `trellara.held` say so. Each frame is checked on its
/// way, and at last all of them against the manifest.
///
/// `digest` is the manifest's, as it was when it was read first.
pub(crate) async fn keep_large(
    client: &Client,
    id: HeldId,
    (large, digest): (Large<'_>, FrameDigest),
    source: &Source<'_>,
) -> Result<(), Trouble> {
    let mut keeping = Keeping {
        client,
        id,
        insert: client.prepare(INSERT_ONE).await?,
        frames: 0,
        bytes: 0,
    };
    let (_, bytes) = manifest_at(source, large.sequence, digest).await?;
    keeping.keep(0, large.sequence, digest, &bytes).await?;
    let mut gathering = Gathering::new();
    let mut walk = AbortWalk::new(source, large);
    while let Some(abort) = walk.next().await? {
        let number = 1 + abort.number;
        keeping
            .keep(number, abort.sequence, abort.digest, &abort.bytes)
            .await?;
        gathering.add(abort.ranges);
        stop_if_cancelled(source)?;
    }
    gathering
        .finish(large.manifest)
        .ok_or_else(|| chunks::other_aborts(large))?;
    let mut chunks = ChunkStream::open(source, large).await?;
    let mut number = 1 + large.manifest.aborts;
    while let Some(chunk) = chunks.next_stored().await? {
        keeping
            .keep(number, chunk.sequence, chunk.digest, &chunk.bytes)
            .await?;
        number += 1;
        stop_if_cancelled(source)?;
    }
    chunks.finish()?;
    let counts = [keeping.frames, keeping.bytes].map(u64::cast_signed);
    client
        .execute(KEPT, &[&id.0, &counts[0], &counts[1]])
        .await?;
    Ok(())
}

struct Keeping<'c> {
    client: &'c Client,
    id: HeldId,
    insert: tokio_postgres::Statement,
    frames: u64,
    bytes: u64,
}

impl Keeping<'_> {
    async fn keep(
        &mut self,
        number: u64,
        sequence: StreamSequence,
        digest: FrameDigest,
        bytes: &Bytes,
    ) -> Result<(), Trouble> {
        let number = number_of(number)?;
        let parameters: [&(dyn ToSql + Sync); 5] = [
            &self.id.0,
            &number,
            &signed(sequence),
            &&digest.0[..],
            &&bytes[..],
        ];
        self.client.execute(&self.insert, &parameters).await?;
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn stop_if_cancelled(source: &Source<'_>) -> Result<(), Trouble> {
    match source.cancel.is_cancelled() {
        true => Err(Trouble::Cancelled),
        false => Ok(()),
    }
}

/// The manifest at a place of the stream, and its bytes; an error when it is not the one whose
/// digest is known.
pub(crate) async fn manifest_at(
    source: &Source<'_>,
    sequence: StreamSequence,
    digest: FrameDigest,
) -> Result<(Delivered, Bytes), Trouble> {
    let gone = |what: &str| {
        Halt::new(
            HaltCode::Gap,
            format!("the manifest at sequence {sequence} of a held transaction {what}"),
            "who purged subjects of this stream, or replaced it? Restore it; or discard the held \
             transaction and copy its tables anew",
        )
    };
    let Some(stored) = source.reader.get(sequence).await? else {
        return Err(gone("is not in the stream any more").into());
    };
    let opening =
        position::open_stored(source.reader, source.options, sequence, stored.payload).await?;
    let (opened, bytes) = opening;
    if opened.digest != digest {
        return Err(gone("is another one now").into());
    }
    Ok((opened, bytes))
}

/// A held transaction, its head read: what is needed before its first record can be.
#[derive(Debug)]
pub(crate) struct Head {
    id: HeldId,
    storage: HeldStorage,
    name: String,
    aborted: AbortedSet,
    body: HeadBody,
}

#[derive(Debug)]
enum HeadBody {
    /// The whole of it.
    Small(Bytes),
    Large(Box<Closing>),
}

/// The manifest and where it stands.
#[derive(Debug)]
struct Closing {
    manifest: Manifest,
    opened: (trellara_envelope::Incarnation, StreamSequence),
}

impl Closing {
    fn large(&self) -> Large<'_> {
        Large {
            manifest: &self.manifest,
            incarnation: self.opened.0,
            sequence: self.opened.1,
        }
    }
}

impl Head {
    /// Reads the head of a held transaction and checks that it is that transaction's. Of one that
    /// is in the stream alone it needs the stream.
    pub(crate) async fn read(
        client: &Client,
        held: &Held,
        source: Option<&Source<'_>>,
    ) -> Result<Self, Trouble> {
        let name = held.identity.to_string();
        let frame = match held.storage {
            HeldStorage::Target => {
                let rows = Rows::prepare(client, held.id, &name).await?;
                rows.frame(0).await?
            }
            HeldStorage::Stream => {
                let source = source.ok_or_else(|| needs_stream(held))?;
                manifest_at(source, held.sequence, held.digest).await?.0
            }
        };
        let mut head = Self {
            id: held.id,
            storage: held.storage,
            name,
            aborted: AbortedSet::EMPTY,
            body: HeadBody::Small(frame.frame.payload.clone()),
        };
        let identity = match frame.frame.body {
            Body::Bundle(entries) => match entries[..] {
                [entry] => entry.identity(),
                _ => return Err(damaged(&head.name, "frame 0 holds several transactions").into()),
            },
            Body::Manifest(manifest) => {
                let identity = manifest.identity();
                head.body = HeadBody::Large(Box::new(Closing {
                    manifest: *manifest,
                    opened: (frame.frame.header.incarnation, frame.sequence),
                }));
                identity
            }
            Body::Genesis(_)
            | Body::Marker(_)
            | Body::Heartbeat(_)
            | Body::Chunk(_)
            | Body::Abort(_) => {
                return Err(damaged(&head.name, "frame 0 holds no transaction").into());
            }
        };
        if identity.hash() != held.hash {
            return Err(damaged(&head.name, "frame 0 is of another transaction").into());
        }
        head.aborted = head.read_aborted(client, source).await?;
        Ok(head)
    }

    /// Whether its records carry transaction ids.
    pub(crate) fn streamed(&self) -> bool {
        match &self.body {
            HeadBody::Small(_) => false,
            HeadBody::Large(closing) => closing.manifest.streamed,
        }
    }

    /// What of it was rolled back.
    pub(crate) fn aborted(&self) -> &AbortedSet {
        &self.aborted
    }

    /// Its records cannot be read.
    pub(crate) fn unreadable(&self, error: &trellara_pgoutput::Error) -> Halt {
        damaged(&self.name, &error.to_string())
    }

    /// The manifest with its place, of a chunked one.
    pub(crate) fn large(&self) -> Option<Large<'_>> {
        match &self.body {
            HeadBody::Small(_) => None,
            HeadBody::Large(closing) => Some(closing.large()),
        }
    }

    async fn read_aborted(
        &self,
        client: &Client,
        source: Option<&Source<'_>>,
    ) -> Result<AbortedSet, Trouble> {
        let Some(large) = self.large() else {
            return Ok(AbortedSet::EMPTY);
        };
        if let (HeldStorage::Stream, Some(source)) = (self.storage, source) {
            return chunks::aborted(source, large).await;
        }
        let rows = Rows::prepare(client, self.id, &self.name).await?;
        let mut gathering = Gathering::new();
        for number in 0..large.manifest.aborts {
            let frame = rows.frame(1 + number).await?.frame;
            let abort = chunks::abort_of(frame, number, large);
            let abort = abort.ok_or_else(|| {
                let what = format!("frame {} is not its abort frame {number}", 1 + number);
                damaged(&self.name, &what)
            })?;
            gathering.add(abort.ranges);
        }
        let aborted = gathering.finish(large.manifest);
        Ok(aborted.ok_or_else(|| {
            damaged(
                &self.name,
                "its abort frames do not have the manifest's digest",
            )
        })?)
    }

    /// Its bytes, from the first to the last. What was begun once can be begun again.
    pub(crate) async fn bytes<'a>(
        &'a self,
        client: &'a Client,
        source: Option<&'a Source<'a>>,
    ) -> Result<HeldBytes<'a>, Trouble> {
        Ok(match (&self.body, self.storage, source) {
            (HeadBody::Small(payload), _, _) => HeldBytes::Small(Some(payload.clone())),
            (HeadBody::Large(closing), HeldStorage::Stream, Some(source)) => {
                HeldBytes::Stream(Box::new(ChunkStream::open(source, closing.large()).await?))
            }
            (HeadBody::Large(closing), _, _) => HeldBytes::Target(TargetChunks {
                rows: Rows::prepare(client, self.id, &self.name).await?,
                manifest: &closing.manifest,
                check: ChunkCheck::new(closing.large()),
            }),
        })
    }
}

/// The pieces of a held transaction's bytes, each checked before it is handed out; at most one is
/// in memory.
pub(crate) enum HeldBytes<'a> {
    /// One piece is all of it.
    Small(Option<Bytes>),
    /// Out of the target.
    Target(TargetChunks<'a>),
    /// Out of the stream.
    Stream(Box<ChunkStream<'a>>),
}

impl HeldBytes<'_> {
    /// The next piece; `None` behind the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Trouble> {
        match self {
            HeldBytes::Small(payload) => Ok(payload.take()),
            HeldBytes::Target(chunks) => chunks.next().await,
            HeldBytes::Stream(chunks) => chunks.next().await,
        }
    }

    /// The final check: what was handed out is all of it.
    pub(crate) fn finish(self) -> Result<(), Halt> {
        match self {
            HeldBytes::Small(_) => Ok(()),
            HeldBytes::Target(chunks) => chunks.finish(),
            HeldBytes::Stream(chunks) => chunks.finish(),
        }
    }
}

/// Chunks out of the target.
pub(crate) struct TargetChunks<'a> {
    rows: Rows<'a>,
    manifest: &'a Manifest,
    check: ChunkCheck,
}

impl TargetChunks<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, Trouble> {
        if self.check.taken() >= self.manifest.chunks {
            return Ok(None);
        }
        let number = 1 + self.manifest.aborts + self.check.taken();
        let opened = self.rows.frame(number).await?;
        let piece = self.check.take(opened);
        let piece = piece.map_err(|bad| bad_chunk(self.rows.name, bad))?;
        match piece {
            Some(piece) => Ok(Some(piece)),
            None => {
                let what = format!("frame {number} is no chunk");
                Err(damaged(self.rows.name, &what).into())
            }
        }
    }

    fn finish(self) -> Result<(), Halt> {
        let checked = self.check.finish(self.manifest);
        checked.map_err(|bad| bad_chunk(self.rows.name, bad))
    }
}

/// Reads rows of `trellara.held_frame`.
struct Rows<'a> {
    client: &'a Client,
    read: tokio_postgres::Statement,
    id: HeldId,
    /// Of the transaction, for errors.
    name: &'a str,
}

impl<'a> Rows<'a> {
    async fn prepare(client: &'a Client, id: HeldId, name: &'a str) -> Result<Self, Trouble> {
        Ok(Self {
            client,
            read: client.prepare(READ).await?,
            id,
            name,
        })
    }

    /// One frame, whose bytes have the digest that was written down with them.
    async fn frame(&self, number: u64) -> Result<Delivered, Trouble> {
        let row = self
            .client
            .query_opt(&self.read, &[&self.id.0, &number_of(number)?])
            .await?;
        let Some(row) = row else {
            return Err(damaged(self.name, &format!("frame {number} is not there")).into());
        };
        let bytes = Bytes::from(row.get::<_, Vec<u8>>(2));
        let digest = FrameDigest::of(&bytes);
        if FrameDigest::from_slice(row.get(1)) != Some(digest) {
            let what = format!("frame {number} does not have its digest");
            return Err(damaged(self.name, &what).into());
        }
        let frame = Frame::decode(&bytes)
            .map_err(|error| damaged(self.name, &format!("frame {number}: {error}")))?;
        Ok(Delivered {
            sequence: StreamSequence(row.get::<_, i64>(0).cast_unsigned()),
            digest,
            frame,
        })
    }
}

fn bad_chunk(name: &str, bad: BadChunk) -> Halt {
    match bad {
        BadChunk::Damaged(what) => damaged(name, &what),
        BadChunk::Absent(what) => damaged(name, &format!("{what} is not there")),
    }
}

/// What is kept of a transaction is not what was kept; nothing of it is applied.
fn damaged(name: &str, what: &str) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!("what the target keeps of held transaction {name} is damaged: {what}"),
        "nothing of it was applied; was trellara.held_frame changed by hand? Restore the target, or \
         discard the transaction and copy its tables anew",
    )
}

fn needs_stream(held: &Held) -> Halt {
    Halt::new(
        HaltCode::Config,
        format!("held transaction {} is in the stream alone", held.id),
        "run it where the broker can be reached",
    )
}

fn signed(sequence: StreamSequence) -> i64 {
    sequence.0.cast_signed()
}

fn number_of(number: u64) -> Result<i32, Halt> {
    i32::try_from(number).map_err(|_| {
        Halt::new(
            HaltCode::Config,
            format!("a held transaction of {number} frames has more than a table can number"),
            "copy its tables anew instead",
        )
    })
}

#[cfg(test)]
mod tests;
