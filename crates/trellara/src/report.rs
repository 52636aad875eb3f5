//! What daemons say about themselves on `/status`, and `trellara status` prints again.
//!
//! These types are the JSON form; nothing else derives `Serialize`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trellara_applier::{ApplierSnapshot, ApplierState, CopySnapshot, DedupSnapshot};
use trellara_envelope::{FlowName, Halt, Lsn};
use trellara_relay::{CopySnapshot as CopyReading, RelayState, StatusSnapshot};

use crate::held::HeldFacts;

/// A target transaction that takes less long is the ordinary course of things.
const WORTH_SAYING: Duration = Duration::from_secs(1);

/// Everything one process says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProcessReport {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) daemons: Vec<DaemonReport>,
}

/// One daemon of a process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DaemonReport {
    /// `relay` or `applier`.
    pub(crate) role: String,
    pub(crate) flow: String,
    pub(crate) state: String,
    pub(crate) ready: bool,
    /// Why it is not ready, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) reason: Option<String>,
    /// How long that has lasted; of an applier: how long nothing of what is under way has moved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) waiting_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) halt: Option<HaltReport>,
    pub(crate) incarnation: u64,
    pub(crate) stream_sequence: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) lsn_received: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) lsn_published: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) lsn_confirmed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) lsn_applied: Option<String>,
    /// Of an applier: what is held.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) quarantine: Option<HeldFacts>,
    /// What only grows since the process began; names as in the metrics.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Whatever else the daemon knows about itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(crate) details: BTreeMap<String, String>,
}

/// A halt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HaltReport {
    pub(crate) code: String,
    pub(crate) exit_code: u8,
    pub(crate) reason: String,
    pub(crate) hint: String,
}

impl From<&Halt> for HaltReport {
    fn from(halt: &Halt) -> Self {
        Self {
            code: halt.code.as_str().to_owned(),
            exit_code: halt.code.exit_code(),
            reason: halt.reason.clone(),
            hint: halt.hint.clone(),
        }
    }
}

/// What the relay reads for a copy; nothing while there is none.
fn reading_details(copy: &CopyReading) -> Vec<(&'static str, u64)> {
    if copy.tables == 0 {
        return Vec::new();
    }
    let age = copy
        .snapshot_since
        .map_or(0, |since| since.elapsed().as_secs());
    vec![
        ("copy_tables", copy.tables as u64),
        ("copy_tables_over", copy.tables_over as u64),
        ("copy_rows", copy.rows),
        ("copy_bytes", copy.bytes),
        ("copy_estimated_bytes", copy.estimated_bytes),
        ("copy_bytes_per_second", copy.bytes_per_second),
        ("copy_snapshot_age_seconds", age),
    ]
}

impl DaemonReport {
    pub(crate) fn of_relay(flow: &FlowName, relay: &StatusSnapshot) -> Self {
        let state = match relay.state {
            RelayState::Starting => "starting",
            RelayState::Waiting => "waiting",
            RelayState::Standby => "standby",
            RelayState::Resuming => "resuming",
            RelayState::Streaming => "streaming",
            RelayState::Halted => "halted",
            RelayState::Stopped => "stopped",
        };
        let counters = [
            ("frames", relay.frames),
            ("frame_bytes", relay.frame_bytes),
            ("transactions", relay.transactions),
            ("publish_doubts", relay.doubts),
            ("incarnations", relay.restarts),
        ];
        let details = [
            ("window_bytes", relay.window_bytes),
            ("open_bytes", relay.open_bytes),
            ("open_transactions", relay.open_transactions),
        ];
        // The copy waits beside the stream; it is named where the stream has nothing to say.
        let reason = match (&relay.waiting_for, &relay.copy.waiting_for) {
            (stream, copy) if stream.is_empty() && !copy.is_empty() => {
                Some(format!("the copy waits: {copy}"))
            }
            (stream, _) => text(stream),
        };
        Self {
            role: "relay".to_owned(),
            flow: flow.to_string(),
            state: state.to_owned(),
            // A standby does its job by waiting.
            ready: matches!(relay.state, RelayState::Streaming | RelayState::Standby),
            reason,
            waiting_seconds: relay
                .waiting_since
                .map(|since| since.elapsed().as_secs_f64()),
            last_error: text(&relay.last_error),
            halt: relay.halt.as_ref().map(HaltReport::from),
            incarnation: relay.incarnation.0,
            stream_sequence: relay.last_sequence.0,
            lsn_received: position(relay.lsn_received),
            lsn_published: position(relay.lsn_published),
            lsn_confirmed: position(relay.lsn_confirmed),
            lsn_applied: position(relay.lsn_applied),
            quarantine: None,
            counters: counters
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            details: details
                .into_iter()
                .chain(reading_details(&relay.copy))
                .map(|(name, value)| (name.to_owned(), value.to_string()))
                .collect(),
        }
    }

    pub(crate) fn of_applier(flow: &FlowName, applier: &ApplierSnapshot) -> Self {
        let still = applier
            .pending
            .as_ref()
            .filter(|pending| pending.still >= WORTH_SAYING);
        let (state, reason, halt) = match &applier.state {
            ApplierState::Starting => ("starting", None, None),
            ApplierState::Standby { holder } => (
                "standby",
                Some(format!("the lane is held by {holder}")),
                None,
            ),
            ApplierState::Running => ("running", still.map(|pending| pending.what.clone()), None),
            ApplierState::Copying { reason } => ("copying", Some(reason.clone()), None),
            ApplierState::Converging { tables, at } => (
                "converging",
                Some(format!(
                    "{tables} copied table(s) are ahead of the others until {at} is applied"
                )),
                None,
            ),
            ApplierState::Paused {
                reason,
                operator,
                since,
            } => (
                "paused",
                Some(format!("since {since} by {operator}: {reason}")),
                None,
            ),
            ApplierState::Retrying { reason } => ("retrying", Some(reason.clone()), None),
            ApplierState::Halted { halt, probing } => {
                let then = if *probing {
                    "it is tried again by itself"
                } else {
                    "it waits for you"
                };
                (
                    "halted",
                    Some(then.to_owned()),
                    Some(HaltReport::from(halt)),
                )
            }
            ApplierState::Stopped => ("stopped", None, None),
        };
        let counters = [
            ("transactions", applier.transactions),
            ("changes", applier.changes),
            ("batches", applier.batches),
            ("duplicate_frames", applier.duplicate_frames),
            ("duplicate_transactions", applier.duplicate_transactions),
            ("duplicates_below_watermark", applier.dedup.below_watermark),
            ("retries", applier.retries),
            ("delivery_gaps", applier.delivery_gaps),
            ("applied_vouched", applier.dedup.applied_vouched),
            ("applied_probed", applier.dedup.applied_probed),
            ("probes", applier.dedup.probes),
            ("probe_rows", applier.dedup.rows_read),
            ("cache_hits", applier.dedup.hits),
            ("cache_evictions", applier.dedup.evictions),
        ];
        let mut details = BTreeMap::from([
            ("epoch".to_owned(), applier.epoch.to_string()),
            ("trimmed_to".to_owned(), applier.trimmed_to.to_string()),
        ]);
        if let Some(replica) = applier.replica_role {
            details.insert("replica_role".to_owned(), replica.to_string());
        }
        if let Some(target) = &applier.target {
            details.insert("target".to_owned(), target.clone());
        }
        if let Some(fence) = &applier.fence {
            details.insert("fence".to_owned(), fence.to_string());
        }
        details.extend(applier.copy.iter().flat_map(copy_details));
        details.extend(cache_details(&applier.dedup));
        Self {
            role: "applier".to_owned(),
            flow: flow.to_string(),
            state: state.to_owned(),
            // A standby does its job by waiting, and so does a lane whose copy is still on its way. A
            // pause is somebody's wish, and no fault that a probe should act on; whoever asks is
            // told of it.
            ready: matches!(
                applier.state,
                ApplierState::Running
                    | ApplierState::Copying { .. }
                    | ApplierState::Converging { .. }
                    | ApplierState::Standby { .. }
                    | ApplierState::Paused { .. }
            ),
            reason,
            waiting_seconds: still.map(|pending| pending.still.as_secs_f64()),
            last_error: applier.last_error.clone(),
            halt,
            incarnation: applier.incarnation.0,
            stream_sequence: applier.sequence.0,
            lsn_received: None,
            lsn_published: None,
            lsn_confirmed: None,
            lsn_applied: position(applier.lsn_flushed),
            quarantine: applier.quarantine.as_ref().map(HeldFacts::of_applier),
            counters: counters
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            details,
        }
    }

    /// Bytes between what was received and the later stages.
    pub(crate) fn lag_bytes(&self) -> Vec<(&'static str, u64)> {
        let lsn = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<Lsn>().ok());
        let Some(received) = lsn(&self.lsn_received) else {
            return Vec::new();
        };
        let stages = [
            ("published", lsn(&self.lsn_published)),
            ("confirmed", lsn(&self.lsn_confirmed)),
            ("applied", lsn(&self.lsn_applied)),
        ];
        let known = stages
            .into_iter()
            .filter_map(|(stage, lsn)| Some((stage, lsn?)));
        known
            .map(|(stage, lsn)| (stage, received.bytes_since(lsn)))
            .collect()
    }
}

/// How far the copy is.
fn copy_details(copy: &CopySnapshot) -> Vec<(String, String)> {
    let mut details: Vec<(String, String)> = [
        ("copy_tables", copy.tables),
        ("copy_tables_in", copy.tables_in),
        ("copy_rows", copy.rows),
        ("copy_bytes", copy.bytes),
        ("copy_estimated_rows", copy.estimated_rows),
        ("copy_bytes_per_second", copy.bytes_per_second),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_string()))
    .into();
    if let Some(failed) = copy.failed.first() {
        let text = format!("{}: {}", failed.table, failed.reason);
        details.push(("copy_failed".to_owned(), text));
    }
    if let Some(reason) = &copy.restoring_waits {
        details.push(("copy_restoring_waits".to_owned(), reason.clone()));
    }
    details
}

/// The state of the identity cache.
fn cache_details(dedup: &DedupSnapshot) -> Vec<(String, String)> {
    if dedup.state.is_empty() {
        return Vec::new();
    }
    let seconds = format!("{:.3}", dedup.hydration.as_secs_f64());
    [
        ("cache", dedup.state.to_owned()),
        ("cache_identities", dedup.identities.to_string()),
        ("cache_bytes", dedup.resident_bytes.to_string()),
        ("cache_suppressed_lanes", dedup.suppressed_lanes.to_string()),
        ("cache_hydrations", dedup.hydrations.to_string()),
        ("cache_hydration_seconds", seconds),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn position(lsn: Lsn) -> Option<String> {
    (lsn != Lsn::ZERO).then(|| lsn.to_string())
}

fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
