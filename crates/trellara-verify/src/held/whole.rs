//! What touches a whole table: a held TRUNCATE, and changes of rows that have no key. Nobody knows
//! which rows those are, so they explain by kind and by number.

use std::collections::BTreeMap;

use super::{Keys, table};
use crate::error::Failure;
use crate::inventory::Cells;
use crate::reader::Reader;
use crate::report::{Difference, Explanation, Kind, TableName, TableReport};

/// Rows that a change without a key can leave different: the old one and the new one.
const ROWS_PER_CHANGE: u64 = 2;

/// How one table is touched as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Whole {
    /// The first transaction that empties it.
    emptied_by: Option<String>,
    /// The first transaction that changes it and has no key to name rows by.
    keyless_by: Option<String>,
    /// How many rows all of those together can have left different.
    keyless_rows: u64,
    /// Rows without a key that a conflict rule left out.
    skipped_rows: u64,
}

/// Rows of one table that were explained by their number alone. Where a table is compared part by
/// part, what one part took is not there for the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    keyless_rows: u64,
    skipped_rows: u64,
}

/// Reads it for every table.
pub(super) async fn read(
    target: &Reader,
    keys: &Keys,
) -> Result<BTreeMap<TableName, Whole>, Failure> {
    let mut wholes: BTreeMap<TableName, Whole> = BTreeMap::new();
    let held = format!(
        "SELECT t.schema, t.\"table\", min(t.id) FILTER (WHERE t.touch = 'truncate'), \
                min(t.id) FILTER (WHERE t.touch = 'keyless'), \
                least(coalesce(sum(t.changes) FILTER (WHERE t.touch = 'keyless'), 0), \
                      {most})::bigint \
           FROM (SELECT DISTINCT k.schema, k.\"table\", k.touch, h.id, h.changes \
                   FROM trellara.held AS h JOIN trellara.held_key AS k ON k.held_id = h.id \
                  WHERE {those} AND k.touch IN ('truncate', 'keyless')) AS t \
          GROUP BY 1, 2",
        those = keys.held,
        most = u32::MAX,
    );
    for row in target.rows(&held).await? {
        let mut row = Cells(row.into_iter());
        let whole = wholes.entry(table(&mut row)?).or_default();
        whole.emptied_by = row.optional();
        whole.keyless_by = row.optional();
        whole.keyless_rows = ROWS_PER_CHANGE * row.number()? as u64;
    }
    let Some(skipped) = &keys.skipped else {
        return Ok(wholes);
    };
    let keyless = format!(
        "SELECT s.schema, s.\"table\", count(*) FROM trellara.skipped AS s \
          WHERE {skipped} AND s.key IS NULL GROUP BY 1, 2"
    );
    for row in target.rows(&keyless).await? {
        let mut row = Cells(row.into_iter());
        let whole = wholes.entry(table(&mut row)?).or_default();
        whole.skipped_rows = row.number()? as u64;
    }
    Ok(wholes)
}

impl Whole {
    /// Explains what nothing has explained by key, and counts all that is explained.
    pub(super) fn explain(&self, report: &mut TableReport, spent: &mut Spent) {
        if let Some(id) = &self.emptied_by {
            let by_key = report.by_key;
            let left_there = |difference: &Difference| too_many(difference, by_key);
            label(report, &Explanation::Held(id.clone()), left_there);
        }
        let mut open = Open::of(report);
        if self.emptied_by.is_some() {
            // What is not listed counts too.
            open.extra = 0;
        }
        self.explain_by_number(report, spent, &mut open);
        report.explained = report.differing().saturating_sub(open.rows());
    }

    /// As many rows may differ as were changed, and not one more: of more nobody knows which are
    /// the wrong ones, and so none is explained.
    fn explain_by_number(&self, report: &mut TableReport, spent: &mut Spent, open: &mut Open) {
        let skipped = self.skipped_rows.saturating_sub(spent.skipped_rows);
        // Each skipped change leaves one row out.
        let left_out = match report.by_key {
            true => 0,
            false => skipped.min(open.missing),
        };
        let changed = open.rows() - left_out;
        let keyless = self.keyless_rows.saturating_sub(spent.keyless_rows);
        if let Some(id) = self.keyless_by.as_ref().filter(|_| changed <= keyless) {
            label(report, &Explanation::Held(id.clone()), |_| true);
            spent.keyless_rows += changed;
            spent.skipped_rows += left_out;
            *open = Open::default();
        } else if left_out == open.missing && left_out > 0 {
            let missing = |difference: &Difference| difference.kind == Kind::Missing;
            label(report, &Explanation::ConflictRule, missing);
            spent.skipped_rows += left_out;
            open.missing = 0;
        }
    }
}

/// Whether a TRUNCATE that is not done can have left it. It leaves rows on the target that the
/// source has no more, and takes none and changes none. Rows of one key that are too many may be
/// wrong besides, so they are left to a human.
fn too_many(difference: &Difference, by_key: bool) -> bool {
    match difference.kind {
        Kind::Extra => true,
        Kind::Duplicate => !by_key && difference.target_count > difference.source_count,
        Kind::Missing | Kind::Changed => false,
    }
}

/// Says of those listed that nothing explains yet what does.
fn label(report: &mut TableReport, by: &Explanation, those: impl Fn(&Difference) -> bool) {
    let listed = report.differences.iter_mut();
    for difference in listed.filter(|d| d.explained_by.is_none() && those(d)) {
        difference.explained_by = Some(by.clone());
    }
}

/// Rows that nothing explains, by kind.
#[derive(Default)]
struct Open {
    missing: u64,
    extra: u64,
    changed: u64,
    duplicate: u64,
}

impl Open {
    fn of(report: &TableReport) -> Self {
        let listed = |kind| {
            let listed = report.differences.iter();
            let listed = listed.filter(|d| d.kind == kind && d.explained_by.is_some());
            listed.map(Difference::rows).sum::<u64>()
        };
        Self {
            missing: report.missing.saturating_sub(listed(Kind::Missing)),
            extra: report.extra.saturating_sub(listed(Kind::Extra)),
            changed: report.changed.saturating_sub(listed(Kind::Changed)),
            duplicate: report.duplicate.saturating_sub(listed(Kind::Duplicate)),
        }
    }

    fn rows(&self) -> u64 {
        self.missing + self.extra + self.changed + self.duplicate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(kind: Kind) -> Difference {
        Difference {
            key: vec![("a".into(), Some("1".into()))],
            kind,
            columns: Vec::new(),
            source_count: 1,
            target_count: u64::from(kind != Kind::Missing) + u64::from(kind == Kind::Duplicate),
            source_digest: Some(1),
            target_digest: None,
            source_row: None,
            target_row: None,
            explained_by: None,
        }
    }

    /// A table of which ten rows differ in each way and one is listed, already explained by `known`.
    fn report(kind: Kind, by_key: bool, known: Option<&str>) -> TableReport {
        let took = std::time::Duration::ZERO;
        let (reason, hint) = (String::new(), String::new());
        let name = TableName {
            schema: "s".into(),
            name: "t".into(),
        };
        let mut report = crate::catalogue::not_comparable(&name, reason, hint, took);
        report.by_key = by_key;
        (report.missing, report.changed) = (10, 10);
        (report.extra, report.duplicate) = (10, 10);
        let mut listed = difference(kind);
        listed.explained_by = known.map(|id| Explanation::Held(id.into()));
        report.differences = vec![listed];
        report
    }

    fn explained(whole: &Whole, mut report: TableReport) -> (u64, String) {
        whole.explain(&mut report, &mut Spent::default());
        let by = report.differences.remove(0).explained_by;
        let by = by.map(|by| by.to_string());
        (report.explained, by.unwrap_or_default())
    }

    fn with(n: u64, by: &str) -> (u64, String) {
        (n, by.to_owned())
    }

    fn emptied() -> Whole {
        Whole {
            emptied_by: Some("7".into()),
            ..Whole::default()
        }
    }

    fn keyless(rows: u64, skipped: u64) -> Whole {
        Whole {
            keyless_by: (rows > 0).then(|| "9".into()),
            keyless_rows: rows,
            skipped_rows: skipped,
            ..Whole::default()
        }
    }

    /// A held TRUNCATE leaves rows too many, listed or not, and explains nothing else.
    #[test]
    fn a_truncate_explains_what_it_left_there() {
        for by_key in [true, false] {
            let extra = report(Kind::Extra, by_key, None);
            assert_eq!(explained(&emptied(), extra), with(10, "7"));
            for kind in [Kind::Missing, Kind::Changed] {
                let other = report(kind, by_key, None);
                assert_eq!(explained(&emptied(), other), with(10, ""));
            }
        }
        let keyed = report(Kind::Duplicate, true, None);
        assert_eq!(explained(&emptied(), keyed), with(10, ""));
        // Of the duplicates that are not listed nobody knows on which side they are.
        let surplus = report(Kind::Duplicate, false, None);
        assert_eq!(explained(&emptied(), surplus), with(11, "7"));
        let mut deficit = report(Kind::Duplicate, false, None);
        deficit.differences[0].source_count = 3;
        assert_eq!(explained(&emptied(), deficit), with(10, ""));
    }

    /// A row that is named is explained by who names it.
    #[test]
    fn a_named_row_stays_with_its_name() {
        let missing = || report(Kind::Missing, true, Some("8"));
        assert_eq!(explained(&Whole::default(), missing()), with(1, "8"));
        assert_eq!(explained(&emptied(), missing()), with(11, "8"));
        let extra = report(Kind::Extra, true, Some("8"));
        assert_eq!(explained(&emptied(), extra), with(10, "8"));
        // It is not counted against what has no name.
        assert_eq!(explained(&keyless(39, 0), missing()), with(40, "8"));
        assert_eq!(explained(&keyless(38, 0), missing()), with(1, "8"));
    }

    #[test]
    fn changes_without_a_key_explain_as_many_rows_as_they_have() {
        for kind in [Kind::Missing, Kind::Extra, Kind::Changed, Kind::Duplicate] {
            for by_key in [true, false] {
                let report = || report(kind, by_key, None);
                assert_eq!(explained(&keyless(40, 0), report()), with(40, "9"));
                assert_eq!(explained(&keyless(39, 0), report()), with(0, ""));
            }
        }
        // What a TRUNCATE left there is not of their number.
        let both = |rows| Whole {
            emptied_by: Some("7".into()),
            ..keyless(rows, 0)
        };
        let missing = || report(Kind::Missing, false, None);
        assert_eq!(explained(&both(30), missing()), with(40, "9"));
        assert_eq!(explained(&both(29), missing()), with(10, ""));
    }

    /// As many rows may be missing as were left out, and not one more.
    #[test]
    fn skipped_rows_without_a_key_explain_as_many_as_they_are() {
        let missing = || report(Kind::Missing, false, None);
        assert_eq!(
            explained(&keyless(0, 10), missing()),
            with(10, "conflict rule")
        );
        assert_eq!(explained(&keyless(0, 9), missing()), with(0, ""));
        let keyed = report(Kind::Missing, true, None);
        assert_eq!(explained(&keyless(0, 10), keyed), with(0, ""));
        let extra = report(Kind::Extra, false, None);
        assert_eq!(explained(&keyless(0, 10), extra), with(10, ""));
        // Beside held changes each counts for what it is.
        assert_eq!(explained(&keyless(31, 9), missing()), with(40, "9"));
        assert_eq!(explained(&keyless(30, 9), missing()), with(0, ""));
    }

    /// A table that is compared part by part has its changes once.
    #[test]
    fn what_one_part_took_is_not_there_for_the_next() {
        let mut spent = Spent::default();
        let mut take = |whole: &Whole| {
            let mut report = report(Kind::Missing, false, None);
            whole.explain(&mut report, &mut spent);
            report.explained
        };
        let whole = keyless(70, 15);
        assert_eq!([take(&whole), take(&whole), take(&whole)], [40, 40, 0]);
        assert_eq!(take(&keyless(0, 25)), 10);
        assert_eq!(take(&keyless(0, 25)), 0);
    }
}
