use trellara_envelope::{Lane, Timeline};

use super::*;
use crate::machine::testing::{Writer, first_timeline};

fn shop() -> (Writer, Machine) {
    let (mut writer, checkpoint, _) = Writer::genesis(0x100);
    let mut machine = Machine::at(Lane(0), &checkpoint);
    machine.frame(&writer.marker(0x100));
    (writer, machine)
}

pub(super) fn at(lsn: u64) -> Cap {
    Cap {
        lsn: Lsn(lsn),
        exact: true,
    }
}

pub(super) fn below(lsn: u64) -> Cap {
    Cap {
        lsn: Lsn(lsn),
        exact: false,
    }
}

/// Cuts, stands there, and says what is left to apply when the fence is gone.
#[track_caller]
fn stand(machine: &mut Machine, next: &Delivered, cap: Cap) -> Verdict {
    let Cut::Part(part) = machine.cut(next, cap) else {
        panic!("not cut: {:?}", machine.cut(next, cap));
    };
    let entries = entries(&next.frame.body);
    machine.stand_at(cap.lsn, end_of(&entries[part]));
    assert_eq!(machine.end_lsn(), cap.lsn);
    assert_eq!(machine.cut(next, cap), Cut::Held, "once is enough");
    machine.clone().frame(next)
}

#[test]
fn c53_a_bundle_is_cut_between_two_transactions() {
    let (mut writer, machine) = shop();
    let bundle = writer.bundle(&[0x110, 0x120, 0x130]);
    assert_eq!(machine.cut(&bundle, at(0x130)), Cut::Whole);
    assert_eq!(
        machine.cut(&bundle, at(0x128)),
        Cut::Part(0..2),
        "begins there"
    );
    assert_eq!(
        machine.cut(&bundle, at(0x120)),
        Cut::Part(0..2),
        "ends there"
    );
    assert_eq!(machine.cut(&bundle, at(0x111)), Cut::Part(0..1));
    assert_eq!(machine.cut(&bundle, at(0x108)), Cut::Part(0..0));
    let mut stood = machine.clone();
    assert_eq!(stand(&mut stood, &bundle, at(0x124)), Verdict::Apply(2..3));
    // A later run cuts the rest.
    assert_eq!(
        stood.cut(&bundle, at(0x12f)),
        Cut::Held,
        "inside the commit record"
    );
    assert_eq!(stood.cut(&bundle, at(0x130)), Cut::Whole);
    assert_eq!(stand(&mut stood, &bundle, at(0x128)), Verdict::Apply(2..3));
}

#[test]
fn c53_a_position_inside_a_transactions_end_is_not_stood_at() {
    let (mut writer, machine) = shop();
    let bundle = writer.bundle(&[0x110, 0x120]);
    for lsn in 0x119..0x120 {
        assert_eq!(machine.cut(&bundle, at(lsn)), Cut::Held, "{lsn:x}");
    }
}

#[test]
fn c53_what_is_not_exact_holds_whole_frames() {
    let (mut writer, machine) = shop();
    let bundle = writer.bundle(&[0x110, 0x120]);
    assert_eq!(machine.cut(&bundle, below(0x120)), Cut::Whole);
    for lsn in [0, 0x100, 0x108, 0x11c, 0x11f] {
        assert_eq!(machine.cut(&bundle, below(lsn)), Cut::Held, "{lsn:x}");
    }
}

#[test]
fn c53_progress_beyond_the_cap_moves_to_the_cap() {
    let (mut writer, mut machine) = shop();
    machine.frame(&writer.bundle(&[0x110]));
    let beat = writer.heartbeat(0x180);
    assert_eq!(machine.cut(&beat, below(0x140)), Cut::Held);
    assert_eq!(stand(&mut machine, &beat, at(0x140)), Verdict::Progress);
    // The chain goes on behind it.
    machine.frame(&beat);
    assert_eq!(
        machine.frame(&writer.bundle(&[0x190])),
        Verdict::Apply(0..1)
    );
}

#[test]
fn c53_a_large_transaction_at_or_beyond_the_cap_waits_and_the_lane_stands_before_it() {
    let (mut writer, mut machine) = shop();
    let large = writer.manifest(0x200, 0x200);
    assert_eq!(machine.cut(&large, at(0x200)), Cut::Whole);
    assert_eq!(stand(&mut machine, &large, at(0x1f8)), Verdict::Apply(0..1));
    let (mut writer, mut machine) = shop();
    let large = writer.manifest(0x200, 0x240);
    assert_eq!(machine.cut(&large, at(0x200)), Cut::Part(0..1));
    assert_eq!(stand(&mut machine, &large, at(0x220)), Verdict::Progress);
}

#[test]
fn c53_what_was_applied_before_is_no_part() {
    let (mut writer, mut machine) = shop();
    let mut again = writer.clone();
    machine.frame(&writer.bundle(&[0x110, 0x120]));
    again.sequence = writer.sequence;
    again.ordinal = writer.ordinal;
    machine.frame(&again.marker(0x100));
    let bundle = again.bundle(&[0x110, 0x120, 0x130, 0x140]);
    assert_eq!(machine.cut(&bundle, at(0x130)), Cut::Part(2..3));
    assert_eq!(
        stand(&mut machine, &bundle, at(0x120 + 8)),
        Verdict::Apply(2..4)
    );
}

#[test]
fn frames_that_apply_nothing_are_none_of_the_caps_business() {
    let (mut writer, mut machine) = shop();
    let bundle = writer.bundle(&[0x110, 0x120]);
    let next = writer.bundle(&[0x130]);
    assert_eq!(machine.cut(&next, at(0x108)), Cut::Whole, "missing");
    machine.frame(&bundle);
    assert_eq!(machine.cut(&bundle, at(0x108)), Cut::Whole, "redelivered");
    assert_eq!(machine.cut(&next, at(0x108)), Cut::Held, "beyond already");
}

/// The new timeline begins below the cap: standing at the cap on the old one would look like
/// another course of events later.
#[test]
fn c53_a_timeline_that_ends_below_the_cap_is_not_stood_on() {
    for (switch, cut) in [(0x120, Cut::Held), (0x140, Cut::Part(0..0))] {
        let (mut writer, mut machine) = shop();
        machine.frame(&writer.bundle(&[0x110]));
        let mut history = first_timeline();
        history.switches.push((Timeline(1), Lsn(switch)));
        history.timeline = Timeline(2);
        writer.history = history;
        let mut beaten = writer.clone();
        beaten.position = 0x150;
        let mut marker = beaten.marker(0x110);
        marker.frame.header.follows = Lsn(0x110);
        assert_eq!(machine.cut(&marker, at(0x130)), cut, "{switch:x}");
    }
}
