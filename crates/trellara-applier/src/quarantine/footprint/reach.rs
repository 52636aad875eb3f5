//! How far a change of one relation reaches: its key, what else its values touch, and where.

use std::collections::HashMap;
use std::sync::Arc;

use trellara_pgoutput::{OldTuple, Value};

use super::Columns;
use super::digest::{Digest, digest};
use super::ground::Ground;
use crate::plan::Change;
use crate::target::{Finding, ForeignTie, Mapping, TableName, Ties};

/// A relation fitted to its table, with the table's ties.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) table: TableName,
    pub(super) root: TableName,
    /// The columns that find a row, and where the source has them; `None` where nothing does.
    pub(super) key: Option<Projection>,
    /// Whether something fires on the table, under the replica role and without it.
    fires: [bool; 2],
    /// The ties in the words in which they are written down; under either role.
    grounds: [Ground; 2],
    /// Unique columns beside the key.
    pub(super) uniques: Vec<Unique>,
    /// Something keeps rows apart by what cannot be seen in their values.
    pub(super) opaque: bool,
    pub(super) references: Vec<Tie>,
    pub(super) referenced_by: Vec<Tie>,
    /// Every character can be stored on the target.
    pub(super) unicode: bool,
    /// Source columns by the target's name, where equality shows in their texts.
    sources: HashMap<String, u16>,
    /// Source columns flagged as key.
    flagged: Vec<bool>,
}

/// Columns in the order of their names, and where the source has each; `None` where it does not, or
/// where its text says too little.
#[derive(Debug)]
pub(super) struct Projection {
    pub(super) columns: Columns,
    sources: Vec<Option<u16>>,
}

/// A plain unique index.
#[derive(Debug)]
pub(super) struct Unique {
    pub(super) nulls_not_distinct: bool,
    pub(super) own: Projection,
}

/// A foreign key, its columns in the order of the other side's names.
#[derive(Debug)]
pub(super) struct Tie {
    pub(super) other: TableName,
    pub(super) other_columns: Columns,
    pub(super) own: Projection,
    /// The own side's columns in the order of their own names.
    pub(super) own_columns: Columns,
    pub(super) by_text: bool,
    pub(super) acts: bool,
}

impl Reach {
    pub(super) fn new(mapping: &Mapping, ties: &Ties) -> Self {
        let table = &mapping.table;
        let name = TableName::new(&table.schema, &table.name);
        let shown = |c: usize| {
            let column = &table.columns[mapping.target[c]];
            !column.generated && ties.by_text.contains(&column.name)
        };
        let sources: HashMap<String, u16> = (0_u16..)
            .take(mapping.target.len())
            .filter(|&c| shown(usize::from(c)))
            .map(|c| (mapping.target_column(c).name.clone(), c))
            .collect();
        let key = (mapping.finding == Finding::Key).then(|| key(mapping));
        let finds = key.as_ref().map(|key| Arc::clone(&key.columns));
        let mut reach = Reach {
            root: ties.root.clone().unwrap_or_else(|| name.clone()),
            table: name,
            key,
            fires: [table.fires_as_replica, table.fires_as_origin],
            grounds: [true, false].map(|role| Ground::of(table, ties, role)),
            uniques: Vec::new(),
            opaque: ties.partition_alone,
            references: Vec::new(),
            referenced_by: Vec::new(),
            unicode: ties.unicode,
            sources,
            flagged: mapping.relation.columns.iter().map(|c| c.key).collect(),
        };
        for unique in &ties.uniques {
            // Rows that agree in it agree in the key: it keeps nothing apart that the key does not.
            let in_key = |key: &Columns| key.iter().all(|name| unique.columns.contains(name));
            if !unique.plain {
                reach.opaque = true;
            } else if !finds.as_ref().is_some_and(in_key) {
                reach.uniques.push(Unique {
                    nulls_not_distinct: unique.nulls_not_distinct,
                    own: reach.projection(&sorted(&unique.columns)),
                });
            }
        }
        reach.references = ties.references.iter().map(|tie| reach.tie(tie)).collect();
        reach.referenced_by = ties
            .referenced_by
            .iter()
            .map(|tie| reach.tie(tie))
            .collect();
        reach
    }

    /// Whether writing to the table makes something happen that the stream does not show.
    pub(super) fn fires(&self, role_replica: bool) -> bool {
        self.fires[usize::from(!role_replica)]
    }

    pub(super) fn ground(&self, role_replica: bool) -> &Ground {
        &self.grounds[usize::from(!role_replica)]
    }

    /// Where the source has these columns of the target.
    pub(super) fn projection(&self, columns: &Columns) -> Projection {
        Projection {
            sources: columns
                .iter()
                .map(|name| self.sources.get(name).copied())
                .collect(),
            columns: Arc::clone(columns),
        }
    }

    /// Whether equality of the key's values shows in their texts.
    pub(super) fn key_is_shown(&self) -> bool {
        let shown = |name: &String| self.sources.contains_key(name);
        self.key
            .as_ref()
            .is_some_and(|key| key.columns.iter().all(shown))
    }

    /// The change, laid out by columns.
    pub(super) fn row<'m>(&self, change: &Change<'m>) -> RowChange<'m, '_> {
        let values = |tuple: &trellara_pgoutput::TupleRef<'m>| tuple.iter().collect();
        let (old, new) = match change {
            Change::Insert { new } => (Old::None, Some(values(new))),
            Change::Delete { old } => (Old::of(old), None),
            Change::Update { old, new } => {
                let old = old.as_ref().map_or(Old::KeyStays, Old::of);
                (old, Some(values(new)))
            }
        };
        RowChange {
            flagged: &self.flagged,
            old,
            new,
        }
    }

    fn tie(&self, tie: &ForeignTie) -> Tie {
        let mut pairs: Vec<(&String, &String)> =
            tie.other_columns.iter().zip(&tie.own_columns).collect();
        pairs.sort();
        let other_columns = pairs.iter().map(|(other, _)| (*other).clone()).collect();
        let own: Columns = pairs.iter().map(|(_, own)| (*own).clone()).collect();
        Tie {
            other: tie.other.clone(),
            other_columns,
            own: self.projection(&own),
            own_columns: sorted(&own),
            by_text: tie.by_text,
            acts: tie.acts,
        }
    }
}

/// The key that finds rows; its values are wanted also where their texts say too little.
fn key(mapping: &Mapping) -> Projection {
    let mut names: Vec<(String, u16)> = mapping
        .matching
        .iter()
        .map(|&c| (mapping.target_column(c).name.clone(), c))
        .collect();
    names.sort();
    Projection {
        columns: names.iter().map(|(name, _)| name.clone()).collect(),
        sources: names.iter().map(|&(_, c)| Some(c)).collect(),
    }
}

fn sorted(columns: &[String]) -> Columns {
    let mut columns = columns.to_vec();
    columns.sort();
    columns.into()
}

/// What is known of the row before the change.
enum Old<'m> {
    /// There was none.
    None,
    /// All of it.
    Whole(Vec<Value<'m>>),
    /// The columns flagged as key.
    Key(Vec<Value<'m>>),
    /// Nothing was sent, because the columns flagged as key stay as they are.
    KeyStays,
}

impl<'m> Old<'m> {
    fn of(old: &OldTuple<'m>) -> Self {
        match old {
            OldTuple::Full(tuple) => Old::Whole(tuple.iter().collect()),
            OldTuple::Key(tuple) => Old::Key(tuple.iter().collect()),
        }
    }
}

/// A change of one row: what it was, and what it is, as far as that was sent.
pub(super) struct RowChange<'m, 'r> {
    flagged: &'r [bool],
    old: Old<'m>,
    new: Option<Vec<Value<'m>>>,
}

/// Values of some columns of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Image<V> {
    /// There is no such row: it comes, or it goes.
    Absent,
    /// They are not all known.
    Unknown,
    Known(V),
}

/// The values of one row in the order of a projection's columns.
pub(super) type Texts<'m> = Vec<Option<&'m [u8]>>;

impl<'m> RowChange<'m, '_> {
    pub(super) fn inserts(&self) -> bool {
        matches!(self.old, Old::None)
    }

    pub(super) fn before(&self, of: &Projection) -> Image<Texts<'m>> {
        match self.old {
            Old::None => Image::Absent,
            Old::Whole(_) | Old::Key(_) | Old::KeyStays => image(of, |c| self.old_value(c)),
        }
    }

    pub(super) fn after(&self, of: &Projection) -> Image<Texts<'m>> {
        match self.new {
            None => Image::Absent,
            Some(_) => image(of, |c| self.new_value(c)),
        }
    }

    /// Whether the columns are known to keep their values.
    pub(super) fn keeps(&self, of: &Projection) -> bool {
        let Some(new) = &self.new else { return false };
        !self.inserts()
            && of.sources.iter().all(|source| {
                let Some(c) = source.map(usize::from) else {
                    return false;
                };
                match new.get(c) {
                    Some(Value::Unchanged) => true,
                    Some(value) => {
                        let old = self.old_value(c);
                        old.is_some() && old == text(Some(*value))
                    }
                    None => false,
                }
            })
    }

    /// `None`: it was not sent.
    fn old_value(&self, c: usize) -> Option<Option<&'m [u8]>> {
        let flagged = self.flagged.get(c).copied().unwrap_or(false);
        match &self.old {
            Old::Whole(values) => text(values.get(c).copied()),
            Old::Key(values) if flagged => text(values.get(c).copied()),
            Old::KeyStays if flagged => text(self.new.as_ref()?.get(c).copied()),
            Old::Key(_) | Old::KeyStays | Old::None => None,
        }
    }

    fn new_value(&self, c: usize) -> Option<Option<&'m [u8]>> {
        match self.new.as_ref()?.get(c)? {
            Value::Unchanged => self.old_value(c),
            value => text(Some(*value)),
        }
    }
}

fn image<'m>(
    of: &Projection,
    value: impl Fn(usize) -> Option<Option<&'m [u8]>>,
) -> Image<Texts<'m>> {
    let values: Option<Texts<'m>> = of
        .sources
        .iter()
        .map(|source| value(usize::from((*source)?)))
        .collect();
    values.map_or(Image::Unknown, Image::Known)
}

fn text(value: Option<Value<'_>>) -> Option<Option<&[u8]>> {
    match value? {
        Value::Text(text) => Some(Some(text)),
        Value::Null => Some(None),
        Value::Unchanged | Value::Binary(_) => None,
    }
}

/// The digest of a row's values.
pub(super) fn digest_of(texts: &Texts<'_>) -> Digest {
    digest(texts.iter().copied())
}
