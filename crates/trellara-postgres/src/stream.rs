//! The replication stream: blocking halves for a dedicated thread.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::Fault;

/// Both directions of a started replication stream.
pub struct CopyBoth {
    /// For the one thread that reads.
    pub reader: CopyReader,
    /// For whoever answers.
    pub writer: CopyWriter,
}

/// One message of the server inside a replication stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerMessage {
    /// The payload of a CopyData.
    CopyData(Bytes),
    /// A notice or warning (rule C06: never to be ignored).
    Notice(Fault),
    /// The server ends the stream with an error.
    Error(Fault),
    /// The server is done.
    CopyDone,
    /// Anything else, by its tag; nothing to do.
    Other(u8),
}

impl ServerMessage {
    /// Takes the next whole message off `buffer`; `None` when it is not complete yet.
    pub fn take(_buffer: &mut BytesMut) -> io::Result<Option<ServerMessage>> {
        Ok(None)
    }
}

/// The reading half.
pub struct CopyReader {
    _private: (),
}

impl CopyReader {
    /// One blocking receive, appended to `buffer`; 0 means the server closed the connection.
    /// Errors with `WouldBlock` or `TimedOut` when the read timeout passes.
    pub fn read_some(&mut self, _buffer: &mut BytesMut) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// How long `read_some` waits; `None` for ever.
    pub fn set_read_timeout(&self, _timeout: Option<Duration>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The writing half; clones write to the same connection.
#[derive(Clone)]
pub struct CopyWriter {
    _private: (),
}

impl CopyWriter {
    /// Sends one CopyData message.
    pub fn send_copy_data(&self, _payload: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends CopyDone.
    pub fn send_copy_done(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Shuts the socket down, which wakes the reader.
    pub fn shutdown(&self) {}
}
