use proptest::prelude::*;
use trellara_envelope::{Body, Timeline};

use super::testing::{Writer, on};
use super::*;

fn shop() -> (Writer, Machine) {
    let (writer, checkpoint, _) = Writer::genesis(0x100);
    (writer, Machine::at(Lane(0), &checkpoint))
}

#[track_caller]
fn halts(verdict: Verdict, code: HaltCode) {
    match verdict {
        Verdict::Halt(halt) => assert_eq!(halt.code, code, "{halt}"),
        other => panic!("expected {code}, got {other:?}"),
    }
}

#[test]
fn what_follows_the_checkpoint_is_applied() {
    let (mut writer, mut machine) = shop();
    assert_eq!(machine.frame(&writer.marker(0x100)), Verdict::Duplicate);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110, 0x120])),
        Verdict::Apply(0..2)
    );
    assert_eq!(machine.frame(&writer.heartbeat(0x130)), Verdict::Progress);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x140])),
        Verdict::Apply(0..1)
    );
    assert_eq!(machine.end_lsn(), Lsn(0x140));
    assert_eq!(machine.sequence(), StreamSequence(5));
}

#[test]
fn chunks_between_two_positional_frames_leave_a_hole_in_the_ordinals_only() {
    let (mut writer, mut machine) = shop();
    writer.chunks(3);
    assert_eq!(machine.frame(&writer.marker(0x100)), Verdict::Duplicate);
    writer.chunks(1);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110])),
        Verdict::Apply(0..1)
    );
}

#[test]
fn b38_the_same_transactions_published_again_are_duplicates() {
    let (mut writer, mut machine) = shop();
    let mut again = writer.clone();
    machine.frame(&writer.marker(0x100));
    machine.frame(&writer.bundle(&[0x110, 0x120]));
    again.sequence = writer.sequence;
    again.ordinal = writer.ordinal;
    again.incarnation = writer.incarnation;
    // A relay that lost its memory reads again from the slot and publishes behind the tail.
    assert_eq!(machine.frame(&again.marker(0x100)), Verdict::Duplicate);
    assert_eq!(
        machine.frame(&again.bundle(&[0x110, 0x120])),
        Verdict::Duplicate
    );
    assert_eq!(
        machine.end_lsn(),
        Lsn(0x120),
        "the position never goes back"
    );
    assert_eq!(
        machine.sequence(),
        StreamSequence(5),
        "c25: the transport half moves"
    );
    assert_eq!(machine.frame(&again.bundle(&[0x130])), Verdict::Apply(0..1));
}

#[test]
fn c21_the_applied_part_of_a_bundle_is_skipped() {
    let (mut writer, checkpoint, _) = Writer::genesis(0x100);
    let marker = writer.marker(0x100);
    let bundle = writer.bundle(&[0x110, 0x120, 0x130]);
    let mut inside = checkpoint;
    inside.end_lsn = Lsn(0x120);
    inside.transaction_end_lsn = Lsn(0x120);
    inside.transport.sequence = marker.sequence;
    inside.transport.ordinal = marker.frame.header.ordinal;
    inside.transport.incarnation = marker.frame.header.incarnation;
    inside.transport.digest = marker.digest;
    let mut machine = Machine::at(Lane(0), &inside);
    assert_eq!(machine.frame(&bundle), Verdict::Apply(2..3));
    assert_eq!(machine.end_lsn(), Lsn(0x130));
}

#[test]
fn a_checkpoint_inside_a_transaction_is_a_fork() {
    let (mut writer, checkpoint, _) = Writer::genesis(0x100);
    let mut inside = checkpoint;
    inside.end_lsn = Lsn(0x11c);
    inside.transaction_end_lsn = Lsn(0x11c);
    let mut machine = Machine::at(Lane(0), &inside);
    machine.frame(&writer.marker(0x100));
    halts(
        machine.frame(&writer.bundle(&[0x110, 0x120])),
        HaltCode::Fork,
    );
}

#[test]
fn another_transaction_where_ours_ended_is_a_fork() {
    let (mut writer, checkpoint, _) = Writer::genesis(0x100);
    let mut ahead = checkpoint;
    ahead.end_lsn = Lsn(0x118);
    ahead.transaction_end_lsn = Lsn(0x118);
    let mut machine = Machine::at(Lane(0), &ahead);
    machine.frame(&writer.marker(0x100));
    // 0x110 ends below, 0x130 begins behind 0x118; but no transaction ends at 0x118.
    halts(
        machine.frame(&writer.bundle(&[0x110, 0x130])),
        HaltCode::Fork,
    );
}

#[test]
fn c22_a_checkpoint_moved_by_a_heartbeat_cuts_a_republished_bundle() {
    let (mut writer, checkpoint, _) = Writer::genesis(0x100);
    let mut beaten = checkpoint;
    beaten.end_lsn = Lsn(0x118);
    beaten.transaction_end_lsn = Lsn(0x110);
    let mut machine = Machine::at(Lane(0), &beaten);
    machine.frame(&writer.marker(0x100));
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110, 0x130])),
        Verdict::Apply(1..2)
    );
}

#[test]
fn c23_a_frame_that_was_not_delivered_is_missing_not_a_gap() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    let undelivered = writer.bundle(&[0x110]);
    let next = writer.bundle(&[0x120]);
    assert_eq!(machine.frame(&next), Verdict::Missing);
    assert_eq!(machine.frame(&undelivered), Verdict::Apply(0..1));
    assert_eq!(machine.frame(&next), Verdict::Apply(0..1));
}

#[test]
fn a_marker_that_was_not_delivered_is_missing() {
    let (mut writer, mut machine) = shop();
    let marker = writer.marker(0x100);
    let bundle = writer.bundle(&[0x110]);
    assert_eq!(machine.frame(&bundle), Verdict::Missing);
    assert_eq!(machine.frame(&marker), Verdict::Duplicate);
    assert_eq!(machine.frame(&bundle), Verdict::Apply(0..1));
}

#[test]
fn b49_a_frame_delivered_twice_moves_nothing() {
    let (mut writer, mut machine) = shop();
    let marker = writer.marker(0x100);
    let bundle = writer.bundle(&[0x110]);
    machine.frame(&marker);
    machine.frame(&bundle);
    assert_eq!(machine.frame(&bundle), Verdict::Redelivered);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x120])),
        Verdict::Apply(0..1)
    );
}

#[test]
fn a_consumer_moved_back_by_an_operator_reads_duplicates_up_to_the_position() {
    let (mut writer, mut machine) = shop();
    let frames = [
        writer.marker(0x100),
        writer.bundle(&[0x110]),
        writer.marker(0x110),
        writer.bundle(&[0x120]),
    ];
    for frame in &frames {
        machine.frame(frame);
    }
    for frame in &frames[1..] {
        let verdict = machine.frame(frame);
        assert!(
            matches!(verdict, Verdict::Redelivered | Verdict::Reopens),
            "{verdict:?}"
        );
    }
    assert_eq!(
        machine.frame(&writer.bundle(&[0x130])),
        Verdict::Apply(0..1)
    );
}

#[test]
fn frames_of_a_writer_that_was_taken_over_are_passed_over() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    let mut old = writer.clone();
    machine.frame(&writer.marker(0x100));
    old.sequence = writer.sequence;
    old.ordinal = writer.ordinal;
    old.previous = writer.previous;
    let before = machine.sequence();
    // It may be reading from an old primary, too.
    old.history.timeline = Timeline(9);
    let landed = old.bundle(&[0x110]);
    assert!(
        matches!(machine.frame(&landed), Verdict::Overtaken(halt) if halt.code == HaltCode::Fork)
    );
    assert_eq!(machine.sequence(), before, "nothing moves");
    // The relay goes on behind it with a new marker, from where its own flow ended.
    writer.sequence = old.sequence;
    assert_eq!(machine.frame(&writer.marker(0x100)), Verdict::Duplicate);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110, 0x120])),
        Verdict::Apply(0..2),
        "what landed counts for nothing"
    );
}

#[test]
fn a_frame_that_names_another_predecessor_is_a_fork() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    writer.previous = FrameDigest([1; 16]);
    halts(machine.frame(&writer.bundle(&[0x110])), HaltCode::Fork);
}

#[test]
fn c26_a_marker_at_or_below_the_checkpoint_heals_a_stream_that_lost_frames() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    let before_the_loss = writer.clone();
    machine.frame(&writer.bundle(&[0x110]));
    machine.frame(&writer.bundle(&[0x120, 0x130]));
    // Both bundles are lost; the sequences and ordinals come again with other contents.
    let mut writer = before_the_loss;
    assert_eq!(machine.frame(&writer.marker(0x100)), Verdict::Duplicate);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110, 0x120])),
        Verdict::Duplicate
    );
    assert_eq!(
        machine.frame(&writer.bundle(&[0x130, 0x140])),
        Verdict::Apply(1..2)
    );
}

/// The same where the new writer has a number that was given out before.
#[test]
fn c26_a_marker_at_a_place_already_passed_is_gone_back_to_when_the_stream_is_another() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    let before_the_loss = writer.clone();
    machine.frame(&writer.bundle(&[0x110]));
    machine.frame(&writer.marker(0x110));
    machine.frame(&writer.bundle(&[0x120]));
    let mut writer = before_the_loss;
    let marker = writer.marker(0x100);
    assert_eq!(machine.frame(&marker), Verdict::Reopens);
    assert_eq!(machine.reopen(&marker), Verdict::Duplicate);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110, 0x120])),
        Verdict::Duplicate
    );
    assert_eq!(
        machine.frame(&writer.bundle(&[0x130])),
        Verdict::Apply(0..1)
    );
}

#[test]
fn c26_a_marker_beyond_the_checkpoint_is_a_gap() {
    let (mut writer, mut machine) = shop();
    halts(machine.frame(&writer.marker(0x108)), HaltCode::Gap);
}

#[test]
fn c26_without_the_checkpoints_frame_reading_begins_at_a_marker() {
    let (mut writer, checkpoint, _) = Writer::genesis(0x100);
    let mut lost = checkpoint;
    lost.transport.sequence = StreamSequence(90);
    lost.transport.ordinal = FrameOrdinal(90);
    lost.transport.incarnation = Incarnation(4);
    let mut machine = Machine::before_marker(Lane(0), &lost);
    writer.incarnation = 4;
    assert_eq!(machine.frame(&writer.marker(0x100)), Verdict::Duplicate);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x110])),
        Verdict::Apply(0..1)
    );

    let mut machine = Machine::before_marker(Lane(0), &lost);
    writer.sequence = 95;
    assert_eq!(machine.frame(&writer.bundle(&[0x120])), Verdict::Missing);
}

#[test]
fn a_later_timeline_that_contains_the_checkpoint_goes_on() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    machine.frame(&writer.bundle(&[0x110]));
    writer.history.timeline = Timeline(2);
    writer.history.switches = vec![(Timeline(1), Lsn(0x118))];
    assert_eq!(machine.frame(&writer.marker(0x110)), Verdict::Duplicate);
    assert_eq!(machine.source(), on(2));
    assert_eq!(
        machine.frame(&writer.bundle(&[0x120])),
        Verdict::Apply(0..1)
    );
}

/// A consumer that was moved back delivers a marker again. Nobody goes back to it: frames up to the
/// last one may have been trimmed by now, and the checkpoint must not name one of them.
#[test]
fn c26_a_marker_that_comes_again_moves_nothing() {
    let (mut writer, mut machine) = shop();
    let marker = writer.marker(0x100);
    machine.frame(&marker);
    let bundle = writer.bundle(&[0x110]);
    machine.frame(&bundle);
    let stood = machine.last_seen();
    assert_eq!(stood, Some((bundle.sequence, bundle.digest)));
    assert_eq!(machine.frame(&marker), Verdict::Reopens);
    assert_eq!(machine.last_seen(), stood);
    assert_eq!(machine.frame(&bundle), Verdict::Redelivered);
}

/// The marker that says that the source failed over was not delivered: what follows it is on a
/// timeline that nobody has heard of, and yet no other course of events (C23).
#[test]
fn c23_a_frame_of_a_timeline_whose_marker_was_not_delivered_is_missing() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    machine.frame(&writer.bundle(&[0x110]));
    writer.history.timeline = Timeline(2);
    writer.history.switches = vec![(Timeline(1), Lsn(0x118))];
    let marker = writer.marker(0x110);
    let bundle = writer.bundle(&[0x120]);
    assert_eq!(machine.frame(&bundle), Verdict::Missing);
    assert_eq!(machine.frame(&marker), Verdict::Duplicate);
    assert_eq!(machine.frame(&bundle), Verdict::Apply(0..1));
}

#[test]
fn a_later_timeline_that_left_ours_below_the_checkpoint_diverges() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    machine.frame(&writer.bundle(&[0x110]));
    writer.history.timeline = Timeline(2);
    writer.history.switches = vec![(Timeline(1), Lsn(0x108))];
    halts(machine.frame(&writer.marker(0x110)), HaltCode::Diverged);
}

#[test]
fn c01_another_server_with_the_same_timeline_number_diverges() {
    let (mut writer, mut machine) = shop();
    writer.history.timeline = Timeline(2);
    writer.history.switches = vec![(Timeline(1), Lsn(0x100))];
    machine.frame(&writer.marker(0x100));
    machine.frame(&writer.bundle(&[0x110]));
    assert_eq!(machine.frame(&writer.marker(0x110)), Verdict::Duplicate);
    writer.history.switches = vec![(Timeline(1), Lsn(0x108))];
    halts(machine.frame(&writer.marker(0x110)), HaltCode::Diverged);
}

#[test]
fn another_cluster_diverges() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    writer.history.system.0 += 1;
    halts(machine.frame(&writer.bundle(&[0x110])), HaltCode::Diverged);
}

#[test]
fn a_bundle_that_contradicts_itself_is_corrupt() {
    let (mut writer, machine) = shop();
    writer.marker(0x100);
    let damaged = |change: fn(&mut Frame)| {
        let mut writer = writer.clone();
        let mut bundle = writer.bundle(&[0x110, 0x120]);
        change(&mut bundle.frame);
        halts(machine.clone().frame(&bundle), HaltCode::Corrupt);
    };
    damaged(|frame| frame.payload = bytes::Bytes::from_static(b"x"));
    damaged(|frame| frame.header.position = Lsn(0x118));
    damaged(|frame| frame.header.lane = Lane(1));
    damaged(|frame| frame.header.follows = Lsn(0x200));
    damaged(|frame| {
        if let Body::Bundle(entries) = &mut frame.body {
            entries.swap(0, 1);
        }
    });
}

#[test]
fn c55_a_flow_that_is_cut_into_lanes_is_refused_by_name() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.marker(0x100));
    let mut bundle = writer.bundle(&[0x110]);
    bundle.frame.header.lanes = vec![trellara_envelope::LaneLink {
        lane: Lane(0),
        ordinal: FrameOrdinal(1),
        follows: Lsn(0x100),
        previous: FrameDigest::default(),
    }];
    halts(machine.frame(&bundle), HaltCode::Config);
}

#[test]
fn chunks_are_left_aside() {
    let (mut writer, mut machine) = shop();
    let mut chunk = writer.marker(0x100);
    chunk.frame.body = Body::Abort(trellara_envelope::Abort {
        xid: trellara_envelope::Xid(1),
        number: 0,
        whole: true,
        ranges: Vec::new(),
        earlier: None,
    });
    assert_eq!(machine.frame(&chunk), Verdict::Aside);
    assert_eq!(machine.sequence(), StreamSequence(1));
}

/// What a relay may do to a stream between two frames that an applier reads.
#[derive(Debug, Clone)]
enum Deed {
    Bundle(u8),
    Heartbeat,
    Chunks(u8),
    Restart,
    /// The stream falls back to an earlier state, and a new incarnation reads on from the slot.
    Lose(u8),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        4 => (1u8..5).prop_map(Deed::Bundle),
        1 => Just(Deed::Heartbeat),
        1 => (1u8..4).prop_map(Deed::Chunks),
        1 => Just(Deed::Restart),
        1 => (1u8..4).prop_map(Deed::Lose),
    ];
    proptest::collection::vec(deed, 1..40)
}

proptest! {
    /// Whatever the relay and the broker do, short of losing what the target lacks: each
    /// transaction of the source is applied exactly once, in order.
    #[test]
    fn every_transaction_is_applied_once_and_in_order(deeds in deeds()) {
        let (mut writer, checkpoint, _) = Writer::genesis(0x100);
        let mut machine = Machine::at(Lane(0), &checkpoint);
        let mut applied: Vec<u64> = Vec::new();
        let mut source: Vec<u64> = Vec::new();
        // End of the source's log: what a lost heartbeat said stays true.
        let mut log_end = 0x100;
        let mut earlier: Vec<Writer> = Vec::new();
        let mut read = |machine: &mut Machine, frame: &Delivered| {
            match machine.frame(frame) {
                Verdict::Apply(range) => {
                    let Body::Bundle(entries) = &frame.frame.body else { unreachable!() };
                    applied.extend(entries[range].iter().map(|entry| entry.end_lsn.0));
                }
                Verdict::Halt(halt) => panic!("{halt}"),
                Verdict::Missing => panic!("missing"),
                _ => {}
            }
        };
        read(&mut machine, &writer.marker(0x100));
        for deed in deeds {
            earlier.push(writer.clone());
            match deed {
                Deed::Bundle(count) => {
                    // Published again after a loss, or new from the source.
                    let mut again: Vec<u64> = source.iter().copied()
                        .filter(|end| *end > writer.position).collect();
                    while again.len() < usize::from(count) {
                        let new = log_end + 32;
                        log_end = new;
                        source.push(new);
                        again.push(new);
                    }
                    again.truncate(usize::from(count));
                    let frame = writer.bundle(&again);
                    read(&mut machine, &frame);
                }
                Deed::Heartbeat => {
                    // Only a position beyond everything unpublished may be beaten.
                    if source.last().is_none_or(|last| *last <= writer.position) {
                        log_end += 16;
                        let frame = writer.heartbeat(log_end);
                        read(&mut machine, &frame);
                    }
                }
                Deed::Chunks(count) => writer.chunks(u64::from(count)),
                Deed::Restart => {
                    let at = writer.position;
                    let frame = writer.marker(at);
                    read(&mut machine, &frame);
                }
                Deed::Lose(count) => {
                    let back = earlier.len().saturating_sub(usize::from(count));
                    let incarnation = writer.incarnation;
                    writer = earlier[back].clone();
                    earlier.truncate(back);
                    writer.incarnation = incarnation;
                    let at = writer.position;
                    let frame = writer.marker(at);
                    read(&mut machine, &frame);
                }
            }
        }
        prop_assert_eq!(applied, source);
    }
}
