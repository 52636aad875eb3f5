//! Compares every photograph with the prefix of the truth that its checkpoint claims.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tokio_postgres::Client;

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
/// target's ledger at the end. `initial_balance` is the sum that [`super::Workload::seed_rows`]
/// deposits. Photographs of a position before the seed rows arrived are compared as well: their
/// lists are empty then.
pub async fn judge(
    truth: &Truth,
    observations: &[Observation],
    target: &Client,
    flow: &str,
    initial_balance: i64,
) -> Result<Verdict> {
    let mut verdict = Verdict {
        transactions: truth.transactions.len(),
        observations: observations.len(),
        ..Verdict::default()
    };
    let mut replay = Replay::default();
    let mut last_position = 0;
    let mut sorted: Vec<&Observation> = observations.iter().collect();
    for pair in observations.windows(2) {
        if pair[1].end_lsn < pair[0].end_lsn {
            verdict.violation(format!(
                "H5: the checkpoint went back from {:X} to {:X}",
                pair[0].end_lsn, pair[1].end_lsn
            ));
        }
    }
    sorted.sort_by_key(|observation| observation.end_lsn);
    for observation in sorted {
        if observation.end_lsn != last_position {
            verdict.distinct_positions += 1;
            last_position = observation.end_lsn;
        }
        replay.advance(truth, truth.prefix(observation.end_lsn));
        replay.compare(observation, initial_balance, &mut verdict);
    }
    ledger(truth, target, flow, &mut verdict).await?;
    Ok(verdict)
}

/// The state that a prefix of the truth must produce.
#[derive(Default)]
struct Replay {
    done: usize,
    count: i64,
    sum: i128,
    keyless: i64,
    lists: BTreeMap<i32, (i32, Sha256)>,
}

impl Replay {
    fn advance(&mut self, truth: &Truth, to: usize) {
        for transaction in &truth.transactions[self.done..to] {
            for id in &transaction.ids {
                self.count += 1;
                self.sum += i128::from(*id);
            }
            self.keyless += transaction.keyless as i64;
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

    fn compare(&self, seen: &Observation, initial_balance: i64, verdict: &mut Verdict) {
        let at = format!(
            "at {:X}/{:X}",
            seen.end_lsn >> 32,
            seen.end_lsn & 0xffff_ffff
        );
        if seen.transactions.0 != self.count || seen.transactions.1 != self.sum.to_string() {
            verdict.violation(format!(
                "H1 {at}: {} rows in tx (sum {}) where {} (sum {}) are due",
                seen.transactions.0, seen.transactions.1, self.count, self.sum
            ));
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
        if seen.balance != initial_balance && seen.balance != 0 {
            verdict.violation(format!("H4 {at}: the balances sum to {}", seen.balance));
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

/// H6: every identity is in the ledger once.
async fn ledger(truth: &Truth, target: &Client, flow: &str, verdict: &mut Verdict) -> Result<()> {
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
    let (all, distinct): (i64, i64) = (row.get(0), row.get(1));
    verdict.ledger_identities = all;
    if all != distinct {
        verdict.violation(format!(
            "H6: {all} identities in the ledger, {distinct} of them distinct"
        ));
    }
    let touching = truth
        .transactions
        .iter()
        .filter(|transaction| transaction.changes > 0)
        .count();
    if distinct < touching as i64 {
        verdict.violation(format!(
            "H6: {distinct} identities where {touching} transactions changed rows"
        ));
    }
    Ok(())
}
