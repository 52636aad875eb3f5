//! Names of the relay's metrics, and where they are written.

use metrics::{Counter, Gauge, counter, gauge};
use trellara_envelope::{FlowName, HaltCode};

use crate::machine::MachineStatus;

/// Positions are written as counters: bytes of WAL since the beginning of the cluster.
#[derive(Debug)]
pub(crate) struct Metrics {
    flow: String,
    lsn_received: Gauge,
    lsn_published: Gauge,
    lsn_confirmed: Gauge,
    lsn_applied: Gauge,
    window_bytes: Gauge,
    open_bytes: Gauge,
    open_transactions: Gauge,
    frames: Counter,
    frame_bytes: Counter,
    transactions: Counter,
    doubts: Counter,
    restarts: Counter,
}

impl Metrics {
    pub(crate) fn new(flow: &FlowName) -> Self {
        let flow = flow.to_string();
        let gauge = |name: &'static str| gauge!(name, "flow" => flow.clone());
        let counter = |name: &'static str| counter!(name, "flow" => flow.clone());
        Self {
            lsn_received: gauge("trellara_relay_lsn_received"),
            lsn_published: gauge("trellara_relay_lsn_published"),
            lsn_confirmed: gauge("trellara_relay_lsn_confirmed"),
            lsn_applied: gauge("trellara_relay_lsn_applied"),
            window_bytes: gauge("trellara_relay_window_bytes"),
            open_bytes: gauge("trellara_relay_open_bytes"),
            open_transactions: gauge("trellara_relay_open_transactions"),
            frames: counter("trellara_relay_frames_total"),
            frame_bytes: counter("trellara_relay_frame_bytes_total"),
            transactions: counter("trellara_relay_transactions_total"),
            doubts: counter("trellara_relay_doubts_total"),
            restarts: counter("trellara_relay_restarts_total"),
            flow,
        }
    }

    /// Takes over a machine's status; `before` is what was taken over last.
    pub(crate) fn take(&self, status: &MachineStatus, before: &MachineStatus) {
        // An f64 holds an LSN exactly up to 2^53, which is nine petabytes of WAL.
        self.lsn_received.set(status.lsn_received.0 as f64);
        self.lsn_published.set(status.lsn_published.0 as f64);
        self.lsn_confirmed.set(status.lsn_confirmed.0 as f64);
        self.lsn_applied.set(status.lsn_applied.0 as f64);
        self.window_bytes.set(status.window_bytes as f64);
        self.open_bytes.set(status.open_bytes as f64);
        self.open_transactions.set(status.open_transactions as f64);
        self.frames.increment(status.frames - before.frames);
        self.frame_bytes
            .increment(status.frame_bytes - before.frame_bytes);
        self.transactions
            .increment(status.transactions - before.transactions);
        self.doubts.increment(status.doubts - before.doubts);
    }

    pub(crate) fn restarted(&self) {
        self.restarts.increment(1);
    }

    pub(crate) fn halted(&self, code: HaltCode) {
        let labels = [("flow", self.flow.clone()), ("code", code.to_string())];
        counter!("trellara_relay_halts_total", &labels).increment(1);
    }
}
