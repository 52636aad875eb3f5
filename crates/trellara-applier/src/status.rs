//! What an applier says about itself: read by the endpoint, written by the loop.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::metric;
pub(crate) use copy::CopyRates;
pub use copy::{CopyFailed, CopySnapshot};
pub use dedup::DedupSnapshot;
use dedup::DedupStatus;
pub use fence::FenceSnapshot;
pub use quarantine::QuarantineSnapshot;
use trellara_envelope::{
    FlowName, Halt, Incarnation, LaneEpoch, Lsn, StreamSequence, TransactionIdentity,
};
use trellara_postgres::Session;

mod copy;
mod dedup;
mod fence;
mod quarantine;

/// The status of one applier; cheap to write, read at any time from any thread.
#[derive(Debug, Default)]
pub struct ApplierStatus {
    slow: Mutex<Slow>,
    dedup: DedupStatus,
    lsn_applied: AtomicU64,
    lsn_flushed: AtomicU64,
    sequence: AtomicU64,
    incarnation: AtomicU64,
    transactions: AtomicU64,
    changes: AtomicU64,
    batches: AtomicU64,
    duplicate_frames: AtomicU64,
    duplicate_transactions: AtomicU64,
    retries: AtomicU64,
    delivery_gaps: AtomicU64,
    trimmed_to: AtomicU64,
    copied_parts: AtomicU64,
}

#[derive(Debug, Default)]
struct Slow {
    state: ApplierState,
    epoch: LaneEpoch,
    replica_role: Option<bool>,
    target: Option<String>,
    last_error: Option<String>,
    /// What is being carried into the target, and when it last moved.
    pending: Option<(Work, Instant)>,
    /// What the target's session was seen doing, and when.
    sight: Option<(String, Instant)>,
    session: Weak<Session>,
    fence: Option<FenceSnapshot>,
    copy: Option<CopySnapshot>,
    /// What keeps something that was put off from being made again; empty when nothing does.
    restoring_waits: String,
    quarantine: Option<QuarantineSnapshot>,
    /// The code of a halt whose gauge is set.
    halted: Option<&'static str>,
}

/// What is being carried into the target.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    /// That many small transactions and the position behind them.
    Batch(usize),
    Large(TransactionIdentity),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Batch(0) => f.write_str("writing down the position"),
            Work::Batch(1) => f.write_str("applying 1 transaction"),
            Work::Batch(transactions) => write!(f, "applying {transactions} transactions"),
            Work::Large(identity) => write!(f, "applying the large transaction {identity}"),
        }
    }
}

/// Work that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What it is, and what holds it up as far as that was seen.
    pub what: String,
    /// For how long nothing of it has moved: no answer of the target, no chunk from the stream.
    pub still: Duration,
}

/// What the applier is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ApplierState {
    /// Not connected yet.
    #[default]
    Starting,
    /// Another applier holds the lane; the text names it.
    Standby {
        /// Who holds it.
        holder: String,
    },
    /// Applying what comes, or waiting for it.
    Running,
    /// Standing still until a copy is in.
    Copying {
        /// Which, and how far it is.
        reason: String,
    },
    /// Applying what comes, but the target shows no state of the source yet: some tables are
    /// ahead of the others.
    Converging {
        /// How many.
        tables: usize,
        /// Behind this position no table is ahead any more.
        at: Lsn,
    },
    /// Standing still because an operator wants it.
    Paused {
        /// In their words.
        reason: String,
        /// Who: `{name}@{host}`.
        operator: String,
        /// Since when, by the target's clock.
        since: String,
    },
    /// A passing fault: tried again with back-off, for ever.
    Retrying {
        /// What went wrong, without row values.
        reason: String,
    },
    /// Stopped for cause.
    Halted {
        /// Code, reason and hint.
        halt: Halt,
        /// Whether it is tried again by itself.
        probing: bool,
    },
    /// Ended on request.
    Stopped,
}

/// A copy of the status at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplierSnapshot {
    /// What the applier is doing.
    pub state: ApplierState,
    /// End LSN up to which everything is applied and visible.
    pub lsn_applied: Lsn,
    /// End LSN up to which everything is applied and durable.
    pub lsn_flushed: Lsn,
    /// Stream sequence of the last frame wholly applied.
    pub sequence: StreamSequence,
    /// Incarnation of that frame.
    pub incarnation: Incarnation,
    /// The lane's epoch held by this process.
    pub epoch: LaneEpoch,
    /// Whether the session runs under the replica role; `None` before the first connection.
    pub replica_role: Option<bool>,
    /// The registered target, `{target id}@{system id}`.
    pub target: Option<String>,
    /// The last fault, also after it passed.
    pub last_error: Option<String>,
    /// What is under way; `None` while there is nothing to do.
    pub pending: Option<Pending>,
    /// What a verify run holds the lane at; `None` most of the time.
    pub fence: Option<FenceSnapshot>,
    /// How far the copy of what the source held before is; `None` where nothing was ever copied.
    pub copy: Option<CopySnapshot>,
    /// What is held of the lane; `None` before that was read.
    pub quarantine: Option<QuarantineSnapshot>,
    /// Transactions committed in the target by this process.
    pub transactions: u64,
    /// Row changes among them.
    pub changes: u64,
    /// Target transactions they were committed in.
    pub batches: u64,
    /// Frames delivered although they were applied already.
    pub duplicate_frames: u64,
    /// Transactions delivered although they were applied already.
    pub duplicate_transactions: u64,
    /// Passing faults met.
    pub retries: u64,
    /// Times that a frame was missing in the delivery but not in the stream.
    pub delivery_gaps: u64,
    /// Positional frames below this sequence were removed from the stream by this process.
    pub trimmed_to: StreamSequence,
    /// What deduplication did.
    pub dedup: DedupSnapshot,
}

impl ApplierStatus {
    /// A copy of everything.
    pub fn snapshot(&self) -> ApplierSnapshot {
        let slow = self.slow();
        ApplierSnapshot {
            state: slow.state.clone(),
            lsn_applied: Lsn(self.lsn_applied.load(Relaxed)),
            lsn_flushed: Lsn(self.lsn_flushed.load(Relaxed)),
            sequence: StreamSequence(self.sequence.load(Relaxed)),
            incarnation: Incarnation(self.incarnation.load(Relaxed)),
            epoch: slow.epoch,
            replica_role: slow.replica_role,
            target: slow.target.clone(),
            last_error: slow.last_error.clone(),
            pending: slow.pending(),
            fence: slow.fence.clone(),
            copy: slow.copy_snapshot(),
            quarantine: slow.quarantine,
            transactions: self.transactions.load(Relaxed),
            changes: self.changes.load(Relaxed),
            batches: self.batches.load(Relaxed),
            duplicate_frames: self.duplicate_frames.load(Relaxed),
            duplicate_transactions: self.duplicate_transactions.load(Relaxed),
            retries: self.retries.load(Relaxed),
            delivery_gaps: self.delivery_gaps.load(Relaxed),
            trimmed_to: StreamSequence(self.trimmed_to.load(Relaxed)),
            dedup: self.dedup.snapshot(),
        }
    }

    /// Whether the applier is ready to be counted on: running, with nothing wrong.
    pub fn is_ready(&self) -> bool {
        matches!(self.slow().state, ApplierState::Running)
    }

    pub(crate) fn dedup(&self) -> &DedupStatus {
        &self.dedup
    }

    pub(crate) fn set_state(&self, state: ApplierState) {
        let mut slow = self.slow();
        match &state {
            ApplierState::Retrying { reason } => slow.last_error = Some(reason.clone()),
            ApplierState::Halted { halt, .. } => slow.last_error = Some(halt.to_string()),
            ApplierState::Starting
            | ApplierState::Standby { .. }
            | ApplierState::Running
            | ApplierState::Copying { .. }
            | ApplierState::Converging { .. }
            | ApplierState::Paused { .. }
            | ApplierState::Stopped => {}
        }
        slow.state = state;
        // Whatever was under way has ended with the attempt.
        slow.pending = None;
    }

    /// Stopped for cause.
    pub(crate) fn halted(&self, flow: &FlowName, halt: Halt, probing: bool) {
        let code = halt.code.as_str();
        let before = self.slow().halted.replace(code);
        if let Some(before) = before.filter(|before| *before != code) {
            metric::halted(flow, before, false);
        }
        metric::halted(flow, code, true);
        self.set_state(ApplierState::Halted { halt, probing });
    }

    /// The cause is gone: what stood still has moved.
    fn cured(&self, flow: &FlowName) {
        if let Some(code) = self.slow().halted.take() {
            metric::halted(flow, code, false);
        }
    }

    /// What is held now.
    pub(crate) fn set_quarantine(&self, flow: &FlowName, held: QuarantineSnapshot) {
        self.slow().quarantine = Some(held);
        metric::quarantine(flow, &held);
    }

    /// The session that works on the target from now on.
    pub(crate) fn set_target_session(&self, session: &Arc<Session>) {
        let mut slow = self.slow();
        slow.session = Arc::downgrade(session);
        slow.sight = None;
    }

    /// Work begins.
    pub(crate) fn begin(&self, work: Work) {
        self.slow().pending = Some((work, Instant::now()));
    }

    /// A piece of it was read.
    pub(crate) fn moved(&self) {
        if let Some((_, moved)) = &mut self.slow().pending {
            *moved = Instant::now();
        }
    }

    /// It has ended.
    pub(crate) fn end(&self) {
        self.slow().pending = None;
    }

    /// What the target's session was just seen doing.
    pub(crate) fn seen(&self, doing: String) {
        self.slow().sight = Some((doing, Instant::now()));
    }

    pub(crate) fn set_session(&self, epoch: LaneEpoch, replica_role: bool, target: String) {
        let mut slow = self.slow();
        slow.epoch = epoch;
        slow.replica_role = Some(replica_role);
        slow.target = Some(target);
    }

    /// What is applied and durable, as one: commits of this first version are synchronous.
    pub(crate) fn set_position(
        &self,
        flow: &FlowName,
        end_lsn: Lsn,
        sequence: StreamSequence,
        incarnation: Incarnation,
    ) {
        let before = self.lsn_applied.swap(end_lsn.0, Relaxed);
        if before != 0 && before != end_lsn.0 {
            self.cured(flow);
        }
        self.lsn_flushed.store(end_lsn.0, Relaxed);
        self.sequence.store(sequence.0, Relaxed);
        self.incarnation.store(incarnation.0, Relaxed);
        metric::position(flow, end_lsn, sequence);
    }

    /// Changes whenever something was committed.
    pub(crate) fn progress(&self) -> (u64, u64, u64) {
        (
            self.sequence.load(Relaxed),
            self.transactions.load(Relaxed),
            self.copied_parts.load(Relaxed),
        )
    }

    pub(crate) fn count_batch(
        &self,
        flow: &FlowName,
        transactions: u64,
        changes: u64,
        seconds: f64,
    ) {
        self.batches.fetch_add(1, Relaxed);
        self.transactions.fetch_add(transactions, Relaxed);
        self.changes.fetch_add(changes, Relaxed);
        metric::batch(flow, transactions, changes, seconds);
    }

    pub(crate) fn count_duplicate_frame(&self, flow: &FlowName) {
        self.duplicate_frames.fetch_add(1, Relaxed);
        metric::count(metric::DUPLICATE_FRAMES, flow, 1);
    }

    pub(crate) fn count_duplicate_transactions(&self, flow: &FlowName, transactions: u64) {
        if transactions > 0 {
            self.duplicate_transactions.fetch_add(transactions, Relaxed);
            metric::count(metric::DUPLICATE_TRANSACTIONS, flow, transactions);
            metric::verdict(flow, "duplicate", transactions);
        }
    }

    pub(crate) fn count_retry(&self, flow: &FlowName) {
        self.retries.fetch_add(1, Relaxed);
        metric::count(metric::RETRIES, flow, 1);
    }

    pub(crate) fn count_delivery_gap(&self, flow: &FlowName) {
        self.delivery_gaps.fetch_add(1, Relaxed);
        metric::count(metric::DELIVERY_GAPS, flow, 1);
    }

    pub(crate) fn set_trimmed_to(&self, sequence: StreamSequence) {
        self.trimmed_to.store(sequence.0, Relaxed);
    }

    fn slow(&self) -> std::sync::MutexGuard<'_, Slow> {
        // A panic elsewhere leaves plain values behind, never half a state.
        self.slow
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Slow {
    fn pending(&self) -> Option<Pending> {
        let (work, moved) = self.pending.as_ref()?;
        // Each answer of the target is progress, and costs the loop nothing to note.
        let heard = self.session.upgrade().map(|session| session.silent_for());
        let still = heard.map_or(moved.elapsed(), |heard| heard.min(moved.elapsed()));
        let mut what = work.to_string();
        // What was seen before the last progress is no longer true.
        if let Some((doing, at)) = &self.sight
            && at.elapsed() <= still
        {
            what = format!("{what}; {doing}");
        }
        Some(Pending { what, still })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_pending_until_it_ends_and_what_was_seen_before_it_is_not_said() {
        let status = ApplierStatus::default();
        assert_eq!(status.snapshot().pending, None);
        status.seen("its session waits for a lock".to_owned());
        status.begin(Work::Batch(2));
        let pending = status.snapshot().pending.expect("work");
        assert_eq!(pending.what, "applying 2 transactions");
        status.seen("its session waits for a lock".to_owned());
        let pending = status.snapshot().pending.expect("work");
        assert_eq!(
            pending.what,
            "applying 2 transactions; its session waits for a lock"
        );
        status.end();
        assert_eq!(status.snapshot().pending, None);
        status.begin(Work::Batch(1));
        status.set_state(ApplierState::Starting);
        assert_eq!(status.snapshot().pending, None);
    }
}
