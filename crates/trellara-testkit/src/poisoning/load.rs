//! A seeded load of small transactions in a known order, and what has to become of it when some of
//! them are refused.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Tables `t0` … of the load, all alike.
pub(super) const TABLES: u8 = 3;
/// Keys of each table that one transaction in five is about; the others are spread thinly.
const HOT_KEYS: i64 = 64;
const HOT_PERCENT: u32 = 20;
/// Of the cold keys of all tables there are so many for each transaction, so that most of what
/// comes behind a poisoned one has nothing to do with it.
const COLD_PER_TRANSACTION: i64 = 4;
/// A poisoned hot key holds nearly every later transaction of the hot keys: only in the last tenth.
const HOT_POISON_FROM_PERCENT: usize = 90;

/// A row's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) table: u8,
    pub(super) id: i64,
}

/// A row as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// Grows with each change of the key, over its deletions too.
    pub(super) version: i64,
    /// Negative in what the target refuses.
    pub(super) amount: i64,
    /// Number of the transaction that wrote it.
    pub(super) writer: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Insert,
    Update,
    Delete,
}

#[derive(Debug, Clone, Copy)]
struct Change {
    key: Key,
    verb: Verb,
    row: Row,
}

/// One transaction of the load.
#[derive(Debug)]
pub(super) struct Planned {
    changes: Vec<Change>,
    pub(super) poisoned: bool,
}

/// Why a transaction is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Poisoned,
    Dependent,
}

/// What has to become of a load.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// By number of the transaction.
    pub(super) held: BTreeMap<usize, Why>,
    /// Rows on the target while those are held.
    pub(super) rows: BTreeMap<Key, Row>,
}

/// Draws a load; `poisoned_per_mille` of its transactions carry a negative amount.
pub(super) fn draw(seed: u64, transactions: usize, poisoned_per_mille: u32) -> Vec<Planned> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut rows: BTreeMap<Key, (i64, bool)> = BTreeMap::new();
    let cold = transactions as i64 * COLD_PER_TRANSACTION / i64::from(TABLES);
    let mut load = Vec::with_capacity(transactions);
    for number in 0..transactions {
        let hot = random.random_ratio(HOT_PERCENT, 100);
        let size = *[1, 1, 1, 2, 2, 3, 5, 20].choose(&mut random).expect("some");
        let mut keys = BTreeSet::new();
        while keys.len() < size {
            let table = random.random_range(0..TABLES);
            let id = match hot {
                true => random.random_range(0..HOT_KEYS),
                false => HOT_KEYS + random.random_range(0..cold),
            };
            keys.insert(Key { table, id });
        }
        let mut changes: Vec<Change> = Vec::with_capacity(size);
        for key in keys {
            let (version, there) = rows.entry(key).or_default();
            let verb = match *there {
                false => Verb::Insert,
                true if random.random_ratio(1, 5) => Verb::Delete,
                true => Verb::Update,
            };
            *version += 1;
            *there = verb != Verb::Delete;
            let row = Row {
                version: *version,
                amount: random.random_range(1..1_000_000),
                writer: number as i64,
            };
            changes.push(Change { key, verb, row });
        }
        let may = !hot || number * 100 >= transactions * HOT_POISON_FROM_PERCENT;
        let wanted = random.random_ratio(poisoned_per_mille, 1000) && may;
        let mut writes: Vec<&mut Change> = changes
            .iter_mut()
            .filter(|change| change.verb != Verb::Delete)
            .collect();
        let at = random.random_range(0..writes.len().max(1));
        let poisoned = wanted && !writes.is_empty();
        if poisoned {
            writes[at].row.amount *= -1;
        }
        load.push(Planned { changes, poisoned });
    }
    load
}

impl Planned {
    /// Its statements, the last of which says its number on the source.
    pub(super) fn sql(&self) -> String {
        let mut sql = "BEGIN;".to_owned();
        for Change { key, verb, row } in &self.changes {
            let Key { table, id } = key;
            let Row {
                version,
                amount,
                writer,
            } = row;
            sql += &match verb {
                Verb::Insert => {
                    format!("INSERT INTO t{table} VALUES ({id}, {version}, {amount}, {writer});")
                }
                Verb::Update => format!(
                    "UPDATE t{table} SET version = {version}, amount = {amount}, writer = {writer} \
                     WHERE id = {id};"
                ),
                Verb::Delete => format!("DELETE FROM t{table} WHERE id = {id};"),
            };
        }
        sql + "SELECT pg_current_xact_id()::text; COMMIT;"
    }

    fn touches(&self, tables: &BTreeSet<u8>) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| tables.contains(&change.key.table))
    }
}

/// What has to become of it, by one rule alone: whoever touches a key that a held one touches is
/// held behind it. `widened` names tables that are held as a whole from a transaction on, as far as
/// the target says so.
pub(super) fn expect(load: &[Planned], widened: &BTreeMap<usize, BTreeSet<u8>>) -> Expected {
    let mut expected = Expected::default();
    let mut keys = BTreeSet::new();
    let mut tables: BTreeSet<u8> = BTreeSet::new();
    for (number, transaction) in load.iter().enumerate() {
        let behind = transaction.touches(&tables)
            || transaction.changes.iter().any(|c| keys.contains(&c.key));
        if behind || transaction.poisoned {
            let why = if behind {
                Why::Dependent
            } else {
                Why::Poisoned
            };
            expected.held.insert(number, why);
            keys.extend(transaction.changes.iter().map(|change| change.key));
            tables.extend(widened.get(&number).into_iter().flatten());
            continue;
        }
        for Change { key, verb, row } in &transaction.changes {
            match verb {
                Verb::Insert | Verb::Update => expected.rows.insert(*key, *row),
                Verb::Delete => expected.rows.remove(key),
            };
        }
    }
    expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_load_whether_it_is_poisoned_or_not() {
        let (clean, poisoned) = (draw(7, 3000, 0), draw(7, 3000, 10));
        let count = poisoned.iter().filter(|planned| planned.poisoned).count();
        assert!((10..60).contains(&count), "{count} are poisoned");
        for (clean, poisoned) in clean.iter().zip(&poisoned) {
            assert_eq!(
                clean.sql().replace('-', ""),
                poisoned.sql().replace('-', "")
            );
            assert!(!clean.poisoned);
        }
        assert!(expect(&clean, &BTreeMap::new()).held.is_empty());
        let expected = expect(&poisoned, &BTreeMap::new());
        assert!(
            expected.held.len() > count,
            "none depends on a poisoned one"
        );
        assert!(
            expected.held.len() < 1500,
            "{} are held",
            expected.held.len()
        );
        // A table that is held as a whole holds what touches any of its rows.
        let first = *expected.held.keys().next().expect("one");
        let all = [(first, (0..TABLES).collect())].into();
        assert_eq!(expect(&poisoned, &all).held.len(), 3000 - first);
    }
}
