//! Reading one subject from first to last, for the chunks of a large transaction.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use trellara_envelope::StreamSequence;

use super::{Reader, StoredFrameBytes};
use crate::delivery::Delivered;
use crate::mending::Mending;
use crate::pull::{Pulled, Puller, nanos};
use crate::{Broker, BrokerError, BrokerErrorKind};

/// The server forgets a reader that was not heard of for this long; we then make another.
const INACTIVE: Duration = Duration::from_secs(60);
/// Silence after which the stream is asked whether there should have been something.
const QUIET: Duration = Duration::from_secs(10);

/// Reads one subject from `first` to `last`, in order, with bounded read-ahead.
///
/// It pulls from a consumer of its own that the server keeps in memory and that acknowledges
/// nothing; where such a consumer may not be made, it asks for one message after the other.
/// Whatever happens on the way (reconnect, restarted server), the sequences handed out only grow
/// and none is left out.
#[derive(Debug)]
pub struct SubjectReader {
    broker: Broker,
    reader: Reader,
    stream: String,
    subject: String,
    buffer_bytes: usize,
    /// Sequence before the next one wanted.
    after: StreamSequence,
    last: StreamSequence,
    way: Way,
    mending: Mending,
    may_only_ask: bool,
    done: bool,
}

#[derive(Debug)]
enum Way {
    /// Nothing open; the next read opens it.
    Closed,
    Pulling {
        puller: Box<Puller>,
        consumer: String,
    },
    /// One request a message, to the leader: where pulling is not allowed, and wherever the
    /// consumer says that nothing more comes. It may sit on a replica that lags.
    Asking,
}

impl SubjectReader {
    /// Bytes read ahead when nothing else is said.
    pub const BUFFER_BYTES: usize = 4 << 20;

    /// Opens at the first message on `subject` with a sequence in `first..=last`.
    ///
    /// # Errors
    /// Missing when there is no stream; permission; passing.
    pub async fn open(
        broker: &Broker,
        stream: &str,
        subject: &str,
        first: StreamSequence,
        last: StreamSequence,
    ) -> Result<Self, BrokerError> {
        Self::with_buffer(broker, stream, subject, first..=last, Self::BUFFER_BYTES).await
    }

    /// As [`SubjectReader::open`], reading ahead `buffer_bytes` (at least two of the largest
    /// messages whatever it says).
    ///
    /// # Errors
    /// As [`SubjectReader::open`].
    pub async fn with_buffer(
        broker: &Broker,
        stream: &str,
        subject: &str,
        range: std::ops::RangeInclusive<StreamSequence>,
        buffer_bytes: usize,
    ) -> Result<Self, BrokerError> {
        let mut reader = SubjectReader {
            broker: broker.clone(),
            reader: Reader::new(broker, stream),
            stream: stream.to_owned(),
            subject: subject.to_owned(),
            buffer_bytes,
            after: StreamSequence(range.start().0.saturating_sub(1)),
            last: *range.end(),
            way: Way::Closed,
            mending: Mending::default(),
            may_only_ask: false,
            done: range.is_empty(),
        };
        if !reader.done {
            reader.start().await?;
        }
        Ok(reader)
    }

    /// The next message; `None` when there is no further one up to `last`. Cancel safe.
    ///
    /// # Errors
    /// The stream is gone, a right is missing, or mending failed several times in a row. Calling
    /// again tries again, behind the last message handed out.
    pub async fn next(&mut self) -> Result<Option<StoredFrameBytes>, BrokerError> {
        while !self.done {
            let stored = match &mut self.way {
                Way::Closed => {
                    self.mend().await?;
                    continue;
                }
                Way::Asking => {
                    let stored = self.ask().await?;
                    if !self.may_only_ask {
                        self.way = Way::Closed;
                    }
                    stored
                }
                Way::Pulling { puller, .. } => match puller.next(QUIET).await {
                    Pulled::Message(delivered) if delivered.sequence > self.after => {
                        if delivered.pending == 0 {
                            self.close(Way::Asking);
                        }
                        Some(stored(*delivered))
                    }
                    Pulled::Message(_) => continue,
                    Pulled::Quiet => {
                        self.close(Way::Asking);
                        continue;
                    }
                    Pulled::Lost(why) => {
                        let (subject, behind) = (&self.subject, self.after);
                        tracing::debug!(subject, %behind, why, "reading anew");
                        self.close(Way::Closed);
                        self.mending.failed();
                        continue;
                    }
                },
            };
            match stored {
                Some(stored) if stored.sequence <= self.last => {
                    self.after = stored.sequence;
                    self.done = stored.sequence == self.last;
                    self.mending.worked();
                    return Ok(Some(stored));
                }
                _ => self.done = true,
            }
        }
        self.close(Way::Closed);
        Ok(None)
    }

    async fn ask(&self) -> Result<Option<StoredFrameBytes>, BrokerError> {
        let from = StreamSequence(self.after.0 + 1);
        self.reader.next_on(&self.subject, from).await
    }

    async fn mend(&mut self) -> Result<(), BrokerError> {
        loop {
            self.mending.ready(&self.broker).await;
            let Err(error) = self.start().await else {
                return Ok(());
            };
            self.mending.failed();
            if !error.is_passing() || self.mending.exhausted() {
                return Err(error);
            }
            tracing::debug!(subject = self.subject, %error, "not yet");
        }
    }

    async fn start(&mut self) -> Result<(), BrokerError> {
        let name = self
            .broker
            .new_inbox()
            .rsplit('.')
            .next()
            .unwrap_or("x")
            .to_owned();
        let consumer = format!("reader_{name}");
        let doing = format!("read {} of stream {}", self.subject, self.stream);
        let config = json!({
            "name": consumer,
            "ack_policy": "none",
            "mem_storage": true,
            "num_replicas": 1,
            "inactive_threshold": nanos(INACTIVE),
            "replay_policy": "instant",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.after.0 + 1,
            "filter_subject": self.subject,
        });
        let body = json!({"stream_name": self.stream, "config": config, "action": "create"});
        let endpoint = format!(
            "CONSUMER.CREATE.{}.{consumer}.{}",
            self.stream, self.subject
        );
        match self.broker.api::<Created>(&endpoint, &body, &doing).await {
            Ok(created) => {
                let open =
                    Puller::open(&self.broker, &self.stream, &consumer, self.buffer_bytes).await;
                // Before anything may fail: so that it is taken away again.
                let puller = Box::new(open?);
                self.way = Way::Pulling { puller, consumer };
                if created.num_pending == 0 {
                    self.close(Way::Asking);
                }
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    BrokerErrorKind::Permission { .. } | BrokerErrorKind::Refused { .. }
                ) =>
            {
                tracing::debug!(subject = self.subject, %error, "reading one by one");
                self.may_only_ask = true;
                self.way = Way::Asking;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the consumer away, as far as the connection allows; the server forgets it anyway.
    fn close(&mut self, next: Way) {
        if let Way::Pulling { consumer, .. } = std::mem::replace(&mut self.way, next) {
            let subject = format!("$JS.API.CONSUMER.DELETE.{}.{consumer}", self.stream);
            let _ = self
                .broker
                .send_now(&subject, None, None, Value::Null.to_string().into());
        }
    }
}

impl Drop for SubjectReader {
    fn drop(&mut self) {
        self.close(Way::Closed);
    }
}

fn stored(delivered: Delivered) -> StoredFrameBytes {
    StoredFrameBytes {
        sequence: delivered.sequence,
        subject: delivered.subject,
        payload: delivered.payload,
        headers: delivered.headers,
        time: delivered.time,
    }
}

#[derive(Deserialize)]
struct Created {
    #[serde(default)]
    num_pending: u64,
}
