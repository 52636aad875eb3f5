//! One message from its bytes.

use trellara_envelope::Xid;

use crate::cursor::Cursor;
use crate::{
    Error, Kind, LogicalMessage, Message, Oids, OldTuple, RelationBody, TruncateOptions, TupleRef,
    TypeBody,
};

const CASCADE: u8 = 1;
const RESTART_IDENTITY: u8 = 2;
const TRANSACTIONAL: u8 = 1;

/// Decodes one message. `in_stream` says whether it stands inside a stream block (or among the
/// records of a streamed transaction), where some kinds carry a transaction id.
///
/// Every length is checked before it is used, and bytes left over are an error, so a message is
/// either understood wholly or not at all.
pub fn decode(message: &[u8], in_stream: bool) -> Result<Message<'_>, Error> {
    let mut cursor = Cursor::new(message);
    let kind = Kind::of(cursor.u8("kind")?)?;
    let xid = stream_xid(&mut cursor, kind, in_stream)?;
    let decoded = match kind {
        Kind::Begin => Message::Begin {
            final_lsn: cursor.lsn("final LSN")?,
            commit_time: cursor.time("commit time")?,
            xid: cursor.xid("transaction id")?,
        },
        Kind::Commit => Message::Commit {
            flags: no_flags(&mut cursor)?,
            commit_lsn: cursor.lsn("commit LSN")?,
            end_lsn: cursor.lsn("end LSN")?,
            commit_time: cursor.time("commit time")?,
        },
        Kind::Origin => Message::Origin {
            commit_lsn: cursor.lsn("origin LSN")?,
            name: cursor.text("origin name")?,
        },
        Kind::Relation => Message::Relation(RelationBody::decode(&mut cursor, xid)?),
        Kind::Type => Message::Type(TypeBody {
            xid,
            oid: cursor.oid("type oid")?,
            namespace: cursor.text("type schema")?,
            name: cursor.text("type name")?,
        }),
        Kind::Insert => insert(&mut cursor, xid)?,
        Kind::Update => update(&mut cursor, xid)?,
        Kind::Delete => delete(&mut cursor, xid)?,
        Kind::Truncate => truncate(&mut cursor, xid)?,
        Kind::Logical => logical(&mut cursor, xid)?,
        Kind::StreamStart => Message::StreamStart {
            xid: cursor.xid("transaction id")?,
            first: boolean(&mut cursor, "first-segment flag")?,
        },
        Kind::StreamStop => Message::StreamStop,
        Kind::StreamCommit => Message::StreamCommit {
            xid: cursor.xid("transaction id")?,
            flags: no_flags(&mut cursor)?,
            commit_lsn: cursor.lsn("commit LSN")?,
            end_lsn: cursor.lsn("end LSN")?,
            commit_time: cursor.time("commit time")?,
        },
        Kind::StreamAbort => Message::StreamAbort {
            xid: cursor.xid("transaction id")?,
            subxid: cursor.xid("subtransaction id")?,
        },
    };
    cursor.finish(kind.as_str())?;
    Ok(decoded)
}

/// The transaction id behind the kind byte, where there is one.
pub(crate) fn stream_xid(
    cursor: &mut Cursor<'_>,
    kind: Kind,
    in_stream: bool,
) -> Result<Option<Xid>, Error> {
    if in_stream && kind.carries_xid() {
        cursor.xid("transaction id").map(Some)
    } else {
        Ok(None)
    }
}

fn insert<'a>(cursor: &mut Cursor<'a>, xid: Option<Xid>) -> Result<Message<'a>, Error> {
    let relation = cursor.oid("relation oid")?;
    match cursor.u8("tuple kind")? {
        b'N' => Ok(Message::Insert {
            xid,
            relation,
            new: TupleRef::decode(cursor)?,
        }),
        other => Err(undefined_tuple(other)),
    }
}

fn update<'a>(cursor: &mut Cursor<'a>, xid: Option<Xid>) -> Result<Message<'a>, Error> {
    let relation = cursor.oid("relation oid")?;
    let mut kind = cursor.u8("tuple kind")?;
    let old = match kind {
        b'K' => Some(OldTuple::Key(TupleRef::decode(cursor)?)),
        b'O' => Some(OldTuple::Full(TupleRef::decode(cursor)?)),
        _ => None,
    };
    if old.is_some() {
        kind = cursor.u8("tuple kind")?;
    }
    if kind != b'N' {
        return Err(undefined_tuple(kind));
    }
    Ok(Message::Update {
        xid,
        relation,
        old,
        new: TupleRef::decode(cursor)?,
    })
}

fn delete<'a>(cursor: &mut Cursor<'a>, xid: Option<Xid>) -> Result<Message<'a>, Error> {
    let relation = cursor.oid("relation oid")?;
    let old = match cursor.u8("tuple kind")? {
        b'K' => OldTuple::Key(TupleRef::decode(cursor)?),
        b'O' => OldTuple::Full(TupleRef::decode(cursor)?),
        other => return Err(undefined_tuple(other)),
    };
    Ok(Message::Delete { xid, relation, old })
}

fn truncate<'a>(cursor: &mut Cursor<'a>, xid: Option<Xid>) -> Result<Message<'a>, Error> {
    let count = cursor.length("number of relations")?;
    let bits = cursor.u8("truncate options")?;
    if bits & !(CASCADE | RESTART_IDENTITY) != 0 {
        return Err(Error::Undefined {
            what: "truncate options",
            value: u32::from(bits),
        });
    }
    Ok(Message::Truncate {
        xid,
        relations: Oids::decode(cursor, count)?,
        options: TruncateOptions {
            cascade: bits & CASCADE != 0,
            restart_identity: bits & RESTART_IDENTITY != 0,
        },
    })
}

fn logical<'a>(cursor: &mut Cursor<'a>, xid: Option<Xid>) -> Result<Message<'a>, Error> {
    let flags = cursor.u8("message flags")?;
    if flags & !TRANSACTIONAL != 0 {
        return Err(Error::Undefined {
            what: "message flags",
            value: u32::from(flags),
        });
    }
    let lsn = cursor.lsn("message LSN")?;
    let prefix = cursor.text("message prefix")?;
    let length = cursor.length("message length")?;
    Ok(Message::Logical(LogicalMessage {
        xid,
        transactional: flags & TRANSACTIONAL != 0,
        lsn,
        prefix,
        content: cursor.take(length, "message content")?,
    }))
}

/// A flag of which only 0 and 1 are defined.
pub(crate) fn boolean(cursor: &mut Cursor<'_>, what: &'static str) -> Result<bool, Error> {
    match cursor.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::Undefined {
            what,
            value: u32::from(other),
        }),
    }
}

/// The flags of a commit: none is defined, and one that were would change what a commit means.
fn no_flags(cursor: &mut Cursor<'_>) -> Result<u8, Error> {
    match cursor.u8("commit flags")? {
        0 => Ok(0),
        other => Err(Error::Undefined {
            what: "commit flags",
            value: u32::from(other),
        }),
    }
}

fn undefined_tuple(kind: u8) -> Error {
    Error::Undefined {
        what: "tuple kind",
        value: u32::from(kind),
    }
}
