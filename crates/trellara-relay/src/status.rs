//! What the endpoint may ask a running relay.

use tokio::sync::watch;
use trellara_envelope::{Halt, Incarnation, Lsn, StreamSequence};

/// What the relay is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RelayState {
    /// Not connected yet.
    #[default]
    Starting,
    /// Waits for something that passes: the slot is taken, a server is down, the stream is full.
    Waiting,
    /// Reading facts, asking the resume table, waiting for the marker's acknowledgement.
    Resuming,
    /// Streaming.
    Streaming,
    /// Stopped with a halt.
    Halted,
    /// Told to stop.
    Stopped,
}

/// A relay's status at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusSnapshot {
    /// What it is doing.
    pub state: RelayState,
    /// Why it waits, in words; empty when it does not.
    pub waiting_for: String,
    /// The last error met, in words without values; empty when there was none.
    pub last_error: String,
    /// Why it halted, or would halt if the cause could not pass by itself.
    pub halt: Option<Halt>,
    /// The present incarnation; 0 before the first.
    pub incarnation: Incarnation,
    /// End of what the source has sent.
    pub lsn_received: Lsn,
    /// End of the acknowledged contiguous part.
    pub lsn_published: Lsn,
    /// What the source was told.
    pub lsn_confirmed: Lsn,
    /// The registered target's durable position, as far as it is believed.
    pub lsn_applied: Lsn,
    /// Sequence of the last acknowledged frame.
    pub last_sequence: StreamSequence,
    /// Bytes in unacknowledged frames.
    pub window_bytes: u64,
    /// Published bytes of transactions still open on the source.
    pub open_bytes: u64,
    /// Transactions still open on the source.
    pub open_transactions: u64,
    /// Frames acknowledged since the process began.
    pub frames: u64,
    /// Bytes in them.
    pub frame_bytes: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Publishes whose outcome had to be asked of the stream (R4).
    pub doubts: u64,
    /// Incarnations begun.
    pub restarts: u64,
}

/// Written by the run loop, read and waited for by anyone; never held across a wait.
#[derive(Debug)]
pub struct RelayStatus {
    snapshot: watch::Sender<StatusSnapshot>,
}

impl RelayStatus {
    /// A status of a relay that has not begun.
    pub fn new() -> Self {
        Self {
            snapshot: watch::Sender::new(StatusSnapshot::default()),
        }
    }

    /// The status now.
    pub fn snapshot(&self) -> StatusSnapshot {
        self.snapshot.borrow().clone()
    }

    /// For waiting until the status is as wanted.
    pub fn subscribe(&self) -> watch::Receiver<StatusSnapshot> {
        self.snapshot.subscribe()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut StatusSnapshot)) {
        self.snapshot.send_modify(change);
    }
}

impl Default for RelayStatus {
    fn default() -> Self {
        Self::new()
    }
}
