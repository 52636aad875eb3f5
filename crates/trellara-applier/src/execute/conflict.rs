//! Changes that do not find the target as they should, and what the flow's rules make of them.
//!
//! They are looked at only in the repetition that goes row by row, so that a conflict costs nothing
//! as long as there is none: the first attempt fails like any other (C36). A rule acts only where it
//! is plain that there is a conflict: where a trigger or rule of the target may have kept a row out,
//! the row itself is looked for. Everything else is the error that it is without rules.
//!
//! Deferrable unique constraints are compared at the end, not per row (C37): no rule acts on them.

use std::sync::Arc;

use super::{ApplyError, ApplyErrorKind, Executor};
use crate::plan::{Change, Move, Step};
use crate::quarantine::{ConflictRule, Conflicts};
use crate::target::{Finding, Mapping, Shape, TableName, TargetTable};

/// A change that a rule let go by or wrote over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Which surviving change of its transaction, from 1.
    pub change: u64,
    /// `insert`, `update` or `delete`.
    pub verb: &'static str,
    /// Which conflict.
    pub conflict: Conflict,
    /// Which rule; never [`ConflictRule::Error`].
    pub rule: ConflictRule,
    /// The table.
    pub table: TableName,
    /// The row's key as the source has it now, of a deleted row as it was; empty where the table has
    /// none. Data: they are kept in the target and never logged.
    pub key: Vec<(String, Option<String>)>,
}

/// How a change does not find the target as it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The row to update or delete is not there.
    MissingRow,
    /// The key of the row to insert is there.
    DuplicateKey,
}

impl Conflict {
    /// The word in `trellara.skipped`.
    pub fn as_str(self) -> &'static str {
        match self {
            Conflict::MissingRow => "missing_row",
            Conflict::DuplicateKey => "duplicate_key",
        }
    }
}

/// A change whose table has rules.
struct Ruled<'a, 'm> {
    mapping: &'a Arc<Mapping>,
    change: &'a Change<'m>,
    moved: Move<'m>,
    rule: ConflictRule,
    conflict: Conflict,
}

impl Executor<'_> {
    /// The rules of a table; `None` where nothing but an error is wanted, or where changes may go
    /// together.
    pub(super) fn rules_of(&self, table: &TargetTable) -> Option<Conflicts> {
        let rules = self.rules?;
        let conflicts = rules.of(&table.schema, &table.name);
        (conflicts != Conflicts::default()).then_some(conflicts)
    }

    /// Applies a change alone, and asks its table's rules when it is in conflict.
    pub(super) async fn apply_ruled(
        &mut self,
        mapping: &Arc<Mapping>,
        change: &Change<'_>,
        conflicts: Conflicts,
    ) -> Result<(), ApplyError> {
        let moved = self.planner.fit(mapping, change)?;
        self.send_ready().await?;
        self.send_prologue().await?;
        let (rule, conflict) = match moved.shape {
            Shape::Insert => (conflicts.duplicate_key, Conflict::DuplicateKey),
            Shape::Update(_) | Shape::Replace(_) | Shape::Touch | Shape::Delete => {
                (conflicts.missing_row, Conflict::MissingRow)
            }
        };
        let ruled = Ruled {
            mapping,
            change,
            moved,
            rule,
            conflict,
        };
        let acted = match (rule, conflict) {
            (ConflictRule::Error, _) => return self.as_ever(&ruled).await,
            (_, Conflict::DuplicateKey) => self.insert_ruled(&ruled).await?,
            (_, Conflict::MissingRow) => self.find_ruled(&ruled).await?,
        };
        if acted {
            self.skipped
                .push(ruled.skipped(self.planner.place().change));
        }
        Ok(())
    }

    /// Whether the rule acted; otherwise the row was inserted.
    async fn insert_ruled(&mut self, ruled: &Ruled<'_, '_>) -> Result<bool, ApplyError> {
        let mut step = self.planner.step(ruled.mapping, &ruled.moved);
        step.sql = format!("{} ON CONFLICT DO NOTHING", step.sql).into();
        if self.touches_one(step).await? {
            return Ok(false);
        }
        let mapping = ruled.mapping;
        let row = match ruled.rule {
            ConflictRule::Error | ConflictRule::Skip if self.fires(&mapping.table) => {
                ruled.moved.touching_new(mapping)
            }
            ConflictRule::Error | ConflictRule::Skip => return Ok(true),
            ConflictRule::Overwrite => ruled.moved.overwriting(mapping),
        };
        if let Some(row) = row.filter(|row| self.planner.may(row)) {
            let step = self.planner.step(mapping, &row);
            if self.touches_one(step).await? {
                return Ok(true);
            }
        }
        // Another key than the row's own is there, or something kept the row out: the server says.
        self.as_ever(ruled).await.map(|()| false)
    }

    /// Whether the rule acted; otherwise the row was there.
    async fn find_ruled(&mut self, ruled: &Ruled<'_, '_>) -> Result<bool, ApplyError> {
        let mapping = ruled.mapping;
        let step = self.planner.step(mapping, &ruled.moved);
        if self.touches_one(step).await? {
            return Ok(false);
        }
        let there = if self.fires(&mapping.table) {
            let step = self
                .planner
                .step(mapping, &ruled.moved.touching_old(mapping));
            self.touches_one(step).await?
        } else {
            false
        };
        let overwrite = ruled.rule == ConflictRule::Overwrite;
        if there || overwrite && mapping.finding != Finding::Key {
            return self.as_ever(ruled).await.map(|()| false);
        }
        if overwrite && ruled.moved.leaves_a_row() {
            let row = ruled.moved.inserting(mapping, ruled.change);
            let row = row.ok_or_else(not_sent)?;
            let step = self.planner.step(mapping, &row);
            self.run(step).await?;
        }
        Ok(true)
    }

    /// The change as it is without rules.
    async fn as_ever(&mut self, ruled: &Ruled<'_, '_>) -> Result<(), ApplyError> {
        let step = self.planner.step(ruled.mapping, &ruled.moved);
        self.run(step).await
    }

    async fn run(&mut self, step: Step<'_>) -> Result<(), ApplyError> {
        let statements = &mut self.catalog.statements;
        self.pipeline.run_alone(statements, step).await
    }

    /// Whether the statement touched one row; `false` when it touched none.
    async fn touches_one(&mut self, step: Step<'_>) -> Result<bool, ApplyError> {
        let statements = &mut self.catalog.statements;
        self.pipeline.run_for_one(statements, step).await
    }

    fn fires(&self, table: &TargetTable) -> bool {
        self.planner.fires(table)
    }
}

impl Ruled<'_, '_> {
    fn skipped(&self, change: u64) -> Skipped {
        let mapping = self.mapping;
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let key = self.moved.key_left_behind(mapping);
        let names = mapping.matching.iter();
        let names = names.map(|&c| mapping.target_column(c).name.clone());
        Skipped {
            change,
            verb: match self.moved.shape {
                Shape::Insert => "insert",
                Shape::Update(_) | Shape::Replace(_) | Shape::Touch => "update",
                Shape::Delete => "delete",
            },
            conflict: self.conflict,
            rule: self.rule,
            table: TableName::new(&mapping.table.schema, &mapping.table.name),
            key: match mapping.finding {
                Finding::Key => names.zip(key.map(|value| value.map(text))).collect(),
                Finding::WholeRow | Finding::Nothing => Vec::new(),
            },
        }
    }
}

fn not_sent() -> ApplyError {
    ApplyError::new(
        ApplyErrorKind::Count,
        "the row to update is not on the target, and the source did not send all of it",
    )
    .hint(
        "insert the row by hand, or set the REPLICA IDENTITY of the source's table to FULL before \
         the next update of such a row",
    )
}
