//! Reading bytes in order: the only place in this crate that knows their positions.

use trellara_envelope::{CommitTime, Lsn, Oid, Xid};

use crate::Error;

/// What is left of a message; every method checks the length before it takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Everything not taken yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The bytes between `start` (an earlier copy of this cursor) and here.
    pub(crate) fn since(&self, start: Cursor<'a>) -> &'a [u8] {
        let taken = start.rest.len().saturating_sub(self.rest.len());
        start.rest.get(..taken).unwrap_or_default()
    }

    pub(crate) fn take(&mut self, bytes: usize, what: &'static str) -> Result<&'a [u8], Error> {
        let (taken, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(Error::Truncated { what })?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Error::Truncated { what })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Error> {
        self.array(what).map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, Error> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        self.array(what).map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, Error> {
        self.array(what).map(i32::from_be_bytes)
    }

    pub(crate) fn oid(&mut self, what: &'static str) -> Result<Oid, Error> {
        self.u32(what).map(Oid)
    }

    pub(crate) fn xid(&mut self, what: &'static str) -> Result<Xid, Error> {
        self.u32(what).map(Xid)
    }

    pub(crate) fn lsn(&mut self, what: &'static str) -> Result<Lsn, Error> {
        self.array(what).map(|bytes| Lsn(u64::from_be_bytes(bytes)))
    }

    pub(crate) fn time(&mut self, what: &'static str) -> Result<CommitTime, Error> {
        self.array(what)
            .map(|bytes| CommitTime(i64::from_be_bytes(bytes)))
    }

    /// A length as the protocol sends it: a signed 32-bit number that must not be negative.
    pub(crate) fn length(&mut self, what: &'static str) -> Result<usize, Error> {
        let length = self.i32(what)?;
        usize::try_from(length).map_err(|_| Error::Undefined {
            what,
            value: length.cast_unsigned(),
        })
    }

    /// A string that ends with a zero byte, which is not part of it.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, Error> {
        let end = self
            .rest
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Error::Truncated { what })?;
        let text = self.take(end, what)?;
        self.take(1, what)?;
        std::str::from_utf8(text).map_err(|_| Error::NotUtf8 { what })
    }

    /// Nothing may follow.
    pub(crate) fn finish(self, what: &'static str) -> Result<(), Error> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(Error::TrailingBytes { what, bytes }),
        }
    }
}
