//! What the relay decides: events in, commands out; no await, no clock, no randomness.
//!
//! One machine is one incarnation, that is one successful START_REPLICATION (C07). It first
//! publishes its marker and takes no input before that is acknowledged and seen to stand on the
//! frame that it names; it ends with [`Command::Restart`] or [`Command::Halt`], after which it
//! ignores everything.
//!
//! Time is the time since any fixed moment, handed in with every event.

mod assembler;
mod budget;
mod bundle;
mod chunks;
mod descriptions;
mod doubt;
mod footing;
mod held;
mod open;
mod positions;
mod progress;
mod resent;
mod sequencer;
mod space;
mod streamed;
mod subtransactions;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use bytes::Bytes;
use trellara_envelope::{Body, Halt, Lsn, Marker};
use trellara_pgoutput::{Walsender, walsender};

use crate::Acknowledge;
use crate::resume::after_marker;

use assembler::{Assembler, Sizes};
use doubt::Doubt;
use footing::Footing;
use held::Behind;
use positions::Positions;
use progress::Progress;
pub use resent::LastTransaction;
use resent::Resent;
use sequencer::{Advance, Sequencer};
use space::Space;
pub use space::StreamSpace;
pub use words::{
    Command, Event, FootingAnswer, LargeTransaction, MachineStatus, ProbeAnswer, Publish, Restart,
    Settings, Start, Tail, TailAnswer,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The marker is on its way, or what it stands on is being read.
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
    footing: Footing,
    behind: Behind,
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
        let footing = Footing::new(start.tail_at, start.tail.digest);
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
            resent.is_pending(),
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
            footing,
            behind: Behind::default(),
            counts: Counts::default(),
            settings,
            frames,
            positions,
        }
    }

    /// Whether more of the source's messages may be handed in. False while the window is full,
    /// the marker is on its way, a commit is held, or the incarnation is over.
    pub fn wants_input(&self) -> bool {
        self.phase == Phase::Streaming
            && self.assembler.held.is_none()
            && self.frames.window_bytes() < self.settings.window_bytes
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
            Event::Footing(answer) => return self.footing(now, answer, out),
            Event::Report(report) => self.report(now, report, out),
            Event::CopyOrder(order) => {
                self.positions.ordered(now, &order);
                self.feedback_if_moved(now, out);
            }
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
            Event::MembershipUnchecked(reason) => self.progress.membership_unchecked(reason),
            Event::SynchronousStandby(synchronous) => {
                self.progress.synchronous = synchronous;
                self.heartbeat(now, out);
            }
            Event::Probed(answer) => self.probed(now, answer, out),
            Event::Subtransactions(answer) => return self.subtransactions(now, answer, out),
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
        if self.put_aside(payload) {
            return Ok(());
        }
        let pending = self.assembler.resent.is_pending();
        self.walsender(now, payload, out)?;
        if pending && !self.assembler.resent.is_pending() {
            self.positions.release();
            self.feedback_if_moved(now, out);
        }
        Ok(())
    }

    fn walsender(
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
                self.assembler.message(payload, &mut self.frames)?;
                self.ask_subtransactions(out);
                Ok(())
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
        if self.phase == Phase::Marking && !self.footing.is_proved() {
            self.check_footing(now, out);
            return Ok(());
        }
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
