//! The subtransactions of an open transaction of which rows were received and no rollback.

use std::collections::BTreeMap;

use trellara_envelope::{AbortedRange, Xid};

/// A set of transaction ids that grows at its end and shrinks anywhere, in logarithmic time: a
/// rollback may name a million of them one by one.
#[derive(Debug, Default)]
pub(super) struct Subtransactions {
    /// First and last ids of ranges that neither overlap nor touch.
    ranges: BTreeMap<u32, u32>,
    /// The id inserted last: most changes belong to it.
    latest: Option<Xid>,
}

/// What a range takes in memory: 8 bytes in a tree whose nodes may be half empty.
pub(super) const RANGE_BYTES: usize = 24;

impl Subtransactions {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.ranges.len() * RANGE_BYTES
    }

    pub(super) fn insert(&mut self, xid: Xid) {
        if self.latest == Some(xid) {
            return;
        }
        self.latest = Some(xid);
        let Xid(id) = xid;
        let before = self.range_from(id);
        if before.is_some_and(|(_, last)| id <= last) {
            return;
        }
        // Ranges that end right before it, or begin right behind it, become one with it.
        let first = match before {
            Some((first, last)) if last.checked_add(1) == Some(id) => first,
            _ => id,
        };
        let behind = id.checked_add(1);
        let last = behind.and_then(|behind| self.ranges.remove(&behind));
        self.ranges.insert(first, last.unwrap_or(id));
    }

    pub(super) fn remove(&mut self, xid: Xid) {
        if self.latest == Some(xid) {
            self.latest = None;
        }
        let Xid(id) = xid;
        let Some((first, last)) = self.range_from(id).filter(|(_, last)| id <= *last) else {
            return;
        };
        if first < id {
            self.ranges.insert(first, id - 1);
        } else {
            self.ranges.remove(&first);
        }
        if id < last {
            self.ranges.insert(id + 1, last);
        }
    }

    /// Its ranges, in order.
    pub(super) fn to_ranges(&self) -> Vec<AbortedRange> {
        let ranges = self.ranges.iter();
        let ranges = ranges.map(|(first, last)| AbortedRange {
            first: Xid(*first),
            last: Xid(*last),
        });
        ranges.collect()
    }

    /// The last range that begins at or below `id`.
    fn range_from(&self, id: u32) -> Option<(u32, u32)> {
        let (first, last) = self.ranges.range(..=id).next_back()?;
        Some((*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_set_of_what_was_inserted_and_not_removed(
            steps in proptest::collection::vec((any::<bool>(), 0..24u32), 0..80),
            from in prop_oneof![Just(1), Just(u32::MAX - 23)],
        ) {
            let mut set = Subtransactions::default();
            let mut model = BTreeSet::new();
            for (insert, at) in steps {
                let id = from + at;
                if insert {
                    set.insert(Xid(id));
                    model.insert(id);
                } else {
                    set.remove(Xid(id));
                    model.remove(&id);
                }
                let ranges = set.to_ranges();
                let ids = ranges.iter().flat_map(|range| range.first.0..=range.last.0);
                prop_assert_eq!(ids.collect::<Vec<_>>(), Vec::from_iter(model.iter().copied()));
                let apart = ranges.windows(2).all(|pair| pair[0].last.0 + 1 < pair[1].first.0);
                prop_assert!(apart, "{:?}", ranges);
            }
        }
    }
}
