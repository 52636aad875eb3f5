//! Transactions that the target keeps in quarantine: they explain differences on the keys that they
//! touch, and hide none (C54).

use std::collections::BTreeMap;

use trellara_envelope::{FlowName, Lsn};
use trellara_postgres::quote;

use crate::error::{Failure, VerifyError};
use crate::inventory::Cells;
use crate::reader::Reader;
use crate::report::{Difference, Kind, TableName, TableReport};

/// Whose quarantine is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    /// The flow.
    pub flow: FlowName,
    /// Transactions whose commit record begins before it: the others belong to no side yet.
    pub before: Lsn,
}

/// What one transaction touches of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Touched {
    transaction: String,
    /// The key's columns and values as text; `None` for the whole table.
    key: Option<BTreeMap<String, Option<String>>>,
}

/// What is held before the position compared, as the target's snapshot shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    tables: BTreeMap<TableName, Vec<Touched>>,
    /// Transactions that are still to come: equal rows do not make the sides the same.
    pub(crate) waiting: u64,
}

impl Held {
    /// Reads it; nothing where the target has no quarantine.
    pub(crate) async fn read(target: &Reader, quarantine: &Quarantine) -> Result<Self, Failure> {
        let exists = "SELECT to_regclass('trellara.held') IS NOT NULL \
                         AND to_regclass('trellara.held_key') IS NOT NULL";
        let mut held = Self::default();
        if !crate::inventory::only(target.rows(exists).await?)?.flag()? {
            return Ok(held);
        }
        let (flow, before) = (
            quote::literal(quarantine.flow.as_str()),
            quote::literal(&quarantine.before.to_string()),
        );
        // One that the lane stands in front of has not been passed over by anybody.
        let those = format!(
            "h.flow = {flow} AND h.commit_lsn < {before}::pg_lsn AND h.reason <> 'blocking'"
        );
        let waiting = format!(
            "SELECT count(*) FROM trellara.held AS h \
              WHERE {those} AND h.state IN ('held', 'replaying')"
        );
        held.waiting = crate::inventory::only(target.rows(&waiting).await?)?.number()? as u64;
        let keys = format!(
            "SELECT k.number, h.id, k.schema, k.\"table\", k.key IS NULL, e.key, e.value \
               FROM trellara.held AS h \
               JOIN (SELECT row_number() OVER () AS number, * FROM trellara.held_key) AS k \
                 ON k.held_id = h.id \
               LEFT JOIN LATERAL jsonb_each_text(k.key) AS e ON true \
              WHERE {those} AND h.state IN ('held', 'replaying', 'discarded') \
                AND k.touch IN ('row', 'truncate', 'keyless') ORDER BY 1"
        );
        let mut last = None;
        for row in target.rows(&keys).await? {
            let mut row = Cells(row.into_iter());
            let (number, transaction) = (row.number()?, row.text()?);
            let table = TableName {
                schema: row.text()?,
                name: row.text()?,
            };
            let whole = row.flag()?;
            let touched = held.tables.entry(table).or_default();
            if last.replace(number) != Some(number) {
                let key = (!whole).then(BTreeMap::new);
                touched.push(Touched { transaction, key });
            }
            let key = touched.last_mut().and_then(|touched| touched.key.as_mut());
            if let (Some(key), Some(column)) = (key, row.optional()) {
                key.insert(column, row.optional());
            }
        }
        Ok(held)
    }

    /// Says of each listed difference which transaction explains it. What is not listed is
    /// explained only where a transaction touches the whole table, and only what that can have done.
    pub(crate) fn explain(&self, report: &mut TableReport) {
        let Some(touched) = self.tables.get(&report.table) else {
            return;
        };
        for difference in &mut report.differences {
            let covers = |touched: &&Touched| touched.covers(difference, report.by_key);
            let by = touched.iter().find(covers);
            difference.explained_by = by.map(|by| by.transaction.clone());
        }
        let whole = touched.iter().any(|touched| touched.key.is_none());
        let by_whole = |kind| whole && emptied(kind, report.by_key);
        let listed = report.differences.iter();
        let listed = listed.filter(|d| d.explained_by.is_some() && !by_whole(d.kind));
        let all = [
            (Kind::Missing, report.missing),
            (Kind::Extra, report.extra),
            (Kind::Changed, report.changed),
            (Kind::Duplicate, report.duplicate),
        ];
        let all = all.into_iter().filter(|(kind, _)| by_whole(*kind));
        report.explained =
            all.map(|(_, rows)| rows).sum::<u64>() + listed.map(Difference::rows).sum::<u64>();
    }
}

/// Whether a transaction that touches a whole table can have made a difference of this kind. Of a
/// table with a key it names each row that it writes, so only a TRUNCATE touches the whole: held, it
/// leaves rows on the target that the source has no more, and takes none and changes none. Rows of
/// one key that are too many may be wrong besides, so they are left to a human.
fn emptied(kind: Kind, by_key: bool) -> bool {
    match kind {
        Kind::Extra => true,
        Kind::Duplicate | Kind::Missing | Kind::Changed => !by_key,
    }
}

impl Touched {
    /// A key explains a row when all of it is in the row's own key: a row that is not named by its
    /// key is explained by nothing but a whole table.
    fn covers(&self, difference: &Difference, by_key: bool) -> bool {
        let Some(key) = &self.key else {
            return emptied(difference.kind, by_key);
        };
        let is = |(column, value): (&String, &Option<String>)| {
            let own = difference.key.iter().find(|(name, _)| name == column);
            own.is_some_and(|(_, own)| own == value)
        };
        !key.is_empty() && key.len() == difference.key.len() && key.iter().all(is)
    }
}

/// Without it nothing could be called equal: what is held would be passed over.
pub(crate) fn unreadable(failure: Failure) -> VerifyError {
    match failure {
        Failure::Run(error) => error,
        Failure::Refused { side, fault } => VerifyError::unusable(
            side,
            format!("the quarantine cannot be read on the {side}: {fault}"),
            "GRANT SELECT ON trellara.held, trellara.held_key TO the role of target.url; \
             config/postgres/target.sql does",
        ),
        Failure::NotComparable { reason, hint } => VerifyError::incomparable(reason, hint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(key: &[(&str, Option<&str>)]) -> Difference {
        let text = |text: &str| text.to_owned();
        Difference {
            key: key.iter().map(|(n, v)| (text(n), v.map(text))).collect(),
            kind: Kind::Missing,
            columns: Vec::new(),
            source_count: 1,
            target_count: 0,
            source_digest: Some(1),
            target_digest: None,
            source_row: None,
            target_row: None,
            explained_by: None,
        }
    }

    #[test]
    fn a_key_explains_itself_and_nothing_else() {
        let key = |parts: &[(&str, Option<&str>)]| Touched {
            transaction: "7".into(),
            key: Some(difference(parts).key.into_iter().collect()),
        };
        let covers = |key: &Touched, parts| key.covers(&difference(parts), true);
        let one = key(&[("a", Some("1")), ("b", None)]);
        assert!(covers(&one, &[("b", None), ("a", Some("1"))]));
        assert!(!covers(&one, &[("b", Some("")), ("a", Some("1"))]));
        assert!(!covers(&one, &[("a", Some("1"))]));
        let part = key(&[("a", Some("1"))]);
        assert!(!covers(&part, &[("a", Some("1")), ("b", None)]));
        // A row that has no key is named by nothing.
        assert!(!covers(&key(&[]), &[]));
    }

    /// Of a table with a key a held TRUNCATE leaves rows too many, and explains nothing else.
    #[test]
    fn a_whole_table_explains_what_its_transaction_can_have_done() {
        let table = TableName {
            schema: "s".into(),
            name: "t".into(),
        };
        let whole = Touched {
            transaction: "7".into(),
            key: None,
        };
        let named = Touched {
            transaction: "8".into(),
            key: Some([("a".to_owned(), Some("1".to_owned()))].into()),
        };
        let held = |touched: Vec<Touched>| Held {
            tables: [(table.clone(), touched)].into(),
            waiting: 1,
        };
        let explained = |touched: &[&Touched], by_key, kind| {
            let took = std::time::Duration::ZERO;
            let (reason, hint) = (String::new(), String::new());
            let mut report = crate::catalogue::not_comparable(&table, reason, hint, took);
            report.by_key = by_key;
            (report.missing, report.changed) = (10, 10);
            (report.extra, report.duplicate) = (10, 10);
            let mut listed = difference(&[("a", Some("1"))]);
            (listed.kind, listed.target_count) = (kind, 1);
            report.differences = vec![listed];
            let touched = touched.iter().map(|touched| (*touched).clone());
            held(touched.collect()).explain(&mut report);
            let by = report.differences.remove(0).explained_by;
            (report.explained, by.unwrap_or_default())
        };
        let with = |n, by: &str| (n, by.to_owned());
        // What is not listed counts too.
        assert_eq!(explained(&[&whole], true, Kind::Extra), with(10, "7"));
        assert_eq!(explained(&[&whole], true, Kind::Duplicate), with(10, ""));
        assert_eq!(explained(&[&whole], true, Kind::Missing), with(10, ""));
        assert_eq!(explained(&[&whole], true, Kind::Changed), with(10, ""));
        assert_eq!(explained(&[&whole], false, Kind::Missing), with(40, "7"));
        // A row that is named is explained by who names it.
        assert_eq!(explained(&[&named], true, Kind::Missing), with(1, "8"));
        let both = [&whole, &named];
        assert_eq!(explained(&both, true, Kind::Missing), with(11, "8"));
        assert_eq!(explained(&both, true, Kind::Extra), with(10, "7"));
    }
}
