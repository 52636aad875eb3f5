//! Like changes of one table that go as one statement.

use std::collections::HashSet;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::Step;
use super::array::{Parameter, TextArray};
use super::change::Move;
use crate::execute::Place;
use crate::target::{Form, Mapping, Narrow, Shape};

/// Rows gathered for one statement; never empty.
#[derive(Debug)]
pub(crate) struct Run {
    mapping: Arc<Mapping>,
    shape: Shape,
    narrow: Narrow,
    parameters: Vec<TextArray>,
    rows: u32,
    bytes: usize,
    first: Place,
    /// Hashes of the keys in it: a key that comes again begins a new run, because a statement over
    /// arrays would silently take only one of the two. A collision only begins one too early.
    keys: HashSet<u64>,
}

impl Run {
    /// A run of one row, which others may join when `grows`.
    pub(crate) fn begin(
        mapping: &Arc<Mapping>,
        moved: &Move<'_>,
        first: Place,
        grows: bool,
    ) -> Self {
        let mut run = Run {
            mapping: Arc::clone(mapping),
            shape: moved.shape.clone(),
            narrow: moved.narrow,
            parameters: moved.values().map(|_| TextArray::default()).collect(),
            rows: 0,
            bytes: 0,
            first,
            keys: HashSet::new(),
        };
        if grows && run.shape != Shape::Insert {
            run.keys.insert(key_hash(moved));
        }
        run.push_values(moved);
        run
    }

    /// Whether the row fits the statement.
    pub(crate) fn takes(&self, mapping: &Arc<Mapping>, moved: &Move<'_>) -> bool {
        Arc::ptr_eq(&self.mapping, mapping)
            && self.shape == moved.shape
            && (self.shape == Shape::Insert || !self.keys.contains(&key_hash(moved)))
    }

    /// Adds a row that [`Run::takes`]; returns the bytes added.
    pub(crate) fn push(&mut self, moved: &Move<'_>) -> usize {
        if self.shape != Shape::Insert {
            self.keys.insert(key_hash(moved));
        }
        self.push_values(moved)
    }

    pub(crate) fn root(&self) -> u32 {
        self.mapping.table.root
    }

    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn into_step(self) -> Step<'static> {
        let run = self.rows > 1;
        let parameter = if run { Parameter::Rows } else { Parameter::Row };
        let form = Form {
            run,
            narrow: self.narrow,
        };
        Step {
            parameters: self.parameters.into_iter().map(parameter).collect(),
            rows: Some(u64::from(self.rows)),
            changes: u64::from(self.rows),
            ..Step::of(&self.mapping, &self.shape, form, self.first)
        }
    }

    fn push_values(&mut self, moved: &Move<'_>) -> usize {
        let before = self.bytes;
        for (array, value) in self.parameters.iter_mut().zip(moved.values()) {
            array.push(value);
            self.bytes += 4 + value.map_or(0, <[u8]>::len);
        }
        self.rows += 1;
        self.bytes - before
    }
}

fn key_hash(moved: &Move<'_>) -> u64 {
    let mut hash = Xxh3::new();
    for value in moved.key() {
        let length = value.map_or(u64::MAX, |text| text.len() as u64);
        hash.update(&length.to_be_bytes());
        hash.update(value.unwrap_or_default());
    }
    hash.digest()
}
