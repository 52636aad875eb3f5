//! The replication stream: read in gulps on a thread of its own, answered from another.

use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use trellara_envelope::Lsn;
use trellara_postgres::Fault;

/// What one read of the socket brought: the payloads of complete CopyData messages.
#[derive(Debug, Clone)]
pub struct Gulp {
    /// The bytes as read.
    pub bytes: Bytes,
    /// Where the CopyData payloads are in them, in order.
    pub messages: Vec<Range<usize>>,
    /// When they were read.
    pub read_at: Instant,
}

/// What the reading thread sends.
#[derive(Debug, Clone)]
pub enum StreamEvent {
    /// Messages.
    Gulp(Gulp),
    /// The server warns (C06: never to be ignored).
    Notice(Fault),
    /// The stream has ended; nothing follows.
    Ended(StreamEnd),
}

/// Why a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The server ended it with an error.
    Error(Fault),
    /// The server closed it in an orderly way.
    Done,
    /// The connection was lost or closed by us.
    Lost(String),
}

/// The three positions of a status update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Received.
    pub write: Lsn,
    /// Confirmed: the server may forget everything before it.
    pub flush: Lsn,
    /// Applied, as a synchronous commit with `remote_apply` sees it.
    pub apply: Lsn,
}
