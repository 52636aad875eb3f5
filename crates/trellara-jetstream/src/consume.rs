//! A durable pull consumer whose position is ours, not the server's.
//!
//! The server's idea of what was delivered and acknowledged is only a mirror for operators. At
//! every start, and whenever something may have been lost on the way, the consumer is moved to
//! the message behind the last one that was handed out.

mod errand;
mod position;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::StreamSequence;

use self::errand::{Errand, Place};
use crate::mending::Mending;
use crate::pull::{Pulled, Puller};
use crate::{Broker, BrokerError};

pub use position::move_back;

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
    /// Bytes that may be on their way or wait unread here; at least two of the largest messages
    /// whatever it says.
    pub buffer_bytes: usize,
    /// Silence after which the stream is asked whether there should have been something.
    pub watchdog: Duration,
}

impl ConsumerOptions {
    /// Options with the usual limits: 8 MiB, 10 s.
    pub fn new(stream: &str, name: &str, filters: Vec<String>, start: StreamSequence) -> Self {
        ConsumerOptions {
            stream: stream.to_owned(),
            name: name.to_owned(),
            filters,
            start,
            buffer_bytes: 8 << 20,
            watchdog: Duration::from_secs(10),
        }
    }
}

/// One delivered message.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Sequence in the stream.
    pub sequence: StreamSequence,
    /// Subject.
    pub subject: String,
    /// Bytes.
    pub payload: Bytes,
    /// Headers, sorted by name.
    pub headers: Vec<(String, String)>,
    /// Messages that match the filters and still wait behind this one, as the server knew when
    /// it sent it.
    pub pending: u64,
    /// True when this sequence, or a later one, was handed out before: somebody moved the
    /// consumer back, or the stream lost its tail and gives its sequences to other messages.
    /// What the server merely sends once more is dropped and never seen here.
    pub again: bool,
}

/// The consumer.
#[derive(Debug)]
pub struct Consumer {
    broker: Broker,
    options: ConsumerOptions,
    puller: Option<Puller>,
    mending: Mending,
    placing: Errand<Puller>,
    asking: Errand<bool>,
    /// Sequence of the last message handed out, or of the one before the start.
    last: StreamSequence,
    /// The highest of them.
    highest: StreamSequence,
    acks: Acks,
    counters: ConsumerCounters,
}

/// What a consumer went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerCounters {
    /// Messages handed out.
    pub delivered: u64,
    /// Messages that the server sent once more, dropped.
    pub dropped: u64,
    /// Times the consumer was positioned anew after its start.
    pub rebuilt: u64,
}

impl Consumer {
    /// Creates or moves the durable so that it delivers from `options.start`.
    ///
    /// # Errors
    /// Missing when there is no stream; refused when a consumer of this name has settings that
    /// can lose messages or serves something else; permission; passing.
    pub async fn open(broker: &Broker, options: ConsumerOptions) -> Result<Self, BrokerError> {
        let last = StreamSequence(options.start.0.saturating_sub(1));
        let mut consumer = Consumer {
            broker: broker.clone(),
            options,
            puller: None,
            mending: Mending::default(),
            placing: Errand::default(),
            asking: Errand::default(),
            last,
            highest: last,
            acks: Acks::default(),
            counters: ConsumerCounters::default(),
        };
        consumer.position().await?;
        Ok(consumer)
    }

    /// The next message. Waits for ever when there is none; cancel safe, and what it mends goes on
    /// where a dropped call left it, however soon each is dropped.
    ///
    /// Reconnects, a deleted consumer and silence are mended inside.
    ///
    /// # Errors
    /// The stream is gone, it ends before what was handed out ([`BrokerError::is_rewound`]), a
    /// right is missing, or mending failed several times in a row. Calling again tries again.
    pub async fn next(&mut self) -> Result<Delivery, BrokerError> {
        loop {
            if self.puller.is_none() {
                self.mend().await?;
            }
            if self.asking.is_running() && self.asking.done().await? {
                self.lost("messages wait but none come");
            }
            let Some(puller) = &mut self.puller else {
                continue;
            };
            match puller.next(self.options.watchdog).await {
                Pulled::Message(delivered) => {
                    if let Some(delivery) = self.accept(*delivered) {
                        return Ok(delivery);
                    }
                }
                Pulled::Quiet => {
                    self.mending.worked();
                    self.asking.begin(self.place().something_waits());
                }
                Pulled::Lost(why) => self.lost(why),
            }
        }
    }

    /// Tells the server that everything up to and including `up_to` is done; a mirror for
    /// operators, not the truth, so nothing waits for it and nothing is lost with it.
    pub fn ack(&mut self, up_to: StreamSequence) {
        if let Some(subject) = self.acks.take(up_to) {
            // Unsent means disconnected, and then the consumer is positioned anew anyway.
            let _ = self
                .broker
                .send_now(&subject, None, None, Bytes::from_static(b"+ACK"));
        }
    }

    /// Moves so that `start` comes next; what was read ahead is dropped.
    ///
    /// # Errors
    /// As [`Consumer::open`].
    pub async fn reposition(&mut self, start: StreamSequence) -> Result<(), BrokerError> {
        self.puller = None;
        self.placing.give_up();
        self.asking.give_up();
        self.last = StreamSequence(start.0.saturating_sub(1));
        self.highest = self.last;
        self.position().await
    }

    /// Sequence of the last message handed out, or of the one before the start.
    pub fn last(&self) -> StreamSequence {
        self.last
    }

    /// What it went through.
    pub fn counters(&self) -> ConsumerCounters {
        self.counters
    }

    fn accept(&mut self, delivered: crate::delivery::Delivered) -> Option<Delivery> {
        let sequence = delivered.sequence;
        if sequence <= self.last && delivered.times > 1 {
            self.counters.dropped += 1;
            return None;
        }
        if sequence > self.last && delivered.number == 1 && self.acks.delivered_any() {
            // Somebody moved the consumer under us, forward perhaps: what lies between would be
            // skipped, and holes in the sequences prove nothing where filters make them.
            self.lost("somebody else moved the consumer");
            return None;
        }
        let again = sequence <= self.highest;
        self.last = sequence;
        self.highest = self.highest.max(sequence);
        self.acks.delivered(sequence, delivered.ack);
        self.mending.worked();
        self.counters.delivered += 1;
        Some(Delivery {
            sequence,
            subject: delivered.subject,
            payload: delivered.payload,
            headers: delivered.headers,
            pending: delivered.pending,
            again,
        })
    }

    fn lost(&mut self, why: &str) {
        tracing::debug!(consumer = self.options.name, behind = %self.last, why, "reading anew");
        self.puller = None;
        self.asking.give_up();
        self.mending.failed();
    }

    async fn mend(&mut self) -> Result<(), BrokerError> {
        loop {
            if !self.placing.is_running() {
                self.mending.ready(&self.broker).await;
            }
            match self.position().await {
                Ok(()) => {
                    self.counters.rebuilt += 1;
                    return Ok(());
                }
                Err(error) => {
                    self.mending.failed();
                    let quiet = error.is_passing() && !error.is_rewound();
                    if !quiet || self.mending.exhausted() {
                        return Err(error);
                    }
                    tracing::debug!(consumer = self.options.name, %error, "not yet");
                }
            }
        }
    }

    async fn position(&mut self) -> Result<(), BrokerError> {
        if !self.placing.is_running() {
            self.acks = Acks::default();
            self.placing.begin(self.place().take_up());
        }
        self.puller = Some(self.placing.done().await?);
        Ok(())
    }

    fn place(&self) -> Place {
        Place {
            broker: self.broker.clone(),
            options: self.options.clone(),
            last: self.last,
        }
    }
}

/// Where to acknowledge which sequence. Acknowledging one covers all before it, so some may be
/// forgotten when there are many.
#[derive(Debug, Default)]
struct Acks {
    waiting: VecDeque<(StreamSequence, String)>,
    any: bool,
}

impl Acks {
    /// Remembered at most; beyond it every second one is forgotten.
    const MAX: usize = 8192;

    fn delivered(&mut self, sequence: StreamSequence, subject: String) {
        self.any = true;
        while self
            .waiting
            .back()
            .is_some_and(|(last, _)| *last >= sequence)
        {
            // Moved back: the later numbers belong to the past.
            self.waiting.pop_back();
        }
        if self.waiting.len() >= Self::MAX {
            let mut odd = false;
            self.waiting.retain(|_| {
                odd = !odd;
                odd
            });
        }
        self.waiting.push_back((sequence, subject));
    }

    fn delivered_any(&self) -> bool {
        self.any
    }

    /// The subject that acknowledges the most without going beyond `up_to`.
    fn take(&mut self, up_to: StreamSequence) -> Option<String> {
        let covered = self
            .waiting
            .partition_point(|(sequence, _)| *sequence <= up_to);
        self.waiting
            .drain(..covered)
            .next_back()
            .map(|(_, subject)| subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_never_covers_what_is_not_done() {
        let mut acks = Acks::default();
        for number in [3, 5, 9] {
            acks.delivered(StreamSequence(number), number.to_string());
        }
        assert_eq!(acks.take(StreamSequence(2)), None);
        assert_eq!(acks.take(StreamSequence(7)).as_deref(), Some("5"));
        assert_eq!(acks.take(StreamSequence(7)), None);
        assert_eq!(acks.take(StreamSequence(100)).as_deref(), Some("9"));
    }

    #[test]
    fn memory_for_acks_is_bounded_and_the_newest_is_kept() {
        let mut acks = Acks::default();
        for number in 1..=100_000 {
            acks.delivered(StreamSequence(number), number.to_string());
            assert!(acks.waiting.len() <= Acks::MAX);
        }
        assert_eq!(
            acks.take(StreamSequence(100_000)).as_deref(),
            Some("100000")
        );
    }

    #[test]
    fn numbers_from_before_a_move_back_are_forgotten() {
        let mut acks = Acks::default();
        for number in [5, 6, 7, 5] {
            acks.delivered(StreamSequence(number), number.to_string());
        }
        assert_eq!(acks.take(StreamSequence(7)).as_deref(), Some("5"));
    }
}
