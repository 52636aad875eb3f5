//! Publishing into a stream: at once, in call order, with an answer that may be "unknown".

use bytes::Bytes;
use std::future::Future;
use trellara_envelope::StreamSequence;

use crate::{Broker, BrokerError, BrokerErrorKind};

/// One message to store.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Subject, one of the stream's.
    pub subject: String,
    /// Bytes.
    pub payload: Bytes,
    /// The stream's last sequence before this message, or the server refuses it. Order, fencing
    /// and the alarm on a rolled-back stream in one.
    pub expected_last: StreamSequence,
    /// `Nats-Msg-Id`; `None` on servers of limited support.
    pub message_id: Option<String>,
    /// Headers of our own; names must not start with `Nats-`.
    pub headers: Vec<(&'static str, String)>,
}

/// What became of one publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Stored at this sequence.
    Stored {
        /// Where.
        sequence: StreamSequence,
    },
    /// The server knows the message id already and stored nothing; counts as stored only when
    /// the sequence is the expected one (rule C17).
    DuplicateAt {
        /// Where the first one is, or was.
        sequence: StreamSequence,
    },
    /// The stream's last sequence was another: somebody else wrote, or the stream lost its tail,
    /// or an earlier message of ours was not stored. Nothing was stored; read the tail.
    WrongSequence {
        /// The last sequence, when the server said it.
        actual: Option<StreamSequence>,
    },
    /// The stream is at its limit; nothing was stored. Wait until it is trimmed or grown.
    Full,
    /// Larger than the server or the stream takes; nothing was stored.
    TooLarge {
        /// The limit in bytes, headers included; `None` for the stream's own, see its settings.
        limit: Option<usize>,
    },
    /// Nobody listens on the subject: no such stream, or no leader for some seconds (a passing
    /// state for a minute or so). Nothing was stored.
    NoStream,
    /// The server does not let us publish on this subject; nothing was stored.
    Denied {
        /// The subject.
        subject: String,
    },
    /// The server said no in another way; nothing was stored.
    Refused {
        /// JetStream's `err_code`.
        code: u64,
        /// The server's text.
        text: String,
    },
    /// It may or may not be stored, now or a moment later. Only the stream's tail tells.
    Unknown {
        /// Why.
        reason: UnknownReason,
    },
}

/// Why nothing is known about a publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownReason {
    /// No answer within [`Publisher::ACK_TIMEOUT`].
    Timeout,
    /// The connection was lost while waiting, or is down.
    Disconnected,
    /// More than [`Publisher::MAX_IN_FLIGHT`] publishes without an answer; this one was not sent.
    TooManyInFlight,
    /// The server is between leaders, overloaded, or still busy with the same message id.
    Busy {
        /// The server's text.
        text: String,
    },
    /// The answer could not be understood.
    Answer {
        /// What was wrong with it.
        text: String,
    },
}

/// Publishes into one stream.
#[derive(Clone, Debug)]
pub struct Publisher {}

impl Publisher {
    /// How long an answer is waited for. The default of 5 s fires on a slow disk although the
    /// message is stored.
    pub const ACK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);
    /// Publishes without an answer that may exist at once. A window in bytes is the caller's duty.
    pub const MAX_IN_FLIGHT: usize = 8192;

    /// Prepares publishing into `stream` (subscribes to the answers).
    #[allow(clippy::unused_async)]
    pub async fn new(_broker: &Broker, _stream: &str) -> Result<Self, BrokerError> {
        Err(BrokerError::new(
            BrokerErrorKind::Passing,
            "publish",
            "not yet",
        ))
    }

    /// Hands the message to the connection before it returns, in the order of the calls; the
    /// future only waits for the answer, and may be dropped.
    pub fn publish(&self, _message: Outgoing) -> impl Future<Output = Outcome> + Send + 'static {
        std::future::ready(Outcome::Unknown {
            reason: UnknownReason::Disconnected,
        })
    }
}
