//! Which (sub)transactions were rolled back, as a set.

use std::collections::BTreeSet;

use proptest::prelude::*;
use trellara_envelope::{AbortedRange, AbortedSet, FrameDigest, Xid};

fn range(first: u32, last: u32) -> AbortedRange {
    AbortedRange {
        first: Xid(first),
        last: Xid(last),
    }
}

#[test]
fn aborted_ids_merge_into_ranges() {
    let mut set = AbortedSet::new();
    assert_eq!(set.digest(), FrameDigest::of(b""));
    for xid in [5, 9, 7, 6, 5] {
        set.insert(Xid(xid));
    }
    assert_eq!(set.ranges(), [range(5, 7), range(9, 9)]);
    assert_eq!(
        set.digest(),
        FrameDigest::of(&[0, 0, 0, 5, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 9])
    );
    set.insert_range(range(8, 20));
    assert_eq!(set.ranges(), [range(5, 20)]);
    set.insert_range(range(3, 2));
    assert_eq!(set.ranges(), [range(5, 20)], "an empty range adds nothing");
    set.insert_range(range(u32::MAX, u32::MAX));
    set.insert_range(range(0, 0));
    assert_eq!(
        set.ranges(),
        [range(0, 0), range(5, 20), range(u32::MAX, u32::MAX)]
    );
    assert!(set.contains(Xid(0)) && set.contains(Xid(u32::MAX)) && !set.contains(Xid(21)));
    set.insert_range(range(0, u32::MAX));
    assert_eq!(set.ranges(), [range(0, u32::MAX)]);
    assert!(AbortedSet::EMPTY.is_empty() && !AbortedSet::EMPTY.contains(Xid(0)));
}

/// A transaction that rolled back every second of its two million subtransactions, read backwards:
/// inserted one by one they would move half a million ranges each.
#[test]
fn a_million_ranges_in_falling_order_are_sorted_once() {
    let falling = (0..1_000_000u32).rev().map(|n| range(2 * n, 2 * n));
    let set = AbortedSet::from_ranges(falling.collect());
    assert_eq!(set.ranges().len(), 1_000_000);
    assert!(set.contains(Xid(4)) && !set.contains(Xid(5)));
    let all = AbortedSet::from_ranges(vec![range(7, 6), range(5, 9), range(0, u32::MAX)]);
    assert_eq!(all.ranges(), [range(0, u32::MAX)]);
}

proptest! {
    /// The order in which ids are learned changes neither the ranges nor the digest, and exactly
    /// the ids put in are in.
    #[test]
    fn aborted_sets_are_sets(ranges in prop::collection::vec((0u32..300, 0u32..20), 0..30)) {
        let mut plain = BTreeSet::new();
        let ranges: Vec<_> = ranges.into_iter().map(|(first, more)| range(first, first + more)).collect();
        for one in &ranges {
            plain.extend(one.first.0..=one.last.0);
        }
        let set: AbortedSet = ranges.iter().copied().collect();
        let mut by_id = AbortedSet::new();
        plain.iter().rev().for_each(|xid| by_id.insert(Xid(*xid)));
        prop_assert_eq!(&by_id, &set);
        prop_assert_eq!(by_id.digest(), set.digest());
        for xid in 0..330 {
            prop_assert_eq!(set.contains(Xid(xid)), plain.contains(&xid));
        }
        for pair in set.ranges().windows(2) {
            prop_assert!(pair[0].last.0 + 1 < pair[1].first.0, "disjoint and merged");
        }
    }
}
