//! How full the stream is, by the broker's figures and our own publishes since (C12).

use std::collections::VecDeque;

use trellara_envelope::{FrameKind, StreamSequence};

/// What the broker said about the stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamSpace {
    /// Bytes stored.
    pub bytes: u64,
    /// Limit; `None` means unlimited.
    pub max_bytes: Option<u64>,
    /// The last message that `bytes` counts.
    pub last_sequence: StreamSequence,
}

#[derive(Debug, Default)]
pub(super) struct Space {
    stream: StreamSpace,
    /// Published since: sequence and size.
    since: VecDeque<(StreamSequence, u64)>,
    since_bytes: u64,
}

/// What a message costs besides its payload: subject, headers, the store's own record.
pub(super) const MESSAGE_OVERHEAD: u64 = 512;

/// Kept free for markers, manifests, abort frames and heartbeats, so that what frees the stream
/// always fits; an eighth of a small stream.
const RESERVE_BYTES: u64 = 64 << 20;

impl Space {
    pub(super) fn update(&mut self, stream: StreamSpace) {
        self.stream = stream;
        while let Some((sequence, bytes)) = self.since.front().copied() {
            if sequence > stream.last_sequence {
                break;
            }
            self.since_bytes -= bytes;
            self.since.pop_front();
        }
    }

    /// A frame is handed to the broker.
    pub(super) fn published(&mut self, sequence: StreamSequence, payload: usize) {
        if self.since.back().is_some_and(|(last, _)| *last >= sequence) {
            return;
        }
        let bytes = payload as u64 + MESSAGE_OVERHEAD;
        self.since.push_back((sequence, bytes));
        self.since_bytes += bytes;
    }

    /// Whether a frame fits; data frames leave the reserve alone.
    pub(super) fn fits(&self, kind: FrameKind, payload: usize) -> bool {
        let limit = match kind {
            FrameKind::Bundle | FrameKind::Chunk => self.data_limit(),
            FrameKind::Genesis
            | FrameKind::Marker
            | FrameKind::Heartbeat
            | FrameKind::Abort
            | FrameKind::Manifest => self.stream.max_bytes.unwrap_or(u64::MAX),
        };
        self.used() + payload as u64 + MESSAGE_OVERHEAD <= limit
    }

    /// Bytes in the stream, about.
    pub(super) fn used(&self) -> u64 {
        self.stream.bytes + self.since_bytes
    }

    /// What data frames may fill.
    pub(super) fn data_limit(&self) -> u64 {
        match self.stream.max_bytes {
            None => u64::MAX,
            Some(max) => max - RESERVE_BYTES.min(max / 8),
        }
    }

    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.stream.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks of a dead relay's open transaction fill the stream as far as data may; what tells
    /// the applier that they are garbage still fits, however often the relay begins again.
    #[test]
    fn c13_a_marker_fits_into_a_stream_full_of_chunks() {
        let mut space = Space::default();
        let max = 1 << 30;
        space.update(StreamSpace {
            bytes: 0,
            max_bytes: Some(max),
            last_sequence: StreamSequence(0),
        });
        let chunk = 512 << 10;
        let mut sequence = StreamSequence(0);
        while space.fits(FrameKind::Chunk, chunk) {
            sequence = sequence.next();
            space.published(sequence, chunk);
        }
        assert!(!space.fits(FrameKind::Bundle, chunk));
        for _ in 0..64 {
            assert!(space.fits(FrameKind::Marker, chunk));
            sequence = sequence.next();
            space.published(sequence, chunk);
        }
        assert!(space.used() <= max);
    }
}
