//! What the copy says about itself, in the status and as metrics.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, counter, gauge};
use trellara_envelope::FlowName;

use super::CopySnapshot;
use crate::RelayStatus;

/// The rate is taken over this long.
const RATE_INTERVAL: Duration = Duration::from_secs(2);

/// Where the copy reports; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Report {
    status: Arc<RelayStatus>,
    metrics: Arc<Metrics>,
    rate: Arc<Mutex<Rate>>,
}

#[derive(Debug)]
struct Rate {
    since: Instant,
    bytes: u64,
}

#[derive(Debug)]
struct Metrics {
    tables: Gauge,
    tables_over: Gauge,
    snapshot_age: Gauge,
    rows: Counter,
    bytes: Counter,
    parts: Counter,
    failures: Counter,
}

impl Report {
    pub(super) fn new(flow: &FlowName, status: Arc<RelayStatus>) -> Self {
        let flow = flow.to_string();
        let gauge = |name: &'static str| gauge!(name, "flow" => flow.clone());
        let counter = |name: &'static str| counter!(name, "flow" => flow.clone());
        let metrics = Metrics {
            tables: gauge("trellara_relay_copy_tables"),
            tables_over: gauge("trellara_relay_copy_tables_over"),
            snapshot_age: gauge("trellara_relay_copy_snapshot_age_seconds"),
            rows: counter("trellara_relay_copy_rows_total"),
            bytes: counter("trellara_relay_copy_bytes_total"),
            parts: counter("trellara_relay_copy_parts_total"),
            failures: counter("trellara_relay_copy_failures_total"),
        };
        Self {
            status,
            metrics: Arc::new(metrics),
            rate: Arc::new(Mutex::new(Rate {
                since: Instant::now(),
                bytes: 0,
            })),
        }
    }

    /// Another snapshot, with these tables.
    pub(super) fn begun(&self, tables: usize, estimated_bytes: u64, taken_at: Instant) {
        self.set(CopySnapshot {
            tables,
            estimated_bytes,
            snapshot_since: Some(taken_at),
            ..CopySnapshot::default()
        });
    }

    /// All tables of the snapshot are over.
    pub(super) fn ended(&self) {
        self.metrics.snapshot_age.set(0.0);
        self.status.update(|status| {
            status.copy.snapshot_since = None;
            status.copy.bytes_per_second = 0;
            status.copy.waiting_for.clear();
        });
    }

    /// Nothing is copied any more, or for now.
    pub(super) fn over(&self, waiting_for: &str) {
        self.set(CopySnapshot {
            waiting_for: waiting_for.to_owned(),
            ..CopySnapshot::default()
        });
    }

    /// A part is on its way.
    pub(super) fn part(&self, rows: u64, bytes: u64) {
        self.metrics.rows.increment(rows);
        self.metrics.bytes.increment(bytes);
        self.metrics.parts.increment(1);
        let rate = self.rate(bytes);
        self.status.update(|status| {
            status.copy.rows += rows;
            status.copy.bytes += bytes;
            if let Some(rate) = rate {
                status.copy.bytes_per_second = rate;
            }
        });
    }

    /// So many tables are over.
    pub(super) fn tables_over(&self, count: usize) {
        self.metrics.tables_over.set(count as f64);
        self.status.update(|status| status.copy.tables_over = count);
    }

    /// A table's copy came to nothing.
    pub(super) fn failed(&self) {
        self.metrics.failures.increment(1);
    }

    /// To be called now and then.
    pub(super) fn tick(&self) {
        let rate = self.rate(0);
        let since = self.status.snapshot().copy.snapshot_since;
        let age = since.map_or(Duration::ZERO, |since| since.elapsed());
        self.metrics.snapshot_age.set(age.as_secs_f64());
        if let Some(rate) = rate {
            self.status
                .update(|status| status.copy.bytes_per_second = rate);
        }
    }

    /// What is waited for, in words.
    pub(super) fn waiting_for(&self, what: &str) {
        if self.status.snapshot().copy.waiting_for != what {
            self.status
                .update(|status| what.clone_into(&mut status.copy.waiting_for));
        }
    }

    fn set(&self, snapshot: CopySnapshot) {
        self.metrics.tables.set(snapshot.tables as f64);
        self.metrics.tables_over.set(0.0);
        self.metrics.snapshot_age.set(0.0);
        self.status.update(|status| status.copy = snapshot);
    }

    fn rate(&self, bytes: u64) -> Option<u64> {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        rate.bytes += bytes;
        let elapsed = rate.since.elapsed();
        if elapsed < RATE_INTERVAL {
            return None;
        }
        let per_second = rate.bytes as f64 / elapsed.as_secs_f64();
        *rate = Rate {
            since: Instant::now(),
            bytes: 0,
        };
        Some(per_second as u64)
    }
}
