//! Test support: what the relay and the applier may rely on in a stream, as tests.
//!
//! The suite runs against real servers in this crate's own tests, and must be run against
//! anything that stands in for one (a simulated stream), so that the two cannot drift apart. The
//! functions panic when a promise is broken, like any test.

use std::future::Future;

use bytes::Bytes;
use futures_util::future::join_all;
use trellara_envelope::StreamSequence;

use crate::publish::{Outcome, Outgoing, Publisher};
use crate::read::{Reader, StoredFrameBytes, StreamEnd};
use crate::topology::StreamFacts;
use crate::{Broker, BrokerError, trim};

/// A stream with one writer at a time, as this crate offers it.
pub trait Log {
    /// The subjects stored are `{prefix}.` and anything behind it.
    fn prefix(&self) -> &str;
    /// As [`Publisher::publish`], by a writer of its own: the message is on its way when the call
    /// returns.
    fn publish(&self, message: Outgoing) -> impl Future<Output = Outcome> + Send + 'static;
    /// A second writer of the same stream.
    fn another_writer(&self) -> Self;
    /// As [`Reader::end`].
    fn end(&self) -> impl Future<Output = Result<StreamEnd, BrokerError>> + Send;
    /// As [`Reader::get`].
    fn get(
        &self,
        sequence: StreamSequence,
    ) -> impl Future<Output = Result<Option<StoredFrameBytes>, BrokerError>> + Send;
    /// As [`Reader::last_on`].
    fn last_on(
        &self,
        filter: &str,
    ) -> impl Future<Output = Result<Option<StoredFrameBytes>, BrokerError>> + Send;
    /// As [`Reader::next_on`].
    fn next_on(
        &self,
        filter: &str,
        from: StreamSequence,
    ) -> impl Future<Output = Result<Option<StoredFrameBytes>, BrokerError>> + Send;
    /// As [`trim::purge_to`].
    fn purge_to(
        &self,
        filter: &str,
        up_to_exclusive: StreamSequence,
    ) -> impl Future<Output = Result<u64, BrokerError>> + Send;
    /// As [`trim::purge_subject`].
    fn purge_subject(&self, subject: &str)
    -> impl Future<Output = Result<u64, BrokerError>> + Send;
}

/// The real thing.
#[derive(Debug, Clone)]
pub struct StreamLog {
    broker: Broker,
    stream: StreamFacts,
    prefix: String,
    publisher: Publisher,
    reader: Reader,
}

impl StreamLog {
    /// A log over an existing stream that stores `{prefix}.>`.
    pub fn new(broker: &Broker, stream: &StreamFacts, prefix: &str) -> Self {
        StreamLog {
            broker: broker.clone(),
            prefix: prefix.to_owned(),
            publisher: Publisher::new(broker, &stream.name).fencing_pipelines(stream),
            reader: Reader::new(broker, &stream.name),
            stream: stream.clone(),
        }
    }
}

impl Log for StreamLog {
    fn prefix(&self) -> &str {
        &self.prefix
    }
    fn publish(&self, message: Outgoing) -> impl Future<Output = Outcome> + Send + 'static {
        self.publisher.publish(message)
    }
    fn another_writer(&self) -> Self {
        StreamLog::new(&self.broker, &self.stream, &self.prefix)
    }
    async fn end(&self) -> Result<StreamEnd, BrokerError> {
        self.reader.end().await
    }
    async fn get(&self, at: StreamSequence) -> Result<Option<StoredFrameBytes>, BrokerError> {
        self.reader.get(at).await
    }
    async fn last_on(&self, filter: &str) -> Result<Option<StoredFrameBytes>, BrokerError> {
        self.reader.last_on(filter).await
    }
    async fn next_on(
        &self,
        filter: &str,
        from: StreamSequence,
    ) -> Result<Option<StoredFrameBytes>, BrokerError> {
        self.reader.next_on(filter, from).await
    }
    async fn purge_to(&self, filter: &str, below: StreamSequence) -> Result<u64, BrokerError> {
        trim::purge_to(&self.broker, &self.stream.name, filter, below).await
    }
    async fn purge_subject(&self, subject: &str) -> Result<u64, BrokerError> {
        trim::purge_subject(&self.broker, &self.stream.name, subject).await
    }
}

/// What not every stream can promise.
#[derive(Debug, Clone, Copy)]
pub struct Promises {
    /// Message ids may be used (full support).
    pub message_ids: bool,
    /// A fenced writer's pipeline is refused as a whole (message ids, and one copy).
    pub pipelines_fenced: bool,
}

/// Runs the whole suite; `make` gives an empty log for each part, by a name of its own.
pub async fn run<L: Log>(promises: Promises, make: impl AsyncFn(&str) -> L) {
    an_empty_log_has_no_end(&make("empty").await).await;
    a_pipeline_is_stored_in_call_order(&make("pipeline").await).await;
    headers_and_bytes_come_back(&make("headers").await).await;
    a_wrong_expectation_stores_nothing_of_a_pipeline(&make("wrong").await).await;
    an_old_writer_is_fenced(&make("fence").await).await;
    purging_by_filter_keeps_the_others(&make("purge").await).await;
    the_end_is_known_without_its_message(&make("end").await).await;
    if promises.message_ids {
        c17_a_reused_id_is_never_taken_for_stored(&make("c17").await).await;
    }
    if promises.pipelines_fenced {
        an_old_writers_pipeline_is_fenced_as_a_whole(&make("pipelined_fence").await).await;
    }
}

/// A message for `subject` below the log's prefix.
pub fn message(log: &impl Log, subject: &str, expected_last: u64, text: &str) -> Outgoing {
    Outgoing {
        subject: format!("{}.{subject}", log.prefix()),
        payload: Bytes::copy_from_slice(text.as_bytes()),
        expected_last: StreamSequence(expected_last),
        message_id: None,
        headers: Vec::new(),
    }
}

fn with_id(mut message: Outgoing, id: &str) -> Outgoing {
    message.message_id = Some(id.to_owned());
    message
}

fn stored(sequence: u64) -> Outcome {
    Outcome::Stored {
        sequence: StreamSequence(sequence),
    }
}

fn wrong(actual: u64) -> Outcome {
    Outcome::WrongSequence {
        actual: Some(StreamSequence(actual)),
    }
}

async fn fill(log: &impl Log, subjects: &[&str]) {
    for (at, subject) in (0..).zip(subjects) {
        let outcome = log.publish(message(log, subject, at, subject)).await;
        assert_eq!(outcome, stored(at + 1));
    }
}

async fn text_at(log: &impl Log, sequence: u64) -> Option<String> {
    let found = log.get(StreamSequence(sequence)).await.expect("get");
    found.map(|found| String::from_utf8_lossy(&found.payload).into_owned())
}

/// Nothing is there, and the next publish has to expect 0.
pub async fn an_empty_log_has_no_end(log: &impl Log) {
    let end = log.end().await.expect("end");
    assert_eq!(
        end,
        StreamEnd {
            last_sequence: StreamSequence(0),
            message: None
        }
    );
    assert_eq!(log.get(StreamSequence(0)).await.expect("get"), None);
    assert_eq!(log.get(StreamSequence(1)).await.expect("get"), None);
    let filter = format!("{}.>", log.prefix());
    assert_eq!(log.last_on(&filter).await.expect("last_on"), None);
    assert_eq!(
        log.next_on(&filter, StreamSequence(0))
            .await
            .expect("next_on"),
        None
    );
}

/// Publishes need not wait for one another; their order is that of the calls.
pub async fn a_pipeline_is_stored_in_call_order(log: &impl Log) {
    const COUNT: u64 = 500;
    let sent = (0..COUNT).map(|at| log.publish(message(log, "tx.0", at, &at.to_string())));
    // All are on their way before the first answer is looked at.
    let sent: Vec<_> = sent.collect();
    let outcomes = join_all(sent).await;
    let expected: Vec<Outcome> = (1..=COUNT).map(stored).collect();
    assert_eq!(outcomes, expected);
    for at in [1, COUNT / 2, COUNT] {
        assert_eq!(text_at(log, at).await, Some((at - 1).to_string()));
    }
    let end = log.end().await.expect("end");
    assert_eq!(end.last_sequence, StreamSequence(COUNT));
    assert_eq!(
        end.message.map(|tail| tail.sequence),
        Some(StreamSequence(COUNT))
    );
}

/// Bytes of any kind and headers of ours are kept.
pub async fn headers_and_bytes_come_back(log: &impl Log) {
    let mut sent = message(log, "mark", 0, "");
    sent.payload = (0..=255).collect::<Vec<u8>>().into();
    sent.headers = vec![
        ("Trellara-Kind", "marker".to_owned()),
        ("Trellara-Lsn", "0/1".to_owned()),
    ];
    assert_eq!(log.publish(sent.clone()).await, stored(1));
    let found = log
        .get(StreamSequence(1))
        .await
        .expect("get")
        .expect("it is there");
    assert_eq!((found.subject, found.payload), (sent.subject, sent.payload));
    for (name, value) in sent.headers {
        assert!(found.headers.contains(&(name.to_owned(), value)), "{name}");
    }
    let empty = message(log, "mark", 1, "");
    assert_eq!(log.publish(empty).await, stored(2));
    assert_eq!(text_at(log, 2).await.as_deref(), Some(""));
}

/// A refused message takes everything behind it along: no hole, ever.
pub async fn a_wrong_expectation_stores_nothing_of_a_pipeline(log: &impl Log) {
    fill(log, &["tx.0", "tx.0"]).await;
    let behind: Vec<_> = [1, 4, 5, 6]
        .map(|at| log.publish(message(log, "tx.0", at, "lost")))
        .into_iter()
        .collect();
    assert_eq!(join_all(behind).await, vec![wrong(2); 4]);
    assert_eq!(
        log.end().await.expect("end").last_sequence,
        StreamSequence(2)
    );
    assert_eq!(
        log.publish(message(log, "tx.0", 2, "next")).await,
        stored(3)
    );
}

/// Whoever read the end and wrote behind it owns the stream; the one before gets nothing in.
pub async fn an_old_writer_is_fenced(log: &impl Log) {
    fill(log, &["tx.0"; 10]).await;
    let new = log.another_writer();
    let end = new.end().await.expect("end").last_sequence;
    assert_eq!(
        new.publish(message(&new, "mark", end.0, "marker")).await,
        stored(11)
    );
    assert_eq!(
        log.publish(message(log, "tx.0", 10, "zombie")).await,
        wrong(11)
    );
    assert_eq!(
        new.publish(message(&new, "tx.0", 11, "ours")).await,
        stored(12)
    );
    assert_eq!(text_at(log, 12).await.as_deref(), Some("ours"));
}

/// The same when the old one had several messages on their way: its message 12 expects just the
/// sequence that the new writer's marker made the last.
pub async fn an_old_writers_pipeline_is_fenced_as_a_whole(log: &impl Log) {
    let old = |at: u64| with_id(message(log, "tx.0", at, "old"), &format!("old-{at}"));
    for at in 0..10 {
        assert_eq!(log.publish(old(at)).await, stored(at + 1));
    }
    let new = log.another_writer();
    let marker = with_id(message(&new, "mark", 10, "marker"), "new-10");
    assert_eq!(new.publish(marker).await, stored(11));
    let zombie: Vec<_> = (10..15).map(|at| log.publish(old(at))).collect();
    for outcome in join_all(zombie).await {
        assert!(
            matches!(outcome, Outcome::WrongSequence { .. }),
            "{outcome:?}"
        );
    }
    let ours = with_id(message(&new, "tx.0", 11, "ours"), "new-11");
    assert_eq!(new.publish(ours).await, stored(12));
    // Whoever was refused and finds the end still its own goes on.
    let retry = |at: u64| with_id(message(&new, "tx.0", at, "ours"), &format!("new-{at}"));
    let refused = join_all([13, 14].map(|at| new.publish(retry(at)))).await;
    assert!(
        refused
            .iter()
            .all(|o| matches!(o, Outcome::WrongSequence { .. })),
        "{refused:?}"
    );
    let went_on = join_all([12, 13, 14].map(|at| new.publish(retry(at)))).await;
    assert_eq!(went_on, [stored(13), stored(14), stored(15)]);
}

/// C17: a message id that was used before, with the expectation met, stores nothing, whether or
/// not the first one is still there, and the answer says another sequence than the expected one.
pub async fn c17_a_reused_id_is_never_taken_for_stored(log: &impl Log) {
    fill(log, &["tx.0"]).await;
    let first = with_id(message(log, "tx.0", 1, "T5 T6"), "id");
    assert_eq!(log.publish(first).await, stored(2));
    assert_eq!(
        log.publish(message(log, "tx.0", 2, "other")).await,
        stored(3)
    );
    let more = || with_id(message(log, "tx.0", 3, "T5 to T9"), "id");
    let duplicate = Outcome::DuplicateAt {
        sequence: StreamSequence(2),
    };
    assert_eq!(log.publish(more()).await, duplicate);
    assert_eq!(
        log.end().await.expect("end").last_sequence,
        StreamSequence(3)
    );
    let filter = format!("{}.tx.0", log.prefix());
    assert_eq!(
        log.purge_to(&filter, StreamSequence(3))
            .await
            .expect("purge"),
        2
    );
    assert_eq!(log.publish(more()).await, duplicate);
    // Under an id of its own it is stored.
    assert_eq!(log.publish(with_id(more(), "own")).await, stored(4));
}

/// Chunks go subject by subject, positional frames by sequence, and neither touches the other.
pub async fn purging_by_filter_keeps_the_others(log: &impl Log) {
    let subjects = [
        "open.1.7", "tx.0", "open.1.7", "tx.0", "open.1.8", "mark", "tx.0",
    ];
    fill(log, &subjects).await;
    let on = |subject: &str| format!("{}.{subject}", log.prefix());
    assert_eq!(
        log.purge_to(&on("tx.>"), StreamSequence(5))
            .await
            .expect("purge"),
        2
    );
    assert_eq!(
        log.purge_to(&on("tx.>"), StreamSequence(0))
            .await
            .expect("purge"),
        0
    );
    assert_eq!(
        log.purge_to(&on("tx.>"), StreamSequence(1))
            .await
            .expect("purge"),
        0
    );
    let next = log
        .next_on(&on("tx.>"), StreamSequence(1))
        .await
        .expect("next")
        .expect("one");
    assert_eq!(next.sequence, StreamSequence(7));
    assert_eq!(log.purge_subject(&on("open.1.7")).await.expect("purge"), 2);
    for (sequence, stays) in [(1, false), (2, false), (3, false), (4, false)]
        .into_iter()
        .chain([(5, true), (6, true), (7, true)])
    {
        assert_eq!(
            text_at(log, sequence).await.is_some(),
            stays,
            "sequence {sequence}"
        );
    }
    assert_eq!(log.purge_subject(&on("open.1.>")).await.expect("purge"), 1);
    let last = log.last_on(&on("open.>")).await.expect("last_on");
    assert_eq!(last, None);
    assert!(
        log.purge_subject("").await.is_err(),
        "an empty filter must not mean everything"
    );
    assert_eq!(
        log.publish(message(log, "tx.0", 7, "next")).await,
        stored(8)
    );
}

/// The last message may be purged by its subject; the next publish still has to expect it.
pub async fn the_end_is_known_without_its_message(log: &impl Log) {
    fill(log, &["tx.0", "open.1.7"]).await;
    let chunks = format!("{}.open.1.7", log.prefix());
    assert_eq!(log.purge_subject(&chunks).await.expect("purge"), 1);
    let end = log.end().await.expect("end");
    assert_eq!(end.last_sequence, StreamSequence(2));
    assert_eq!(
        end.message.map(|tail| tail.sequence),
        Some(StreamSequence(1))
    );
    let all = format!("{}.>", log.prefix());
    assert_eq!(log.purge_subject(&all).await.expect("purge"), 1);
    let end = log.end().await.expect("end");
    assert_eq!(
        end,
        StreamEnd {
            last_sequence: StreamSequence(2),
            message: None
        }
    );
    assert_eq!(log.publish(message(log, "tx.0", 0, "anew")).await, wrong(2));
    assert_eq!(
        log.publish(message(log, "tx.0", 2, "next")).await,
        stored(3)
    );
}
