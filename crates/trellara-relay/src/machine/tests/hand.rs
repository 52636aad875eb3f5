//! A machine and a stream, driven by hand.

use std::time::Duration;

use trellara_envelope::{FrameKind, HaltCode, Incarnation, Lsn};
use trellara_jetstream::publish::Outcome;

use super::source::{Row, Script, Step, Walsender};
use super::stream::{Stream, settings};
use crate::Acknowledge;
use crate::machine::{
    Command, Event, LastTransaction, Machine, Publish, Settings, Start, TailAnswer,
};

pub(super) const START: Lsn = Lsn(0x1000);

/// A machine and a stream, driven by hand; everything published is stored and acknowledged unless
/// the test says otherwise.
pub(super) struct Hand {
    pub(super) machine: Machine,
    pub(super) stream: Stream,
    pub(super) now: Duration,
    /// What the machine said besides publishing.
    pub(super) said: Vec<Command>,
    /// What is on its way and not answered, where the test asks for it.
    pub(super) held: Option<Vec<Publish>>,
    /// The broker has no room for anything.
    pub(super) full: bool,
}

impl Hand {
    pub(super) fn new(settings: Settings) -> Self {
        Self::resuming(settings, Stream::new(START), START)
    }

    pub(super) fn resuming(settings: Settings, stream: Stream, confirmed: Lsn) -> Self {
        let mut out = Vec::new();
        let start = stream.start(Incarnation(0), confirmed);
        let machine = Machine::new(settings, start, Duration::ZERO, &mut out);
        let mut hand = Self {
            machine,
            stream,
            now: Duration::ZERO,
            said: Vec::new(),
            held: None,
            full: false,
        };
        hand.carry_out(out);
        hand
    }

    /// Another relay on the same stream.
    pub(super) fn begin_again(&mut self, last: LastTransaction, confirmed: Lsn) {
        let mut start = self.stream.start(Incarnation(0), confirmed);
        start.last_transaction = last;
        self.begin(start);
    }

    pub(super) fn begin(&mut self, start: Start) {
        let settings = settings(Acknowledge::Published);
        let mut out = Vec::new();
        self.machine = Machine::new(settings, start, self.now, &mut out);
        self.carry_out(out);
    }

    pub(super) fn event(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.machine.handle(self.now, event, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, commands: Vec<Command>) {
        // What was said together is heard before anything that follows from it.
        let (publishes, others): (Vec<Command>, Vec<Command>) = commands
            .into_iter()
            .partition(|command| matches!(command, Command::Publish(_)));
        for command in others.into_iter().chain(publishes) {
            match (command, &mut self.held) {
                (Command::Publish(publish), Some(held)) => held.push(publish),
                (Command::Publish(publish), None) => {
                    let outcome = match self.full {
                        true => Outcome::Full,
                        false => self.stream.publish(&publish),
                    };
                    self.answer(&publish, outcome);
                }
                (Command::ReadFooting(at), _) => {
                    let answer = self.stream.footing(at);
                    self.event(Event::Footing(answer));
                }
                (Command::ReadTail, None) => {
                    let tail = self.stream.tail();
                    self.event(Event::Tail(TailAnswer::Frame(tail)));
                }
                (command, _) => self.said.push(command),
            }
        }
    }

    pub(super) fn answer(&mut self, publish: &Publish, outcome: Outcome) {
        self.event(Event::Published {
            ordinal: publish.ordinal,
            attempt: publish.attempt,
            outcome,
        });
    }

    pub(super) fn send(&mut self, walsender: &mut Walsender<'_>) {
        let payloads = walsender.next().expect("the script goes on");
        for payload in payloads {
            self.event(Event::CopyData(&payload));
        }
        self.event(Event::GulpEnd);
    }

    /// Sends commits of one row, none of which is acknowledged, until the machine wants no more;
    /// how many it took.
    pub(super) fn fill_window(&mut self) -> usize {
        let step = |xid| Step::Commit {
            xid,
            rows: rows(1, 100),
        };
        let script = Script {
            steps: (700..1_000).map(step).collect(),
        };
        let mut walsender = Walsender::new(&script, START);
        self.held = Some(Vec::new());
        let mut sent = 0;
        while self.machine.wants_input() {
            self.send(&mut walsender);
            sent += 1;
        }
        sent
    }

    pub(super) fn kinds(&self) -> Vec<FrameKind> {
        (1..=self.stream.0.len())
            .map(|at| self.stream.frame(at).body.kind())
            .collect()
    }

    pub(super) fn flushes(&self) -> Vec<Lsn> {
        let feedback = self.said.iter().filter_map(|said| match said {
            Command::Feedback { feedback, .. } => Some(feedback.flush),
            _ => None,
        });
        feedback.collect()
    }

    pub(super) fn halted(&self) -> Option<HaltCode> {
        self.said.iter().find_map(|said| match said {
            Command::Halt(halt) => Some(halt.code),
            _ => None,
        })
    }
}

pub(super) fn rows(count: usize, bytes: usize) -> Vec<Row> {
    (0..count)
        .map(|_| Row {
            table: 1,
            value: "x".repeat(bytes),
        })
        .collect()
}

pub(super) fn one_commit() -> Script {
    let rows = rows(1, 3);
    Script {
        steps: vec![Step::Commit { xid: 700, rows }],
    }
}
