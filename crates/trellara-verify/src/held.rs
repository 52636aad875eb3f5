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

mod whole;

pub(crate) use whole::Spent;
use whole::Whole;

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
    /// Tables that are touched as a whole.
    wholes: BTreeMap<TableName, Whole>,
    /// Transactions that are still to come: equal rows do not make the sides the same.
    pub(crate) waiting: u64,
    /// Where there are keys to ask for.
    keys: Option<Keys>,
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
        // What a discarded one left out was written over by the first that touched the same after
        // it. Which of its rows that one touched is not known, so from then on it explains none.
        let keys = Keys {
            held: format!(
                "{those} AND (h.state IN ('held', 'replaying') \
                              OR h.state = 'discarded' AND h.overtaken_by IS NULL)"
            ),
            skipped,
        };
        Ok(Self {
            wholes: whole::read(target, &keys).await?,
            waiting: only(target.rows(&waiting).await?)?.number()? as u64,
            keys: Some(keys),
        })
    }

    /// Says of each listed difference what explains it. What is not listed is explained only where a
    /// whole table is touched, and only what that can have done and no earlier part of it `spent`.
    pub(crate) async fn explain(
        &self,
        pool: &Pool,
        report: &mut TableReport,
        spent: &mut Spent,
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
        match self.wholes.get(&report.table) {
            Some(whole) => whole.explain(report, spent),
            None => Whole::default().explain(report, spent),
        }
        Ok(())
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

    #[test]
    fn a_key_is_an_object_of_texts() {
        let key = [
            ("a'b".to_owned(), Some("1".to_owned())),
            ("c".to_owned(), None),
        ];
        assert_eq!(object(&key), "jsonb_build_object('a''b', '1', 'c', NULL)");
    }
}
