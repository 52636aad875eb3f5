//! What the target set aside or let go by: transactions in quarantine, and changes that a conflict
//! rule skipped. They explain differences on the keys that they touch, and hide none (C54).
//!
//! The keys stay on the server, which is asked for those of listed differences: held transactions
//! may have more of them than fit into memory.

use std::collections::BTreeMap;

use trellara_envelope::{FlowName, Lsn};
use trellara_postgres::quote;

use crate::error::{Failure, VerifyError};
use crate::inventory::{Cells, only};
use crate::pool::Pool;
use crate::reader::Reader;
use crate::report::{Difference, Explanation, Kind, TableName, TableReport};

/// Whose quarantine is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    /// The flow.
    pub flow: FlowName,
    /// Transactions whose commit record begins before it: the others belong to no side yet.
    pub before: Lsn,
}

/// How many keys one statement asks for.
const ASKED_MAX: usize = 500;

/// What is held before the position compared, as the target's snapshot shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Tables that are touched as a whole, by one transaction for each way.
    wholes: BTreeMap<TableName, Vec<Whole>>,
    /// Changes of rows without a key that were skipped.
    keyless: BTreeMap<TableName, u64>,
    /// Transactions that are still to come: equal rows do not make the sides the same.
    pub(crate) waiting: u64,
    /// Where there are keys to ask for.
    keys: Option<Keys>,
}

/// A table touched as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Whole {
    transaction: String,
    /// It has no key by which the transaction could name rows; otherwise it was emptied.
    keyless: bool,
}

/// Conditions, as SQL, on the rows that can explain something.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Keys {
    /// On `h`, a held transaction.
    held: String,
    /// On `s`, a skipped change; `None` on a target that has no such table.
    skipped: Option<String>,
}

impl Held {
    /// Reads it; nothing where the target has no quarantine.
    pub(crate) async fn read(target: &Reader, quarantine: &Quarantine) -> Result<Self, Failure> {
        let exists = "SELECT to_regclass('trellara.held') IS NOT NULL \
                         AND to_regclass('trellara.held_key') IS NOT NULL, \
                             to_regclass('trellara.skipped') IS NOT NULL";
        let mut exists = only(target.rows(exists).await?)?;
        if !exists.flag()? {
            return Ok(Self::default());
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
        // What a rule overwrote is what the source has, and of a row that is gone on both sides
        // nothing is left to explain.
        let skipped = exists.flag()?.then(|| {
            format!(
                "s.flow = {flow} AND s.commit_lsn < {before}::pg_lsn AND s.rule = 'skip' \
                 AND s.verb IN ('insert', 'update')"
            )
        });
        let mut held = Self {
            waiting: only(target.rows(&waiting).await?)?.number()? as u64,
            keys: Some(Keys {
                held: format!("{those} AND h.state IN ('held', 'replaying', 'discarded')"),
                skipped,
            }),
            ..Self::default()
        };
        held.read_wholes(target).await?;
        Ok(held)
    }

    async fn read_wholes(&mut self, target: &Reader) -> Result<(), Failure> {
        let Some(keys) = &self.keys else {
            return Ok(());
        };
        let wholes = format!(
            "SELECT DISTINCT ON (k.schema, k.\"table\", k.touch) \
                    k.schema, k.\"table\", k.touch = 'keyless', h.id \
               FROM trellara.held AS h JOIN trellara.held_key AS k ON k.held_id = h.id \
              WHERE {} AND k.touch IN ('truncate', 'keyless') \
              ORDER BY k.schema, k.\"table\", k.touch, h.id",
            keys.held
        );
        for row in target.rows(&wholes).await? {
            let mut row = Cells(row.into_iter());
            let table = table(&mut row)?;
            let keyless = row.flag()?;
            let transaction = row.text()?;
            self.wholes.entry(table).or_default().push(Whole {
                transaction,
                keyless,
            });
        }
        let Some(skipped) = &keys.skipped else {
            return Ok(());
        };
        let keyless = format!(
            "SELECT s.schema, s.\"table\", count(*) FROM trellara.skipped AS s \
              WHERE {skipped} AND s.key IS NULL GROUP BY 1, 2"
        );
        for row in target.rows(&keyless).await? {
            let mut row = Cells(row.into_iter());
            let table = table(&mut row)?;
            self.keyless.insert(table, row.number()? as u64);
        }
        Ok(())
    }

    /// Says of each listed difference what explains it. What is not listed is explained only where a
    /// whole table is touched, and only what that can have done.
    pub(crate) async fn explain(
        &self,
        pool: &Pool,
        report: &mut TableReport,
    ) -> Result<(), Failure> {
        if report.differing() == 0 {
            return Ok(());
        }
        if let Some(keys) = &self.keys
            && report.by_key
            && !report.differences.is_empty()
        {
            let taken = pool.take().await?;
            let target = &taken.lane()?.target;
            let (table, differences) = (&report.table, &mut report.differences);
            for some in differences.chunks_mut(ASKED_MAX) {
                keys.explain(target, table, some).await?;
            }
        }
        self.explain_whole(report);
        Ok(())
    }

    /// What whole tables explain, and how many rows are explained in all.
    fn explain_whole(&self, report: &mut TableReport) {
        let by_key = report.by_key;
        let wholes = self.wholes.get(&report.table);
        let wholes = wholes.map_or(&[][..], Vec::as_slice);
        let skipped = self.keyless.get(&report.table).copied().unwrap_or(0);
        // Each skipped change leaves one row out, and nobody knows which.
        let left_out = !by_key && report.missing <= skipped;
        let explanation = |kind| {
            let whole = wholes.iter().find(|whole| whole.explains(kind, by_key));
            let held = whole.map(|whole| Explanation::Held(whole.transaction.clone()));
            held.or((kind == Kind::Missing && left_out).then_some(Explanation::ConflictRule))
        };
        for difference in &mut report.differences {
            if difference.explained_by.is_none() {
                difference.explained_by = explanation(difference.kind);
            }
        }
        let all = [
            (Kind::Missing, report.missing),
            (Kind::Extra, report.extra),
            (Kind::Changed, report.changed),
            (Kind::Duplicate, report.duplicate),
        ];
        let whole = |kind: &Kind| explanation(*kind).is_some();
        let listed = report.differences.iter();
        let listed = listed.filter(|d| d.explained_by.is_some() && !whole(&d.kind));
        let all = all.into_iter().filter(|(kind, _)| whole(kind));
        report.explained =
            all.map(|(_, rows)| rows).sum::<u64>() + listed.map(Difference::rows).sum::<u64>();
    }
}

impl Whole {
    /// Whether it can have made a difference of this kind. Where it has no key to name rows by,
    /// any. A held TRUNCATE of a table with a key leaves rows on the target that the source has no
    /// more, and takes none and changes none; rows of one key that are too many may be wrong
    /// besides, so they are left to a human.
    fn explains(&self, kind: Kind, by_key: bool) -> bool {
        match kind {
            Kind::Extra => true,
            Kind::Duplicate | Kind::Missing | Kind::Changed => self.keyless || !by_key,
        }
    }
}

impl Keys {
    /// A key explains a row when it is the row's whole key, value by value as text.
    async fn explain(
        &self,
        target: &Reader,
        table: &TableName,
        differences: &mut [Difference],
    ) -> Result<(), Failure> {
        let named = differences.iter().enumerate();
        let named = named.filter(|(_, difference)| !difference.key.is_empty());
        let rows: Vec<String> = named
            .map(|(n, difference)| format!("({n}, {})", object(&difference.key)))
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let (schema, name) = (quote::literal(&table.schema), quote::literal(&table.name));
        let same = |of: &str| {
            format!(
                "{of}.schema = {schema} AND {of}.\"table\" = {name} AND d.key = \
                 (SELECT jsonb_object_agg(e.key, e.value) FROM jsonb_each_text({of}.key) AS e)"
            )
        };
        let asked = format!("(VALUES {}) AS d (n, key)", rows.join(", "));
        let held = format!(
            "SELECT d.n, min(h.id) FROM {asked} \
               JOIN trellara.held_key AS k ON k.touch = 'row' AND {} \
               JOIN trellara.held AS h ON h.id = k.held_id \
              WHERE {} GROUP BY d.n",
            same("k"),
            self.held
        );
        for row in target.rows(&held).await? {
            let mut row = Cells(row.into_iter());
            let at = row.number()?;
            let transaction = row.text()?;
            if let Some(difference) = differences.get_mut(at) {
                difference.explained_by = Some(Explanation::Held(transaction));
            }
        }
        let Some(skipped) = &self.skipped else {
            return Ok(());
        };
        let skipped = format!(
            "SELECT DISTINCT d.n FROM {asked} JOIN trellara.skipped AS s ON {} WHERE {skipped}",
            same("s")
        );
        for row in target.rows(&skipped).await? {
            let at = Cells(row.into_iter()).number()?;
            if let Some(difference) = differences.get_mut(at)
                && matches!(difference.kind, Kind::Missing | Kind::Changed)
            {
                let by = &mut difference.explained_by;
                by.get_or_insert(Explanation::ConflictRule);
            }
        }
        Ok(())
    }
}

/// The SQL of an object with these columns and values.
fn object(key: &[(String, Option<String>)]) -> String {
    let pairs: Vec<String> = key
        .iter()
        .map(|(name, value)| {
            let value = value.as_deref().map_or("NULL".to_owned(), quote::literal);
            format!("{}, {value}", quote::literal(name))
        })
        .collect();
    format!("jsonb_build_object({})", pairs.join(", "))
}

fn table(row: &mut Cells) -> Result<TableName, Failure> {
    Ok(TableName {
        schema: row.text()?,
        name: row.text()?,
    })
}

/// Without it nothing could be called equal: what is held would be passed over.
pub(crate) fn unreadable(failure: Failure) -> VerifyError {
    match failure {
        Failure::Run(error) => error,
        Failure::Refused { side, fault } => VerifyError::unusable(
            side,
            format!("the quarantine cannot be read on the {side}: {fault}"),
            "GRANT SELECT ON trellara.held, trellara.held_key, trellara.skipped TO the role of \
             target.url; config/postgres/target.sql does",
        ),
        Failure::NotComparable { reason, hint } => VerifyError::incomparable(reason, hint),
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
            target_count: 1,
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
        let mut report = crate::catalogue::not_comparable(&t(), reason, hint, took);
        report.by_key = by_key;
        (report.missing, report.changed) = (10, 10);
        (report.extra, report.duplicate) = (10, 10);
        let mut listed = difference(kind);
        listed.target_count = u64::from(kind != Kind::Missing) + u64::from(kind == Kind::Duplicate);
        listed.explained_by = known.map(|id| Explanation::Held(id.into()));
        report.differences = vec![listed];
        report
    }

    fn t() -> TableName {
        TableName {
            schema: "s".into(),
            name: "t".into(),
        }
    }

    fn explained(held: &Held, mut report: TableReport) -> (u64, String) {
        held.explain_whole(&mut report);
        let by = report.differences.remove(0).explained_by;
        (
            report.explained,
            by.map(|by| by.to_string()).unwrap_or_default(),
        )
    }

    fn with(n: u64, by: &str) -> (u64, String) {
        (n, by.to_owned())
    }

    /// Of a table with a key a held TRUNCATE leaves rows too many, and explains nothing else.
    #[test]
    fn a_whole_table_explains_what_its_transaction_can_have_done() {
        let held = |keyless| Held {
            wholes: [(
                t(),
                vec![Whole {
                    transaction: "7".into(),
                    keyless,
                }],
            )]
            .into(),
            ..Held::default()
        };
        let emptied = held(false);
        // What is not listed counts too.
        assert_eq!(
            explained(&emptied, report(Kind::Extra, true, None)),
            with(10, "7")
        );
        for kind in [Kind::Duplicate, Kind::Missing, Kind::Changed] {
            assert_eq!(explained(&emptied, report(kind, true, None)), with(10, ""));
            assert_eq!(
                explained(&emptied, report(kind, false, None)),
                with(40, "7")
            );
            assert_eq!(
                explained(&held(true), report(kind, true, None)),
                with(40, "7")
            );
        }
        // A row that is named is explained by who names it.
        let nothing = Held::default();
        assert_eq!(
            explained(&nothing, report(Kind::Missing, true, Some("8"))),
            with(1, "8")
        );
        assert_eq!(
            explained(&emptied, report(Kind::Missing, true, Some("8"))),
            with(11, "8")
        );
        assert_eq!(
            explained(&emptied, report(Kind::Extra, true, Some("8"))),
            with(10, "8")
        );
    }

    /// As many rows may be missing as were left out, and not one more.
    #[test]
    fn skipped_rows_without_a_key_explain_as_many_as_they_are() {
        let held = |keyless| Held {
            keyless: [(t(), keyless)].into(),
            ..Held::default()
        };
        let missing = || report(Kind::Missing, false, None);
        assert_eq!(explained(&held(10), missing()), with(10, "conflict rule"));
        assert_eq!(explained(&held(9), missing()), with(0, ""));
        let keyed = report(Kind::Missing, true, None);
        assert_eq!(explained(&held(10), keyed), with(0, ""));
        let extra = report(Kind::Extra, false, None);
        assert_eq!(explained(&held(10), extra), with(10, ""));
    }

    #[test]
    fn a_key_is_an_object_of_texts() {
        let key = [
            ("a'b".to_owned(), Some("1".to_owned())),
            ("c".to_owned(), None),
        ];
        assert_eq!(object(&key), "jsonb_build_object('a''b', '1', 'c', NULL)");
    }
}
