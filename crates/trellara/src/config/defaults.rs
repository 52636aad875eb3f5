//! Every default as a named constant, with the reason for its value.

use std::time::Duration;

/// How long the relay keeps a source alive that is shutting down and waits for a confirmation
/// that cannot come (C04): longer than a broker restart, far shorter than an operator's patience.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Stream limit for a broker that we did not start: fits small brokers, holds hours of most flows.
pub(crate) const MAX_BYTES_EXTERNAL: u64 = 10 << 30;

/// Stream limit for the embedded broker, unless half of the free disk is less.
pub(crate) const MAX_BYTES_EMBEDDED: u64 = 32 << 30;

/// History for replay and rewind: an hour covers the usual "what was that?", the size keeps a
/// small disk small. Whichever is reached first ends it.
pub(crate) const HISTORY_AGE: Duration = Duration::from_secs(3600);
/// See [`HISTORY_AGE`].
pub(crate) const HISTORY_BYTES: u64 = 1 << 30;

/// One replica: what a single broker can hold. A cluster wants three.
pub(crate) const REPLICAS: usize = 1;

/// Loopback: metrics and status name tables and positions, which not everybody should read.
pub(crate) const LISTEN_RELAY: &str = "127.0.0.1:9464";
/// The applier's endpoint, so that both daemons fit on one machine.
pub(crate) const LISTEN_APPLIER: &str = "127.0.0.1:9465";

/// What one target transaction may carry: large enough that a commit's fsync is spread over
/// thousands of rows, small enough to keep the applier within its memory bar.
pub(crate) const BATCH_BYTES: u64 = 1 << 20;

/// The identities of about 29 million transactions, which is hours at full speed and months of most
/// flows.
pub(crate) const DEDUP_MEMORY: u64 = 512 << 20;
/// Below it the cache could not hold one block of each generation.
pub(crate) const DEDUP_MEMORY_LEAST: u64 = 1 << 20;
/// Identities outlive what the stream can deliver again by as much once more, and by an hour where
/// the history is shorter: a relay that begins anew sends what its slot still has.
pub(crate) const DEDUP_WINDOW_LEAST: Duration = Duration::from_secs(3600);

/// Two sessions at each end: enough to keep one of them busy while another waits, and not a load
/// that a busy source would notice.
pub(crate) const BACKFILL_WORKERS: usize = 2;
/// Above it sessions wait for each other, and for the disks.
pub(crate) const BACKFILL_WORKERS_MOST: usize = 32;
/// Rows on their way: they are deleted as soon as they are in, so this is no measure of what can be
/// copied, only of how far the source's end may run ahead of the target's.
pub(crate) const BACKFILL_BYTES: u64 = 256 << 20;
/// Below it hardly a row of some size would fit.
pub(crate) const BACKFILL_BYTES_LEAST: u64 = 4 << 20;

/// Less could not hold one batch, and a limit that the first transaction reaches is no limit but
/// `policy: halt`.
pub(crate) const QUARANTINE_BYTES_LEAST: u64 = 1 << 20;

/// No progress although there is something to do for this long turns readiness red: longer than
/// a broker election or a target restart.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long SIGTERM waits for what is in flight: below the 30 s after which systemd and
/// Kubernetes kill.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
