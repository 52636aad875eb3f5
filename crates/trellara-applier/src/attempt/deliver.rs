//! What becomes of a delivery: judged by the machine, gathered into the batch, passed, held or
//! refused.

use std::ops::Range;
use std::time::Instant;

use futures_util::FutureExt;
use trellara_crashpoints as crashpoints;
use trellara_envelope::{Body, Incarnation, Lsn};
use trellara_jetstream::consume::Delivery;

use super::Attempt;
use crate::batch::Claim;
use crate::chunks::Large;
use crate::machine::{self, Delivered, Verdict};
use crate::position;
use crate::trouble::Trouble;

impl Attempt<'_> {
    /// Takes one delivery and everything that is already here, then commits what has to be.
    pub(super) async fn delivered(&mut self, first: Delivery) -> Result<(), Trouble> {
        Trouble::come_by(crashpoints::APPLIER_FETCHED)?;
        let mut next = Some(first);
        while let Some(delivery) = next {
            self.take(delivery).await?;
            let full = self.batch.bytes() >= self.options.batch_bytes
                || self.batch.units().len() >= self.options.batch_transactions
                || self.batch.claims().len() >= self.options.batch_transactions;
            if full || !self.closed.is_empty() || self.holding() {
                break;
            }
            next = self.consumer.next().now_or_never().transpose()?;
        }
        self.settle().await
    }

    /// Commits what has to be; whoever waits for the lane to stand somewhere is told.
    pub(super) async fn settle(&mut self) -> Result<(), Trouble> {
        // Whatever is not written down yet: that it was applied before is confirmed now.
        self.confirm().await?;
        let asked = self.asked_until.is_some_and(|until| Instant::now() < until);
        let due = self.written.elapsed() >= self.options.idle_checkpoint
            || self.at_fence()
            || self.at_convergence();
        if !self.batch.units().is_empty() || !self.closed.is_empty() || asked || due {
            self.write_down().await?;
        }
        self.converge().await?;
        self.say_reached().await
    }

    /// Opens one delivery and judges it.
    async fn take(&mut self, delivery: Delivery) -> Result<(), Trouble> {
        let opened = position::open(
            &self.reader,
            self.options,
            delivery.sequence,
            delivery.payload,
        )
        .await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(trouble) => {
                // What was accepted before it is sound and goes in first.
                self.write_down().await?;
                return Err(trouble);
            }
        };
        if self.rewinding.is_some() {
            return self.pass_again(&opened).await;
        }
        self.judge(opened, 0).await
    }

    /// Judges a frame, and puts what is accepted into the batch. That its first `known`
    /// transactions were applied needs no proof: we did it.
    pub(super) async fn judge(&mut self, opened: Delivered, known: usize) -> Result<(), Trouble> {
        let stood = self.machine.sequence();
        if opened.sequence < stood && self.was_passed_over(&opened).await? {
            return Ok(());
        }
        let Some((opened, known)) = self.unless_paused(opened, known) else {
            return Ok(());
        };
        let Some((opened, known)) = self.unless_awaited(opened, known).await? else {
            return Ok(());
        };
        let Some(opened) = self.within_fence(opened, known).await? else {
            return Ok(());
        };
        let mut verdict = self.machine.frame(&opened);
        if verdict == Verdict::Reopens {
            verdict = match self.merely_again().await? {
                true => Verdict::Redelivered,
                false => self.machine.reopen(&opened),
            };
        }
        match verdict {
            Verdict::Apply(range) => self.accept(&opened, (known, range), None).await?,
            Verdict::Progress => {
                self.leave_what_is_lost(&opened).await?;
                self.claim(&opened, known).await?;
                self.pass(&opened).await?;
            }
            Verdict::Duplicate => {
                self.leave_what_is_lost(&opened).await?;
                self.count_duplicate(&opened);
                self.claim(&opened, known).await?;
                self.pass(&opened).await?;
            }
            Verdict::Redelivered => {
                self.count_duplicate(&opened);
                self.claim(&opened, known).await?;
            }
            Verdict::Aside | Verdict::Reopens => {}
            Verdict::Missing => return self.missing(&opened).await,
            Verdict::Overtaken(halt) => self.overtaken(&opened, halt).await?,
            Verdict::Halt(halt) => {
                self.write_down().await?;
                self.unless_void(&opened, halt).await?;
            }
        }
        if self.machine.sequence() != stood {
            self.repositions = 0;
            self.passed_over.clear();
            self.again = None;
        }
        Ok(())
    }

    /// Accepts the transactions `range` of a frame: all that are left of it, or those before `cut`,
    /// where the lane is to stand.
    pub(super) async fn accept(
        &mut self,
        opened: &Delivered,
        (known, range): (usize, Range<usize>),
        cut: Option<Lsn>,
    ) -> Result<(), Trouble> {
        match (&opened.frame.body, cut) {
            (Body::Manifest(manifest), cut) if !range.is_empty() => {
                self.write_down().await?;
                let large = Large {
                    manifest,
                    incarnation: opened.frame.header.incarnation,
                    sequence: opened.sequence,
                };
                self.prove_new(&[Claim::of(&machine::entry_of(manifest))])
                    .await?;
                let end = manifest.end_lsn;
                match cut {
                    Some(cut) => self.batch.take_whole_until(end, cut),
                    None => self.batch.take_whole(opened, end, &self.stream),
                }
                Box::pin(self.apply_large(large, opened.digest)).await
            }
            (_, cut) => {
                if range.start > known {
                    self.confirm_unless_next(opened).await?;
                }
                match cut {
                    Some(cut) => self.batch.take_until(opened, (known, range), cut),
                    None => self.batch.take(opened, (known, range), &self.stream),
                }
                Ok(())
            }
        }
    }

    async fn pass(&mut self, opened: &Delivered) -> Result<(), Trouble> {
        let opens = machine::closes_lower(&opened.frame.body);
        if opens && !self.batch.units().is_empty() {
            // It may begin a timeline; what came before is recorded under its own.
            self.write_down().await?;
        }
        self.batch.pass(opened, &self.stream);
        if opens && let Some(before) = opened.frame.header.incarnation.0.checked_sub(1) {
            self.closed.push(Incarnation(before));
        }
        Ok(())
    }

    pub(super) fn count_duplicate(&self, opened: &Delivered) {
        // A marker or heartbeat that moves nothing is no duplicate of anything.
        if !machine::entries(&opened.frame.body).is_empty() {
            self.status.count_duplicate_frame(&self.options.flow);
        }
    }
}
