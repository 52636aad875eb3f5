//! One change of a row, fitted to its target table.

use trellara_pgoutput::{OldTuple, TupleRef, Value};

use crate::execute::{ApplyError, ApplyErrorKind};
use crate::target::{Finding, Mapping, Narrow, Shape};

/// A change as it came.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'m> {
    Insert {
        new: TupleRef<'m>,
    },
    Update {
        old: Option<OldTuple<'m>>,
        new: TupleRef<'m>,
    },
    Delete {
        old: OldTuple<'m>,
    },
}

/// What a change does to the target: a shape and the values of its parameters.
pub(crate) struct Move<'m> {
    pub(crate) shape: Shape,
    /// Column by column what the old row is found by; empty for an insert.
    old: Vec<Value<'m>>,
    /// The new row; empty for a delete.
    new: Vec<Value<'m>>,
    /// The old row's key gets other values.
    pub(crate) key_changes: bool,
    /// See [`crate::target::Form::narrow`].
    pub(crate) narrow: Narrow,
    /// Source positions of the parameters: in `old`, then in `new`.
    old_columns: Vec<u16>,
    new_columns: Vec<u16>,
}

impl<'m> Move<'m> {
    /// Fits a change to its table.
    ///
    /// # Errors
    /// A tuple that does not fit the relation, and an old row that cannot be found.
    pub(crate) fn of(mapping: &Mapping, change: &Change<'m>) -> Result<Self, ApplyError> {
        match change {
            Change::Insert { new } => {
                let new = values(mapping, *new)?;
                if new.contains(&Value::Unchanged) {
                    return Err(corrupt("an inserted row leaves a column out"));
                }
                Ok(Self::new(
                    Shape::Insert,
                    Vec::new(),
                    new,
                    Vec::new(),
                    mapping.written.clone(),
                ))
            }
            Change::Delete { old } => {
                let old = old_row(mapping, Some(old), &[])?;
                let mut moved = Self::new(
                    Shape::Delete,
                    old,
                    Vec::new(),
                    mapping.matching.clone(),
                    Vec::new(),
                );
                moved.narrow = moved.narrowing(mapping);
                Ok(moved)
            }
            Change::Update { old, new } => Self::update(mapping, old.as_ref(), *new),
        }
    }

    fn new(
        shape: Shape,
        old: Vec<Value<'m>>,
        new: Vec<Value<'m>>,
        old_columns: Vec<u16>,
        new_columns: Vec<u16>,
    ) -> Self {
        Move {
            shape,
            old,
            new,
            key_changes: false,
            narrow: Narrow::default(),
            old_columns,
            new_columns,
        }
    }

    fn update(
        mapping: &Mapping,
        old: Option<&OldTuple<'m>>,
        new: TupleRef<'m>,
    ) -> Result<Self, ApplyError> {
        let new = values(mapping, new)?;
        let whole_old = matches!(old, Some(OldTuple::Full(_)));
        let old = old_row(mapping, old, &new)?;
        // `None`: the old value was not sent. A key's values were, or are the new ones.
        let unchanged = |c: usize| match new[c] {
            Value::Unchanged => Some(true),
            new if whole_old || mapping.is_key[c] => Some(old[c] == new),
            _ => None,
        };
        let (mut set, mut replaces, mut key_changes) = (Vec::new(), false, false);
        for &column in &mapping.written {
            let c = usize::from(column);
            let is_unchanged = unchanged(c);
            if is_unchanged != Some(true) {
                key_changes |= mapping.is_key[c];
                // It can only be updated to DEFAULT, even to the value it has.
                replaces |= mapping.target_column(column).identity_always;
            }
            let stays = is_unchanged == Some(true)
                && (new[c] == Value::Unchanged
                    || mapping.is_key[c]
                    || mapping.target_column(column).identity_always);
            if !stays {
                set.push(column);
            }
        }
        let shape = match (set.is_empty(), replaces) {
            (true, _) => Shape::Touch,
            (false, true) => Shape::Replace(set.clone()),
            (false, false) => Shape::Update(set.clone()),
        };
        let mut moved = Self::new(shape, old, new, mapping.matching.clone(), set);
        moved.key_changes = key_changes;
        moved.narrow = moved.narrowing(mapping);
        Ok(moved)
    }

    /// The values of the statement's parameters, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = Option<&'m [u8]>> + '_ {
        let old = self
            .old_columns
            .iter()
            .map(|&c| text(self.old[usize::from(c)]));
        let new = self
            .new_columns
            .iter()
            .map(|&c| text(self.new[usize::from(c)]));
        old.chain(new)
    }

    /// The values that tell the rows of a run apart; only for updates and deletes by key.
    pub(crate) fn key(&self) -> impl Iterator<Item = Option<&'m [u8]>> + '_ {
        self.old_columns
            .iter()
            .map(|&c| text(self.old[usize::from(c)]))
    }

    /// The new value of a source column: outer `None` when the row goes or the value was not sent.
    pub(crate) fn new_value(&self, column: usize) -> Option<Option<&'m [u8]>> {
        match self.new.get(column) {
            None | Some(Value::Unchanged) => None,
            Some(value) => Some(text(*value)),
        }
    }

    /// Whether a new row comes of it.
    pub(crate) fn leaves_a_row(&self) -> bool {
        !matches!(self.shape, Shape::Delete)
    }

    /// The values of the key with which the source leaves the row behind, or with which it was
    /// deleted, in the order of `mapping.matching`.
    pub(crate) fn key_left_behind<'a>(
        &'a self,
        mapping: &'a Mapping,
    ) -> impl Iterator<Item = Option<&'m [u8]>> + 'a {
        mapping.matching.iter().map(|&c| {
            let c = usize::from(c);
            let new = self.new_value(c);
            new.unwrap_or_else(|| self.old.get(c).and_then(|value| text(*value)))
        })
    }

    /// Looks for the old row and does nothing to it.
    pub(crate) fn touching_old(&self, mapping: &Mapping) -> Self {
        let mut moved = Self::new(
            Shape::Touch,
            self.old.clone(),
            Vec::new(),
            mapping.matching.clone(),
            Vec::new(),
        );
        moved.narrow = self.narrow;
        moved
    }

    /// Looks for a row with the new row's key; `None` where no key finds it.
    pub(crate) fn touching_new(&self, mapping: &Mapping) -> Option<Self> {
        (mapping.finding == Finding::Key).then(|| {
            let matching = mapping.matching.clone();
            Self::new(
                Shape::Touch,
                self.new.clone(),
                Vec::new(),
                matching,
                Vec::new(),
            )
        })
    }

    /// Of an insert: makes a row with its key what the inserted one would be; `None` where no key
    /// finds it.
    pub(crate) fn overwriting(&self, mapping: &Mapping) -> Option<Self> {
        let found = self.touching_new(mapping)?;
        let beside = |c: &&u16| !mapping.is_key[usize::from(**c)];
        let set: Vec<u16> = mapping.written.iter().filter(beside).copied().collect();
        let always = |&c: &u16| mapping.target_column(c).identity_always;
        let shape = match (set.is_empty(), set.iter().any(always)) {
            (true, _) => return Some(found),
            (false, true) => Shape::Replace(set.clone()),
            (false, false) => Shape::Update(set.clone()),
        };
        let (old, new) = (self.new.clone(), self.new.clone());
        Some(Self::new(shape, old, new, mapping.matching.clone(), set))
    }

    /// Of an update: inserts the row that it leaves behind; `None` when not all of it was sent.
    pub(crate) fn inserting(&self, mapping: &Mapping, change: &Change<'m>) -> Option<Self> {
        let whole_old = matches!(
            change,
            Change::Update {
                old: Some(OldTuple::Full(_)),
                ..
            }
        );
        let new: Vec<Value<'m>> = self
            .new
            .iter()
            .zip(&self.old)
            .map(|(new, old)| match new {
                Value::Unchanged if whole_old => *old,
                new => *new,
            })
            .collect();
        let written = mapping.written.clone();
        let sent = |&c: &u16| new.get(usize::from(c)) != Some(&Value::Unchanged);
        let all = written.iter().all(sent);
        all.then(|| Self::new(Shape::Insert, Vec::new(), new, Vec::new(), written))
    }

    /// Bytes of the parameters.
    pub(crate) fn bytes(&self) -> usize {
        self.values()
            .map(|value| value.map_or(0, <[u8]>::len))
            .sum()
    }

    fn narrowing(&self, mapping: &Mapping) -> Narrow {
        mapping.narrow(|c| self.old[usize::from(c)] != Value::Null)
    }
}

fn text(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Text(text) => Some(text),
        // Binary and unchanged values never get here: `values` and `old_row` refuse them.
        Value::Null | Value::Unchanged | Value::Binary(_) => None,
    }
}

fn values<'m>(mapping: &Mapping, tuple: TupleRef<'m>) -> Result<Vec<Value<'m>>, ApplyError> {
    let columns = mapping.target.len();
    if tuple.len() != columns {
        let have = tuple.len();
        return Err(corrupt(format!(
            "a row of {have} columns for a relation of {columns}"
        )));
    }
    let values: Vec<Value<'m>> = tuple.iter().collect();
    if values.iter().any(|value| matches!(value, Value::Binary(_))) {
        return Err(corrupt(
            "a value in binary form; the option `binary` is never set",
        ));
    }
    Ok(values)
}

/// The old row as far as it was sent, `new` standing in where nothing was: an update without an
/// old row did not change its key.
fn old_row<'m>(
    mapping: &Mapping,
    old: Option<&OldTuple<'m>>,
    new: &[Value<'m>],
) -> Result<Vec<Value<'m>>, ApplyError> {
    let row = match (mapping.finding, old) {
        (Finding::Nothing, _) => return Err(no_identity()),
        (Finding::WholeRow, Some(OldTuple::Full(old))) => values(mapping, *old)?,
        (Finding::WholeRow, _) => return Err(no_identity()),
        (Finding::Key, Some(OldTuple::Full(old))) => values(mapping, *old)?,
        // Of a key tuple only the columns flagged as key mean anything; all others are NULL (B85).
        (Finding::Key, Some(OldTuple::Key(old))) => {
            if mapping
                .matching
                .iter()
                .any(|&c| !mapping.relation.columns[usize::from(c)].key)
            {
                return Err(no_identity());
            }
            values(mapping, *old)?
        }
        (Finding::Key, None) => new.to_vec(),
    };
    let sent = |&c: &u16| {
        row.get(usize::from(c))
            .is_some_and(|value| *value != Value::Unchanged)
    };
    if mapping.matching.iter().all(sent) {
        Ok(row)
    } else {
        Err(corrupt("a value that finds the old row was not sent"))
    }
}

fn no_identity() -> ApplyError {
    ApplyError::new(
        ApplyErrorKind::Schema,
        "the source sends nothing by which the old row could be found",
    )
    .hint("give the source's table a primary key, or set its REPLICA IDENTITY to an index or FULL")
}

fn corrupt(message: impl Into<String>) -> ApplyError {
    ApplyError::new(ApplyErrorKind::Corrupt, message)
}
