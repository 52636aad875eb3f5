//! Committing what was accepted, and what follows from a durable commit.

use std::convert::Infallible;
use std::future::Future;
use std::time::{Duration, Instant};

use trellara_crashpoints as crashpoints;
use trellara_envelope::{FrameDigest, StreamSequence};

use super::Attempt;
use super::blocked::Quarantine;
use super::isolate::{Failed, Isolation};
use crate::apply::{self, Beside, Committed, Failure, Fates, LargeAside, Part, Source, numbered};
use crate::batch::{Batch, Unit};
use crate::checkpoint::Checkpoint;
use crate::chunks::Large;
use crate::disposition;
use crate::metric;
use crate::quarantine::HeldId;
use crate::quarantine::limits::Limit;
use crate::report::Reporter;
use crate::status::Work;
use crate::trouble::Trouble;

/// What became of a part of the batch.
struct UntilFull {
    /// What is in; nothing when already the first had to wait.
    committed: Option<Committed>,
    /// The first that had to wait and found no room, and why.
    full: Option<(usize, Limit)>,
    /// What that one waits behind.
    behind: Vec<HeldId>,
}

impl Attempt<'_> {
    /// Commits the batch. Without transactions in it this writes down progress alone.
    pub(super) async fn write_down(&mut self) -> Result<(), Trouble> {
        self.confirm().await?;
        if !self.batch.moved() {
            return Ok(());
        }
        self.prove_batch_new().await?;
        self.status.begin(Work::Batch(self.batch.units().len()));
        let written = self.commit_batch().await;
        self.status.end();
        written
    }

    async fn commit_batch(&mut self) -> Result<(), Trouble> {
        match self.commit_whole().await {
            Ok(Some(committed)) => self.committed(committed).await,
            Ok(None) => Box::pin(self.commit_what_finds_room()).await,
            Err(failure) if self.can_be_isolated(&failure) => {
                tracing::warn!(
                    error = %failure, transactions = self.batch.units().len(),
                    "a batch failed; finding out which of its transactions is to blame"
                );
                Box::pin(self.isolate(&failure)).await
            }
            Err(failure) => Err(apply::blame(failure, &"of a batch")),
        }
    }

    /// Some of the batch has to wait and finds no room: what stands before it goes in.
    async fn commit_what_finds_room(&mut self) -> Result<(), Trouble> {
        let units = self.batch.units().to_vec();
        match self.commit_until_full(&units, true).await {
            Ok(until_full) => {
                self.follow(&units, until_full).await?;
                self.stand_behind_batch().await
            }
            Err(failure) if self.can_be_isolated(&failure) => self.isolate(&failure).await,
            Err(failure) => Err(apply::blame(failure, &"of a batch")),
        }
    }

    /// What follows from a part that is in, or that ends in front of one without room. Whatever goes
    /// wrong here ends the attempt: repeating the part would apply it twice.
    async fn follow(&mut self, part: &[Unit], until_full: UntilFull) -> Result<(), Trouble> {
        if let Some(committed) = &until_full.committed {
            self.went_in(committed).await?;
        }
        match until_full.full {
            Some((place, limit)) => {
                let behind = &until_full.behind;
                Err(self.block_waiting(&part[place], limit, behind).await?)
            }
            None => Ok(()),
        }
    }

    /// Commits the batch as it is; `None` when there is no room for all that has to wait.
    async fn commit_whole(&mut self) -> Result<Option<Committed>, Failure> {
        let client = &self.target.session.client;
        let Quarantine {
            footprints,
            blocking,
            totals,
            ..
        } = &mut self.quarantine;
        let units = self.batch.units();
        let mut fates = Fates::default();
        if !footprints.is_empty() {
            let room = (*totals, &self.options.quarantine);
            fates = self.writer.fates(client, units, footprints, room).await?;
        }
        if fates.full.is_some() {
            fates.undo(footprints);
            return Ok(None);
        }
        let part = Part {
            from: &self.durable,
            units,
            fates: &fates,
            blocking,
            to: self.batch.to(),
            set_wise: true,
        };
        let committing = self.writer.commit(client, part);
        let every = self.options.report_interval;
        let committed = reporting(committing, &self.reporter, &self.durable, every).await;
        self.settle_fates(fates, committed).map(Some)
    }

    fn can_be_isolated(&self, failure: &Failure) -> bool {
        let Some(disposition) = failure.disposition() else {
            return false;
        };
        let units = self.batch.units().len();
        let in_parts = units > 1
            && disposition::may_be_the_batch(disposition)
            && !self.target.session.client.is_closed();
        in_parts || (units > 0 && disposition::blames_a_transaction(disposition))
    }

    /// Repeats a failed batch in order and in parts, so that the transaction to blame fails alone,
    /// row by row, with everything before it in (C36).
    async fn isolate(&mut self, failure: &Failure) -> Result<(), Trouble> {
        let units = self.batch.units().to_vec();
        let mut isolation = Isolation::of(units.len(), failure.transaction());
        while let Some(window) = isolation.next() {
            let part = &units[window.units.clone()];
            let Some(last) = part.last() else { break };
            let failure = match self.commit_until_full(part, window.set_wise).await {
                Ok(until_full) => {
                    self.follow(part, until_full).await?;
                    isolation.committed();
                    continue;
                }
                Err(failure) => failure,
            };
            let blames = failure.disposition().map(disposition::blames_a_transaction);
            let passes = part.len() > 1 && !self.target.session.client.is_closed();
            let named = failure
                .transaction()
                .map(|named| window.units.start + named);
            match blames {
                Some(true) => match isolation.failed(named) {
                    Failed::TryOn => {}
                    Failed::Verdict => {
                        self.refused(last, failure).await?;
                        isolation.set_aside();
                    }
                },
                Some(false) if passes => {
                    isolation.failed(None);
                }
                Some(false) | None => return Err(apply::blame(failure, &last.identity)),
            }
        }
        self.stand_behind_batch().await
    }

    /// Commits transactions of the batch, up to the first that would have to wait and finds no room.
    ///
    /// # Errors
    /// When nothing of them was committed.
    async fn commit_until_full(
        &mut self,
        units: &[Unit],
        set_wise: bool,
    ) -> Result<UntilFull, Failure> {
        let mut fates = Fates::default();
        if !self.quarantine.footprints.is_empty() {
            let client = &self.target.session.client;
            let room = (self.quarantine.totals, &self.options.quarantine);
            let footprints = &mut self.quarantine.footprints;
            fates = self.writer.fates(client, units, footprints, room).await?;
        }
        let full = fates.full;
        let behind = std::mem::take(&mut fates.full_behind);
        let units_in = full.map_or(units, |(place, _)| &units[..place]);
        let Some(last) = units_in.last() else {
            return Ok(UntilFull {
                committed: None,
                full,
                behind,
            });
        };
        let part = Part {
            from: &self.durable,
            units: units_in,
            fates: &fates,
            blocking: &self.quarantine.blocking,
            to: &last.after,
            set_wise,
        };
        let committing = self.writer.commit(&self.target.session.client, part);
        let every = self.options.report_interval;
        let committed = reporting(committing, &self.reporter, part.from, every).await;
        let committed = self.settle_fates(fates, committed)?;
        Ok(UntilFull {
            behind: numbered(&behind, &committed.held),
            committed: Some(committed),
            full,
        })
    }

    /// What was decided has happened, or has not.
    pub(super) fn settle_fates(
        &mut self,
        fates: Fates,
        committed: Result<Committed, Failure>,
    ) -> Result<Committed, Failure> {
        let footprints = &mut self.quarantine.footprints;
        match &committed {
            Ok(done) => {
                if !done.held.is_empty() {
                    tracing::warn!(
                        flow = %self.options.flow, transactions = done.held.len(),
                        "transactions wait behind held ones that touch the same"
                    );
                }
                let added = fates.done(&done.held, done.applied_at_us, footprints);
                self.quarantine.add(added);
            }
            Err(_) => fates.undo(footprints),
        }
        committed
    }

    /// A part of the batch is in.
    pub(super) async fn went_in(&mut self, committed: &Committed) -> Result<(), Trouble> {
        self.durable = committed.checkpoint.clone();
        self.count(committed);
        self.show();
        self.status.moved();
        self.look_again(committed).await
    }

    /// What is held has changed with it.
    async fn look_again(&mut self, committed: &Committed) -> Result<(), Trouble> {
        let mut blocking = self.quarantine.blocking.iter();
        let closed = blocking.any(|open| committed.identities.contains(&open.hash));
        if closed {
            return self.look_at_quarantine(self.durable.end_lsn).await;
        }
        if !committed.held.is_empty() {
            self.show_quarantine();
        }
        Ok(())
    }

    /// Every transaction of the batch is in; behind the last one there may be progress.
    async fn stand_behind_batch(&mut self) -> Result<(), Trouble> {
        let (to, keep_from) = (self.batch.to().clone(), self.batch.keep_from());
        let last = Checkpoint {
            ordinal: self.durable.ordinal,
            ..to
        };
        if last == self.durable {
            self.durable_now(keep_from).await;
            return Ok(());
        }
        let part = Part {
            from: &self.durable,
            units: &[],
            fates: &Fates::default(),
            blocking: &[],
            to: &last,
            set_wise: true,
        };
        let committed = self
            .writer
            .commit(&self.target.session.client, part)
            .await
            .map_err(|failure| apply::blame(failure, &"without changes"))?;
        self.committed(committed).await
    }

    /// Applies a chunked transaction, whose manifest has that digest.
    pub(super) async fn apply_large(
        &mut self,
        large: Large<'_>,
        digest: FrameDigest,
    ) -> Result<(), Trouble> {
        let identity = large.manifest.identity();
        self.status.begin(Work::Large(identity));
        let after = self.batch.to().clone();
        let aside = LargeAside {
            large,
            digest,
            after: &after,
        };
        let hits = self.hits_of(large).await;
        let hits = hits.map_err(|failure| apply::blame(failure, &identity))?;
        let committed = if hits.open.is_empty() {
            self.apply_or_refuse(aside, &hits.discarded).await?
        } else {
            self.wait_behind(aside, &hits.open).await?
        };
        let done = self.committed(committed).await;
        self.status.end();
        done
    }

    async fn apply_or_refuse(
        &mut self,
        aside: LargeAside<'_>,
        overtakes: &[HeldId],
    ) -> Result<Committed, Trouble> {
        let large = aside.large;
        let identity = large.manifest.identity();
        let committed = match self.commit_large(large, overtakes, true).await {
            Err(failure) if failure.blames_a_transaction() => {
                tracing::warn!(
                    error = %failure, transaction = %identity,
                    "a large transaction failed; trying it row by row"
                );
                self.commit_large(large, overtakes, false).await
            }
            committed => committed,
        };
        match committed {
            Ok(committed) => {
                self.trimmer
                    .transaction_applied(large.incarnation, large.manifest.xid);
                for id in overtakes {
                    self.quarantine.footprints.close(*id);
                }
                Ok(committed)
            }
            Err(failure) if failure.blames_a_transaction() => {
                self.refused_large(aside, failure).await
            }
            Err(failure) => Err(apply::blame(failure, &identity)),
        }
    }

    async fn commit_large(
        &mut self,
        large: Large<'_>,
        overtakes: &[HeldId],
        set_wise: bool,
    ) -> Result<Committed, Failure> {
        let source = Source {
            broker: self.broker,
            reader: &self.reader,
            options: self.options,
            cancel: self.cancel,
            status: self.status,
        };
        let client = &self.target.session.client;
        let (from, to) = (&self.durable, self.batch.to());
        let beside = Beside {
            closes: self.blocking(large.manifest.identity().hash()),
            overtakes,
        };
        // Boxed: a large transaction is rare, and every other one would carry its state along.
        let committing = Box::pin(self.writer.commit_large(
            client,
            from,
            (large, beside),
            to,
            &source,
            set_wise,
        ));
        let every = self.options.report_interval;
        reporting(committing, &self.reporter, from, every).await
    }

    async fn committed(&mut self, committed: Committed) -> Result<(), Trouble> {
        self.count(&committed);
        self.durable = committed.checkpoint.clone();
        self.durable_now(self.batch.keep_from()).await;
        self.look_again(&committed).await
    }

    /// What follows from a durable commit: acknowledge, report, forget what was closed. Failures
    /// of the broker here cost nothing: the next commit, or the next start, does it again.
    async fn durable_now(&mut self, keep_from: StreamSequence) {
        self.keep_from = keep_from;
        self.batch = Batch::behind(&self.durable, keep_from);
        self.written = Instant::now();
        self.show();
        for closed in self.closed.drain(..) {
            self.trimmer.incarnation_closed(closed);
        }
        self.consumer.ack(self.durable.transport.sequence);
        self.reporter.send(&self.durable).await;
        // Nobody reads what comes of it: an error here is the same as the next one elsewhere.
        crashpoints::reached(crashpoints::APPLIER_ACKNOWLEDGED);
    }

    /// What is committed is known, and counted.
    pub(super) fn count(&mut self, committed: &Committed) {
        self.learn(committed);
        if committed.transactions > 0 {
            self.status.count_batch(
                &self.options.flow,
                committed.transactions,
                committed.changes,
                committed.seconds,
            );
        }
        if committed.ruled > 0 {
            metric::count(metric::SKIPPED_CHANGES, &self.options.flow, committed.ruled);
        }
    }
}

/// Says where the target stands while work on the target takes long: silence would make the relay
/// think that nobody applies.
pub(super) async fn reporting<T>(
    work: impl Future<Output = T>,
    reporter: &Reporter,
    durable: &Checkpoint,
    every: Duration,
) -> T {
    tokio::select! {
        biased;
        done = work => done,
        never = report_for_ever(reporter, durable, every) => match never {},
    }
}

async fn report_for_ever(reporter: &Reporter, durable: &Checkpoint, every: Duration) -> Infallible {
    loop {
        tokio::time::sleep(every).await;
        reporter.send(durable).await;
    }
}
