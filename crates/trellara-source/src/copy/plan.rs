//! How a table is cut into pieces that several sessions read at once. Pure.

use super::TableFacts;

/// Rows by the block that they lie in; a gap between pages, or a page without rows, changes
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub first: u32,
    /// The first block that is another range's; `None` for the last range, which has no end,
    /// because the table may have grown since its blocks were counted.
    pub end: Option<u32>,
}

impl BlockRange {
    /// All of a table.
    pub const WHOLE: BlockRange = BlockRange {
        first: 0,
        end: None,
    };

    /// What a row has to fulfil to be in it; `None` when all of them are.
    pub fn condition(self) -> Option<String> {
        let from =
            (self.first > 0).then(|| format!("ctid >= '({},0)'::pg_catalog.tid", self.first));
        let to = self
            .end
            .map(|end| format!("ctid < '({end},0)'::pg_catalog.tid"));
        let both: Vec<String> = from.into_iter().chain(to).collect();
        (!both.is_empty()).then(|| both.join(" AND "))
    }
}

/// Ranges of about `item_blocks` each that hold every row once. The last may be half as long
/// again, so that nobody reads a range of a few blocks at the end.
pub fn ranges(blocks: u32, item_blocks: u32) -> Vec<BlockRange> {
    let step = item_blocks.max(1);
    let count = (blocks / step).max(1);
    (0..count)
        .map(|at| BlockRange {
            first: at * step,
            end: (at + 1 < count).then(|| (at + 1) * step),
        })
        .collect()
}

/// A piece of one table's copy: one transaction of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Which of [`TableFacts::leaves`].
    pub leaf: usize,
    /// Which part of it.
    pub range: BlockRange,
}

impl TableFacts {
    /// The whole table in pieces of about `item_bytes`.
    pub fn items(&self, item_bytes: u64) -> Vec<Item> {
        let mut items = Vec::new();
        for (leaf, facts) in self.leaves.iter().enumerate() {
            let blocks = u32::try_from(item_bytes / u64::from(facts.block_bytes.max(1)));
            let ranges = match facts.has_ranges {
                true => ranges(facts.blocks, blocks.unwrap_or(u32::MAX)),
                false => vec![BlockRange::WHOLE],
            };
            items.extend(ranges.into_iter().map(|range| Item { leaf, range }));
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every block, also one behind those counted, is in exactly one range.
        #[test]
        fn ranges_are_disjoint_and_leave_nothing_out(
            blocks in 0u32..200_000, step in 0u32..20_000, more in 0u32..1_000,
        ) {
            let ranges = ranges(blocks, step);
            prop_assert_eq!(ranges[0].first, 0);
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].end, Some(pair[1].first));
                prop_assert!(pair[0].first < pair[1].first);
            }
            let last = ranges[ranges.len() - 1];
            prop_assert_eq!(last.end, None);
            let step = step.max(1);
            prop_assert!(ranges.len() == 1 || blocks - last.first >= step);
            prop_assert!(blocks.saturating_sub(last.first) < 2 * step);
            let at = blocks + more;
            let holding = ranges.iter().filter(|range| {
                range.first <= at && range.end.is_none_or(|end| at < end)
            });
            prop_assert_eq!(holding.count(), 1);
        }
    }

    #[test]
    fn a_range_says_what_its_rows_fulfil() {
        let all: Vec<_> = ranges(25, 10)
            .into_iter()
            .map(BlockRange::condition)
            .collect();
        assert_eq!(
            all,
            [
                Some("ctid < '(10,0)'::pg_catalog.tid".to_owned()),
                Some("ctid >= '(10,0)'::pg_catalog.tid".to_owned()),
            ]
        );
        assert_eq!(BlockRange::WHOLE.condition(), None);
    }
}
