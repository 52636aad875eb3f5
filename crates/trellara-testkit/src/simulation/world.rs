//! One life: faults, then peace.

mod faults;

use std::time::Duration;

use trellara_envelope::{Frame, FrameDigest, Halt, HaltCode, Incarnation, Lsn};
use trellara_jetstream::publish::{Outcome, UnknownReason};
use trellara_relay::Acknowledge;
use trellara_relay::machine::{Event, FootingAnswer, StreamSpace, TailAnswer};

use super::Plan;
use super::applier::{Goes, Session};
use super::broker::Stream;
use super::counters::{Counters, Sometimes};
use super::dice::Dice;
use super::relay::{OnItsWay, Relay, TARGET, Wish, genesis};
use super::source::{Sent, Source};
use super::target::Target;

/// After this many calm steps everything must have ended well.
const CALM_STEPS: u32 = 6_000;
/// What a tick takes.
const TICK: Duration = Duration::from_millis(300);

pub(super) struct World {
    plan: Plan,
    traced: bool,
    dice: Dice,
    source: Source,
    stream: Stream,
    /// A copy of its store, taken earlier.
    copy: Option<Stream>,
    target: Target,
    relay: Option<Relay>,
    known: Incarnation,
    on_their_way: Vec<OnItsWay>,
    answers: Vec<(Event<'static>, Incarnation)>,
    /// Who has the lane, and who may still think so.
    appliers: [Option<Session>; 2],
    active: usize,
    now: Duration,
    calm: bool,
    /// The highest position of frames that the relay knows to be stored, or that are applied.
    proven: Lsn,
    /// The broker forgot what it had acknowledged.
    lost: bool,
    /// Something was taken away; the slot fell back.
    trimmed: bool,
    fell_back: bool,
    restored: bool,
    halted: Option<Halt>,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let source = Source::new();
        let frame = genesis(&source.history);
        let mut stream = Stream::default();
        let genesis = trellara_jetstream::publish::Outgoing {
            subject: super::relay::flow().mark_subject(),
            payload: frame.clone(),
            expected_last: trellara_envelope::StreamSequence(0),
            message_id: None,
            headers: Vec::new(),
        };
        stream.publish(&genesis, None);
        let target = Target::new(source.history.source(), FrameDigest::of(&frame));
        Self {
            plan,
            traced: std::env::var_os("TRELLARA_SIM_TRACE").is_some(),
            dice: Dice::new(plan.seed),
            proven: source.confirmed,
            source,
            stream,
            copy: None,
            target,
            relay: None,
            known: Incarnation(0),
            on_their_way: Vec::new(),
            answers: Vec::new(),
            appliers: [None, None],
            active: 0,
            now: Duration::ZERO,
            calm: false,
            lost: false,
            trimmed: false,
            fell_back: false,
            restored: false,
            halted: None,
        }
    }

    pub(super) fn live(mut self, counters: &mut Counters) -> Result<(), String> {
        counters.seeds += 1;
        for _ in 0..self.plan.faulty_steps {
            counters.steps += 1;
            self.step(counters)?;
        }
        while self.source.log.len() < self.plan.transactions as usize {
            self.source.commit(&mut self.dice);
        }
        self.calm = true;
        for _ in 0..CALM_STEPS {
            counters.steps += 1;
            self.step(counters)?;
            if self.is_done() {
                counters.count(Sometimes::Converged);
                return Ok(());
            }
            if let Some(halt) = self.halted.take() {
                return self.may_halt(&halt, counters);
            }
        }
        Err(format!(
            "it never ends: {} of {} applied, confirmed {}, relay {:?}, halted {:?}, checkpoint {:?}",
            self.target.effects.len(),
            self.source.log.len(),
            self.source.confirmed,
            self.relay.as_ref().map(|relay| relay.machine.status()),
            self.halted,
            self.target.checkpoint,
        ))
    }

    /// Everything is applied, and the source was told so.
    fn is_done(&self) -> bool {
        let end = self.source.log.last().map_or(Lsn(0), |last| last.end);
        self.target.effects.len() == self.source.log.len()
            && self.source.confirmed >= end
            && self.on_their_way.is_empty()
    }

    /// Only what the broker lost of what the source has already forgotten ends in a halt.
    fn may_halt(&self, halt: &Halt, counters: &mut Counters) -> Result<(), String> {
        let published = self.plan.acknowledge() == Acknowledge::Published;
        if halt.code == HaltCode::StreamLostTail && published && self.lost {
            counters.count(Sometimes::HaltedLostTail);
            return Ok(());
        }
        // Three faults at once, and nothing left to tell it from a source that was set back: fail
        // closed.
        if halt.code == HaltCode::SourceRewound && self.lost && self.trimmed && self.fell_back {
            counters.count(Sometimes::HaltedUndecided);
            return Ok(());
        }
        Err(format!("halted: {halt}"))
    }

    fn step(&mut self, counters: &mut Counters) -> Result<(), String> {
        if self.relay.is_none() && self.halted.is_none() {
            return self.begin_relay(counters);
        }
        match self.dice.roll(16) {
            0 | 1 => self.commit_source(),
            2..5 => self.send(counters)?,
            5..8 => self.broker(counters),
            8..11 => self.answer(counters)?,
            11 => self.tick(counters)?,
            12..15 => self.apply(counters)?,
            _ if self.calm => self.apply(counters)?,
            _ => self.fault(counters)?,
        }
        Ok(())
    }

    /// What happens, for whoever looks for a cause: `TRELLARA_SIM_TRACE=1`.
    #[expect(clippy::print_stderr, reason = "asked for")]
    fn trace(&self, what: impl Fn() -> String) {
        if self.traced {
            eprintln!("{}", what());
        }
    }

    fn commit_source(&mut self) {
        if self.source.log.len() < self.plan.transactions as usize {
            self.source.commit(&mut self.dice);
        } else if !self.calm {
            self.source.write_other(&mut self.dice);
        }
    }

    fn begin_relay(&mut self, counters: &mut Counters) -> Result<(), String> {
        let at = (&self.stream, &mut self.source);
        match Relay::begin(at, self.plan.acknowledge(), (self.known, self.now)) {
            Ok((relay, wishes)) => {
                self.known = relay.incarnation;
                self.trace(|| {
                    format!(
                        "relay {:?} begins, the slot at {}",
                        self.known, self.source.confirmed
                    )
                });
                if self.plan.acknowledge() == Acknowledge::Published {
                    // It was read from the stream, so it is stored.
                    self.proven = self.proven.max(relay.machine.status().lsn_published);
                }
                self.relay = Some(relay);
                self.grant(wishes, counters)
            }
            Err(halt) => {
                self.halted = Some(halt);
                Ok(())
            }
        }
    }

    fn end_relay(&mut self, counters: &mut Counters) {
        self.trace(|| format!("the relay {:?} ends", self.known));
        if self.relay.take().is_some() {
            counters.count(Sometimes::RelayRestarted);
            if !self.on_their_way.is_empty() {
                counters.count(Sometimes::FramesInFlight);
            }
        }
    }

    fn event(&mut self, event: Event<'_>, counters: &mut Counters) -> Result<(), String> {
        let Some(relay) = &mut self.relay else {
            return Ok(());
        };
        let wishes = relay.event(self.now, event, &self.stream);
        self.grant(wishes, counters)
    }

    fn grant(&mut self, wishes: Vec<Wish>, counters: &mut Counters) -> Result<(), String> {
        for wish in wishes {
            match wish {
                Wish::Publish(publish) => self.on_their_way.push(*publish),
                Wish::Confirm(flush) => self.confirm(flush)?,
                Wish::Answer(event) => {
                    let event = self.or_none(event, counters);
                    self.answers.push((event, self.known));
                }
                Wish::Again => self.end_relay(counters),
                Wish::Halt(halt) => {
                    self.end_relay(counters);
                    self.halted = Some(halt);
                }
            }
        }
        Ok(())
    }

    /// A question that is sometimes not answered.
    fn or_none(&mut self, event: Event<'static>, counters: &mut Counters) -> Event<'static> {
        if self.calm || !self.dice.one_in(6) {
            return event;
        }
        let why = "no leader".to_owned();
        let failed = match event {
            Event::Tail(_) => Event::Tail(TailAnswer::Failed(why)),
            Event::Footing(_) => Event::Footing(FootingAnswer::Failed(why)),
            other => return other,
        };
        counters.count(Sometimes::NoLeader);
        failed
    }

    /// R1 and R2.
    fn confirm(&mut self, flush: Lsn) -> Result<(), String> {
        if flush > self.proven.max(self.source.confirmed) {
            return Err(format!("R2: {flush} confirmed, {} is proven", self.proven));
        }
        self.source.confirm(flush)
    }

    fn send(&mut self, counters: &mut Counters) -> Result<(), String> {
        let wants = |relay: &Relay| relay.machine.wants_input();
        if !self.relay.as_ref().is_some_and(wants) {
            return Ok(());
        }
        let many = 1 + self.dice.roll(3);
        for _ in 0..many {
            let more = self.source.has_more();
            match self.source.send() {
                Sent::Transaction(messages, again) => {
                    if again {
                        counters.count(Sometimes::SentAgain);
                    }
                    for message in &messages {
                        self.event(Event::CopyData(message), counters)?;
                    }
                }
                Sent::Keepalive(message) => self.event(Event::CopyData(&message), counters)?,
            }
            if !more || !self.relay.as_ref().is_some_and(wants) {
                break;
            }
        }
        self.event(Event::GulpEnd, counters)
    }

    /// The broker takes the oldest message, loses it, or nobody hears its answer.
    fn broker(&mut self, counters: &mut Counters) {
        if self.on_their_way.is_empty() {
            return;
        }
        let twice = !self.calm && self.dice.one_in(30);
        let message = match twice {
            true => self.on_their_way[0].clone(),
            false => self.on_their_way.remove(0),
        };
        let unknown = Outcome::Unknown {
            reason: UnknownReason::Timeout,
        };
        let outcome = match self.calm {
            true => self.store(&message, counters),
            false => match self.dice.roll(40) {
                0 => {
                    counters.count(Sometimes::PublishLost);
                    unknown
                }
                1 => {
                    self.store(&message, counters);
                    counters.count(Sometimes::AnswerLost);
                    unknown
                }
                2 => {
                    counters.count(Sometimes::StreamFull);
                    Outcome::Full
                }
                3 => {
                    counters.count(Sometimes::NoLeader);
                    Outcome::NoStream
                }
                _ => self.store(&message, counters),
            },
        };
        if twice {
            counters.count(Sometimes::ArrivedTwice);
        }
        let event = Event::Published {
            ordinal: message.publish.ordinal,
            attempt: message.publish.attempt,
            outcome,
        };
        self.answers.push((event, message.of));
    }

    fn store(&mut self, message: &OnItsWay, counters: &mut Counters) -> Outcome {
        let reuses = self.stream.reuses();
        let outcome = self
            .stream
            .publish(&message.outgoing(), message.follows.as_deref());
        self.trace(|| {
            let frame = Frame::decode(&message.publish.payload).expect("ours");
            format!(
                "{} at {} to {}: {:?} attempt {} of {:?} behind {:?}: {outcome:?}",
                frame.body.kind().as_str(),
                frame.header.follows,
                frame.header.position,
                message.publish.ordinal,
                message.publish.attempt,
                message.of,
                message.publish.expected_last
            )
        });
        match &outcome {
            Outcome::Stored { sequence } => {
                self.prove(sequence.0);
                if super::relay::is_void(&self.stream, sequence.0) {
                    counters.count(Sometimes::VoidMarker);
                }
                if reuses {
                    counters.count(Sometimes::SequenceReused);
                }
            }
            _ if message.of < self.known => counters.count(Sometimes::Zombie),
            _ => {}
        }
        outcome
    }

    /// An answer arrives, not necessarily the oldest.
    fn answer(&mut self, counters: &mut Counters) -> Result<(), String> {
        if self.answers.is_empty() {
            return Ok(());
        }
        let at = self.dice.roll(self.answers.len() as u64) as usize;
        let (event, of) = self.answers.remove(at);
        if of != self.known || self.relay.is_none() {
            return Ok(());
        }
        if let Event::Tail(TailAnswer::Frame(tail) | TailAnswer::Before(tail, _)) = &event
            && self.plan.acknowledge() == Acknowledge::Published
        {
            self.proven = self.proven.max(tail.position);
        }
        self.event(event, counters)
    }

    fn prove(&mut self, sequence: u64) {
        let frame = self.stream.get(sequence);
        let frame = frame.and_then(|message| Frame::decode(&message.payload).ok());
        // In `applied` only the target proves anything.
        if let Some(frame) = frame
            && self.plan.acknowledge() == Acknowledge::Published
        {
            self.proven = self.proven.max(frame.header.position);
        }
    }

    fn tick(&mut self, counters: &mut Counters) -> Result<(), String> {
        self.now += TICK;
        self.event(Event::Tick, counters)?;
        self.event(Event::MembershipPassed, counters)?;
        let floor = self
            .relay
            .as_ref()
            .map(|relay| relay.machine.status().last_sequence)
            .unwrap_or_default();
        let space = StreamSpace {
            last_sequence: trellara_envelope::StreamSequence(self.stream.last()),
            ..StreamSpace::default()
        };
        let target = Some(TARGET.to_owned());
        let event = Event::Stream {
            space,
            target,
            floor,
        };
        self.event(event, counters)?;
        if let Some(session) = &self.appliers[self.active] {
            let report = session.report();
            if self.plan.acknowledge() == Acknowledge::Applied {
                self.proven = self.proven.max(report.end_lsn);
            }
            let before = self.source.confirmed;
            self.event(Event::Report(report), counters)?;
            if self.source.confirmed > before {
                counters.count(Sometimes::Reported);
            }
        }
        if self.dice.one_in(3) {
            self.source.save_slot();
        }
        if !self.calm && self.dice.one_in(4) {
            self.trim(counters);
        }
        Ok(())
    }

    /// One of the appliers does something.
    fn apply(&mut self, counters: &mut Counters) -> Result<(), String> {
        let who = match self.calm || self.dice.roll(4) > 0 {
            true => self.active,
            false => 1 - self.active,
        };
        if self.appliers[who].is_none() {
            if who == self.active {
                return self.begin_applier(who, counters);
            }
            return Ok(());
        }
        let session = self.appliers[who].as_mut().expect("it is there");
        let full = session.has_pending() && self.dice.one_in(3);
        let goes = match full {
            true => session.commit(&mut self.target, (&mut self.dice, self.calm), counters),
            false => session.deliver(
                (&self.stream, &self.target),
                (&mut self.dice, self.calm),
                counters,
            )?,
        };
        if full {
            self.trace(|| {
                let transport = &self.target.checkpoint.transport;
                format!(
                    "applier {who} wrote; the target is at {}",
                    transport.sequence
                )
            });
            counters.commits += 1;
            self.target.holds_a_prefix(&self.source.log)?;
        }
        match goes {
            Goes::On => {}
            Goes::Idle => {
                // Nothing comes: what is accepted is written down.
                let session = self.appliers[who].as_mut().expect("it is there");
                if session.has_pending() {
                    let dice = (&mut self.dice, self.calm);
                    if let Goes::Anew = session.commit(&mut self.target, dice, counters) {
                        self.appliers[who] = None;
                    }
                    self.target.holds_a_prefix(&self.source.log)?;
                }
            }
            Goes::Anew => self.appliers[who] = None,
            Goes::Stands(halt) => {
                self.appliers[who] = None;
                self.stands(&halt)?;
            }
        }
        Ok(())
    }

    /// Some halts are looked at again; the others nobody but an operator ends.
    fn stands(&mut self, halt: &Halt) -> Result<(), String> {
        self.trace(|| format!("the applier stands still: {halt}"));
        match halt.code {
            // The relay may be about to write the marker that heals it.
            HaltCode::Gap | HaltCode::Fork => Ok(()),
            _ => Err(format!("the applier halted: {halt}")),
        }
    }

    fn begin_applier(&mut self, who: usize, counters: &mut Counters) -> Result<(), String> {
        match Session::begin(&self.stream, &mut self.target, counters) {
            Ok(session) => {
                self.appliers[who] = Some(session);
                self.active = who;
                Ok(())
            }
            Err(halt) => self.stands(&halt),
        }
    }
}
