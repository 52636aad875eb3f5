//! What travels inside CopyData between walsender and receiver.

use std::fmt;

use trellara_envelope::{CommitTime, Lsn};

use crate::Error;
use crate::cursor::Cursor;

/// A message of the walsender.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Walsender<'a> {
    /// A pgoutput message.
    XLogData {
        /// Where it stands in the log; zero for messages without a place.
        start: Lsn,
        /// The walsender's position; the same as `start` in logical replication.
        end: Lsn,
        /// The server's clock.
        send_time: CommitTime,
        /// The pgoutput message.
        payload: &'a [u8],
    },
    /// A sign of life.
    Keepalive {
        /// Everything committed below it was sent.
        wal_end: Lsn,
        /// The server's clock.
        send_time: CommitTime,
        /// Whether an answer is wanted at once.
        reply_requested: bool,
    },
}

impl fmt::Debug for Walsender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Walsender::XLogData { start, payload, .. } => {
                write!(f, "XLogData({start}, {} bytes)", payload.len())
            }
            Walsender::Keepalive {
                wal_end,
                reply_requested,
                ..
            } => write!(
                f,
                "Keepalive({wal_end}, reply_requested: {reply_requested})"
            ),
        }
    }
}

/// Decodes the payload of one CopyData.
pub fn walsender(copy_data: &[u8]) -> Result<Walsender<'_>, Error> {
    let mut cursor = Cursor::new(copy_data);
    match cursor.u8("walsender kind")? {
        b'w' => Ok(Walsender::XLogData {
            start: cursor.lsn("start LSN")?,
            end: cursor.lsn("end LSN")?,
            send_time: cursor.time("send time")?,
            payload: cursor.rest(),
        }),
        b'k' => {
            let keepalive = Walsender::Keepalive {
                wal_end: cursor.lsn("WAL end")?,
                send_time: cursor.time("send time")?,
                reply_requested: crate::decode::boolean(&mut cursor, "reply flag")?,
            };
            cursor.finish("keepalive")?;
            Ok(keepalive)
        }
        other => Err(Error::UnknownKind(other)),
    }
}

/// Length of a status update.
pub const STATUS_UPDATE_BYTES: usize = 34;

/// A standby status update: what was received, stored and applied, by our clock, and whether an
/// answer is wanted at once.
pub fn status_update(
    written: Lsn,
    flushed: Lsn,
    applied: Lsn,
    clock: CommitTime,
    reply: bool,
) -> [u8; STATUS_UPDATE_BYTES] {
    let mut out = [0; STATUS_UPDATE_BYTES];
    let fields = [
        written.0.to_be_bytes(),
        flushed.0.to_be_bytes(),
        applied.0.to_be_bytes(),
        clock.0.to_be_bytes(),
    ];
    let bytes = std::iter::once(b'r')
        .chain(fields.into_iter().flatten())
        .chain(std::iter::once(u8::from(reply)));
    for (slot, byte) in out.iter_mut().zip(bytes) {
        *slot = byte;
    }
    out
}
