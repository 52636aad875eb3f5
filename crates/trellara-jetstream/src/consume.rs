//! A durable pull consumer whose position is ours, not the server's.

use bytes::Bytes;
use trellara_envelope::StreamSequence;

use crate::{Broker, BrokerError, BrokerErrorKind};

/// What to consume, from where.
#[derive(Debug, Clone)]
pub struct ConsumerOptions {
    /// Stream.
    pub stream: String,
    /// Durable name, e.g. `applier`.
    pub name: String,
    /// Subject filters; all must be inside the stream's subjects and not overlap.
    pub filters: Vec<String>,
    /// First sequence to deliver.
    pub start: StreamSequence,
    /// Bytes asked for in one pull, and kept unread here at most, in about.
    pub buffer_bytes: usize,
    /// Silence after which the stream is asked whether there should have been something.
    pub watchdog: std::time::Duration,
}

impl ConsumerOptions {
    /// Options with the usual limits.
    pub fn new(stream: &str, name: &str, filters: Vec<String>, start: StreamSequence) -> Self {
        ConsumerOptions {
            stream: stream.to_owned(),
            name: name.to_owned(),
            filters,
            start,
            buffer_bytes: 8 << 20,
            watchdog: std::time::Duration::from_secs(10),
        }
    }
}

/// One delivered message; its sequence is always above that of the delivery before.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Sequence in the stream.
    pub sequence: StreamSequence,
    /// Subject.
    pub subject: String,
    /// Bytes.
    pub payload: Bytes,
    /// Headers, in order.
    pub headers: Vec<(String, String)>,
    /// Messages that match the filters and still wait behind this one, as the server knew when
    /// it sent it.
    pub pending: u64,
}

/// The consumer.
pub struct Consumer {}

#[allow(clippy::unused_async)]
impl Consumer {
    /// Creates or repositions the durable so that it delivers from `options.start`.
    pub async fn open(_broker: &Broker, _options: ConsumerOptions) -> Result<Self, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "consume",
            "not yet",
        ))
    }
    /// The next message. Waits for ever when there is none; cancel safe. Reconnects, a deleted
    /// consumer and silence are mended inside; an error means that the stream is gone, we lack a
    /// right, or the mending failed several times.
    pub async fn next(&mut self) -> Result<Delivery, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "consume",
            "not yet",
        ))
    }
    /// Tells the server that everything up to and including `up_to` is done; a mirror for
    /// operators, not the truth.
    pub async fn ack(&mut self, _up_to: StreamSequence) -> Result<(), BrokerError> {
        Ok(())
    }
    /// Moves to `start`; what was read ahead is dropped.
    pub async fn reposition(&mut self, _start: StreamSequence) -> Result<(), BrokerError> {
        Ok(())
    }
}
