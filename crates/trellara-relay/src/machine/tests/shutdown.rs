//! A source that shuts down waits for the relay only as long as the relay lets it (C04).

use std::time::Duration;

use trellara_envelope::{Incarnation, Lsn};

use super::hand::{Hand, START};
use super::source::keepalive;
use super::stream::{Stream, settings};
use crate::Acknowledge;
use crate::machine::{Command, Event, Machine, ProbeAnswer};

#[test]
fn c04_a_source_that_shuts_down_is_probed_and_let_go() {
    let mut hand = Hand::new(settings(Acknowledge::Applied));
    for _ in 0..=11 {
        hand.event(Event::CopyData(&keepalive(Lsn(0x2000), true)));
        hand.now += Duration::from_secs(1);
    }
    assert!(hand.said.contains(&Command::ProbeSource));
    hand.event(Event::Probed(ProbeAnswer::Other));
    assert!(!hand.machine.is_over(), "it only was slow");
    hand.event(Event::Probed(ProbeAnswer::ShuttingDown));
    assert!(hand.machine.is_over());
}

/// Ticks until the source is probed; how long that took.
fn ticks_until_probed(mut tick: impl FnMut(Duration) -> bool) -> Duration {
    let step = Duration::from_millis(100);
    let mut waited = Duration::ZERO;
    while waited < Duration::from_secs(30) {
        waited += step;
        if tick(step) {
            return waited;
        }
    }
    panic!("nobody asked the source");
}

#[test]
fn c04_a_source_is_probed_while_a_full_window_lets_nothing_be_read() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.fill_window();
    let grace = Duration::from_secs(10);
    for round in 0..2 {
        hand.said.clear();
        let waited = ticks_until_probed(|step| {
            hand.now += step;
            hand.event(Event::Tick);
            hand.said.contains(&Command::ProbeSource)
        });
        assert!(waited > grace, "round {round}: after {waited:?}");
        hand.event(Event::Probed(ProbeAnswer::Other));
        assert!(!hand.machine.is_over(), "it is only the broker");
    }
    hand.event(Event::Probed(ProbeAnswer::ShuttingDown));
    assert!(matches!(hand.said.last(), Some(Command::Restart(restart)) if !restart.streaming_off));
}

#[test]
fn c04_a_source_is_probed_while_the_marker_is_not_acknowledged() {
    let mut out = Vec::new();
    let mut now = Duration::ZERO;
    let start = Stream::new(START).start(Incarnation(0), START);
    let mut machine = Machine::new(settings(Acknowledge::Published), start, now, &mut out);
    ticks_until_probed(|step| {
        now += step;
        machine.handle(now, Event::Tick, &mut out);
        out.contains(&Command::ProbeSource)
    });
    let probe = Event::Probed(ProbeAnswer::ShuttingDown);
    machine.handle(now, probe, &mut out);
    assert!(matches!(out.last(), Some(Command::Restart(_))), "{out:?}");
}
