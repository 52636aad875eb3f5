//! A flow, a relay and a broker that misbehave as far as they may, and runs that fence the lane.

use proptest::prelude::*;
use trellara_envelope::{Lane, StreamSequence};

use super::tests::{at, below};
use super::*;
use crate::checkpoint::{Checkpoint, Transport};
use crate::machine::continues_at;
use crate::machine::testing::Writer;

#[derive(Debug, Clone)]
enum Deed {
    Bundle(u8),
    Large(u8),
    Heartbeat,
    /// The relay begins anew.
    Restart,
    /// The stream falls back, and a new incarnation reads on from the slot.
    Lose(u8),
    /// A run asks for a cap so many bytes away, then wants the lane so many further on.
    Fence(u8),
    Exact(u8),
    Release,
    /// The applier begins anew at its checkpoint; the fence, if any, is still there.
    Begin,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        6 => (1u8..5).prop_map(Deed::Bundle),
        2 => (0u8..3).prop_map(Deed::Large),
        2 => Just(Deed::Heartbeat),
        1 => Just(Deed::Restart),
        1 => (1u8..4).prop_map(Deed::Lose),
        3 => any::<u8>().prop_map(Deed::Fence),
        3 => any::<u8>().prop_map(Deed::Exact),
        2 => Just(Deed::Release),
        1 => Just(Deed::Begin),
    ];
    proptest::collection::vec(deed, 1..60)
}

/// An applier without a database: the machine, the cap, and what is durable.
struct Applier {
    machine: Machine,
    durable: Checkpoint,
    cap: Option<Cap>,
    held: Option<Delivered>,
    applied: Vec<u64>,
    /// The sequence to read next.
    next: u64,
}

impl Applier {
    fn read(&mut self, stream: &[Delivered]) {
        while self.held.is_none() {
            if self.next > stream.last().map_or(0, |last| last.sequence.0) + 1 {
                self.begin(stream);
            }
            let Some(frame) = stream.iter().find(|frame| frame.sequence.0 >= self.next) else {
                return;
            };
            self.next = frame.sequence.0 + 1;
            self.judge(frame.clone(), stream);
        }
    }

    fn judge(&mut self, frame: Delivered, stream: &[Delivered]) {
        let entries = entries(&frame.frame.body);
        if let Some(cap) = self.cap {
            match self.machine.cut(&frame, cap) {
                Cut::Whole => {}
                Cut::Held => {
                    self.held = Some(frame);
                    return;
                }
                Cut::Part(part) => {
                    self.apply(&entries[part.clone()]);
                    self.machine.stand_at(cap.lsn, end_of(&entries[part]));
                    self.stand();
                    self.held = Some(frame);
                    return;
                }
            }
        }
        match self.machine.frame(&frame) {
            Verdict::Apply(range) => self.apply(&entries[range]),
            Verdict::Progress | Verdict::Duplicate => {}
            Verdict::Redelivered | Verdict::Reopens => return,
            verdict => {
                let seen = self.machine.last_seen().expect("a frame");
                let there = |one: &Delivered| (one.sequence, one.digest) == seen;
                assert!(!stream.iter().any(there), "{verdict:?}");
                // The stream lost it behind our back: the place is found anew.
                return self.begin(stream);
            }
        }
        let header = &frame.frame.header;
        self.durable.transport = Transport {
            sequence: frame.sequence,
            incarnation: header.incarnation,
            ordinal: header.ordinal,
            digest: frame.digest,
            ..self.durable.transport.clone()
        };
        self.stand();
    }

    fn stand(&mut self) {
        self.durable.end_lsn = self.machine.end_lsn();
        self.durable.transaction_end_lsn = self.machine.transaction_end_lsn();
    }

    fn apply(&mut self, entries: &[BundleEntry]) {
        for entry in entries {
            if let Some(cap) = self.cap {
                assert!(entry.commit_lsn < cap.lsn, "beyond {}", cap.lsn);
            }
            self.applied.push(entry.end_lsn.0);
        }
    }

    /// As [`crate::position::find`] does.
    fn begin(&mut self, stream: &[Delivered]) {
        self.held = None;
        let transport = &self.durable.transport;
        let place = (transport.sequence, transport.digest);
        if stream.iter().any(|one| (one.sequence, one.digest) == place) {
            self.machine = Machine::at(Lane(0), &self.durable);
            self.next = transport.sequence.0 + 1;
            return;
        }
        let heals = |one: &&Delivered| {
            let continues = continues_at(&one.frame.body);
            continues.is_some_and(|lsn| lsn <= self.durable.end_lsn)
        };
        let marker = stream.iter().rev().find(heals).expect("a marker");
        self.machine = Machine::before_marker(Lane(0), &self.durable);
        self.next = marker.sequence.0;
    }

    fn go_on(&mut self, stream: &[Delivered]) {
        if let Some(held) = self.held.take() {
            self.judge(held, stream);
        }
        self.read(stream);
    }
}

/// The next position that lies inside no commit record.
fn boundary(lsn: u64, source: &[u64]) -> u64 {
    let inside = source.iter().find(|end| **end - 8 < lsn && lsn < **end);
    inside.copied().unwrap_or(lsn)
}

/// What the source did, and what the relay made of it.
struct World {
    writer: Writer,
    source: Vec<u64>,
    log_end: u64,
    stream: Vec<Delivered>,
    earlier: Vec<(Writer, usize)>,
}

impl World {
    /// Ends of the next transactions to publish: those published before and lost come first.
    fn ends(&mut self, count: u8) -> Vec<u64> {
        let lost = self.source.iter().copied();
        let mut ends: Vec<u64> = lost.filter(|end| *end > self.writer.position).collect();
        while ends.len() < usize::from(count) {
            self.log_end += 32;
            self.source.push(self.log_end);
            ends.push(self.log_end);
        }
        ends.truncate(usize::from(count));
        ends
    }

    /// Whether everything that was committed is published.
    fn is_drained(&self) -> bool {
        self.source
            .last()
            .is_none_or(|last| *last <= self.writer.position)
    }

    fn publish(&mut self, deed: &Deed) {
        self.earlier.push((self.writer.clone(), self.stream.len()));
        match deed {
            Deed::Bundle(count) => {
                let ends = self.ends(*count);
                self.stream.push(self.writer.bundle(&ends));
            }
            Deed::Large(behind) => {
                let end = self.ends(1)[0];
                let mut position = end;
                if self.is_drained() || self.source.last() == Some(&end) {
                    position += u64::from(*behind) * 8;
                    self.log_end = self.log_end.max(position);
                }
                self.stream.push(self.writer.manifest(end, position));
            }
            Deed::Heartbeat if self.is_drained() => {
                self.log_end += 16;
                self.stream.push(self.writer.heartbeat(self.log_end));
            }
            Deed::Restart => {
                let at = self.writer.position;
                self.stream.push(self.writer.marker(at));
            }
            Deed::Lose(count) => {
                let back = self.earlier.len().saturating_sub(usize::from(*count));
                let incarnation = self.writer.incarnation;
                let length = self.earlier[back].1;
                self.writer = self.earlier[back].0.clone();
                self.earlier.truncate(back);
                self.stream.truncate(length);
                self.writer.incarnation = incarnation;
                let at = self.writer.position;
                self.stream.push(self.writer.marker(at));
            }
            _ => {}
        }
    }
}

proptest! {
    /// Whatever comes, and whoever fences the lane where: nothing beyond the cap is applied, the
    /// lane comes to stand at the cap exactly, and in the end each transaction was applied once and
    /// in order.
    #[test]
    fn c53_every_transaction_is_applied_once_and_none_beyond_a_cap(deeds in deeds()) {
        let (mut writer, durable, genesis) = Writer::genesis(0x100);
        let marker = writer.marker(0x100);
        let mut world = World {
            writer,
            source: Vec::new(),
            log_end: 0x100,
            stream: vec![genesis, marker],
            earlier: Vec::new(),
        };
        let mut applier = Applier {
            machine: Machine::at(Lane(0), &durable),
            next: durable.transport.sequence.0 + 1,
            durable,
            cap: None,
            held: None,
            applied: Vec::new(),
        };
        for deed in deeds.iter().chain([&Deed::Release, &Deed::Bundle(9), &Deed::Begin]) {
            world.publish(deed);
            let stands = applier.machine.end_lsn().0;
            match deed {
                Deed::Fence(bytes) => applier.cap = Some(below(stands + u64::from(*bytes))),
                Deed::Exact(bytes) => {
                    let lowest = applier.cap.map_or(stands, |cap| cap.lsn.0.max(stands));
                    let lsn = boundary(lowest + u64::from(*bytes), &world.source);
                    world.log_end = world.log_end.max(lsn);
                    applier.cap = applier.cap.map(|_| at(lsn));
                }
                Deed::Release => applier.cap = None,
                Deed::Begin => applier.begin(&world.stream),
                _ => {}
            }
            applier.go_on(&world.stream);
            if let (Some(cap), true) = (applier.cap, applier.held.is_some()) {
                prop_assert!(!cap.exact || applier.durable.end_lsn == cap.lsn);
            }
            if let Some(cap) = applier.cap.filter(|cap| cap.exact) {
                prop_assert!(applier.durable.end_lsn <= cap.lsn);
            }
        }
        while !world.is_drained() {
            world.publish(&Deed::Bundle(9));
        }
        applier.go_on(&world.stream);
        prop_assert_eq!(&applier.applied, &world.source);
        prop_assert!(applier.held.is_none());
        prop_assert_eq!(applier.durable.transport.sequence, StreamSequence(world.writer.sequence));
    }
}
