//! An applier: the shipped chain rule, verdicts and dispositions, and what their loop would do.

mod effects;
mod unfit;

use trellara_applier::disposition::{self, Disposition};
use trellara_applier::machine::{self, Delivered, Machine, Verdict};
use trellara_applier::verdict::{Answer, Known, verdict};
use trellara_applier::{Checkpoint, Transport};
use trellara_envelope::{
    BundleEntry, Frame, FrameDigest, Halt, HaltCode, Incarnation, Lane, LaneEpoch, PositionReport,
    StreamSequence,
};
use trellara_postgres::{Fault, sqlstate};

use self::effects::effects_of;
use super::broker::Stream;
use super::counters::{Counters, Sometimes};
use super::dice::Dice;
use super::relay::{TARGET, flow};
use super::target::{Effect, Target, stream_identity};

/// How a session goes on.
pub(super) enum Goes {
    /// Nothing came.
    Idle,
    On,
    /// Connect again and find the place anew.
    Anew,
    /// Worth looking at again, and an operator's business if it stays so.
    Stands(Halt),
}

/// An applier that has taken the lane.
#[derive(Debug)]
pub(super) struct Session {
    machine: Machine,
    epoch: LaneEpoch,
    next: u64,
    void: u64,
    passed_over: Vec<u64>,
    /// Accepted and not committed.
    effects: Vec<Effect>,
    pending: Option<Transport>,
    /// The last thing that is committed.
    durable: Checkpoint,
}

/// Whether a subject is read in order: chunks are not.
fn positional(subject: &str) -> bool {
    !subject.contains(".open.")
}

fn fault(code: &str) -> Fault {
    Fault {
        class: sqlstate::classify(code),
        sqlstate: code.to_owned(),
        severity: "ERROR".to_owned(),
        message: String::new(),
        schema: None,
        table: None,
        column: None,
        constraint: None,
    }
}

impl Session {
    /// Takes the lane, reads the checkpoint, finds the place in the stream; in this order.
    pub(super) fn begin(
        stream: &Stream,
        target: &mut Target,
        counters: &mut Counters,
    ) -> Result<Self, Halt> {
        let epoch = target.raise_epoch();
        let durable = target.checkpoint.clone();
        let at = durable.transport.sequence.0;
        let there = stream.get(at).map(|m| FrameDigest::of(&m.payload));
        let (machine, next) = if there.is_some_and(|d| machine::proves(&durable, d)) {
            (Machine::at(Lane(0), &durable), at + 1)
        } else {
            let mark = flow().mark_subject();
            let mut newest = None;
            let mut from = 0;
            while let Some((at, message)) = stream.next_from(from, |subject| subject == mark) {
                let frame = Frame::decode(&message.payload);
                if frame.is_ok_and(|frame| machine::may_begin(&durable, &frame)) {
                    newest = Some(at);
                }
                from = at + 1;
            }
            let Some(newest) = newest else {
                return Err(stands(HaltCode::Gap, "the checkpoint's frame is gone"));
            };
            counters.count(Sometimes::BeganAtMarker);
            (Machine::before_marker(Lane(0), &durable), newest)
        };
        Ok(Self {
            machine,
            epoch,
            next,
            void: 0,
            passed_over: Vec::new(),
            effects: Vec::new(),
            pending: None,
            durable,
        })
    }

    /// Whether something is accepted and not committed.
    pub(super) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Reads the next frame, or another one than the next, and judges it.
    pub(super) fn deliver(
        &mut self,
        (stream, target): (&Stream, &Target),
        (dice, calm): (&mut Dice, bool),
        counters: &mut Counters,
    ) -> Result<Goes, String> {
        if stream.last() + 1 < self.next {
            counters.count(Sometimes::Rewritten);
            return Ok(Goes::Anew);
        }
        let mut from = self.next;
        if !calm && dice.one_in(25) {
            from = (from + 1).min(stream.last());
        } else if !calm && dice.one_in(25) {
            from = from.saturating_sub(1 + dice.roll(5)).max(1);
        }
        let Some((sequence, message)) = stream.next_from(from, positional) else {
            return Ok(Goes::Idle);
        };
        let frame = Frame::decode(&message.payload).map_err(|error| error.to_string())?;
        let opened = Delivered {
            sequence: StreamSequence(sequence),
            digest: FrameDigest::of(&message.payload),
            frame,
        };
        self.next = sequence + 1;
        self.judge(&opened, (stream, target), counters)
    }

    fn judge(
        &mut self,
        opened: &Delivered,
        (stream, target): (&Stream, &Target),
        counters: &mut Counters,
    ) -> Result<Goes, String> {
        let sequence = opened.sequence.0;
        let mut verdict = self.machine.frame(opened);
        if verdict == Verdict::Reopens {
            let seen = self.machine.last_seen();
            let there = seen.is_some_and(|(at, digest)| stream.holds(at.0, digest));
            verdict = match there {
                true => Verdict::Redelivered,
                false => self.machine.reopen(opened),
            };
        }
        match verdict {
            Verdict::Apply(range) => {
                let all = machine::entries(&opened.frame.body);
                for entry in &all[..range.start] {
                    if let Some(halt) = self.ask(entry, true, target, counters) {
                        return Ok(Goes::Stands(halt));
                    }
                }
                for entry in &all[range.clone()] {
                    if let Some(halt) = self.ask(entry, false, target, counters) {
                        return Ok(Goes::Stands(halt));
                    }
                }
                let Some(effects) = effects_of(opened, range, stream, counters)? else {
                    counters.count(Sometimes::ChunksGone);
                    return Ok(Goes::Anew);
                };
                self.effects.extend(effects);
                self.pass(opened);
            }
            Verdict::Progress => self.pass(opened),
            Verdict::Duplicate | Verdict::Redelivered => {
                if verdict == Verdict::Redelivered {
                    counters.count(Sometimes::Redelivered);
                    if self.passed_over.contains(&sequence) {
                        return Ok(Goes::On);
                    }
                }
                for entry in machine::entries(&opened.frame.body).iter() {
                    if let Some(halt) = self.ask(entry, true, target, counters) {
                        return Ok(Goes::Stands(halt));
                    }
                }
                if verdict == Verdict::Duplicate {
                    self.pass(opened);
                }
            }
            Verdict::Aside | Verdict::Reopens => {}
            Verdict::Missing => return Ok(self.missing(opened, stream, counters)),
            Verdict::Overtaken(halt) => {
                let later = (sequence + 1..=stream.last()).any(|at| {
                    closer(stream, at).is_some_and(|of| of > opened.frame.header.incarnation)
                });
                if !later {
                    return Ok(Goes::Stands(halt));
                }
                self.passed_over.push(sequence);
            }
            Verdict::Halt(halt) => return Ok(self.unless_void(opened, halt, stream, counters)),
        }
        Ok(Goes::On)
    }

    /// Whether the ledger agrees with what the place says of a transaction.
    fn ask(
        &self,
        entry: &BundleEntry,
        below: bool,
        target: &Target,
        counters: &mut Counters,
    ) -> Option<Halt> {
        if self.epoch != target.epoch {
            // Its session on the target is gone, and it does not know yet.
            return None;
        }
        let identity = entry.identity();
        let pending = self.effects.iter().any(|(known, _)| *known == identity);
        let known = Known {
            at_or_below_checkpoint: below,
            in_ledger: pending || target.ledger.contains(&identity.hash()),
            held: false,
            at_or_below_watermark: false,
        };
        match verdict(known) {
            Answer::Apply => None,
            Answer::Duplicate | Answer::Held => {
                counters.count(Sometimes::Duplicate);
                None
            }
            Answer::Halt(code) => Some(stands(code, "place and ledger disagree")),
        }
    }

    fn pass(&mut self, opened: &Delivered) {
        self.passed_over.clear();
        self.pending = Some(Transport {
            stream: stream_identity(),
            sequence: opened.sequence,
            incarnation: opened.frame.header.incarnation,
            ordinal: opened.frame.header.ordinal,
            digest: opened.digest,
        });
    }

    /// Commits what is accepted.
    pub(super) fn commit(
        &mut self,
        target: &mut Target,
        (dice, calm): (&mut Dice, bool),
        counters: &mut Counters,
    ) -> Goes {
        let Some(transport) = self.pending.clone() else {
            return Goes::On;
        };
        let checkpoint = Checkpoint {
            ordinal: self.durable.ordinal.next(),
            source: self.machine.source(),
            end_lsn: self.machine.end_lsn(),
            transaction_end_lsn: self.machine.transaction_end_lsn(),
            transport,
        };
        if !calm && dice.one_in(12) {
            const CODES: [&str; 8] = [
                "40001", "40P01", "55P03", "53300", "57P01", "57014", "53100", "25006",
            ];
            let code = CODES[dice.roll(CODES.len() as u64) as usize];
            counters.count(match disposition::of_statement(&fault(code)) {
                Disposition::Retry => Sometimes::Retried,
                Disposition::RetryNamed => Sometimes::RetriedNamed,
                Disposition::Probe => Sometimes::Probed,
                other => return Goes::Stands(stands(HaltCode::State, &format!("{other:?}"))),
            });
            return Goes::Anew;
        }
        let in_doubt = !calm && dice.one_in(12);
        if in_doubt && dice.one_in(2) {
            counters.count(Sometimes::InDoubtLost);
            return Goes::Anew;
        }
        let done = target.apply(
            (self.durable.ordinal, self.epoch),
            &self.effects,
            &checkpoint,
        );
        if !done {
            counters.count(Sometimes::NotMyPredecessor);
            let next = disposition::of_statement(&fault("23505"));
            debug_assert!(matches!(
                next,
                Disposition::AskLedger | Disposition::Operator
            ));
            return Goes::Anew;
        }
        if in_doubt {
            counters.count(Sometimes::InDoubtCommitted);
            return Goes::Anew;
        }
        counters.count(Sometimes::CommitAnswered);
        self.durable = checkpoint;
        self.effects.clear();
        self.pending = None;
        Goes::On
    }

    /// What is durable, for the relay.
    pub(super) fn report(&self) -> PositionReport {
        let transport = &self.durable.transport;
        PositionReport {
            flow: flow(),
            lane: Lane(0),
            source: self.durable.source,
            target: TARGET.to_owned(),
            epoch: self.epoch,
            incarnation: transport.incarnation,
            sequence: transport.sequence,
            ordinal: transport.ordinal,
            digest: transport.digest,
            end_lsn: self.durable.end_lsn,
            mac: Vec::new(),
        }
    }

    /// Up to where applied frames may be taken away, and chunks; nothing where the stream does not
    /// hold the frame.
    pub(super) fn trim(&self, stream: &Stream) -> Option<(u64, u64)> {
        let at = self.durable.transport.sequence.0;
        if !stream.holds(at, self.durable.transport.digest) {
            return None;
        }
        let frame = Frame::decode(&stream.get(at)?.payload).ok()?;
        Some((at, frame.header.keep_from.0))
    }
}

fn stands(code: HaltCode, reason: &str) -> Halt {
    Halt::new(code, reason.to_owned(), "")
}

/// The incarnation of a genesis or marker there.
fn closer(stream: &Stream, at: u64) -> Option<Incarnation> {
    let frame = Frame::decode(&stream.get(at)?.payload).ok()?;
    machine::closes_lower(&frame.body).then_some(frame.header.incarnation)
}
