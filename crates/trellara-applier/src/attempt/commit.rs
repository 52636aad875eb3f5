//! Committing what was accepted, and what follows from a durable commit.

use std::convert::Infallible;
use std::future::Future;
use std::time::{Duration, Instant};

use trellara_envelope::StreamSequence;

use super::Attempt;
use crate::apply::{self, Committed, Failure, Source};
use crate::batch::{Batch, Unit};
use crate::checkpoint::Checkpoint;
use crate::chunks::Large;
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
            Err(Failure::Change(error))
                if apply::blames_a_transaction(&error) && !self.batch.units().is_empty() =>
            {
                tracing::warn!(
                    %error, transactions = self.batch.units().len(),
                    "a batch failed; trying its transactions one by one"
                );
                self.one_by_one(false).await
            }
            Err(failure)
                if self.batch.units().len() > 1
                    && apply::may_be_the_batch(&failure)
                    && !self.target.session.client.is_closed() =>
            {
                tracing::warn!(
                    error = %failure, transactions = self.batch.units().len(),
                    "a batch did not go through; trying its transactions one by one"
                );
                self.one_by_one(true).await
            }
            Err(failure) => Err(apply::blame(failure, &"of a batch")),
        }
    }

    /// Repeats a failed batch in order, each transaction alone and at last row by row, so that the
    /// one that fails at the head is named and everything before it is in (C36).
    async fn one_by_one(&mut self, set_wise: bool) -> Result<(), Trouble> {
        for unit in self.batch.units().to_vec() {
            let committed = match self.commit_alone(&unit, set_wise).await {
                Err(Failure::Change(error)) if set_wise && apply::blames_a_transaction(&error) => {
                    self.commit_alone(&unit, false).await
                }
                committed => committed,
            };
            let committed = committed.map_err(|failure| apply::blame(failure, &unit.identity))?;
            self.durable = committed.checkpoint.clone();
            self.count(&committed);
            self.show();
            self.status.moved();
        }
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

    async fn commit_alone(&mut self, unit: &Unit, set_wise: bool) -> Result<Committed, Failure> {
        let committing = self.writer.commit(
            &self.target.session.client,
            &self.durable,
            std::slice::from_ref(unit),
            &unit.after,
            set_wise,
        );
        let every = self.options.report_interval;
        reporting(committing, &self.reporter, &self.durable, every).await
    }

    pub(super) async fn apply_large(&mut self, large: Large<'_>) -> Result<(), Trouble> {
        let identity = large.manifest.identity();
        self.status.begin(Work::Large(identity));
        let committed = match self.commit_large(large, true).await {
            Err(Failure::Change(error)) if apply::blames_a_transaction(&error) => {
                tracing::warn!(
                    %error, transaction = %identity,
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
    fn count(&mut self, committed: &Committed) {
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
