//! Everything about progress that is not data: heartbeats, feedback, reports, a source that shuts
//! down.

use std::time::Duration;

use trellara_envelope::{
    Body, CommitTime, FrameKind, FrameOrdinal, Heartbeat, Lsn, PositionReport, Xid,
};

use super::positions::Belief;
use super::sequencer::Advance;
use super::{Command, Machine, Phase, ProbeAnswer, Settings};
use crate::Acknowledge;

/// Feedback goes out at least this often, and an idle relay asks the source for its position this
/// often; the answer comes within a millisecond.
const FEEDBACK_INTERVAL: Duration = Duration::from_secs(1);
/// A check of the members is overdue when it is this much later than its interval.
const MEMBERSHIP_SLACK: Duration = Duration::from_secs(5);
/// The registered target reports once a second; after this long its silence is named.
const REPORT_SILENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Progress {
    heartbeat_interval: Duration,
    membership_interval: Duration,
    heartbeat_at: Duration,
    /// At most one is in flight; later ones coalesce (C05).
    heartbeat_in_flight: Option<FrameOrdinal>,
    membership_at: Option<Duration>,
    /// Why the last check of the members did not come to an end.
    unchecked: Option<String>,
    pub(super) synchronous: bool,
    /// When the source last sent something of a transaction.
    pub(super) data_at: Duration,
    /// The source's clock at its last keepalive.
    pub(super) source_time: CommitTime,
    feedback_at: Duration,
    feedback_flush: Lsn,
    report_at: Duration,
    /// A report is being checked against the stream; later ones replace the waiting one.
    checking: bool,
    shutdown: Option<Shutdown>,
    /// Since when nothing is read from the source, or it was last probed for that.
    unread_since: Option<Duration>,
    probing: bool,
    /// Since when nothing but open transactions fills the stream.
    pub(super) stuck_since: Option<Duration>,
    /// Transactions that take more than half of the stream, and of which that was said.
    pub(super) large: Vec<Xid>,
    /// Why open transactions are being given up.
    pub(super) giving_up: &'static str,
}

/// Reply-requested keepalives with an unchanged end, while the confirmed position stands still.
#[derive(Debug)]
struct Shutdown {
    wal_end: Lsn,
    confirmed: Lsn,
    since: Duration,
}

impl Progress {
    pub(super) fn new(settings: &Settings, now: Duration) -> Self {
        Self {
            heartbeat_interval: settings.heartbeat_interval,
            membership_interval: settings.membership_interval,
            heartbeat_at: now,
            heartbeat_in_flight: None,
            membership_at: None,
            unchecked: None,
            synchronous: false,
            data_at: now,
            source_time: CommitTime::default(),
            feedback_at: now,
            feedback_flush: Lsn::ZERO,
            report_at: now,
            checking: false,
            shutdown: None,
            unread_since: None,
            probing: false,
            stuck_since: None,
            large: Vec::new(),
            giving_up: "",
        }
    }

    pub(super) fn membership_passed(&mut self, now: Duration) {
        self.membership_at = Some(now);
        self.unchecked = None;
    }

    pub(super) fn membership_unchecked(&mut self, reason: String) {
        self.unchecked = Some(reason);
    }

    pub(super) fn stored(&mut self, ordinal: FrameOrdinal, kind: FrameKind) {
        if kind == FrameKind::Heartbeat && self.heartbeat_in_flight == Some(ordinal) {
            self.heartbeat_in_flight = None;
        }
    }

    /// Whether a heartbeat may go out now. A position without rows says "there was nothing for
    /// you", which is only known while the publication has the members it should have (C06).
    fn heartbeat_due(&self, now: Duration) -> bool {
        self.is_checked(now)
            && self.heartbeat_in_flight.is_none()
            && (self.synchronous || self.has_interval_passed(now))
    }

    fn is_checked(&self, now: Duration) -> bool {
        self.membership_at
            .is_some_and(|at| now.saturating_sub(at) <= self.membership_interval + MEMBERSHIP_SLACK)
    }

    fn has_interval_passed(&self, now: Duration) -> bool {
        now.saturating_sub(self.heartbeat_at) >= self.heartbeat_interval
    }
}

impl Machine {
    /// Publishes the position that the source has reached without anything for us.
    pub(super) fn heartbeat(&mut self, now: Duration, out: &mut Vec<Command>) {
        let position = self.assembler.complete;
        let nothing_pending =
            self.assembler.is_between_transactions() && !self.assembler.is_gathering();
        if self.phase != Phase::Streaming
            || !nothing_pending
            || position <= self.frames.position()
            || !self.progress.heartbeat_due(now)
        {
            return;
        }
        let advance = Advance {
            follows: self.frames.position(),
            position,
        };
        let body = Body::Heartbeat(Heartbeat {
            source_time: self.progress.source_time,
        });
        let keep_from = self.assembler.chunks.keep_from();
        self.frames.push(body, Vec::new(), Some(advance), keep_from);
        self.progress.heartbeat_at = now;
        self.progress.heartbeat_in_flight = Some(self.frames.last_ordinal());
        self.frames.pump(now, out);
    }

    /// Tells the source where we are.
    pub(super) fn feedback(&mut self, now: Duration, reply: bool, out: &mut Vec<Command>) {
        let feedback = self.positions.feedback();
        self.progress.feedback_at = now;
        self.progress.feedback_flush = feedback.flush;
        out.push(Command::Feedback { feedback, reply });
    }

    /// Tells it at once when more is confirmed: a commit may be waiting for it.
    pub(super) fn feedback_if_moved(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.positions.confirmed > self.progress.feedback_flush && self.phase != Phase::Marking {
            self.feedback(now, false, out);
        }
    }

    pub(super) fn tick(&mut self, now: Duration, out: &mut Vec<Command>) {
        self.positions.forget_order(now);
        self.retry_doubt(now, out);
        self.check_footing(now, out);
        self.frames.pump(now, out);
        self.check_budget(now, out);
        self.heartbeat(now, out);
        self.watch_unread(now, out);
        if now.saturating_sub(self.progress.feedback_at) >= FEEDBACK_INTERVAL {
            let quiet = now.saturating_sub(self.progress.data_at) >= FEEDBACK_INTERVAL;
            let reply = quiet && self.frames.is_idle() && self.phase == Phase::Streaming;
            self.feedback(now, reply, out);
        }
    }

    pub(super) fn report(&mut self, now: Duration, report: PositionReport, out: &mut Vec<Command>) {
        match self.positions.judge(&report) {
            Belief::Yes => self.believe(now, &report, out),
            // The next one comes within a second.
            Belief::Ask if self.progress.checking => {}
            Belief::Ask => {
                self.progress.checking = true;
                out.push(Command::CheckReport(report));
            }
            Belief::No(_) => {}
        }
    }

    pub(super) fn report_checked(
        &mut self,
        now: Duration,
        report: &PositionReport,
        fits: bool,
        out: &mut Vec<Command>,
    ) {
        self.progress.checking = false;
        // The registered target may be another one by now.
        if fits && !matches!(self.positions.judge(report), Belief::No(_)) {
            self.believe(now, report, out);
        }
    }

    fn believe(&mut self, now: Duration, report: &PositionReport, out: &mut Vec<Command>) {
        self.progress.report_at = now;
        self.positions.applied(report.end_lsn);
        self.feedback_if_moved(now, out);
    }

    /// A source that shuts down waits for our confirmation for ever, because our answers keep the
    /// walsender alive (C04).
    pub(super) fn watch_shutdown(&mut self, now: Duration, wal_end: Lsn, out: &mut Vec<Command>) {
        let confirmed = self.positions.confirmed;
        let same = self.progress.shutdown.take().filter(|known| {
            known.wal_end == wal_end && known.confirmed == confirmed && confirmed < wal_end
        });
        let shutdown = same.unwrap_or(Shutdown {
            wal_end,
            confirmed,
            since: now,
        });
        self.probe_after(now, shutdown.since, out);
        self.progress.shutdown = Some(shutdown);
    }

    /// The same while nothing is read: the source asks in keepalives that nobody sees, and the
    /// answers that go out all the same keep it waiting.
    fn watch_unread(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.wants_input() {
            self.progress.unread_since = None;
            return;
        }
        let since = *self.progress.unread_since.get_or_insert(now);
        self.probe_after(now, since, out);
    }

    /// Asks whether the source shuts down once it has been left waiting for long enough.
    fn probe_after(&mut self, now: Duration, since: Duration, out: &mut Vec<Command>) {
        let waited = now.saturating_sub(since);
        if waited > self.settings.shutdown_grace && !self.progress.probing {
            self.progress.probing = true;
            out.push(Command::ProbeSource);
        }
    }

    pub(super) fn probed(&mut self, now: Duration, answer: ProbeAnswer, out: &mut Vec<Command>) {
        self.progress.probing = false;
        if let Some(shutdown) = &mut self.progress.shutdown {
            shutdown.since = now;
        }
        if let Some(since) = &mut self.progress.unread_since {
            *since = now;
        }
        if answer == ProbeAnswer::ShuttingDown {
            self.restart(
                "the source shuts down; what it has not confirmed is sent again when it is back",
                out,
            );
        }
    }

    /// Why nothing moves.
    pub(super) fn waiting_for(&self) -> String {
        if let Some(reason) = self.doubt.reason() {
            return format!("the outcome of a publish ({reason})");
        }
        if self.assembler.held.is_some() {
            return "the source's word on rolled-back subtransactions".to_owned();
        }
        if self.frames.is_held() {
            let used = self.frames.space.used();
            return match self.frames.space.max_bytes() {
                Some(max) => format!("room in the stream ({used} of {max} bytes used)"),
                None => format!("room in the stream ({used} bytes used)"),
            };
        }
        match self.phase {
            Phase::Marking if self.frames.is_first_acknowledged() => {
                "the frame below the marker".to_owned()
            }
            Phase::Marking => "the acknowledgement of the marker".to_owned(),
            Phase::Aborting => "the acknowledgement of abort frames".to_owned(),
            Phase::Streaming | Phase::Over => {
                if let Some(reason) = self.unchecked() {
                    format!("a check of the publication ({reason})")
                } else if self.is_target_silent() {
                    "a position report of the registered target".to_owned()
                } else {
                    String::new()
                }
            }
        }
    }

    /// Why a heartbeat that is due does not go out.
    fn unchecked(&self) -> Option<&str> {
        let progress = &self.progress;
        let reason = progress.unchecked.as_deref()?;
        let now = progress.feedback_at;
        let overdue = self.assembler.complete > self.frames.position()
            && progress.has_interval_passed(now)
            && !progress.is_checked(now);
        overdue.then_some(reason)
    }

    fn is_target_silent(&self) -> bool {
        let silence = self
            .progress
            .feedback_at
            .saturating_sub(self.progress.report_at);
        self.settings.acknowledge == Acknowledge::Applied
            && self.positions.confirmed < self.positions.published
            && silence > REPORT_SILENCE
    }
}
