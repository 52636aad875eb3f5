//! A message too large to be gathered among others.
//!
//! It is received into memory of exactly its own size, which goes when whoever got it lets go of
//! it. In the common buffer it would stay there behind the last message, and a buffer that grows
//! for the next large one carries what was there before along: two rows where there is one. And it
//! is let in before it is received, so that a row is never received whole beside another that the
//! relay still works on. So the memory of all that is received is the limit of what is unread and
//! one row.

use bytes::{Buf, Bytes, BytesMut};

use super::gate::Pass;

/// A message larger than this is received by itself: as much as one receive brings.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// A large message on its way in, with tag and length.
#[derive(Debug)]
pub(super) struct Large {
    bytes: Vec<u8>,
    length: usize,
    pass: Pass,
}

impl Large {
    /// Room for a message of `length` bytes that was let in.
    pub(super) fn new(length: usize, pass: Pass) -> Self {
        Self {
            bytes: Vec::with_capacity(length),
            length,
            pass,
        }
    }

    /// Takes over what has come of it; whether that was all.
    pub(super) fn take_from(&mut self, buffer: &mut BytesMut) -> bool {
        let count = buffer.len().min(self.length - self.bytes.len());
        self.bytes.extend_from_slice(&buffer[..count]);
        buffer.advance(count);
        self.bytes.len() == self.length
    }

    /// The message, whole.
    pub(super) fn into_parts(self) -> (Bytes, Pass) {
        (self.bytes.into(), self.pass)
    }
}
