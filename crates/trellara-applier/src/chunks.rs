//! One large transaction, read from its chunk subject while it is being applied (C15, C16).

use std::future::Future;

use bytes::Bytes;
use trellara_envelope::{
    Abort, AbortedRange, AbortedSet, Body, Chunk, Frame, FrameDigest, Halt, HaltCode, Incarnation,
    Manifest, RunningDigest, StreamSequence, Xid,
};
use trellara_jetstream::read::{StoredFrameBytes, SubjectReader};

use crate::apply::Source;
use crate::machine::Delivered;
use crate::position;
use crate::trouble::Trouble;

/// A manifest with its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Large<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) incarnation: Incarnation,
    pub(crate) sequence: StreamSequence,
}

/// Ranges gathered before they are merged for the first time.
const UNMERGED: usize = 1 << 20;

/// What was rolled back of one transaction, gathered from its abort frames in any order: sorted now
/// and then, not inserted one by one.
pub(crate) struct Gathering {
    ranges: Vec<AbortedRange>,
    merge_at: usize,
}

impl Gathering {
    pub(crate) fn new() -> Self {
        Self {
            ranges: Vec::new(),
            merge_at: UNMERGED,
        }
    }

    pub(crate) fn add(&mut self, ranges: Vec<AbortedRange>) {
        self.ranges.extend(ranges);
        if self.ranges.len() >= self.merge_at {
            let merged = AbortedSet::from_ranges(std::mem::take(&mut self.ranges));
            self.ranges = merged.ranges().to_vec();
            self.merge_at = UNMERGED.max(self.ranges.len() * 2);
        }
    }

    /// The set; `None` when it is not the one that the manifest names.
    pub(crate) fn finish(self, manifest: &Manifest) -> Option<AbortedSet> {
        let aborted = AbortedSet::from_ranges(self.ranges);
        (aborted.digest() == manifest.aborts_digest).then_some(aborted)
    }
}

/// Walks over the abort frames backwards from the last one.
pub(crate) struct AbortWalk<'a> {
    source: &'a Source<'a>,
    large: Large<'a>,
    left: u64,
    at: Option<StreamSequence>,
}

/// An abort frame of the transaction.
pub(crate) struct AbortFrame {
    pub(crate) number: u64,
    pub(crate) sequence: StreamSequence,
    pub(crate) digest: FrameDigest,
    /// As the stream holds it.
    pub(crate) bytes: Bytes,
    pub(crate) ranges: Vec<AbortedRange>,
}

impl<'a> AbortWalk<'a> {
    pub(crate) fn new(source: &'a Source<'a>, large: Large<'a>) -> Self {
        Self {
            source,
            large,
            left: large.manifest.aborts,
            at: large.manifest.last_abort,
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<AbortFrame>, Trouble> {
        let (source, large) = (self.source, self.large);
        let Some(number) = self.left.checked_sub(1) else {
            let closed = self.at.is_none();
            return match closed {
                true => Ok(None),
                false => Err(other_aborts(large).into()),
            };
        };
        let Some(sequence) = self.at else {
            return Err(absent(large, &format!("abort frame {number}")).into());
        };
        let Some(stored) = source.reader.get(sequence).await? else {
            return Err(absent(large, &format!("abort frame {number}")).into());
        };
        let (opened, bytes) =
            position::open_stored(source.reader, source.options, sequence, stored.payload).await?;
        source.status.moved();
        let digest = opened.digest;
        let Some(abort) = abort_of(opened.frame, number, large) else {
            let what = format!("sequence {sequence} is not its abort frame {number}");
            return Err(damaged(large, &what).into());
        };
        self.left = number;
        self.at = abort.earlier;
        Ok(Some(AbortFrame {
            number,
            sequence,
            digest,
            bytes,
            ranges: abort.ranges,
        }))
    }
}

/// Reads the abort frames and checks them against the manifest.
pub(crate) async fn aborted(source: &Source<'_>, large: Large<'_>) -> Result<AbortedSet, Trouble> {
    let mut gathering = Gathering::new();
    let mut walk = AbortWalk::new(source, large);
    while let Some(abort) = walk.next().await? {
        gathering.add(abort.ranges);
    }
    let aborted = gathering.finish(large.manifest);
    Ok(aborted.ok_or_else(|| other_aborts(large))?)
}

pub(crate) fn other_aborts(large: Large<'_>) -> Halt {
    damaged(large, "its abort frames do not have the manifest's digest")
}

/// The frame as the abort frame of that number, if it is it.
pub(crate) fn abort_of(frame: Frame, number: u64, large: Large<'_>) -> Option<Abort> {
    let incarnation = frame.header.incarnation;
    match frame.body {
        Body::Abort(abort) if is_part(&abort, incarnation, number, large) => Some(abort),
        _ => None,
    }
}

fn is_part(abort: &Abort, incarnation: Incarnation, number: u64, large: Large<'_>) -> bool {
    abort.xid == large.manifest.xid
        && incarnation == large.incarnation
        && abort.number == number
        && !abort.whole
}

/// What chunks must be, one after another; pure.
pub(crate) struct ChunkCheck {
    xid: Xid,
    incarnation: Incarnation,
    digest: RunningDigest,
    next: u64,
}

/// What is wrong with a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BadChunk {
    /// It is not what belongs here.
    Damaged(String),
    /// The one that belongs here is not there.
    Absent(String),
}

impl ChunkCheck {
    pub(crate) fn new(large: Large<'_>) -> Self {
        Self {
            xid: large.manifest.xid,
            incarnation: large.incarnation,
            digest: RunningDigest::new(),
            next: 0,
        }
    }

    /// Chunks taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.next
    }

    /// The next piece of the transaction's bytes; `None` for a frame of the transaction that is
    /// no chunk.
    pub(crate) fn take(&mut self, opened: Delivered) -> Result<Option<Bytes>, BadChunk> {
        let running = match &opened.frame.body {
            Body::Chunk(chunk) => *self.expect(chunk, opened.frame.header.incarnation)?,
            // Read already, before the first chunk.
            Body::Abort(_) => return Ok(None),
            Body::Genesis(_)
            | Body::Marker(_)
            | Body::Heartbeat(_)
            | Body::Bundle(_)
            | Body::Manifest(_) => {
                let what = format!("sequence {} is not a chunk", opened.sequence);
                return Err(BadChunk::Damaged(what));
            }
        };
        let piece = opened.frame.payload;
        self.digest.update(&piece);
        if self.digest.current() != running {
            let what = format!("chunk {} does not have its running digest", self.next);
            return Err(BadChunk::Damaged(what));
        }
        self.next += 1;
        Ok(Some(piece))
    }

    fn expect<'c>(
        &self,
        chunk: &'c Chunk,
        incarnation: Incarnation,
    ) -> Result<&'c FrameDigest, BadChunk> {
        if chunk.xid != self.xid || incarnation != self.incarnation {
            let what = "a chunk of another transaction is among its own".to_owned();
            return Err(BadChunk::Damaged(what));
        }
        if chunk.number > self.next {
            return Err(BadChunk::Absent(format!("chunk {}", self.next)));
        }
        if chunk.number < self.next {
            let what = format!("chunk {} comes twice", chunk.number);
            return Err(BadChunk::Damaged(what));
        }
        Ok(&chunk.running)
    }

    /// The final check before anything may be committed: count, bytes and digest of what was
    /// handed out are the manifest's.
    pub(crate) fn finish(self, manifest: &Manifest) -> Result<(), BadChunk> {
        if self.next == manifest.chunks
            && self.digest.bytes() == manifest.bytes
            && self.digest.current() == manifest.running
        {
            return Ok(());
        }
        Err(BadChunk::Damaged(format!(
            "its chunks hold {} bytes with digest {}, the manifest says {} with {}",
            self.digest.bytes(),
            self.digest.current(),
            manifest.bytes,
            manifest.running
        )))
    }
}

/// Reads the chunks from first to last, each checked before it is handed out.
pub(crate) struct ChunkStream<'a> {
    large: Large<'a>,
    source: &'a Source<'a>,
    subject: SubjectReader,
    check: ChunkCheck,
}

/// A chunk as the stream holds it, checked.
pub(crate) struct StoredChunk {
    pub(crate) sequence: StreamSequence,
    pub(crate) digest: FrameDigest,
    pub(crate) bytes: Bytes,
    /// Its piece of the transaction's bytes.
    pub(crate) piece: Bytes,
}

impl<'a> ChunkStream<'a> {
    pub(crate) async fn open(source: &'a Source<'a>, large: Large<'a>) -> Result<Self, Trouble> {
        let options = source.options;
        let subject = options
            .flow
            .open_subject(large.incarnation, large.manifest.xid);
        let stream = options.flow.stream();
        let (first, last) = (large.manifest.first_sequence, large.sequence);
        let opening = SubjectReader::open(source.broker, &stream, &subject, first, last);
        let subject = bounded(source, large, opening).await??;
        Ok(Self {
            large,
            source,
            subject,
            check: ChunkCheck::new(large),
        })
    }

    /// The next piece of the transaction's bytes; `None` behind the last chunk that the manifest
    /// counts. Reading stops there: what a later chunk with the same number might say is of no
    /// interest.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Trouble> {
        Ok(self.next_stored().await?.map(|chunk| chunk.piece))
    }

    /// The same with the frame that holds it.
    pub(crate) async fn next_stored(&mut self) -> Result<Option<StoredChunk>, Trouble> {
        while self.check.taken() < self.large.manifest.chunks {
            let next = bounded(self.source, self.large, self.subject.next());
            let Some(stored) = next.await?? else {
                let what = format!("chunk {}", self.check.taken());
                return Err(absent(self.large, &what).into());
            };
            self.source.status.moved();
            if let Some(chunk) = self.check(stored).await? {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    async fn check(&mut self, stored: StoredFrameBytes) -> Result<Option<StoredChunk>, Trouble> {
        let Source {
            reader, options, ..
        } = self.source;
        let opening = position::open_stored(reader, options, stored.sequence, stored.payload);
        let (opened, bytes) = bounded(self.source, self.large, opening).await??;
        let (sequence, digest) = (opened.sequence, opened.digest);
        let piece = self.check.take(opened);
        let piece = piece.map_err(|bad| bad_chunk(self.large, bad))?;
        Ok(piece.map(|piece| StoredChunk {
            sequence,
            digest,
            bytes,
            piece,
        }))
    }

    /// [`ChunkCheck::finish`].
    pub(crate) fn finish(self) -> Result<(), Halt> {
        let checked = self.check.finish(self.large.manifest);
        checked.map_err(|bad| bad_chunk(self.large, bad))
    }
}

fn bad_chunk(large: Large<'_>, bad: BadChunk) -> Halt {
    match bad {
        BadChunk::Damaged(what) => damaged(large, &what),
        BadChunk::Absent(what) => absent(large, &what),
    }
}

/// While it is waited for, a target transaction is open, with its locks; and our watch asks the
/// session now and then, so that the server's own limit for idle transactions never strikes.
async fn bounded<T>(
    source: &Source<'_>,
    large: Large<'_>,
    reading: impl Future<Output = T>,
) -> Result<T, Trouble> {
    let limit = source.options.stall_timeout;
    tokio::time::timeout(limit, reading).await.map_err(|_| {
        Trouble::passing(format!(
            "the broker sent no further chunk of transaction {} within {} s",
            large.manifest.identity(),
            limit.as_secs_f64()
        ))
    })
}

/// What is wrong with a chunked transaction's bytes; nothing of it is committed.
pub(crate) fn damaged(large: Large<'_>, what: &str) -> Halt {
    Halt::new(
        HaltCode::Corrupt,
        format!(
            "transaction {} (manifest at sequence {}) is damaged: {what}",
            large.manifest.identity(),
            large.sequence
        ),
        "nothing of it was applied; restore the stream, or copy its tables anew",
    )
}

fn absent(large: Large<'_>, what: &str) -> Halt {
    Halt::new(
        HaltCode::Gap,
        format!(
            "{what} of transaction {} (manifest at sequence {}) is not in the stream",
            large.manifest.identity(),
            large.sequence
        ),
        "nothing of it was applied; who purged subjects of this stream? restore it, or copy the \
         transaction's tables anew",
    )
}
