//! The resolved configuration: what commands and daemons are told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use trellara_applier::quarantine::{ConflictRules, QuarantineOptions};
use trellara_envelope::FlowName;
use trellara_jetstream::NatsOptions;
use trellara_postgres::ConnectOptions;
use trellara_source::publication::{Partitions, TablePattern};

/// A configuration that can be acted on.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) flow: FlowName,
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) nats: Nats,
    pub(crate) backfill: BackfillConfig,
    pub(crate) process: Process,
}

/// What becomes of the rows that are there before the flow begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackfillConfig {
    /// Whether they are copied; otherwise the operator says that the target was loaded by other
    /// means.
    pub(crate) copy: bool,
    /// Sessions that read the source, and as many that write to the target.
    pub(crate) workers: usize,
    /// What becomes of rows that the target has already.
    pub(crate) existing: Existing,
    /// Whether setup creates the tables that the target lacks.
    pub(crate) create_tables: bool,
    /// Whether indexes and foreign keys of the target are put off until the rows are in.
    pub(crate) defer_indexes: bool,
    /// Limit of the copy's stream, bytes.
    pub(crate) max_bytes: u64,
}

/// `backfill.existing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Setup refuses them.
    Refuse,
    /// They are deleted before the copy.
    Truncate,
    /// They are taken for those of the source, which is not copied.
    Keep,
}

/// How the daemons behave.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub(crate) listen: Listen,
    pub(crate) batch_bytes: u64,
    pub(crate) dedup: Dedup,
    pub(crate) quarantine: QuarantineOptions,
    pub(crate) conflicts: ConflictRules,
    /// Whether to apply under the replica role; `None` where the role may.
    pub(crate) role_replica: Option<bool>,
    pub(crate) stall_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) on_halt: OnHalt,
}

/// The identity cache and its ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dedup {
    /// Budget of the cache, bytes.
    pub(crate) memory: u64,
    /// How long identities stay in the target's ledger.
    pub(crate) window: Duration,
}

/// The source.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) connect: ConnectOptions,
    /// Who runs the relay: the user of the file's own URL, also where an override connects this
    /// command as somebody else.
    pub(crate) role: String,
    pub(crate) tables: Vec<TablePattern>,
    pub(crate) publication: String,
    pub(crate) slot: String,
    pub(crate) acknowledge: AcknowledgeSetting,
    /// For a publication that setup makes.
    pub(crate) partitions: Partitions,
    pub(crate) insert_only: Vec<TablePattern>,
    pub(crate) shutdown_grace: Duration,
}

/// `source.acknowledge` as written; what `auto` means is found out with the broker (C28).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcknowledgeSetting {
    Auto,
    Published,
    Applied,
}

/// The target.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) connect: ConnectOptions,
    /// Who runs the applier, as in [`Source::role`].
    pub(crate) role: String,
}

/// The stream and its broker.
#[derive(Debug, Clone)]
pub(crate) struct Nats {
    pub(crate) broker: BrokerSetting,
    /// `None`: as much as the broker's kind allows.
    pub(crate) max_bytes: Option<u64>,
    /// `None`: half of the stream's limit.
    pub(crate) open_bytes: Option<u64>,
    pub(crate) history: History,
    pub(crate) replicas: usize,
    pub(crate) durable: bool,
    /// `nats.monitor_url`: `host:port` of each server's monitor.
    pub(crate) monitors: Vec<String>,
}

/// Which broker.
#[derive(Debug, Clone)]
pub(crate) enum BrokerSetting {
    /// One that runs somewhere. The client name is filled in by the command.
    External(NatsOptions),
    /// Ours, started by `trellara run`.
    Embedded {
        server: Option<PathBuf>,
        store_dir: PathBuf,
    },
}

/// `nats.history`: whichever is reached first ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct History {
    pub(crate) age: Duration,
    pub(crate) bytes: u64,
}

/// `ops.listen`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    /// The daemon's usual port on loopback.
    Default,
    Address(SocketAddr),
    Off,
}

/// `halt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnHalt {
    Stay,
    Exit,
}
