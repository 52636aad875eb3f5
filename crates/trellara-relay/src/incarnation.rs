//! One incarnation: connect, take the slot, ask the table, then feed the machine and do what it
//! says until it ends.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;
use trellara_crashpoints::{self as crashpoints, Point};
use trellara_envelope::{CopyOrder, Halt, HaltCode, Incarnation, PositionReport, StreamSequence};
use trellara_jetstream::publish::{Outcome, Outgoing, Publisher};
use trellara_jetstream::{Broker, CoreSubscription};
use trellara_postgres::Fault;
use trellara_source::stream::{ReplicationStream, StreamEnd, StreamEvent, Streaming};

use crate::asking::{self, Answer, Question};
use crate::copy::Serving;
use crate::facts;
use crate::machine::{Command, Event, Machine, MachineStatus};
use crate::metrics::Metrics;
use crate::opening::{largest_message, open, settings};
use crate::{RelayOptions, RelayState, RelayStatus};

/// How an incarnation, or the attempt to begin one, ended.
pub(crate) enum End {
    /// Told to stop.
    Cancelled,
    /// An operator is needed.
    Halt(Halt),
    /// Another relay has the slot; who, in the server's words.
    Taken(String),
    /// Another attempt may do better.
    Again {
        reason: String,
        /// The incarnation, when it got as far as streaming.
        began: Option<Incarnation>,
        /// How the next one reads; `None` as this one should have.
        streaming: Option<Streaming>,
    },
}

impl From<Halt> for End {
    fn from(halt: Halt) -> Self {
        End::Halt(halt)
    }
}

/// The machine's intervals are seconds; this is fine enough for them and for `status`.
const TICK: Duration = Duration::from_millis(100);
/// The stream's size is asked for this often, and at once while it is full.
const SPACE_INTERVAL: Duration = Duration::from_secs(2);
/// Whether commits wait for us is asked for this often.
const SYNCHRONOUS_INTERVAL: Duration = Duration::from_secs(10);
/// When told to stop, what is in flight is waited for this long, so that the slot is left where
/// the stream is; the rest would only be sent again.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// What an incarnation works with.
struct Incarnate<'a> {
    options: &'a RelayOptions,
    broker: &'a Broker,
    status: &'a RelayStatus,
    metrics: &'a Metrics,
    machine: Machine,
    number: Incarnation,
    serving: Serving,
    /// The registered target.
    target: Option<String>,
    stream: ReplicationStream,
    publisher: Publisher,
    publishes: FuturesUnordered<Pin<Box<dyn Future<Output = Published> + Send>>>,
    questions: FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    /// Apart, because they are waited for before another incarnation begins.
    purges: FuturesUnordered<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    asking: asking::Asker,
    schedule: Schedule,
    /// The stream's own limit of a message, in bytes.
    max_message: Option<u64>,
    began: Instant,
    taken: MachineStatus,
    commands: Vec<Command>,
}

type Published = (trellara_envelope::FrameOrdinal, u32, Outcome);

/// Runs until it ends. `known` is the highest incarnation this process has begun.
pub(crate) async fn run(
    options: &RelayOptions,
    broker: &Broker,
    known: Incarnation,
    streaming: Streaming,
    cancel: &CancellationToken,
    status: &RelayStatus,
    metrics: &Metrics,
) -> End {
    let opened = tokio::select! {
        () = cancel.cancelled() => return End::Cancelled,
        opened = Box::pin(open(options, broker, known, streaming, status)) => opened,
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(end) => return end,
    };
    let number = opened.start.incarnation;
    let settings = settings(options, broker, opened.max_message);
    let began = Instant::now();
    let mut commands = Vec::new();
    let marker = opened.start.marker.clone();
    let target = opened.start.target.clone();
    let serving = Serving {
        incarnation: number,
        source: opened.start.history.source(),
    };
    let machine = Machine::new(settings, opened.start, Duration::ZERO, &mut commands);
    tracing::info!(incarnation = number.0, "took the slot");
    if crashpoints::reached(crashpoints::RELAY_SLOT_TAKEN) {
        return crashed(None);
    }
    status.update(|status| {
        status.incarnation = number;
        status.state = RelayState::Resuming;
        status.waiting_for = String::new();
    });
    let mut incarnate = Incarnate {
        options,
        broker,
        status,
        metrics,
        machine,
        number,
        serving,
        target,
        stream: opened.stream,
        publisher: opened.publisher,
        publishes: FuturesUnordered::new(),
        questions: FuturesUnordered::new(),
        purges: FuturesUnordered::new(),
        asking: asking::Asker::new(
            options.clone(),
            broker.clone(),
            opened.session,
            marker,
            opened.publication,
        ),
        schedule: Schedule::new(),
        max_message: opened.max_message,
        began,
        taken: MachineStatus::default(),
        commands,
    };
    let end = incarnate
        .work((opened.reports, opened.orders), cancel)
        .await;
    if let End::Again { .. } = end {
        incarnate.finish_purges().await;
    }
    incarnate.take_status();
    end
}

/// When to ask which question next.
#[derive(Debug)]
struct Schedule {
    space_at: Duration,
    /// Last sequence acknowledged when the stream's size was asked for.
    space_floor: StreamSequence,
    membership_at: Duration,
    synchronous_at: Duration,
    asking_source: bool,
    asking_space: bool,
}

impl Schedule {
    fn new() -> Self {
        Self {
            space_at: SPACE_INTERVAL,
            space_floor: StreamSequence(0),
            membership_at: Duration::ZERO,
            synchronous_at: Duration::ZERO,
            asking_source: false,
            asking_space: false,
        }
    }
}

impl Incarnate<'_> {
    /// The loop: one event at a time into the machine, its commands out.
    async fn work(
        &mut self,
        (mut reports, mut orders): (CoreSubscription, CoreSubscription),
        cancel: &CancellationToken,
    ) -> End {
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stop_at: Option<tokio::time::Instant> = None;
        loop {
            if let Some(end) = self.carry_out() {
                return end;
            }
            if let Some(stop_at) = stop_at
                && (self.machine.is_settled() || stop_at <= tokio::time::Instant::now())
            {
                return End::Cancelled;
            }
            let wants_input = stop_at.is_none() && self.machine.wants_input();
            tokio::select! {
                biased;
                () = cancel.cancelled(), if stop_at.is_none() => {
                    stop_at = Some(tokio::time::Instant::now() + SETTLE_LIMIT);
                }
                Some((ordinal, attempt, outcome)) = self.publishes.next() => {
                    if crashpoints::reached(crashpoints::RELAY_STORED) {
                        return crashed(Some(self.number));
                    }
                    self.event(Event::Published { ordinal, attempt, outcome });
                }
                Some(answer) = self.questions.next() => {
                    if let Some(end) = self.answered(answer) {
                        return end;
                    }
                }
                Some(_) = self.purges.next() => {}
                _ = ticker.tick() => self.tick(),
                Some(order) = orders.next() => {
                    if let Ok(order) = CopyOrder::decode(&order.payload) {
                        self.ordered(&order);
                        self.event(Event::CopyOrder(order));
                    }
                }
                Some(report) = reports.next() => {
                    if let Ok(report) = PositionReport::decode(&report.payload) {
                        self.event(Event::Report(report));
                    }
                }
                event = self.stream.next(), if wants_input => {
                    if let Some(end) = self.source_said(event) {
                        return end;
                    }
                }
            }
        }
    }

    /// A stream that open transactions have filled needs the room. What is not removed in time
    /// goes with the incarnation.
    async fn finish_purges(&mut self) {
        let purges = std::mem::take(&mut self.purges);
        let _ = tokio::time::timeout(SETTLE_LIMIT, purges.count()).await;
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn event(&mut self, event: Event<'_>) {
        let now = self.now();
        self.machine.handle(now, event, &mut self.commands);
    }

    fn tick(&mut self) {
        let largest = largest_message(self.broker, self.max_message);
        self.event(Event::MaxPayload(largest));
        self.event(Event::Tick);
        self.take_status();
        let now = self.now();
        let full = !self.taken.waiting_for.is_empty();
        if !self.schedule.asking_space && (full || now >= self.schedule.space_at) {
            self.schedule.asking_space = true;
            self.schedule.space_at = now + SPACE_INTERVAL;
            self.schedule.space_floor = self.taken.last_sequence;
            self.ask(Question::Stream);
        }
        if self.schedule.asking_source {
            return;
        }
        if now >= self.schedule.membership_at {
            self.schedule.asking_source = true;
            self.schedule.membership_at = now + self.options.membership_interval;
            self.ask(Question::Membership);
        } else if now >= self.schedule.synchronous_at {
            self.schedule.asking_source = true;
            self.schedule.synchronous_at = now + SYNCHRONOUS_INTERVAL;
            self.ask(Question::Synchronous);
        }
    }

    /// Tables that have left on purpose are looked for at once: one that comes back before that was
    /// noticed could not be told from one that left behind our back.
    fn ordered(&mut self, order: &CopyOrder) {
        let ours = order.flow == self.options.flow && self.target.as_ref() == Some(&order.target);
        if ours && self.asking.removed(&order.removed) {
            self.schedule.membership_at = Duration::ZERO;
        }
    }

    fn ask(&mut self, question: Question) {
        let answer = self.asking.ask(question);
        self.questions.push(answer);
    }

    fn source_said(&mut self, event: Option<StreamEvent>) -> Option<End> {
        match event {
            Some(StreamEvent::Gulp(gulp)) => {
                for payload in gulp.payloads() {
                    self.event(Event::CopyData(payload));
                }
                self.event(Event::GulpEnd);
                None
            }
            Some(StreamEvent::Notice(fault)) => noticed(&fault),
            Some(StreamEvent::Ended(end)) => Some(self.source_ended(end)),
            None => Some(self.again("the replication stream ended")),
        }
    }

    fn source_ended(&self, end: StreamEnd) -> End {
        match end {
            StreamEnd::Error(fault) => self.again(format!(
                "the source ended the stream: {} ({})",
                fault.message, fault.sqlstate
            )),
            StreamEnd::Done => self.again("the source ended the stream"),
            StreamEnd::Lost(reason) => self.again(format!("the source: {reason}")),
        }
    }

    fn answered(&mut self, answer: Answer) -> Option<End> {
        match answer {
            Answer::Tail(answer) => self.event(Event::Tail(answer)),
            Answer::Footing(answer) => self.event(Event::Footing(answer)),
            Answer::Report(report, fits) => self.event(Event::ReportChecked(report, fits)),
            Answer::Stream(facts) => {
                self.schedule.asking_space = false;
                if let Some(facts) = facts {
                    self.max_message = facts.max_message_bytes;
                    self.target = facts.target().map(str::to_owned);
                    self.event(Event::Stream {
                        space: facts::space(&facts),
                        target: facts.target().map(str::to_owned),
                        floor: self.schedule.space_floor,
                    });
                }
            }
            Answer::Probed(answer) => self.event(Event::Probed(answer)),
            Answer::Membership(result) => {
                self.schedule.asking_source = false;
                match result {
                    Ok(false) => self.event(Event::MembershipPassed),
                    Ok(true) => {
                        let why = "tables have left on an operator's word: going on behind a marker \
                                   that does not name them";
                        return Some(self.again(why));
                    }
                    Err(asking::Failed::Halt(halt)) => return Some(End::Halt(halt)),
                    Err(asking::Failed::NoAnswer(reason)) => {
                        // The data goes on, heartbeats stop until a check passes.
                        self.schedule.membership_at = self.now() + Duration::from_secs(1);
                        tracing::warn!(reason, "the publication could not be checked");
                        self.event(Event::MembershipUnchecked(reason));
                    }
                }
            }
            Answer::Synchronous(synchronous) => {
                self.schedule.asking_source = false;
                if let Some(synchronous) = synchronous {
                    self.event(Event::SynchronousStandby(synchronous));
                }
            }
            Answer::Subtransactions(answer) => self.event(Event::Subtransactions(answer)),
            Answer::Done => {}
        }
        None
    }

    /// Does what the machine said.
    fn carry_out(&mut self) -> Option<End> {
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            match command {
                Command::Publish(publish) => {
                    let (ordinal, attempt) = (publish.ordinal, publish.attempt);
                    let (before, sent) = points_of(&publish.subject);
                    if before.is_some_and(crashpoints::reached) {
                        return Some(crashed(Some(self.number)));
                    }
                    // Handed to the connection here, in order; only the answer is waited for.
                    let answer = self.publisher.publish(Outgoing {
                        subject: publish.subject,
                        payload: publish.payload,
                        expected_last: publish.expected_last,
                        message_id: publish.message_id,
                        headers: publish.headers,
                    });
                    self.publishes
                        .push(Box::pin(async move { (ordinal, attempt, answer.await) }));
                    if crashpoints::reached(sent) {
                        return Some(crashed(Some(self.number)));
                    }
                }
                Command::Feedback { feedback, reply } => {
                    self.stream.feedback(feedback, reply);
                    if crashpoints::reached(crashpoints::RELAY_CONFIRMED) {
                        return Some(crashed(Some(self.number)));
                    }
                }
                Command::ReadTail => self.ask(Question::Tail),
                Command::ReadFooting(at) => self.ask(Question::Footing(at)),
                Command::CheckReport(report) => self.ask(Question::Report(report)),
                Command::ProbeSource => self.ask(Question::Probe),
                Command::AskSubtransactions { xid, asked } => {
                    self.ask(Question::Subtransactions { xid, asked });
                }
                Command::Purge { subject, below } => {
                    let purge = self.asking.ask(Question::Purge { subject, below });
                    self.purges.push(purge);
                }
                Command::Warn(large) => self.status.warn_of(large),
                Command::Restart(restart) => {
                    let streaming = match restart.streaming_off {
                        true => Some(Streaming::Off),
                        false => self.began().then_some(Streaming::On),
                    };
                    return Some(End::Again {
                        reason: restart.reason,
                        began: Some(self.number),
                        streaming,
                    });
                }
                Command::Halt(halt) => return Some(End::Halt(halt)),
            }
        }
        self.commands = commands;
        None
    }

    fn again(&self, reason: impl Into<String>) -> End {
        End::Again {
            reason: reason.into(),
            began: self.began().then_some(self.number),
            streaming: self.began().then_some(Streaming::On),
        }
    }

    /// Whether the marker was stored.
    fn began(&self) -> bool {
        self.machine.status().frames > 0
    }

    /// Takes over the machine's status for the endpoint and the metrics.
    fn take_status(&mut self) {
        let now = self.machine.status();
        self.metrics.take(&now, &self.taken);
        let before = std::mem::replace(&mut self.taken, now.clone());
        if self.began() {
            self.status.serve(Some(self.serving));
        }
        match (&before.halt, &now.halt) {
            (None, Some(halt)) => tracing::error!(
                code = %halt.code, reason = %halt.reason, hint = %halt.hint,
                "the relay is stopped until this is mended"
            ),
            (Some(halt), None) => tracing::info!(code = %halt.code, "mended: going on"),
            _ => {}
        }
        self.status.take(now, &before, self.machine.is_over());
    }
}

/// What a test wanted: an incarnation that ends here.
fn crashed(began: Option<Incarnation>) -> End {
    End::Again {
        reason: "a crash point".to_owned(),
        began,
        streaming: None,
    }
}

/// The crash points around a publish, by where it goes: of a subject's last token, so that nothing
/// is allocated for what the shipped program does not have.
fn points_of(subject: &str) -> (Option<Point>, Point) {
    match subject.rsplit('.').next() {
        Some("mark") => (None, crashpoints::RELAY_MARKER_SENT),
        Some("beat") => (None, crashpoints::RELAY_HEARTBEAT_SENT),
        _ if subject.contains(".open.") => (None, crashpoints::RELAY_CHUNK_SENT),
        _ => {
            let before = crashpoints::RELAY_BEFORE_TRANSACTION;
            (Some(before), crashpoints::RELAY_TRANSACTION_SENT)
        }
    }
}

/// A notice on the replication connection. PostgreSQL 18 goes on without a publication that was
/// dropped, and its keepalives would confirm the omitted rows away (C06).
fn noticed(fault: &Fault) -> Option<End> {
    if fault.sqlstate == OBJECT_NOT_IN_PREREQUISITE_STATE {
        return Some(End::Halt(Halt::new(
            HaltCode::Config,
            format!("the source leaves rows out: {}", fault.message),
            "the publication was dropped or cannot be loaded; create it again and copy the \
             tables again",
        )));
    }
    tracing::warn!(
        sqlstate = fault.sqlstate,
        message = fault.message,
        "the source gives notice"
    );
    None
}

const OBJECT_NOT_IN_PREREQUISITE_STATE: &str = "55000";
