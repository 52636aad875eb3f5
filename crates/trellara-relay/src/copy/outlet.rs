//! Into the copy stream: the window's frames to the broker, its answers to the window, and after a
//! doubt the stream itself.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use trellara_envelope::{
    CopyEvent, CopyFrame, CopyWanted, FlowName, FrameDigest, Incarnation, SourceId, StreamSequence,
};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::{self, StreamFacts, StreamSpec};
use trellara_jetstream::{Broker, BrokerError, BrokerErrorKind, Support};

use super::Serving;
use super::orders::Heard;
use super::report::Report;
use super::window::{Judged, Sent, Tail, Took, Window};

/// A full stream, or a broker that is away, is asked again after this long.
const PAUSE: Duration = Duration::from_millis(100);
/// Without an incarnation for this long another relay has the slot, and the copy is its business.
const ALONE: Duration = Duration::from_secs(60);

/// Why nothing can be written for now.
#[derive(Debug)]
pub(super) enum OutletError {
    /// A newer relay writes the copy.
    Fenced(Incarnation),
    /// Frames that were stored are gone.
    Lost(String),
    /// Another relay wrote while an earlier incarnation of ours had lost the slot.
    Foreign(String),
    /// Frames of these copies will never be stored, and were taken back.
    TakenBack { of: Vec<CopyWanted>, reason: String },
    /// The broker refuses, or no incarnation of ours holds the slot. What is on its way is kept.
    Again(String),
}

pub(super) type Answer = (StreamSequence, Outcome);

/// The writing end of the copy stream.
pub(super) struct Outlet {
    broker: Broker,
    flow: FlowName,
    reader: Reader,
    publisher: Publisher,
    window: Window,
    answers: FuturesOrdered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    serving: watch::Receiver<Option<Serving>>,
    orders: watch::Receiver<Option<Heard>>,
    report: Report,
    silence: Duration,
    /// The limits of the stream, as it was opened.
    facts: StreamFacts,
}

/// What an outlet is made of, beside the stream.
#[derive(Clone)]
pub(super) struct Fittings {
    pub(super) broker: Broker,
    pub(super) flow: FlowName,
    pub(super) max_bytes: u64,
    pub(super) silence: Duration,
    pub(super) serving: watch::Receiver<Option<Serving>>,
    pub(super) orders: watch::Receiver<Option<Heard>>,
    pub(super) report: Report,
}

impl Fittings {
    /// Makes the stream, unless it is there. `before` is the window of an outlet of this process,
    /// whose chain goes on. Then [`Outlet::join`].
    pub(super) async fn open(
        &self,
        serving: Serving,
        target: &str,
        before: &mut Option<Window>,
    ) -> Result<Outlet, OutletError> {
        let facts = self.stream(target).await?;
        let stream = self.flow.copy_stream();
        let new = || Window::new(self.flow.clone(), serving.source, serving.incarnation);
        let begun = before.take().filter(|window| !window.is_untouched());
        let mut window = begun.unwrap_or_else(new);
        window.measured(facts.bytes, facts.max_bytes);
        Ok(Outlet {
            broker: self.broker.clone(),
            flow: self.flow.clone(),
            reader: Reader::new(&self.broker, &stream),
            publisher: Publisher::new(&self.broker, &stream).fencing_pipelines(&facts),
            window,
            answers: FuturesOrdered::new(),
            serving: self.serving.clone(),
            orders: self.orders.clone(),
            report: self.report.clone(),
            silence: self.silence,
            facts,
        })
    }

    async fn stream(&self, target: &str) -> Result<StreamFacts, OutletError> {
        let main = topology::facts(&self.broker, &self.flow.stream())
            .await
            .map_err(unheard)?;
        let spec = StreamSpec {
            replicas: main.replicas,
            target: Some(target.to_owned()),
            ..StreamSpec::copy(self.flow.clone(), self.max_bytes)
        };
        let facts = topology::create(&self.broker, &spec)
            .await
            .map_err(unheard)?;
        if facts.target() == Some(target) {
            return Ok(facts);
        }
        // Left by a copy for a target that is not the registered one any more.
        topology::delete(&self.broker, &self.flow.copy_stream())
            .await
            .map_err(unheard)?;
        topology::create(&self.broker, &spec).await.map_err(unheard)
    }
}

impl Outlet {
    /// Goes to the end of the stream. A chain that was written before has to be found there as it
    /// was left; what of it was sent and is not stored is sent again, so that it has no hole.
    pub(super) async fn join(&mut self) -> Result<(), OutletError> {
        if !self.window.is_untouched() {
            return match self.is_waiting() {
                true => self.settle().await,
                false => self.look().await,
            };
        }
        let end = self.facts.last_sequence;
        let tail = self.stored_at(end).await?;
        // Our own number on a chain that we do not know is another's as well.
        let writer = tail.and_then(|tail| tail.writer);
        if let Some(writer) = writer.filter(|writer| *writer >= self.window.writer()) {
            return Err(OutletError::Fenced(writer));
        }
        self.window.stand_at(end);
        Ok(())
    }

    /// The chain, for another outlet of this process.
    pub(super) fn into_window(self) -> Window {
        self.window
    }

    /// The largest message that stream and server take.
    pub(super) fn largest_message(&self) -> usize {
        crate::opening::largest_message(&self.broker, self.facts.max_message_bytes)
    }

    /// What is written from now on was read there.
    pub(super) fn reads(&mut self, source: SourceId) {
        self.window.reads(source);
    }

    /// What the stream may hold.
    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.facts.max_bytes
    }

    /// Whether a frame is on its way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.window.is_empty()
    }

    /// Sends a frame when there is room for it; its answer is taken later.
    pub(super) async fn send(
        &mut self,
        of: &CopyWanted,
        event: CopyEvent,
        payload: Bytes,
    ) -> Result<(), OutletError> {
        self.make_room(payload.len()).await?;
        let sent = self.window.put(of, event, payload);
        self.publish(&sent);
        while let Some(Some(answer)) = self.answers.next().now_or_never() {
            self.took(Some(answer)).await?;
        }
        Ok(())
    }

    /// The next answer, to be given to [`Outlet::took`]; `None` when none is on its way. Cancel safe.
    pub(super) async fn next_answer(&mut self) -> Option<Answer> {
        self.answers.next().await
    }

    async fn answer(&mut self) -> Result<(), OutletError> {
        let answer = self.next_answer().await;
        self.took(answer).await
    }

    /// Waits until everything is stored.
    pub(super) async fn flush(&mut self) -> Result<(), OutletError> {
        while self.is_waiting() {
            self.answer().await?;
        }
        Ok(())
    }

    /// Whether the stream still ends where it has to. To be asked when nothing is on its way: then
    /// whatever came behind our last frame is somebody else's.
    pub(super) async fn look(&mut self) -> Result<(), OutletError> {
        let facts = topology::facts(&self.broker, &self.flow.copy_stream()).await;
        match facts {
            Ok(facts) => {
                self.judge(facts.last_sequence).await?;
                self.window.measured(facts.bytes, facts.max_bytes);
                Ok(())
            }
            Err(error) if error.is_missing() => Err(gone()),
            Err(error) => Err(unheard(error)),
        }
    }

    async fn make_room(&mut self, bytes: usize) -> Result<(), OutletError> {
        loop {
            self.held().await?;
            if !self.window.has_place(bytes) {
                self.answer().await?;
            } else if self.window.has_room(bytes) {
                self.report.waiting_for("");
                return Ok(());
            } else if self.is_waiting() {
                self.answer().await?;
            } else {
                match self.look().await {
                    // A broker that is away comes back, and the run goes on.
                    Err(OutletError::Again(_)) => self.pause("the broker").await,
                    looked => looked?,
                }
                if !self.window.has_room(bytes) {
                    self.heard()?;
                    self.pause("room in the copy stream").await;
                }
            }
        }
    }

    /// Waits until an incarnation of this process holds the slot: only its copy is wanted.
    async fn held(&mut self) -> Result<(), OutletError> {
        if self.serving.borrow().is_some() {
            return Ok(());
        }
        self.report.waiting_for("the replication slot");
        match tokio::time::timeout(ALONE, self.serving.wait_for(Option::is_some)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(OutletError::Again(
                "the relay does not have the slot".to_owned(),
            )),
        }
    }

    fn publish(&mut self, sent: &Sent) {
        let ids = self.broker.server_version().support() == Support::Full;
        let sequence = sent.sequence;
        let id = || format!("{}:copy:{}:{}", self.flow, sent.ordinal, sent.digest);
        let answer = self.publisher.publish(Outgoing {
            subject: self.flow.copy_subject(),
            payload: sent.payload.clone(),
            expected_last: StreamSequence(sequence.0 - 1),
            message_id: ids.then(id),
            headers: vec![("Trellara-Kind", sent.kind.to_owned())],
        });
        self.answers
            .push_back(Box::pin(async move { (sequence, answer.await) }));
    }

    /// Takes an answer; after a doubt it is found out what the stream holds.
    pub(super) async fn took(&mut self, answer: Option<Answer>) -> Result<(), OutletError> {
        let Some((sequence, outcome)) = answer else {
            // Frames that no answer is on its way for: settling was broken off.
            return match self.is_waiting() {
                true => self.settle().await,
                false => Ok(()),
            };
        };
        match self.window.took(sequence, outcome) {
            Took::Stored => Ok(()),
            Took::Full => self.settle().await,
            Took::Doubt(reason) => {
                tracing::debug!(reason, "the copy stream is asked what it holds");
                self.settle().await
            }
            Took::Refused(reason) => Err(OutletError::Again(reason)),
            Took::TooLarge(reason) => {
                self.answers = FuturesOrdered::new();
                let of = self.window.take_back();
                Err(OutletError::TakenBack { of, reason })
            }
        }
    }

    /// Finds out what is stored, and sends the rest again.
    async fn settle(&mut self) -> Result<(), OutletError> {
        // Answers that still come say nothing that the stream does not say better.
        self.answers = FuturesOrdered::new();
        loop {
            self.held().await?;
            let facts = match topology::facts(&self.broker, &self.flow.copy_stream()).await {
                Ok(facts) => facts,
                Err(error) if error.is_missing() => return Err(gone()),
                Err(error) if error.is_passing() => {
                    self.pause("the broker").await;
                    continue;
                }
                Err(error) => return Err(unheard(error)),
            };
            match self.judge(facts.last_sequence).await {
                Ok(()) => {}
                Err(OutletError::Again(_)) => {
                    self.pause("the broker").await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.window.measured(facts.bytes, facts.max_bytes);
            if !self.window.fits() {
                self.heard()?;
                self.pause("room in the copy stream").await;
                continue;
            }
            self.report.waiting_for("");
            let unstored: Vec<Sent> = self.window.unstored().cloned().collect();
            for sent in &unstored {
                self.publish(sent);
            }
            return Ok(());
        }
    }

    async fn judge(&mut self, end: StreamSequence) -> Result<(), OutletError> {
        let tail = match end > self.window.stored() {
            true => self.stored_at(end).await?,
            false => None,
        };
        match self.window.judge(end, tail) {
            Judged::GoOn => Ok(()),
            Judged::Fenced(writer) => Err(OutletError::Fenced(writer)),
            Judged::Lost(reason) => Err(OutletError::Lost(reason)),
            // Under the number that a copy was begun with it must not begin once more: its parts
            // would be taken for those of the first. Under a newer one it may.
            Judged::Foreign(reason) => match *self.serving.borrow() {
                Some(now) if now.incarnation > self.window.writer() => {
                    Err(OutletError::Foreign(reason))
                }
                Some(_) | None => Err(OutletError::Lost(reason)),
            },
            Judged::Older => {
                let mut stored = self.window.stored();
                loop {
                    let next = StreamSequence(stored.0 + 1);
                    match self.stored_at(next).await? {
                        Some(tail) if self.window.is_ours(next, tail.digest) => stored = next,
                        _ => break,
                    }
                }
                self.window.pass_over(stored, end);
                Ok(())
            }
        }
    }

    async fn stored_at(&mut self, sequence: StreamSequence) -> Result<Option<Tail>, OutletError> {
        let stored = self.reader.get(sequence).await.map_err(unheard)?;
        Ok(stored.map(|stored| tail_of(&stored.payload)))
    }

    /// Somebody has to be there who makes room.
    fn heard(&self) -> Result<(), OutletError> {
        let order = self.orders.borrow();
        if order
            .as_ref()
            .is_none_or(|heard| heard.is_older(self.silence))
        {
            return Err(OutletError::Again(
                "the target has been silent for too long".to_owned(),
            ));
        }
        Ok(())
    }

    /// Waits a little, or until the target has something to say: it may have made room.
    async fn pause(&mut self, waiting_for: &str) {
        self.report.waiting_for(waiting_for);
        let _ = tokio::time::timeout(PAUSE, self.orders.changed()).await;
    }
}

/// Deletes the copy stream of a flow; true when there was one.
pub(super) async fn delete(broker: &Broker, flow: &FlowName) -> Result<bool, OutletError> {
    topology::delete(broker, &flow.copy_stream())
        .await
        .map_err(unheard)
}

fn tail_of(payload: &Bytes) -> Tail {
    let frame = CopyFrame::decode(payload);
    Tail {
        writer: frame.ok().map(|frame| frame.header.writer),
        digest: FrameDigest::of(payload),
    }
}

fn gone() -> OutletError {
    OutletError::Lost("the copy stream was deleted".to_owned())
}

/// A broker that does not do what it is asked for is asked again, for ever: the transaction stream
/// halts where an operator is needed, the copy waits.
fn unheard(error: BrokerError) -> OutletError {
    let hint = match error.kind() {
        BrokerErrorKind::Permission { .. } => ": compare the permissions with config/nats",
        BrokerErrorKind::Passing
        | BrokerErrorKind::Missing
        | BrokerErrorKind::Refused { .. }
        | BrokerErrorKind::Configuration => "",
    };
    OutletError::Again(format!("the broker: {error}{hint}"))
}
