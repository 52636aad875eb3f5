//! What one transaction touches, gathered change by change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::Columns;
use super::digest::{Digest, digest};
use super::ground::{Ground, Grounds};
use super::reach::{Image, Projection, Reach, RowChange, Texts, Tie};
use crate::plan::{Change, TextArray};
use crate::target::{TableName, TargetTable, Ties};

/// Keys written down by one statement.
const CHUNK_ROWS: usize = 4096;
/// Bytes of one column's values in one statement.
const CHUNK_BYTES: usize = 1 << 20;

/// How a held transaction touches a table; the words of `trellara.held_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Touch {
    /// A row, by the key that finds it.
    Row,
    /// Values beside; without columns, values that are not known and were let go.
    Value,
    /// The whole table, because keys are not known.
    Table,
    /// The whole table, because it is emptied.
    Truncate,
    /// The whole table, because it has no key.
    Keyless,
    /// All tables, because something fires on this one, and nobody knows what it reaches.
    Everything,
}

impl Touch {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Touch::Row => "row",
            Touch::Value => "value",
            Touch::Table => "table",
            Touch::Truncate => "truncate",
            Touch::Keyless => "keyless",
            Touch::Everything => "everything",
        }
    }

    /// What a word means.
    pub fn parse(word: &str) -> Option<Self> {
        [
            Touch::Row,
            Touch::Value,
            Touch::Table,
            Touch::Truncate,
            Touch::Keyless,
            Touch::Everything,
        ]
        .into_iter()
        .find(|touch| touch.as_str() == word)
    }
}

/// A transaction has more keys than may be kept: its policy becomes halt.
#[derive(Debug, thiserror::Error)]
#[error("the transaction touches more than {max_keys} keys")]
pub struct TooManyKeys {
    /// How many would have been taken.
    pub max_keys: u64,
    /// The tables that it touches, each as a whole: that much is always known.
    pub tables: Touches,
}

/// What one transaction touches; each entry once.
#[derive(Debug, Default)]
pub struct Touches {
    /// The tables that it writes, tied as they were known then.
    written: Vec<(TableName, Ground)>,
    wholes: Vec<Whole>,
    groups: Vec<Group>,
    keys: u64,
}

/// A table touched as a whole.
#[derive(Debug)]
pub(in crate::quarantine) struct Whole {
    pub(in crate::quarantine) table: TableName,
    root: TableName,
    pub(in crate::quarantine) touch: Touch,
}

/// Keys over the same columns of the same table.
#[derive(Debug)]
pub(in crate::quarantine) struct Group {
    pub(in crate::quarantine) table: TableName,
    root: TableName,
    pub(in crate::quarantine) touch: Touch,
    pub(in crate::quarantine) columns: Columns,
    /// One array per column, of at most a statement's rows.
    pub(in crate::quarantine) chunks: Vec<Vec<TextArray>>,
    rows: usize,
}

impl Touches {
    /// How many entries there are.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// The tables and how they are touched, in the words of `trellara.held_key`, with the number of
    /// entries; for tests and for a human.
    pub fn summary(&self) -> Vec<String> {
        let name = |table: &TableName| format!("{}.{}", table.schema, table.name);
        let whole = |whole: &Whole| format!("{} {}", whole.touch.as_str(), name(&whole.table));
        let group = |group: &Group| {
            let rows: usize = group.chunks.iter().map(|chunk| values(chunk).count()).sum();
            let columns = group.columns.join(",");
            format!(
                "{} {}({columns}) {rows}",
                group.touch.as_str(),
                name(&group.table)
            )
        };
        let mut lines: Vec<String> = self.wholes.iter().map(whole).collect();
        lines.extend(self.groups.iter().map(group));
        lines.sort();
        lines
    }

    pub(in crate::quarantine) fn whole_tables(&self) -> &[Whole] {
        &self.wholes
    }

    pub(in crate::quarantine) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The ties of the tables that it writes, each as a text.
    pub(in crate::quarantine) fn ties(&self) -> impl Iterator<Item = (&TableName, &str)> {
        self.written.iter().flat_map(|(table, ground)| {
            let ties = ground.ties.keys();
            ties.map(move |tie| (table, tie.as_str()))
        })
    }

    pub(super) fn rest_on(&self, grounds: &mut Grounds) {
        for (table, ground) in &self.written {
            grounds.writes(table, Some(ground));
        }
        let wholes = self.wholes.iter().map(|whole| (&whole.table, &whole.root));
        let groups = self.groups.iter().map(|group| (&group.table, &group.root));
        for (table, root) in wholes.chain(groups) {
            grounds.touches(table, Some(root));
        }
    }

    /// Roots touched as a whole.
    pub(super) fn wholes(&self) -> impl Iterator<Item = (&TableName, Touch)> {
        self.wholes.iter().map(|whole| (&whole.root, whole.touch))
    }

    pub(super) fn each_key(&self, mut take: impl FnMut(&TableName, Touch, &Columns, Digest)) {
        for group in &self.groups {
            for values in group.chunks.iter().flat_map(|chunk| values(chunk)) {
                let digest = digest(values.into_iter());
                take(&group.root, group.touch, &group.columns, digest);
            }
        }
    }
}

/// The rows of a chunk.
fn values(chunk: &[TextArray]) -> impl Iterator<Item = Texts<'_>> {
    let mut columns: Vec<_> = chunk.iter().map(TextArray::values).collect();
    std::iter::from_fn(move || columns.iter_mut().map(Iterator::next).collect())
}

/// Gathers what a transaction touches. Pure.
#[derive(Debug)]
pub(super) struct Gathering {
    role_replica: bool,
    max_keys: u64,
    written: BTreeMap<TableName, Ground>,
    wholes: BTreeMap<(TableName, Touch), TableName>,
    groups: HashMap<GroupKey, (Group, HashSet<Digest>)>,
    keys: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    table: TableName,
    touch: Touch,
    columns: Columns,
}

impl Gathering {
    pub(super) fn new(role_replica: bool, max_keys: u64) -> Self {
        Self {
            role_replica,
            max_keys,
            written: BTreeMap::new(),
            wholes: BTreeMap::new(),
            groups: HashMap::new(),
            keys: 0,
        }
    }

    pub(super) fn finish(mut self) -> Result<Touches, TooManyKeys> {
        if self.keys > self.max_keys {
            self.widen();
        }
        let wholes = self.wholes.into_iter();
        let wholes = wholes.map(|((table, touch), root)| Whole { table, root, touch });
        let wholes: Vec<Whole> = wholes.collect();
        let written = self.written.into_iter().collect();
        if self.keys > self.max_keys {
            let keys = wholes.len() as u64;
            return Err(TooManyKeys {
                max_keys: self.max_keys,
                tables: Touches {
                    written,
                    wholes,
                    groups: Vec::new(),
                    keys,
                },
            });
        }
        Ok(Touches {
            written,
            wholes,
            groups: self.groups.into_values().map(|(group, _)| group).collect(),
            keys: self.keys,
        })
    }

    pub(super) fn change(&mut self, reach: &Reach, change: &Change<'_>) {
        if !self.written.contains_key(&reach.table) {
            let ground = reach.ground(self.role_replica).clone();
            self.written.insert(reach.table.clone(), ground);
        }
        let row = reach.row(change);
        self.row(reach, &row);
        if reach.fires(self.role_replica) {
            self.own(reach, Touch::Everything);
        } else if reach.opaque {
            self.own(reach, Touch::Table);
        }
        for unique in &reach.uniques {
            self.unique(reach, &row, &unique.own, unique.nulls_not_distinct);
        }
        for tie in &reach.references {
            self.points(reach, &row, tie);
        }
        for tie in &reach.referenced_by {
            self.pointed_to(reach, &row, tie);
        }
    }

    /// The table is emptied. What pointed from it lets go of values that are not known; that nobody
    /// may point to it any more concerns all who could.
    pub(super) fn truncate(&mut self, table: &TargetTable, ties: &Ties) {
        let name = TableName::new(&table.schema, &table.name);
        let root = ties.root.as_ref().unwrap_or(&name);
        let ground = Ground::of(table, ties, self.role_replica);
        self.written.entry(name.clone()).or_insert(ground);
        self.whole(&name, root, Touch::Truncate);
        if table.fires(self.role_replica) {
            self.whole(&name, root, Touch::Everything);
        }
        for tie in &ties.references {
            self.whole(&tie.other, &tie.other, Touch::Value);
        }
        for tie in &ties.referenced_by {
            self.whole(&tie.other, &tie.other, Touch::Table);
        }
    }

    fn row(&mut self, reach: &Reach, row: &RowChange<'_, '_>) {
        let Some(key) = &reach.key else {
            return self.own(reach, Touch::Keyless);
        };
        if !reach.key_is_shown() {
            self.own(reach, Touch::Table);
        }
        for image in [row.before(key), row.after(key)] {
            match image {
                Image::Absent => {}
                Image::Unknown => self.own(reach, Touch::Table),
                Image::Known(texts) => self.key(reach, Entry::row(reach, key), &texts),
            }
        }
    }

    fn unique(
        &mut self,
        reach: &Reach,
        row: &RowChange<'_, '_>,
        own: &Projection,
        nulls_not_distinct: bool,
    ) {
        if row.keeps(own) {
            return;
        }
        for image in [row.before(own), row.after(own)] {
            match image {
                Image::Absent => {}
                Image::Unknown => self.own(reach, Touch::Table),
                Image::Known(texts) if nulls_not_distinct || !texts.contains(&None) => {
                    self.key(reach, Entry::value(reach, own), &texts);
                }
                Image::Known(_) => {}
            }
        }
    }

    /// A foreign key of the row's own: the row that it points to must be there.
    fn points(&mut self, reach: &Reach, row: &RowChange<'_, '_>, tie: &Tie) {
        if row.keeps(&tie.own) {
            return;
        }
        match row.after(&tie.own) {
            Image::Absent => {}
            Image::Known(texts) if tie.by_text => self.other(reach, tie, &texts),
            Image::Known(_) | Image::Unknown => self.whole(&tie.other, &tie.other, Touch::Table),
        }
        match row.before(&tie.own) {
            Image::Absent => {}
            Image::Known(texts) if tie.by_text => self.other(reach, tie, &texts),
            Image::Known(_) | Image::Unknown => self.whole(&tie.other, &tie.other, Touch::Value),
        }
    }

    /// Rows of others may point to the row. Why an old value that is not known says nothing here is
    /// argued in the module's head.
    fn pointed_to(&mut self, reach: &Reach, row: &RowChange<'_, '_>, tie: &Tie) {
        if row.keeps(&tie.own) {
            return;
        }
        match row.after(&tie.own) {
            Image::Absent => {}
            Image::Known(texts) if tie.by_text => self.other(reach, tie, &texts),
            Image::Known(_) | Image::Unknown => self.whole(&tie.other, &tie.other, Touch::Table),
        }
        match row.before(&tie.own) {
            Image::Known(texts) if tie.by_text => self.other(reach, tie, &texts),
            Image::Known(_) | Image::Unknown | Image::Absent => {}
        }
        if tie.acts && !self.role_replica && !row.inserts() {
            self.whole(&tie.other, &tie.other, Touch::Table);
        }
    }

    fn other(&mut self, reach: &Reach, tie: &Tie, texts: &Texts<'_>) {
        // A foreign key with a NULL points nowhere.
        if !texts.contains(&None) {
            let entry = Entry {
                table: &tie.other,
                root: &tie.other,
                touch: Touch::Value,
                columns: &tie.other_columns,
            };
            self.key(reach, entry, texts);
        }
    }

    fn own(&mut self, reach: &Reach, touch: Touch) {
        self.whole(&reach.table, &reach.root, touch);
    }

    fn whole(&mut self, table: &TableName, root: &TableName, touch: Touch) {
        let keys = &mut self.keys;
        self.wholes
            .entry((table.clone(), touch))
            .or_insert_with(|| {
                *keys += 1;
                root.clone()
            });
    }

    /// Of what has too many keys the tables are remembered.
    fn widen(&mut self) {
        for (group, _) in std::mem::take(&mut self.groups).into_values() {
            self.whole(&group.table, &group.root, Touch::Table);
        }
    }

    fn key(&mut self, reach: &Reach, entry: Entry<'_>, texts: &Texts<'_>) {
        if self.keys > self.max_keys {
            self.widen();
            return self.whole(entry.table, entry.root, Touch::Table);
        }
        if !texts
            .iter()
            .flatten()
            .all(|text| storable(text, reach.unicode))
        {
            return self.whole(entry.table, entry.root, Touch::Table);
        }
        let key = GroupKey {
            table: entry.table.clone(),
            touch: entry.touch,
            columns: Arc::clone(entry.columns),
        };
        let (group, seen) = self.groups.entry(key).or_insert_with(|| {
            let group = Group {
                table: entry.table.clone(),
                root: entry.root.clone(),
                touch: entry.touch,
                columns: Arc::clone(entry.columns),
                chunks: Vec::new(),
                rows: CHUNK_ROWS,
            };
            (group, HashSet::new())
        });
        if seen.insert(digest(texts.iter().copied())) {
            group.push(texts);
            self.keys += 1;
        }
    }
}

/// Where a key belongs.
struct Entry<'r> {
    table: &'r TableName,
    root: &'r TableName,
    touch: Touch,
    columns: &'r Columns,
}

impl<'r> Entry<'r> {
    fn row(reach: &'r Reach, key: &'r Projection) -> Self {
        Self::of(reach, Touch::Row, key)
    }

    fn value(reach: &'r Reach, own: &'r Projection) -> Self {
        Self::of(reach, Touch::Value, own)
    }

    fn of(reach: &'r Reach, touch: Touch, of: &'r Projection) -> Self {
        Self {
            table: &reach.table,
            root: &reach.root,
            touch,
            columns: &of.columns,
        }
    }
}

impl Group {
    fn push(&mut self, texts: &Texts<'_>) {
        let long = |chunk: &Vec<TextArray>| chunk.iter().any(|array| array.bytes() > CHUNK_BYTES);
        if self.rows >= CHUNK_ROWS || self.chunks.last().is_some_and(long) {
            self.chunks.push(vec![TextArray::default(); texts.len()]);
            self.rows = 0;
        }
        self.rows += 1;
        if let Some(chunk) = self.chunks.last_mut() {
            let columns = chunk.iter_mut().zip(texts);
            columns.for_each(|(array, text)| array.push(*text));
        }
    }
}

/// Whether the target can store it as a text: of a source that checks no encoding, or under one of
/// the target's that lacks the character, it cannot.
fn storable(text: &[u8], unicode: bool) -> bool {
    if unicode {
        std::str::from_utf8(text).is_ok()
    } else {
        text.is_ascii()
    }
}
