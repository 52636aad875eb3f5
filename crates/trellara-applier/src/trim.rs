//! Taking away what is applied (rules 0.3), and keeping a history of it.
//!
//! Nothing at or above the last frame wholly and durably applied ever goes, nor the chunks of a
//! transaction still open, nor the newest marker and the newest transaction, which the next relay
//! compares with its source (C02, C06). An open transaction keeps its chunks and nothing else: it
//! may stay open for days, and the frames applied meanwhile would fill the stream (C12).
//!
//! Sequences mean nothing in another stream: before anything goes, the stream must still be the one
//! that was read, and its one target the one that applied (C24). A process that slept while its
//! flow was removed and set up anew would take away what nobody has applied.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trellara_crashpoints as crashpoints;
use trellara_envelope::{FlowName, Incarnation, Lane, StreamSequence, Xid};
use trellara_jetstream::read::Reader;
use trellara_jetstream::topology::{self, StreamFacts};
use trellara_jetstream::{Broker, BrokerError, trim};

use crate::checkpoint::{Checkpoint, StreamIdentity};

/// Between two looks at the stream. A look costs one request, a trim a few more.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same when the stream is filling.
const HASTE: Duration = Duration::from_secs(1);
/// What the relay keeps free of data, so that markers and manifests always fit.
const RESERVE_BYTES: u64 = 64 << 20;
/// Positions remembered for the age rule; with one every few seconds more than an hour.
const SAMPLES: usize = 1024;
/// Purges of whole subjects that may wait for the broker; above it the oldest are left to the
/// purge by `keep_from`, which takes them too.
const WAITING_PURGES: usize = 256;

/// Trims one lane's part of a stream.
#[derive(Debug)]
pub(crate) struct Trimmer {
    broker: Broker,
    reader: Reader,
    stream: StreamIdentity,
    registration: String,
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
    /// Trims `stream` as the target that is registered there as `registration`.
    pub(crate) fn new(
        broker: &Broker,
        options: &crate::ApplierOptions,
        stream: &StreamIdentity,
        registration: &str,
    ) -> Self {
        Self {
            broker: broker.clone(),
            reader: Reader::new(broker, &stream.name),
            stream: stream.clone(),
            registration: registration.to_owned(),
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

    /// Trims when it is time. Returns the sequence below which positional frames are gone; `None`
    /// when the stream is another one than was read, or another target's: nothing was taken away.
    pub(crate) async fn tick(
        &mut self,
        durable: &Checkpoint,
        keep_from: StreamSequence,
        now: Instant,
    ) -> Result<Option<StreamSequence>, BrokerError> {
        if self.subjects.is_empty() && now < self.next {
            return Ok(Some(self.trimmed_to));
        }
        let facts = topology::facts(&self.broker, &self.stream.name).await?;
        if !self.stream.is_still(&facts, &self.registration) {
            return Ok(None);
        }
        self.trim(durable, keep_from, now, &facts).await.map(Some)
    }

    async fn trim(
        &mut self,
        durable: &Checkpoint,
        keep_from: StreamSequence,
        now: Instant,
        facts: &StreamFacts,
    ) -> Result<StreamSequence, BrokerError> {
        while let Some(subject) = self.subjects.front() {
            trim::purge_subject(&self.broker, &self.stream.name, subject).await?;
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
            trim::purge_to(&self.broker, &self.stream.name, &open, keep_from).await?;
            self.chunks_trimmed_to = keep_from;
        }
        let room = history_room(self.history_bytes, facts.bytes, facts.max_bytes);
        if room < self.history_bytes {
            self.next = now + HASTE;
        }
        let first = self.first_applied(facts).await?;
        let history = self
            .aged_out(now)
            .max(outgrown(facts, first, durable, room));
        let bound = bound(durable, keep_from, history);
        if bound > self.trimmed_to && bound > first {
            crashpoints::reached(crashpoints::APPLIER_BEFORE_TRIM);
            self.purge_positional(bound).await?;
            self.trimmed_to = bound;
            crashpoints::reached(crashpoints::APPLIER_TRIMMED);
        }
        Ok(self.trimmed_to)
    }

    /// Where the applied frames begin, leaving aside the few that stay for ever: the stream's first
    /// sequence says nothing, a marker from long ago may stand there.
    async fn first_applied(&self, facts: &StreamFacts) -> Result<StreamSequence, BrokerError> {
        if self.trimmed_to.0 > 0 {
            return Ok(self.trimmed_to.max(facts.first_sequence));
        }
        let mut first = facts.last_sequence;
        for subject in [
            self.flow.transactions_subject(self.lane),
            self.flow.beat_subject(),
        ] {
            let found = self.reader.next_on(&subject, StreamSequence(1)).await?;
            first = found.map_or(first, |frame| first.min(frame.sequence));
        }
        Ok(first)
    }

    /// Takes away the positional frames below `bound`, but neither the newest marker nor the newest
    /// transaction, nor a marker behind that: it says whether the stream goes on further there than
    /// it had come, which the next relay asks when the source sends something again.
    async fn purge_positional(&self, bound: StreamSequence) -> Result<(), BrokerError> {
        let mut bound = bound;
        let beats = self.flow.beat_subject();
        trim::purge_to(&self.broker, &self.stream.name, &beats, bound).await?;
        for subject in [
            self.flow.transactions_subject(self.lane),
            self.flow.mark_subject(),
        ] {
            if let Some(newest) = self.reader.last_on(&subject).await? {
                bound = bound.min(newest.sequence);
                trim::purge_to(&self.broker, &self.stream.name, &subject, bound).await?;
            }
        }
        Ok(())
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
}

/// Bytes of applied frames that may stay. The history gives way to what is not applied yet: of a
/// small stream it has a quarter, and nothing once the stream fills.
fn history_room(wanted: u64, used: u64, max_bytes: Option<u64>) -> u64 {
    let Some(max) = max_bytes else {
        return wanted;
    };
    let for_data = max - RESERVE_BYTES.min(max / 8);
    if used > for_data / 4 * 3 {
        return 0;
    }
    wanted.min(max / 4)
}

/// Everything applied that the history has no room for. The broker knows no sizes of ranges, so
/// the applied part is estimated by its share of the sequences; the next look corrects it.
fn outgrown(
    facts: &StreamFacts,
    first: StreamSequence,
    durable: &Checkpoint,
    room: u64,
) -> StreamSequence {
    let applied_to = durable.transport.sequence.0;
    if facts.messages == 0 || applied_to <= first.0 {
        return StreamSequence(0);
    }
    if room == 0 {
        return StreamSequence(applied_to);
    }
    let all = (facts.last_sequence.0.max(applied_to) - first.0 + 1) as f64;
    let applied = (applied_to - first.0) as f64;
    let applied_bytes = facts.bytes as f64 * (applied / all);
    let excess = applied_bytes - room as f64;
    if excess <= 0.0 {
        return StreamSequence(0);
    }
    StreamSequence(first.0 + (applied * (excess / applied_bytes)) as u64)
}

/// The rule for positional frames: below what is durable, and only what the history lets go.
/// Exclusive: the checkpoint's frame itself stays. Without any `keep_from` the checkpoint's frame
/// was not found in this stream, and its sequence says nothing about it.
fn bound(
    durable: &Checkpoint,
    keep_from: StreamSequence,
    history: StreamSequence,
) -> StreamSequence {
    if keep_from.0 == 0 {
        return StreamSequence(0);
    }
    durable.transport.sequence.min(history)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::testing::checkpoint_at;

    #[test]
    fn c12_an_open_transaction_keeps_no_positional_frame() {
        let durable = checkpoint_at(50, 0x100);
        let at = |keep, history| bound(&durable, StreamSequence(keep), StreamSequence(history)).0;
        assert_eq!(at(50, u64::MAX), 50, "exclusive: 50 itself stays");
        assert_eq!(
            at(7, u64::MAX),
            50,
            "c12: open since 7, its chunks alone stay"
        );
        assert_eq!(at(50, 20), 20, "history");
        assert_eq!(at(0, u64::MAX), 0, "nothing known, nothing goes");
    }

    #[test]
    fn the_history_gives_way_to_what_is_not_applied() {
        const MIB: u64 = 1 << 20;
        assert_eq!(history_room(1024 * MIB, 0, None), 1024 * MIB);
        assert_eq!(history_room(1024 * MIB, 0, Some(64 * MIB)), 16 * MIB);
        assert_eq!(history_room(8 * MIB, 0, Some(64 * MIB)), 8 * MIB);
        // Data may fill 56 MiB of it; three quarters are 42.
        assert_eq!(history_room(1024 * MIB, 42 * MIB, Some(64 * MIB)), 16 * MIB);
        assert_eq!(history_room(1024 * MIB, 42 * MIB + 1, Some(64 * MIB)), 0);
        // The default history in the default stream.
        assert_eq!(history_room(1024 * MIB, 0, Some(1024 * MIB)), 256 * MIB);
        assert_eq!(history_room(1024 * MIB, 721 * MIB, Some(1024 * MIB)), 0);
        assert_eq!(history_room(1, 1, Some(0)), 0);
    }

    #[test]
    fn what_outgrew_the_history_is_a_share_of_the_applied_frames() {
        let mut facts = StreamFacts {
            name: "TRELLARA_shop".into(),
            created: "then".into(),
            // A marker that stays for ever.
            first_sequence: StreamSequence(2),
            last_sequence: StreamSequence(2000),
            messages: 1002,
            bytes: 1_001_000,
            max_bytes: None,
            max_message_bytes: None,
            replicas: 1,
            subjects: Vec::new(),
            metadata: BTreeMap::new(),
            leader: None,
        };
        let durable = checkpoint_at(2000, 0x100);
        let to =
            |facts: &StreamFacts, room| outgrown(facts, StreamSequence(1000), &durable, room).0;
        assert_eq!(to(&facts, 500_000), 1500);
        assert_eq!(to(&facts, 2_000_000), 0);
        assert_eq!(to(&facts, 0), 2000, "everything applied");
        facts.messages = 0;
        assert_eq!(to(&facts, 0), 0);
    }
}
