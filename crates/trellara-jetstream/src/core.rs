//! Core subjects: messages that are stored nowhere.

use async_nats::Subscriber;
use bytes::Bytes;
use futures_util::StreamExt;

use crate::connect;

/// A message of a core subject (stored nowhere).
#[derive(Debug, Clone)]
pub struct CoreMessage {
    /// Where it was published.
    pub subject: String,
    /// Where an answer would go.
    pub reply: Option<String>,
    /// Its bytes.
    pub payload: Bytes,
}

/// Messages of a core subject, at most [`CoreSubscription::CAPACITY`] waiting; when the reader is
/// slower than that, the newest are dropped. It survives reconnects; what is published meanwhile
/// is lost, as always with core subjects.
#[derive(Debug)]
pub struct CoreSubscription(Subscriber);

impl CoreSubscription {
    pub(crate) fn new(messages: Subscriber) -> Self {
        CoreSubscription(messages)
    }

    /// Messages that may wait unread.
    pub const CAPACITY: usize = connect::SUBSCRIPTION_CAPACITY;

    /// The next message; `None` when the connection was closed for good. Cancel safe.
    pub async fn next(&mut self) -> Option<CoreMessage> {
        let message = self.0.next().await?;
        Some(CoreMessage {
            subject: message.subject.into_string(),
            reply: message.reply.map(|reply| reply.into_string()),
            payload: message.payload,
        })
    }
}
