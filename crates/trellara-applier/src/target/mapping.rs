//! How the changes of one relation, as the source described it, go into one table of the target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use trellara_pgoutput::{Relation, RelationMap, ReplicaIdentity};

use super::{TargetTable, UniqueIndex, definition};
use crate::execute::{ApplyError, ApplyErrorKind};

/// Statements remembered per mapping. A table whose updates leave out ever other sets of TOASTed
/// columns starts over instead of growing.
const REMEMBERED_STATEMENTS: usize = 64;

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
    /// When the whole row is compared: a column (not NULL in the old row) by whose index the
    /// search is narrowed.
    pub(crate) narrow: Option<u16>,
}

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
        Ok(Mapping {
            table,
            relation,
            target,
            written,
            finding,
            matching,
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
