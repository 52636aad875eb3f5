//! How the changes of one relation, as the source described it, go into one table of the target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trellara_pgoutput::{Relation, RelationMap, ReplicaIdentity};

use super::{TargetTable, UniqueIndex, definition};
use crate::execute::{ApplyError, ApplyErrorKind};

/// Statements remembered per mapping. A table whose updates leave out ever other sets of TOASTed
/// columns starts over instead of growing.
const REMEMBERED_STATEMENTS: usize = 64;

/// Each that may be NULL doubles the number of statements that a table's changes can need.
const NULLABLE_NARROWING: usize = 4;

/// A relation of the source fitted to a table of the target; columns are matched by name.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) table: Arc<TargetTable>,
    pub(crate) relation: Arc<Relation>,
    /// For each source column its position in the target table.
    pub(crate) target: Vec<usize>,
    /// Source columns that are written: all but those that the target computes.
    pub(crate) written: Vec<u16>,
    /// How old rows are found.
    pub(crate) finding: Finding,
    /// Source columns whose values find a row, in the order of the statements' first parameters.
    pub(crate) matching: Vec<u16>,
    /// When the whole row is compared: those of `matching` that an index of the target holds, so
    /// that the search can be narrowed by them where the old row has a value.
    narrowing: Vec<u16>,
    /// For each source column whether it is in `matching` and the finding is by key.
    pub(crate) is_key: Vec<bool>,
    /// `matching` is exactly a unique, immediate key on NOT NULL columns of the target, so that
    /// rows of a run are told apart by it.
    pub(crate) unique_key: bool,
    /// Values of another unique index could move between the rows of a run.
    pub(crate) values_may_move: bool,
    statements: Mutex<HashMap<(Shape, Form), Arc<str>>>,
}

/// How an old row is found on the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// By the values of key columns.
    Key,
    /// By all columns, and then exactly one row of those that look the same (B87).
    WholeRow,
    /// Not at all: the source sends nothing of the old row.
    Nothing,
}

/// How a statement gets its values; with its [`Shape`] it says its SQL text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Over arrays with one value per row of a run, or over single values.
    pub(crate) run: bool,
    /// By which columns the search for a whole row is narrowed.
    pub(crate) narrow: Narrow,
}

/// Columns (not NULL in the old row) of indexes, by which a search is narrowed: a bit for each of
/// those that [`Mapping`] found fit for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Narrow(u32);

/// What a statement does; one SQL text per shape and form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// Parameters: written columns.
    Insert,
    /// Parameters: matching columns, then those set (source positions).
    Update(Vec<u16>),
    /// An update of a GENERATED ALWAYS identity column, as DELETE … INSERT. Parameters: matching
    /// columns, then those given; the others keep their values.
    Replace(Vec<u16>),
    /// An update that sets nothing the target stores; the row must be there all the same.
    Touch,
    /// Parameters: matching columns.
    Delete,
}

impl Mapping {
    /// Fits `relation` to `table`.
    ///
    /// # Errors
    /// A column of the source that the target does not have, with the statement that adds it.
    pub(crate) fn new(
        table: Arc<TargetTable>,
        relation: Arc<Relation>,
        relations: &RelationMap,
    ) -> Result<Self, ApplyError> {
        let target = fit(&table, &relation, relations)?;
        let written = positions(target.len(), |c| !table.columns[target[c]].generated);
        let flagged = positions(target.len(), |c| relation.columns[c].key);
        let (finding, matching) = match relation.replica_identity {
            ReplicaIdentity::Nothing => (Finding::Nothing, Vec::new()),
            ReplicaIdentity::Default | ReplicaIdentity::Index if flagged.is_empty() => {
                (Finding::Nothing, Vec::new())
            }
            ReplicaIdentity::Default | ReplicaIdentity::Index => (Finding::Key, flagged),
            ReplicaIdentity::Full => match target_key(&table, &target) {
                Some(key) => (Finding::Key, key),
                None => (Finding::WholeRow, written.clone()),
            },
        };
        let mut is_key = vec![false; target.len()];
        if finding == Finding::Key {
            matching.iter().for_each(|&c| is_key[usize::from(c)] = true);
        }
        let key: Vec<usize> = matching.iter().map(|&c| target[usize::from(c)]).collect();
        let same = |index: &UniqueIndex| {
            index.columns.len() == key.len()
                && index
                    .columns
                    .iter()
                    .all(|c| c.is_some_and(|c| key.contains(&c)))
        };
        let unique_key =
            finding == Finding::Key && table.uniques.iter().any(|i| i.finds_rows && same(i));
        let stays = |index: &UniqueIndex| {
            !index.immediate
                || index
                    .columns
                    .iter()
                    .all(|c| c.is_some_and(|c| key.contains(&c)))
        };
        let values_may_move = !table.uniques.iter().all(stays);
        let narrowing = match finding {
            Finding::WholeRow => narrowing(&table, &target, &matching),
            Finding::Key | Finding::Nothing => Vec::new(),
        };
        Ok(Mapping {
            table,
            relation,
            target,
            written,
            finding,
            matching,
            narrowing,
            is_key,
            unique_key,
            values_may_move,
            statements: Mutex::default(),
        })
    }

    /// The target column of a source column.
    pub(crate) fn target_column(&self, source: u16) -> &super::TargetColumn {
        &self.table.columns[self.target[usize::from(source)]]
    }

    /// By what the search for an old row is narrowed, of which `given` says which columns are not
    /// NULL: by every column of an index, for the first alone may be the same in all rows. When none
    /// of them leads its index, none helps.
    pub(crate) fn narrow(&self, given: impl Fn(u16) -> bool) -> Narrow {
        let leads = |&c: &u16| self.target_column(c).leads_index && given(c);
        if !self.narrowing.iter().any(leads) {
            return Narrow::default();
        }
        let given = self.narrowing.iter().map(|&c| u32::from(given(c)));
        Narrow(given.zip(0..).fold(0, |bits, (is, n)| bits | is << n))
    }

    /// Whether that source column is one by which the search is narrowed.
    pub(crate) fn narrows(&self, narrow: Narrow, source: u16) -> bool {
        let place = self.narrowing.iter().position(|&c| c == source);
        place.is_some_and(|place| narrow.0 >> place & 1 == 1)
    }

    /// The SQL of a shape in a form, rendered once.
    pub(crate) fn statement(
        &self,
        shape: &Shape,
        form: Form,
        render: impl FnOnce() -> String,
    ) -> Arc<str> {
        let mut statements = self
            .statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (shape.clone(), form);
        if let Some(known) = statements.get(&key) {
            return Arc::clone(known);
        }
        if statements.len() >= REMEMBERED_STATEMENTS {
            statements.clear();
        }
        let sql: Arc<str> = render().into();
        statements.insert(key, Arc::clone(&sql));
        sql
    }
}

/// Those of `matching` that are worth a comparison of their own: all that are never NULL, and of the
/// others a few, first those with which an index begins.
fn narrowing(table: &TargetTable, target: &[usize], matching: &[u16]) -> Vec<u16> {
    let column = |c: &u16| &table.columns[target[usize::from(*c)]];
    let indexed = matching.iter().filter(|c| column(c).equality.is_some());
    let (mut fit, mut nullable): (Vec<u16>, Vec<u16>) = indexed.partition(|c| column(c).not_null);
    nullable.sort_by_key(|c| !column(c).leads_index);
    nullable.truncate(NULLABLE_NARROWING);
    fit.truncate(u32::BITS as usize - nullable.len());
    fit.extend(nullable);
    fit
}

/// Source columns that satisfy `wanted`. PostgreSQL allows 1600 columns, so positions fit.
fn positions(columns: usize, wanted: impl Fn(usize) -> bool) -> Vec<u16> {
    (0..columns)
        .filter(|&c| wanted(c))
        .filter_map(|c| u16::try_from(c).ok())
        .collect()
}

fn fit(
    table: &TargetTable,
    relation: &Relation,
    relations: &RelationMap,
) -> Result<Vec<usize>, ApplyError> {
    let missing: Vec<_> = relation
        .columns
        .iter()
        .filter(|c| table.column(&c.name).is_none())
        .collect();
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|c| c.name.as_str()).collect();
        let statements: Vec<String> = missing
            .iter()
            .map(|c| definition::add_column(relation, c, relations))
            .collect();
        return Err(ApplyError::new(
            ApplyErrorKind::Schema,
            format!("the target's table has no column {}", names.join(", ")),
        )
        .on(&table.schema, &table.name)
        .hint(statements.join(" ")));
    }
    Ok(relation
        .columns
        .iter()
        .filter_map(|c| table.column(&c.name))
        .collect())
}

/// The target's own key, where the source sends whole old rows: the first unique index that finds
/// rows and of which the source has every column.
fn target_key(table: &TargetTable, target: &[usize]) -> Option<Vec<u16>> {
    let source = |column: &Option<usize>| {
        let column = (*column)?;
        // The target's own computation may differ from what the source sent.
        if table.columns[column].generated {
            return None;
        }
        u16::try_from(target.iter().position(|&t| t == column)?).ok()
    };
    table
        .uniques
        .iter()
        .filter(|index| index.finds_rows)
        .find_map(|index| index.columns.iter().map(source).collect())
}
