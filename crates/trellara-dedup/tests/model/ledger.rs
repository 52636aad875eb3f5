//! One lane as the target has it.

use std::collections::HashMap;

use trellara_dedup::{Binding, Identity};

pub(crate) struct Row {
    pub(crate) first: i64,
    pub(crate) identities: Vec<Identity>,
    pub(crate) stamp: i64,
}

impl Row {
    pub(crate) fn last(&self) -> i64 {
        self.first + self.identities.len().max(1) as i64 - 1
    }
}

/// One lane as the target has it. Rows are kept for ever, so that what was pruned is checked too.
pub(crate) struct Ledger {
    pub(crate) rows: Vec<Row>,
    /// Rows before this one are pruned.
    pub(crate) pruned: usize,
    pub(crate) at: HashMap<Identity, Vec<i64>>,
    pub(crate) binding: Binding,
}

impl Ledger {
    pub(crate) fn tail(&self) -> i64 {
        self.rows.last().map_or(0, Row::last)
    }

    pub(crate) fn watermark(&self) -> i64 {
        self.pruned
            .checked_sub(1)
            .map_or(0, |last| self.rows[last].last())
    }

    pub(crate) fn append(&mut self, identities: Vec<Identity>, stamp: i64) -> &Row {
        let first = self.tail() + 1;
        for (at, identity) in identities.iter().enumerate() {
            self.at
                .entry(*identity)
                .or_default()
                .push(first + at as i64);
        }
        self.rows.push(Row {
            first,
            identities,
            stamp,
        });
        self.rows.last().expect("just pushed")
    }

    /// A target restored from a backup: the newest rows never happened.
    pub(crate) fn lose(&mut self, count: usize) {
        for _ in 0..count.min(self.rows.len() - self.pruned) {
            let row = self.rows.pop().expect("counted");
            for identity in &row.identities {
                let ordinals = self.at.get_mut(identity).expect("it was appended");
                ordinals.retain(|ordinal| *ordinal < row.first);
            }
        }
    }

    pub(crate) fn known_window(&self) -> i64 {
        i64::try_from(self.binding.window.as_micros()).expect("small")
    }
}
