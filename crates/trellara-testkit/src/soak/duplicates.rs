//! Counting what was delivered twice, over all the lives of the applier.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::flow::Flow;

/// A heartbeat's way from the broker to the applier is far shorter.
const SETTLE: Duration = Duration::from_secs(10);

/// What the appliers said, each about itself since it began.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    by_pid: BTreeMap<u32, u64>,
    /// Published a second time on purpose.
    pub(super) repeated: u64,
    /// Largest resident set of any relay, bytes.
    pub(super) relay_peak: u64,
    /// Largest resident set of any applier, bytes.
    pub(super) applier_peak: u64,
}

impl Duplicates {
    /// Reads what the present daemons say. A daemon that does not answer now was or will be read
    /// at another time; what it said last counts.
    pub(super) async fn look(&mut self, flow: &Flow) {
        if let Some(relay) = &flow.relay {
            self.relay_peak = self.relay_peak.max(peak(relay));
        }
        let Some(applier) = &flow.applier else { return };
        self.applier_peak = self.applier_peak.max(peak(applier));
        if let Some(count) = applier.counter("duplicate_transactions").await {
            self.by_pid.insert(applier.pid(), count);
        }
    }

    /// Reads until what was published again last has come by, within a limit.
    pub(super) async fn settle(&mut self, flow: &Flow) {
        let deadline = Instant::now() + SETTLE;
        loop {
            self.look(flow).await;
            if self.delivered() >= self.repeated || Instant::now() > deadline {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) fn delivered(&self) -> u64 {
        self.by_pid.values().sum()
    }
}

fn peak(daemon: &Daemon) -> u64 {
    daemon.peak_memory_bytes().unwrap_or_default()
}
