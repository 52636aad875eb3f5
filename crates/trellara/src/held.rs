//! What is held, as `/status` and `trellara status` say it.

use serde::{Deserialize, Serialize};
use trellara_applier::QuarantineSnapshot;
use trellara_applier::quarantine::limits::{self, Totals};
use trellara_applier::quarantine::{HeldId, QuarantineOptions, QuarantinePolicy};
use trellara_envelope::Lane;
use trellara_postgres::Session;

use crate::command::status::{age, bytes_text};
use crate::config::Config;
use crate::exit::Failure;

/// C40: what a target may show once the lane has moved past a transaction.
const LOOSENED: &str = "the target may show a state the source never had";

/// What is held of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeldFacts {
    /// `halt` or `hold_dependents`.
    pub(crate) policy: String,
    /// Transactions that are still to be applied, their bytes, and the entries of their footprints.
    pub(crate) open: u64,
    pub(crate) bytes: u64,
    pub(crate) keys: u64,
    /// The oldest of them, and for how long.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) oldest: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) oldest_seconds: Option<f64>,
    /// Those of them that the lane has moved past.
    pub(crate) passed: u64,
    /// Those that are not to be applied.
    pub(crate) discarded: u64,
    /// The one in front of which the lane stands.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) stands_in_front_of: Option<i64>,
    /// What that means for whoever reads the target.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) note: Option<String>,
}

impl HeldFacts {
    /// As an applier sees it now.
    pub(crate) fn of_applier(held: &QuarantineSnapshot) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let totals = Totals {
            transactions: held.open,
            bytes: held.bytes,
            keys: held.keys,
            oldest: held.oldest,
            oldest_passed: None,
            passed_bytes: 0,
            passed_keys: 0,
            passed: held.passed,
            discarded: held.discarded,
            now_us: now.map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(i64::MAX)),
        };
        Self::new(held.policy, totals, held.stands_in_front_of)
    }

    /// As the target says it; nothing where it keeps no quarantine, or it is not ours to read.
    pub(crate) async fn of_target(
        session: &Session,
        config: &Config,
    ) -> Result<Option<Self>, Failure> {
        let readable = "SELECT coalesce(has_column_privilege(to_regclass('trellara.held')::oid, \
                        'before_ordinal', 'SELECT'), false) \
                          FROM pg_attribute WHERE attname = 'before_ordinal' \
                           AND attrelid = to_regclass('trellara.held')";
        let readable = session.client.query_opt(readable, &[]).await?;
        if !readable.is_some_and(|row| row.get(0)) {
            return Ok(None);
        }
        let (client, flow) = (&session.client, &config.flow);
        let totals = limits::totals(client, flow, Lane(0)).await?;
        let stands = limits::stands_in_front_of(client, flow, Lane(0)).await?;
        let QuarantineOptions { policy, .. } = config.process.quarantine;
        Ok(Some(Self::new(policy, totals, stands)))
    }

    fn new(policy: QuarantinePolicy, totals: Totals, stands: Option<HeldId>) -> Self {
        let waited = |(at_us, _): (i64, HeldId)| (totals.now_us - at_us).max(0) as f64 / 1e6;
        let loosened = totals.passed > 0 || totals.discarded > 0;
        Self {
            policy: match policy {
                QuarantinePolicy::Halt => "halt".to_owned(),
                QuarantinePolicy::HoldDependents => "hold_dependents".to_owned(),
            },
            open: totals.transactions,
            bytes: totals.bytes,
            keys: totals.keys,
            oldest: totals.oldest.map(|(_, id)| id.0),
            oldest_seconds: totals.oldest.map(waited),
            passed: totals.passed,
            discarded: totals.discarded,
            stands_in_front_of: stands.map(|id| id.0),
            note: loosened.then(|| LOOSENED.to_owned()),
        }
    }

    /// One line of `trellara status`; nothing where nothing is or was held.
    pub(crate) fn line(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let (Some(id), Some(seconds)) = (self.oldest, self.oldest_seconds) {
            let transactions = match self.open {
                1 => "1 transaction".to_owned(),
                open => format!("{open} transactions"),
            };
            parts.push(format!("{transactions}, {}", bytes_text(self.bytes)));
            parts.push(format!("the oldest ({id}) for {}", age(seconds)));
        }
        if self.discarded > 0 {
            parts.push(format!("{} discarded", self.discarded));
        }
        (!parts.is_empty()).then(|| format!("  held     {}", parts.join(", ")))
    }

    /// What it means for the flow, and where to go.
    pub(crate) fn blocks(&self) -> Vec<String> {
        let mut blocks = Vec::new();
        if let Some(id) = self.stands_in_front_of {
            blocks.push(format!(
                "transaction {id} is held: trellara quarantine show {id}"
            ));
        }
        if self.passed > 0 {
            blocks.push(format!(
                "{} held and passed; {LOOSENED}: trellara quarantine list",
                self.passed
            ));
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(totals: Totals, stands: Option<i64>) -> HeldFacts {
        HeldFacts::new(QuarantinePolicy::HoldDependents, totals, stands.map(HeldId))
    }

    #[test]
    fn what_is_held_is_said_in_one_line_and_what_it_means_in_others() {
        let totals = Totals {
            transactions: 2,
            bytes: 3 << 20,
            oldest: Some((0, HeldId(7))),
            now_us: 600_000_000,
            passed: 1,
            discarded: 1,
            ..Totals::default()
        };
        let facts = facts(totals, Some(9));
        let line = "  held     2 transactions, 3.0 MiB, the oldest (7) for 10 min, 1 discarded";
        assert_eq!(facts.line().as_deref(), Some(line));
        let expected = [
            "transaction 9 is held: trellara quarantine show 9",
            "1 held and passed; the target may show a state the source never had: trellara \
             quarantine list",
        ];
        assert_eq!(facts.blocks(), expected);
        assert_eq!(facts.note.as_deref(), Some(LOOSENED));
    }

    #[test]
    fn where_nothing_is_held_nothing_is_said() {
        let facts = facts(Totals::default(), None);
        assert_eq!((facts.line(), facts.note.clone()), (None, None));
        assert!(facts.blocks().is_empty());
    }
}
