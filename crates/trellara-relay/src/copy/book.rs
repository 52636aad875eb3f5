//! What this process has begun, and how far each table of a run is. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use trellara_envelope::{CopyEvent, CopyOrder, CopyTable, CopyWanted};
use trellara_source::copy::TableFacts;

/// Generations begun by this process. What it has begun it does not begin again: the target has it,
/// or is told that it failed and orders the next generation.
#[derive(Debug, Default)]
pub(super) struct Book {
    begun: BTreeMap<CopyTable, u32>,
}

impl Book {
    /// What of an order is new.
    pub(super) fn to_begin(&self, order: &CopyOrder) -> Vec<CopyWanted> {
        let begun = |wanted: &&CopyWanted| {
            let known = self.begun.get(&wanted.table);
            known.is_none_or(|generation| *generation < wanted.generation)
        };
        order.wanted.iter().filter(begun).cloned().collect()
    }

    /// What of an order was begun and, so the target says, is not in.
    pub(super) fn not_in(&self, order: &CopyOrder) -> Vec<CopyWanted> {
        let begun = order.wanted.iter().filter(|wanted| self.has(wanted));
        begun.cloned().collect()
    }

    /// What of an order is of an earlier generation than the one that was begun.
    pub(super) fn went_back<'o>(&self, order: &'o CopyOrder) -> Option<&'o CopyWanted> {
        let earlier = |wanted: &&CopyWanted| {
            let known = self.begun.get(&wanted.table);
            known.is_some_and(|generation| *generation > wanted.generation)
        };
        order.wanted.iter().find(earlier)
    }

    /// Everything that was begun.
    pub(super) fn all(&self) -> Vec<CopyWanted> {
        let all = self.begun.iter().map(|(table, generation)| CopyWanted {
            table: table.clone(),
            generation: *generation,
        });
        all.collect()
    }

    /// Whether this was begun, and nothing that replaces it.
    pub(super) fn has(&self, wanted: &CopyWanted) -> bool {
        self.begun.get(&wanted.table) == Some(&wanted.generation)
    }

    pub(super) fn begin(&mut self, wanted: &CopyWanted) {
        self.begun.insert(wanted.table.clone(), wanted.generation);
    }

    /// Nothing was said of it: it may begin at the same generation.
    pub(super) fn forget(&mut self, wanted: &CopyWanted) {
        self.begun.remove(&wanted.table);
    }

    /// Another writer has voided everything.
    pub(super) fn clear(&mut self) {
        self.begun.clear();
    }
}

/// How far a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing was said of it yet.
    Ahead,
    /// It was begun.
    Begun,
    /// It was ended, has failed, or is not wanted any more.
    Over,
}

/// One table of a run.
#[derive(Debug)]
pub(super) struct TableRun {
    pub(super) wanted: CopyWanted,
    pub(super) facts: Arc<TableFacts>,
    pub(super) stage: Stage,
    items_left: usize,
    parts: u32,
    rows: u64,
    bytes: u64,
}

impl TableRun {
    pub(super) fn new(wanted: CopyWanted, facts: Arc<TableFacts>, items: usize) -> Self {
        Self {
            wanted,
            facts,
            stage: Stage::Ahead,
            items_left: items,
            parts: 0,
            rows: 0,
            bytes: 0,
        }
    }

    /// The number of the next part.
    pub(super) fn next_part(&mut self, rows: u64, bytes: u64) -> u32 {
        self.rows += rows;
        self.bytes += bytes;
        self.parts += 1;
        self.parts - 1
    }

    /// A piece was read to its end; what ends the table, if that was the last.
    pub(super) fn item_done(&mut self) -> Option<CopyEvent> {
        self.items_left = self.items_left.saturating_sub(1);
        (self.items_left == 0).then_some(CopyEvent::End {
            parts: self.parts,
            rows: self.rows,
            bytes: self.bytes,
        })
    }

    /// Whether an order still asks for this copy.
    pub(super) fn is_wanted(&self, order: &CopyOrder) -> bool {
        order.wanted.contains(&self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use trellara_envelope::LaneEpoch;

    use super::*;

    fn wanted(name: &str, generation: u32) -> CopyWanted {
        CopyWanted {
            table: CopyTable {
                schema: "public".to_owned(),
                name: name.to_owned(),
            },
            generation,
        }
    }

    fn order(wanted: &[CopyWanted]) -> CopyOrder {
        CopyOrder {
            flow: "shop".parse().expect("a name"),
            target: String::new(),
            epoch: LaneEpoch(1),
            holds_lane: true,
            wanted: wanted.to_vec(),
            trimmed_to: 0,
            removed: Vec::new(),
            mac: Vec::new(),
        }
    }

    #[test]
    fn a_generation_is_begun_once_and_never_after_a_higher_one() {
        let mut book = Book::default();
        let all = order(&[wanted("a", 1), wanted("b", 2)]);
        assert_eq!(book.to_begin(&all), all.wanted);
        book.begin(&wanted("b", 2));
        assert_eq!(book.to_begin(&all), [wanted("a", 1)]);
        assert_eq!(book.not_in(&all), [wanted("b", 2)]);
        assert_eq!(book.to_begin(&order(&[wanted("b", 3)])), [wanted("b", 3)]);
        assert_eq!(book.to_begin(&order(&[wanted("b", 1)])), []);
        assert_eq!(book.not_in(&order(&[wanted("b", 1)])), []);
        let back = order(&[wanted("b", 1)]);
        assert_eq!(book.went_back(&back), Some(&wanted("b", 1)));
        assert_eq!(book.went_back(&all), None);
        book.forget(&wanted("b", 2));
        assert_eq!(book.to_begin(&all), all.wanted);
    }

    #[test]
    fn a_table_ends_with_its_last_piece_and_what_all_had() {
        let facts = TableFacts {
            table: wanted("a", 1).table,
            relation: trellara_envelope::Oid(1),
            columns: Vec::new(),
            has_generated: false,
            filter: None,
            leaves: Vec::new(),
            tree: String::new(),
            estimated_rows: 0,
            estimated_bytes: 0,
        };
        let mut table = TableRun::new(wanted("a", 1), Arc::new(facts), 2);
        assert_eq!((table.next_part(3, 30), table.next_part(4, 40)), (0, 1));
        assert_eq!(table.item_done(), None);
        let end = CopyEvent::End {
            parts: 2,
            rows: 7,
            bytes: 70,
        };
        assert_eq!(table.item_done(), Some(end));
    }
}
