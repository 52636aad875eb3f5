//! The simulation: its broker keeps the real one's contract, its seeds hold, and what it counts as
//! having to happen happens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use trellara_envelope::StreamSequence;
use trellara_jetstream::contract::{self, Log, Promises};
use trellara_jetstream::publish::{Outcome, Outgoing};
use trellara_jetstream::read::{StoredFrameBytes, StreamEnd};
use trellara_jetstream::{BrokerError, BrokerErrorKind};
use trellara_testkit::simulation::broker::{Message, Stream, Writer, matches};
use trellara_testkit::simulation::{Counters, Plan, run, shrink};

/// A writer and reader of a simulated stream.
struct SimulatedLog {
    prefix: String,
    stream: Arc<Mutex<Stream>>,
    writer: Mutex<Writer>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored((sequence, message): (u64, &Message)) -> StoredFrameBytes {
    StoredFrameBytes {
        sequence: StreamSequence(sequence),
        subject: message.subject.clone(),
        payload: message.payload.clone(),
        headers: message.headers.clone(),
        time: SystemTime::UNIX_EPOCH,
    }
}

impl Log for SimulatedLog {
    fn prefix(&self) -> &str {
        &self.prefix
    }
    fn publish(&self, message: Outgoing) -> impl Future<Output = Outcome> + Send + 'static {
        // Stored in the order of the calls, answered when asked.
        let follows = lock(&self.writer).follow(&message);
        let outcome = lock(&self.stream).publish(&message, follows.as_deref());
        std::future::ready(outcome)
    }
    fn another_writer(&self) -> Self {
        Self {
            prefix: self.prefix.clone(),
            stream: Arc::clone(&self.stream),
            writer: Mutex::default(),
        }
    }
    async fn end(&self) -> Result<StreamEnd, BrokerError> {
        let stream = lock(&self.stream);
        Ok(StreamEnd {
            last_sequence: StreamSequence(stream.last()),
            message: stream.last_up_to(stream.last()).map(stored),
        })
    }
    async fn get(&self, at: StreamSequence) -> Result<Option<StoredFrameBytes>, BrokerError> {
        let stream = lock(&self.stream);
        Ok(stream.get(at.0).map(|message| stored((at.0, message))))
    }
    async fn last_on(&self, filter: &str) -> Result<Option<StoredFrameBytes>, BrokerError> {
        let stream = lock(&self.stream);
        Ok(stream
            .last_on(|subject| matches(filter, subject))
            .map(stored))
    }
    async fn next_on(
        &self,
        filter: &str,
        from: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, BrokerError> {
        let stream = lock(&self.stream);
        Ok(stream
            .next_from(from.0, |subject| matches(filter, subject))
            .map(stored))
    }
    async fn purge_to(&self, filter: &str, below: StreamSequence) -> Result<u64, BrokerError> {
        Ok(lock(&self.stream).purge(below.0, |subject| matches(filter, subject)))
    }
    async fn purge_subject(&self, subject: &str) -> Result<u64, BrokerError> {
        if subject.is_empty() {
            let doing = "purge everything".to_owned();
            return Err(BrokerError::new(
                BrokerErrorKind::Configuration,
                doing,
                "no filter",
            ));
        }
        Ok(lock(&self.stream).purge(u64::MAX, |other| matches(subject, other)))
    }
}

#[tokio::test]
async fn the_simulated_stream_keeps_the_contract_of_the_real_one() {
    let promises = Promises {
        message_ids: true,
        pipelines_fenced: true,
    };
    contract::run(promises, async |name: &str| SimulatedLog {
        prefix: format!("trellara.{name}"),
        stream: Arc::default(),
        writer: Mutex::default(),
    })
    .await;
}

#[test]
fn two_thousand_seeds_hold_and_every_window_is_hit() {
    const SEEDS: std::ops::Range<u64> = 8_000..10_000;
    let mut counters = Counters::default();
    for seed in SEEDS {
        let plan = Plan::of(seed);
        if let Err(why) = run(plan, &mut counters) {
            panic!("seed {seed}: {why}; the least is {:?}", shrink(plan));
        }
    }
    assert_eq!(counters.seeds, SEEDS.end - SEEDS.start);
    assert_eq!(counters.never(), Vec::<&str>::new(), "{counters}");
}

#[test]
fn a_seed_means_the_same_every_time() {
    let counted = |seed| {
        let mut counters = Counters::default();
        run(Plan::of(seed), &mut counters).expect("it holds");
        counters
    };
    assert_eq!(counted(17), counted(17));
    assert_ne!(counted(17), counted(18));
}
