//! Random scripts, faults and interleavings: whatever happens, the stream decodes to exactly the
//! committed transactions in order, its chain fits, and the source is never told more than is
//! known to be stored.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use trellara_envelope::{
    Frame, FrameDigest, HaltCode, Incarnation, Lane, LaneEpoch, Lsn, PositionReport, StreamSequence,
};
use trellara_jetstream::publish::{Outcome, UnknownReason};

use super::chain::Chain;
use super::source::{Row, Script, Step, Walsender};
use super::stream::{Stream, flow, history, settings};
use crate::Acknowledge;
use crate::machine::{
    Command, Event, FootingAnswer, Machine, ProbeAnswer, Publish, StreamSpace, TailAnswer,
};

/// A small generator of its own, so that one number names a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

struct World<'a> {
    dice: Dice,
    acknowledge: Acknowledge,
    walsender: Walsender<'a>,
    machine: Machine,
    stream: Stream,
    /// On their way to the broker, in order; those of a former machine may still arrive.
    publishes: Vec<(Publish, Incarnation)>,
    answers: Vec<(Event<'static>, Incarnation)>,
    incarnation: Incarnation,
    /// Messages known to be stored, by acknowledgement or by a tail that was read.
    stored: BTreeSet<u64>,
    proven: u64,
    confirmed: Lsn,
    reported: Lsn,
    now: Duration,
    sent_all: bool,
    /// Length of the stream when the relay last looked.
    looked_at: usize,
    calm: bool,
    /// What a marker stands on is answered at once.
    prompt: bool,
    over: Option<bool>,
}

impl<'a> World<'a> {
    fn run(script: &'a Script, seed: u64, acknowledge: Acknowledge, prompt: bool) -> Chain {
        let stream = Stream::new(script.start());
        let mut out = Vec::new();
        let start = stream.start(Incarnation(0), script.start());
        let incarnation = start.incarnation;
        let machine = Machine::new(settings(acknowledge), start, Duration::ZERO, &mut out);
        let mut world = World {
            dice: Dice(seed | 1),
            acknowledge,
            walsender: Walsender::new(script, script.start()),
            machine,
            proven: 1,
            stream,
            publishes: Vec::new(),
            answers: Vec::new(),
            incarnation,
            stored: BTreeSet::new(),
            confirmed: script.start(),
            reported: Lsn::ZERO,
            now: Duration::ZERO,
            sent_all: false,
            looked_at: 0,
            calm: false,
            prompt,
            over: None,
        };
        world.carry_out(out);
        for step in 0..20_000 {
            world.calm = step > 2_000;
            if world.calm && world.is_done() {
                return world.stream.chain();
            }
            world.step(script);
        }
        panic!("it never ended: {:?}", world.machine.status());
    }

    fn is_done(&self) -> bool {
        let status = self.machine.status();
        self.sent_all
            && self.publishes.is_empty()
            && self.answers.is_empty()
            && self.over.is_none()
            && status.window_bytes == 0
            && status.waiting_for.is_empty()
            && self.looked_at == self.stream.0.len()
    }

    fn step(&mut self, script: &'a Script) {
        let over = self.over.take();
        if over.is_some() || (!self.calm && self.dice.one_in(150)) {
            self.restart(script, over == Some(true));
            return;
        }
        match self.dice.roll(8) {
            0..3 => self.send(),
            3..5 => self.broker(),
            5..7 => self.answer(),
            _ => {
                self.now += Duration::from_millis(300);
                self.event(Event::Tick);
                self.event(Event::MembershipPassed);
                let space = StreamSpace {
                    last_sequence: StreamSequence(self.stream.0.len() as u64),
                    ..StreamSpace::default()
                };
                let target = Some("target@1".to_owned());
                let floor = self.machine.status().last_sequence;
                self.event(Event::Stream {
                    space,
                    target,
                    floor,
                });
                self.looked_at = self.stream.0.len();
                self.report();
                self.lose_tail();
            }
        }
    }

    fn send(&mut self) {
        if !self.machine.wants_input() {
            return;
        }
        match self.walsender.next() {
            None => self.sent_all = true,
            Some(payloads) => {
                for payload in payloads {
                    self.event(Event::CopyData(&payload));
                }
                if self.dice.one_in(2) {
                    self.event(Event::GulpEnd);
                }
            }
        }
        if self.sent_all {
            self.event(Event::GulpEnd);
        }
    }

    /// The broker takes the next message, loses it, or answers and nobody hears it.
    fn broker(&mut self) {
        if self.publishes.is_empty() {
            return;
        }
        let (publish, of) = if !self.calm && self.dice.one_in(30) {
            // A copy stays in flight and arrives again later.
            self.publishes[0].clone()
        } else {
            self.publishes.remove(0)
        };
        let unknown = Outcome::Unknown {
            reason: UnknownReason::Timeout,
        };
        let fault = if self.calm { 99 } else { self.dice.roll(40) };
        let outcome = match fault {
            0 => unknown,
            1 => {
                self.stream.publish(&publish);
                unknown
            }
            2 => Outcome::Full,
            3 => Outcome::NoStream,
            _ => self.stream.publish(&publish),
        };
        let event = Event::Published {
            ordinal: publish.ordinal,
            attempt: publish.attempt,
            outcome,
        };
        self.answers.push((event, of));
    }

    /// An answer arrives, not necessarily the oldest.
    fn answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let at = self.dice.roll(self.answers.len() as u64) as usize;
        let (event, of) = self.answers.remove(at);
        if of != self.incarnation {
            return;
        }
        match &event {
            Event::Published {
                outcome: Outcome::Stored { sequence },
                ..
            } => {
                self.stored.insert(sequence.0);
            }
            Event::Tail(TailAnswer::Frame(tail)) => {
                self.proven = self.proven.max(tail.sequence.0);
            }
            _ => {}
        }
        // Acknowledgements of messages that the broker has lost since prove nothing.
        let last = self.stream.0.len() as u64;
        while self.proven < last
            && (self.stored.contains(&(self.proven + 1))
                || self.stream.is_void(self.proven as usize + 1))
        {
            self.proven += 1;
        }
        self.proven = self.proven.min(last);
        self.event(event);
    }

    /// The target has applied some frame of the stream.
    fn report(&mut self) {
        if self.acknowledge != Acknowledge::Applied || !self.dice.one_in(2) {
            return;
        }
        let at = self.dice.roll(self.proven) as usize + 1;
        if self.stream.is_void(at) {
            return;
        }
        let frame = self.stream.frame(at);
        let report = PositionReport {
            flow: flow(),
            lane: Lane(0),
            source: history().source(),
            target: "target@1".to_owned(),
            epoch: LaneEpoch(1),
            incarnation: frame.header.incarnation,
            sequence: StreamSequence(at as u64),
            ordinal: frame.header.ordinal,
            digest: Frame::digest_of(&self.stream.0[at - 1]),
            end_lsn: frame.header.position,
            mac: Vec::new(),
        };
        self.reported = self.reported.max(report.end_lsn);
        let mut forged = report.clone();
        forged.digest = FrameDigest::of(b"another frame");
        forged.end_lsn = Lsn::MAX;
        self.event(Event::Report(forged));
        self.event(Event::Report(report));
    }

    /// A broker that loses what it had acknowledged, where `applied` closes the hole.
    fn lose_tail(&mut self) {
        if self.calm || self.acknowledge != Acknowledge::Applied || !self.dice.one_in(60) {
            return;
        }
        let mut keep = self.stream.0.len();
        for at in (1..keep).rev().filter(|at| !self.stream.is_void(*at)) {
            if self.stream.frame(at).header.position < self.reported {
                break;
            }
            keep = at;
        }
        self.stream.0.truncate(keep.max(1));
        let last = self.stream.0.len() as u64;
        self.proven = self.proven.min(last);
        self.stored.retain(|sequence| *sequence <= last);
    }

    fn restart(&mut self, script: &'a Script, streaming_off: bool) {
        let start = self.stream.start(self.incarnation, self.confirmed);
        self.incarnation = start.incarnation;
        self.proven = start.tail_at.0;
        self.stored.clear();
        self.walsender = Walsender::new(script, self.confirmed);
        if streaming_off {
            self.walsender = self.walsender.clone().after_commit();
        }
        self.sent_all = false;
        let mut out = Vec::new();
        self.machine = Machine::new(settings(self.acknowledge), start, self.now, &mut out);
        self.carry_out(out);
    }

    fn event(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Publish(publish) => self.publishes.push((publish, self.incarnation)),
                Command::Feedback { feedback, .. } => {
                    let stored = self.stream.frame(self.proven as usize).header.position;
                    let allowed = match self.acknowledge {
                        Acknowledge::Published => stored,
                        Acknowledge::Applied => self.reported,
                    };
                    assert!(
                        feedback.flush <= allowed.max(self.confirmed),
                        "R2: {:?} with {allowed} stored",
                        feedback
                    );
                    assert!(feedback.flush >= self.confirmed, "R1: never back");
                    assert!(feedback.flush <= feedback.write);
                    self.confirmed = feedback.flush;
                }
                Command::ReadTail => {
                    let answer = if !self.calm && self.dice.one_in(5) {
                        TailAnswer::Failed("no leader".to_owned())
                    } else {
                        TailAnswer::Frame(self.stream.tail())
                    };
                    self.answers.push((Event::Tail(answer), self.incarnation));
                }
                Command::ReadFooting(at) if self.prompt => {
                    let answer = self.stream.footing(at);
                    self.event(Event::Footing(answer));
                }
                Command::ReadFooting(at) => {
                    let answer = if !self.calm && self.dice.one_in(5) {
                        FootingAnswer::Failed("no leader".to_owned())
                    } else {
                        self.stream.footing(at)
                    };
                    self.answers
                        .push((Event::Footing(answer), self.incarnation));
                }
                Command::CheckReport(report) => {
                    let frame = self.stream.0.get(report.sequence.0 as usize - 1);
                    let fits = frame.is_some_and(|frame| Frame::digest_of(frame) == report.digest);
                    let event = Event::ReportChecked(report, fits);
                    self.answers.push((event, self.incarnation));
                }
                Command::Purge { .. } | Command::Warn(_) => {}
                Command::Restart(restart) => self.over = Some(restart.streaming_off),
                // Nothing shuts down here.
                Command::ProbeSource => {
                    let event = Event::Probed(ProbeAnswer::Other);
                    self.answers.push((event, self.incarnation));
                }
                Command::AskSubtransactions { xid, asked } => {
                    let answer = match !self.calm && self.dice.one_in(10) {
                        true => Err("no answer in time".to_owned()),
                        false => Ok(self.walsender.script.rolled_back(xid.0, &asked)),
                    };
                    let event = Event::Subtransactions(answer);
                    self.answers.push((event, self.incarnation));
                }
                Command::Halt(halt) => panic!("{halt}"),
            }
        }
    }
}

fn script(seed: u64) -> Script {
    let mut dice = Dice(seed | 1);
    let mut steps = Vec::new();
    let mut open: Vec<(u32, u32)> = Vec::new();
    let mut xid = 700;
    for number in 0..(10 + dice.roll(40)) {
        xid += 1;
        let rows = |dice: &mut Dice, most: u64| -> Vec<Row> {
            (0..dice.roll(most))
                .map(|at| Row {
                    table: 1 + dice.roll(3) as u32,
                    value: format!("{number}.{at}.{}", "x".repeat(dice.roll(30) as usize)),
                })
                .collect()
        };
        match dice.roll(10) {
            0..4 => steps.push(Step::Commit {
                xid,
                rows: rows(&mut dice, 4),
            }),
            4 => steps.push(Step::Commit {
                xid,
                rows: rows(&mut dice, 60),
            }),
            5 => steps.push(Step::Keepalive),
            6 if !open.is_empty() => {
                let (xid, _) = open.remove(dice.roll(open.len() as u64) as usize);
                let commits = !dice.one_in(3);
                steps.push(Step::End { xid, commits });
            }
            7 if !open.is_empty() => {
                let at = dice.roll(open.len() as u64) as usize;
                let (of, subxid) = open[at];
                if of != subxid {
                    steps.push(match dice.one_in(2) {
                        true => Step::Rollback { xid: of, subxid },
                        false => Step::Forgotten { xid: of, subxid },
                    });
                    open[at].1 = of;
                }
            }
            8 if !open.is_empty() => {
                let at = dice.roll(open.len() as u64) as usize;
                if dice.one_in(2) {
                    open[at].1 = xid;
                }
                let (of, subxid) = open[at];
                let rows = rows(&mut dice, 25);
                steps.push(Step::Block {
                    xid: of,
                    subxid,
                    rows,
                });
            }
            _ => {
                open.push((xid, xid));
                let rows = rows(&mut dice, 25);
                steps.push(Step::Block {
                    xid,
                    subxid: xid,
                    rows,
                });
            }
        }
    }
    for (xid, _) in open {
        steps.push(Step::End { xid, commits: true });
    }
    Script { steps }
}

fn check(seed: u64, acknowledge: Acknowledge) {
    check_run(seed, acknowledge, false);
}

/// How many markers were void.
fn check_run(seed: u64, acknowledge: Acknowledge, prompt: bool) -> usize {
    let script = script(seed);
    let chain = World::run(
        &script,
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        acknowledge,
        prompt,
    );
    let mut done = Lsn::ZERO;
    let mut found = Vec::new();
    for transaction in &chain.transactions {
        // Once per incarnation at most, and always the same.
        if transaction.end > done {
            done = transaction.end;
            let identity = transaction.identity;
            found.push((identity.commit_lsn, transaction.changes.clone()));
        }
    }
    // A transaction of which every row was rolled back leaves chunks and a manifest when it was
    // streamed, and no trace when it was read after its commit.
    let mut committed = script.committed();
    committed.retain(|(_, rows)| !rows.is_empty());
    found.retain(|(_, rows)| !rows.is_empty());
    let same = found
        .iter()
        .zip(&committed)
        .take_while(|(a, b)| a == b)
        .count();
    assert!(
        found == committed,
        "seed {seed}: {} found, {} committed, {same} alike, then {:?} and {:?}",
        found.len(),
        committed.len(),
        found.get(same),
        committed.get(same),
    );
    chain.strays.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r2_published_streams_hold_exactly_what_was_committed(seed in any::<u64>()) {
        check(seed, Acknowledge::Published);
    }

    #[test]
    fn r2_applied_survives_a_broker_that_loses_its_tail(seed in any::<u64>()) {
        check(seed, Acknowledge::Applied);
    }
}

/// An old writer's copy took the place of the tail, which the broker had lost, right before the
/// marker.
#[test]
fn r2_applied_survives_a_tail_that_changes_below_the_marker() {
    let void = check_run(4_221_044_890_958_182_633, Acknowledge::Applied, true);
    assert_eq!(void, 1, "the script has that marker in it");
}

#[test]
fn c08_a_tail_of_a_newer_writer_ends_this_one() {
    let stream = Stream::new(Lsn(0x1000));
    let mut out = Vec::new();
    let start = stream.start(Incarnation(0), Lsn(0x1000));
    let mut machine = Machine::new(
        settings(Acknowledge::Published),
        start,
        Duration::ZERO,
        &mut out,
    );
    let Some(Command::Publish(publish)) = out.first().cloned() else {
        panic!("the marker comes first: {out:?}");
    };
    out.clear();
    let outcome = Outcome::WrongSequence { actual: None };
    let event = Event::Published {
        ordinal: publish.ordinal,
        attempt: 1,
        outcome,
    };
    machine.handle(Duration::ZERO, event, &mut out);
    assert_eq!(out, [Command::ReadTail]);
    out.clear();
    let mut tail = stream.tail();
    tail.sequence = StreamSequence(2);
    tail.incarnation = Incarnation(9);
    let answer = Event::Tail(TailAnswer::Frame(tail));
    machine.handle(Duration::ZERO, answer, &mut out);
    assert!(
        matches!(&out[..], [Command::Halt(halt)] if halt.code == HaltCode::Fenced),
        "C08: {out:?}"
    );
}
