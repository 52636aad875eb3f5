//! What a relay is told.

use std::time::Duration;

use trellara_envelope::FlowName;
use trellara_source::SourceOptions;

use crate::CopyOptions;

/// When a position is confirmed to the source (R2). The configuration's `auto` is resolved by
/// the program, which alone can ask the broker's monitor (C28).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// When the broker has stored it.
    Published,
    /// When the registered target has it durably.
    Applied,
}

/// Settings of one relay. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// The flow.
    pub flow: FlowName,
    /// The source.
    pub source: SourceOptions,
    /// When a position is confirmed.
    pub acknowledge: Acknowledge,
    /// Frames published and not yet acknowledged; input waits beyond it.
    pub window_bytes: usize,
    /// A bundle is closed at this size.
    pub bundle_bytes: usize,
    /// A transaction larger than this travels in chunks of this size.
    pub chunk_bytes: usize,
    /// Unfinished chunks of all open transactions together; beyond it the fullest is closed
    /// early (C18).
    pub unfinished_bytes: usize,
    /// Published chunks of transactions still open on the source; beyond it streaming is switched
    /// off (C12). `None`: half of what the stream may hold, and 5 GiB when that has no limit.
    pub open_bytes: Option<u64>,
    /// How long a source that shuts down is left waiting for a confirmation (C04).
    pub shutdown_grace: Duration,
    /// Heartbeats of an idle source are at least this far apart, unless it waits for us as a
    /// synchronous standby (C05).
    pub heartbeat_interval: Duration,
    /// How often the publication's members are compared with the marker's (C06).
    pub membership_interval: Duration,
    /// While another relay has the slot: wait as a standby, and end its session once it has fallen
    /// silent.
    pub standby: bool,
    /// The copy of what tables held before the flow reached them.
    pub copy: CopyOptions,
}

impl RelayOptions {
    /// Options with their defaults.
    pub fn new(flow: FlowName, source: SourceOptions, acknowledge: Acknowledge) -> Self {
        Self {
            flow,
            source,
            acknowledge,
            // Enough for 30 frames of 256 KiB in flight: a 1 ms fsync is then never waited for.
            window_bytes: 8 << 20,
            // From here on an fsync per message costs nearly nothing (jetstream.md A1).
            bundle_bytes: 256 << 10,
            chunk_bytes: 512 << 10,
            unfinished_bytes: 16 << 20,
            open_bytes: None,
            shutdown_grace: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(1),
            membership_interval: Duration::from_secs(30),
            standby: false,
            copy: CopyOptions::default(),
        }
    }
}
