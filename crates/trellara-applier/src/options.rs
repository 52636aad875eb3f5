//! What an applier is told: plain values, already checked by the program.

use std::time::Duration;

use trellara_envelope::{FlowName, Lane};
use trellara_postgres::ConnectOptions;

use crate::quarantine::{ConflictRules, QuarantineOptions};

/// How an applier works. [`ApplierOptions::new`] gives every default.
#[derive(Debug, Clone)]
pub struct ApplierOptions {
    /// The flow to apply.
    pub flow: FlowName,
    /// The lane; 0 in strict mode.
    pub lane: Lane,
    /// The target database.
    pub target: ConnectOptions,
    /// Transactions fetched together are applied in one target transaction up to this many bytes
    /// of records. A single larger transaction is never cut.
    pub batch_bytes: usize,
    /// And up to this many transactions.
    pub batch_transactions: usize,
    /// Applied frames stay in the stream for replay and rewind until they are older than this …
    pub history_age: Duration,
    /// … or until the stream holds more than this many bytes, whichever comes first.
    pub history_bytes: u64,
    /// Bytes that the identity cache of all lanes may take; 0 keeps none and probes always.
    pub dedup_memory: u64,
    /// How long identities stay in the ledger, by the target's clock; never shorter than the stream
    /// may deliver their transactions again.
    pub dedup_window: Duration,
    /// Parts of a copy that are taken in at once, each in a session of its own.
    pub backfill_workers: usize,
    /// Whether a table's secondary indexes, unique constraints and foreign keys are dropped while it is
    /// copied and made again then, where the role may.
    pub backfill_defer: bool,
    /// What happens to a transaction that the target refuses for cause.
    pub quarantine: QuarantineOptions,
    /// What happens to a change that does not find the target as it should be.
    pub conflicts: ConflictRules,
    /// The name of this machine, for the audit.
    pub host: String,
    /// For tests: neither holds the lane's lock nor raises its epoch, so that two appliers write in
    /// turn.
    #[doc(hidden)]
    pub interleaved: bool,
    /// Whether to run under `session_replication_role = replica`, so that the target's ordinary
    /// triggers and foreign keys do not fire again for what the source already decided.
    pub role_replica: RoleReplica,
    /// What to do while another applier holds the lane.
    pub standby: Standby,
    /// What a halt does to the process.
    pub halt: HaltPolicy,
    /// Progress without transactions is written down at most this often while idle.
    pub idle_checkpoint: Duration,
    /// How often the durable position is reported when nothing happens.
    pub report_interval: Duration,
    /// How long a batch in flight may take after a shutdown was asked for.
    pub shutdown_timeout: Duration,
    /// With messages waiting in the stream and none delivered for this long the consumer is
    /// built anew. A large transaction whose next chunk does not come for this long is rolled back
    /// and begun again. A target session silent for about this long is looked at.
    pub stall_timeout: Duration,
}

/// Whether apply sessions run under the replica role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleReplica {
    /// Where the role may; `status` says when it may not.
    Auto,
    /// Always; a role that may not halts with RIGHTS.
    Require,
    /// Never: triggers and foreign keys of the target fire.
    Off,
}

/// What to do while another applier holds the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standby {
    /// Wait for ever, until the holder leaves.
    Wait,
    /// The same, and end the holder's sessions once it has fallen silent.
    TakeOver,
    /// Give up after this long with [`trellara_envelope::HaltCode::Fenced`].
    GiveUpAfter(Duration),
}

/// What a halt does to the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HaltPolicy {
    /// `run` stays alive with a red status; what may be cured outside is tried again with
    /// back-off, the rest waits for an operator.
    Stay,
    /// `run` returns the halt.
    Exit,
}

impl ApplierOptions {
    /// Default of [`ApplierOptions::batch_bytes`]: set-based statements gain little beyond it, and
    /// a failed batch is tried again one by one.
    pub const BATCH_BYTES: usize = 1 << 20;
    /// Default of [`ApplierOptions::batch_transactions`].
    pub const BATCH_TRANSACTIONS: usize = 4096;

    /// Default of [`ApplierOptions::dedup_memory`]: the identities of about 29 million transactions.
    pub const DEDUP_MEMORY: u64 = 512 << 20;

    /// Default of [`ApplierOptions::backfill_workers`].
    pub const BACKFILL_WORKERS: usize = 2;

    /// Every default for one flow and target.
    pub fn new(flow: FlowName, target: ConnectOptions) -> Self {
        Self {
            flow,
            lane: Lane(0),
            target,
            batch_bytes: Self::BATCH_BYTES,
            batch_transactions: Self::BATCH_TRANSACTIONS,
            history_age: Duration::from_secs(3600),
            history_bytes: 1 << 30,
            dedup_memory: Self::DEDUP_MEMORY,
            dedup_window: Duration::from_secs(7200),
            backfill_workers: Self::BACKFILL_WORKERS,
            backfill_defer: false,
            quarantine: QuarantineOptions::default(),
            conflicts: ConflictRules::default(),
            host: String::new(),
            interleaved: false,
            role_replica: RoleReplica::Auto,
            standby: Standby::Wait,
            halt: HaltPolicy::Stay,
            idle_checkpoint: Duration::from_secs(10),
            report_interval: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
        }
    }
}
