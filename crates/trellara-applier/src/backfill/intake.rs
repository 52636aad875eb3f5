//! The copy stream as the loader reads it: from its first message, whenever there is one.
//!
//! The relay makes the stream when something is ordered and deletes it when nothing is any more, so
//! it may be missing, vanish, and come again.

use std::time::Duration;

use trellara_envelope::{FlowName, Halt, HaltCode, StreamSequence};
use trellara_jetstream::consume::{Consumer, ConsumerOptions, Delivery};
use trellara_jetstream::topology::{self, StreamFacts};
use trellara_jetstream::{Broker, BrokerError, trim};

use crate::trouble::Trouble;

/// What may be on its way here or wait unread: a few chunks of half a megabyte each.
const BUFFER_BYTES: usize = 4 << 20;

/// What reading the copy stream brought.
#[derive(Debug)]
pub(super) enum Received {
    Delivery(Delivery),
    /// What was read so far is not to be relied on: it begins anew, when there is a stream.
    Anew(String),
}

/// The copy stream of a flow.
#[derive(Debug)]
pub(super) struct Intake {
    broker: Broker,
    flow: FlowName,
    registration: String,
    silence: Duration,
    reading: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    consumer: Consumer,
    /// When the stream was made: its sequences mean nothing in another one.
    created: String,
}

impl Intake {
    pub(super) fn new(
        broker: &Broker,
        flow: &FlowName,
        registration: &str,
        silence: Duration,
    ) -> Self {
        Self {
            broker: broker.clone(),
            flow: flow.clone(),
            registration: registration.to_owned(),
            silence,
            reading: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.reading.is_some()
    }

    /// Opens the stream if there is one. The sequence that it begins with.
    pub(super) async fn open(&mut self) -> Result<Option<StreamSequence>, Trouble> {
        let Some(facts) = self.facts().await? else {
            return Ok(None);
        };
        let name = self.flow.copy_stream();
        let subjects = vec![self.flow.copy_subject()];
        let start = StreamSequence(facts.first_sequence.0.max(1));
        let mut options = ConsumerOptions::new(&name, "applier", subjects, start);
        options.buffer_bytes = BUFFER_BYTES;
        options.watchdog = self.silence;
        match Consumer::open(&self.broker, options).await {
            Ok(consumer) => {
                let created = facts.created;
                self.reading = Some(Reading { consumer, created });
                Ok(Some(start))
            }
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What is known of the stream; `None` when there is none.
    async fn facts(&self) -> Result<Option<StreamFacts>, Trouble> {
        let name = self.flow.copy_stream();
        let facts = match topology::facts(&self.broker, &name).await {
            Ok(facts) => facts,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if facts.target() == Some(self.registration.as_str()) {
            return Ok(Some(facts));
        }
        let whose = facts.target().unwrap_or("nobody");
        let ours = &self.registration;
        Err(Trouble::probe(Halt::new(
            HaltCode::Config,
            format!("stream {name} belongs to target {whose}, this one is {ours}"),
            "delete it if nobody copies into that target: the relay makes another one",
        )))
    }

    /// What comes next; waits for ever while there is nothing, or no stream. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Received, Trouble> {
        let Some(reading) = &mut self.reading else {
            return std::future::pending().await;
        };
        match reading.consumer.next().await {
            Ok(delivery) if delivery.again => {
                self.reading = None;
                Ok(Received::Anew("it was read before".to_owned()))
            }
            Ok(delivery) => Ok(Received::Delivery(delivery)),
            Err(error) if begins_anew(&error) => {
                self.reading = None;
                Ok(Received::Anew(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Nothing read so far counts.
    pub(super) fn close(&mut self) {
        self.reading = None;
    }

    /// Takes everything up to `to`, inclusive, out of the stream; whether it is still the one that
    /// was read.
    pub(super) async fn trim(&mut self, to: StreamSequence) -> Result<bool, Trouble> {
        let Some(created) = self.reading.as_ref().map(|reading| reading.created.clone()) else {
            return Ok(false);
        };
        let same = self.facts().await?;
        if same.is_none_or(|facts| facts.created != created) {
            return Ok(false);
        }
        let (stream, subject) = (self.flow.copy_stream(), self.flow.copy_subject());
        let below = StreamSequence(to.0 + 1);
        match trim::purge_to(&self.broker, &stream, &subject, below).await {
            Ok(_) => {}
            Err(error) if error.is_missing() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if let Some(reading) = &mut self.reading {
            reading.consumer.ack(to);
        }
        Ok(true)
    }
}

fn begins_anew(error: &BrokerError) -> bool {
    error.is_missing() || error.is_rewound()
}
