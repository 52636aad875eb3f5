//! Which write-ahead log a position belongs to.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Lsn;

/// A PostgreSQL cluster's system identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SystemId(pub u64);

/// A PostgreSQL timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timeline(pub u32);

/// One timeline of one cluster, printed `7412345678901234567.1`.
///
/// The timeline in a transaction's identity is the one its commit record was written on, not the
/// server's present one: a failover to a synchronised slot sends old transactions again (C01).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SourceId {
    /// The cluster.
    pub system: SystemId,
    /// The timeline.
    pub timeline: Timeline,
}

/// The timelines that led to the present one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHistory {
    /// The cluster.
    pub system: SystemId,
    /// The server's present timeline.
    pub timeline: Timeline,
    /// Earlier timelines, oldest first, each with the position at which it was left.
    pub switches: Vec<(Timeline, Lsn)>,
}

impl SourceHistory {
    /// The present source id.
    pub fn source(&self) -> SourceId {
        SourceId {
            system: self.system,
            timeline: self.timeline,
        }
    }

    /// The source id for a record *starting* at `lsn`: a switch position belongs to the new
    /// timeline, as in PostgreSQL's own history files.
    pub fn source_at(&self, lsn: Lsn) -> SourceId {
        let timeline = self
            .switches
            .iter()
            .find(|(_, left_at)| lsn < *left_at)
            .map_or(self.timeline, |(timeline, _)| *timeline);
        SourceId {
            system: self.system,
            timeline,
        }
    }

    /// Whether a position (an end LSN) reached on `source` lies in this history's past: same
    /// cluster, and the timeline was not left before that position.
    pub fn continues(&self, source: SourceId, position: Lsn) -> bool {
        if source.system != self.system {
            return false;
        }
        if source.timeline == self.timeline {
            return true;
        }
        self.switches
            .iter()
            .any(|(timeline, left_at)| *timeline == source.timeline && position <= *left_at)
    }
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.system, self.timeline)
    }
}

impl std::str::FromStr for SourceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || format!("not a source id (system.timeline): {text:?}");
        let (system, timeline) = text.split_once('.').ok_or_else(invalid)?;
        Ok(SourceId {
            system: SystemId(system.parse().map_err(|_| invalid())?),
            timeline: Timeline(timeline.parse().map_err(|_| invalid())?),
        })
    }
}
