//! The relay's look at a message: enough to route it, without reading its tuples.

use std::fmt;

use trellara_envelope::{Oid, Xid};

use crate::cursor::Cursor;
use crate::decode::stream_xid;
use crate::{Error, Kind};

/// What the relay needs to know of a message that it passes on unread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek<'a> {
    /// The kind.
    pub kind: Kind,
    /// The (sub)transaction, for the kinds that carry one inside a stream block.
    pub xid: Option<Xid>,
    /// The relation described or changed; several for a truncate, none for other kinds.
    pub relations: Oids<'a>,
}

/// Looks at kind, transaction id and relations of a message; the rest of it stays unread and
/// unchecked.
pub fn peek(message: &[u8], in_stream: bool) -> Result<Peek<'_>, Error> {
    let mut cursor = Cursor::new(message);
    let kind = Kind::of(cursor.u8("kind")?)?;
    let xid = stream_xid(&mut cursor, kind, in_stream)?;
    let relations = match kind {
        Kind::Relation | Kind::Insert | Kind::Update | Kind::Delete => {
            Oids::decode(&mut cursor, 1)?
        }
        Kind::Truncate => {
            let count = cursor.length("number of relations")?;
            cursor.u8("truncate options")?;
            Oids::decode(&mut cursor, count)?
        }
        Kind::Begin
        | Kind::Logical
        | Kind::Commit
        | Kind::Origin
        | Kind::Type
        | Kind::StreamStart
        | Kind::StreamStop
        | Kind::StreamCommit
        | Kind::StreamAbort => Oids::default(),
    };
    Ok(Peek {
        kind,
        xid,
        relations,
    })
}

/// Object ids, borrowed; an iterator over them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Oids<'a> {
    bytes: &'a [u8],
}

const OID_BYTES: usize = 4;

impl<'a> Oids<'a> {
    pub(crate) fn decode(cursor: &mut Cursor<'a>, count: usize) -> Result<Self, Error> {
        let what = "relation oid";
        let length = count
            .checked_mul(OID_BYTES)
            .ok_or(Error::Truncated { what })?;
        cursor.take(length, what).map(|bytes| Oids { bytes })
    }

    /// The only one, or the first of several.
    pub fn first(&self) -> Option<Oid> {
        let mut copy = *self;
        copy.next()
    }
}

impl Iterator for Oids<'_> {
    type Item = Oid;

    fn next(&mut self) -> Option<Oid> {
        let (oid, rest) = self.bytes.split_first_chunk::<OID_BYTES>()?;
        self.bytes = rest;
        Some(Oid(u32::from_be_bytes(*oid)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.bytes.len() / OID_BYTES;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Oids<'_> {}

impl fmt::Debug for Oids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
