//! Which (sub)transactions of one transaction were rolled back.

use crate::{AbortedRange, FrameDigest, Xid};

/// A set of transaction ids, kept as sorted, disjoint and merged ranges.
///
/// The relay builds it from stream aborts, the reader from abort frames; both take the same
/// [`AbortedSet::digest`], whatever the order in which they learned the ids. Ids are ordered as
/// numbers: a transaction that spans the wraparound has ranges at both ends, and membership is
/// all that anyone asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AbortedSet {
    ranges: Vec<AbortedRange>,
}

impl AbortedSet {
    /// The empty set, for transactions that rolled nothing back.
    pub const EMPTY: AbortedSet = AbortedSet { ranges: Vec::new() };

    /// Nothing aborted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one id.
    pub fn insert(&mut self, xid: Xid) {
        self.insert_range(AbortedRange {
            first: xid,
            last: xid,
        });
    }

    /// Adds a range, merging it with what it touches. One whose first id is above its last adds
    /// nothing.
    pub fn insert_range(&mut self, range: AbortedRange) {
        let AbortedRange {
            first: Xid(first),
            last: Xid(last),
        } = range;
        if first > last {
            return;
        }
        // Ranges that overlap the new one or are its neighbours become one with it.
        let from = self
            .ranges
            .partition_point(|known| known.last.0.saturating_add(1) < first);
        let to = self
            .ranges
            .partition_point(|known| known.first.0 <= last.saturating_add(1));
        let touched = self.ranges.get(from..to).unwrap_or_default();
        let merged = AbortedRange {
            first: Xid(touched
                .first()
                .map_or(first, |known| known.first.0.min(first))),
            last: Xid(touched.last().map_or(last, |known| known.last.0.max(last))),
        };
        self.ranges.splice(from..to.max(from), [merged]);
    }

    /// The set of many ranges in any order: sorted once, where inserting each would move all that
    /// lie behind it.
    pub fn from_ranges(mut ranges: Vec<AbortedRange>) -> Self {
        ranges.retain(|range| range.first <= range.last);
        ranges.sort_unstable_by_key(|range| range.first);
        ranges.dedup_by(|next, before| {
            let touches = next.first.0 <= before.last.0.saturating_add(1);
            if touches {
                before.last = before.last.max(next.last);
            }
            touches
        });
        ranges.shrink_to_fit();
        Self { ranges }
    }

    /// Whether `xid` was rolled back.
    pub fn contains(&self, xid: Xid) -> bool {
        let at = self.ranges.partition_point(|range| range.last < xid);
        self.ranges.get(at).is_some_and(|range| range.first <= xid)
    }

    /// The ranges, sorted, disjoint and merged.
    pub fn ranges(&self) -> &[AbortedRange] {
        &self.ranges
    }

    /// Whether nothing was rolled back.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The digest that the manifest carries: over the ranges in order, each as its first and last
    /// id in four big-endian bytes. That of the empty set is the digest of no bytes.
    pub fn digest(&self) -> FrameDigest {
        let mut bytes = Vec::with_capacity(self.ranges.len() * 8);
        for range in &self.ranges {
            bytes.extend_from_slice(&range.first.0.to_be_bytes());
            bytes.extend_from_slice(&range.last.0.to_be_bytes());
        }
        FrameDigest::of(&bytes)
    }
}

impl Extend<AbortedRange> for AbortedSet {
    fn extend<I: IntoIterator<Item = AbortedRange>>(&mut self, ranges: I) {
        let mut all = std::mem::take(&mut self.ranges);
        all.extend(ranges);
        *self = Self::from_ranges(all);
    }
}

impl FromIterator<AbortedRange> for AbortedSet {
    fn from_iter<I: IntoIterator<Item = AbortedRange>>(ranges: I) -> Self {
        Self::from_ranges(ranges.into_iter().collect())
    }
}
