//! What the endpoint may ask a running relay.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use trellara_envelope::{Halt, Incarnation, Lsn, StreamSequence, Xid};

use crate::CopySnapshot;
use crate::copy::Serving;
use crate::machine::{LargeTransaction, MachineStatus};

/// What the relay is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RelayState {
    /// Not connected yet.
    #[default]
    Starting,
    /// Waits for something that passes: the slot is taken, a server is down, the stream is full.
    Waiting,
    /// Another relay has the slot; this one is ready to take over.
    Standby,
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
    /// Since when it has waited, whatever for.
    pub waiting_since: Option<Instant>,
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
    /// The copy that runs beside the stream.
    pub copy: CopySnapshot,
}

/// Written by the run loop, read and waited for by anyone; never held across a wait.
#[derive(Debug)]
pub struct RelayStatus {
    snapshot: watch::Sender<StatusSnapshot>,
    /// The large transaction warned of last.
    warned: Mutex<Option<Xid>>,
    /// The incarnation that holds the slot.
    serving: watch::Sender<Option<Serving>>,
}

impl RelayStatus {
    /// A status of a relay that has not begun.
    pub fn new() -> Self {
        Self {
            snapshot: watch::Sender::new(StatusSnapshot::default()),
            warned: Mutex::new(None),
            serving: watch::Sender::new(None),
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

    /// Says which incarnation of this process holds the slot, if one does.
    pub(crate) fn serve(&self, serving: Option<Serving>) {
        self.serving.send_if_modified(|now| {
            let is_new = *now != serving;
            *now = serving;
            is_new
        });
    }

    /// For the copy, which is only an incarnation's business.
    pub(crate) fn serving(&self) -> watch::Receiver<Option<Serving>> {
        self.serving.subscribe()
    }

    /// Says that a transaction may not fit. The next incarnation reads the same one again, and it is
    /// named once.
    pub(crate) fn warn_of(&self, large: LargeTransaction) {
        let LargeTransaction { xid, bytes, limit } = large;
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.replace(xid) != Some(xid) {
            tracing::warn!(
                %xid, bytes, limit,
                hint = "raise the stream's max_bytes (nats stream edit) above the size of the transaction",
                "a transaction takes more than half of what the stream has for data; the relay \
                 halts with STREAM_TOO_SMALL when it does not fit"
            );
        }
    }

    /// Takes over what the machine says. Counts go on from one incarnation to the next, so `before`
    /// is what was taken over last.
    pub(crate) fn take(&self, now: MachineStatus, before: &MachineStatus, is_over: bool) {
        self.update(|status| {
            if now.streaming && !is_over {
                status.state = match now.waiting_for.is_empty() {
                    true => RelayState::Streaming,
                    false => RelayState::Waiting,
                };
            }
            status.waiting_for = now.waiting_for;
            status.halt = now.halt;
            status.lsn_received = now.lsn_received;
            status.lsn_published = now.lsn_published;
            status.lsn_confirmed = now.lsn_confirmed;
            status.lsn_applied = now.lsn_applied;
            status.last_sequence = now.last_sequence;
            status.window_bytes = now.window_bytes;
            status.open_bytes = now.open_bytes;
            status.open_transactions = now.open_transactions;
            status.frames += now.frames - before.frames;
            status.frame_bytes += now.frame_bytes - before.frame_bytes;
            status.transactions += now.transactions - before.transactions;
            status.doubts += now.doubts - before.doubts;
        });
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut StatusSnapshot)) {
        self.snapshot.send_modify(|status| {
            change(status);
            if status.waiting_for.is_empty() {
                status.waiting_since = None;
            } else {
                status.waiting_since.get_or_insert_with(Instant::now);
            }
        });
    }
}

impl Default for RelayStatus {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_has_one_beginning_whatever_is_waited_for() {
        let status = RelayStatus::new();
        assert_eq!(status.snapshot().waiting_since, None);
        status.update(|status| status.waiting_for = "room in the stream".to_owned());
        let since = status.snapshot().waiting_since;
        assert!(since.is_some());
        status.update(|status| status.waiting_for = "a position report".to_owned());
        assert_eq!(status.snapshot().waiting_since, since);
        status.update(|status| status.waiting_for.clear());
        assert_eq!(status.snapshot().waiting_since, None);
    }
}
