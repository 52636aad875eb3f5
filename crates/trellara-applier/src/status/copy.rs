//! How far the copy of what the source held before is.

use std::time::Instant;

use trellara_envelope::{CopyTable, FlowName};

use super::{ApplierStatus, Slow};
use crate::backfill::rule::Copies;
use crate::backfill::store::{CopyState, TableCopy};
use crate::metric;

/// How far a flow's copies are, all together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopySnapshot {
    /// Tables that are copied, or were.
    pub tables: u64,
    /// Those of them that are in.
    pub tables_in: u64,
    /// Rows that are in.
    pub rows: u64,
    /// Bytes of them, as they were sent.
    pub bytes: u64,
    /// Rows of all, as the source estimates them.
    pub estimated_rows: u64,
    /// Bytes of all, as the source estimates its tables' sizes.
    pub estimated_bytes: u64,
    /// Bytes that come in within a second, of late.
    pub bytes_per_second: u64,
    /// Whether the lane stands still until the copy is in.
    pub holds_lane: bool,
    /// Tables of which rows are coming.
    pub copying: Vec<CopyTable>,
    /// Tables that an operator is needed for.
    pub failed: Vec<CopyFailed>,
    /// What keeps an index or a foreign key that was put off from being made again; it passes by
    /// itself, or when somebody ends what is in the way.
    pub restoring_waits: Option<String>,
}

/// A table that cannot be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFailed {
    /// The table.
    pub table: CopyTable,
    /// Why, without values of rows.
    pub reason: String,
    /// What may be done.
    pub hint: String,
}

/// How fast it goes.
#[derive(Debug, Default)]
pub(crate) struct CopyRates {
    before: Option<(Instant, u64)>,
    per_second: f64,
}

impl CopyRates {
    /// Weight of what was before, for each second.
    const INERTIA: f64 = 0.8;

    fn at(&mut self, now: Instant, bytes: u64) -> u64 {
        let Some((at, before)) = self.before else {
            self.before = Some((now, bytes));
            return 0;
        };
        let seconds = now.duration_since(at).as_secs_f64();
        if seconds >= 0.5 {
            let rate = bytes.saturating_sub(before) as f64 / seconds;
            let old = Self::INERTIA.powf(seconds);
            self.per_second = self.per_second * old + rate * (1.0 - old);
            self.before = Some((now, bytes));
        }
        self.per_second as u64
    }
}

impl ApplierStatus {
    /// What the target remembers of copies now.
    pub(crate) fn set_copy<'c>(
        &self,
        flow: &FlowName,
        copies: impl Iterator<Item = &'c TableCopy> + Clone,
        rates: &mut CopyRates,
    ) {
        let mut snapshot = summed(copies);
        snapshot.bytes_per_second = rates.at(Instant::now(), snapshot.bytes);
        if snapshot.tables > 0 {
            metric::copy(flow, &snapshot);
        }
        self.slow().copy = (snapshot.tables > 0).then_some(snapshot);
    }

    /// What keeps something that was put off from being made again; empty when nothing does.
    pub(crate) fn set_restoring_waits(&self, reason: &str) {
        reason.clone_into(&mut self.slow().restoring_waits);
    }

    /// A part is in.
    pub(crate) fn count_part(&self, flow: &FlowName, rows: u64, bytes: u64) {
        self.copied_parts
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        metric::count(metric::BACKFILL_PARTS, flow, 1);
        metric::count(metric::BACKFILL_ROWS, flow, rows);
        metric::count(metric::BACKFILL_BYTES, flow, bytes);
    }
}

impl Slow {
    pub(super) fn copy_snapshot(&self) -> Option<CopySnapshot> {
        let copy = self.copy.clone()?;
        let waits = Some(self.restoring_waits.clone());
        Some(CopySnapshot {
            restoring_waits: waits.filter(|reason| !reason.is_empty()),
            ..copy
        })
    }
}

fn summed<'c>(copies: impl Iterator<Item = &'c TableCopy> + Clone) -> CopySnapshot {
    let mut sum = CopySnapshot {
        holds_lane: Copies::holds(copies.clone()),
        ..CopySnapshot::default()
    };
    for copy in copies {
        match copy.state {
            CopyState::Kept | CopyState::Removed => continue,
            CopyState::Copying => sum.copying.push(copy.table.clone()),
            CopyState::Failed => sum.failed.push(CopyFailed {
                table: copy.table.clone(),
                reason: copy.reason.clone().unwrap_or_default(),
                hint: copy.hint.clone().unwrap_or_default(),
            }),
            CopyState::Announced | CopyState::Wanted | CopyState::Loaded | CopyState::Done => {}
        }
        sum.tables += 1;
        sum.tables_in += u64::from(copy.state.is_in());
        sum.rows += copy.loaded.0;
        sum.bytes += copy.loaded.1;
        sum.estimated_rows += copy.estimated.0;
        sum.estimated_bytes += copy.estimated.1;
    }
    sum.copying.sort();
    sum.failed.sort_by(|a, b| a.table.cmp(&b.table));
    sum
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn copy(name: &str, state: CopyState) -> TableCopy {
        let table = CopyTable {
            schema: "public".into(),
            name: name.into(),
        };
        TableCopy {
            loaded: (10, 100),
            reason: Some("why".into()),
            ..TableCopy::wanted(table, true).in_state(state)
        }
    }

    #[test]
    fn tables_that_nobody_copies_do_not_count() {
        let states = [
            ("a", CopyState::Wanted),
            ("b", CopyState::Copying),
            ("c", CopyState::Loaded),
            ("d", CopyState::Done),
            ("e", CopyState::Failed),
            ("f", CopyState::Kept),
            ("g", CopyState::Removed),
        ];
        let copies: Vec<TableCopy> = states.iter().map(|(name, at)| copy(name, *at)).collect();
        let sum = summed(copies.iter());
        assert_eq!((sum.tables, sum.tables_in), (5, 2));
        assert_eq!((sum.rows, sum.bytes), (50, 500));
        assert_eq!(sum.copying.len(), 1);
        assert_eq!(sum.failed[0].reason, "why");
        assert!(sum.holds_lane);
        assert!(!summed(copies[2..4].iter()).holds_lane);
    }

    #[test]
    fn a_rate_follows_what_comes_in() {
        let mut rates = CopyRates::default();
        let began = Instant::now();
        let mut last = 0;
        for second in 0..60 {
            last = rates.at(began + Duration::from_secs(second), second * 1000);
        }
        assert!((990..=1000).contains(&last), "{last}");
        for second in 60..120 {
            last = rates.at(began + Duration::from_secs(second), 59_000);
        }
        assert!(last < 5, "{last}");
    }
}
