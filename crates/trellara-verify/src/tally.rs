//! What was counted of a table so far, and what is reported of it.

use std::time::Duration;

use trellara_envelope::Lsn;

use crate::digest::Piece;
use crate::drill::Merge;
use crate::held::Spent;
use crate::key;
use crate::mapping::Pair;
use crate::measure::Digest;
use crate::report::{Coverage, Difference, Method, Outcome, TableReport};

/// Counts of one table.
#[derive(Default)]
pub(crate) struct Tally {
    /// Pieces whose rows were compared.
    pub(crate) pieces: u32,
    /// Pieces that are in no sample.
    pub(crate) passed_over: u32,
    /// Of those the one that is looked at when there is no other, and its rank.
    pub(crate) first_of_passed_over: Option<(u64, Piece)>,
    /// Of the rows compared.
    pub(crate) source: Digest,
    pub(crate) target: Digest,
    /// Rows of the whole table on the source and on the target, where they were counted.
    pub(crate) counted: Option<(u64, u64)>,
    pub(crate) missing: u64,
    pub(crate) extra: u64,
    pub(crate) changed: u64,
    pub(crate) duplicate: u64,
    pub(crate) differences: Vec<Difference>,
    /// Rows that differ and are explained by what is in quarantine.
    pub(crate) explained: u64,
    /// Of those the ones that their number alone explains, in all parts so far.
    pub(crate) spent: Spent,
    /// What values of listed rows may still take.
    pub(crate) bytes: usize,
    /// The oldest position that a piece was compared at.
    pub(crate) verified_through: Option<Lsn>,
    pub(crate) took: Duration,
}

impl Tally {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// A piece is in no sample; the first of them by rank is kept.
    pub(crate) fn pass_over(&mut self, rank: u64, piece: Piece) {
        self.passed_over += 1;
        let first = self.first_of_passed_over.as_ref();
        if first.is_none_or(|(other, _)| rank < *other) {
            self.first_of_passed_over = Some((rank, piece));
        }
    }

    /// A piece was looked into.
    pub(crate) fn found(&mut self, merge: &Merge, differences: Vec<Difference>) {
        self.missing += merge.missing;
        self.extra += merge.extra;
        self.changed += merge.changed;
        self.duplicate += merge.duplicate;
        self.differences.extend(differences);
    }

    /// Rows that differ.
    pub(crate) fn differing(&self) -> u64 {
        self.missing + self.extra + self.changed + self.duplicate
    }

    /// More of the same table, of which no more than so many rows are listed.
    pub(crate) fn merge(&mut self, other: Tally, most: usize) {
        self.pieces += other.pieces;
        self.passed_over += other.passed_over;
        self.add(other.source, other.target);
        self.missing += other.missing;
        self.extra += other.extra;
        self.changed += other.changed;
        self.duplicate += other.duplicate;
        self.explained += other.explained;
        let room = most.saturating_sub(self.differences.len());
        self.differences
            .extend(other.differences.into_iter().take(room));
    }

    /// A piece was digested.
    pub(crate) fn add(&mut self, source: Digest, target: Digest) {
        self.source.add(source);
        self.target.add(target);
    }

    pub(crate) fn report(mut self, pair: &Pair, method: Method) -> TableReport {
        let keyed = !pair.key.is_empty();
        self.differences.sort_by(|a, b| match keyed {
            true => key::compare(&a.key, &b.key),
            false => {
                let digest = |d: &Difference| d.source_digest.or(d.target_digest);
                let keys = a.key.cmp(&b.key);
                keys.then_with(|| digest(a).cmp(&digest(b)))
            }
        });
        let coverage = Coverage {
            compared: self.pieces,
            of: self.pieces + self.passed_over,
        };
        let (source_rows, target_rows) =
            self.counted.unwrap_or((self.source.rows, self.target.rows));
        let mut report = TableReport {
            table: pair.table.clone(),
            method: Some(method),
            by_key: keyed,
            outcome: Outcome::Equal,
            source_rows,
            target_rows,
            rows_compared: self.source.rows,
            source_sum: self.source.sum.to_string(),
            target_sum: self.target.sum.to_string(),
            missing: self.missing,
            extra: self.extra,
            changed: self.changed,
            duplicate: self.duplicate,
            differences: self.differences,
            explained: self.explained,
            coverage,
            // Of the whole table: a part of it vouches for nothing.
            verified_through: self.verified_through.filter(|_| coverage.is_whole()),
            recipe: None,
            mapped: pair.mapped.clone(),
            took: self.took,
        };
        report.outcome = if report.differing() > 0 || source_rows != target_rows {
            Outcome::Different
        } else if coverage.is_whole() {
            Outcome::Equal
        } else {
            Outcome::NoneFound
        };
        report
    }
}
