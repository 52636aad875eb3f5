//! Rows become parts, and parts are cut into frames' payloads. Pure.

use bytes::{Bytes, BytesMut};
use trellara_envelope::{FrameDigest, RunningDigest};

/// How large what may be. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// A frame's payload.
    pub(super) chunk_bytes: usize,
    /// A part, unless a single row is larger.
    pub(super) part_bytes: usize,
    /// A row; a larger one cannot be sent.
    pub(super) row_bytes: usize,
}

impl Sizes {
    /// What a stream of this limit can take in, so that it is never full of one part alone: it is
    /// trimmed in whole parts, and whoever waits for room must get some.
    pub(super) fn of(
        wanted_part: usize,
        message: usize,
        stream: Option<u64>,
        workers: usize,
    ) -> Self {
        /// Room for the head of a frame in a message.
        const HEAD: usize = 8 << 10;
        /// From here on an fsync per message costs nearly nothing.
        const CHUNK: usize = 512 << 10;
        /// What all readers may collect, whatever their number.
        const COLLECTED: usize = 64 << 20;
        let stream = stream.map_or(usize::MAX, |bytes| {
            usize::try_from(bytes).unwrap_or(usize::MAX)
        });
        let workers = workers.max(1);
        let share = stream / (4 * workers);
        Self {
            chunk_bytes: CHUNK.min(message.saturating_sub(HEAD)).min(share).max(1),
            part_bytes: wanted_part.min(share).min(COLLECTED / workers).max(1),
            row_bytes: stream / 4,
        }
    }
}

/// A run of whole rows.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) chunks: Vec<Bytes>,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    pub(super) digest: FrameDigest,
}

/// A row that no stream of this limit can take.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowTooLarge {
    pub(super) bytes: usize,
}

/// Rows before the read broke off came in another form when it was repeated.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotTheSameRows;

/// Collects the rows of one piece of a table.
#[derive(Debug)]
pub(super) struct PartBuilder {
    sizes: Sizes,
    chunk: BytesMut,
    chunks: Vec<Bytes>,
    digest: RunningDigest,
    rows: u64,
    bytes: u64,
    /// Rows and bytes of the piece so far, in this part and those before.
    taken: (u64, u64),
    /// How many of them are still to come once more, because reading began anew.
    again: (u64, u64),
}

impl PartBuilder {
    pub(super) fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            chunk: BytesMut::new(),
            chunks: Vec::new(),
            digest: RunningDigest::new(),
            rows: 0,
            bytes: 0,
            taken: (0, 0),
            again: (0, 0),
        }
    }

    /// The piece is read from its beginning: the rows that were taken come once more, the same ones
    /// in the same order, because the snapshot is the same.
    pub(super) fn begin_again(&mut self) {
        self.again = self.taken;
    }

    /// Takes a row; the part before it when that is full.
    pub(super) fn push(&mut self, row: &[u8]) -> Result<Option<Part>, PushError> {
        if self.again.0 > 0 {
            let bytes = self
                .again
                .1
                .checked_sub(row.len() as u64)
                .ok_or(NotTheSameRows)?;
            self.again = (self.again.0 - 1, bytes);
            let fits = self.again.0 > 0 || bytes == 0;
            return if fits {
                Ok(None)
            } else {
                Err(NotTheSameRows.into())
            };
        }
        if row.len() > self.sizes.row_bytes {
            return Err(RowTooLarge { bytes: row.len() }.into());
        }
        let full = self.rows > 0
            && self.bytes.saturating_add(row.len() as u64) > self.sizes.part_bytes as u64;
        let before = if full { self.part() } else { None };
        self.append(row);
        self.rows += 1;
        self.bytes += row.len() as u64;
        self.taken = (self.taken.0 + 1, self.taken.1 + row.len() as u64);
        Ok(before)
    }

    /// The rows that are left, when the piece was read to its end.
    pub(super) fn finish(&mut self) -> Result<Option<Part>, NotTheSameRows> {
        if self.again != (0, 0) {
            return Err(NotTheSameRows);
        }
        Ok(self.part())
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.chunk.capacity() == 0 {
                self.chunk.reserve(self.sizes.chunk_bytes);
            }
            let room = self.sizes.chunk_bytes - self.chunk.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
            if self.chunk.len() == self.sizes.chunk_bytes {
                self.close_chunk();
            }
        }
    }

    fn close_chunk(&mut self) {
        let chunk = std::mem::take(&mut self.chunk).freeze();
        self.digest.update(&chunk);
        self.chunks.push(chunk);
    }

    fn part(&mut self) -> Option<Part> {
        if self.rows == 0 {
            return None;
        }
        if !self.chunk.is_empty() {
            self.close_chunk();
        }
        let digest = std::mem::take(&mut self.digest);
        Some(Part {
            chunks: std::mem::take(&mut self.chunks),
            rows: std::mem::take(&mut self.rows),
            bytes: std::mem::take(&mut self.bytes),
            digest: digest.current(),
        })
    }
}

/// Why a row was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushError {
    TooLarge(RowTooLarge),
    NotTheSame,
}

impl From<RowTooLarge> for PushError {
    fn from(error: RowTooLarge) -> Self {
        PushError::TooLarge(error)
    }
}

impl From<NotTheSameRows> for PushError {
    fn from(NotTheSameRows: NotTheSameRows) -> Self {
        PushError::NotTheSame
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn sizes() -> Sizes {
        Sizes {
            chunk_bytes: 10,
            part_bytes: 35,
            row_bytes: 100,
        }
    }

    proptest! {
        /// Whatever the rows and wherever reading breaks off, the parts hold every row once, whole
        /// and in order, within their sizes.
        #[test]
        fn parts_are_the_rows(
            rows in vec(vec(any::<u8>(), 1..60), 0..40), breaks in vec(0usize..40, 0..4),
        ) {
            let mut builder = PartBuilder::new(sizes());
            let mut parts = Vec::new();
            for upto in breaks {
                for row in rows.iter().take(upto) {
                    parts.extend(builder.push(row).expect("a row"));
                }
                builder.begin_again();
            }
            for row in &rows {
                parts.extend(builder.push(row).expect("a row"));
            }
            parts.extend(builder.finish().expect("the same rows"));
            let mut left = rows.iter();
            for part in &parts {
                let whole: Vec<u8> = part.chunks.concat();
                let mine: Vec<u8> = left.by_ref().take(part.rows as usize).flatten().copied().collect();
                prop_assert_eq!(&whole, &mine);
                prop_assert_eq!(part.bytes, whole.len() as u64);
                prop_assert_eq!(part.digest, FrameDigest::of(&whole));
                prop_assert!(part.rows == 1 || whole.len() <= 35);
                prop_assert!(part.chunks.iter().all(|chunk| (1..=10).contains(&chunk.len())));
            }
            prop_assert_eq!(left.next(), None);
        }
    }

    #[test]
    fn a_row_that_no_stream_takes_is_refused_with_its_size() {
        let mut builder = PartBuilder::new(sizes());
        let refused = builder.push(&[b'x'; 101]).expect_err("too large");
        assert_eq!(refused, PushError::TooLarge(RowTooLarge { bytes: 101 }));
    }

    #[test]
    fn other_rows_than_before_are_noticed() {
        let mut builder = PartBuilder::new(sizes());
        builder.push(b"one\n").expect("a row");
        builder.push(b"two\n").expect("a row");
        builder.begin_again();
        builder.push(b"one\n").expect("the same");
        assert_eq!(
            builder.push(b"three\n").expect_err("longer"),
            PushError::NotTheSame
        );
        builder.begin_again();
        builder.push(b"on\n").expect("not seen yet");
        assert_eq!(
            builder.push(b"two\n").expect_err("shorter"),
            PushError::NotTheSame
        );
        builder.begin_again();
        assert_eq!(builder.finish().expect_err("fewer"), NotTheSameRows);
    }

    #[test]
    fn a_small_stream_has_room_for_more_than_one_part_of_each_reader() {
        let small = Sizes::of(16 << 20, 1 << 20, Some(8 << 20), 2);
        assert_eq!((small.part_bytes, small.row_bytes), (1 << 20, 2 << 20));
        assert_eq!(small.chunk_bytes, 512 << 10);
        let narrow = Sizes::of(16 << 20, 64 << 10, Some(256 << 20), 2);
        assert_eq!(
            (narrow.part_bytes, narrow.chunk_bytes),
            (16 << 20, 56 << 10)
        );
        assert_eq!(Sizes::of(1 << 20, 1 << 20, None, 2).part_bytes, 1 << 20);
        let many = Sizes::of(16 << 20, 1 << 20, Some(1 << 40), 32);
        assert_eq!(
            many.part_bytes,
            2 << 20,
            "memory is not a matter of workers"
        );
    }
}
