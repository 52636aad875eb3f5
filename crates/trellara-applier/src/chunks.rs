//! One large transaction, read from its chunk subject while it is being applied (C15, C16).

use std::future::Future;

use trellara_envelope::{
    Abort, AbortedSet, Body, Chunk, Frame, Halt, HaltCode, Incarnation, Manifest, RunningDigest,
    StreamSequence,
};
use trellara_jetstream::read::{StoredFrameBytes, SubjectReader};

use crate::apply::Source;
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

/// Reads the abort frames backwards from the last one, and checks them against the manifest. Their
/// ranges come in falling order: they are gathered and sorted, not inserted.
pub(crate) async fn aborted(source: &Source<'_>, large: Large<'_>) -> Result<AbortedSet, Trouble> {
    let manifest = large.manifest;
    let mut ranges = Vec::new();
    let mut merge_at = UNMERGED;
    let mut at = manifest.last_abort;
    for number in (0..manifest.aborts).rev() {
        let Some(sequence) = at else {
            return Err(absent(large, &format!("abort frame {number}")).into());
        };
        let Some(stored) = source.reader.get(sequence).await? else {
            return Err(absent(large, &format!("abort frame {number}")).into());
        };
        let opened =
            position::open(source.reader, source.options, sequence, stored.payload).await?;
        source.status.moved();
        let abort = match opened.frame {
            Frame {
                body: Body::Abort(abort),
                header,
                ..
            } if is_part(&abort, header.incarnation, number, large) => abort,
            _ => {
                return Err(damaged(
                    large,
                    &format!("sequence {sequence} is not its abort frame {number}"),
                )
                .into());
            }
        };
        ranges.extend(abort.ranges);
        if ranges.len() >= merge_at {
            ranges = AbortedSet::from_ranges(ranges).ranges().to_vec();
            merge_at = UNMERGED.max(ranges.len() * 2);
        }
        at = abort.earlier;
    }
    let aborted = AbortedSet::from_ranges(ranges);
    if at.is_some() || aborted.digest() != manifest.aborts_digest {
        return Err(damaged(large, "its abort frames do not have the manifest's digest").into());
    }
    Ok(aborted)
}

fn is_part(abort: &Abort, incarnation: Incarnation, number: u64, large: Large<'_>) -> bool {
    abort.xid == large.manifest.xid
        && incarnation == large.incarnation
        && abort.number == number
        && !abort.whole
}

/// Reads the chunks from first to last, each checked before it is handed out.
pub(crate) struct ChunkStream<'a> {
    large: Large<'a>,
    source: &'a Source<'a>,
    subject: SubjectReader,
    digest: RunningDigest,
    next: u64,
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
            digest: RunningDigest::new(),
            next: 0,
        })
    }

    /// The next piece of the transaction's bytes; `None` behind the last chunk that the manifest
    /// counts. Reading stops there: what a later chunk with the same number might say is of no
    /// interest.
    pub(crate) async fn next(&mut self) -> Result<Option<bytes::Bytes>, Trouble> {
        while self.next < self.large.manifest.chunks {
            let next = bounded(self.source, self.large, self.subject.next());
            let Some(stored) = next.await?? else {
                return Err(absent(self.large, &format!("chunk {}", self.next)).into());
            };
            self.source.status.moved();
            if let Some(piece) = self.check(stored).await? {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    async fn check(&mut self, stored: StoredFrameBytes) -> Result<Option<bytes::Bytes>, Trouble> {
        let Source {
            reader, options, ..
        } = self.source;
        let opening = position::open(reader, options, stored.sequence, stored.payload);
        let opened = bounded(self.source, self.large, opening).await??;
        let chunk = match &opened.frame.body {
            Body::Chunk(chunk) => *self.expect(chunk, opened.frame.header.incarnation)?,
            // Read already, before the first chunk.
            Body::Abort(_) => return Ok(None),
            Body::Genesis(_)
            | Body::Marker(_)
            | Body::Heartbeat(_)
            | Body::Bundle(_)
            | Body::Manifest(_) => {
                let what = format!("sequence {} is not a chunk", opened.sequence);
                return Err(damaged(self.large, &what).into());
            }
        };
        let piece = opened.frame.payload;
        self.digest.update(&piece);
        if self.digest.current() != chunk {
            let what = format!("chunk {} does not have its running digest", self.next);
            return Err(damaged(self.large, &what).into());
        }
        self.next += 1;
        Ok(Some(piece))
    }

    fn expect<'c>(
        &self,
        chunk: &'c Chunk,
        incarnation: Incarnation,
    ) -> Result<&'c trellara_envelope::FrameDigest, Halt> {
        let large = self.large;
        if chunk.xid != large.manifest.xid || incarnation != large.incarnation {
            return Err(damaged(
                large,
                "a chunk of another transaction is among its own",
            ));
        }
        if chunk.number > self.next {
            return Err(absent(large, &format!("chunk {}", self.next)));
        }
        if chunk.number < self.next {
            let what = format!("chunk {} comes twice", chunk.number);
            return Err(damaged(large, &what));
        }
        Ok(&chunk.running)
    }

    /// The final check before anything may be committed: count, bytes and digest of what was
    /// handed out are the manifest's.
    pub(crate) fn finish(self) -> Result<(), Halt> {
        let manifest = self.large.manifest;
        if self.next != manifest.chunks
            || self.digest.bytes() != manifest.bytes
            || self.digest.current() != manifest.running
        {
            let what = format!(
                "its chunks hold {} bytes with digest {}, the manifest says {} with {}",
                self.digest.bytes(),
                self.digest.current(),
                manifest.bytes,
                manifest.running
            );
            return Err(damaged(self.large, &what));
        }
        Ok(())
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
