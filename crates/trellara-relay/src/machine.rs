//! What the relay decides: events in, commands out; no await, no clock, no randomness.
//!
//! One machine is one incarnation, that is one successful START_REPLICATION (C07). It first
//! publishes its marker and takes no input before that is acknowledged; it ends with
//! [`Command::Restart`] or [`Command::Halt`], after which it ignores everything.
//!
//! Time is the time since any fixed moment, handed in with every event.

mod assembler;
mod bundle;
mod chunks;
mod descriptions;
mod doubt;
mod open;
mod positions;
mod progress;
mod resent;
mod sequencer;
mod space;
mod streamed;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::{
    Body, FlowName, FrameDigest, FrameOrdinal, Halt, Incarnation, Lsn, Marker, PositionReport,
    SourceHistory, StreamSequence,
};
use trellara_jetstream::publish::Outcome;
use trellara_pgoutput::{Walsender, walsender};
use trellara_source::stream::Feedback;

use crate::Acknowledge;
use crate::resume::after_marker;

use assembler::{Assembler, Sizes};
use doubt::Doubt;
use positions::Positions;
use progress::Progress;
pub use resent::LastTransaction;
use resent::Resent;
use sequencer::{Advance, Sequencer};
use space::Space;
pub use space::StreamSpace;

/// The last frame of a stream, as far as the chain needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Where it is stored.
    pub sequence: StreamSequence,
    /// Its number.
    pub ordinal: FrameOrdinal,
    /// Its digest.
    pub digest: FrameDigest,
    /// End LSN of everything complete up to and including it.
    pub position: Lsn,
    /// Its writer.
    pub incarnation: Incarnation,
}

/// The answer to [`Command::ReadTail`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TailAnswer {
    /// The last frame.
    Frame(Tail),
    /// There is no stream, or no message in it.
    Gone,
    /// The last message is not a frame of ours; why.
    Foreign(String),
    /// No answer; why.
    Failed(String),
}

/// What the source answered to [`Command::ProbeSource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// It takes no new connections because it shuts down (57P03).
    ShuttingDown,
    /// Anything else.
    Other,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// The payload of one CopyData message.
    CopyData(&'a [u8]),
    /// The last message of a gulp was handed in.
    GulpEnd,
    /// A publish was answered.
    Published {
        /// The frame.
        ordinal: FrameOrdinal,
        /// Which of its attempts.
        attempt: u32,
        /// The answer.
        outcome: Outcome,
    },
    /// The stream's tail was read.
    Tail(TailAnswer),
    /// A position report came.
    Report(PositionReport),
    /// A report's frame was read from the stream; whether it is that frame.
    ReportChecked(PositionReport, bool),
    /// The stream's facts were read.
    Stream {
        /// Sizes.
        space: StreamSpace,
        /// The registered target.
        target: Option<String>,
        /// [`MachineStatus::last_sequence`] when they were asked for.
        floor: StreamSequence,
    },
    /// The largest message the broker takes, in bytes.
    MaxPayload(usize),
    /// The publication still has the members of the marker (C06).
    MembershipPassed,
    /// Whether commits on the source wait for this relay (C05).
    SynchronousStandby(bool),
    /// The source answered a probe.
    Probed(ProbeAnswer),
    /// Time has passed.
    Tick,
}

/// A frame to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// The frame's number.
    pub ordinal: FrameOrdinal,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Subject.
    pub subject: String,
    /// The frame.
    pub payload: Bytes,
    /// The stream's last sequence before it.
    pub expected_last: StreamSequence,
    /// Message id, where the broker can be trusted with one.
    pub message_id: Option<String>,
    /// For people.
    pub headers: Vec<(&'static str, String)>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Publish a frame; answered by [`Event::Published`].
    Publish(Publish),
    /// Tell the source; `reply` asks it for its position.
    Feedback {
        /// The positions.
        feedback: Feedback,
        /// Whether an answer is wanted.
        reply: bool,
    },
    /// Read the stream's tail from its leader; answered by [`Event::Tail`].
    ReadTail,
    /// Read the frame that a report names; answered by [`Event::ReportChecked`].
    CheckReport(PositionReport),
    /// Open an ordinary connection to the source; answered by [`Event::Probed`].
    ProbeSource,
    /// Remove the chunks of a transaction that was rolled back, below a sequence.
    Purge {
        /// Subject or filter.
        subject: String,
        /// Messages from here on stay.
        below: StreamSequence,
    },
    /// End this incarnation and begin another.
    Restart(Restart),
    /// Stop.
    Halt(Halt),
}

/// Why and how to begin another incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// Why, for logs and status.
    pub reason: String,
    /// Whether the next incarnation reads large transactions only after their commit (C12).
    pub streaming_off: bool,
}

/// Settings of a machine; sizes in bytes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The flow.
    pub flow: FlowName,
    /// When a position is confirmed.
    pub acknowledge: Acknowledge,
    /// Whether the broker can be trusted with message ids.
    pub message_ids: bool,
    /// See [`crate::RelayOptions`].
    pub window_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub bundle_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub chunk_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub unfinished_bytes: usize,
    /// See [`crate::RelayOptions`].
    pub open_bytes: Option<u64>,
    /// See [`crate::RelayOptions`].
    pub shutdown_grace: Duration,
    /// See [`crate::RelayOptions`].
    pub heartbeat_interval: Duration,
    /// See [`crate::RelayOptions`].
    pub membership_interval: Duration,
    /// The largest message the broker takes.
    pub max_payload: usize,
}

/// Where an incarnation begins; the resume table has agreed.
#[derive(Debug, Clone)]
pub struct Start {
    /// This incarnation.
    pub incarnation: Incarnation,
    /// The source's timelines.
    pub history: SourceHistory,
    /// The stream's tail.
    pub tail: Tail,
    /// The newest transaction in the stream.
    pub last_transaction: LastTransaction,
    /// The slot's confirmed position S.
    pub confirmed: Lsn,
    /// The marker; `continues_at` is set here.
    pub marker: Marker,
    /// The registered target.
    pub target: Option<String>,
    /// How full the stream is.
    pub space: StreamSpace,
}

/// What an endpoint wants to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineStatus {
    /// Whether the marker is acknowledged.
    pub streaming: bool,
    /// Why nothing moves; empty when it does.
    pub waiting_for: String,
    /// A halt that may pass by itself.
    pub halt: Option<Halt>,
    /// End of what was received.
    pub lsn_received: Lsn,
    /// End of the acknowledged prefix.
    pub lsn_published: Lsn,
    /// What the source was told.
    pub lsn_confirmed: Lsn,
    /// What the target has said.
    pub lsn_applied: Lsn,
    /// Last sequence of the acknowledged prefix.
    pub last_sequence: StreamSequence,
    /// Unacknowledged bytes.
    pub window_bytes: u64,
    /// Bytes in the stream of transactions open on the source.
    pub open_bytes: u64,
    /// How many there are.
    pub open_transactions: u64,
    /// Frames acknowledged.
    pub frames: u64,
    /// Bytes in them.
    pub frame_bytes: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Doubts met.
    pub doubts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The marker is on its way.
    Marking,
    Streaming,
    /// Abort frames of all open transactions are on their way; then the restart (C12).
    Aborting,
    /// A restart or halt was commanded.
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    phase: Phase,
    start_position: Lsn,
    frames: Sequencer,
    assembler: Assembler,
    positions: Positions,
    progress: Progress,
    doubt: Doubt,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    frames: u64,
    frame_bytes: u64,
    transactions: u64,
}

/// The broker counts headers into its limit, and a frame has a head of its own.
const HEAD_ROOM: usize = 8 << 10;

impl Machine {
    /// A machine that has built its marker; the commands publish it.
    pub fn new(settings: Settings, start: Start, now: Duration, out: &mut Vec<Command>) -> Machine {
        let tail_position = start.tail.position;
        // Only `applied` may go on behind a stream that lost its end: the target has what is
        // missing, or its applier will say that it does not.
        let continues_at = match settings.acknowledge {
            Acknowledge::Published => tail_position,
            Acknowledge::Applied => tail_position.max(start.confirmed),
        };
        let sizes = sizes(&settings);
        let mut space = Space::default();
        space.update(start.space);
        let mut frames = Sequencer::new(
            settings.flow.clone(),
            start.history.source(),
            start.incarnation,
            settings.message_ids,
            start.tail,
            space,
        );
        let resent = Resent::new(continues_at, start.confirmed, start.last_transaction);
        let positions = Positions::new(
            settings.acknowledge,
            settings.flow.clone(),
            start.history.clone(),
            start.target,
            tail_position,
            start.confirmed,
        );
        let marker = Marker {
            continues_at,
            ..start.marker
        };
        let advance = Advance {
            follows: continues_at,
            position: continues_at,
        };
        frames.push(Body::Marker(marker), Bytes::new(), Some(advance), None);
        frames.pump(now, out);
        Machine {
            phase: Phase::Marking,
            start_position: tail_position,
            assembler: Assembler::new(start.history, sizes, resent, continues_at),
            progress: Progress::new(&settings, now),
            doubt: Doubt::default(),
            counts: Counts::default(),
            settings,
            frames,
            positions,
        }
    }

    /// Whether more of the source's messages may be handed in. False while the window is full,
    /// the marker is on its way, or the incarnation is over.
    pub fn wants_input(&self) -> bool {
        self.phase == Phase::Streaming && self.frames.window_bytes() < self.settings.window_bytes
    }

    /// Whether a restart or a halt was commanded.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether every frame built is acknowledged.
    pub fn is_settled(&self) -> bool {
        self.frames.is_idle()
    }

    /// Takes an event; appends what is to be done.
    pub fn handle(&mut self, now: Duration, event: Event<'_>, out: &mut Vec<Command>) {
        if self.phase == Phase::Over {
            return;
        }
        if let Err(halt) = self.try_handle(now, event, out) {
            self.halt(halt, out);
        }
    }

    /// The status now.
    pub fn status(&self) -> MachineStatus {
        MachineStatus {
            streaming: self.phase != Phase::Marking,
            waiting_for: self.waiting_for(),
            halt: self.too_small(),
            lsn_received: self.positions.received,
            lsn_published: self.positions.published,
            lsn_confirmed: self.positions.confirmed,
            lsn_applied: self.positions.applied,
            last_sequence: self.frames.acknowledged().sequence,
            window_bytes: self.frames.window_bytes() as u64,
            open_bytes: self.assembler.streamed.stored(),
            open_transactions: self.assembler.streamed.count(),
            frames: self.counts.frames,
            frame_bytes: self.counts.frame_bytes,
            transactions: self.counts.transactions,
            doubts: self.doubt.count(),
        }
    }

    fn try_handle(
        &mut self,
        now: Duration,
        event: Event<'_>,
        out: &mut Vec<Command>,
    ) -> Result<(), Halt> {
        match event {
            Event::CopyData(payload) => return self.copy_data(now, payload, out),
            Event::GulpEnd => self.gulp_end(now, out),
            Event::Published {
                ordinal,
                attempt,
                outcome,
            } => return self.published(now, ordinal, attempt, outcome, out),
            Event::Tail(answer) => return self.tail(now, answer, out),
            Event::Report(report) => self.report(now, report, out),
            Event::ReportChecked(report, fits) => self.report_checked(now, &report, fits, out),
            Event::Stream {
                space,
                target,
                floor,
            } => {
                self.frames.space.update(space);
                self.positions.set_target(target);
                self.frames.pump(now, out);
                self.notice_lost_tail(now, space.last_sequence, floor, out);
            }
            Event::MaxPayload(bytes) => {
                self.settings.max_payload = bytes;
                self.assembler.resize(sizes(&self.settings));
            }
            Event::MembershipPassed => {
                self.progress.membership_passed(now);
                self.heartbeat(now, out);
            }
            Event::SynchronousStandby(synchronous) => {
                self.progress.synchronous = synchronous;
                self.heartbeat(now, out);
            }
            Event::Probed(answer) => self.probed(now, answer, out),
            Event::Tick => self.tick(now, out),
        }
        Ok(())
    }

    fn copy_data(
        &mut self,
        now: Duration,
        payload: &[u8],
        out: &mut Vec<Command>,
    ) -> Result<(), Halt> {
        match walsender(payload).map_err(|error| assembler::malformed(&error))? {
            Walsender::XLogData {
                start,
                end,
                payload,
                ..
            } => {
                self.positions.received(start.max(end));
                self.progress.data_at = now;
                self.assembler.message(payload, &mut self.frames)
            }
            Walsender::Keepalive {
                wal_end,
                send_time,
                reply_requested,
            } => {
                self.positions.received(wal_end);
                self.progress.source_time = send_time;
                if self.assembler.is_between_transactions() {
                    self.assembler.passed(wal_end)?;
                }
                if reply_requested {
                    self.feedback(now, false, out);
                    self.watch_shutdown(now, wal_end, out);
                }
                self.heartbeat(now, out);
                Ok(())
            }
        }
    }

    /// Under load small transactions gather while a publish is in flight; alone they leave at
    /// once.
    fn gulp_end(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.frames.is_idle() {
            self.assembler.flush(&mut self.frames);
        }
        self.frames.pump(now, out);
        self.check_budget(now, out);
        self.heartbeat(now, out);
    }

    /// Takes the acknowledged prefix off the window, and everything that follows from it.
    fn advance(&mut self, now: Duration, out: &mut Vec<Command>) -> Result<(), Halt> {
        let mut moved = false;
        while let Some(stored) = self.frames.pop() {
            moved = true;
            self.counts.frames += 1;
            self.counts.frame_bytes += stored.bytes;
            self.counts.transactions += stored.transactions;
            self.progress.stored(stored.ordinal, stored.kind);
            self.positions
                .stored(stored.ordinal, stored.digest, stored.position);
            if self.phase == Phase::Marking {
                // Only our own acknowledged marker proves that the tail was not stale (C03).
                after_marker(
                    self.settings.acknowledge,
                    self.start_position,
                    self.positions.confirmed,
                )?;
                self.phase = Phase::Streaming;
            }
        }
        if !moved {
            return Ok(());
        }
        self.purge_garbage(out);
        if self.phase == Phase::Aborting {
            self.finish_aborting(out);
            return Ok(());
        }
        if self.frames.is_idle() {
            self.assembler.flush(&mut self.frames);
        }
        self.frames.pump(now, out);
        self.heartbeat(now, out);
        self.feedback_if_moved(now, out);
        Ok(())
    }

    fn restart(&mut self, reason: impl Into<String>, out: &mut Vec<Command>) {
        self.end(
            Restart {
                reason: reason.into(),
                streaming_off: false,
            },
            out,
        );
    }

    fn end(&mut self, restart: Restart, out: &mut Vec<Command>) {
        self.phase = Phase::Over;
        out.push(Command::Restart(restart));
    }

    fn halt(&mut self, halt: Halt, out: &mut Vec<Command>) {
        self.phase = Phase::Over;
        out.push(Command::Halt(halt));
    }
}

/// What fits into one message of the broker.
fn sizes(settings: &Settings) -> Sizes {
    let cap = settings.max_payload.saturating_sub(HEAD_ROOM).max(1 << 10);
    Sizes {
        // A description that comes inside a transaction is added without looking at the size.
        bundle: settings.bundle_bytes.min(cap / 4 * 3),
        chunk: settings.chunk_bytes.min(cap),
        unfinished: settings.unfinished_bytes,
    }
}
