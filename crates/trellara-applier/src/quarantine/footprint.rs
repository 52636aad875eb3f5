//! What held transactions touch, and whether a later one touches the same (C45).
//!
//! A later transaction may be applied before a held one only where both orders end in the same
//! rows, and where nobody sees a state that breaks a unique constraint or a foreign key which the
//! source kept. So a held transaction leaves entries, per table of the target:
//!
//! - `row`: a row that it writes, by the key that finds it, before and after. Whatever touches the
//!   row is behind it.
//! - `value`: values of further unique columns that it takes or lets go, and values of foreign keys,
//!   as entries of *the other side's* table: of a row written, the columns of those that may point
//!   to it; of a row that points, the columns of the one pointed to. What takes the values, or lets
//!   them go, is behind it. Without columns it says that values which nobody knows were let go: what
//!   takes rows of the table away is behind it.
//! - `table`, `truncate`, `keyless`: the whole table. Whatever touches it is behind it.
//!
//! Keys widen to the whole table where they cannot be known: TRUNCATE, no key, further unique
//! columns and no whole old row, an index over expressions or of some rows only, an exclusion
//! constraint, and columns whose equal values may print differently.
//!
//! So does what a tie touches that the target was given later: its values are in no footprint.
//!
//! - `everything`: a trigger or rule fires on the table under our role. It may write to any other
//!   table, and nobody knows which; so whatever comes is behind the transaction, and a later change
//!   of such a table is behind whatever is held.
//!
//! # What is not compared, and why that is right
//!
//! A change that leaves columns as they are neither takes nor lets go of their values; a DELETE
//! takes none. What it lets go and does not say (an old value that the source did not send) needs
//! no comparing with a value that a held transaction took: the row that has it now got it later, by
//! a transaction that took it from the held one's row, touched that row, and is held itself. The
//! same holds of a held DELETE of a row pointed to: what points to the value again needs the row to
//! be there again, by a transaction that touches it. PostgreSQL's own row locks say the same: an
//! UPDATE that leaves the key alone does not wait for who points to it.
//!
//! # Values as text
//!
//! Values are compared as pgoutput printed them. The sessions that print have fixed settings, so
//! equal values of a type whose printing is canonical are the same text; of other types the columns
//! count as not known. Where a little is known to differ (`1.0` and `1.00`, `-0`, the padding of
//! `char(n)`) it is taken off, for every type alike: to take two values for one holds a transaction
//! that could have gone on, and breaks nothing. That is also all that a collision of digests does.

mod collect;
mod digest;
mod ground;
mod hits;
mod load;
mod reach;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

pub use self::collect::{TooManyKeys, Touch, Touches};
use self::digest::Digest;
use self::ground::Grounds;
pub use self::hits::Hits;
pub use self::load::{LoadError, load};
pub use self::walk::{Collector, Tester, Unreadable};
use super::HeldId;
use crate::target::TableName;

/// Columns of the target, by name in byte order.
type Columns = Arc<[String]>;

/// Closed entries beyond which, when they are also the most, memory is given back.
const DEAD: usize = 4096;

/// What becomes of a later transaction that touches the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The held one is to be applied: the later one waits behind it.
    Open,
    /// It is not to be applied: the later one goes on, and is noted on it (C46).
    Discarded,
}

/// The footprints of a lane's held transactions, in memory: about 35 bytes per key.
#[derive(Debug, Default)]
pub struct Footprints {
    slots: Vec<Slot>,
    by_id: HashMap<HeldId, u32>,
    tables: HashMap<TableName, TableFootprint>,
    /// Those behind which everything is.
    everything: BTreeSet<u32>,
    links: Vec<Link>,
    /// Links of slots that were closed.
    dead: usize,
    grounds: Grounds,
}

/// One held transaction.
#[derive(Debug, Clone)]
struct Slot {
    id: HeldId,
    /// `None` when it is closed.
    standing: Option<Standing>,
    /// Entries, as the table holds them.
    entries: u64,
    links: usize,
    /// What it waits behind, as written down: not what those wait behind themselves.
    behind: Vec<HeldId>,
}

/// That a slot has a key, and the next one that has it.
#[derive(Debug, Clone, Copy)]
struct Link {
    slot: u32,
    next: u32,
}

const END: u32 = u32::MAX;

/// What is held of one partition tree.
#[derive(Debug, Default)]
struct TableFootprint {
    whole: BTreeSet<u32>,
    /// Values that are not known were let go.
    released: BTreeSet<u32>,
    sets: Vec<KeySet>,
}

/// Keys over the same columns.
#[derive(Debug)]
struct KeySet {
    row: bool,
    columns: Columns,
    /// To the newest link.
    keys: HashMap<Digest, u32>,
    slots: BTreeSet<u32>,
}

impl Footprints {
    /// Nothing held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no transaction needs to be tested.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Entries of all held transactions in it together.
    pub fn keys(&self) -> u64 {
        self.slots
            .iter()
            .filter(|slot| slot.standing.is_some())
            .map(|slot| slot.entries)
            .sum()
    }

    /// Held transactions in it.
    pub fn transactions(&self) -> u64 {
        self.by_id.len() as u64
    }

    /// Adds what a transaction touches.
    pub fn add(&mut self, id: HeldId, standing: Standing, touches: &Touches) {
        let slot = self.slot(id, standing);
        touches.rest_on(&mut self.grounds);
        for (root, touch) in touches.wholes() {
            self.add_whole(slot, root, touch);
        }
        touches.each_key(|root, touch, columns, digest| {
            self.add_key(slot, root, touch, columns, digest);
        });
    }

    /// Says what one of them waits behind, as [`Hits::open`] named it.
    pub fn waits(&mut self, id: HeldId, behind: &[HeldId]) {
        if let Some(slot) = self.by_id.get(&id) {
            self.slots[*slot as usize].behind.extend_from_slice(behind);
        }
    }

    /// Of open ones, in order, those that none of the others waits behind already: who waits behind
    /// these waits behind all of them, and what is written down grows with the transactions, not
    /// with their square.
    fn nearest(&self, open: &[u32]) -> Vec<u32> {
        let mut nearest: Vec<u32> = Vec::new();
        let mut covered = vec![false; if open.len() > 1 { self.slots.len() } else { 0 }];
        for slot in open.iter().rev() {
            if covered.get(*slot as usize).is_some_and(|covered| *covered) {
                continue;
            }
            nearest.push(*slot);
            let mut ahead = vec![*slot];
            while let Some(slot) = ahead.pop() {
                for id in &self.slots[slot as usize].behind {
                    let Some(before) = self.by_id.get(id) else {
                        continue;
                    };
                    if let Some(seen @ false) = covered.get_mut(*before as usize) {
                        *seen = true;
                        ahead.push(*before);
                    }
                }
            }
        }
        nearest.reverse();
        nearest
    }

    /// It is applied, or an overtaker of a discarded one is noted: it holds nothing up any more.
    pub fn close(&mut self, id: HeldId) {
        let Some(slot) = self.by_id.remove(&id) else {
            return;
        };
        let slot = &mut self.slots[slot as usize];
        slot.standing = None;
        self.dead += slot.links;
        if self.by_id.is_empty() {
            *self = Self::default();
        } else if self.dead > DEAD && self.dead > self.links.len() / 2 {
            self.compact();
        }
    }

    /// It is not to be applied.
    pub fn discard(&mut self, id: HeldId) {
        if let Some(slot) = self.by_id.get(&id) {
            self.slots[*slot as usize].standing = Some(Standing::Discarded);
        }
    }

    /// The slot of `id`, made when there is none.
    fn slot(&mut self, id: HeldId, standing: Standing) -> u32 {
        let next = self.slots.len() as u32;
        let slot = *self.by_id.entry(id).or_insert(next);
        if slot == next {
            self.slots.push(Slot {
                id,
                standing: Some(standing),
                entries: 0,
                links: 0,
                behind: Vec::new(),
            });
        }
        slot
    }

    fn add_whole(&mut self, slot: u32, root: &TableName, touch: Touch) {
        self.slots[slot as usize].entries += 1;
        let table = self.tables.entry(root.clone()).or_default();
        match touch {
            Touch::Table | Touch::Truncate | Touch::Keyless => table.whole.insert(slot),
            Touch::Row | Touch::Value => table.released.insert(slot),
            Touch::Everything => self.everything.insert(slot),
        };
    }

    fn add_key(
        &mut self,
        slot: u32,
        root: &TableName,
        touch: Touch,
        columns: &Columns,
        digest: Digest,
    ) {
        self.slots[slot as usize].entries += 1;
        let row = touch == Touch::Row;
        if !self.tables.contains_key(root) {
            self.tables.insert(root.clone(), TableFootprint::default());
        }
        let Some(table) = self.tables.get_mut(root) else {
            return;
        };
        // Whatever touches the table is behind it anyway.
        if table.whole.contains(&slot) {
            return;
        }
        let set = table.set(row, columns);
        set.slots.insert(slot);
        let newest = set.keys.entry(digest).or_insert(END);
        let next = *newest;
        if next != END && self.links[next as usize].slot == slot {
            return;
        }
        *newest = self.links.len() as u32;
        self.links.push(Link { slot, next });
        self.slots[slot as usize].links += 1;
    }

    /// Makes all of it anew, without what was closed.
    fn compact(&mut self) {
        let old = std::mem::take(self);
        self.grounds = old.grounds;
        let mut moved: HashMap<u32, u32> = HashMap::new();
        for (number, slot) in (0_u32..).zip(&old.slots) {
            let Some(standing) = slot.standing else {
                continue;
            };
            let new = self.slot(slot.id, standing);
            self.slots[new as usize].entries = slot.entries;
            self.slots[new as usize].behind.clone_from(&slot.behind);
            moved.insert(number, new);
        }
        let live =
            |slots: &BTreeSet<u32>| slots.iter().filter_map(|s| moved.get(s).copied()).collect();
        self.everything = live(&old.everything);
        for (name, table) in old.tables {
            let mut new = TableFootprint {
                whole: live(&table.whole),
                released: live(&table.released),
                sets: Vec::new(),
            };
            for set in table.sets {
                self.compact_set(&mut new, &set, &old.links, &moved);
            }
            if !new.is_empty() {
                self.tables.insert(name, new);
            }
        }
    }

    fn compact_set(
        &mut self,
        table: &mut TableFootprint,
        set: &KeySet,
        links: &[Link],
        moved: &HashMap<u32, u32>,
    ) {
        for (digest, newest) in &set.keys {
            let live = chain(links, *newest).filter_map(|slot| moved.get(&slot).copied());
            for slot in live {
                let into = table.set(set.row, &set.columns);
                into.slots.insert(slot);
                let newest = into.keys.entry(*digest).or_insert(END);
                let next = std::mem::replace(newest, self.links.len() as u32);
                self.links.push(Link { slot, next });
                self.slots[slot as usize].links += 1;
            }
        }
    }
}

impl TableFootprint {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.released.is_empty() && self.sets.is_empty()
    }

    fn set(&mut self, row: bool, columns: &Columns) -> &mut KeySet {
        let same = |set: &KeySet| set.row == row && set.columns == *columns;
        let at = self.sets.iter().position(same).unwrap_or_else(|| {
            self.sets.push(KeySet {
                row,
                columns: Arc::clone(columns),
                keys: HashMap::new(),
                slots: BTreeSet::new(),
            });
            self.sets.len() - 1
        });
        &mut self.sets[at]
    }
}

/// Slots from a link on.
fn chain(links: &[Link], newest: u32) -> impl Iterator<Item = u32> {
    let mut at = newest;
    std::iter::from_fn(move || {
        let link = links.get(at as usize)?;
        at = link.next;
        Some(link.slot)
    })
}
