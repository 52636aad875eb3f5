//! A relay: the shipped machine and resume table, and what their loop would do.

use std::collections::BTreeSet;
use std::time::Duration;

use trellara_envelope::{
    Body, FlowName, Frame, FrameDigest, Genesis, Halt, Incarnation, Lsn, Marker, Oid,
    SourceHistory, StreamSequence,
};
use trellara_jetstream::publish::Outgoing;
use trellara_relay::machine::{
    Command, Event, FootingAnswer, LastTransaction, Machine, ProbeAnswer, Publish, Settings, Start,
    StreamSpace, Tail, TailAnswer,
};
use trellara_relay::resume::{self, Facts, Outcome as Decision, StreamEnd};
use trellara_relay::{Acknowledge, genesis_frame};
use trellara_source::publication::{PublicationFacts, members_digest};
use trellara_source::slot::SlotFacts;

use super::broker::{Stream, Writer};
use super::source::{BEGIN, Source};

pub(super) fn flow() -> FlowName {
    "shop".parse().expect("a flow name")
}

pub(super) const TARGET: &str = "target@1";

/// A message on its way to the broker.
#[derive(Debug, Clone)]
pub(super) struct OnItsWay {
    pub(super) publish: Publish,
    pub(super) follows: Option<String>,
    pub(super) of: Incarnation,
}

impl OnItsWay {
    pub(super) fn outgoing(&self) -> Outgoing {
        outgoing(&self.publish)
    }
}

fn outgoing(publish: &Publish) -> Outgoing {
    Outgoing {
        subject: publish.subject.clone(),
        payload: publish.payload.clone(),
        expected_last: publish.expected_last,
        message_id: publish.message_id.clone(),
        headers: Vec::new(),
    }
}

/// What the relay wants of the world.
pub(super) enum Wish {
    Publish(Box<OnItsWay>),
    Confirm(Lsn),
    Answer(Event<'static>),
    Again,
    Halt(Halt),
}

#[derive(Debug)]
pub(super) struct Relay {
    pub(super) machine: Machine,
    pub(super) incarnation: Incarnation,
    writer: Writer,
}

/// The genesis frame that setup writes.
pub(super) fn genesis(history: &SourceHistory) -> bytes::Bytes {
    let genesis = Genesis {
        history: history.clone(),
        slot: "s".into(),
        publication: "p".into(),
        consistent_point: BEGIN,
        copy_epoch: 0,
        continues_at: BEGIN,
    };
    genesis_frame(flow(), genesis).encode()
}

fn settings(acknowledge: Acknowledge) -> Settings {
    Settings {
        flow: flow(),
        acknowledge,
        message_ids: true,
        window_bytes: 4_000,
        bundle_bytes: 600,
        chunk_bytes: 300,
        unfinished_bytes: 700,
        open_bytes: None,
        shutdown_grace: Duration::from_secs(10),
        heartbeat_interval: Duration::from_secs(1),
        membership_interval: Duration::from_secs(30),
        max_payload: 1 << 20,
    }
}

fn publication() -> PublicationFacts {
    PublicationFacts {
        oid: Oid(1),
        inserts: true,
        updates: true,
        deletes: true,
        truncates: true,
        via_partition_root: false,
        all_tables: false,
        members: Vec::new(),
    }
}

fn decoded(stream: &Stream, at: u64) -> Option<(Frame, FrameDigest)> {
    let message = stream.get(at)?;
    let frame = Frame::decode(&message.payload).ok()?;
    Some((frame, Frame::digest_of(&message.payload)))
}

/// Whether a marker stands on another frame than it names.
pub(super) fn is_void(stream: &Stream, at: u64) -> bool {
    let Some((frame, _)) = decoded(stream, at) else {
        return false;
    };
    if !matches!(frame.body, Body::Marker(_)) {
        return false;
    }
    let named = frame.header.previous;
    match decoded(stream, at.saturating_sub(1)) {
        // Removed, which only somebody does who has read the marker too.
        None => false,
        Some((_, digest)) if digest == named => false,
        Some(_) => end_up_to(stream, at - 1).is_some_and(|(_, _, digest)| digest != named),
    }
}

/// The stream's end for a relay that is running: what it continues is in its own memory.
fn raw_tail(stream: &Stream) -> Option<(Tail, u64)> {
    let (at, _) = stream.last_up_to(stream.last())?;
    let (frame, digest) = decoded(stream, at)?;
    let tail = Tail {
        sequence: StreamSequence(stream.last()),
        ordinal: frame.header.ordinal,
        digest,
        position: frame.header.position,
        incarnation: frame.header.incarnation,
    };
    Some((tail, at))
}

/// The flow's last frame up to a sequence: below markers that are void.
fn end_up_to(stream: &Stream, up_to: u64) -> Option<(u64, Frame, FrameDigest)> {
    let mut up_to = up_to;
    loop {
        let (at, _) = stream.last_up_to(up_to)?;
        if !is_void(stream, at) {
            let (frame, digest) = decoded(stream, at)?;
            return Some((at, frame, digest));
        }
        up_to = at - 1;
    }
}

/// The stream's tail, and where its frame stands.
fn tail(stream: &Stream) -> Option<(Tail, u64)> {
    let (newest, _) = raw_tail(stream)?;
    let (at, frame, digest) = end_up_to(stream, stream.last())?;
    let tail = Tail {
        ordinal: frame.header.ordinal,
        digest,
        position: frame.header.position,
        ..newest
    };
    Some((tail, at))
}

fn last_transaction(stream: &Stream) -> LastTransaction {
    let subject = flow().transactions_subject(trellara_envelope::Lane(0));
    let found = stream.last_on(|other| other == subject);
    let known = found.and_then(|(_, message)| {
        let frame = Frame::decode(&message.payload).ok()?;
        match frame.body {
            Body::Bundle(entries) => entries.last().map(|entry| entry.identity()),
            Body::Manifest(manifest) => Some(manifest.identity()),
            _ => None,
        }
    });
    let after = found.map_or(1, |(at, _)| at);
    match (known, stream.get(1)) {
        _ if passed_lost(stream, after) => LastTransaction::Trimmed,
        (Some(known), _) => LastTransaction::Known(known),
        (None, Some(_)) => LastTransaction::None,
        (None, None) => LastTransaction::Trimmed,
    }
}

/// Whether a marker behind `after` goes on further than the frame before it had come.
fn passed_lost(stream: &Stream, after: u64) -> bool {
    (after + 1..=stream.last()).any(|at| {
        let Some((frame, _)) = decoded(stream, at) else {
            return false;
        };
        let Body::Marker(marker) = &frame.body else {
            return false;
        };
        decoded(stream, at - 1).is_some_and(|(before, digest)| {
            digest == frame.header.previous && before.header.position < marker.continues_at
        })
    })
}

/// The marker of the newest writer: the first frame of its incarnation that is there.
fn marker(stream: &Stream, newest: Incarnation) -> Option<Marker> {
    let mut from = 0;
    loop {
        let (at, _) = stream.next_from(from, |_| true)?;
        let (frame, _) = decoded(stream, at)?;
        if frame.header.incarnation >= newest {
            return match frame.body {
                Body::Marker(marker) => Some(marker),
                _ => None,
            };
        }
        from = at + 1;
    }
}

impl Relay {
    /// Takes the slot, asks the table, and publishes its marker. `known` is the highest incarnation
    /// that this process has begun.
    pub(super) fn begin(
        (stream, source): (&Stream, &mut Source),
        acknowledge: Acknowledge,
        (known, now): (Incarnation, Duration),
    ) -> Result<(Self, Vec<Wish>), Halt> {
        let end = tail(stream);
        let facts = Facts {
            slot: Some(slot(source.confirmed)),
            database: "shop".to_owned(),
            history: source.history.clone(),
            flush: Some(source.flush),
            stream: match &end {
                None => StreamEnd::Empty,
                Some((tail, at)) => {
                    let (frame, _) = decoded(stream, *at).expect("it was read");
                    StreamEnd::At(tail.clone(), frame.header.source)
                }
            },
            publication: Some(publication()),
            marker: end
                .as_ref()
                .and_then(|(tail, _)| marker(stream, tail.incarnation)),
            existing: BTreeSet::new(),
        };
        let (tail, confirmed) = match resume::decide(&facts) {
            Decision::GoOn(tail, confirmed) => (tail, confirmed),
            Decision::Refuse(halt) => return Err(halt),
            Decision::FirstStart | Decision::NotASource => unreachable!("slot, stream, primary"),
        };
        source.start();
        let incarnation = Incarnation(known.max(tail.incarnation).0 + 1);
        let start = Start {
            incarnation,
            marker: Marker {
                history: source.history.clone(),
                continues_at: Lsn::ZERO,
                publication: Oid(1),
                publication_flags: publication().flags(),
                members_digest: members_digest(&[]),
                members: Vec::new(),
            },
            history: source.history.clone(),
            tail_at: StreamSequence(end.map_or(0, |(_, at)| at)),
            last_transaction: last_transaction(stream),
            confirmed,
            target: Some(TARGET.to_owned()),
            space: StreamSpace::default(),
            tail,
        };
        let mut out = Vec::new();
        let machine = Machine::new(settings(acknowledge), start, now, &mut out);
        let mut relay = Self {
            machine,
            incarnation,
            writer: Writer::default(),
        };
        let wishes = relay.wishes(out, stream);
        Ok((relay, wishes))
    }

    pub(super) fn event(&mut self, now: Duration, event: Event<'_>, stream: &Stream) -> Vec<Wish> {
        let mut out = Vec::new();
        self.machine.handle(now, event, &mut out);
        self.wishes(out, stream)
    }

    fn wishes(&mut self, commands: Vec<Command>, stream: &Stream) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for command in commands {
            wishes.push(match command {
                Command::Publish(publish) => {
                    let follows = self.writer.follow(&outgoing(&publish));
                    Wish::Publish(Box::new(OnItsWay {
                        publish,
                        follows,
                        of: self.incarnation,
                    }))
                }
                Command::Feedback { feedback, .. } => Wish::Confirm(feedback.flush),
                Command::ReadTail => Wish::Answer(Event::Tail(match raw_tail(stream) {
                    None => TailAnswer::Gone,
                    Some((tail, at)) if at == tail.sequence.0 => TailAnswer::Frame(tail),
                    Some((tail, at)) => TailAnswer::Before(tail, StreamSequence(at)),
                })),
                Command::ReadFooting(at) => {
                    Wish::Answer(Event::Footing(match decoded(stream, at.0) {
                        Some((_, digest)) => FootingAnswer::Frame(digest),
                        None => FootingAnswer::Missing,
                    }))
                }
                Command::CheckReport(report) => {
                    let there = decoded(stream, report.sequence.0);
                    let fits = there.is_some_and(|(_, digest)| digest == report.digest);
                    Wish::Answer(Event::ReportChecked(report, fits))
                }
                Command::ProbeSource => Wish::Answer(Event::Probed(ProbeAnswer::Other)),
                Command::AskSubtransactions { .. } => Wish::Answer(Event::Subtransactions(Ok(
                    trellara_envelope::AbortedSet::new(),
                ))),
                Command::Restart(_) => Wish::Again,
                Command::Halt(halt) => Wish::Halt(halt),
                Command::Purge { .. } | Command::Warn(_) => continue,
            });
        }
        wishes
    }
}

fn slot(confirmed: Lsn) -> SlotFacts {
    SlotFacts {
        plugin: Some("pgoutput".to_owned()),
        database: Some("shop".to_owned()),
        two_phase: false,
        temporary: false,
        active_pid: None,
        confirmed_flush: Some(confirmed),
        restart_lsn: Some(confirmed),
        wal_status: Some("reserved".to_owned()),
        safe_wal_size: None,
        invalidation_reason: None,
        failover: true,
    }
}
