//! Which write-ahead log a position belongs to.

use std::fmt;
use std::str::FromStr;

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

    /// Whether both histories are one and the same up to `position` (an end LSN), so that
    /// positions up to it can be compared (C01).
    ///
    /// Stricter than [`SourceHistory::continues`] where both histories are known whole: two
    /// standbys that were promoted independently give their new timelines the same number.
    pub fn shares_past(&self, other: &SourceHistory, position: Lsn) -> bool {
        self.system == other.system && self.past(position).eq(other.past(position))
    }

    /// The timelines on which everything below `position` was written, each but the last with the
    /// position at which it was left.
    fn past(&self, position: Lsn) -> impl Iterator<Item = (Timeline, Option<Lsn>)> {
        let left = self
            .switches
            .iter()
            .take_while(move |(_, left_at)| *left_at < position);
        let reached = self
            .switches
            .iter()
            .find(move |(_, left_at)| *left_at >= position)
            .map_or(self.timeline, |(timeline, _)| *timeline);
        left.map(|(timeline, left_at)| (*timeline, Some(*left_at)))
            .chain([(reached, None)])
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

/// The text was not a source id of the form `7412345678901234567.1`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a source id (expected system.timeline): {0:?}")]
pub struct ParseSourceIdError(String);

impl FromStr for SourceId {
    type Err = ParseSourceIdError;

    /// Reads exactly what is printed: an identity has one text, so a sign or a leading zero makes
    /// it another one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = |text: &str| {
            let (system, timeline) = text.split_once('.')?;
            Some(SourceId {
                system: SystemId(system.parse().ok()?),
                timeline: Timeline(timeline.parse().ok()?),
            })
        };
        read(text)
            .filter(|source| source.to_string() == text)
            .ok_or_else(|| ParseSourceIdError(text.chars().take(40).collect()))
    }
}
