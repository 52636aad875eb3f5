//! One connection to NATS, shared by everything a process asks of it.

use bytes::Bytes;
use std::fmt;
use tokio::sync::broadcast;

use crate::{BrokerError, BrokerErrorKind, NatsOptions};

/// A version of nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

/// How far a server version may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// 2.12.3 and newer.
    Full,
    /// 2.10.25 to 2.12.2: `acknowledge: applied` only, and no message ids (they poison on R3).
    Limited,
    /// Older: refused.
    Refused,
}

/// What happened to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerEvent {
    /// The connection is lost; a new one is being tried, for ever.
    Disconnected,
    /// Connected again. `max_payload` may have changed; whatever was not acknowledged is in doubt.
    Connected,
    /// The server refused a subject to us; the request that caused it gets no answer.
    PermissionDenied {
        /// True for a publish, false for a subscription.
        publish: bool,
        /// The subject.
        subject: String,
    },
    /// The server will go away soon and wants its clients elsewhere.
    LameDuck,
    /// The server or the client said something else, in its words.
    Other(String),
}

/// A handle to one connection; clones share it.
#[derive(Clone, Debug)]
pub struct Broker {}

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
/// slower than that, the newest are dropped.
pub struct CoreSubscription {}

impl Broker {
    /// Connects once; the caller sees why it failed and decides whether to try again. After
    /// success the connection is kept for ever, with capped, jittered delays.
    #[allow(clippy::unused_async)]
    pub async fn connect(_options: &NatsOptions) -> Result<Self, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "connect",
            "not yet",
        ))
    }
    /// Version of the server at the other end.
    pub fn server_version(&self) -> ServerVersion {
        ServerVersion {
            major: 0,
            minor: 0,
            patch: 0,
        }
    }
    /// Largest message, headers included, that the server takes now, in bytes. It may change with
    /// every reconnect.
    pub fn max_payload(&self) -> usize {
        0
    }
    /// True while connected.
    pub fn is_connected(&self) -> bool {
        false
    }
    /// Events from now on; a slow receiver loses the oldest (`Lagged`).
    pub fn events(&self) -> broadcast::Receiver<BrokerEvent> {
        broadcast::channel(1).1
    }
    /// Publishes on a core subject: nobody acknowledges, it may be lost.
    #[allow(clippy::unused_async)]
    pub async fn publish_core(&self, _subject: &str, _payload: Bytes) -> Result<(), BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "publish",
            "not yet",
        ))
    }
    /// Publishes a core message and waits for one answer.
    #[allow(clippy::unused_async)]
    pub async fn request_core(
        &self,
        _subject: &str,
        _payload: Bytes,
    ) -> Result<Bytes, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "publish",
            "not yet",
        ))
    }
    /// Subscribes to a core subject.
    #[allow(clippy::unused_async)]
    pub async fn subscribe_core(&self, _subject: &str) -> Result<CoreSubscription, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "subscribe",
            "not yet",
        ))
    }
    /// Ends the connection after what was handed to it has been written.
    #[allow(clippy::unused_async)]
    pub async fn close(&self) {}
}

impl CoreSubscription {
    /// Messages that may wait unread.
    pub const CAPACITY: usize = 1024;
    /// The next message; `None` when the connection was closed for good.
    #[allow(clippy::unused_async)]
    pub async fn next(&mut self) -> Option<CoreMessage> {
        None
    }
}

impl ServerVersion {
    /// How far this version may be trusted.
    pub fn support(self) -> Support {
        if self
            >= (ServerVersion {
                major: 2,
                minor: 12,
                patch: 3,
            })
        {
            Support::Full
        } else if self
            >= (ServerVersion {
                major: 2,
                minor: 10,
                patch: 25,
            })
        {
            Support::Limited
        } else {
            Support::Refused
        }
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
