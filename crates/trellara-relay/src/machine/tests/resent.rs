//! What the source sends again is compared with what is in the stream (C02).

use std::time::Duration;

use trellara_envelope::{CommitTime, FrameKind, HaltCode, Lsn, TransactionIdentity, Xid};

use super::hand::{Hand, START, one_commit};
use super::source::{Script, Step, Walsender, keepalive};
use super::stream::settings;
use crate::Acknowledge;
use crate::machine::{Event, LastTransaction};

/// A stream with one transaction of the script in it, and the slot fallen back to the start.
fn resumed(last: impl FnOnce(&mut TransactionIdentity)) -> Hand {
    let script = one_commit();
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.send(&mut Walsender::new(&script, START));
    let LastTransaction::Known(mut identity) = hand.stream.last_transaction() else {
        panic!("it was published");
    };
    last(&mut identity);
    hand.begin_again(LastTransaction::Known(identity), START);
    hand
}

#[test]
fn c02_the_tails_last_transaction_must_come_by_unchanged() {
    let script = one_commit();
    let mut hand = resumed(|_| {});
    hand.send(&mut Walsender::new(&script, START));
    assert_eq!(hand.halted(), None);
    let bundles = hand.kinds();
    let bundles = bundles.iter().filter(|kind| **kind == FrameKind::Bundle);
    assert_eq!(bundles.count(), 1, "and is dropped");
    let mut hand = resumed(|identity| identity.commit_time = CommitTime(1));
    hand.send(&mut Walsender::new(&script, START));
    assert_eq!(hand.halted(), Some(HaltCode::SourceRewound), "another time");
    let mut hand = resumed(|identity| identity.xid = Xid(1));
    hand.send(&mut Walsender::new(&script, START));
    assert_eq!(hand.halted(), Some(HaltCode::SourceRewound), "another id");
}

#[test]
fn c02_the_tails_last_transaction_must_come_by_at_all() {
    let mut hand = resumed(|_| {});
    hand.event(Event::CopyData(&keepalive(Lsn(0x9000), false)));
    assert_eq!(hand.halted(), Some(HaltCode::SourceRewound));
}

/// A bundle of a fenced writer is the newest one in the stream, and no part of the flow (R3).
#[test]
fn c02_a_last_transaction_behind_the_tail_is_nobodys() {
    let mut hand = resumed(|identity| identity.commit_lsn = Lsn(0x5000));
    hand.send(&mut Walsender::new(&one_commit(), START));
    hand.event(Event::CopyData(&keepalive(Lsn(0x9000), false)));
    assert_eq!(hand.halted(), None);
}

#[test]
fn c02_nothing_is_confirmed_before_the_source_has_proven_itself() {
    let known = Lsn(START.0 + 0x40);
    let mut hand = resumed(|_| {});
    hand.said.clear();
    hand.event(Event::CopyData(&keepalive(START, true)));
    assert_eq!(hand.flushes(), [START], "the marker's position is not it");
    hand.send(&mut Walsender::new(&one_commit(), START));
    hand.event(Event::CopyData(&keepalive(known, false)));
    assert_eq!(hand.flushes().last(), Some(&known), "at once when it has");
}

#[test]
fn c02_a_source_that_was_set_back_is_refused_again_after_a_restart() {
    let mut hand = resumed(|_| {});
    let last = hand.stream.last_transaction();
    for start in 0..3 {
        hand.said.clear();
        hand.now += Duration::from_secs(2);
        hand.event(Event::Tick);
        let confirmed = hand.flushes().into_iter().max().expect("a feedback");
        assert_eq!(
            confirmed, START,
            "start {start}: the slot stays where it is"
        );
        hand.event(Event::CopyData(&keepalive(Lsn(0x9000), false)));
        assert_eq!(hand.halted(), Some(HaltCode::SourceRewound));
        hand.begin_again(last, confirmed);
    }
}

#[test]
fn c02_a_logical_message_is_not_a_change_that_was_never_published() {
    // The messages began to be sent when the stream stood behind them already.
    let script = Script {
        steps: vec![Step::Logical { xid: 699 }],
    };
    let mut hand = resumed(|identity| identity.commit_lsn = Lsn(0xF00));
    hand.send(&mut Walsender::new(&script, START));
    assert_eq!(hand.halted(), None);
}

#[test]
fn c02_a_last_transaction_of_only_a_message_is_recognised() {
    let script = Script {
        steps: vec![Step::Logical { xid: 699 }],
    };
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.send(&mut Walsender::new(&script, START));
    let last = hand.stream.last_transaction();
    hand.begin_again(last, START);
    hand.send(&mut Walsender::new(&script, START));
    hand.event(Event::CopyData(&keepalive(Lsn(0x9000), false)));
    assert_eq!(hand.halted(), None);
}

#[test]
fn c02_nothing_may_come_between_the_last_transaction_and_the_tail() {
    // The stream's last transaction lies before the one that is sent again below the tail.
    let mut hand = resumed(|identity| identity.commit_lsn = Lsn(0xF00));
    hand.send(&mut Walsender::new(&one_commit(), START));
    assert_eq!(hand.halted(), Some(HaltCode::SourceRewound));
}
