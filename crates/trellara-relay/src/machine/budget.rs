//! What open transactions may take: room in the stream (C12) and memory here (C18).
//!
//! Above it they are given up: an abort frame for each, then an incarnation that reads large
//! transactions only after their commit, when PostgreSQL sends nothing of what was rolled back.

use std::time::Duration;

use trellara_envelope::{Halt, HaltCode, StreamSequence, Xid};

use super::{Command, LargeTransaction, Machine, Phase, Restart};

/// What is applied is trimmed within seconds when the stream is full; after this long without,
/// there is nothing left to trim.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// What open transactions may take where nobody limits the stream, which is half of the limit
/// that `trellara setup` gives it. Without any they would fill the broker's disk, which is not
/// this flow's alone.
const OPEN_BYTES_UNLIMITED: u64 = 5 << 30;

impl Machine {
    /// Gives open transactions up when they take more than they may.
    pub(super) fn check_budget(&mut self, now: Duration, out: &mut Vec<Command>) {
        if self.phase == Phase::Aborting {
            self.finish_aborting(out);
            return;
        }
        // While a commit is held nothing is read, so nothing grows; its end comes soon.
        if self.phase != Phase::Streaming || self.assembler.held.is_some() {
            return;
        }
        self.warn_of_large(out);
        let Some(reason) = self.exceeds(now) else {
            return;
        };
        self.progress.giving_up = reason;
        self.phase = Phase::Aborting;
        let sent = self.frames.drop_unsent();
        self.assembler.abort_all(sent, &mut self.frames);
        if !self.frames.is_refused() {
            self.frames.pump(now, out);
        }
        self.finish_aborting(out);
    }

    /// Names each transaction that takes more than half of what the stream has for data, once: there
    /// may still be time to raise the limit before it halts the flow.
    fn warn_of_large(&mut self, out: &mut Vec<Command>) {
        let limit = self.frames.space.data_limit();
        if self.frames.space.max_bytes().is_none() {
            return;
        }
        let large = self.assembler.large();
        let large = large.filter(|(_, bytes)| *bytes > limit / 2);
        let streamed = self.assembler.streamed.above(limit / 2);
        let above: Vec<(Xid, u64)> = streamed.chain(large).collect();
        for &(xid, bytes) in &above {
            if !self.progress.large.contains(&xid) {
                out.push(Command::Warn(LargeTransaction { xid, bytes, limit }));
            }
        }
        self.progress.large = above.into_iter().map(|(xid, _)| xid).collect();
    }

    /// Which bound is exceeded.
    fn exceeds(&mut self, now: Duration) -> Option<&'static str> {
        if self.assembler.streamed.remembered() > self.settings.unfinished_bytes {
            return Some("open transactions have more subtransactions than fit into memory");
        }
        let streamed = self.assembler.streamed.stored();
        let large = self.assembler.large().map_or(0, |(_, stored)| stored);
        if streamed > self.open_budget() {
            return Some("open transactions exceed their budget in the stream");
        }
        let held = self.frames.is_held() && streamed > 0;
        // A large committed transaction and open ones that together leave no room: nothing can
        // ever be applied and trimmed.
        if held && streamed + large >= self.frames.space.data_limit() {
            return Some("open transactions leave no room in the stream for a committed one");
        }
        // The same by another way: all that could be applied is, and still nothing fits. Whatever
        // else lies in the stream, the open transactions are all that we can take out of it.
        if !held || self.positions.applied < self.positions.published {
            self.progress.stuck_since = None;
            return None;
        }
        let since = *self.progress.stuck_since.get_or_insert(now);
        (now.saturating_sub(since) >= STUCK_AFTER)
            .then_some("everything is applied, and open transactions keep the stream full")
    }

    /// What open transactions may take in the stream.
    pub(super) fn open_budget(&self) -> u64 {
        let half = self.frames.space.max_bytes().map(|max| max / 2);
        let chosen = self.settings.open_bytes.or(half);
        chosen.unwrap_or(OPEN_BYTES_UNLIMITED)
    }

    /// Begins another incarnation once the abort frames are stored. Where the broker has no room
    /// they never would be: they stand behind data that does not fit. Then what they name is
    /// removed all the same, and the next incarnation's marker says that it is garbage (C13).
    pub(super) fn finish_aborting(&mut self, out: &mut Vec<Command>) {
        if !self.frames.is_idle() && !self.frames.is_refused() {
            return;
        }
        // Only theirs: the incarnation's other chunks may belong to a transaction that has
        // committed and is not applied yet. And the tail stays, whatever it is: it is what the
        // next incarnation continues.
        let tail = self.frames.acknowledged().sequence;
        self.purge_garbage_before(StreamSequence(u64::MAX), tail, out);
        let reason = self.progress.giving_up;
        self.end(
            Restart {
                reason: format!("{reason}; large ones are read after their commit"),
                streaming_off: true,
            },
            out,
        );
    }

    /// Removes what is certainly garbage, once another frame has become the tail.
    pub(super) fn purge_garbage(&mut self, out: &mut Vec<Command>) {
        let tail = self.frames.acknowledged().sequence;
        self.purge_garbage_before(tail, tail, out);
    }

    /// Removes, below the tail, the chunks of transactions whose abort frame stands before
    /// `aborted`.
    fn purge_garbage_before(
        &mut self,
        aborted: StreamSequence,
        tail: StreamSequence,
        out: &mut Vec<Command>,
    ) {
        let incarnation = self.frames.incarnation();
        let flow = &self.settings.flow;
        self.assembler.chunks.garbage.retain(|(xid, sequence)| {
            if *sequence >= aborted {
                return true;
            }
            out.push(Command::Purge {
                subject: flow.open_subject(incarnation, *xid),
                below: tail,
            });
            false
        });
    }

    /// The halt that a larger limit ends by itself (C12).
    pub(super) fn too_small(&self) -> Option<Halt> {
        let acknowledged = self.frames.acknowledged().sequence;
        let closed = self.assembler.chunks.closed;
        let closed = closed.filter(|(_, _, manifest)| *manifest > acknowledged);
        let (xid, stored) = self
            .assembler
            .large()
            .or(closed.map(|(xid, stored, _)| (xid, stored)))?;
        let limit = self.frames.space.data_limit();
        if !self.frames.is_held() || stored <= limit {
            return None;
        }
        Some(Halt::new(
            HaltCode::StreamTooSmall,
            format!(
                "transaction {xid} needs more than the {limit} bytes that the stream has for \
                 data; {stored} bytes of it have been read so far"
            ),
            "raise the stream's max_bytes above the size of the transaction, with `nats stream edit \
             <stream> --max-bytes=<size>` and nats.max_bytes in the file; the relay then goes on by \
             itself",
        ))
    }
}
