//! Whether a transaction's change of a table is in the table's copy already. Pure.

use std::collections::HashMap;

use trellara_envelope::{CopyTable, Lsn, Xid};

use super::store::{CopyState, TableCopy};

/// What a change of a table means while the table has a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearing {
    /// The copy has nothing to do with it, or its snapshot did not see it.
    Apply,
    /// The copy has it.
    LeaveOut,
    /// The copy is not in yet: nothing of the transaction may be applied before it is.
    Wait,
}

/// All copies of a flow, and what they have to say about transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copies {
    tables: HashMap<CopyTable, TableCopy>,
    /// Some copy is not in.
    waits: bool,
    /// One of them is of the flow's first copy.
    holds_lane: bool,
    /// The highest [`TableCopy::converges_at`] of those that are in and not passed.
    loaded_to: Lsn,
    /// The same with those that were passed.
    seen_to: Lsn,
    /// The lowest of those that are in and not passed.
    next: Option<Lsn>,
}

impl Copies {
    /// Of the rows of `trellara.backfill`.
    pub fn of(rows: impl IntoIterator<Item = TableCopy>) -> Self {
        let mut copies = Self::default();
        for copy in rows {
            copies.take(copy);
        }
        copies
    }

    fn take(&mut self, copy: TableCopy) {
        self.waits |= !copy.state.is_in();
        self.holds_lane |= copy.initial && !copy.state.is_in();
        if let Some(at) = copy.converges_at {
            match copy.state {
                CopyState::Loaded => {
                    self.loaded_to = self.loaded_to.max(at);
                    self.seen_to = self.seen_to.max(at);
                    self.next = Some(self.next.map_or(at, |next| next.min(at)));
                }
                CopyState::Done => self.seen_to = self.seen_to.max(at),
                CopyState::Announced
                | CopyState::Wanted
                | CopyState::Copying
                | CopyState::Failed
                | CopyState::Kept
                | CopyState::Removed => {}
            }
        }
        self.tables.insert(copy.table.clone(), copy);
    }

    /// Nothing is being copied, and nothing ever was.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Whether a transaction's tables have to be looked at: some copy is not in, or the lane has
    /// not passed what its snapshot saw.
    pub fn has_a_say(&self, lane: Lsn) -> bool {
        self.waits || lane < self.loaded_to
    }

    /// Whether some copy is not in, so that a transaction may have to wait for it.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Whether the changes of a transaction that committed there have to be looked at, also of one
    /// that is applied late.
    pub fn concerns(&self, commit_lsn: Lsn) -> bool {
        self.waits || commit_lsn < self.seen_to
    }

    /// Whether the lane stands still: a table of the flow's first copy is not in.
    pub fn holds_lane(&self) -> bool {
        self.holds_lane
    }

    /// Where the lane passes the next of those that are in.
    pub fn next_convergence(&self) -> Option<Lsn> {
        self.next
    }

    /// How many are in and not passed, and where the lane has passed all of them.
    pub fn converging(&self) -> Option<(usize, Lsn)> {
        self.next?;
        let loaded = |copy: &&TableCopy| copy.state == CopyState::Loaded;
        let tables = self.tables.values().filter(loaded).count();
        Some((tables, self.loaded_to))
    }

    /// One that is not in; of the flow's first copy if there is such a one.
    pub fn first_waiting(&self) -> Option<&TableCopy> {
        let waiting = self.tables.values().filter(|copy| !copy.state.is_in());
        waiting.min_by_key(|copy| (!copy.initial, &copy.table))
    }

    /// The same of rows.
    pub(crate) fn holds<'t>(tables: impl IntoIterator<Item = &'t TableCopy>) -> bool {
        let mut tables = tables.into_iter();
        tables.any(|copy| copy.initial && !copy.state.is_in())
    }

    /// What the change of a table means, in a transaction of this id that committed there.
    ///
    /// Every transaction that a snapshot sees committed before [`TableCopy::converges_at`], so an id
    /// that is used again years later is never mistaken.
    pub fn bearing(&self, table: &CopyTable, xid: Xid, commit_lsn: Lsn) -> Bearing {
        let Some(copy) = self.tables.get(table) else {
            return Bearing::Apply;
        };
        match copy.state {
            CopyState::Announced | CopyState::Wanted | CopyState::Copying | CopyState::Failed => {
                Bearing::Wait
            }
            CopyState::Kept | CopyState::Removed => Bearing::Apply,
            CopyState::Loaded | CopyState::Done => match (&copy.snapshot, copy.converges_at) {
                (Some(snapshot), Some(converges_at))
                    if commit_lsn < converges_at && snapshot.sees(xid) =>
                {
                    Bearing::LeaveOut
                }
                _ => Bearing::Apply,
            },
        }
    }

    /// The tables that are in and that the lane, standing at `lane`, has passed.
    pub fn converged(&self, lane: Lsn) -> Vec<&TableCopy> {
        let passed = |copy: &&TableCopy| {
            copy.state == CopyState::Loaded && copy.converges_at.is_some_and(|at| at <= lane)
        };
        self.tables.values().filter(passed).collect()
    }

    /// All of them.
    pub fn tables(&self) -> impl Iterator<Item = &TableCopy> {
        self.tables.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(state: CopyState) -> TableCopy {
        TableCopy {
            initial: true,
            snapshot: Some("100:110:103,107".parse().expect("a snapshot")),
            converges_at: Some(Lsn(0x500)),
            ..TableCopy::wanted(table(), true)
        }
        .in_state(state)
    }

    fn table() -> CopyTable {
        CopyTable {
            schema: "public".into(),
            name: "t".into(),
        }
    }

    fn bearing(state: CopyState, xid: u32, commit: u64) -> Bearing {
        Copies::of([copy(state)]).bearing(&table(), Xid(xid), Lsn(commit))
    }

    #[test]
    fn what_the_snapshot_saw_is_left_out_and_nothing_else() {
        for state in [CopyState::Loaded, CopyState::Done] {
            for (xid, seen) in [
                (99, true),
                (102, true),
                (103, false),
                (107, false),
                (110, false),
            ] {
                let expected = if seen {
                    Bearing::LeaveOut
                } else {
                    Bearing::Apply
                };
                assert_eq!(bearing(state, xid, 0x400), expected, "{xid}");
                assert_eq!(
                    bearing(state, xid, 0x500),
                    Bearing::Apply,
                    "{xid} used again"
                );
            }
        }
    }

    #[test]
    fn nothing_of_a_table_is_applied_before_its_copy_is_in() {
        for state in [CopyState::Wanted, CopyState::Copying, CopyState::Failed] {
            assert_eq!(bearing(state, 99, 0x400), Bearing::Wait);
            assert!(Copies::of([copy(state)]).holds_lane());
            assert!(Copies::of([copy(state)]).has_a_say(Lsn(0x900)));
        }
        for state in [CopyState::Kept, CopyState::Removed] {
            assert_eq!(bearing(state, 99, 0x400), Bearing::Apply);
        }
    }

    #[test]
    fn a_copy_has_no_say_behind_what_it_saw() {
        let copies = Copies::of([copy(CopyState::Loaded)]);
        assert!(copies.has_a_say(Lsn(0x4ff)) && !copies.has_a_say(Lsn(0x500)));
        assert!(copies.converged(Lsn(0x4ff)).is_empty());
        assert_eq!(copies.converged(Lsn(0x500)).len(), 1);
        assert!(!copies.holds_lane());
    }
}
