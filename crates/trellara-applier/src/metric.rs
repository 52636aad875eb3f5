//! Names of the applier's metrics, and the few lines that set them.

use metrics::{counter, gauge, histogram};
use trellara_dedup::Stats;
use trellara_envelope::{FlowName, Lsn, StreamSequence};

use crate::status::{CopySnapshot, QuarantineSnapshot};

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
/// Times that somebody ended our work on the target, with the SQLSTATE as a label.
pub const DISTURBANCES: &str = "trellara_applier_disturbances_total";
/// Frames missing in the delivery but not in the stream.
pub const DELIVERY_GAPS: &str = "trellara_applier_delivery_gaps_total";
/// Transactions in quarantine that are still to be applied.
pub const QUARANTINED: &str = "trellara_quarantined_transactions";
/// When the oldest of them was set aside, in seconds since the Unix epoch; 0 when there is none.
pub const QUARANTINE_OLDEST: &str = "trellara_quarantine_oldest_timestamp_seconds";
/// Bytes of their frames.
pub const QUARANTINE_BYTES: &str = "trellara_quarantine_bytes";
/// Changes that a conflict rule let go by, or wrote over rows.
pub const SKIPPED_CHANGES: &str = "trellara_skipped_changes_total";
/// Replays that somebody asked for, with what became of each as a label.
pub const REPLAYS: &str = "trellara_replays_total";
/// 1 while halted, with the code as a label.
pub const HALTED: &str = "trellara_applier_halted";
/// Applied and durable end LSN.
pub const LSN_APPLIED: &str = "trellara_applier_lsn_applied_bytes";
/// Stream sequence of the last frame wholly applied.
pub const SEQUENCE: &str = "trellara_applier_stream_sequence";
/// 1 while a verify run holds the lane at a position.
pub const FENCED: &str = "trellara_applier_fenced";
/// 1 while an operator wants the lane to stand still.
pub const PAUSED: &str = "trellara_applier_paused";
/// Seconds that a lane stood still for a verify run.
pub const FENCE_SECONDS: &str = "trellara_applier_fence_seconds";

/// Transactions by verdict: `applied_vouched` (the cache knew that it is new), `applied_probed` (the
/// ledger was asked), `duplicate`.
pub const DEDUP_VERDICTS: &str = "trellara_applier_dedup_verdicts_total";
/// Questions asked of the ledger.
pub const DEDUP_PROBES: &str = "trellara_applier_dedup_probes_total";
/// Ledger rows that they read.
pub const DEDUP_ROWS_READ: &str = "trellara_applier_dedup_rows_read_total";
/// Duplicates that only the watermark answered for: their rows were pruned.
pub const DEDUP_BELOW_WATERMARK: &str = "trellara_applier_dedup_duplicates_below_watermark_total";
/// Transactions that the cache knew locally, each a hint that the ledger is asked about.
pub const DEDUP_HITS: &str = "trellara_applier_dedup_hits_total";
/// Lanes thrown out of the cache for its budget.
pub const DEDUP_EVICTIONS: &str = "trellara_applier_dedup_evictions_total";
/// Lanes kept out of the cache for a while.
pub const DEDUP_SUPPRESSED: &str = "trellara_applier_dedup_suppressed_lanes";
/// Identities in the cache.
pub const DEDUP_IDENTITIES: &str = "trellara_applier_dedup_identities";
/// Bytes of the cache.
pub const DEDUP_BYTES: &str = "trellara_applier_dedup_resident_bytes";
/// Seconds that filling the cache from the ledger took.
pub const DEDUP_HYDRATION_SECONDS: &str = "trellara_applier_dedup_hydration_seconds";

/// Tables that are copied, or were.
pub const BACKFILL_TABLES: &str = "trellara_backfill_tables";
/// Those of them that are in.
pub const BACKFILL_TABLES_IN: &str = "trellara_backfill_tables_in";
/// Tables that an operator is needed for.
pub const BACKFILL_TABLES_FAILED: &str = "trellara_backfill_tables_failed";
/// 1 while the lane stands still until the copy is in.
pub const BACKFILL_HOLDS_LANE: &str = "trellara_backfill_holds_lane";
/// Rows copied into the target.
pub const BACKFILL_ROWS: &str = "trellara_backfill_rows_total";
/// Bytes of them, as they were sent.
pub const BACKFILL_BYTES: &str = "trellara_backfill_bytes_total";
/// Parts that they came in, each a target transaction.
pub const BACKFILL_PARTS: &str = "trellara_backfill_parts_total";
/// Copies of a table that came to nothing and began anew.
pub const BACKFILL_GENERATIONS: &str = "trellara_backfill_generations_total";

pub(crate) fn copy(flow: &FlowName, copy: &CopySnapshot) {
    let label = [("flow", flow.to_string())];
    gauge!(BACKFILL_TABLES, &label).set(copy.tables as f64);
    gauge!(BACKFILL_TABLES_IN, &label).set(copy.tables_in as f64);
    gauge!(BACKFILL_TABLES_FAILED, &label).set(copy.failed.len() as f64);
    gauge!(BACKFILL_HOLDS_LANE, &label).set(f64::from(u8::from(copy.holds_lane)));
}

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

pub(crate) fn disturbed(flow: &FlowName, sqlstate: &str) {
    let labels = [
        ("flow", flow.to_string()),
        ("sqlstate", sqlstate.to_owned()),
    ];
    counter!(DISTURBANCES, &labels).increment(1);
}

pub(crate) fn halted(flow: &FlowName, code: &'static str, halted: bool) {
    gauge!(HALTED, "flow" => flow.to_string(), "code" => code).set(if halted { 1.0 } else { 0.0 });
}

pub(crate) fn quarantine(flow: &FlowName, held: &QuarantineSnapshot) {
    let label = [("flow", flow.to_string())];
    let oldest = held.oldest.map_or(0.0, |(at_us, _)| at_us as f64 / 1e6);
    gauge!(QUARANTINED, &label).set(held.open as f64);
    gauge!(QUARANTINE_OLDEST, &label).set(oldest);
    gauge!(QUARANTINE_BYTES, &label).set(held.bytes as f64);
}

pub(crate) fn replayed(flow: &FlowName, outcome: &'static str) {
    counter!(REPLAYS, "flow" => flow.to_string(), "outcome" => outcome).increment(1);
}

pub(crate) fn fenced(flow: &FlowName, fenced: bool) {
    gauge!(FENCED, "flow" => flow.to_string()).set(if fenced { 1.0 } else { 0.0 });
}

pub(crate) fn paused(flow: &FlowName, paused: bool) {
    gauge!(PAUSED, "flow" => flow.to_string()).set(if paused { 1.0 } else { 0.0 });
}

pub(crate) fn fence(flow: &FlowName, seconds: f64) {
    histogram!(FENCE_SECONDS, "flow" => flow.to_string()).record(seconds);
}

pub(crate) fn verdict(flow: &FlowName, verdict: &'static str, transactions: u64) {
    counter!(DEDUP_VERDICTS, "flow" => flow.to_string(), "verdict" => verdict)
        .increment(transactions);
}

pub(crate) fn hydration(flow: &FlowName, seconds: f64) {
    histogram!(DEDUP_HYDRATION_SECONDS, "flow" => flow.to_string()).record(seconds);
}

pub(crate) fn cache(flow: &FlowName, stats: &Stats) {
    let label = [("flow", flow.to_string())];
    counter!(DEDUP_HITS, &label).absolute(stats.hits);
    counter!(DEDUP_EVICTIONS, &label).absolute(stats.evictions);
    gauge!(DEDUP_SUPPRESSED, &label).set(stats.suppressed as f64);
    gauge!(DEDUP_IDENTITIES, &label).set(stats.identities as f64);
    gauge!(DEDUP_BYTES, &label).set(stats.resident_bytes as f64);
}
