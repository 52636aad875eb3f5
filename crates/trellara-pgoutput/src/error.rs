//! What can be wrong with bytes that should be pgoutput.

use trellara_envelope::Oid;

/// The bytes are not a message that this build can read. Whoever meets it stops and names it:
/// reading again gives the same answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The message ends inside a field.
    #[error("truncated: the message ends inside {what}")]
    Truncated {
        /// The field.
        what: &'static str,
    },
    /// The message goes on behind its last field.
    #[error("{bytes} bytes left over behind {what}")]
    TrailingBytes {
        /// The message or structure that was complete.
        what: &'static str,
        /// How many bytes follow.
        bytes: usize,
    },
    /// A kind byte that neither protocol version 1 nor 2 knows.
    #[error("unknown message kind 0x{0:02x}")]
    UnknownKind(u8),
    /// A message of two-phase commit, which a slot created by Trellara never sends.
    #[error("{0:?} message: the slot was created with two_phase, which is not supported")]
    TwoPhase(&'static str),
    /// A field holds a value that the protocol does not define.
    #[error("undefined {what} {value}")]
    Undefined {
        /// The field.
        what: &'static str,
        /// Its value; never a column's.
        value: u32,
    },
    /// A name is not UTF-8 although the session's encoding is.
    #[error("{what} is not valid UTF-8")]
    NotUtf8 {
        /// The field.
        what: &'static str,
    },
    /// A message that has no place among a transaction's records.
    #[error("a {0} message among a transaction's records")]
    OutOfPlace(&'static str),
    /// A record announces more than PostgreSQL can send in one message.
    #[error("a record of {0} bytes, more than one message can have")]
    RecordTooLarge(usize),
    /// The records of a transaction end inside a record.
    #[error("the transaction's records end inside a record")]
    TruncatedRecord,
    /// A change names a relation that was not described before it.
    #[error("a change of relation {0}, which was not described before it")]
    UnknownRelation(Oid),
    /// A tuple has another number of columns than its relation.
    #[error("a tuple with {have} columns for relation {relation}, which has {need}")]
    ColumnCount {
        /// The relation.
        relation: Oid,
        /// Columns of the tuple.
        have: usize,
        /// Columns of the relation.
        need: usize,
    },
}
