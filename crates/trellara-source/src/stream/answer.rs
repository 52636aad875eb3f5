//! Status updates, from a thread that waits for nothing but its own socket.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use trellara_envelope::CommitTime;
use trellara_pgoutput::status_update;
use trellara_postgres::CopyWriter;

use super::Feedback;

/// The last positions are repeated this often, whatever the relay does: a walsender gives up on
/// us after `wal_sender_timeout`, of which ten seconds is the shortest that is sensible. Each time
/// a reply is asked for, so that a server that says nothing at all is known to be gone.
const REPEAT_INTERVAL: Duration = Duration::from_secs(2);

/// What to tell the server; the newest wins.
#[derive(Debug, Default)]
pub(super) struct Answering {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing is sent before the relay has said something: position zero would be harmless, but
    /// it would also be a lie.
    feedback: Option<Feedback>,
    reply_requested: bool,
    fresh: bool,
    stopped: bool,
}

impl Answering {
    pub(super) fn set(&self, feedback: Feedback, reply_requested: bool) {
        let mut state = self.lock();
        state.feedback = Some(feedback);
        state.reply_requested |= reply_requested;
        state.fresh = true;
        drop(state);
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Waits for something to send; `None` when it is over. What was said last still goes out, so
    /// that an orderly stop leaves the slot where the stream is.
    fn next(&self) -> Option<(Option<Feedback>, bool)> {
        let state = self.lock();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, REPEAT_INTERVAL, |state| {
                !state.fresh && !state.stopped
            })
            .unwrap_or_else(PoisonError::into_inner);
        if state.stopped && !state.fresh {
            return None;
        }
        let repeated = !std::mem::take(&mut state.fresh);
        let reply = std::mem::take(&mut state.reply_requested) || repeated;
        Some((state.feedback, reply))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends until told to stop or until the connection is gone; either ends the connection for the
/// reader too.
pub(super) fn run(answering: &Answering, writer: &CopyWriter) {
    while let Some((feedback, reply)) = answering.next() {
        let Some(feedback) = feedback else { continue };
        let Feedback {
            write,
            flush,
            apply,
        } = feedback;
        let update = status_update(write, flush, apply, now(), reply);
        if writer.send_copy_data(&update).is_err() {
            break;
        }
    }
    writer.shutdown();
}

fn now() -> CommitTime {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let us = i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX);
    CommitTime(us.saturating_sub(CommitTime::UNIX_OFFSET_US))
}
