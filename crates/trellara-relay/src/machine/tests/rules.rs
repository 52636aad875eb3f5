//! Rules that only the machine can show, each with a test named after it.

use std::time::Duration;

use trellara_envelope::{
    Body, CopyOrder, FrameKind, HaltCode, Incarnation, LaneEpoch, Lsn, StreamSequence,
};
use trellara_jetstream::publish::Outcome;

use super::hand::{Hand, START, one_commit, rows};
use super::source::{Row, Script, Step, Walsender, keepalive};
use super::stream::{Stream, flow, history, settings};
use crate::Acknowledge;
use crate::machine::{
    Command, Event, FootingAnswer, LastTransaction, Machine, StreamSpace, TailAnswer,
};

fn order(holds_lane: bool) -> CopyOrder {
    CopyOrder {
        flow: flow(),
        target: "target@1".to_owned(),
        epoch: LaneEpoch(2),
        holds_lane,
        wanted: Vec::new(),
        trimmed_to: 0,
        removed: Vec::new(),
        mac: Vec::new(),
    }
}

/// While the lane waits for a copy, what is stored counts as applied; from nobody but the registered
/// target, from no applier that is over, and not for longer than it says so.
#[test]
fn c29_what_is_stored_is_confirmed_while_the_lane_waits_for_a_copy() {
    let mut hand = Hand::new(settings(Acknowledge::Applied));
    let script = one_commit();
    hand.send(&mut Walsender::new(&script, START));
    let published = hand.machine.status().lsn_published;
    assert!(published > START);
    let confirmed = |hand: &Hand| hand.machine.status().lsn_confirmed;
    for not_ours in [
        order(false),
        CopyOrder {
            target: "other@2".to_owned(),
            ..order(true)
        },
        CopyOrder {
            flow: "other".parse().expect("a name"),
            ..order(true)
        },
        CopyOrder {
            epoch: LaneEpoch(1),
            ..order(true)
        },
    ] {
        hand.event(Event::CopyOrder(not_ours));
        assert_eq!(confirmed(&hand), START);
    }
    hand.event(Event::CopyOrder(order(true)));
    assert_eq!(confirmed(&hand), published);
    assert_eq!(hand.flushes().last(), Some(&published), "told at once");
}

/// A target that was restored has lower epochs than before. Whoever had the higher one is silent by
/// then, and nobody waits for it for ever.
#[test]
fn c29_a_target_that_went_back_is_obeyed_once_the_higher_epoch_is_silent() {
    for (seconds, obeyed) in [(9, false), (10, true)] {
        let mut hand = Hand::new(settings(Acknowledge::Applied));
        let script = one_commit();
        let higher = CopyOrder {
            epoch: LaneEpoch(7),
            ..order(false)
        };
        hand.event(Event::CopyOrder(higher));
        hand.send(&mut Walsender::new(&script, START));
        let published = hand.machine.status().lsn_published;
        assert!(published > START);
        hand.now += Duration::from_secs(seconds);
        hand.event(Event::CopyOrder(order(true)));
        let expected = if obeyed { published } else { START };
        let confirmed = hand.machine.status().lsn_confirmed;
        assert_eq!(confirmed, expected, "after {seconds} s");
    }
}

/// An id names the flow, the frame's number and its bytes: the same transaction in another bundle,
/// or the same places of another history, is never taken for one that is stored.
#[test]
fn b40_an_id_is_a_frames_alone() {
    let ids = |mut settings: crate::machine::Settings, flow: &str, text: &str| {
        settings.flow = flow.parse().expect("a name");
        let mut hand = Hand::new(settings);
        hand.held = Some(Vec::new());
        let rows = vec![Row {
            table: 1,
            value: text.to_owned(),
        }];
        let steps = vec![Step::Commit { xid: 700, rows }];
        hand.send(&mut Walsender::new(&Script { steps }, START));
        let held = hand.held.take().unwrap_or_default();
        let ids: Vec<String> = held.into_iter().filter_map(|p| p.message_id).collect();
        assert!(!ids.is_empty());
        ids
    };
    let published = || settings(Acknowledge::Published);
    let first = ids(published(), "shop", "one");
    assert_eq!(first, ids(published(), "shop", "one"));
    for others in [
        ids(published(), "shop", "two"),
        ids(published(), "other", "one"),
    ] {
        assert!(
            first.iter().all(|id| !others.contains(id)),
            "{first:?} {others:?}"
        );
    }
}

#[test]
fn c29_an_order_holds_for_ten_seconds() {
    for (seconds, holds) in [(9, true), (10, false)] {
        let mut hand = Hand::new(settings(Acknowledge::Applied));
        hand.event(Event::CopyOrder(order(true)));
        hand.now += Duration::from_secs(seconds);
        hand.event(Event::Tick);
        let script = one_commit();
        hand.send(&mut Walsender::new(&script, START));
        let status = hand.machine.status();
        assert_eq!(status.lsn_confirmed > START, holds, "{seconds} s");
    }
}

/// The broker loses the tail and takes another frame in its place before the marker is stored.
#[test]
fn c03_nothing_follows_from_a_marker_that_stands_on_another_frame() {
    let [lost, mut hand] = [0x3000, 0x2000].map(|position| {
        let mut hand = Hand::new(settings(Acknowledge::Published));
        hand.event(Event::MembershipPassed);
        hand.event(Event::SynchronousStandby(true));
        hand.event(Event::CopyData(&keepalive(Lsn(position), false)));
        hand
    });
    assert_eq!(lost.stream.0.len(), hand.stream.0.len());
    hand.said.clear();
    hand.begin(lost.stream.start(Incarnation(0), START));
    let said = &hand.said[..];
    assert!(matches!(said, [Command::Restart(_)]), "{said:?}");

    // The next one goes on from below it.
    let start = hand.stream.start(Incarnation(0), START);
    assert_eq!(start.tail.position, Lsn(0x2000), "not what the marker says");
    assert_eq!(start.tail_at.next(), start.tail.sequence);
    assert!(start.incarnation > hand.stream.tail().incarnation);
    hand.begin_again(LastTransaction::None, START);
    assert!(hand.machine.wants_input());
    hand.stream.chain();
}

#[test]
fn c03_what_a_marker_stands_on_is_asked_for_until_it_is_answered() {
    let mut out = Vec::new();
    let mut stream = Stream::new(START);
    let start = stream.start(Incarnation(0), START);
    let settings = settings(Acknowledge::Published);
    let mut machine = Machine::new(settings, start, Duration::ZERO, &mut out);
    let Some(Command::Publish(marker)) = out.pop() else {
        panic!("the marker comes first");
    };
    let outcome = stream.publish(&marker);
    let stored = Event::Published {
        ordinal: marker.ordinal,
        attempt: marker.attempt,
        outcome,
    };
    machine.handle(Duration::ZERO, stored, &mut out);
    let asked = [Command::ReadFooting(StreamSequence(1))];
    assert_eq!(out, asked);
    let failed = Event::Footing(FootingAnswer::Failed("no leader".to_owned()));
    machine.handle(Duration::ZERO, failed, &mut out);
    machine.handle(Duration::from_millis(400), Event::Tick, &mut out);
    assert_eq!(out, asked, "not at once");
    assert!(!machine.wants_input());
    machine.handle(Duration::from_millis(500), Event::Tick, &mut out);
    assert_eq!(out.last(), asked.last());
    assert_eq!(out.len(), 2);
    let answer = Event::Footing(stream.footing(StreamSequence(1)));
    machine.handle(Duration::from_millis(500), answer, &mut out);
    assert!(machine.wants_input());
}

#[test]
fn c05_a_waiting_commit_gets_its_heartbeat_at_once() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.event(Event::MembershipPassed);
    hand.event(Event::SynchronousStandby(true));
    for end in [0x2000, 0x3000] {
        hand.event(Event::CopyData(&keepalive(Lsn(end), false)));
        assert_eq!(
            hand.flushes().last(),
            Some(&Lsn(end)),
            "without any time passing"
        );
    }
    hand.event(Event::SynchronousStandby(false));
    hand.event(Event::CopyData(&keepalive(Lsn(0x4000), false)));
    assert_eq!(
        hand.flushes().last(),
        Some(&Lsn(0x3000)),
        "then once an interval"
    );
    hand.now += Duration::from_secs(1);
    hand.event(Event::Tick);
    assert_eq!(hand.flushes().last(), Some(&Lsn(0x4000)));
}

#[test]
fn c05_an_idle_relay_asks_for_a_reply_once_a_second() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    for _ in 0..30 {
        hand.now += Duration::from_millis(100);
        hand.event(Event::Tick);
    }
    let asked = hand
        .said
        .iter()
        .filter(|said| matches!(said, Command::Feedback { reply: true, .. }));
    assert_eq!(asked.count(), 3);
}

#[test]
fn c06_no_heartbeat_while_the_members_are_unchecked() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.now += Duration::from_secs(2);
    hand.event(Event::CopyData(&keepalive(Lsn(0x2000), false)));
    assert_eq!(hand.kinds(), [FrameKind::Genesis, FrameKind::Marker]);
    hand.event(Event::MembershipPassed);
    assert_eq!(hand.kinds().last(), Some(&FrameKind::Heartbeat));
    hand.now += Duration::from_secs(36);
    hand.event(Event::CopyData(&keepalive(Lsn(0x3000), false)));
    assert_eq!(
        hand.flushes().last(),
        Some(&Lsn(0x2000)),
        "the check is overdue"
    );
}

#[test]
fn c06_members_that_cannot_be_checked_are_named_once_a_heartbeat_is_overdue() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    let waits = |hand: &Hand| {
        hand.machine
            .status()
            .waiting_for
            .contains("no connection left")
    };
    let unchecked = || Event::MembershipUnchecked("no connection left".to_owned());
    hand.event(unchecked());
    hand.now += Duration::from_secs(2);
    hand.event(Event::Tick);
    assert!(!waits(&hand), "the source is where the stream is");
    hand.event(Event::CopyData(&keepalive(Lsn(0x2000), true)));
    assert!(waits(&hand), "{:?}", hand.machine.status());
    hand.event(Event::MembershipPassed);
    assert!(!waits(&hand));
    hand.event(unchecked());
    hand.now += Duration::from_secs(30);
    hand.event(Event::CopyData(&keepalive(Lsn(0x3000), true)));
    assert!(!waits(&hand), "the last check still counts");
    hand.now += Duration::from_secs(6);
    hand.event(Event::CopyData(&keepalive(Lsn(0x4000), true)));
    assert!(waits(&hand), "{:?}", hand.machine.status());
}

#[test]
fn b04_a_keepalive_inside_a_transaction_confirms_nothing() {
    let script = one_commit();
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.event(Event::MembershipPassed);
    hand.now += Duration::from_secs(2);
    let mut payloads = walsender.next().expect("a transaction");
    let commit = payloads.pop().expect("its commit");
    for payload in &payloads {
        hand.event(Event::CopyData(payload));
    }
    hand.event(Event::CopyData(&keepalive(Lsn(0x9000), true)));
    hand.event(Event::GulpEnd);
    assert_eq!(
        hand.flushes(),
        [START, START],
        "answered, and nothing moved"
    );
    hand.event(Event::CopyData(&commit));
    hand.event(Event::GulpEnd);
    assert_eq!(hand.flushes().last(), Some(&Lsn(START.0 + 0x40)));
}

#[test]
fn c12_data_leaves_the_reserve_alone_and_goes_on_when_there_is_room() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    let full = |max_bytes| Event::Stream {
        space: StreamSpace {
            bytes: 90_000,
            max_bytes: Some(max_bytes),
            last_sequence: StreamSequence(2),
        },
        target: None,
        floor: StreamSequence(0),
    };
    hand.event(full(100_000));
    hand.event(Event::MembershipPassed);
    hand.now += Duration::from_secs(2);
    hand.event(Event::CopyData(&keepalive(START, false)));
    let script = one_commit();
    let mut walsender = Walsender::new(&script, START);
    hand.send(&mut walsender);
    assert_eq!(
        hand.kinds(),
        [FrameKind::Genesis, FrameKind::Marker],
        "the bundle waits"
    );
    assert!(
        hand.machine.status().waiting_for.contains("room"),
        "and says so"
    );
    hand.event(Event::CopyData(&keepalive(START, true)));
    assert_eq!(
        hand.flushes(),
        [START, START],
        "keepalives are answered all the same"
    );
    hand.event(full(200_000));
    assert_eq!(hand.kinds().last(), Some(&FrameKind::Bundle));
}

#[test]
fn c12_a_transaction_larger_than_the_stream_is_named_and_goes_on() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    let limited = |max_bytes| Event::Stream {
        space: StreamSpace {
            bytes: 1_000,
            max_bytes: Some(max_bytes),
            last_sequence: StreamSequence(2),
        },
        target: None,
        floor: StreamSequence(0),
    };
    hand.event(limited(10_000));
    let script = Script {
        steps: vec![Step::Commit {
            xid: 700,
            rows: rows(40, 100),
        }],
    };
    let mut walsender = Walsender::new(&script, START);
    hand.send(&mut walsender);
    let halt = hand.machine.status().halt.expect("named");
    assert_eq!(halt.code, HaltCode::StreamTooSmall);
    assert!(!hand.machine.is_over(), "it goes on by itself");
    hand.event(limited(1_000_000));
    assert_eq!(hand.machine.status().halt, None);
    assert_eq!(hand.kinds().last(), Some(&FrameKind::Manifest));
}

#[test]
fn c17_a_duplicate_at_another_sequence_is_doubt() {
    let script = one_commit();
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.held = Some(Vec::new());
    hand.send(&mut walsender);
    let publish = hand.held.take().expect("set").remove(0);
    hand.held = Some(Vec::new());
    let sequence = StreamSequence(1);
    hand.answer(&publish, Outcome::DuplicateAt { sequence });
    assert_eq!(hand.said.last(), Some(&Command::ReadTail));
    assert_eq!(hand.flushes(), [START], "and counts for nothing");
    let tail = hand.stream.tail();
    hand.event(Event::Tail(TailAnswer::Frame(tail)));
    let again = hand.held.take().expect("set").remove(0);
    assert_eq!(
        (again.payload, again.attempt),
        (publish.payload, 2),
        "the same bytes again"
    );
}

#[test]
fn r4_an_answer_that_was_overtaken_by_acknowledgements_is_not_loss() {
    let step = || Step::Commit {
        xid: 700,
        rows: rows(8, 100),
    };
    let script = Script {
        steps: vec![step(), step()],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.held = Some(Vec::new());
    hand.send(&mut walsender);
    hand.send(&mut walsender);
    let sent = hand.held.replace(Vec::new()).expect("set");
    assert!(sent.len() >= 2);
    hand.answer(&sent[sent.len() - 1], Outcome::NoStream);
    let early = hand.stream.tail();
    let outcome = hand.stream.publish(&sent[0]);
    hand.answer(&sent[0], outcome);
    hand.event(Event::Tail(TailAnswer::Frame(early)));
    assert!(!hand.machine.is_over());
    assert_eq!(hand.said.last(), Some(&Command::ReadTail), "it asks again");
}

#[test]
fn r4_what_was_removed_behind_our_own_frame_begins_another_incarnation() {
    let script = one_commit();
    for stored in [false, true] {
        let mut walsender = Walsender::new(&script, START);
        let mut hand = Hand::new(settings(Acknowledge::Published));
        hand.held = Some(Vec::new());
        hand.send(&mut walsender);
        let publish = hand.held.replace(Vec::new()).expect("set").remove(0);
        if stored {
            // Its acknowledgement is lost.
            hand.stream.publish(&publish);
        }
        hand.answer(&publish, Outcome::WrongSequence { actual: None });
        // A fenced writer's chunk took the next place and was purged with its incarnation.
        let mut tail = hand.stream.tail();
        let at = tail.sequence;
        tail.sequence = at.next();
        hand.event(Event::Tail(TailAnswer::Before(tail, at)));
        assert_eq!(hand.halted(), None, "nobody else writes");
        assert!(matches!(hand.said.last(), Some(Command::Restart(_))));
    }
}

#[test]
fn r4_our_own_frame_published_again_by_somebody_else_is_a_fork() {
    let script = one_commit();
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.held = Some(Vec::new());
    hand.send(&mut walsender);
    let publish = hand.held.replace(Vec::new()).expect("set").remove(0);
    hand.answer(&publish, Outcome::WrongSequence { actual: None });
    let mut tail = hand.stream.tail();
    tail.sequence = tail.sequence.next();
    hand.event(Event::Tail(TailAnswer::Frame(tail)));
    assert_eq!(hand.halted(), Some(HaltCode::Fork));
}

#[test]
fn c26_applied_goes_on_behind_a_lost_tail_and_says_from_where() {
    let ahead = Lsn(0x5000);
    let hand = Hand::resuming(settings(Acknowledge::Applied), Stream::new(START), ahead);
    assert_eq!(hand.halted(), None);
    let frame = hand.stream.frame(2);
    let Body::Marker(marker) = frame.body else {
        panic!("a marker");
    };
    assert_eq!(marker.continues_at, ahead);
    assert_eq!(
        (frame.header.follows, frame.header.position),
        (ahead, ahead)
    );
    assert_eq!(marker.history, history());
}

#[test]
fn c03_published_halts_only_after_its_own_marker() {
    let mut out = Vec::new();
    let stream = Stream::new(START);
    let start = stream.start(Incarnation(0), Lsn(0x5000));
    let machine = Machine::new(
        settings(Acknowledge::Published),
        start,
        Duration::ZERO,
        &mut out,
    );
    assert!(!machine.is_over(), "a stale tail would look the same");
    let hand = Hand::resuming(settings(Acknowledge::Published), stream, Lsn(0x5000));
    assert_eq!(hand.kinds().last(), Some(&FrameKind::Marker));
    assert_eq!(hand.halted(), Some(HaltCode::StreamLostTail));
}

#[test]
fn b24_a_stream_abort_that_nobody_asked_for_is_ignored() {
    let script = Script {
        steps: vec![
            Step::End {
                xid: 700,
                commits: false,
            },
            Step::Rollback {
                xid: 700,
                subxid: 701,
            },
        ],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.send(&mut walsender);
    hand.send(&mut walsender);
    assert_eq!(hand.halted(), None);
    assert_eq!(hand.kinds(), [FrameKind::Genesis, FrameKind::Marker]);
}

#[test]
fn b45_unacknowledged_frames_are_bounded_and_input_waits() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    let sent = hand.fill_window();
    assert!(sent < 300, "the window of 4,000 bytes is full long before");
    assert!(hand.machine.status().window_bytes < 2 * 4_000);
}
