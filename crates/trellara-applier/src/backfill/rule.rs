//! Whether a transaction's change of a table is in the table's copy already. Pure.

use std::collections::HashMap;

use trellara_envelope::{CopyTable, Lsn, SourceHistory, SourceId, TransactionIdentity};

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
    /// Some table left the flow before it was in.
    abandoned: bool,
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
        self.abandoned |= copy.abandoned.is_some();
        if let Some(at) = copy.converges_at {
            match copy.state {
                CopyState::Loaded => {
                    self.loaded_to = self.loaded_to.max(at);
                    self.seen_to = self.seen_to.max(at);
                    self.next = Some(self.next.map_or(at, |next| next.min(at)));
                }
                CopyState::Done | CopyState::Removed => self.seen_to = self.seen_to.max(at),
                CopyState::Announced
                | CopyState::Wanted
                | CopyState::Copying
                | CopyState::Failed
                | CopyState::Kept => {}
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
        self.waits || self.abandoned || commit_lsn < self.seen_to
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

    /// What the change of a table means in a transaction.
    ///
    /// Every transaction that a snapshot sees committed before [`TableCopy::converges_at`], in the
    /// snapshot's cluster and on its timeline or one before: so an id that is used again years
    /// later, or behind a promotion that lost some, is never mistaken.
    pub fn bearing(&self, table: &CopyTable, transaction: &TransactionIdentity) -> Bearing {
        let Some(copy) = self.tables.get(table) else {
            return Bearing::Apply;
        };
        match (copy.state, copy.abandoned) {
            (
                CopyState::Announced | CopyState::Wanted | CopyState::Copying | CopyState::Failed,
                _,
            ) => Bearing::Wait,
            (CopyState::Removed, Some(abandoned)) if abandoned.covers(transaction.xid) => {
                Bearing::LeaveOut
            }
            (CopyState::Kept, _) | (CopyState::Removed, Some(_)) => Bearing::Apply,
            (CopyState::Loaded | CopyState::Done | CopyState::Removed, _) => {
                match saw(copy, transaction) {
                    true => Bearing::LeaveOut,
                    false => Bearing::Apply,
                }
            }
        }
    }

    /// The tables that are in and that the lane, standing at `lane`, has passed.
    pub fn converged(&self, lane: Lsn) -> Vec<&TableCopy> {
        let passed = |copy: &&TableCopy| {
            copy.state == CopyState::Loaded && copy.converges_at.is_some_and(|at| at <= lane)
        };
        self.tables.values().filter(passed).collect()
    }

    /// The copies that may have brought what the source's history lacks: a standby was promoted that
    /// had not everything which the snapshot saw. Of those that the lane has passed that cannot be:
    /// it would have passed the end of its timeline.
    pub fn lost_by(&self, history: &SourceHistory) -> Vec<&TableCopy> {
        let lost = |copy: &&TableCopy| {
            let under_way = matches!(copy.state, CopyState::Copying | CopyState::Loaded);
            let (Some(read), Some(converges_at)) = (copy.source, copy.converges_at) else {
                return false;
            };
            let mut left = history.switches.iter();
            let left = left.find(|(timeline, _)| *timeline == read.timeline);
            under_way
                && read.system == history.system
                && left.is_some_and(|(_, left_at)| *left_at < converges_at)
        };
        self.tables.values().filter(lost).collect()
    }

    /// All of them.
    pub fn tables(&self) -> impl Iterator<Item = &TableCopy> {
        self.tables.values()
    }
}

/// Whether what a copy was read under saw a transaction.
fn saw(copy: &TableCopy, transaction: &TransactionIdentity) -> bool {
    let (Some(snapshot), Some(converges_at)) = (&copy.snapshot, copy.converges_at) else {
        return false;
    };
    let there = |read: SourceId| {
        let on = transaction.source;
        on.system == read.system && on.timeline <= read.timeline
    };
    transaction.commit_lsn < converges_at
        && copy.source.is_none_or(there)
        && snapshot.sees(transaction.xid)
}

#[cfg(test)]
mod tests {
    use trellara_envelope::{CommitTime, SystemId, Timeline, Xid};

    use super::*;
    use crate::backfill::store::Abandoned;

    fn copy(state: CopyState) -> TableCopy {
        TableCopy {
            initial: true,
            source: Some(source(1, 3)),
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

    fn source(system: u64, timeline: u32) -> SourceId {
        SourceId {
            system: SystemId(system),
            timeline: Timeline(timeline),
        }
    }

    fn transaction(source: SourceId, xid: u32, commit: u64) -> TransactionIdentity {
        TransactionIdentity {
            source,
            commit_lsn: Lsn(commit),
            xid: Xid(xid),
            commit_time: CommitTime(0),
        }
    }

    fn bearing(state: CopyState, xid: u32, commit: u64) -> Bearing {
        of(copy(state), transaction(source(1, 3), xid, commit))
    }

    fn of(copy: TableCopy, transaction: TransactionIdentity) -> Bearing {
        Copies::of([copy]).bearing(&table(), &transaction)
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
        assert_eq!(bearing(CopyState::Kept, 99, 0x400), Bearing::Apply);
    }

    #[test]
    fn a_snapshot_saw_nothing_of_another_cluster_nor_of_a_later_timeline() {
        let with = |source| of(copy(CopyState::Loaded), transaction(source, 99, 0x400));
        assert_eq!(with(source(1, 3)), Bearing::LeaveOut);
        assert_eq!(with(source(1, 2)), Bearing::LeaveOut, "it led there");
        assert_eq!(with(source(1, 4)), Bearing::Apply, "the id was used again");
        assert_eq!(with(source(2, 3)), Bearing::Apply);
    }

    #[test]
    fn a_promotion_in_front_of_what_a_snapshot_saw_makes_its_copy_void() {
        let lost = |state, system, switches: &[(u32, u64)]| {
            let switches = switches.iter();
            let history = SourceHistory {
                system: SystemId(system),
                timeline: Timeline(9),
                switches: switches.map(|(t, at)| (Timeline(*t), Lsn(*at))).collect(),
            };
            !Copies::of([copy(state)]).lost_by(&history).is_empty()
        };
        for state in [CopyState::Copying, CopyState::Loaded] {
            assert!(lost(state, 1, &[(2, 0x100), (3, 0x4ff)]));
            assert!(!lost(state, 1, &[(2, 0x100), (3, 0x500)]), "it had all");
            assert!(!lost(state, 1, &[(2, 0x100)]), "it led there");
            assert!(!lost(state, 2, &[(3, 0x4ff)]));
        }
        assert!(!lost(CopyState::Done, 1, &[(3, 0x4ff)]));
        assert!(!lost(CopyState::Wanted, 1, &[(3, 0x4ff)]));
    }

    #[test]
    fn what_is_removed_before_it_was_in_is_left_out_until_the_removal() {
        let removed = |below| TableCopy {
            abandoned: Some(Abandoned { below }),
            ..copy(CopyState::Removed)
        };
        let with = |below, xid| {
            let copies = Copies::of([removed(below)]);
            assert!(!copies.waits() && copies.concerns(Lsn(0x900)));
            of(removed(below), transaction(source(1, 3), xid, 0x900))
        };
        assert_eq!(with(None, 300), Bearing::LeaveOut);
        assert_eq!(with(Some(300), 299), Bearing::LeaveOut);
        assert_eq!(with(Some(300), 300), Bearing::Apply);
        let wrapped = Some((7 << 32) + 5);
        assert_eq!(with(wrapped, 4), Bearing::LeaveOut);
        assert_eq!(with(wrapped, u32::MAX), Bearing::LeaveOut);
        assert_eq!(with(wrapped, 5), Bearing::Apply);
    }

    #[test]
    fn what_is_removed_when_it_was_in_keeps_what_its_copy_brought() {
        assert_eq!(bearing(CopyState::Removed, 99, 0x400), Bearing::LeaveOut);
        assert_eq!(bearing(CopyState::Removed, 110, 0x400), Bearing::Apply);
        assert!(Copies::of([copy(CopyState::Removed)]).concerns(Lsn(0x400)));
        assert!(!Copies::of([copy(CopyState::Removed)]).concerns(Lsn(0x500)));
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
