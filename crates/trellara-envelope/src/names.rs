//! The name of a flow, and every name derived from it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Incarnation, Lane, Xid};

/// The name of a flow: `[a-z][a-z0-9_]{0,22}`.
///
/// Slot, publication, stream and subjects take their names from it, so it must be legal in all
/// of them; the length keeps the stream name under the 32 characters that NATS advises.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FlowName(String);

/// The text cannot name a flow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a flow name (a lower-case letter, then at most 22 of a-z, 0-9 and _): {0:?}")]
pub struct InvalidFlowName(String);

impl FlowName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Default name of the replication slot and of the publication.
    pub fn slot(&self) -> String {
        format!("trellara_{}", self.0)
    }

    /// Name of the JetStream stream.
    pub fn stream(&self) -> String {
        format!("TRELLARA_{}", self.0)
    }

    /// The filter that covers every subject of the stream.
    pub fn all_subjects(&self) -> String {
        format!("trellara.{}.>", self.0)
    }

    /// Name of the JetStream stream that a copy travels in, while there is one.
    pub fn copy_stream(&self) -> String {
        format!("TRELLARA_{}_COPY", self.0)
    }

    /// The one subject of the copy stream. It lies outside of `trellara.<flow>.>`, which the
    /// transaction stream holds: two streams cannot hold one subject.
    pub fn copy_subject(&self) -> String {
        format!("trellara-copy.{}", self.0)
    }

    /// The core subject of copy orders; in no stream, like position reports.
    pub fn copy_order_subject(&self) -> String {
        format!("trellara-copy-order.{}", self.0)
    }

    /// Subject of one lane's bundles and manifests.
    pub fn transactions_subject(&self, lane: Lane) -> String {
        format!("trellara.{}.tx.{lane}", self.0)
    }

    /// Subject of genesis frames and markers. The newest marker is never trimmed, so nothing that
    /// comes often may stand behind it on the same subject.
    pub fn mark_subject(&self) -> String {
        format!("trellara.{}.mark", self.0)
    }

    /// Subject of heartbeats.
    pub fn beat_subject(&self) -> String {
        format!("trellara.{}.beat", self.0)
    }

    /// Subject of transactions that span lanes.
    pub fn barrier_subject(&self) -> String {
        format!("trellara.{}.barrier", self.0)
    }

    /// Subject of the chunks and abort frames of one open transaction.
    pub fn open_subject(&self, incarnation: Incarnation, xid: Xid) -> String {
        format!("trellara.{}.open.{incarnation}.{xid}", self.0)
    }

    /// The filter that covers the chunks of one incarnation.
    pub fn open_filter(&self, incarnation: Incarnation) -> String {
        format!("trellara.{}.open.{incarnation}.>", self.0)
    }

    /// The core subject of position reports; it lies outside the stream's subjects, because a
    /// stored report would take a sequence number from the one writer (rule C27).
    pub fn position_subject(&self) -> String {
        format!("trellara-position.{}", self.0)
    }
}

impl FromStr for FlowName {
    type Err = InvalidFlowName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        FlowName::try_from(text.to_owned())
    }
}

impl TryFrom<String> for FlowName {
    type Error = InvalidFlowName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut bytes = text.bytes();
        let starts_well = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
        let goes_on_well = bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if starts_well && goes_on_well && text.len() <= 23 {
            Ok(FlowName(text))
        } else {
            Err(InvalidFlowName(text.chars().take(40).collect()))
        }
    }
}

impl From<FlowName> for String {
    fn from(name: FlowName) -> Self {
        name.0
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
