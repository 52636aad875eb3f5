//! The first byte of a message.

use std::fmt;

use crate::Error;

/// The kind of a message, in the order of the protocol's chapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Begins a transaction that is sent after its commit.
    Begin = b'B',
    /// Logical message of `pg_logical_emit_message`.
    Logical = b'M',
    /// Ends what [`Kind::Begin`] began.
    Commit = b'C',
    /// The transaction came from elsewhere.
    Origin = b'O',
    /// Describes a table.
    Relation = b'R',
    /// Names a type that is not built in.
    Type = b'Y',
    /// A row came.
    Insert = b'I',
    /// A row changed.
    Update = b'U',
    /// A row went.
    Delete = b'D',
    /// All rows of tables went.
    Truncate = b'T',
    /// Begins a block of a transaction that is still open.
    StreamStart = b'S',
    /// Ends that block.
    StreamStop = b'E',
    /// A transaction sent in blocks was committed.
    StreamCommit = b'c',
    /// A transaction sent in blocks, or a subtransaction of it, was rolled back. PostgreSQL 18
    /// also sends it for transactions of which it never sent a block; such a one is ignored.
    StreamAbort = b'A',
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 14] = [
        Kind::Begin,
        Kind::Logical,
        Kind::Commit,
        Kind::Origin,
        Kind::Relation,
        Kind::Type,
        Kind::Insert,
        Kind::Update,
        Kind::Delete,
        Kind::Truncate,
        Kind::StreamStart,
        Kind::StreamStop,
        Kind::StreamCommit,
        Kind::StreamAbort,
    ];

    /// The kind that `byte` stands for. The five kinds of two-phase commit are refused by name.
    pub fn of(byte: u8) -> Result<Kind, Error> {
        Ok(match byte {
            b'B' => Kind::Begin,
            b'M' => Kind::Logical,
            b'C' => Kind::Commit,
            b'O' => Kind::Origin,
            b'R' => Kind::Relation,
            b'Y' => Kind::Type,
            b'I' => Kind::Insert,
            b'U' => Kind::Update,
            b'D' => Kind::Delete,
            b'T' => Kind::Truncate,
            b'S' => Kind::StreamStart,
            b'E' => Kind::StreamStop,
            b'c' => Kind::StreamCommit,
            b'A' => Kind::StreamAbort,
            b'b' => return Err(Error::TwoPhase("begin prepare")),
            b'P' => return Err(Error::TwoPhase("prepare")),
            b'K' => return Err(Error::TwoPhase("commit prepared")),
            b'r' => return Err(Error::TwoPhase("rollback prepared")),
            b'p' => return Err(Error::TwoPhase("stream prepare")),
            other => return Err(Error::UnknownKind(other)),
        })
    }

    /// Whether it changes rows; these are what `total_order` counts.
    pub fn is_change(self) -> bool {
        matches!(
            self,
            Kind::Insert | Kind::Update | Kind::Delete | Kind::Truncate
        )
    }

    /// Whether a message of this kind carries a (sub)transaction id behind its kind byte while it
    /// stands inside a stream block.
    pub fn carries_xid(self) -> bool {
        self.is_change() || matches!(self, Kind::Relation | Kind::Type | Kind::Logical)
    }

    /// Whether a message of this kind may stand among a transaction's records.
    pub fn is_record(self) -> bool {
        self.carries_xid() || self == Kind::Origin
    }

    /// The kind in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Begin => "begin",
            Kind::Logical => "logical message",
            Kind::Commit => "commit",
            Kind::Origin => "origin",
            Kind::Relation => "relation",
            Kind::Type => "type",
            Kind::Insert => "insert",
            Kind::Update => "update",
            Kind::Delete => "delete",
            Kind::Truncate => "truncate",
            Kind::StreamStart => "stream start",
            Kind::StreamStop => "stream stop",
            Kind::StreamCommit => "stream commit",
            Kind::StreamAbort => "stream abort",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
