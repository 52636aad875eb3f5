//! The commit of a streamed transaction waits for the source's word on its subtransactions.

use trellara_envelope::{AbortedRange, AbortedSet, Body, FrameKind, Lsn, Xid};

use super::hand::{Hand, START, rows};
use super::source::{Script, Step, Walsender, keepalive};
use super::stream::settings;
use crate::Acknowledge;
use crate::machine::{Command, Event};

fn block(xid: u32, subxid: u32) -> Step {
    Step::Block {
        xid,
        subxid,
        rows: rows(2, 100),
    }
}

fn commit(xid: u32) -> Step {
    Step::End { xid, commits: true }
}

fn small(xid: u32) -> Step {
    Step::Commit {
        xid,
        rows: rows(1, 10),
    }
}

impl Hand {
    fn asked(&self) -> Vec<Command> {
        let asks = self.said.iter();
        let asks = asks.filter(|said| matches!(said, Command::AskSubtransactions { .. }));
        asks.cloned().collect()
    }

    fn last(&self) -> Body {
        self.stream.frame(self.stream.0.len()).body
    }
}

fn range(first: u32, last: u32) -> AbortedRange {
    AbortedRange {
        first: Xid(first),
        last: Xid(last),
    }
}

fn ask(xid: u32, asked: &[AbortedRange]) -> Command {
    Command::AskSubtransactions {
        xid: Xid(xid),
        asked: asked.to_vec(),
    }
}

/// All steps in one gulp.
fn gulp(hand: &mut Hand, script: &Script) {
    let mut walsender = Walsender::new(script, START);
    while let Some(payloads) = walsender.next() {
        for payload in payloads {
            hand.event(Event::CopyData(&payload));
        }
    }
    hand.event(Event::GulpEnd);
}

#[test]
fn nothing_passes_a_commit_about_which_the_source_is_asked() {
    let script = Script {
        steps: vec![
            block(700, 700),
            block(700, 701),
            block(700, 702),
            block(710, 711),
            small(720),
            commit(700),
            small(721),
            commit(710),
            small(722),
        ],
    };
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.event(Event::MembershipPassed);
    hand.event(Event::SynchronousStandby(true));
    gulp(&mut hand, &script);
    hand.event(Event::CopyData(&keepalive(Lsn(0x9000), false)));
    hand.event(Event::Tick);
    assert_eq!(hand.asked(), [ask(700, &[range(701, 702)])]);
    assert!(!hand.machine.wants_input());
    let before = hand.machine.status();
    assert!(before.waiting_for.contains("subtransactions"));
    assert_eq!(before.lsn_confirmed, script.at(5), "the end of 720");
    assert!(!hand.kinds().contains(&FrameKind::Manifest));

    let mut aborted = AbortedSet::new();
    aborted.insert(Xid(701));
    hand.event(Event::Subtransactions(Ok(aborted)));
    assert_eq!(hand.asked().last(), Some(&ask(710, &[range(711, 711)])));
    assert!(!hand.machine.wants_input(), "the next one is held");
    assert_eq!(hand.machine.status().lsn_confirmed, script.at(7));

    hand.event(Event::Subtransactions(Ok(AbortedSet::new())));
    assert!(hand.machine.wants_input());
    assert!(matches!(hand.last(), Body::Heartbeat(_)));
    assert_eq!(hand.machine.status().lsn_confirmed, Lsn(0x9000));
    let chain = hand.stream.chain();
    let found = chain.transactions.iter();
    let found: Vec<(u32, usize)> = found
        .map(|transaction| (transaction.identity.xid.0, transaction.changes.len()))
        .collect();
    assert_eq!(found, [(720, 1), (700, 4), (721, 1), (710, 2), (722, 1)]);
}

#[test]
fn nobody_is_asked_about_what_is_known() {
    let script = Script {
        steps: vec![
            block(700, 700),
            block(700, 701),
            Step::Rollback {
                xid: 700,
                subxid: 701,
            },
            commit(700),
        ],
    };
    let mut hand = Hand::new(settings(Acknowledge::Published));
    gulp(&mut hand, &script);
    assert_eq!(hand.asked(), []);
    assert!(matches!(hand.last(), Body::Manifest(manifest) if manifest.aborts == 1));
}

#[test]
fn without_an_answer_large_transactions_are_read_after_their_commit() {
    let script = Script {
        steps: vec![block(700, 701), commit(700), small(720)],
    };
    let mut hand = Hand::new(settings(Acknowledge::Published));
    gulp(&mut hand, &script);
    let answer = Err("no answer in time".to_owned());
    hand.event(Event::Subtransactions(answer));
    assert!(hand.streams_no_more(), "{:?}", hand.said);
    let kinds = hand.kinds();
    assert!(!kinds.contains(&FrameKind::Manifest) && !kinds.contains(&FrameKind::Bundle));
    assert_eq!(hand.machine.status().lsn_confirmed, START);
}

#[test]
fn c18_more_subtransactions_than_fit_into_memory_are_not_streamed() {
    // 24 bytes each, and 700 for all: neighbours are one.
    for (count, apart, fits) in [(28, 2, true), (30, 2, false), (300, 1, true)] {
        let mut steps = vec![block(700, 700)];
        steps.extend((0..count).map(|at| block(700, 701 + apart * at)));
        let script = Script { steps };
        let mut walsender = Walsender::new(&script, START);
        let mut hand = Hand::new(settings(Acknowledge::Published));
        for _ in 0..=count {
            hand.send(&mut walsender);
        }
        assert_eq!(!hand.streams_no_more(), fits, "{count}");
    }
}
