//! Which transactions wait behind held ones, and which overtake discarded ones: decided before the
//! target transaction begins, in order, because each that waits is one more to wait behind.

use tokio_postgres::Client;
use trellara_envelope::{AbortedSet, CopyTable, Halt};
use trellara_pgoutput::ChangeReader;

use super::{Failure, SetAside, Source, Writer, unreadable};
use crate::backfill::sieve::Sieve;
use crate::batch::Unit;
use crate::chunks::{self, ChunkStream, Large};
use crate::execute::Place;
use crate::quarantine::footprint::{
    self, Collector, Footprints, Hits, Standing, Tester, TooManyKeys, Touches, Unreadable,
};
use crate::quarantine::frames::Recut;
use crate::quarantine::limits::{Limit, Totals};
use crate::quarantine::{Cause, HeldId, HeldReason, QuarantineOptions};
use crate::trouble::Trouble;

/// What becomes of the transactions of a part; of those that it does not name, nothing special.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    /// In the order of the units.
    pub(crate) aside: Vec<SetAside>,
    /// Units that are applied although they touch what was discarded, and what that is.
    pub(crate) overtakes: Vec<(usize, Vec<HeldId>)>,
    /// The first that would have to wait and finds no room, and the limit.
    pub(crate) full: Option<(usize, Limit)>,
    /// What that one would have waited behind.
    pub(crate) full_behind: Vec<HeldId>,
}

/// What a transaction waits behind before it has a number: the place among those set aside.
fn provisional(place: usize) -> HeldId {
    HeldId(-1 - place as i64)
}

impl Fates {
    /// The footprints as they were before this was decided.
    pub(crate) fn undo(&self, footprints: &mut Footprints) {
        for place in 0..self.aside.len() {
            footprints.close(provisional(place));
        }
    }

    /// It is committed: what was set aside has numbers now, and what was overtaken is noted.
    pub(crate) fn done(self, held: &[HeldId], at_us: i64, footprints: &mut Footprints) -> Totals {
        let mut added = Totals::default();
        self.undo(footprints);
        for (one, id) in self.aside.iter().zip(held) {
            footprints.add(*id, Standing::Open, &one.touches);
            footprints.waits(*id, &numbered(&one.behind, held));
            let bytes = one.recut.bytes.len() as u64;
            added.add(*id, at_us, bytes, one.touches.keys());
        }
        for id in self.overtakes.iter().flat_map(|(_, ids)| ids) {
            footprints.close(*id);
        }
        added
    }
}

/// With the numbers of those set aside before it in the same target transaction.
pub(crate) fn numbered(behind: &[HeldId], held: &[HeldId]) -> Vec<HeldId> {
    let number = |id: &HeldId| match usize::try_from(-1 - id.0) {
        Ok(place) => held.get(place).copied().unwrap_or(*id),
        Err(_) => *id,
    };
    let mut behind: Vec<HeldId> = behind.iter().map(number).collect();
    behind.sort_unstable();
    behind
}

impl Writer {
    /// Tests transactions against what is held. Those that have to wait are added to `footprints`
    /// under numbers of their own, until [`Fates::done`] or [`Fates::undo`].
    pub(crate) async fn fates(
        &mut self,
        client: &Client,
        units: &[Unit],
        footprints: &mut Footprints,
        (totals, options): (Totals, &QuarantineOptions),
    ) -> Result<Fates, Failure> {
        self.keep_up(client, footprints).await?;
        loop {
            let mut fates = Fates::default();
            let mut decided = self
                .decide(client, units, footprints, (totals, options), &mut fates)
                .await;
            if decided.is_ok() {
                // Tables that one of these describes anew were read again on the way.
                match self.moved(client, footprints).await {
                    Ok(false) => return Ok(fates),
                    Ok(true) => {}
                    Err(failure) => decided = Err(failure),
                }
            }
            fates.undo(footprints);
            decided?;
            self.keep_up(client, footprints).await?;
        }
    }

    async fn moved(
        &mut self,
        client: &Client,
        footprints: &mut Footprints,
    ) -> Result<bool, Failure> {
        let moved = footprints.moved(client, &mut self.catalog, self.replica);
        moved.await.map_err(Failure::Change)
    }

    /// Reads what is held again when its tables are tied differently by now. Returns whether it was.
    async fn keep_up(
        &mut self,
        client: &Client,
        footprints: &mut Footprints,
    ) -> Result<bool, Failure> {
        let moved = self.moved(client, footprints).await?;
        if moved {
            tracing::info!(
                flow = %self.flow,
                "tables of held transactions have other indexes, foreign keys, triggers or \
                 partitions now; reading again what later ones wait behind"
            );
            let target = (&mut self.catalog, self.replica);
            let loading = footprint::load(client, target, &self.flow, self.lane);
            *footprints = loading.await.map_err(Trouble::from)?;
        }
        Ok(moved)
    }

    async fn decide(
        &mut self,
        client: &Client,
        units: &[Unit],
        footprints: &mut Footprints,
        (mut totals, options): (Totals, &QuarantineOptions),
        fates: &mut Fates,
    ) -> Result<(), Failure> {
        let none_aborted = AbortedSet::EMPTY;
        let mut reader = ChangeReader::new(false, &none_aborted);
        for (place, unit) in units.iter().enumerate() {
            if place == 0 || unit.begins {
                reader
                    .describe(&unit.earlier)
                    .map_err(|error| unreadable(unit, &error))?;
            }
            reader.feed(unit.records.clone());
            let mut tester = Tester::new(client, &mut self.catalog, self.replica, footprints)
                .sifting(Sieve::of(&self.copies, &unit.identity));
            let read = tester.read(&mut reader).await;
            read.map_err(|error| unlike(error, place, unit))?;
            let hits = tester.finish();
            reader
                .next_transaction()
                .map_err(|error| unreadable(unit, &error))?;
            if hits.open.is_empty() {
                if !hits.discarded.is_empty() {
                    fates.overtakes.push((place, hits.discarded));
                }
                continue;
            }
            let touches = self
                .touches(client, (place, unit), options.max_keys)
                .await?;
            let recut = Recut::of(unit)?;
            let bytes = recut.bytes.len() as u64;
            let limit = match &touches {
                Ok(touches) => totals.limit(options, bytes, touches.keys()),
                Err(TooManyKeys { max_keys, .. }) => Some(Limit::Keys(*max_keys)),
            };
            let touches = match (touches, limit) {
                (Ok(touches), None) => touches,
                (_, limit) => {
                    fates.full = limit.map(|limit| (place, limit));
                    fates.full_behind = hits.open;
                    return Ok(());
                }
            };
            let number = provisional(fates.aside.len());
            footprints.add(number, Standing::Open, &touches);
            footprints.waits(number, &hits.open);
            totals.add(number, 0, bytes, touches.keys());
            fates.aside.push(SetAside {
                unit: place,
                recut,
                reason: HeldReason::Dependent,
                cause: Cause::default(),
                attempts: 0,
                behind: hits.open,
                touches,
            });
        }
        Ok(())
    }

    /// What a transaction of a bundle touches.
    pub(crate) async fn touches(
        &mut self,
        client: &Client,
        (place, unit): (usize, &Unit),
        max_keys: u64,
    ) -> Result<Result<Touches, TooManyKeys>, Failure> {
        let none_aborted = AbortedSet::EMPTY;
        let mut reader = ChangeReader::new(false, &none_aborted);
        reader
            .describe(&unit.earlier)
            .map_err(|error| unreadable(unit, &error))?;
        reader.feed(unit.records.clone());
        let mut collector = Collector::new(client, &mut self.catalog, self.replica, max_keys)
            .sifting(Sieve::of(&self.copies, &unit.identity));
        let read = collector.read(&mut reader).await;
        read.map_err(|error| unlike(error, place, unit))?;
        Ok(collector.finish())
    }

    /// Whom a chunked transaction touches. Its chunks are read once more for it.
    pub(crate) async fn hits_of_large(
        &mut self,
        client: &Client,
        large: Large<'_>,
        footprints: &mut Footprints,
        source: &Source<'_>,
    ) -> Result<Hits, Failure> {
        self.keep_up(client, footprints).await?;
        let aborted = chunks::aborted(source, large).await?;
        loop {
            let mut tester = Tester::new(client, &mut self.catalog, self.replica, footprints)
                .sifting(Sieve::of(&self.copies, &large.manifest.identity()));
            let mut reader = ChangeReader::new(large.manifest.streamed, &aborted);
            let mut pieces = ChunkStream::open(source, large).await?;
            while let Some(piece) = pieces.next().await? {
                stop_if_cancelled(source)?;
                reader.feed(piece);
                let read = tester.read(&mut reader).await;
                read.map_err(|error| unlike_large(error, large))?;
            }
            pieces.finish()?;
            let hits = tester.finish();
            if !self.keep_up(client, footprints).await? {
                return Ok(hits);
            }
        }
    }

    /// What a chunked transaction touches; the same.
    pub(crate) async fn touches_of_large(
        &mut self,
        client: &Client,
        large: Large<'_>,
        max_keys: u64,
        source: &Source<'_>,
    ) -> Result<Result<Touches, TooManyKeys>, Failure> {
        let aborted = chunks::aborted(source, large).await?;
        let mut collector = Collector::new(client, &mut self.catalog, self.replica, max_keys)
            .sifting(Sieve::of(&self.copies, &large.manifest.identity()));
        let mut reader = ChangeReader::new(large.manifest.streamed, &aborted);
        let mut pieces = ChunkStream::open(source, large).await?;
        while let Some(piece) = pieces.next().await? {
            stop_if_cancelled(source)?;
            reader.feed(piece);
            let read = collector.read(&mut reader).await;
            read.map_err(|error| unlike_large(error, large))?;
        }
        pieces.finish()?;
        Ok(collector.finish())
    }
}

impl Writer {
    /// Whether a chunked transaction has to wait for a copy, and for which table. Its chunks are read
    /// once more for it: its manifest names relations by numbers, and not all of them.
    pub(crate) async fn large_waits_for(
        &self,
        large: Large<'_>,
        source: &Source<'_>,
    ) -> Result<Option<CopyTable>, Failure> {
        let Some(mut sieve) = Sieve::of(&self.copies, &large.manifest.identity()) else {
            return Ok(None);
        };
        let aborted = chunks::aborted(source, large).await?;
        let mut reader = ChangeReader::new(large.manifest.streamed, &aborted);
        let mut pieces = ChunkStream::open(source, large).await?;
        while let Some(piece) = pieces.next().await? {
            stop_if_cancelled(source)?;
            reader.feed(piece);
            let waits = sieve.waits_for(&mut reader);
            let waits = waits.map_err(|error| unlike_large(error.into(), large))?;
            if waits.is_some() {
                return Ok(waits);
            }
        }
        pieces.finish()?;
        Ok(None)
    }
}

fn stop_if_cancelled(source: &Source<'_>) -> Result<(), Failure> {
    match source.cancel.is_cancelled() {
        true => Err(Failure::Trouble(crate::trouble::Trouble::Cancelled)),
        false => Ok(()),
    }
}

/// It cannot be looked at: what applying it would say as well.
fn unlike(error: Unreadable, place: usize, unit: &Unit) -> Failure {
    match error {
        Unreadable::Records(error) => unreadable(unit, &error).into(),
        Unreadable::Change(error) => {
            let place = Place {
                transaction: place as u64 + 1,
                change: 0,
            };
            Failure::Change(error.at(place, 1))
        }
    }
}

fn unlike_large(error: Unreadable, large: Large<'_>) -> Failure {
    match error {
        Unreadable::Records(error) => {
            let halt: Halt = chunks::damaged(large, &error.to_string());
            halt.into()
        }
        Unreadable::Change(error) => Failure::Change(error),
    }
}
