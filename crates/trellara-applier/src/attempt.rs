//! One connection's worth of applying: from taking the lane to the first fault.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use trellara_crashpoints as crashpoints;
use trellara_envelope::{Halt, HaltCode, Incarnation, StreamSequence, TransactionIdentity};
use trellara_jetstream::consume::{Consumer, ConsumerOptions, Delivery};
use trellara_jetstream::read::Reader;
use trellara_jetstream::{Broker, BrokerError};
use trellara_postgres::Notification;

use crate::apply::Writer;
use crate::backfill::{self, Backfill, Restorer};
use crate::batch::Batch;
use crate::cache::SharedCache;
use crate::checkpoint::{Checkpoint, StreamIdentity};
use crate::fence::LOOK;
use crate::lane::{self, Claimant};
use crate::ledger::{self, Ledger};
use crate::machine::Machine;
use crate::options::ApplierOptions;
use crate::position;
use crate::quarantine::order;
use crate::quarantine::request::{self, DESK};
use crate::report::Reporter;
use crate::rewind::Request;
use crate::session::{CHECKPOINT_NOW, TargetSession};
use crate::status::{ApplierState, ApplierStatus};
use crate::target::Catalog;
use crate::trim::Trimmer;
use crate::trouble::Trouble;

use self::again::Again;
use self::blocked::Quarantine;
use self::copies::Awaited;
use self::dedup::Dedup;
use self::fence::Fence;
use self::pause::Paused;
use self::rewind::Rewinding;

mod again;
mod blocked;
mod commit;
mod copies;
mod dedup;
mod deliver;
mod desk;
mod fence;
mod hold;
mod isolate;
mod pause;
mod prune;
mod rewind;
mod unfit;

/// A request to write progress down at once holds this long: whoever waits asks again, and the
/// heartbeat waited for may come a moment after the request.
const ASKED_FOR: Duration = Duration::from_secs(5);
/// What is known of the target's tables is read again after this long.
const REREAD: Duration = Duration::from_secs(30);

/// Everything that can happen to a running applier.
enum Event {
    /// A shutdown was asked for.
    Cancelled,
    /// The target session ended.
    TargetLost,
    /// The loader changed something about the copies, or came to its end.
    Copies(Result<(), Trouble>),
    /// Somebody notified us.
    Notified(Option<Notification>),
    /// The lease of a verify run's fence may be over.
    LeaseOver,
    /// Time to report, to write progress down, to trim.
    Tick,
    /// A message of the stream, or the end of the consumer.
    Delivered(Result<Delivery, BrokerError>),
}

/// A lane taken, a position proved, a consumer open.
pub(crate) struct Attempt<'a> {
    options: &'a ApplierOptions,
    broker: &'a Broker,
    cancel: &'a CancellationToken,
    status: &'a ApplierStatus,
    target: TargetSession,
    writer: Writer,
    dedup: Dedup,
    quarantine: Quarantine,
    /// Whether this process has tried what the lane stands in front of.
    tried: &'a AtomicBool,
    rewinding: Option<Rewinding>,
    /// The request of the last rewind that was done.
    rewound: Option<String>,
    /// While places are read again that were passed before.
    again: Option<Again>,
    /// What a verify run holds us at.
    fence: Option<Fence>,
    /// While an operator wants the lane to stand still.
    paused: Option<Paused>,
    /// A frame in front of which the lane stands until a copy is in.
    awaited: Option<Awaited>,
    /// The transaction that somebody was told of last that the lane stands in front of it.
    told_of: Option<TransactionIdentity>,
    /// What is being copied, and the loader that copies it.
    backfill: Backfill,
    reader: Reader,
    consumer: Consumer,
    reporter: Reporter,
    trimmer: Trimmer,
    stream: StreamIdentity,
    machine: Machine,
    /// What is committed and durable.
    durable: Checkpoint,
    /// `keep_from` of the last frame durably passed.
    keep_from: StreamSequence,
    /// What was accepted and is not committed.
    batch: Batch,
    /// Incarnations closed by markers in the batch.
    closed: Vec<Incarnation>,
    written: Instant,
    /// When the target's tables were forgotten last.
    reread: Instant,
    asked_until: Option<Instant>,
    repositions: u32,
    /// The last void marker passed over.
    void: StreamSequence,
    /// Whether the broker was connected at the last tick.
    broker_there: bool,
    /// Frames behind the last one accepted that are nobody's.
    passed_over: BTreeSet<StreamSequence>,
}

impl<'a> Attempt<'a> {
    /// With a connection to the target, takes the lane, reads the verdict, and finds the place in
    /// the stream; in this order (C32).
    pub(crate) async fn begin(
        target: TargetSession,
        options: &'a ApplierOptions,
        broker: &'a Broker,
        cancel: &'a CancellationToken,
        status: &'a Arc<ApplierStatus>,
        (instance, cache, tried): (&str, SharedCache, &'a AtomicBool),
        restorer: &Arc<Restorer>,
    ) -> Result<Self, Trouble> {
        let name = format!("trellara applier, process {}", std::process::id());
        let who = Claimant {
            flow: &options.flow,
            lane: options.lane,
            instance,
            name: &name,
        };
        let held = if options.interleaved {
            lane::join(target.client(), who).await?
        } else {
            lane::take(target.client(), who, options.standby, cancel, status).await?
        };
        Trouble::come_by(crashpoints::APPLIER_LANE_TAKEN)?;
        let durable = ledger::checkpoint(target.client(), &options.flow, options.lane)
            .await?
            .ok_or_else(|| not_set_up(options))?;
        let (flow, lane) = (&options.flow, options.lane);
        order::release_stale(target.client(), flow, lane, held.epoch).await?;
        request::forget_old(target.client(), flow, lane).await?;
        let registration = target.identity.registration();
        let facts = position::check_stream(broker, options, &registration).await?;
        let reader = Reader::new(broker, &facts.name);
        let start = position::find(broker, &reader, options, &facts, &durable).await?;
        let ledger =
            Ledger::prepare(target.client(), &options.flow, options.lane, held.epoch).await?;
        // Before the cache is filled: a fault of the broker does not have that done over.
        let consumer = Consumer::open(broker, consumer_options(options, start.sequence)).await?;
        Trouble::come_by(crashpoints::APPLIER_POSITIONED)?;
        let reporter = Reporter::new(broker, options, &registration, held.epoch);
        let beginning = Dedup::begin(&target, options, cache, held.epoch, &durable, status);
        let dedup = commit::reporting(beginning, &reporter, &durable, options.report_interval);
        let dedup = dedup.await?;
        let seen = tried.load(Ordering::Relaxed);
        let mut catalog = Catalog::new();
        let tables = (&mut catalog, target.replica);
        let quarantine =
            Quarantine::read(target.client(), tables, options, (&durable, seen)).await?;
        let copies = backfill::read(target.client(), &options.flow).await?;
        status.set_session(held.epoch, target.replica, registration.clone());
        let backfill = Backfill::begin(
            target.client(),
            (options, broker, status),
            (held, &registration, durable.source),
            restorer,
        )
        .await?;
        let mut trimmer = Trimmer::new(broker, options, &start.stream, &registration);
        if let Some(before) = start.left_behind(&durable) {
            trimmer.incarnation_closed(before);
        }
        let attempt = Self {
            writer: Writer {
                flow: options.flow.clone(),
                lane: options.lane,
                host: options.host.clone(),
                held,
                ledger,
                catalog,
                replica: target.replica,
                conflicts: Arc::new(options.conflicts.clone()),
                copies,
            },
            dedup,
            quarantine,
            tried,
            rewinding: None,
            rewound: None,
            again: None,
            fence: None,
            paused: None,
            awaited: None,
            told_of: None,
            backfill,
            reporter,
            trimmer,
            batch: Batch::behind(&durable, start.keep_from),
            keep_from: start.keep_from,
            machine: start.machine,
            stream: start.stream,
            closed: Vec::new(),
            written: Instant::now(),
            reread: Instant::now(),
            asked_until: None,
            repositions: 0,
            void: StreamSequence(0),
            broker_there: true,
            passed_over: BTreeSet::new(),
            options,
            broker,
            cancel,
            status,
            target,
            reader,
            consumer,
            durable,
        };
        attempt.show();
        attempt.show_quarantine();
        attempt.status.set_state(attempt.ordinary_state());
        tracing::info!(
            flow = %options.flow, lsn_applied = %attempt.durable.end_lsn,
            sequence = %attempt.durable.transport.sequence, epoch = %held.epoch,
            replica_role = attempt.target.replica, "applying"
        );
        Ok(attempt)
    }

    /// Applies until something goes wrong or a shutdown is asked for.
    pub(crate) async fn work(&mut self) -> Result<Infallible, Trouble> {
        let Err(trouble) = Box::pin(self.work_on()).await;
        self.dedup.forget(self.options, self.status);
        self.forget_fence();
        self.forget_pause();
        self.rewind_failed(&trouble).await;
        Err(trouble)
    }

    async fn work_on(&mut self) -> Result<Infallible, Trouble> {
        // Whoever applied before may have said that nothing more comes.
        self.look_at_pause().await?;
        self.look_at_fence().await?;
        self.obey_copies().await?;
        Box::pin(self.serve_desk()).await?;
        let mut tick = tokio::time::interval(self.options.report_interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let holding = self.holding() || self.is_blocked();
            let event = tokio::select! {
                biased;
                () = self.cancel.cancelled() => Event::Cancelled,
                () = self.target.session.closed() => Event::TargetLost,
                changed = self.backfill.changed() => Event::Copies(changed),
                notified = self.target.notifications.recv() => Event::Notified(notified),
                () = fence::lease_over(self.fence.as_ref()) => Event::LeaseOver,
                _ = tick.tick() => Event::Tick,
                delivery = self.consumer.next(), if !holding => Event::Delivered(delivery),
            };
            match event {
                Event::Cancelled => {
                    self.write_down().await?;
                    return Err(Trouble::Cancelled);
                }
                Event::TargetLost | Event::Notified(None) => {
                    return Err(Trouble::passing("the connection to the target was lost"));
                }
                Event::Copies(changed) => {
                    changed?;
                    self.look_at_copies().await?;
                }
                Event::Notified(Some(notification)) => self.notified(&notification).await?,
                Event::LeaseOver => self.look_at_fence().await?,
                Event::Tick => self.tick().await?,
                Event::Delivered(delivery) => self.delivered(delivery?).await?,
            }
        }
    }

    async fn notified(&mut self, notification: &Notification) -> Result<(), Trouble> {
        if notification.payload == CHECKPOINT_NOW {
            self.asked_until = Some(Instant::now() + ASKED_FOR);
            self.write_down().await?;
        }
        if notification.payload == DESK {
            Box::pin(self.serve_desk()).await?;
        }
        if notification.payload == LOOK {
            self.look_at_fence().await?;
        }
        if notification.payload == crate::pause::LOOK {
            self.look_at_pause().await?;
        }
        if notification.payload == backfill::LOOK {
            // The lane first: the loader begins nothing that the lane has not noticed.
            self.look_at_copies().await?;
            self.backfill.nudge();
        }
        if let Some(request) = Request::parse(&notification.payload) {
            self.rewind(request).await?;
        }
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), Trouble> {
        self.show_broker();
        // Its notification is lost when too many wait unread behind a long commit.
        self.look_at_pause().await?;
        if self.writer.copies.has_a_say(self.durable.end_lsn) {
            self.look_at_copies().await?;
        }
        self.check_age()?;
        if self.written.elapsed() >= self.options.idle_checkpoint {
            self.write_down().await?;
        }
        if self.reread.elapsed() >= REREAD {
            self.writer.catalog.reread();
            self.reread = Instant::now();
        }
        if self.broker_there {
            self.reporter.send(&self.durable).await;
            self.trim().await?;
            self.keep_dedup().await?;
        }
        Ok(())
    }

    async fn trim(&mut self) -> Result<(), Trouble> {
        let trimmed = self
            .trimmer
            .tick(&self.durable, self.keep_from, Instant::now())
            .await;
        match trimmed {
            Ok(Some(to)) => self.status.set_trimmed_to(to),
            Ok(None) => {
                return Err(Trouble::passing(
                    "the stream was made anew, or given to another target, since it was read; \
                     finding the place anew",
                ));
            }
            Err(error) => tracing::warn!(%error, "the stream was not trimmed; trying again"),
        }
        Ok(())
    }

    /// The consumer waits for the broker by itself, and everything goes on where it stood. Whoever
    /// looks must not take that for the silence of an idle source.
    fn show_broker(&mut self) {
        let there = self.broker.is_connected();
        if there == self.broker_there {
            return;
        }
        self.broker_there = there;
        self.status.set_state(if there {
            self.ordinary_state()
        } else {
            let reason = "the connection to the broker was lost".to_owned();
            tracing::warn!(flow = %self.options.flow, error = %reason, "waiting for the broker");
            ApplierState::Retrying { reason }
        });
    }

    pub(super) fn show(&self) {
        let transport = &self.durable.transport;
        self.status.set_position(
            &self.options.flow,
            self.durable.end_lsn,
            transport.sequence,
            transport.incarnation,
        );
    }
}

fn filters(options: &ApplierOptions) -> Vec<String> {
    vec![
        options.flow.transactions_subject(options.lane),
        options.flow.mark_subject(),
        options.flow.beat_subject(),
    ]
}

fn consumer_options(options: &ApplierOptions, start: StreamSequence) -> ConsumerOptions {
    let name = match options.lane.0 {
        0 => "applier".to_owned(),
        lane => format!("applier_{lane}"),
    };
    let mut consumer = ConsumerOptions::new(&options.flow.stream(), &name, filters(options), start);
    consumer.watchdog = options.stall_timeout;
    consumer
}

fn not_set_up(options: &ApplierOptions) -> Trouble {
    Trouble::probe(Halt::new(
        HaltCode::Config,
        format!("flow {} has no checkpoint in this target", options.flow),
        "run trellara setup",
    ))
}
