//! Rules of C45 one by one, and a model that looks for an order which they miss.

mod model;
mod rules;

use std::sync::Arc;

use trellara_pgoutput::{Message, RelationMap, decode};

use super::collect::Gathering;
use super::hits::Comparing;
use super::reach::Reach;
use super::{Footprints, Hits, TooManyKeys, Touches};
use crate::plan::Change;
use crate::target::{
    ForeignTie, Mapping, TableName, TargetColumn, TargetTable, Ties, UniqueIndex, UniqueTie,
};

/// A table of source and target, its first columns the key.
#[derive(Clone)]
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) columns: &'static [&'static str],
    /// Columns of the primary key.
    key: usize,
    /// Replica identity: `d` or `f`.
    identity: char,
    pub(super) fires_as_replica: bool,
    pub(super) fires_as_origin: bool,
    pub(super) ties: Ties,
}

impl Table {
    pub(super) fn new(name: &'static str, columns: &'static [&'static str]) -> Self {
        let own: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
        let mut table = Self {
            name,
            columns,
            key: 1,
            identity: 'd',
            fires_as_replica: false,
            fires_as_origin: false,
            ties: Ties {
                root: Some(name_of(name)),
                by_text: own,
                unicode: true,
                ..Ties::default()
            },
        };
        table.ties.uniques.push(unique(&columns[..1]));
        table
    }

    pub(super) fn full(mut self) -> Self {
        self.identity = 'f';
        self
    }

    pub(super) fn keyless(mut self) -> Self {
        self.key = 0;
        self.ties.uniques.clear();
        self
    }

    pub(super) fn unique(mut self, columns: &[&str]) -> Self {
        self.ties.uniques.push(unique(columns));
        self
    }

    /// A foreign key: both ends have to be told.
    pub(super) fn references(mut self, own: &str, other: &str, column: &str) -> Self {
        self.ties.references.push(foreign(own, other, column));
        self
    }

    pub(super) fn referenced_by(mut self, own: &str, other: &str, column: &str) -> Self {
        self.ties.referenced_by.push(foreign(own, other, column));
        self
    }

    fn target(&self) -> TargetTable {
        let column = |name: &&str| TargetColumn {
            name: (*name).to_owned(),
            base_type: "\"pg_catalog\".\"text\"".to_owned(),
            not_null: false,
            generated: false,
            identity_always: false,
            equality: None,
            leads_index: false,
            reading: None,
        };
        let primary = UniqueIndex {
            name: "pkey".to_owned(),
            primary: true,
            immediate: true,
            finds_rows: true,
            columns: (0..self.key).map(Some).collect(),
        };
        TargetTable {
            oid: 1,
            root: 1,
            schema: "s".to_owned(),
            name: self.name.to_owned(),
            partitioned: false,
            columns: self.columns.iter().map(column).collect(),
            uniques: if self.key > 0 {
                vec![primary]
            } else {
                Vec::new()
            },
            deferrable: Vec::new(),
            fires_as_replica: self.fires_as_replica,
            fires_as_origin: self.fires_as_origin,
            row_security: false,
        }
    }

    pub(super) fn reach(&self) -> Reach {
        let mut bytes = b"R\0\0\0\x07s\0".to_vec();
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(&[0, self.identity as u8]);
        bytes.extend_from_slice(&(self.columns.len() as u16).to_be_bytes());
        for (n, name) in self.columns.iter().enumerate() {
            let flagged = self.identity == 'f' || n < self.key;
            bytes.push(u8::from(flagged));
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b"\0\0\0\0\x19\xff\xff\xff\xff");
        }
        let mut relations = RelationMap::new();
        relations.observe(&decode(&bytes, false).unwrap());
        let relation = relations.iter().next().unwrap();
        let table = Arc::new(self.target());
        let mapping = Mapping::new(table, Arc::clone(relation), &relations).unwrap();
        Reach::new(&mapping, &self.ties)
    }
}

pub(super) fn name_of(name: &str) -> TableName {
    TableName::new("s", name)
}

pub(super) fn unique(columns: &[&str]) -> UniqueTie {
    UniqueTie {
        plain: true,
        nulls_not_distinct: false,
        columns: columns.iter().map(|c| (*c).to_owned()).collect(),
    }
}

fn foreign(own: &str, other: &str, column: &str) -> ForeignTie {
    ForeignTie {
        other: name_of(other),
        own_columns: vec![own.to_owned()],
        other_columns: vec![column.to_owned()],
        by_text: true,
        acts: false,
    }
}

/// A change or TRUNCATE of one table.
#[derive(Clone)]
pub(super) struct Step {
    pub(super) table: Table,
    /// `None`: TRUNCATE.
    pub(super) bytes: Option<Vec<u8>>,
}

/// From words: `I N:1,a`, `U K:1,~ N:2,b`, `D O:1,a`, `T`. `~` is NULL, `^` unchanged TOAST.
pub(super) fn step(table: &Table, words: &str) -> Step {
    let bytes = (words != "T").then(|| message(words));
    Step {
        table: table.clone(),
        bytes,
    }
}

fn message(words: &str) -> Vec<u8> {
    let mut words = words.split(' ');
    let mut bytes = words.next().unwrap().as_bytes().to_vec();
    bytes.extend_from_slice(&7_u32.to_be_bytes());
    for word in words {
        let (kind, values) = word.split_once(':').unwrap();
        bytes.extend_from_slice(kind.as_bytes());
        let values: Vec<&str> = values.split(',').collect();
        bytes.extend_from_slice(&(values.len() as u16).to_be_bytes());
        for value in values {
            match value {
                "~" => bytes.push(b'n'),
                "^" => bytes.push(b'u'),
                text => {
                    bytes.push(b't');
                    bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
                    bytes.extend_from_slice(text.as_bytes());
                }
            }
        }
    }
    bytes
}

fn with_change(step: &Step, take: impl FnOnce(&Change<'_>)) {
    let Some(bytes) = &step.bytes else { return };
    let change = match decode(bytes, false).unwrap() {
        Message::Insert { new, .. } => Change::Insert { new },
        Message::Update { old, new, .. } => Change::Update { old, new },
        Message::Delete { old, .. } => Change::Delete { old },
        other => panic!("{other:?} is no change of a row"),
    };
    take(&change);
}

pub(super) fn gather(
    steps: &[Step],
    role_replica: bool,
    max_keys: u64,
) -> Result<Touches, TooManyKeys> {
    let mut gathering = Gathering::new(role_replica, max_keys);
    for step in steps {
        if step.bytes.is_none() {
            gathering.truncate(&step.table.target(), &step.table.ties);
        }
        let reach = step.table.reach();
        with_change(step, |change| gathering.change(&reach, change));
    }
    gathering.finish()
}

pub(super) fn touches(steps: &[Step]) -> Touches {
    gather(steps, true, u64::MAX).unwrap()
}

pub(super) fn hits(footprints: &Footprints, steps: &[Step]) -> Hits {
    let mut comparing = Comparing::new(footprints, true);
    for step in steps {
        if step.bytes.is_none() {
            comparing.truncate(step.table.ties.root.as_ref().unwrap(), &step.table.target());
        }
        let reach = step.table.reach();
        with_change(step, |change| comparing.change(&reach, change));
    }
    comparing.finish()
}
