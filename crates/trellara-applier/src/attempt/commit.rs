//! Committing what was accepted, and what follows from a durable commit.

use std::convert::Infallible;
use std::future::Future;
use std::time::{Duration, Instant};

use trellara_envelope::StreamSequence;

use super::Attempt;
use super::isolate::{Failed, Isolation};
use crate::apply::{self, Committed, Failure, Source};
use crate::batch::{Batch, Unit};
use crate::checkpoint::Checkpoint;
use crate::chunks::Large;
use crate::disposition;
use crate::report::Reporter;
use crate::status::Work;
use crate::trouble::Trouble;

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
        let committing = self.writer.commit(
            &self.target.session.client,
            &self.durable,
            self.batch.units(),
            self.batch.to(),
            true,
        );
        let every = self.options.report_interval;
        match reporting(committing, &self.reporter, &self.durable, every).await {
            Ok(committed) => self.committed(committed).await,
            Err(failure) if self.can_be_isolated(&failure) => {
                tracing::warn!(
                    error = %failure, transactions = self.batch.units().len(),
                    "a batch failed; finding out which of its transactions is to blame"
                );
                self.isolate(&failure).await
            }
            Err(failure) => Err(apply::blame(failure, &"of a batch")),
        }
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
            let failure = match self.commit_part(part, last, window.set_wise).await {
                Ok(committed) => {
                    self.went_in(&committed);
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
                    Failed::Verdict => return Err(apply::blame(failure, &last.identity)),
                },
                Some(false) if passes => {
                    isolation.failed(None);
                }
                Some(false) | None => return Err(apply::blame(failure, &last.identity)),
            }
        }
        self.stand_behind_batch().await
    }

    async fn commit_part(
        &mut self,
        part: &[Unit],
        last: &Unit,
        set_wise: bool,
    ) -> Result<Committed, Failure> {
        let client = &self.target.session.client;
        let (from, to) = (&self.durable, &last.after);
        let committing = self.writer.commit(client, from, part, to, set_wise);
        let every = self.options.report_interval;
        reporting(committing, &self.reporter, from, every).await
    }

    /// A part of the batch is in.
    fn went_in(&mut self, committed: &Committed) {
        self.durable = committed.checkpoint.clone();
        self.count(committed);
        self.show();
        self.status.moved();
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
        let committed = self
            .writer
            .commit(&self.target.session.client, &self.durable, &[], &last, true)
            .await
            .map_err(|failure| apply::blame(failure, &"without changes"))?;
        self.committed(committed).await
    }

    pub(super) async fn apply_large(&mut self, large: Large<'_>) -> Result<(), Trouble> {
        let identity = large.manifest.identity();
        self.status.begin(Work::Large(identity));
        let committed = match self.commit_large(large, true).await {
            Err(failure) if failure.blames_a_transaction() => {
                tracing::warn!(
                    error = %failure, transaction = %identity,
                    "a large transaction failed; trying it row by row"
                );
                self.commit_large(large, false).await
            }
            committed => committed,
        };
        let committed = committed.map_err(|failure| apply::blame(failure, &identity))?;
        self.trimmer
            .transaction_applied(large.incarnation, large.manifest.xid);
        let done = self.committed(committed).await;
        self.status.end();
        done
    }

    async fn commit_large(
        &mut self,
        large: Large<'_>,
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
        let committing = self
            .writer
            .commit_large(client, from, large, to, &source, set_wise);
        let every = self.options.report_interval;
        reporting(committing, &self.reporter, from, every).await
    }

    async fn committed(&mut self, committed: Committed) -> Result<(), Trouble> {
        self.count(&committed);
        self.durable = committed.checkpoint;
        self.durable_now(self.batch.keep_from()).await;
        Ok(())
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
