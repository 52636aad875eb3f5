//! Messages as values.

use trellara_envelope::{CommitTime, Lsn, Oid, Xid};

use crate::{Kind, Oids, RelationBody, TupleRef};

/// A decoded message; everything in it is borrowed from the bytes.
///
/// `xid` is there only inside a stream block, and then names the (sub)transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// Begins a transaction that is sent after its commit.
    Begin {
        /// Start of the commit record; the same as `commit_lsn` of the commit message.
        final_lsn: Lsn,
        /// Commit timestamp.
        commit_time: CommitTime,
        /// Top-level transaction id.
        xid: Xid,
    },
    /// Ends such a transaction.
    Commit {
        /// None is defined; zero.
        flags: u8,
        /// Start of the commit record.
        commit_lsn: Lsn,
        /// End of the commit record.
        end_lsn: Lsn,
        /// Commit timestamp.
        commit_time: CommitTime,
    },
    /// The transaction came from elsewhere.
    Origin {
        /// Its commit position there; zero when it is not known yet.
        commit_lsn: Lsn,
        /// Name of the origin.
        name: &'a str,
    },
    /// Describes a table.
    Relation(RelationBody<'a>),
    /// Names a type that is not built in.
    Type(TypeBody<'a>),
    /// A row came.
    Insert {
        /// The (sub)transaction, inside a stream block.
        xid: Option<Xid>,
        /// The table.
        relation: Oid,
        /// The row.
        new: TupleRef<'a>,
    },
    /// A row changed.
    Update {
        /// The (sub)transaction, inside a stream block.
        xid: Option<Xid>,
        /// The table.
        relation: Oid,
        /// What the row was; absent when its key did not change and the identity is not FULL.
        old: Option<OldTuple<'a>>,
        /// What the row is.
        new: TupleRef<'a>,
    },
    /// A row went.
    Delete {
        /// The (sub)transaction, inside a stream block.
        xid: Option<Xid>,
        /// The table.
        relation: Oid,
        /// What the row was.
        old: OldTuple<'a>,
    },
    /// All rows of tables went.
    Truncate {
        /// The (sub)transaction, inside a stream block.
        xid: Option<Xid>,
        /// The tables, all truncated by one statement.
        relations: Oids<'a>,
        /// How.
        options: TruncateOptions,
    },
    /// Logical message of `pg_logical_emit_message`.
    Logical(LogicalMessage<'a>),
    /// Begins a block of a transaction that is still open.
    StreamStart {
        /// Top-level transaction id.
        xid: Xid,
        /// Whether it is the first block of that transaction in this connection.
        first: bool,
    },
    /// Ends that block.
    StreamStop,
    /// A transaction sent in blocks was committed.
    StreamCommit {
        /// Top-level transaction id.
        xid: Xid,
        /// None is defined; zero.
        flags: u8,
        /// Start of the commit record.
        commit_lsn: Lsn,
        /// End of the commit record.
        end_lsn: Lsn,
        /// Commit timestamp.
        commit_time: CommitTime,
    },
    /// A transaction sent in blocks, or a part of it, was rolled back. It may come for a
    /// transaction of which no block came (B24).
    StreamAbort {
        /// Top-level transaction id.
        xid: Xid,
        /// What was rolled back: a subtransaction, or the same as `xid` for all of it.
        subxid: Xid,
    },
}

/// A type that is not built in. Of a domain PostgreSQL sends the oid with the name of its base
/// type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeBody<'a> {
    /// The (sub)transaction, inside a stream block.
    pub xid: Option<Xid>,
    /// The type.
    pub oid: Oid,
    /// Its schema; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

impl TypeBody<'_> {
    /// The message again, as it stands inside (`Some`) or outside a stream block.
    pub fn encode(&self, xid: Option<Xid>) -> Vec<u8> {
        let mut out = vec![Kind::Type as u8];
        if let Some(xid) = xid {
            out.extend_from_slice(&xid.0.to_be_bytes());
        }
        out.extend_from_slice(&self.oid.0.to_be_bytes());
        for text in [self.namespace, self.name] {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        }
        out
    }
}

/// What a row was before it changed or went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// The columns of the replica identity; all others are [`crate::Value::Null`].
    Key(TupleRef<'a>),
    /// The whole row: replica identity FULL.
    Full(TupleRef<'a>),
}

impl<'a> OldTuple<'a> {
    /// The tuple, whichever it is.
    pub fn tuple(&self) -> TupleRef<'a> {
        match self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => *tuple,
        }
    }
}

/// How tables were truncated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TruncateOptions {
    /// CASCADE was given; the tables it reached are named as well.
    pub cascade: bool,
    /// RESTART IDENTITY was given.
    pub restart_identity: bool,
}

/// A logical message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// The (sub)transaction, inside a stream block.
    pub xid: Option<Xid>,
    /// Whether it belongs to a transaction; others come at once, between transactions.
    pub transactional: bool,
    /// Where it stands in the log.
    pub lsn: Lsn,
    /// Who wrote it.
    pub prefix: &'a str,
    /// What was written.
    pub content: &'a [u8],
}

impl std::fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("xid", &self.xid)
            .field("transactional", &self.transactional)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content", &format_args!("{} bytes", self.content.len()))
            .finish()
    }
}

impl Message<'_> {
    /// The kind.
    pub fn kind(&self) -> Kind {
        match self {
            Message::Begin { .. } => Kind::Begin,
            Message::Commit { .. } => Kind::Commit,
            Message::Origin { .. } => Kind::Origin,
            Message::Relation(_) => Kind::Relation,
            Message::Type(_) => Kind::Type,
            Message::Insert { .. } => Kind::Insert,
            Message::Update { .. } => Kind::Update,
            Message::Delete { .. } => Kind::Delete,
            Message::Truncate { .. } => Kind::Truncate,
            Message::Logical(_) => Kind::Logical,
            Message::StreamStart { .. } => Kind::StreamStart,
            Message::StreamStop => Kind::StreamStop,
            Message::StreamCommit { .. } => Kind::StreamCommit,
            Message::StreamAbort { .. } => Kind::StreamAbort,
        }
    }
}
