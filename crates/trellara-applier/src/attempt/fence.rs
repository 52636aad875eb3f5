//! Standing still for a verify run (C53): from the moment that we say so until its row is gone or
//! its lease is over, nothing is applied whose commit record begins at the cap or beyond.
//!
//! The first frame that reaches beyond the cap is held here, and nothing is read behind it. When the
//! fence is gone it is judged like any other, by a machine that stands inside it.

use std::time::Instant;

use trellara_envelope::Lsn;

use super::Attempt;
use crate::fence::{Row, Side};
use crate::machine::cut::{self, Cap, Cut};
use crate::machine::{self, Delivered};
use crate::status::FenceSnapshot;
use crate::trouble::Trouble;

/// What a verify run holds us at.
pub(super) struct Fence {
    run: String,
    cap: Cap,
    /// By our clock. Then the server is asked, whose clock decides.
    lease_over: tokio::time::Instant,
    since: Instant,
    /// Whether the run was told that we stand at the cap.
    reached: bool,
    held: Option<Held>,
}

/// A frame that reaches beyond the cap.
struct Held {
    opened: Delivered,
    /// How many of its transactions were applied before, or are now.
    known: usize,
    since: Instant,
}

/// Resolves when the lease may be over; never without a fence.
pub(super) async fn lease_over(fence: Option<&Fence>) {
    match fence {
        Some(fence) => tokio::time::sleep_until(fence.lease_over).await,
        None => std::future::pending().await,
    }
}

impl Attempt<'_> {
    /// Reads the lane's fence and does what follows. During a rewind nothing is applied, and we say
    /// nothing either: it is read again afterwards.
    pub(super) async fn look_at_fence(&mut self) -> Result<(), Trouble> {
        if self.rewinding.is_some() {
            return Ok(());
        }
        let asked = tokio::time::Instant::now();
        let Some(row) = self.side().read().await? else {
            return self.go_on().await;
        };
        let lease_over = asked + row.left;
        let unsaid = !row.armed || self.fenced_by() != Some(row.run.as_str());
        if unsaid {
            // What was accepted may lie beyond the cap. It goes in before we say that nothing does.
            self.write_down().await?;
        }
        self.fence = Some(match self.fence.take() {
            Some(fence) if fence.run == row.run => Fence {
                cap: row.cap,
                lease_over,
                reached: row.reached,
                ..fence
            },
            other => {
                tracing::info!(
                    flow = %self.options.flow, run = %row.run, cap = %row.cap.lsn,
                    lsn_applied = %self.durable.end_lsn, "standing still for a verify run"
                );
                Fence {
                    run: row.run.clone(),
                    cap: row.cap,
                    lease_over,
                    since: Instant::now(),
                    reached: false,
                    held: other.and_then(|other| other.held),
                }
            }
        });
        self.show_fence(&row);
        if row.cap.exact && self.durable.end_lsn > row.cap.lsn {
            tracing::warn!(
                run = %row.run, cap = %row.cap.lsn, lsn_applied = %self.durable.end_lsn,
                "a verify run wants the lane where it no longer is"
            );
        }
        if unsaid && !self.side().armed(&row.run, self.durable.end_lsn).await? {
            return self.go_on().await;
        }
        self.judge_held().await
    }

    /// Lets a frame through that the fence has nothing against. Of another it takes what lies below
    /// the cap, and holds it.
    pub(super) async fn within_fence(
        &mut self,
        opened: Delivered,
        known: usize,
    ) -> Result<Option<Delivered>, Trouble> {
        let Some(cap) = self.fence.as_ref().map(|fence| fence.cap) else {
            return Ok(Some(opened));
        };
        let known = match self.machine.cut(&opened, cap) {
            Cut::Whole => return Ok(Some(opened)),
            Cut::Held => known,
            Cut::Part(range) => {
                let entries = machine::entries(&opened.frame.body);
                let (end, applied) = (cut::end_of(&entries[range.clone()]), range.end);
                self.machine.stand_at(cap.lsn, end);
                let taken = self.accept(&opened, (known, range), Some(cap.lsn));
                Box::pin(taken).await?;
                applied
            }
        };
        if let Some(fence) = &mut self.fence {
            let since = Instant::now();
            fence.held = Some(Held {
                opened,
                known,
                since,
            });
        }
        Ok(None)
    }

    /// Whether nothing may be read: a frame is held, the lane is paused, or waits for a copy.
    pub(super) fn holding(&self) -> bool {
        let held = |fence: &Fence| fence.held.is_some();
        self.fence.as_ref().is_some_and(held) || self.is_paused() || self.waits_for_copy()
    }

    /// Whether the fence cuts in front of a transaction that commits there.
    pub(super) fn cuts_before(&self, commit_lsn: Lsn) -> bool {
        self.fence
            .as_ref()
            .is_some_and(|fence| fence.cap.lsn <= commit_lsn)
    }

    /// Which run holds the lane.
    pub(super) fn fenced_by(&self) -> Option<&str> {
        self.fence.as_ref().map(|fence| fence.run.as_str())
    }

    /// Whether what was accepted brings the lane to where a run wants it.
    pub(super) fn at_fence(&self) -> bool {
        let wanted = |fence: &Fence| fence.cap.exact && fence.cap.lsn == self.batch.to().end_lsn;
        self.fence.as_ref().is_some_and(wanted) && self.durable.end_lsn < self.batch.to().end_lsn
    }

    /// Tells the run that the lane stands where it wants it, once that is durable.
    pub(super) async fn say_reached(&mut self) -> Result<(), Trouble> {
        let Some(fence) = &self.fence else {
            return Ok(());
        };
        let there = fence.cap.exact && fence.cap.lsn == self.durable.end_lsn;
        if !there || fence.reached {
            return Ok(());
        }
        let (run, cap) = (fence.run.clone(), fence.cap.lsn);
        // When nobody is there to hear it, or the cap has moved, a notification says so, or the
        // lease's end.
        let said = self.side().reached(&run, cap).await?;
        if let Some(fence) = &mut self.fence {
            fence.reached = said;
        }
        self.status.fence_reached(said);
        Ok(())
    }

    /// The attempt has ended; the next one reads the fence before it applies anything.
    pub(super) fn forget_fence(&mut self) {
        if self.fence.take().is_some() {
            self.status.set_fence(&self.options.flow, None);
        }
    }

    /// There is no fence, or not any more: goes on with the frame that was held.
    async fn go_on(&mut self) -> Result<(), Trouble> {
        let Some(fence) = self.fence.take() else {
            // Of a run that died before we looked.
            self.side().forget().await?;
            return Ok(());
        };
        let abandoned = self.side().forget().await?;
        let elapsed = |since: Instant| since.elapsed().as_millis();
        let held = fence.held.as_ref().map_or(0, |held| elapsed(held.since));
        tracing::info!(
            flow = %self.options.flow, run = %fence.run, abandoned, held_milliseconds = held,
            milliseconds = elapsed(fence.since), "going on behind a verify run's fence"
        );
        self.status.set_fence(&self.options.flow, None);
        self.status
            .count_fence(&self.options.flow, fence.since.elapsed());
        if let Some(held) = fence.held {
            Box::pin(self.judge(held.opened, held.known)).await?;
        }
        self.settle().await
    }

    /// The cap may have moved.
    async fn judge_held(&mut self) -> Result<(), Trouble> {
        let held = self.fence.as_mut().and_then(|fence| fence.held.take());
        if let Some(held) = held {
            Box::pin(self.judge(held.opened, held.known)).await?;
            if let Some(again) = self.fence.as_mut().and_then(|fence| fence.held.as_mut()) {
                again.since = held.since;
            }
        }
        self.settle().await
    }

    fn show_fence(&self, row: &Row) {
        let shown = FenceSnapshot {
            run: row.run.clone(),
            cap: row.cap.lsn,
            until: row.until.clone(),
            reached: row.reached,
        };
        self.status.set_fence(&self.options.flow, Some(shown));
    }

    fn side(&self) -> Side<'_> {
        Side {
            client: self.target.client(),
            flow: &self.options.flow,
            lane: self.options.lane,
            epoch: self.writer.held.epoch,
        }
    }
}
