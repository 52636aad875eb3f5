//! Compares every photograph with the prefix of the truth that its checkpoint claims.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tokio_postgres::Client;

use super::observer::IdSet;
use super::{Observation, Truth};

/// What was found; empty `violations` means that nothing was lost, doubled, torn or reordered.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Transactions of the truth.
    pub transactions: usize,
    /// Photographs compared.
    pub observations: usize,
    /// Distinct checkpoints among them.
    pub distinct_positions: usize,
    /// Identities in the ledger.
    pub ledger_identities: i64,
    /// One sentence each, the first hundred.
    pub violations: Vec<String>,
}

impl Verdict {
    /// Whether all of H1 to H6 held.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    fn violation(&mut self, text: String) {
        if self.violations.len() < 100 {
            self.violations.push(text);
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} transactions, {} observations at {} positions, {} ledger identities, {} violations",
            self.transactions,
            self.observations,
            self.distinct_positions,
            self.ledger_identities,
            self.violations.len()
        )?;
        self.violations
            .iter()
            .try_for_each(|text| writeln!(f, "  {text}"))
    }
}

/// Judges photographs taken while the flow ran, in the order in which they were taken, and the
/// target's ledger at the end.
pub async fn judge(
    truth: &Truth,
    observations: &[Observation],
    target: &Client,
    flow: &str,
) -> Result<Verdict> {
    let mut verdict = judge_photographs(truth, observations);
    judge_ledger(truth, LedgerCount::read(target, flow).await?, &mut verdict);
    Ok(verdict)
}

/// H1 to H5: every photograph shows exactly the prefix that its checkpoint claims.
pub fn judge_photographs(truth: &Truth, observations: &[Observation]) -> Verdict {
    let mut verdict = Verdict {
        transactions: truth.transactions.len(),
        observations: observations.len(),
        ..Verdict::default()
    };
    for pair in observations.windows(2) {
        if pair[1].end_lsn < pair[0].end_lsn {
            verdict.violation(format!(
                "H5: the checkpoint went back from {} to {}",
                lsn(pair[0].end_lsn),
                lsn(pair[1].end_lsn)
            ));
        }
    }
    let mut sorted: Vec<&Observation> = observations.iter().collect();
    sorted.sort_by_key(|observation| observation.end_lsn);
    let mut replay = Replay::default();
    let mut last_position = None;
    for observation in sorted {
        if last_position.replace(observation.end_lsn) != Some(observation.end_lsn) {
            verdict.distinct_positions += 1;
        }
        replay.advance(truth, truth.prefix(observation.end_lsn));
        replay.compare(observation, &mut verdict);
    }
    verdict
}

fn lsn(number: u64) -> String {
    format!("{:X}/{:X}", number >> 32, number & 0xffff_ffff)
}

/// The state that a prefix of the truth must produce.
#[derive(Default)]
struct Replay {
    done: usize,
    transactions: IdSet,
    deposited: i64,
    keyless: i64,
    lists: BTreeMap<i32, (i32, Sha256)>,
}

impl Replay {
    fn advance(&mut self, truth: &Truth, to: usize) {
        for transaction in &truth.transactions[self.done..to] {
            for id in &transaction.ids {
                self.transactions.add(*id);
            }
            self.keyless += transaction.keyless as i64;
            self.deposited += transaction.deposited;
            for (key, id) in &transaction.appended {
                let (length, hash) = self.lists.entry(*key).or_default();
                if *length > 0 {
                    hash.update(b",");
                }
                hash.update(id.to_string().as_bytes());
                *length += 1;
            }
        }
        self.done = to;
    }

    fn compare(&self, seen: &Observation, verdict: &mut Verdict) {
        let at = format!("at {}", lsn(seen.end_lsn));
        if seen.transactions != self.transactions {
            verdict.violation(format!(
                "H1 {at}: tx holds {:?} where {:?} are due",
                seen.transactions, self.transactions
            ));
        }
        let shown: BTreeSet<i32> = seen.lists.iter().map(|(key, ..)| *key).collect();
        for key in self.lists.keys().filter(|key| !shown.contains(key)) {
            verdict.violation(format!("H2/H3 {at}: list {key} is not there"));
        }
        for (key, length, hash) in &seen.lists {
            let (due_length, due) = self.lists.get(key).cloned().unwrap_or_default();
            let due = due
                .finalize()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>();
            if *length != due_length || *hash != due {
                verdict.violation(format!(
                    "H2/H3 {at}: list {key} has {length} elements where {due_length} are due, or another order"
                ));
            }
        }
        if seen.balance != self.deposited {
            verdict.violation(format!(
                "H4 {at}: the balances sum to {} where {} are due",
                seen.balance, self.deposited
            ));
        }
        if seen.keyless != self.keyless {
            verdict.violation(format!(
                "H1 {at}: {} rows in keyless where {} are due",
                seen.keyless, self.keyless
            ));
        }
        if seen.torn_wide != 0 {
            verdict.violation(format!(
                "H3 {at}: {} rows of wide do not match their digest",
                seen.torn_wide
            ));
        }
    }
}

/// Identities in a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerCount {
    /// All of them.
    pub all: i64,
    /// Different ones.
    pub distinct: i64,
}

impl LedgerCount {
    /// Counts the ledger of one flow.
    pub async fn read(target: &Client, flow: &str) -> Result<Self> {
        let row = target
            .query_one(
                "SELECT count(*), count(DISTINCT h) FROM (
                   SELECT substring(hashes FROM g * 16 + 1 FOR 16) AS h
                   FROM trellara.applied, generate_series(0, length(hashes) / 16 - 1) g
                   WHERE flow = $1) identities",
                &[&flow],
            )
            .await
            .context("reading the ledger")?;
        Ok(Self {
            all: row.get(0),
            distinct: row.get(1),
        })
    }
}

/// H6: every transaction that changed rows is in the ledger once, and nothing else is.
pub fn judge_ledger(truth: &Truth, ledger: LedgerCount, verdict: &mut Verdict) {
    verdict.ledger_identities = ledger.all;
    if ledger.all != ledger.distinct {
        verdict.violation(format!(
            "H6: {} identities in the ledger, {} of them distinct",
            ledger.all, ledger.distinct
        ));
    }
    let touching = truth
        .transactions
        .iter()
        .filter(|transaction| transaction.changes > 0)
        .count();
    if ledger.distinct != touching as i64 {
        verdict.violation(format!(
            "H6: {} identities where {touching} transactions changed rows",
            ledger.distinct
        ));
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
