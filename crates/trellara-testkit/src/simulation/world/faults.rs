//! What is done to the flow's parts in the first phase.

use trellara_jetstream::publish::{Outcome, UnknownReason};
use trellara_relay::machine::Event;

use super::super::counters::{Counters, Sometimes};
use super::super::relay;
use super::World;

impl World {
    pub(super) fn trim(&mut self, counters: &mut Counters) {
        let Some((below, keep_from)) = self.appliers[self.active]
            .as_ref()
            .and_then(|session| session.trim(&self.stream))
        else {
            return;
        };
        let flow = relay::flow();
        let beats = flow.beat_subject();
        let mut gone = self
            .stream
            .purge(keep_from, |subject| subject.contains(".open."));
        gone += self.stream.purge(below, |other| other == beats);
        let mut below = below;
        for subject in [
            flow.transactions_subject(trellara_envelope::Lane(0)),
            flow.mark_subject(),
        ] {
            if let Some((newest, _)) = self.stream.last_on(|other| other == subject) {
                below = below.min(newest);
                gone += self.stream.purge(below, |other| other == subject);
            }
        }
        self.trace(|| format!("trimmed {gone} below {below}, chunks below {keep_from}"));
        if gone > 0 {
            self.trimmed = true;
            counters.count(Sometimes::Trimmed);
        }
    }

    pub(super) fn fault(&mut self, counters: &mut Counters) -> Result<(), String> {
        match self.dice.roll(12) {
            0 | 1 => self.end_relay(counters),
            2 => self.appliers[self.active] = None,
            3 => {
                // The standby takes the lane while the other one is alive.
                if self.appliers[self.active].is_some() {
                    counters.count(Sometimes::TakenOver);
                    return self.begin_applier(1 - self.active, counters);
                }
            }
            4 | 5 => self.roll_back(counters),
            6 => {
                self.end_relay(counters);
                if self.source.crash() {
                    self.fell_back = true;
                    counters.count(Sometimes::SourceCrashed);
                }
            }
            7 if self.dice.one_in(3) => {
                self.end_relay(counters);
                self.source.fail_over();
                self.fell_back = true;
                counters.count(Sometimes::FailedOver);
            }
            8 if self.dice.one_in(2) => self.restore(counters),
            _ => self.source.write_other(&mut self.dice),
        }
        Ok(())
    }

    /// The broker comes back with an earlier copy of its store.
    fn roll_back(&mut self, counters: &mut Counters) {
        if self.restored || self.dice.one_in(3) {
            return;
        }
        let Some(copy) = self.copy.take() else {
            self.copy = Some(self.stream.clone());
            self.trace(|| format!("copied at {}", self.stream.last()));
            return;
        };
        if copy.last() >= self.stream.last() {
            return;
        }
        let applied = self.target.checkpoint.transport.sequence.0;
        self.stream.roll_back(&copy);
        self.trace(|| format!("rolled back to {}", self.stream.last()));
        self.lost = true;
        counters.count(Sometimes::TailLost);
        if applied > self.stream.last() {
            counters.count(Sometimes::AppliedTailLost);
        }
        // The server was started again, so every connection was cut: what was on its way is lost,
        // unless a client that was dead to everybody else sends it once more.
        if self.dice.one_in(3) {
            return;
        }
        for message in std::mem::take(&mut self.on_their_way) {
            let event = Event::Published {
                ordinal: message.publish.ordinal,
                attempt: message.publish.attempt,
                outcome: Outcome::Unknown {
                    reason: UnknownReason::Timeout,
                },
            };
            self.answers.push((event, message.of));
        }
    }

    /// The target is put back to where the stream still has everything that follows.
    fn restore(&mut self, counters: &mut Counters) {
        let there = |checkpoint: &trellara_applier::Checkpoint| {
            let transport = &checkpoint.transport;
            self.stream.holds(transport.sequence.0, transport.digest)
        };
        let kept = self.target.kept();
        if self.lost || kept.is_empty() {
            return;
        }
        let number = self.dice.clone().roll(kept.len() as u64) as usize;
        if !there(&kept[number].1) || self.trimmed_behind(kept[number].1.transport.sequence.0) {
            return;
        }
        self.target.restore(number);
        self.trace(|| format!("restored to {:?}", self.target.checkpoint.transport));
        self.appliers = [None, None];
        self.restored = true;
        counters.count(Sometimes::TargetRestored);
    }

    /// Whether something behind a sequence was taken away already.
    fn trimmed_behind(&self, sequence: u64) -> bool {
        (sequence..=self.stream.last()).any(|at| self.stream.get(at).is_none())
    }
}
