//! The stream of a flow: its settings, and what is wrong with an existing one.

use std::collections::BTreeMap;
use std::time::Duration;

use trellara_envelope::{FlowName, StreamSequence};

use crate::{Broker, BrokerError, BrokerErrorKind};

/// Metadata key that names the one target allowed to acknowledge and trim (rule C24).
pub const TARGET_KEY: &str = "trellara.target";

/// The stream a flow needs.
#[derive(Debug, Clone)]
pub struct StreamSpec {
    /// The flow; gives stream and subjects their names.
    pub flow: FlowName,
    /// Limit in bytes; a full stream refuses, it never drops.
    pub max_bytes: u64,
    /// Copies in a cluster: 1, 3 or 5.
    pub replicas: usize,
    /// How long message ids are remembered.
    pub duplicate_window: Duration,
    /// Largest message, headers included, in bytes; `None` leaves it to the server's limit.
    pub max_message_bytes: Option<u32>,
    /// Id of the registered target, kept in the stream's metadata.
    pub target: Option<String>,
}

/// One setting of an existing stream that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// NATS' name of the setting.
    pub setting: &'static str,
    /// What it is.
    pub is: String,
    /// What it must be.
    pub must: String,
    /// What would happen otherwise.
    pub why: &'static str,
    /// How to change it, or that it cannot be changed.
    pub hint: String,
    /// True when data can be lost or nothing can work; false when it is only another taste.
    pub fatal: bool,
}

/// What the stream is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Name.
    pub name: String,
    /// Creation time as the server prints it; a hint, not a proof: a restore keeps it.
    pub created: String,
    /// Sequence of the first message; last + 1 when empty.
    pub first_sequence: StreamSequence,
    /// Sequence of the last message ever stored; 0 when there was none.
    pub last_sequence: StreamSequence,
    /// Messages stored.
    pub messages: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// Limit; `None` means unlimited.
    pub max_bytes: Option<u64>,
    /// Copies.
    pub replicas: usize,
    /// Subjects.
    pub subjects: Vec<String>,
    /// Metadata.
    pub metadata: BTreeMap<String, String>,
    /// Name of the leader in a cluster.
    pub leader: Option<String>,
}

impl StreamFacts {
    /// The registered target.
    pub fn target(&self) -> Option<&str> {
        self.metadata.get(TARGET_KEY).map(String::as_str)
    }
}

fn not_yet<T>() -> Result<T, BrokerError> {
    Err(BrokerError::new(
        BrokerErrorKind::Passing,
        "topology",
        "not yet",
    ))
}

/// Facts of a stream; `Missing` when there is none.
#[allow(clippy::unused_async)]
pub async fn facts(_broker: &Broker, _stream: &str) -> Result<StreamFacts, BrokerError> {
    not_yet()
}
/// Creates the stream; refused when one of this name exists with other settings.
#[allow(clippy::unused_async)]
pub async fn create(_broker: &Broker, _spec: &StreamSpec) -> Result<StreamFacts, BrokerError> {
    not_yet()
}
/// Compares an existing stream with what it must be; `None` when there is none.
#[allow(clippy::unused_async)]
pub async fn check(
    _broker: &Broker,
    _spec: &StreamSpec,
) -> Result<Option<(StreamFacts, Vec<Difference>)>, BrokerError> {
    not_yet()
}
/// Changes the size limit while everything runs.
#[allow(clippy::unused_async)]
pub async fn update_max_bytes(
    _broker: &Broker,
    _stream: &str,
    _max_bytes: u64,
) -> Result<StreamFacts, BrokerError> {
    not_yet()
}
/// Writes the registered target into the metadata.
#[allow(clippy::unused_async)]
pub async fn register_target(
    _broker: &Broker,
    _stream: &str,
    _target: &str,
) -> Result<StreamFacts, BrokerError> {
    not_yet()
}
/// Deletes the stream; true when there was one.
#[allow(clippy::unused_async)]
pub async fn delete(_broker: &Broker, _stream: &str) -> Result<bool, BrokerError> {
    not_yet()
}
