//! Suspects, compared exactly.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::try_join_all;

use super::item::Item;
use super::{Looked, Rolling, Tally};
use crate::catalogue;
use crate::compare::{CompareOptions, open};
use crate::digest::Piece;
use crate::error::{Failure, Side, VerifyError};
use crate::freeze::{self, FreezeError};
use crate::held::{Held, Quarantine, unreadable};
use crate::load::Load;
use crate::pool::Pool;
use crate::reader::Reader;
use crate::table::{Ground, Work};

impl Rolling<'_> {
    /// Freezes both sides, compares these pieces and nothing else, and lets go.
    pub(super) async fn confirm(&mut self, suspects: Vec<Looked>) -> Result<(), Failure> {
        let mut by_item: BTreeMap<usize, Vec<Piece>> = BTreeMap::new();
        for looked in suspects {
            by_item.entry(looked.item).or_default().push(looked.piece);
        }
        self.frozen += 1;
        let mut options = self.options.freeze.clone();
        // The slot's and the fence's names; another one each time.
        options.run = format!("{}x{}", options.run, self.frozen);
        let token = self.stop.token();
        let pair = match freeze::freeze(&options, self.listeners.steps, token).await {
            Ok(pair) => pair,
            Err(error) => return self.unconfirmed(by_item.keys().copied(), &error),
        };
        self.held = self.held.max(pair.held);
        let ended = tokio::select! {
            done = self.compare(&by_item, &pair) => {
                self.take_in(done?)?;
                None
            }
            side = pair.thawed() => Some(side),
        };
        if let Some(side) = ended {
            let lost = FreezeError::ConnectionLost { side };
            return self.unconfirmed(by_item.keys().copied(), &lost);
        }
        let point = pair.consistent_point;
        for at in by_item.keys() {
            if let Some(item) = self.items.get(*at) {
                item.work.verified_at(point);
            }
        }
        Ok(())
    }

    /// What cannot be confirmed is neither different nor equal.
    fn unconfirmed(
        &mut self,
        items: impl Iterator<Item = usize>,
        error: &FreezeError,
    ) -> Result<(), Failure> {
        if self.stop.is_stopped() {
            // Looked at in part: said with the reason of the stop.
            for at in items {
                let (reason, hint) = self.stop.reason();
                self.fail(at, Failure::NotComparable { reason, hint })?;
            }
            return Ok(());
        }
        for at in items {
            let reason = format!("rows that seem to differ could not be compared again: {error}");
            let hint = error.hint().to_owned();
            self.fail(at, Failure::NotComparable { reason, hint })?;
        }
        Ok(())
    }

    async fn compare(
        &self,
        suspects: &BTreeMap<usize, Vec<Piece>>,
        pair: &freeze::Pair,
    ) -> Result<Vec<(usize, Result<Tally, Failure>)>, Failure> {
        let options: &CompareOptions = &self.options.compare;
        let lanes =
            (0..options.jobs.max(1)).map(|_| open(&pair.source, &pair.target, options).boxed());
        let lanes = try_join_all(lanes.collect::<Vec<_>>()).await?;
        let first = lanes.first();
        let first = first.ok_or_else(|| VerifyError::bug("no lane was made"))?;
        let quarantine = Quarantine {
            flow: self.options.freeze.flow.clone(),
            before: pair.consistent_point,
        };
        let held = Held::read(&first.target, &quarantine).await;
        let ground = Ground {
            held: held.map_err(unreadable)?,
            // What is held for a moment is read at once.
            load: Load::none(),
            pool: Pool::new(lanes),
            source_now: Reader::now(Side::Source, &pair.source.connect, options).await?,
            target_now: Reader::now(Side::Target, &pair.target.connect, options).await?,
            hash: self.ground.hash,
            options,
            progress: self.listeners.progress,
        };
        let mut all = Vec::new();
        for (at, pieces) in suspects {
            let Some(item) = self.items.get(*at) else {
                continue;
            };
            let work = Work::new(&ground, item.pair);
            let shapes = (&item.shapes.0, &item.shapes.1);
            let mut tally = work.again(pieces, shapes, &item.sample).boxed().await;
            if let Ok(tally) = &mut tally {
                explain(&ground, item, tally).await.map_err(unreadable)?;
            }
            all.push((*at, tally));
        }
        Ok(all)
    }

    fn take_in(&mut self, done: Vec<(usize, Result<Tally, Failure>)>) -> Result<(), Failure> {
        for (at, tally) in done {
            match tally {
                Ok(tally) => {
                    if let Some(item) = self.items.get(at) {
                        let most = self.options.compare.max_diffs;
                        item.work.with(|all| all.merge(tally, most));
                    }
                }
                Err(failure) => self.fail(at, failure)?,
            }
        }
        Ok(())
    }
}

/// What is in quarantine explains rows at the position that these were compared at.
async fn explain(ground: &Ground<'_>, item: &Item<'_>, tally: &mut Tally) -> Result<(), Failure> {
    let (no, table) = (String::new, &item.pair.table);
    let mut report = catalogue::not_comparable(table, no(), no(), Duration::ZERO);
    report.by_key = !item.pair.key.is_empty();
    (report.missing, report.extra) = (tally.missing, tally.extra);
    (report.changed, report.duplicate) = (tally.changed, tally.duplicate);
    report.differences = std::mem::take(&mut tally.differences);
    // What rows without a key are explained by is there once, however often it is asked for.
    let mut spent = item.work.with(|all| all.spent);
    let explained = ground.held.explain(&ground.pool, &mut report, &mut spent);
    explained.await?;
    item.work.with(|all| all.spent = spent);
    (tally.differences, tally.explained) = (report.differences, report.explained);
    Ok(())
}
