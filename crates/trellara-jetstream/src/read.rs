//! Reading single messages and whole subjects from the stream's leader.

use bytes::Bytes;
use std::time::SystemTime;
use trellara_envelope::StreamSequence;

use crate::{Broker, BrokerError, BrokerErrorKind};

/// A message as the stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFrameBytes {
    /// Its sequence in the stream.
    pub sequence: StreamSequence,
    /// Its subject.
    pub subject: String,
    /// Its bytes.
    pub payload: Bytes,
    /// Its headers, in order.
    pub headers: Vec<(String, String)>,
    /// When the server stored it, by the server's clock.
    pub time: SystemTime,
}

/// Reads single messages of one stream. Always asks the leader (STREAM.MSG.GET): a direct get may
/// be answered by a replica that lags.
#[derive(Clone, Debug)]
pub struct Reader {}

#[allow(clippy::unused_async)]
impl Reader {
    /// A reader of `stream`.
    pub fn new(_broker: &Broker, _stream: &str) -> Self {
        Reader {}
    }
    /// The last message that is there; `None` when the stream is empty.
    pub async fn tail(&self) -> Result<Option<StoredFrameBytes>, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "read",
            "not yet",
        ))
    }
    /// The message with this sequence; `None` when it is not there (any more, or yet).
    pub async fn get(
        &self,
        _sequence: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "read",
            "not yet",
        ))
    }
    /// The last message on a subject or filter (wildcards allowed).
    pub async fn last_on(&self, _filter: &str) -> Result<Option<StoredFrameBytes>, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "read",
            "not yet",
        ))
    }
    /// The first message on a subject or filter at or behind `from`.
    pub async fn next_on(
        &self,
        _filter: &str,
        _from: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "read",
            "not yet",
        ))
    }
}

/// Reads one subject from `first` to `last`, in order, with bounded read-ahead.
pub struct SubjectReader {}

#[allow(clippy::unused_async)]
impl SubjectReader {
    /// Opens at the first message on `subject` with a sequence in `first..=last`.
    pub async fn open(
        _broker: &Broker,
        _stream: &str,
        _subject: &str,
        _first: StreamSequence,
        _last: StreamSequence,
    ) -> Result<Self, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "read",
            "not yet",
        ))
    }
    /// The next message; `None` when there is no further one up to `last`. Sequences only grow.
    pub async fn next(&mut self) -> Result<Option<StoredFrameBytes>, BrokerError> {
        Ok(None)
    }
}
