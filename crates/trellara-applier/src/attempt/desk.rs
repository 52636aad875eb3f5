//! What an operator asked of the held transactions, done at a safe point: nothing is in flight, and
//! nobody else writes on the lane.

use super::Attempt;
use super::commit::reporting;
use crate::apply::Source;
use crate::batch::Batch;
use crate::metric;
use crate::quarantine::desk::{self, Hands};
use crate::quarantine::request::{self, Answer, Task};
use crate::trouble::Trouble;

impl Attempt<'_> {
    /// Serves every request that somebody waits for.
    pub(super) async fn serve_desk(&mut self) -> Result<(), Trouble> {
        let (flow, lane) = (&self.options.flow, self.options.lane);
        let mut worked = None;
        while let Some((token, order)) = request::next(self.target.client(), flow, lane).await? {
            let epoch = self.writer.held.epoch;
            let still = desk::stands_still(self.target.client(), (flow, lane), epoch).await?;
            if let Some(reason) = still.or(self.fenced_by().map(desk::fenced)) {
                let answer = Answer::NotNow { reason };
                request::answer(self.target.client(), flow, &token, &answer).await?;
                continue;
            }
            self.write_down().await?;
            // A notification about a copy may still be on its way.
            self.look_at_copies().await?;
            worked.get_or_insert(self.durable.end_lsn);
            let client = &self.target.session.client;
            let source = Source {
                broker: self.broker,
                reader: &self.reader,
                options: self.options,
                cancel: self.cancel,
                status: self.status,
            };
            let hands = Hands {
                client,
                writer: &mut self.writer,
                flow,
                lane,
                source: Some(&source),
            };
            let working = desk::work(hands, &self.durable, &order, &token);
            let every = self.options.report_interval;
            let working = reporting(working, &self.reporter, &self.durable, every);
            let steps = Box::pin(working).await?;
            for committed in steps.iter().filter_map(|step| step.committed.as_ref()) {
                self.durable = committed.checkpoint.clone();
                self.count(committed);
            }
            self.batch = Batch::behind(&self.durable, self.keep_from);
            self.show();
            for step in steps.iter().filter(|_| order.task == Task::Replay) {
                metric::replayed(flow, step.item.end.as_str());
            }
            let items = steps.into_iter().map(|step| step.item).collect();
            let answer = Answer::Done(items);
            request::answer(self.target.client(), flow, &token, &answer).await?;
        }
        match worked {
            Some(before) => self.look_at_quarantine(before).await,
            None => Ok(()),
        }
    }
}
