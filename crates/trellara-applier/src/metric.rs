//! Names of the applier's metrics, and the few lines that set them.

use metrics::{counter, gauge, histogram};
use trellara_envelope::{FlowName, Lsn, StreamSequence};

/// Transactions committed in the target.
pub const TRANSACTIONS: &str = "trellara_applier_transactions_total";
/// Row changes among them.
pub const CHANGES: &str = "trellara_applier_changes_total";
/// Target transactions.
pub const BATCHES: &str = "trellara_applier_batches_total";
/// Seconds from the begin of a target transaction to the answer of its commit.
pub const BATCH_SECONDS: &str = "trellara_applier_batch_seconds";
/// Frames delivered although they were applied already.
pub const DUPLICATE_FRAMES: &str = "trellara_applier_duplicate_frames_total";
/// Transactions delivered although they were applied already.
pub const DUPLICATE_TRANSACTIONS: &str = "trellara_applier_duplicate_transactions_total";
/// Passing faults.
pub const RETRIES: &str = "trellara_applier_retries_total";
/// Frames missing in the delivery but not in the stream.
pub const DELIVERY_GAPS: &str = "trellara_applier_delivery_gaps_total";
/// 1 while halted, with the code as a label.
pub const HALTED: &str = "trellara_applier_halted";
/// Applied and durable end LSN.
pub const LSN_APPLIED: &str = "trellara_applier_lsn_applied_bytes";
/// Stream sequence of the last frame wholly applied.
pub const SEQUENCE: &str = "trellara_applier_stream_sequence";

pub(crate) fn position(flow: &FlowName, end_lsn: Lsn, sequence: StreamSequence) {
    let label = [("flow", flow.to_string())];
    gauge!(LSN_APPLIED, &label).set(end_lsn.0 as f64);
    gauge!(SEQUENCE, &label).set(sequence.0 as f64);
}

pub(crate) fn batch(flow: &FlowName, transactions: u64, changes: u64, seconds: f64) {
    let label = [("flow", flow.to_string())];
    counter!(BATCHES, &label).increment(1);
    counter!(TRANSACTIONS, &label).increment(transactions);
    counter!(CHANGES, &label).increment(changes);
    histogram!(BATCH_SECONDS, &label).record(seconds);
}

pub(crate) fn count(name: &'static str, flow: &FlowName, by: u64) {
    counter!(name, "flow" => flow.to_string()).increment(by);
}

pub(crate) fn halted(flow: &FlowName, code: &'static str, halted: bool) {
    gauge!(HALTED, "flow" => flow.to_string(), "code" => code).set(if halted { 1.0 } else { 0.0 });
}
