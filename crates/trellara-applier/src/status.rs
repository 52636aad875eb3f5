//! What an applier says about itself: read by the endpoint, written by the loop.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::metric;
use trellara_envelope::{FlowName, Halt, Incarnation, LaneEpoch, Lsn, StreamSequence};

/// The status of one applier; cheap to write, read at any time from any thread.
#[derive(Debug, Default)]
pub struct ApplierStatus {
    slow: Mutex<Slow>,
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
}

#[derive(Debug, Default)]
struct Slow {
    state: ApplierState,
    epoch: LaneEpoch,
    replica_role: Option<bool>,
    target: Option<String>,
    last_error: Option<String>,
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
            transactions: self.transactions.load(Relaxed),
            changes: self.changes.load(Relaxed),
            batches: self.batches.load(Relaxed),
            duplicate_frames: self.duplicate_frames.load(Relaxed),
            duplicate_transactions: self.duplicate_transactions.load(Relaxed),
            retries: self.retries.load(Relaxed),
            delivery_gaps: self.delivery_gaps.load(Relaxed),
            trimmed_to: StreamSequence(self.trimmed_to.load(Relaxed)),
        }
    }

    /// Whether the applier is ready to be counted on: running, with nothing wrong.
    pub fn is_ready(&self) -> bool {
        matches!(self.slow().state, ApplierState::Running)
    }

    pub(crate) fn set_state(&self, state: ApplierState) {
        let mut slow = self.slow();
        match &state {
            ApplierState::Retrying { reason } => slow.last_error = Some(reason.clone()),
            ApplierState::Halted { halt, .. } => slow.last_error = Some(halt.to_string()),
            ApplierState::Starting
            | ApplierState::Standby { .. }
            | ApplierState::Running
            | ApplierState::Stopped => {}
        }
        slow.state = state;
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
        self.lsn_applied.store(end_lsn.0, Relaxed);
        self.lsn_flushed.store(end_lsn.0, Relaxed);
        self.sequence.store(sequence.0, Relaxed);
        self.incarnation.store(incarnation.0, Relaxed);
        metric::position(flow, end_lsn, sequence);
    }

    /// Changes whenever something was committed.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.sequence.load(Relaxed), self.transactions.load(Relaxed))
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
