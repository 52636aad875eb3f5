//! What open transactions may take, and how they are given up.

use std::time::Duration;

use trellara_envelope::{Body, Frame, FrameKind, Lane, LaneEpoch, PositionReport, StreamSequence};

use super::hand::{Hand, START, rows};
use super::source::{Script, Step, Walsender};
use super::stream::{flow, history, settings};
use crate::Acknowledge;
use crate::machine::{Command, Event, StreamSpace};

impl Hand {
    /// The target has applied everything in the stream.
    fn all_applied(&mut self) {
        let tail = self.stream.tail();
        let report = PositionReport {
            flow: flow(),
            lane: Lane(0),
            source: history().source(),
            target: "target@1".to_owned(),
            epoch: LaneEpoch(1),
            incarnation: tail.incarnation,
            sequence: tail.sequence,
            ordinal: tail.ordinal,
            digest: Frame::digest_of(self.stream.0.last().expect("a frame")),
            end_lsn: tail.position,
            mac: Vec::new(),
        };
        self.event(Event::Report(report));
    }

    /// The broker says how full the stream is.
    fn filled(&mut self, bytes: u64, max_bytes: u64) {
        self.event(Event::Stream {
            space: StreamSpace {
                bytes,
                max_bytes: Some(max_bytes),
                last_sequence: StreamSequence(self.stream.0.len() as u64),
            },
            target: Some("target@1".to_owned()),
            floor: StreamSequence(0),
        });
    }

    fn purged(&self) -> Vec<&str> {
        let purges = self.said.iter().filter_map(|said| match said {
            Command::Purge { subject, .. } => Some(subject.as_str()),
            _ => None,
        });
        purges.collect()
    }

    fn warned(&self) -> Vec<u32> {
        let warnings = self.said.iter().filter_map(|said| match said {
            Command::Warn(large) => {
                assert!(large.bytes > large.limit / 2, "{large:?}");
                Some(large.xid.0)
            }
            _ => None,
        });
        warnings.collect()
    }

    pub(super) fn streams_no_more(&self) -> bool {
        matches!(self.said.last(), Some(Command::Restart(restart)) if restart.streaming_off)
    }
}

fn block(xid: u32, subxid: u32, count: usize) -> Step {
    Step::Block {
        xid,
        subxid,
        rows: rows(count, 100),
    }
}

#[test]
fn c12_open_transactions_above_their_budget_are_aborted_and_purged() {
    let mut settings = settings(Acknowledge::Published);
    settings.open_bytes = Some(4_000);
    let block = Step::Block {
        xid: 700,
        subxid: 700,
        rows: rows(40, 100),
    };
    let script = Script {
        steps: vec![block.clone(), block],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings);
    hand.send(&mut walsender);
    let last = hand.stream.frame(hand.stream.0.len());
    assert!(matches!(last.body, Body::Abort(abort) if abort.whole));
    let ends = &hand.said[hand.said.len() - 2..];
    let tail = StreamSequence(hand.stream.0.len() as u64);
    assert!(
        matches!(&ends[0], Command::Purge { below, .. } if *below == tail),
        "the tail stays: {ends:?}"
    );
    assert!(matches!(&ends[1], Command::Restart(restart) if restart.streaming_off));
}

#[test]
fn c12_chunks_of_a_committed_transaction_outlive_the_abort_of_open_ones() {
    let mut settings = settings(Acknowledge::Published);
    settings.open_bytes = Some(10_000);
    let committed = Step::Commit {
        xid: 701,
        rows: rows(40, 100),
    };
    let closed = Step::End {
        xid: 702,
        commits: true,
    };
    let script = Script {
        steps: vec![
            block(700, 700, 5),
            committed,
            block(702, 702, 5),
            closed,
            block(700, 700, 90),
        ],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings);
    for _ in 0..5 {
        hand.send(&mut walsender);
    }
    assert!(hand.streams_no_more(), "{:?}", hand.said);
    let manifests = hand.kinds();
    let manifests = manifests
        .iter()
        .filter(|kind| **kind == FrameKind::Manifest);
    assert_eq!(
        manifests.count(),
        2,
        "two have committed, nobody has read them yet"
    );
    assert_eq!(hand.purged(), ["trellara.shop.open.1.700"]);
}

#[test]
fn c12_open_transactions_give_way_when_all_is_applied_and_nothing_fits() {
    let commit = |xid| Step::Commit {
        xid,
        rows: rows(1, 100),
    };
    let script = Script {
        steps: vec![commit(701), block(700, 700, 5), commit(702), commit(703)],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.filled(0, 100_000);
    hand.send(&mut walsender);
    hand.send(&mut walsender);
    // Below every budget, and yet the stream is full of something that cannot be trimmed.
    hand.filled(90_000, 100_000);
    hand.send(&mut walsender);
    let held = |hand: &Hand| hand.machine.status().waiting_for.contains("room");
    assert!(held(&hand) && hand.machine.status().open_transactions == 1);
    for _ in 0..30 {
        hand.now += Duration::from_secs(1);
        hand.event(Event::Tick);
    }
    assert!(
        !hand.machine.is_over(),
        "the target has more to apply, and then to trim"
    );
    hand.all_applied();
    hand.event(Event::Tick);
    hand.now += Duration::from_secs(9);
    hand.event(Event::Tick);
    assert!(
        held(&hand) && !hand.machine.is_over(),
        "it may still be trimming"
    );
    hand.now += Duration::from_secs(1);
    hand.event(Event::Tick);
    assert!(hand.streams_no_more(), "{:?}", hand.said.last());
    assert_eq!(hand.purged(), ["trellara.shop.open.1.700"]);
}

/// The broker's disk or account is full, whatever the stream's own limit says: it refuses every
/// frame, abort frames too.
#[test]
fn c12_open_transactions_give_way_when_the_broker_refuses_everything() {
    let commit = |xid| Step::Commit {
        xid,
        rows: rows(1, 100),
    };
    let script = Script {
        steps: vec![commit(701), block(700, 700, 5), commit(702)],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.send(&mut walsender);
    hand.send(&mut walsender);
    hand.all_applied();
    hand.full = true;
    hand.send(&mut walsender);
    let mut ticks = 0;
    while !hand.machine.is_over() {
        hand.now += Duration::from_millis(100);
        hand.event(Event::Tick);
        ticks += 1;
        assert!(ticks < 120, "{:?}", hand.machine.status());
    }
    assert!(ticks >= 100, "it may still be trimming: {ticks}");
    assert!(hand.streams_no_more(), "{:?}", hand.said.last());
    assert_eq!(hand.purged(), ["trellara.shop.open.1.700"]);
}

/// Abort frames that are on their way when the broker begins to refuse are not waited for.
#[test]
fn c12_abort_frames_that_do_not_fit_are_not_waited_for() {
    let mut settings = settings(Acknowledge::Published);
    settings.open_bytes = Some(4_000);
    let script = Script {
        steps: vec![block(700, 700, 10), block(700, 700, 60)],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings);
    hand.send(&mut walsender);
    assert!(!hand.machine.is_over());
    hand.full = true;
    hand.send(&mut walsender);
    hand.event(Event::Tick);
    assert!(hand.streams_no_more(), "{:?}", hand.machine.status());
    assert_eq!(hand.purged(), ["trellara.shop.open.1.700"]);
}

#[test]
fn c12_open_transactions_have_a_budget_without_a_limit_of_the_stream() {
    let mut hand = Hand::new(settings(Acknowledge::Published));
    assert_eq!(hand.machine.open_budget(), 5 << 30);
    hand.filled(0, 100_000);
    assert_eq!(hand.machine.open_budget(), 50_000);
    let mut chosen = settings(Acknowledge::Published);
    chosen.open_bytes = Some(7);
    assert_eq!(Hand::new(chosen).machine.open_budget(), 7);
}

#[test]
fn c18_unfinished_chunks_share_one_budget() {
    let block = |xid| Step::Block {
        xid,
        subxid: xid,
        rows: rows(2, 80),
    };
    let script = Script {
        steps: (700..720).map(block).collect(),
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    for _ in 0..20 {
        hand.send(&mut walsender);
    }
    let chunks = hand.kinds();
    let chunks = chunks.iter().filter(|kind| **kind == FrameKind::Chunk);
    // 20 transactions of about 200 bytes, 700 of which may stay unfinished.
    assert!(chunks.count() >= 15);
}

#[test]
fn c18_rollbacks_are_published_early_and_more_of_them_than_fit_are_not_streamed() {
    let many = |count: u32| {
        let rollback = |at| Step::Rollback {
            xid: 700,
            subxid: 10_000 - 2 * at,
        };
        let mut steps = vec![block(700, 700, 1)];
        steps.extend((0..count).map(rollback));
        Script { steps }
    };
    // 8 bytes each, and 700 for all.
    for (count, fits) in [(80, true), (200, false)] {
        let script = many(count);
        let mut walsender = Walsender::new(&script, START);
        let mut hand = Hand::new(settings(Acknowledge::Published));
        for _ in 0..=count {
            hand.send(&mut walsender);
        }
        let partial = (1..=hand.stream.0.len())
            .any(|at| matches!(hand.stream.frame(at).body, Body::Abort(abort) if !abort.whole));
        assert!(partial, "{count}: an abort frame long before 2,048 of them");
        assert_eq!(!hand.streams_no_more(), fits, "{count}");
    }
}

/// Before it halts the flow, a transaction that may not fit is named, once.
#[test]
fn c12_a_transaction_above_half_of_the_stream_is_warned_of_once() {
    let small = Step::Commit {
        xid: 700,
        rows: rows(10, 100),
    };
    let large = Step::Commit {
        xid: 701,
        rows: rows(200, 100),
    };
    let streamed = block(702, 702, 100);
    let script = Script {
        steps: vec![small, large, streamed.clone(), streamed],
    };
    let mut walsender = Walsender::new(&script, START);
    let mut hand = Hand::new(settings(Acknowledge::Published));
    hand.filled(0, 120_000);
    hand.send(&mut walsender);
    assert!(hand.warned().is_empty());
    // One change at a time, as they come from a slow source.
    for payload in walsender.next().expect("the large one") {
        hand.event(Event::CopyData(&payload));
        hand.event(Event::GulpEnd);
    }
    assert_eq!(hand.warned(), [701]);
    hand.filled(0, 120_000);
    hand.send(&mut walsender);
    assert_eq!(hand.warned(), [701]);
    hand.send(&mut walsender);
    hand.event(Event::Tick);
    assert_eq!(hand.warned(), [701, 702], "{:?}", hand.said);
}
