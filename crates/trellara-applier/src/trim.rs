//! Taking away what is applied (rules 0.3), and keeping a history of it.
//!
//! Nothing at or above the last frame wholly and durably applied ever goes, nor anything that a
//! transaction still open needs; the caller has made sure that this is the stream's one target.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trellara_envelope::{FlowName, Incarnation, Lane, StreamSequence, Xid};
use trellara_jetstream::topology::{self, StreamFacts};
use trellara_jetstream::{Broker, BrokerError, trim};

use crate::checkpoint::Checkpoint;

/// Between two looks at the stream. A look costs one request, a trim three.
const INTERVAL: Duration = Duration::from_secs(5);
/// Positions remembered for the age rule; with one every few seconds more than an hour.
const SAMPLES: usize = 1024;
/// Purges of whole subjects that may wait for the broker; above it the oldest are left to the
/// purge by `keep_from`, which takes them too.
const WAITING_PURGES: usize = 256;

/// Trims one lane's part of a stream.
#[derive(Debug)]
pub(crate) struct Trimmer {
    broker: Broker,
    stream: String,
    flow: FlowName,
    lane: Lane,
    history_age: Duration,
    history_bytes: u64,
    samples: VecDeque<(Instant, StreamSequence)>,
    subjects: VecDeque<String>,
    next: Instant,
    trimmed_to: StreamSequence,
    chunks_trimmed_to: StreamSequence,
}

impl Trimmer {
    pub(crate) fn new(broker: &Broker, options: &crate::ApplierOptions) -> Self {
        Self {
            broker: broker.clone(),
            stream: options.flow.stream(),
            flow: options.flow.clone(),
            lane: options.lane,
            history_age: options.history_age,
            history_bytes: options.history_bytes,
            samples: VecDeque::new(),
            subjects: VecDeque::new(),
            next: Instant::now(),
            trimmed_to: StreamSequence(0),
            chunks_trimmed_to: StreamSequence(0),
        }
    }

    /// The chunks of a transaction that is durably applied are garbage.
    pub(crate) fn transaction_applied(&mut self, incarnation: Incarnation, xid: Xid) {
        self.wait_for_purge(self.flow.open_subject(incarnation, xid));
    }

    /// A marker was durably passed: every open transaction of the incarnations it closed is
    /// garbage (C13).
    pub(crate) fn incarnation_closed(&mut self, closed: Incarnation) {
        self.wait_for_purge(self.flow.open_filter(closed));
    }

    fn wait_for_purge(&mut self, subject: String) {
        if self.subjects.len() == WAITING_PURGES {
            self.subjects.pop_front();
        }
        self.subjects.push_back(subject);
    }

    /// Trims when it is time. Returns the sequence below which positional frames are gone.
    pub(crate) async fn tick(
        &mut self,
        durable: &Checkpoint,
        keep_from: StreamSequence,
        now: Instant,
    ) -> Result<StreamSequence, BrokerError> {
        while let Some(subject) = self.subjects.front() {
            trim::purge_subject(&self.broker, &self.stream, subject).await?;
            self.subjects.pop_front();
        }
        if now < self.next {
            return Ok(self.trimmed_to);
        }
        self.next = now + INTERVAL;
        self.sample(durable.transport.sequence, now);
        if keep_from > self.chunks_trimmed_to {
            // Chunks and abort frames below are of transactions that are applied, aborted or
            // closed, however they came to be left behind.
            let open = format!("trellara.{}.open.>", self.flow);
            trim::purge_to(&self.broker, &self.stream, &open, keep_from).await?;
            self.chunks_trimmed_to = keep_from;
        }
        let facts = topology::facts(&self.broker, &self.stream).await?;
        let history = self.aged_out(now).max(self.outgrown(&facts, durable));
        let bound = bound(durable, keep_from, history);
        if bound > self.trimmed_to && bound > facts.first_sequence {
            for filter in [
                self.flow.transactions_subject(self.lane),
                self.flow.mark_subject(),
            ] {
                trim::purge_to(&self.broker, &self.stream, &filter, bound).await?;
            }
            self.trimmed_to = bound;
        }
        Ok(self.trimmed_to)
    }

    fn sample(&mut self, sequence: StreamSequence, now: Instant) {
        let spacing = self.history_age / (SAMPLES as u32);
        if self
            .samples
            .back()
            .is_some_and(|(at, last)| *last == sequence || now.duration_since(*at) < spacing)
        {
            return;
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, sequence));
    }

    /// Everything applied longer ago than the history's age.
    fn aged_out(&mut self, now: Instant) -> StreamSequence {
        let old = |at: &Instant| now.duration_since(*at) > self.history_age;
        let count = self.samples.iter().take_while(|(at, _)| old(at)).count();
        match count.checked_sub(1) {
            None => StreamSequence(0),
            Some(last_old) => {
                self.samples.drain(..last_old);
                self.samples[0].1
            }
        }
    }

    /// Everything applied that the history's size has no room for. The broker knows no sizes of
    /// ranges, so the applied part is estimated by its share of the sequences; the next look
    /// corrects it.
    fn outgrown(&self, facts: &StreamFacts, durable: &Checkpoint) -> StreamSequence {
        let applied_to = durable.transport.sequence.0;
        let first = facts.first_sequence.0;
        if facts.messages == 0 || applied_to <= first {
            return StreamSequence(0);
        }
        let all = (facts.last_sequence.0.max(applied_to) - first + 1) as f64;
        let applied = (applied_to - first) as f64;
        let applied_bytes = facts.bytes as f64 * (applied / all);
        let excess = applied_bytes - self.history_bytes as f64;
        if excess <= 0.0 {
            return StreamSequence(0);
        }
        StreamSequence(first + (applied * (excess / applied_bytes)) as u64)
    }
}

/// The rule: below what is durable, below what an open transaction needs, and only what the
/// history lets go. Exclusive: the checkpoint's frame itself stays.
fn bound(
    durable: &Checkpoint,
    keep_from: StreamSequence,
    history: StreamSequence,
) -> StreamSequence {
    durable.transport.sequence.min(keep_from).min(history)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::testing::checkpoint_at;

    #[test]
    fn c14_the_checkpoints_frame_and_open_transactions_stay() {
        let durable = checkpoint_at(50, 0x100);
        let at = |keep, history| bound(&durable, StreamSequence(keep), StreamSequence(history)).0;
        assert_eq!(at(50, u64::MAX), 50, "exclusive: 50 itself stays");
        assert_eq!(at(7, u64::MAX), 7, "c14: an open transaction began at 7");
        assert_eq!(at(50, 20), 20, "history");
        assert_eq!(at(0, u64::MAX), 0, "nothing known, nothing goes");
    }
}
