//! Pulling messages from a consumer, with bounded read-ahead and no trust.
//!
//! Some pulls are kept open so that messages flow without a round trip each; together they never
//! ask for more than the reader's buffer. Everything that smells of a lost message (a hole in the
//! consumer's own numbering, a missing heartbeat, another connection, another leader) ends the
//! pulling with [`Pulled::Lost`]; the owner then opens a new one behind what it was handed last.

use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::broker::NotSent;
use crate::delivery::{self, Delivered};
use crate::{Broker, BrokerError, Connection};

/// How long the server keeps one pull open.
const EXPIRES: Duration = Duration::from_secs(30);
/// The server says at least this often that a pull is still open.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Without anything for this long an open pull is not open any more.
const SILENCE: Duration = Duration::from_secs(15);
/// Messages of one pull; two pulls must fit a subscription's queue.
const BATCH: u64 = 8192;
/// A pull never asks for more than this, whatever the size of one message: twice the largest
/// `max_payload` a server can have.
const MAX_PULL_BYTES: u64 = 128 << 20;
/// What the server counts for a message besides its bytes: subjects and headers.
const OVERHEAD: u64 = 8 << 10;

/// What came of waiting.
#[derive(Debug)]
pub(crate) enum Pulled {
    Message(Box<Delivered>),
    /// No message for as long as asked, though everything seems well.
    Quiet,
    /// This pulling is over: why.
    Lost(&'static str),
}

/// Pulls from one consumer over one connection.
#[derive(Debug)]
pub(crate) struct Puller {
    broker: Broker,
    subject: String,
    inbox: String,
    messages: Subscriber,
    connection: watch::Receiver<Connection>,
    generation: u64,
    pulls: u64,
    /// Messages that the open pulls may still bring. Exact: the server counts the same.
    open_messages: u64,
    /// Bytes likewise; nearly exact, and 0 whenever `open_messages` is.
    open_bytes: u64,
    /// Bytes of one pull.
    pull_bytes: u64,
    buffer_bytes: u64,
    /// The consumer's number for the next message.
    next_number: u64,
    /// When anything came last.
    heard: Instant,
    /// When a message was handed out last, or its absence told.
    handed_out: Instant,
}

impl Puller {
    /// Pulls from a consumer that was positioned just now and has delivered nothing since.
    pub(crate) async fn open(
        broker: &Broker,
        stream: &str,
        consumer: &str,
        buffer_bytes: usize,
    ) -> Result<Self, BrokerError> {
        let connection = broker.connection();
        let generation = connection.borrow().generation;
        let inbox = broker.new_inbox();
        let messages = broker.subscribe(format!("{inbox}.*")).await?;
        let buffer_bytes = buffer_bytes as u64;
        Ok(Puller {
            broker: broker.clone(),
            subject: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            inbox,
            messages,
            connection,
            generation,
            pulls: 0,
            open_messages: 0,
            open_bytes: 0,
            pull_bytes: (buffer_bytes / 2).max(broker.max_payload() as u64 + OVERHEAD),
            buffer_bytes,
            next_number: 1,
            heard: Instant::now(),
            handed_out: Instant::now(),
        })
    }

    /// The next message, or what happened instead; `Quiet` when none was handed out for `quiet`.
    /// Cancel safe, and the clocks go on when it is cancelled.
    pub(crate) async fn next(&mut self, quiet: Duration) -> Pulled {
        loop {
            if let Err(why) = self.refill() {
                return Pulled::Lost(why);
            }
            // What arrived while the owner was elsewhere is read before any clock is looked at.
            let silent = self.heard + SILENCE;
            let quiet = self.handed_out + quiet;
            let message = tokio::select! {
                biased;
                message = self.messages.next() => message,
                () = changed(&mut self.connection, self.generation) => {
                    return Pulled::Lost("the connection was lost");
                }
                () = tokio::time::sleep_until(silent.min(quiet)) => {
                    if silent <= quiet {
                        return Pulled::Lost("the server went silent");
                    }
                    self.handed_out = Instant::now();
                    return Pulled::Quiet;
                }
            };
            let Some(message) = message else {
                return Pulled::Lost("the subscription ended");
            };
            self.heard = Instant::now();
            match self.take(message) {
                Taken::Message(delivered) => {
                    self.handed_out = Instant::now();
                    return Pulled::Message(delivered);
                }
                Taken::Nothing => {}
                Taken::Lost(why) => return Pulled::Lost(why),
            }
        }
    }

    /// Opens another pull when less than half of the buffer is on its way.
    fn refill(&mut self) -> Result<(), &'static str> {
        if self.open_messages == 0 {
            self.open_bytes = 0;
        }
        let enough_bytes = self.open_bytes > self.buffer_bytes.max(self.pull_bytes) / 2;
        if self.open_messages > BATCH / 2 && enough_bytes {
            return Ok(());
        }
        let pull = json!({
            "batch": BATCH,
            "max_bytes": self.pull_bytes,
            "expires": nanos(EXPIRES),
            "idle_heartbeat": nanos(HEARTBEAT),
        });
        self.pulls += 1;
        let reply = format!("{}.{}", self.inbox, self.pulls);
        let payload = pull.to_string().into();
        match self
            .broker
            .send_now(&self.subject, Some(reply), None, payload)
        {
            Ok(()) => {
                self.open_messages += BATCH;
                self.open_bytes += self.pull_bytes;
                Ok(())
            }
            Err(NotSent::Disconnected) => Err("the connection was lost"),
            Err(NotSent::QueueFull) => Err("the connection's queue is full"),
            Err(NotSent::TooLarge { .. } | NotSent::Invalid(_)) => Err("an impossible pull"),
        }
    }

    fn take(&mut self, message: Message) -> Taken {
        match message.status {
            None => self.take_message(message),
            Some(StatusCode::IDLE_HEARTBEAT) => Taken::Nothing,
            Some(StatusCode::NO_RESPONDERS) => Taken::Lost("nobody answers for the consumer"),
            Some(StatusCode::TIMEOUT) => self.pull_ended(&message),
            Some(_) => {
                let what = message.description.as_deref().unwrap_or_default();
                if what.contains("Consumer Deleted") {
                    Taken::Lost("the consumer was deleted")
                } else if what.contains("Leadership Change") {
                    Taken::Lost("the consumer has another leader")
                } else if what.contains("Server Shutdown") {
                    Taken::Lost("the server shuts down")
                } else if what.contains("Message Size Exceeds MaxBytes") {
                    self.grow_if_stuck(&message);
                    self.pull_ended(&message)
                } else if pending(&message, "Nats-Pending-Messages").is_some() {
                    self.pull_ended(&message)
                } else {
                    Taken::Lost("the server refused a pull")
                }
            }
        }
    }

    fn take_message(&mut self, message: Message) -> Taken {
        self.open_messages = self.open_messages.saturating_sub(1);
        self.open_bytes = self.open_bytes.saturating_sub(message.length as u64);
        let Some(delivered) = delivery::read(message) else {
            return Taken::Lost("a message without a delivery number");
        };
        if delivered.number != self.next_number && delivered.number != 1 {
            return Taken::Lost("a delivery is missing");
        }
        self.next_number = delivered.number + 1;
        Taken::Message(Box::new(delivered))
    }

    /// A pull ended early; what it would still have brought does not come.
    fn pull_ended(&mut self, status: &Message) -> Taken {
        let messages = pending(status, "Nats-Pending-Messages");
        let bytes = pending(status, "Nats-Pending-Bytes");
        self.open_messages = self.open_messages.saturating_sub(messages.unwrap_or(BATCH));
        self.open_bytes = self
            .open_bytes
            .saturating_sub(bytes.unwrap_or(self.pull_bytes));
        Taken::Nothing
    }

    /// A pull that brought nothing because the next message alone is larger: stored when the
    /// server's `max_payload` was higher. Asking the same again would never end.
    fn grow_if_stuck(&mut self, status: &Message) {
        let unused = pending(status, "Nats-Pending-Bytes") == Some(self.pull_bytes);
        if unused && pending(status, "Nats-Pending-Messages") == Some(BATCH) {
            self.pull_bytes = (self.pull_bytes * 2).min(MAX_PULL_BYTES);
        }
    }
}

enum Taken {
    Message(Box<Delivered>),
    Nothing,
    Lost(&'static str),
}

fn pending(status: &Message, name: &str) -> Option<u64> {
    status.headers.as_ref()?.get(name)?.as_str().parse().ok()
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Resolves when the connection is not the one of `generation` any more.
async fn changed(connection: &mut watch::Receiver<Connection>, generation: u64) {
    let other = connection
        .wait_for(|now| !now.connected || now.generation != generation)
        .await;
    // The sender lives in the broker, which lives in the puller.
    drop(other);
}
