//! The oracle objects to every kind of wrong history, and to no right one.

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;
use crate::oracle::TruthTransaction;

const KEYS: i32 = 3;
const DEPOSIT: i64 = 500;

/// A target that applies transactions as the applier should, or not as it should.
#[derive(Clone, Default)]
struct Target {
    seen: Observation,
    lists: BTreeMap<i32, Vec<i64>>,
}

impl Target {
    fn apply(&mut self, transaction: &TruthTransaction) {
        for id in &transaction.ids {
            self.seen.transactions.add(*id);
        }
        for (key, id) in &transaction.appended {
            self.lists.entry(*key).or_default().push(*id);
        }
        self.seen.keyless += transaction.keyless as i64;
        self.seen.balance += transaction.deposited;
        self.seen.end_lsn = self.seen.end_lsn.max(transaction.end_lsn);
    }

    fn photograph(&self) -> Observation {
        let lists = self.lists.iter().map(|(key, ids)| {
            let texts: Vec<String> = ids.iter().map(i64::to_string).collect();
            let hash = Sha256::digest(texts.join(",").as_bytes());
            let hash = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            (*key, ids.len() as i32, hash)
        });
        Observation {
            lists: lists.collect(),
            ..self.seen.clone()
        }
    }
}

/// `count` transactions behind one that deposits; each appends to two lists.
fn history(count: i64) -> Truth {
    let deposit = TruthTransaction {
        end_lsn: 100,
        deposited: DEPOSIT,
        changes: 1,
        ..TruthTransaction::default()
    };
    let others = (1..=count).map(|id| TruthTransaction {
        end_lsn: 100 + 10 * id as u64,
        xid: id as u32,
        ids: vec![id],
        appended: vec![((id % i64::from(KEYS)) as i32, id), (KEYS, id)],
        keyless: 1,
        deposited: 0,
        changes: 4,
    });
    Truth {
        transactions: std::iter::once(deposit).chain(others).collect(),
    }
}

/// Applies a history whole, one photograph after each transaction.
fn photographs(applied: &[TruthTransaction]) -> Vec<Observation> {
    let mut target = Target::default();
    applied
        .iter()
        .map(|transaction| {
            target.apply(transaction);
            target.photograph()
        })
        .collect()
}

#[track_caller]
fn objects(verdict: &Verdict, rule: &str) {
    assert!(
        verdict.violations.iter().any(|text| text.starts_with(rule)),
        "no {rule} in {:?}",
        verdict.violations
    );
}

#[test]
fn a_right_history_is_right() {
    let truth = history(20);
    let verdict = judge_photographs(&truth, &photographs(&truth.transactions));
    assert_eq!(verdict.violations, Vec::<String>::new());
    assert_eq!(verdict.distinct_positions, 21);
}

#[test]
fn a_lost_transaction_is_seen() {
    let truth = history(20);
    let mut applied = truth.transactions.clone();
    applied.remove(7);
    let verdict = judge_photographs(&truth, &photographs(&applied));
    objects(&verdict, "H1");
    objects(&verdict, "H2");
}

#[test]
fn a_transaction_that_is_not_due_yet_is_seen() {
    let truth = history(20);
    let mut seen = photographs(&truth.transactions);
    seen[4].end_lsn = seen[3].end_lsn;
    objects(&judge_photographs(&truth, &seen), "H1");
}

#[test]
fn a_doubled_transaction_is_seen() {
    let truth = history(20);
    let mut applied = truth.transactions.clone();
    applied.insert(8, applied[7].clone());
    let verdict = judge_photographs(&truth, &photographs(&applied));
    objects(&verdict, "H1");
    objects(&verdict, "H2");
}

#[test]
fn a_doubled_keyless_row_is_seen() {
    let truth = history(20);
    let mut applied = truth.transactions.clone();
    applied[7].keyless = 2;
    objects(&judge_photographs(&truth, &photographs(&applied)), "H1");
}

#[test]
fn one_transaction_instead_of_another_is_seen() {
    let truth = history(20);
    let mut applied = truth.transactions.clone();
    // Count and sum of the ids stay what they were.
    applied[5].ids = vec![5 + 1];
    applied[9].ids = vec![9 - 1];
    objects(&judge_photographs(&truth, &photographs(&applied)), "H1");
}

#[test]
fn a_torn_transaction_is_seen() {
    let truth = history(20);
    for part in 0..2 {
        let mut applied = truth.transactions.clone();
        applied[7].appended.remove(part);
        objects(&judge_photographs(&truth, &photographs(&applied)), "H2");
    }
    let mut seen = photographs(&truth.transactions);
    seen[7].torn_wide = 1;
    objects(&judge_photographs(&truth, &seen), "H3");
}

#[test]
fn half_a_transfer_is_seen() {
    let truth = history(20);
    let mut seen = photographs(&truth.transactions);
    seen[7].balance -= 3;
    objects(&judge_photographs(&truth, &seen), "H4");
    // Nothing at all is no balance either, once the deposit is due.
    seen[7].balance = 0;
    objects(&judge_photographs(&truth, &seen), "H4");
}

#[test]
fn reordered_transactions_are_seen() {
    let truth = history(20);
    let mut applied = truth.transactions.clone();
    applied.swap(7, 8);
    // Afterwards all counts and sums agree; only the lists tell, at every later position.
    let seen = photographs(&applied);
    objects(&judge_photographs(&truth, &seen[12..]), "H2");
}

#[test]
fn a_checkpoint_that_goes_back_is_seen() {
    let truth = history(20);
    let mut seen = photographs(&truth.transactions);
    seen.swap(7, 8);
    let verdict = judge_photographs(&truth, &seen);
    objects(&verdict, "H5");
    assert_eq!(verdict.violations.len(), 1, "each photograph is right");
}

#[test]
fn a_list_that_vanished_is_seen() {
    let truth = history(20);
    let mut seen = photographs(&truth.transactions);
    seen[15].lists.pop();
    objects(&judge_photographs(&truth, &seen), "H2");
}

#[test]
fn a_ledger_with_more_or_less_than_the_truth_is_seen() {
    let truth = history(20);
    let verdict = |all, distinct| {
        let mut verdict = Verdict::default();
        judge_ledger(&truth, LedgerCount { all, distinct }, &mut verdict);
        verdict
    };
    assert!(verdict(21, 21).holds());
    objects(&verdict(22, 21), "H6");
    objects(&verdict(22, 22), "H6");
    objects(&verdict(20, 20), "H6");
}

proptest! {
    /// Any order, omission or repetition of a history that is not the history itself is objected
    /// to at its end, whatever the order of the ids.
    #[test]
    fn only_the_history_itself_is_right(picks in prop::collection::vec(0usize..8, 8)) {
        let truth = history(8);
        let mut applied = vec![truth.transactions[0].clone()];
        applied.extend(picks.iter().map(|at| truth.transactions[1 + at].clone()));
        let mut last = photographs(&applied).pop().expect("not empty");
        last.end_lsn = truth.transactions[8].end_lsn;
        let right = picks == (0..8).collect::<Vec<_>>();
        // Neighbours that share no list but the common one are still ordered by that one.
        prop_assert_eq!(judge_photographs(&truth, &[last]).holds(), right);
    }
}
