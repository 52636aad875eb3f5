//! Which statements carry which changes; pure.
//!
//! Changes of one table keep their order. Like changes of a table that follow one another go as
//! one statement over text arrays; between tables the order is given up only where nobody can see
//! it: under the replica role, and only for tables on which nothing fires.

mod array;
mod change;
mod render;
mod run;
mod touched;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use self::array::{Parameter, TextArray};
pub(crate) use self::change::{Change, Move};
pub(crate) use self::render::arrays;
use self::render::render;
use self::run::Run;
pub(crate) use self::touched::{Touched, TouchedTable};
use crate::execute::{ApplyError, ApplyErrorKind, Place};
use crate::target::{Form, Mapping, Shape, TargetTable};

/// Rows of one statement. From about a hundred rows on the cost per row is flat, and a shorter
/// statement leaves less to repeat.
const RUN_ROWS: u32 = 2000;
/// Bytes of one statement's values.
const RUN_BYTES: usize = 1 << 20;
/// Bytes gathered in all runs together.
const GATHERED_BYTES: usize = 4 << 20;
/// Tables for which runs are gathered at once.
const GATHERED_RUNS: usize = 64;
/// A row with more than this goes alone, without being copied here.
const LARGE_ROW: usize = 1 << 20;

/// A statement with its values, and what it must do.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) sql: Arc<str>,
    pub(crate) parameters: Vec<Parameter<'a>>,
    /// Rows it must touch; `None` where the server does not count (TRUNCATE).
    pub(crate) rows: Option<u64>,
    /// Where its first change stands.
    pub(crate) first: Place,
    pub(crate) changes: u64,
    pub(crate) verb: &'static str,
    pub(crate) table: Arc<TargetTable>,
}

/// How tables are emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Emptying {
    /// As the source did.
    Truncate,
    /// Row by row. Of the source's TRUNCATE a table is left out, and if foreign keys of that one
    /// point at the others, the server refuses to truncate them. Only under the replica role: nothing
    /// follows from a row that goes there.
    Delete,
}

/// What a TRUNCATE does with the sequences that belong to the tables' columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Leaves them.
    Continue,
    /// RESTART IDENTITY, which takes their owner.
    Restart,
    /// The same for a role that may only UPDATE them. `setval` is not undone by a rollback; the
    /// transaction is then tried again, and the replicated rows bring their numbers along anyway.
    SetBack,
}

/// A constraint whose checks may wait for the end of the transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deferrable {
    /// Quoted, with its schema.
    pub(crate) name: String,
    /// INITIALLY DEFERRED.
    pub(crate) waits: bool,
}

/// FROM and WHERE of a query over the sequences that belong to columns of the tables and of their
/// partitions: `q` is the row of `pg_sequence`, `s` that of `pg_class`.
pub(crate) fn owned_sequences(tables: &[Arc<TargetTable>]) -> String {
    let oids: Vec<String> = tables.iter().map(|table| table.oid.to_string()).collect();
    format!(
        "FROM pg_catalog.unnest('{{{}}}'::pg_catalog.oid[]) AS t(oid) \
         CROSS JOIN LATERAL (SELECT t.oid UNION \
              SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid) AS p) AS r(oid) \
         JOIN pg_catalog.pg_depend AS d ON d.refobjid = r.oid AND d.deptype IN ('a', 'i') \
          AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass \
          AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
         JOIN pg_catalog.pg_sequence AS q ON q.seqrelid = d.objid \
         JOIN pg_catalog.pg_class AS s ON s.oid = d.objid",
        oids.join(",")
    )
}

impl Step<'_> {
    /// Bytes of its values.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |parameter: &Parameter<'_>| match parameter {
            Parameter::Rows(array) | Parameter::Row(array) => array.bytes(),
            Parameter::Borrowed(value) => value.map_or(0, <[u8]>::len),
        };
        self.sql.len() + self.parameters.iter().map(bytes).sum::<usize>()
    }
}

/// Gathers changes and gives them back as statements.
#[derive(Debug)]
pub(crate) struct Planner {
    role_replica: bool,
    set_wise: bool,
    place: Place,
    /// At most one per partition tree, oldest first.
    runs: Vec<Run>,
    gathered_bytes: usize,
    ready: Vec<Step<'static>>,
    touched: Touched,
}

impl Planner {
    pub(crate) fn new(role_replica: bool, set_wise: bool) -> Self {
        Self {
            role_replica,
            set_wise,
            place: Place {
                transaction: 1,
                change: 0,
            },
            runs: Vec::new(),
            gathered_bytes: 0,
            ready: Vec::new(),
            touched: Touched::default(),
        }
    }

    /// The changes from here on belong to the next transaction.
    pub(crate) fn next_transaction(&mut self) {
        self.place = Place {
            transaction: self.place.transaction + 1,
            change: 0,
        };
    }

    /// Whether triggers and foreign keys do nothing.
    pub(crate) fn is_role_replica(&self) -> bool {
        self.role_replica
    }

    /// Whether like changes may go together.
    pub(crate) fn is_set_wise(&self) -> bool {
        self.set_wise
    }

    /// Counts a change; to be called before it is looked at, so that errors name it.
    pub(crate) fn count(&mut self) -> Place {
        self.place.change += 1;
        self.place
    }

    /// Takes the change counted last. What became ready is then in [`Planner::take_ready`]; a
    /// statement that borrows from the message is returned, to be run after those.
    pub(crate) fn change<'m>(
        &mut self,
        mapping: &Arc<Mapping>,
        change: &Change<'m>,
    ) -> Result<Option<Step<'m>>, ApplyError> {
        let table = &mapping.table;
        let moved = self.fit(mapping, change)?;
        let fires = self.fires(table);
        if fires {
            self.emit_all();
        } else if !self.role_replica {
            self.emit_others(table.root);
        }
        if moved.bytes() > LARGE_ROW {
            self.emit_tree(table.root);
            return Ok(Some(self.step(mapping, &moved)));
        }
        self.gather(mapping, &moved, fires);
        Ok(None)
    }

    /// Empties tables, all by one statement; a partitioned one with its partitions, any other
    /// without its children. CASCADE is not repeated: the message names every published table it
    /// reached.
    ///
    /// What waits to be checked on them is checked before, and may wait again afterwards.
    pub(crate) fn truncate(
        &mut self,
        tables: &[Arc<TargetTable>],
        (emptying, identity): (Emptying, Identity),
        deferrable: &[Deferrable],
    ) {
        let Some(first) = tables.first() else { return };
        self.emit_all();
        let names: Vec<String> = tables.iter().map(|table| table.only()).collect();
        let restart = match identity {
            Identity::Restart => " RESTART IDENTITY",
            Identity::Continue | Identity::SetBack => "",
        };
        let set = |when: &str, wanted: &dyn Fn(&&Deferrable) -> bool| {
            let names: Vec<&str> = deferrable
                .iter()
                .filter(wanted)
                .map(|constraint| constraint.name.as_str())
                .collect();
            (!names.is_empty()).then(|| format!("SET CONSTRAINTS {} {when}", names.join(", ")))
        };
        let mut sql: Vec<String> = set("IMMEDIATE", &|_| true).into_iter().collect();
        match emptying {
            Emptying::Truncate => sql.push(format!("TRUNCATE {}{restart}", names.join(", "))),
            Emptying::Delete => sql.extend(names.iter().map(|name| format!("DELETE FROM {name}"))),
        }
        sql.extend(set("DEFERRED", &|constraint| {
            !self.role_replica || constraint.waits
        }));
        if identity == Identity::SetBack {
            let sequences = owned_sequences(tables);
            sql.push(format!(
                "SELECT pg_catalog.setval(q.seqrelid::pg_catalog.regclass, q.seqstart, false) {sequences}"
            ));
        }
        self.ready.extend(sql.into_iter().map(|sql| Step {
            sql: sql.into(),
            parameters: Vec::new(),
            rows: None,
            first: self.place,
            changes: 1,
            verb: "truncate",
            table: Arc::clone(first),
        }));
    }

    /// Everything gathered becomes ready.
    pub(crate) fn emit_all(&mut self) {
        for run in std::mem::take(&mut self.runs) {
            self.ready.push(run.into_step());
        }
        self.gathered_bytes = 0;
    }

    /// The statements that are complete, in the order in which they must be sent.
    pub(crate) fn take_ready(&mut self) -> Vec<Step<'static>> {
        std::mem::take(&mut self.ready)
    }

    /// Values of constraints that have to be checked at the end.
    pub(crate) fn touched(&self) -> &Touched {
        &self.touched
    }

    fn gather(&mut self, mapping: &Arc<Mapping>, moved: &Move<'_>, fires: bool) {
        let root = mapping.table.root;
        let gathers = self.set_wise && !fires && self.may_run(mapping, moved);
        let place = self.place;
        if gathers
            && let Some(run) = self.runs.iter_mut().find(|run| run.root() == root)
            && run.takes(mapping, moved)
        {
            self.gathered_bytes += run.push(moved);
            if run.rows() >= RUN_ROWS || run.bytes() >= RUN_BYTES {
                self.emit_tree(root);
            }
        } else {
            self.emit_tree(root);
            let run = Run::begin(mapping, moved, place, gathers);
            if gathers {
                self.gathered_bytes += run.bytes();
                self.runs.push(run);
            } else {
                self.ready.push(run.into_step());
            }
        }
        if self.gathered_bytes > GATHERED_BYTES || self.runs.len() > GATHERED_RUNS {
            self.emit_all();
        }
    }

    /// Whether the change may share a statement with others like it. Inserts always: their order
    /// is the arrays'. The others only where a statement finds each row by a unique key that no
    /// row of it changes, and no other unique value can pass from one of its rows to another.
    fn may_run(&self, mapping: &Mapping, moved: &Move<'_>) -> bool {
        match moved.shape {
            Shape::Insert => !mapping.written.is_empty(),
            Shape::Update(_) => {
                self.role_replica
                    && mapping.unique_key
                    && !moved.key_changes
                    && !mapping.values_may_move
            }
            Shape::Delete => self.role_replica && mapping.unique_key,
            Shape::Replace(_) | Shape::Touch => false,
        }
    }

    /// Fits a change to its table, and notes what of it must be checked at the end.
    pub(crate) fn fit<'m>(
        &mut self,
        mapping: &Arc<Mapping>,
        change: &Change<'m>,
    ) -> Result<Move<'m>, ApplyError> {
        let name = |error: ApplyError| error.on(&mapping.table.schema, &mapping.table.name);
        let moved = Move::of(mapping, change).map_err(name)?;
        if !self.may(&moved) {
            return Err(name(needs_replica_role()));
        }
        if self.role_replica {
            self.touched.note(mapping, &moved);
        }
        Ok(moved)
    }

    /// Whether it can be done under our role.
    pub(crate) fn may(&self, moved: &Move<'_>) -> bool {
        self.role_replica || !matches!(moved.shape, Shape::Replace(_))
    }

    /// Whether something of the target's own happens when the table is written to.
    pub(crate) fn fires(&self, table: &TargetTable) -> bool {
        table.fires(self.role_replica)
    }

    /// Where the change counted last stands.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// A statement for one row, which borrows its values.
    pub(crate) fn step<'m>(&self, mapping: &Arc<Mapping>, moved: &Move<'m>) -> Step<'m> {
        Step {
            parameters: moved.values().map(Parameter::Borrowed).collect(),
            ..Step::of(
                mapping,
                &moved.shape,
                Form {
                    run: false,
                    narrow: moved.narrow,
                },
                self.place,
            )
        }
    }

    fn emit_tree(&mut self, root: u32) {
        if let Some(at) = self.runs.iter().position(|run| run.root() == root) {
            let run = self.runs.remove(at);
            self.gathered_bytes -= run.bytes();
            self.ready.push(run.into_step());
        }
    }

    fn emit_others(&mut self, root: u32) {
        if self.runs.iter().any(|run| run.root() != root) {
            self.emit_all();
        }
    }
}

impl<'a> Step<'a> {
    /// A statement for one row, without its parameters.
    fn of(mapping: &Arc<Mapping>, shape: &Shape, form: Form, first: Place) -> Step<'a> {
        Step {
            sql: mapping.statement(shape, form, || render(mapping, shape, form)),
            parameters: Vec::new(),
            rows: Some(1),
            first,
            changes: 1,
            verb: match shape {
                Shape::Insert => "insert",
                Shape::Update(_) | Shape::Replace(_) | Shape::Touch => "update",
                Shape::Delete => "delete",
            },
            table: Arc::clone(&mapping.table),
        }
    }
}

/// DELETE and INSERT would set off what hangs on the table's foreign keys.
fn needs_replica_role() -> ApplyError {
    ApplyError::new(
        ApplyErrorKind::Schema,
        "an identity column that is GENERATED ALWAYS can be changed only under the replica role",
    )
    .hint(
        "GRANT SET ON PARAMETER session_replication_role to the apply role, or ALTER the column \
         to GENERATED BY DEFAULT",
    )
}
