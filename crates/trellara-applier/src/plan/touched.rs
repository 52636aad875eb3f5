//! Values that came under constraints which the replica role leaves unenforced (C37).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::array::TextArray;
use super::change::Move;
use crate::target::{Mapping, TargetTable};

/// Values remembered per constraint. Beyond, all rows that the transaction wrote are looked at,
/// which costs a walk over the table but no memory here.
const REMEMBERED_BYTES: usize = 1 << 20;

/// The tables concerned, by OID.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    tables: BTreeMap<u32, TouchedTable>,
}

/// What was touched in one table.
#[derive(Debug)]
pub(crate) struct TouchedTable {
    pub(crate) table: Arc<TargetTable>,
    /// For each of the table's deferrable constraints its columns' values, row by row; `None` when
    /// they are not known or too many.
    pub(crate) values: Vec<Option<Vec<TextArray>>>,
}

impl Touched {
    /// Notes the row that a change leaves behind.
    pub(crate) fn note(&mut self, mapping: &Mapping, moved: &Move<'_>) {
        let table = &mapping.table;
        if table.deferrable.is_empty() || !moved.leaves_a_row() {
            return;
        }
        let touched = self
            .tables
            .entry(table.oid)
            .or_insert_with(|| TouchedTable {
                table: Arc::clone(table),
                values: table
                    .deferrable
                    .iter()
                    .map(|constraint| {
                        let known = !constraint.exclusion && !constraint.columns.is_empty();
                        known.then(|| vec![TextArray::default(); constraint.columns.len()])
                    })
                    .collect(),
            });
        for (constraint, values) in table.deferrable.iter().zip(&mut touched.values) {
            let Some(arrays) = values else { continue };
            let row: Option<Vec<Option<&[u8]>>> = constraint
                .columns
                .iter()
                .map(|column| moved.new_value(mapping.target.iter().position(|t| t == column)?))
                .collect();
            let Some(row) = row else {
                *values = None;
                continue;
            };
            arrays
                .iter_mut()
                .zip(row)
                .for_each(|(array, value)| array.push(value));
            if arrays.iter().map(TextArray::bytes).sum::<usize>() > REMEMBERED_BYTES {
                *values = None;
            }
        }
    }

    /// The tables to check.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &TouchedTable> {
        self.tables.values()
    }
}
