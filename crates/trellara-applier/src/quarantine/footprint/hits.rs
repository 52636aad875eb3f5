//! Whether a transaction touches what held ones touch.

use std::collections::BTreeSet;

use super::reach::{Image, Projection, Reach, RowChange, Texts, digest_of};
use super::{Footprints, KeySet, Standing, TableFootprint, chain};
use crate::plan::Change;
use crate::quarantine::HeldId;
use crate::target::{TableName, TargetTable};

/// The held transactions that one touches, each kind in commit order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hits {
    /// It waits behind these, and with them behind whatever they wait behind.
    pub open: Vec<HeldId>,
    /// It overtakes these.
    pub discarded: Vec<HeldId>,
}

/// Compares the changes of one transaction with all footprints. Pure.
#[derive(Debug)]
pub(super) struct Comparing<'f> {
    footprints: &'f Footprints,
    role_replica: bool,
    hit: BTreeSet<u32>,
    /// A change was looked at.
    begun: bool,
    /// Everything held was hit.
    all: bool,
}

impl<'f> Comparing<'f> {
    pub(super) fn new(footprints: &'f Footprints, role_replica: bool) -> Self {
        Self {
            footprints,
            role_replica,
            hit: BTreeSet::new(),
            begun: false,
            all: false,
        }
    }

    pub(super) fn finish(self) -> Hits {
        let mut hits = Hits::default();
        let mut open = Vec::new();
        for at in self.hit {
            let slot = &self.footprints.slots[at as usize];
            match slot.standing {
                Some(Standing::Open) => open.push(at),
                Some(Standing::Discarded) => hits.discarded.push(slot.id),
                None => {}
            }
        }
        let nearest = self.footprints.nearest(&open);
        let ids = nearest.iter();
        hits.open = ids
            .map(|slot| self.footprints.slots[*slot as usize].id)
            .collect();
        hits.open.sort_unstable();
        hits.discarded.sort_unstable();
        hits
    }

    /// Emptying a table touches all of it; and anything, where something fires on it.
    pub(super) fn truncate(&mut self, root: &TableName, table: &TargetTable) {
        if self.reaches_all(table.fires(self.role_replica)) {
            return;
        }
        if let Some(table) = self.footprints.tables.get(root) {
            self.all(table);
        }
    }

    pub(super) fn change(&mut self, reach: &Reach, change: &Change<'_>) {
        if self.reaches_all(reach.fires(self.role_replica)) {
            return;
        }
        let Some(table) = self.footprints.tables.get(&reach.root) else {
            return;
        };
        if reach.key.is_none() || reach.opaque {
            return self.all(table);
        }
        self.hit.extend(&table.whole);
        let row = reach.row(change);
        if !table.released.is_empty() && takes_away(reach, &row) {
            self.hit.extend(&table.released);
        }
        for set in &table.sets {
            let own = reach.projection(&set.columns);
            if set.row {
                self.row(set, &row, &own);
            } else {
                let pointed_to = reach
                    .referenced_by
                    .iter()
                    .any(|tie| tie.own_columns == set.columns);
                self.value(set, &row, &own, pointed_to);
            }
        }
    }

    /// What fires may touch whatever is held; and of those that hold everything, every change is
    /// behind. Says whether nothing is left to compare.
    fn reaches_all(&mut self, fires: bool) -> bool {
        if fires && !self.all {
            self.all = true;
            self.hit.extend(0..self.footprints.slots.len() as u32);
        }
        if !self.begun {
            self.begun = true;
            self.hit.extend(&self.footprints.everything);
        }
        self.all
    }

    fn row(&mut self, set: &'f KeySet, row: &RowChange<'_, '_>, own: &Projection) {
        for image in [row.before(own), row.after(own)] {
            match image {
                Image::Absent => {}
                Image::Unknown => self.hit.extend(&set.slots),
                Image::Known(texts) => self.look_up(set, &texts),
            }
        }
    }

    /// What is taken must be known. What is let go matters only to who points to it: of unique
    /// values the row itself is held.
    fn value(
        &mut self,
        set: &'f KeySet,
        row: &RowChange<'_, '_>,
        own: &Projection,
        pointed_to: bool,
    ) {
        if row.keeps(own) {
            return;
        }
        match row.after(own) {
            Image::Absent => {}
            Image::Unknown => self.hit.extend(&set.slots),
            Image::Known(texts) => self.look_up(set, &texts),
        }
        match row.before(own) {
            Image::Unknown if pointed_to => self.hit.extend(&set.slots),
            Image::Absent | Image::Unknown => {}
            Image::Known(texts) => self.look_up(set, &texts),
        }
    }

    fn look_up(&mut self, set: &'f KeySet, texts: &Texts<'_>) {
        if let Some(newest) = set.keys.get(&digest_of(texts)) {
            self.hit.extend(chain(&self.footprints.links, *newest));
        }
    }

    fn all(&mut self, table: &'f TableFootprint) {
        self.hit.extend(&table.whole);
        self.hit.extend(&table.released);
        for set in &table.sets {
            self.hit.extend(&set.slots);
        }
    }
}

/// Whether the change can take away a row, or values of it, that others point to.
fn takes_away(reach: &Reach, row: &RowChange<'_, '_>) -> bool {
    let ties = &reach.referenced_by;
    !row.inserts() && ties.iter().any(|tie| !row.keeps(&tie.own))
}
