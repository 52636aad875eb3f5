//! Publishing into a stream: at once, in call order, with an answer that may be "unknown".

use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::header::{HeaderName, HeaderValue};
use async_nats::{HeaderMap, Message, StatusCode};
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::Instant;
use trellara_envelope::StreamSequence;

use crate::Broker;
use crate::broker::NotSent;
use crate::error::{ApiError, code};
use crate::replies::{NoAnswer, Waiting};
use crate::topology::StreamFacts;

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
pub struct Publisher {
    broker: Broker,
    stream: Arc<str>,
    in_flight: Arc<AtomicUsize>,
    /// What the message sent last leaves behind if it is stored: the next expected sequence, and
    /// its id.
    before: Arc<Mutex<Option<(StreamSequence, String)>>>,
    fences_pipelines: bool,
}

impl Publisher {
    /// How long an answer is waited for. The usual 5 s fire on a slow disk although the message
    /// is stored.
    pub const ACK_TIMEOUT: Duration = Duration::from_secs(30);
    /// Publishes without an answer that may exist at once. A window in bytes is the caller's duty.
    pub const MAX_IN_FLIGHT: usize = 8192;

    /// Prepares publishing into `stream`; nothing is sent yet.
    pub fn new(broker: &Broker, stream: &str) -> Self {
        Publisher {
            broker: broker.clone(),
            stream: stream.into(),
            in_flight: Arc::default(),
            before: Arc::default(),
            fences_pipelines: false,
        }
    }

    /// On a stream with one copy, lets every message that was sent right behind another expect
    /// that one by its id, so that a writer who lost the stream to another cannot slip in the rest
    /// of its pipeline.
    ///
    /// The expected sequence alone does not prevent it: when another writer has put one message at
    /// sequence 11, our own message 11 is refused, but number 12, sent along with it, expects 11
    /// and is stored behind the other's. With several copies nothing is changed: there a refused
    /// id makes the stream unavailable for good (nats-server 2.15.1), and readers have to tell
    /// such a message by its lower incarnation.
    #[must_use]
    pub fn fencing_pipelines(mut self, stream: &StreamFacts) -> Self {
        self.fences_pipelines = stream.replicas == 1;
        self
    }

    /// Publishes that still wait for their answer.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Hands the message to the connection before it returns, in the order of the calls; the
    /// future only waits for the answer, and may be dropped (the message is then still sent).
    ///
    /// After anything but `Stored` the messages behind it are refused by their expected sequence,
    /// so the stream never gets a hole; ask it for its end and go on from there.
    pub fn publish(&self, message: Outgoing) -> impl Future<Output = Outcome> + Send + 'static {
        let sent = self.send(message);
        let deadline = Instant::now() + Self::ACK_TIMEOUT;
        async move {
            match sent {
                // The guard lives until the answer is there.
                Ok((waiting, _guard)) => outcome(waiting.until(deadline).await),
                Err(outcome) => outcome,
            }
        }
    }

    fn send(&self, message: Outgoing) -> Result<(Waiting, InFlight), Outcome> {
        let guard = InFlight::enter(&self.in_flight).ok_or(Outcome::Unknown {
            reason: UnknownReason::TooManyInFlight,
        })?;
        let headers = self
            .headers(&message)
            .map_err(|text| Outcome::Refused { code: 0, text })?;
        let sent = self
            .broker
            .ask(&message.subject, Some(headers), message.payload);
        let waiting = sent.map_err(|why| match why {
            NotSent::Disconnected => Outcome::Unknown {
                reason: UnknownReason::Disconnected,
            },
            NotSent::QueueFull => Outcome::Unknown {
                reason: UnknownReason::TooManyInFlight,
            },
            NotSent::TooLarge { limit } => Outcome::TooLarge { limit: Some(limit) },
            NotSent::Invalid(text) => Outcome::Refused { code: 0, text },
        })?;
        Ok((waiting, guard))
    }

    fn headers(&self, message: &Outgoing) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(
            async_nats::header::NATS_EXPECTED_LAST_SEQUENCE,
            HeaderValue::from(message.expected_last.0),
        );
        // Without it, expecting 0 would succeed in a stream that somebody made anew.
        headers.insert(
            async_nats::header::NATS_EXPECTED_STREAM,
            value(&self.stream)?,
        );
        if let Some(id) = &message.message_id {
            headers.insert(async_nats::header::NATS_MESSAGE_ID, value(id)?);
        }
        if let Some(before) = self.follow(message) {
            headers.insert(
                async_nats::header::NATS_EXPECTED_LAST_MESSAGE_ID,
                value(&before)?,
            );
        }
        for (name, text) in &message.headers {
            let header = HeaderName::from_str(name);
            let header = header.map_err(|error| format!("header {name:?}: {error}"))?;
            headers.insert(header, value(text)?);
        }
        Ok(headers)
    }
}

impl Publisher {
    /// The id of the message that must be the last one in the stream when `message` arrives, if
    /// we sent it just before.
    fn follow(&self, message: &Outgoing) -> Option<String> {
        if !self.fences_pipelines {
            return None;
        }
        let next = StreamSequence(message.expected_last.0.saturating_add(1));
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = message.message_id.clone().map(|id| (next, id));
        match std::mem::replace(&mut *before, sent) {
            Some((sequence, id)) if sequence == message.expected_last => Some(id),
            _ => None,
        }
    }
}

fn value(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|error| format!("header value: {error}"))
}

/// Counts one publish that waits.
struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    fn enter(count: &Arc<AtomicUsize>) -> Option<Self> {
        let guard = InFlight(Arc::clone(count));
        let before = count.fetch_add(1, Ordering::Relaxed);
        (before < Publisher::MAX_IN_FLIGHT).then_some(guard)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn outcome(answer: Result<Message, NoAnswer>) -> Outcome {
    match answer {
        Ok(answer) if answer.status == Some(StatusCode::NO_RESPONDERS) => Outcome::NoStream,
        Ok(answer) => outcome_of(&answer.payload),
        Err(NoAnswer::Denied { subject }) => Outcome::Denied { subject },
        Err(NoAnswer::Timeout) => Outcome::Unknown {
            reason: UnknownReason::Timeout,
        },
        Err(NoAnswer::Disconnected) => Outcome::Unknown {
            reason: UnknownReason::Disconnected,
        },
    }
}

#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

/// The one place where JetStream's answers to a publish become ours.
fn outcome_of(answer: &[u8]) -> Outcome {
    let unreadable = |text: String| Outcome::Unknown {
        reason: UnknownReason::Answer { text },
    };
    let ack: Ack = match serde_json::from_slice(answer) {
        Ok(ack) => ack,
        Err(error) => return unreadable(error.to_string()),
    };
    let sequence = StreamSequence(ack.seq);
    match ack.error {
        Some(error) => refusal(error),
        None if ack.seq == 0 => unreadable("an ack without a sequence".to_owned()),
        None if ack.duplicate => Outcome::DuplicateAt { sequence },
        None => Outcome::Stored { sequence },
    }
}

fn refusal(error: ApiError) -> Outcome {
    let text = error.description.clone();
    match error.err_code {
        code::WRONG_LAST_SEQUENCE | code::WRONG_LAST_SEQUENCE_CONSTANT => {
            // `wrong last sequence: 17`, or without a number while others are in process.
            let number = text
                .rsplit(':')
                .next()
                .and_then(|text| text.trim().parse().ok());
            Outcome::WrongSequence {
                actual: number.map(StreamSequence),
            }
        }
        code::WRONG_LAST_MESSAGE_ID => Outcome::WrongSequence { actual: None },
        // The same number also says "store failed": stop and wait fits both.
        code::STORE_FAILED | code::INSUFFICIENT_RESOURCES | code::STORAGE_EXCEEDED => Outcome::Full,
        code::MESSAGE_TOO_LARGE => Outcome::TooLarge { limit: None },
        code::STREAM_NOT_FOUND | code::STREAM_MISMATCH => Outcome::NoStream,
        code::ID_IN_PROCESS => Outcome::Unknown {
            reason: UnknownReason::Busy { text },
        },
        _ if error.is_passing() => Outcome::Unknown {
            reason: UnknownReason::Busy { text },
        },
        code => Outcome::Refused { code, text },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: u64, err_code: u64, text: &str) -> Outcome {
        let answer = serde_json::json!({
            "error": {"code": code, "err_code": err_code, "description": text},
            "stream": "S", "seq": 0,
        });
        outcome_of(answer.to_string().as_bytes())
    }

    #[test]
    fn an_ack_is_stored_and_a_duplicate_is_something_else() {
        let sequence = StreamSequence(7);
        assert_eq!(
            outcome_of(br#"{"stream":"S","seq":7}"#),
            Outcome::Stored { sequence }
        );
        let duplicate = br#"{"stream":"S","seq":7,"duplicate":true}"#;
        assert_eq!(outcome_of(duplicate), Outcome::DuplicateAt { sequence });
    }

    #[test]
    fn a_wrong_sequence_says_which_it_is_when_the_server_did() {
        let actual = Some(StreamSequence(17));
        let told = failed(400, 10071, "wrong last sequence: 17");
        assert_eq!(told, Outcome::WrongSequence { actual });
        let untold = failed(400, 10164, "wrong last sequence");
        assert_eq!(untold, Outcome::WrongSequence { actual: None });
    }

    #[test]
    fn what_passes_is_unknown_and_what_does_not_is_refused() {
        let text = "raft: not leader".to_owned();
        let busy = Outcome::Unknown {
            reason: UnknownReason::Busy { text },
        };
        assert_eq!(failed(500, 0, "raft: not leader"), busy);
        assert_eq!(failed(503, 10077, "maximum bytes exceeded"), Outcome::Full);
        assert_eq!(
            failed(400, 10054, "too large"),
            Outcome::TooLarge { limit: None }
        );
        let text = "invalid operation on sealed stream".to_owned();
        let refused = Outcome::Refused { code: 10109, text };
        assert_eq!(
            failed(400, 10109, "invalid operation on sealed stream"),
            refused
        );
    }

    #[test]
    fn nonsense_is_unknown_and_never_stored() {
        for answer in [&b"OK"[..], b"{}", b"", br#"{"seq":0}"#] {
            let outcome = outcome_of(answer);
            assert!(
                matches!(
                    outcome,
                    Outcome::Unknown {
                        reason: UnknownReason::Answer { .. }
                    }
                ),
                "{outcome:?}"
            );
        }
    }
}
