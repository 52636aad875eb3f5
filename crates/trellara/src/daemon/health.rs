//! Whether the daemons of this process do their job.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::Component;
use crate::report::{DaemonReport, ProcessReport};

/// How often progress is looked at; a fraction of every sensible `stall_timeout`.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The components as seen over time.
pub(crate) struct Health {
    components: Arc<[Component]>,
    stall_timeout: Duration,
    seen: Mutex<Vec<Seen>>,
}

/// What was last seen to move.
struct Seen {
    mark: String,
    since: Instant,
}

impl Health {
    pub(super) fn new(components: Arc<[Component]>, stall_timeout: Duration) -> Self {
        let now = Instant::now();
        let seen = components
            .iter()
            .map(|_| Seen {
                mark: String::new(),
                since: now,
            })
            .collect();
        Self {
            components,
            stall_timeout,
            seen: Mutex::new(seen),
        }
    }

    /// Looks at the components until cancelled.
    pub(super) async fn watch(health: Arc<Self>, cancel: CancellationToken) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = tick.tick() => { health.reports(); }
            }
        }
    }

    /// What each component says, with `ready` and `reason` corrected for stalls.
    pub(crate) fn reports(&self) -> Vec<DaemonReport> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = self.components.iter().zip(seen.iter_mut());
        pairs
            .map(|(component, seen)| self.look(component, seen))
            .collect()
    }

    /// The whole process for `/status`.
    pub(crate) fn process(&self) -> ProcessReport {
        ProcessReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            daemons: self.reports(),
        }
    }

    fn look(&self, component: &Component, seen: &mut Seen) -> DaemonReport {
        let mut report = (component.report)();
        let mark = format!(
            "{:?} {:?} {} {} {}",
            report.lsn_published,
            report.lsn_applied,
            report.stream_sequence,
            report.state,
            report.incarnation
        );
        if mark != seen.mark || !has_something_to_do(&report) {
            *seen = Seen {
                mark,
                since: Instant::now(),
            };
        }
        let still = Duration::from_secs_f64(held_up(&report));
        let stalled = seen.since.elapsed().max(still);
        if stalled >= self.stall_timeout {
            report.ready = false;
            let seconds = stalled.as_secs();
            let waiting = report
                .reason
                .take()
                .map_or(String::new(), |reason| format!(": {reason}"));
            report.reason = Some(format!("no progress for {seconds} s{waiting}"));
        }
        report
    }
}

/// For how long what a running applier has in hand has not moved. It says so itself: a large
/// transaction moves long before any position does.
fn held_up(report: &DaemonReport) -> f64 {
    match (report.state.as_str(), report.waiting_seconds) {
        ("running" | "converging", Some(seconds)) => seconds,
        _ => 0.0,
    }
}

/// An idle daemon makes no progress and is well; one that waits, retries or has unacknowledged
/// frames should.
fn has_something_to_do(report: &DaemonReport) -> bool {
    match report.state.as_str() {
        "streaming" => report
            .details
            .get("window_bytes")
            .is_some_and(|bytes| bytes != "0"),
        // A copy has a report of its own.
        "running" | "copying" | "converging" | "standby" | "paused" | "stopped" => false,
        _ => true,
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
