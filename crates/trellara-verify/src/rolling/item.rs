//! One table on its way.

use std::time::Instant;

use crate::catalogue;
use crate::digest::{Border, Piece};
use crate::error::Failure;
use crate::mapping::Pair;
use crate::measure::Digest;
use crate::plan::Plan;
use crate::report::{Method, Outcome, TableReport};
use crate::select::Sample;
use crate::shape::Shape;
use crate::store::TableState;
use crate::sum::Sum;
use crate::table::{Ground, Work};

/// One table on its way.
pub(super) struct Item<'a> {
    pub(super) work: Work<'a>,
    pub(super) pair: &'a Pair,
    pub(super) sample: Sample,
    /// As both sides were when it began.
    pub(super) shapes: (Shape, Shape),
    /// Where the next piece begins; `None` behind the last.
    pub(super) next: Option<Option<Border>>,
    /// The same of what is done with: read on both sides, and confirmed where it had to be.
    pub(super) done_to: Option<Option<Border>>,
    pub(super) number: u32,
    pub(super) failed: Option<(String, String)>,
    pub(super) began: Instant,
    /// What it had come to when `done_to` moved last; a piece that was not done with is not in it.
    kept: TableState,
    /// What was said of it.
    pub(super) said: Option<TableReport>,
}

impl<'a> Item<'a> {
    /// Begins, where an older run was to go on with that.
    pub(super) async fn new(
        ground: &'a Ground<'a>,
        pair: &'a Pair,
        old: &[TableState],
    ) -> Result<Self, Failure> {
        let work = Work::new(ground, pair);
        let shapes = work.shapes().await?;
        let options = ground.options;
        let mut item = Self {
            sample: Sample::new(&options.run, &pair.table, options.sample),
            work,
            pair,
            shapes,
            next: Some(None),
            done_to: Some(None),
            number: 0,
            failed: None,
            began: Instant::now(),
            kept: TableState {
                table: Some(pair.table.clone()),
                fingerprint: String::new(),
                ..TableState::default()
            },
            said: None,
        };
        item.kept.fingerprint = item.fingerprint();
        let state = old.iter().find(|s| s.table.as_ref() == Some(&pair.table));
        // The rows found before are not kept, so a table that differs is looked at again. So is one
        // that is sampled: what was passed over is not kept either. And so is one that means
        // something else by now.
        let whole = item.sample.is_whole();
        let same = |s: &&TableState| s.fingerprint == item.kept.fingerprint;
        if let Some(state) = state.filter(|s| whole && s.differing == [0; 4] && same(s)) {
            item.go_on(state);
        }
        item.keep();
        Ok(item)
    }
}

impl Item<'_> {
    /// All that its digests depend on beside the rows.
    fn fingerprint(&self) -> String {
        let pair = self.pair;
        let casts = match &pair.plan {
            Plan::Range(casts) => Some(casts),
            // How many there are depends on a guess at the rows.
            Plan::Bucket(_) => None,
        };
        let (source, target) = (self.shapes.0.definition(), self.shapes.1.definition());
        let rows = (&pair.source, &pair.target, &pair.key, casts);
        let all = format!(
            "{rows:?} {source} {target} {:?}",
            self.work.ground.hash.as_utf8
        );
        blake3::hash(all.as_bytes()).to_hex().to_string()
    }

    /// All that was compared so far is done with.
    pub(super) fn keep(&mut self) {
        self.kept = self.work.with(|tally| TableState {
            next_from: self.done_to.clone().flatten(),
            done: self.done_to.is_none() && tally.passed_over == 0,
            pieces: tally.pieces,
            rows: [tally.source.rows, tally.target.rows],
            sums: [tally.source.sum.to_string(), tally.target.sum.to_string()],
            differing: [tally.missing, tally.extra, tally.changed, tally.duplicate],
            verified_through: tally.verified_through,
            ..std::mem::take(&mut self.kept)
        });
    }

    fn go_on(&mut self, state: &TableState) {
        let sum = |text: &String| text.parse::<Sum>().ok();
        let [Some(source), Some(target)] = [sum(&state.sums[0]), sum(&state.sums[1])] else {
            return;
        };
        let [source_rows, target_rows] = state.rows;
        self.work.with(|tally| {
            tally.pieces = state.pieces;
            tally.verified_through = state.verified_through;
            let digest = |rows, sum| Digest { rows, sum };
            tally.add(digest(source_rows, source), digest(target_rows, target));
        });
        self.number = state.pieces;
        if state.done {
            self.next = None;
        } else if let Some(border) = &state.next_from {
            self.next = Some(Some(border.clone()));
        }
        self.done_to = self.next.clone();
    }

    /// Moves on by a piece; `None` when it is in no sample.
    pub(super) async fn advance(&mut self) -> Result<Option<Piece>, Failure> {
        let (number, from) = (self.number, self.next.take());
        self.number += 1;
        match &self.pair.plan {
            Plan::Range(casts) => {
                let Some((piece, next)) = self.work.next_piece(from, casts).await else {
                    return Ok(None);
                };
                let piece = piece?;
                self.next = next;
                // The first is taken in any case, so that something of every table is seen.
                if number == 0 || self.sample.takes(number) {
                    return Ok(Some(piece));
                }
                self.work.with(|tally| tally.passed_over += 1);
                Ok(None)
            }
            Plan::Bucket(_) if self.sample.is_whole() => {
                let (from, to, casts) = (None, None, Vec::new());
                Ok(Some(Piece::Range { from, to, casts }))
            }
            Plan::Bucket(of) => {
                let numbers = self.sample.of(*of);
                let over = *of - numbers.len() as u32;
                self.work.with(|tally| tally.passed_over = over);
                Ok(Some(Piece::Buckets { numbers, of: *of }))
            }
        }
    }

    /// How many pieces of the table's division are read as this one.
    pub(super) fn weight(&self, piece: &Piece) -> u32 {
        match (&self.pair.plan, piece) {
            (_, Piece::Buckets { numbers, .. }) => numbers.len() as u32,
            (Plan::Bucket(of), Piece::Range { .. }) => *of,
            (Plan::Range(_), Piece::Range { .. }) => 1,
        }
    }

    pub(super) fn outcome(&self) -> Outcome {
        if self.work.with(|tally| tally.differing()) > 0 {
            return Outcome::Different;
        }
        match &self.failed {
            Some((reason, hint)) => Outcome::NotComparable {
                reason: reason.clone(),
                hint: hint.clone(),
            },
            None if self.work.with(|tally| tally.passed_over) > 0 => Outcome::NoneFound,
            None => Outcome::Equal,
        }
    }

    pub(super) fn state(&self) -> TableState {
        let over = self.failed.is_some() || self.done_to.is_none();
        TableState {
            done: self.kept.done && self.failed.is_none(),
            outcome: over.then(|| self.outcome().word().to_owned()),
            ..self.kept.clone()
        }
    }

    /// What is said of it; what was counted goes with it.
    pub(super) fn report(&mut self) -> TableReport {
        let mut tally = self.work.with(std::mem::take);
        tally.took = self.began.elapsed();
        if let Some((reason, hint)) = &self.failed {
            if tally.differing() == 0 {
                let (reason, hint) = (reason.clone(), hint.clone());
                return catalogue::not_comparable(&self.pair.table, reason, hint, tally.took);
            }
            // How many there are behind the failure is not known.
            tally.passed_over += 1;
        }
        let method = match &self.pair.plan {
            Plan::Range(_) => Method::Range(tally.pieces + tally.passed_over),
            Plan::Bucket(of) => Method::Bucket(*of),
        };
        tally.report(self.pair, method)
    }
}
