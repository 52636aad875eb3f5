//! Standing still because an operator wants it: nothing is read, nothing is applied; the lane, its
//! session, reports and trimming stay as they are.

use super::Attempt;
use crate::machine::Delivered;
use crate::metric;
use crate::pause::{self, Pause};
use crate::status::ApplierState;
use crate::trouble::Trouble;

/// A lane that stands still.
pub(super) struct Paused {
    why: Pause,
    /// A frame that a verify run's fence let go meanwhile, and how many of its transactions were
    /// applied before.
    held: Option<(Delivered, usize)>,
}

impl Attempt<'_> {
    /// Reads the lane's row of `trellara.pause` and does what follows.
    pub(super) async fn look_at_pause(&mut self) -> Result<(), Trouble> {
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let Some(why) = pause::read(self.target.client(), flow, lane).await? else {
            return self.resume().await;
        };
        // What was accepted goes in before we say that nothing more does.
        self.write_down().await?;
        let unsaid = why.stands.is_none();
        let held = self.paused.take().and_then(|paused| paused.held);
        if unsaid {
            tracing::info!(
                flow = %self.options.flow, operator = why.operator, reason = why.reason,
                lsn_applied = %self.durable.end_lsn, "paused"
            );
        }
        self.paused = Some(Paused { why, held });
        self.status.set_state(self.ordinary_state());
        metric::paused(&self.options.flow, true);
        if unsaid {
            let lane = (&self.options.flow, self.options.lane);
            let epoch = self.writer.held.epoch;
            pause::stands(self.target.client(), lane, epoch, self.durable.end_lsn).await?;
        }
        Ok(())
    }

    /// The row is gone: goes on with the frame that was held, if there is one.
    async fn resume(&mut self) -> Result<(), Trouble> {
        let Some(paused) = self.paused.take() else {
            return Ok(());
        };
        let since = &paused.why.since;
        tracing::info!(flow = %self.options.flow, since, "going on after a pause");
        self.status.set_state(self.ordinary_state());
        metric::paused(&self.options.flow, false);
        if let Some((opened, known)) = paused.held {
            Box::pin(self.judge(opened, known)).await?;
        }
        self.settle().await
    }

    /// Lets a frame through unless the lane is paused; then it is judged when the pause is over. There
    /// is never a second one, because nothing is read meanwhile.
    pub(super) fn unless_paused(
        &mut self,
        opened: Delivered,
        known: usize,
    ) -> Option<(Delivered, usize)> {
        match &mut self.paused {
            Some(paused) => {
                paused.held = Some((opened, known));
                None
            }
            None => Some((opened, known)),
        }
    }

    /// Whether nothing may be read because of a pause. A rewind goes on: it applies nothing.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some() && self.rewinding.is_none()
    }

    /// Whether a frame waits for the end of a pause, behind which nothing may be read.
    pub(super) fn holds_for_pause(&self) -> bool {
        let held = |paused: &Paused| paused.held.is_some();
        self.paused.as_ref().is_some_and(held)
    }

    /// The state while nothing is wrong.
    pub(super) fn ordinary_state(&self) -> ApplierState {
        // A halt outlasts the pause, and is the graver of the two.
        if let Some(blocked) = self.blocked_state() {
            return blocked;
        }
        match &self.paused {
            None => self.copying_state().unwrap_or(ApplierState::Running),
            Some(Paused { why, .. }) => ApplierState::Paused {
                reason: why.reason.clone(),
                operator: format!("{}@{}", why.operator, why.host),
                since: why.since.clone(),
            },
        }
    }

    /// The attempt has ended; the next one reads the row before it applies anything.
    pub(super) fn forget_pause(&mut self) {
        if self.paused.take().is_some() {
            metric::paused(&self.options.flow, false);
        }
    }
}
