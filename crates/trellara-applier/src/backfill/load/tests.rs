use std::collections::BTreeMap;

use proptest::prelude::*;
use trellara_envelope::{FlowName, Lsn, Oid, SourceId, Timeline};

use super::*;

const SYSTEM: SystemId = SystemId(7);

fn table(name: &str) -> CopyTable {
    CopyTable {
        schema: "public".into(),
        name: name.into(),
    }
}

fn flow() -> FlowName {
    "shop".parse().expect("a name")
}

/// Writes frames of one chain.
struct Hand {
    writer: u64,
    ordinal: u64,
    previous: FrameDigest,
    sequence: u64,
}

impl Hand {
    fn new(writer: u64, behind: u64) -> Self {
        Self {
            writer,
            ordinal: 0,
            previous: FrameDigest::default(),
            sequence: behind,
        }
    }

    fn frame(&mut self, name: &str, event: CopyEvent) -> (StreamSequence, FrameDigest, CopyFrame) {
        let payload = match event {
            CopyEvent::Chunk { .. } => Bytes::from_static(b"1\n"),
            _ => Bytes::new(),
        };
        let header = CopyHeader {
            flow: flow(),
            source: SourceId {
                system: SYSTEM,
                timeline: Timeline(1),
            },
            writer: Incarnation(self.writer),
            ordinal: self.ordinal,
            previous: self.previous,
            table: table(name),
            generation: 1,
            mac: Vec::new(),
        };
        let frame = CopyFrame {
            header,
            event,
            payload,
        };
        self.previous = FrameDigest::of(&frame.encode());
        self.ordinal += 1;
        self.sequence += 1;
        (StreamSequence(self.sequence), self.previous, frame)
    }
}

fn begin() -> CopyEvent {
    CopyEvent::Begin(CopyBegin {
        relation: Oid(1),
        columns: vec!["id".into()],
        snapshot: "10:20:".into(),
        converges_at: Lsn(0x100),
        estimated_rows: 0,
        estimated_bytes: 0,
    })
}

fn chunk(part: u32, number: u32) -> CopyEvent {
    CopyEvent::Chunk { part, number }
}

/// A part of `chunks` pieces, each a row.
fn part(part: u32, chunks: u32) -> CopyEvent {
    CopyEvent::Part {
        part,
        chunks,
        rows: u64::from(chunks),
        bytes: u64::from(chunks) * 2,
        digest: FrameDigest::default(),
    }
}

fn end(parts: u32, rows: u64) -> CopyEvent {
    CopyEvent::End {
        parts,
        rows,
        bytes: rows * 2,
    }
}

fn wanting(names: &[&str]) -> Book {
    let mut book = Book::new(SYSTEM);
    let wanted = names
        .iter()
        .map(|name| (TableCopy::wanted(table(name), true), HashSet::new()));
    assert!(book.read(wanted.collect()).is_empty());
    book
}

/// Reads a frame as the loop does; what was lost comes first.
fn read(book: &mut Book, (at, digest, frame): (StreamSequence, FrameDigest, CopyFrame)) -> Step {
    let writer = frame.header.writer;
    assert_eq!(book.follow(&frame.header, digest), None);
    let step = book.step(at, frame);
    if let Step::Begin(table, source, begin) = &step {
        book.begun((table, writer), (*source, begin));
    }
    step
}

fn is_chunk(step: &Step, part: u32, number: u32) -> bool {
    matches!(step, Step::Chunk(key, n, _) if key.part == part && *n == number)
}

#[test]
fn a_table_comes_in_part_by_part_and_is_trimmed_behind_them() {
    let mut book = wanting(&["t"]);
    let mut hand = Hand::new(3, 0);
    assert!(matches!(
        read(&mut book, hand.frame("t", begin())),
        Step::Begin(..)
    ));
    assert_eq!(book.trimmable(), StreamSequence(1));
    let copied = book.copy(&table("t")).expect("there");
    assert_eq!(copied.state, CopyState::Copying);
    assert_eq!(copied.columns, ["id"]);

    assert!(is_chunk(
        &read(&mut book, hand.frame("t", chunk(0, 0))),
        0,
        0
    ));
    assert!(is_chunk(
        &read(&mut book, hand.frame("t", chunk(1, 0))),
        1,
        0
    ));
    assert!(book.waits_for_chunks());
    assert!(is_chunk(
        &read(&mut book, hand.frame("t", chunk(0, 1))),
        0,
        1
    ));
    assert!(matches!(
        read(&mut book, hand.frame("t", part(0, 2))),
        Step::Part(..)
    ));
    assert!(matches!(
        read(&mut book, hand.frame("t", part(1, 1))),
        Step::Part(..)
    ));
    assert_eq!(read(&mut book, hand.frame("t", end(2, 3))), Step::Nothing);
    assert_eq!(book.trimmable(), StreamSequence(1), "nothing is in");

    let key = |part| PartKey {
        table: table("t"),
        part,
    };
    assert_eq!(book.part_in(&key(1), 1, 2), Step::Nothing);
    assert_eq!(book.trimmable(), StreamSequence(1), "the first part is not");
    assert_eq!(book.part_in(&key(0), 2, 4), Step::Complete(table("t")));
    assert_eq!(
        book.trimmable(),
        StreamSequence(6),
        "its end is not written down"
    );
    book.loaded(&table("t"));
    assert_eq!(book.trimmable(), StreamSequence(7));
    assert_eq!(read(&mut book, hand.frame("t", chunk(7, 0))), Step::Nothing);
}

#[test]
fn what_is_in_is_not_taken_twice() {
    let mut hand = Hand::new(3, 0);
    let frames = [
        hand.frame("t", begin()),
        hand.frame("t", chunk(0, 0)),
        hand.frame("t", part(0, 1)),
        hand.frame("t", chunk(1, 0)),
        hand.frame("t", part(1, 1)),
        hand.frame("t", end(2, 2)),
    ];
    let mut book = wanting(&["t"]);
    read(&mut book, frames[0].clone());
    let copy = TableCopy {
        loaded: (1, 2),
        ..book.copy(&table("t")).expect("there").clone()
    };
    // After a restart: part 0 is in the ledger.
    let mut book = Book::new(SYSTEM);
    assert!(book.read(vec![(copy, HashSet::from([0]))]).is_empty());
    assert_eq!(read(&mut book, frames[0].clone()), Step::Nothing, "begun");
    assert_eq!(read(&mut book, frames[1].clone()), Step::Nothing);
    assert_eq!(read(&mut book, frames[2].clone()), Step::Nothing);
    assert_eq!(book.trimmable(), StreamSequence(3));
    assert!(is_chunk(&read(&mut book, frames[3].clone()), 1, 0));
    assert!(matches!(read(&mut book, frames[4].clone()), Step::Part(..)));
    read(&mut book, frames[5].clone());
    let key = PartKey {
        table: table("t"),
        part: 1,
    };
    assert_eq!(book.part_in(&key, 1, 2), Step::Complete(table("t")));
}

#[test]
fn a_hole_costs_every_copy_under_way_and_no_other() {
    let mut book = wanting(&["t", "u", "v"]);
    let mut hand = Hand::new(3, 0);
    read(&mut book, hand.frame("t", begin()));
    read(&mut book, hand.frame("u", begin()));
    read(&mut book, hand.frame("u", end(0, 0)));
    book.loaded(&table("u"));
    hand.frame("t", chunk(0, 0));
    let (at, digest, frame) = hand.frame("v", begin());
    let (lost, reason) = book.follow(&frame.header, digest).expect("a hole");
    assert_eq!(lost, [table("t")]);
    assert!(
        reason.contains("number 4 came behind writer 3 number 2"),
        "{reason}"
    );
    book.again(&table("t"), 2, &reason);
    assert!(
        matches!(book.step(at, frame), Step::Begin(..)),
        "itself it is good"
    );
    // What still comes of the copy that is void is of no use.
    assert_eq!(read(&mut book, hand.frame("t", chunk(0, 1))), Step::Nothing);
    assert_eq!(read(&mut book, hand.frame("t", end(1, 2))), Step::Nothing);
}

#[test]
fn a_frame_that_another_one_stands_behind_is_found_by_its_digest() {
    let mut book = wanting(&["t"]);
    let mut hand = Hand::new(3, 0);
    read(&mut book, hand.frame("t", begin()));
    hand.previous = FrameDigest([9; 16]);
    let (_, digest, frame) = hand.frame("t", chunk(0, 0));
    let (lost, _) = book.follow(&frame.header, digest).expect("a hole");
    assert_eq!(lost, [table("t")]);
}

#[test]
fn a_part_without_its_beginning_or_its_end_is_void() {
    let void = |events: &[CopyEvent]| {
        let mut book = wanting(&["t"]);
        let mut hand = Hand::new(3, 0);
        let mut last = Step::Nothing;
        for event in events {
            last = read(&mut book, hand.frame("t", event.clone()));
        }
        matches!(last, Step::Void(..))
    };
    assert!(void(&[chunk(0, 0)]), "never begun");
    assert!(void(&[end(0, 0)]), "never begun");
    assert!(void(&[begin(), chunk(0, 1)]));
    assert!(void(&[begin(), chunk(0, 0), chunk(0, 2)]));
    assert!(void(&[begin(), chunk(0, 0), chunk(0, 0)]));
    assert!(void(&[begin(), chunk(0, 0), part(0, 2)]));
    assert!(void(&[begin(), chunk(0, 0), part(0, 1), chunk(0, 1)]));
    assert!(void(&[begin(), end(1, 1)]));
    assert!(void(&[begin(), end(0, 1)]));
    assert!(!void(&[begin(), chunk(0, 0), part(0, 1), end(1, 1)]));
}

#[test]
fn a_newer_writer_begins_anew_and_an_older_one_is_not_heard() {
    let mut book = wanting(&["t"]);
    let mut old = Hand::new(3, 0);
    read(&mut book, old.frame("t", begin()));
    read(&mut book, old.frame("t", chunk(0, 0)));
    let mut new = Hand::new(5, old.sequence);
    assert!(matches!(
        read(&mut book, new.frame("t", begin())),
        Step::Begin(..)
    ));
    assert_eq!(book.trimmable(), StreamSequence(3), "the old part is void");
    old.sequence = new.sequence;
    assert_eq!(read(&mut book, old.frame("t", part(0, 1))), Step::Nothing);
    assert_eq!(read(&mut book, old.frame("t", begin())), Step::Nothing);
    assert_eq!(
        book.copy(&table("t")).and_then(|copy| copy.writer),
        Some(Incarnation(5))
    );
    new.sequence = old.sequence;
    assert!(is_chunk(
        &read(&mut book, new.frame("t", chunk(0, 0))),
        0,
        0
    ));
}

#[test]
fn a_failure_may_come_before_anything_began() {
    let failed = |lasting| CopyEvent::Failed {
        reason: "why".into(),
        hint: "how".into(),
        lasting,
    };
    let mut book = wanting(&["t"]);
    let mut hand = Hand::new(3, 0);
    let step = read(&mut book, hand.frame("t", failed(true)));
    assert!(matches!(step, Step::Failed { lasting: true, .. }));
    book.given_up(&table("t"), "why", "how");
    assert_eq!(
        read(&mut book, hand.frame("t", failed(false))),
        Step::Nothing
    );
    assert_eq!(read(&mut book, hand.frame("t", begin())), Step::Nothing);
}

#[test]
fn another_table_is_nobodys_and_another_cluster_is_named() {
    let mut book = wanting(&["t"]);
    let mut hand = Hand::new(3, 0);
    assert_eq!(read(&mut book, hand.frame("other", begin())), Step::Nothing);
    let (at, _, mut frame) = hand.frame("t", begin());
    frame.header.source.system = SystemId(8);
    let mut other = frame.clone();
    other.header.generation = 7;
    assert_eq!(book.step(at, other), Step::Nothing, "nobody waits for it");
    let step = book.step(at, frame);
    let Step::Failed {
        reason,
        lasting: true,
        ..
    } = step
    else {
        panic!("{step:?}");
    };
    assert!(reason.contains("cluster 8"), "{reason}");
}

#[test]
fn a_writer_that_begins_a_copy_twice_makes_it_void() {
    let mut book = wanting(&["t"]);
    let mut hand = Hand::new(3, 0);
    read(&mut book, hand.frame("t", begin()));
    assert_eq!(read(&mut book, hand.frame("t", begin())), Step::Nothing);
    let mut other = begin();
    if let CopyEvent::Begin(begin) = &mut other {
        begin.snapshot = "7:9:8".into();
    }
    let step = read(&mut book, hand.frame("t", other));
    assert!(matches!(step, Step::Void(..)), "{step:?}");
}

#[test]
fn an_operator_who_asks_for_another_copy_makes_the_one_under_way_void() {
    let mut book = wanting(&["t", "u"]);
    let mut hand = Hand::new(3, 0);
    for name in ["t", "u"] {
        read(&mut book, hand.frame(name, begin()));
        read(&mut book, hand.frame(name, chunk(0, 0)));
    }
    let rows = |generation| {
        let t = book.copy(&table("t")).expect("there").clone();
        let u = book.copy(&table("u")).expect("there").clone();
        let t = TableCopy {
            generation,
            state: if generation > 1 {
                CopyState::Wanted
            } else {
                t.state
            },
            ..t
        };
        vec![(t, HashSet::new()), (u, HashSet::new())]
    };
    let (same, other) = (rows(1), rows(2));
    assert!(book.read(same).is_empty());
    assert_eq!(book.trimmable(), StreamSequence(1));
    assert_eq!(book.read(other), [table("t")]);
    assert_eq!(book.trimmable(), StreamSequence(3), "of the other's part");
}

/// What a stream holds of one copy, and how its parts are mixed in it.
fn mixed() -> impl Strategy<Value = (Vec<u32>, Vec<usize>)> {
    let parts = proptest::collection::vec(1u32..5, 1..7);
    parts.prop_flat_map(|parts| {
        let all: usize = parts.iter().map(|chunks| *chunks as usize + 1).sum();
        let picks = proptest::collection::vec(0usize..3, all);
        (Just(parts), picks)
    })
}

/// The frames of a copy whose parts, up to three at once, are mixed as `picks` says.
fn stream(parts: &[u32], picks: &[usize]) -> Vec<(StreamSequence, FrameDigest, CopyFrame)> {
    let mut hand = Hand::new(3, 0);
    let mut frames = vec![hand.frame("t", begin())];
    let mut open: Vec<(u32, u32)> = Vec::new();
    let mut next = 0u32;
    for pick in picks {
        while open.len() < 3 && (next as usize) < parts.len() {
            open.push((next, 0));
            next += 1;
        }
        let at = pick % open.len();
        let (number, came) = open[at];
        if came == parts[number as usize] {
            frames.push(hand.frame("t", part(number, came)));
            open.remove(at);
        } else {
            frames.push(hand.frame("t", chunk(number, came)));
            open[at].1 += 1;
        }
    }
    let rows = parts.iter().map(|chunks| u64::from(*chunks)).sum();
    frames.push(hand.frame("t", end(parts.len() as u32, rows)));
    frames
}

proptest! {
    /// Killed anywhere, with the commits of whole parts late by any number of frames: every part
    /// comes in once, and what was trimmed is never missed.
    #[test]
    fn every_part_comes_in_once_whatever_is_killed(
        (parts, picks) in mixed(),
        kills in proptest::collection::vec(1usize..12, 0..6),
        late in 0usize..4,
    ) {
        let frames = stream(&parts, &picks);
        let mut kills = kills.into_iter();
        // What the target remembers.
        let mut copy = TableCopy::wanted(table("t"), true);
        let mut ledger: BTreeMap<u32, u64> = BTreeMap::new();
        let mut trimmed = StreamSequence(0);
        let mut runs = 0;
        while copy.state != CopyState::Loaded {
            runs += 1;
            prop_assert!(runs < 20, "it never ends");
            let mut book = Book::new(SYSTEM);
            copy.loaded = ledger.values().fold((0, 0), |(n, b), rows| (n + rows, b + rows * 2));
            book.read(vec![(copy.clone(), ledger.keys().copied().collect())]);
            let mut committing: Vec<(PartKey, u64)> = Vec::new();
            let until = kills.next().unwrap_or(usize::MAX);
            let first = trimmed;
            let there = frames.iter().filter(|(at, ..)| *at > first);
            for (n, frame) in there.enumerate() {
                if n == until {
                    break;
                }
                let mut complete = false;
                match read(&mut book, frame.clone()) {
                    Step::Part(key, manifest) => committing.push((key, manifest.rows)),
                    Step::Complete(_) => complete = true,
                    Step::Void(_, reason) => prop_assert!(false, "{reason}"),
                    _ => {}
                }
                let ends = matches!(frame.2.event, CopyEvent::End { .. });
                while committing.len() > late || (ends && !committing.is_empty()) {
                    let (key, rows) = committing.remove(0);
                    prop_assert!(ledger.insert(key.part, rows).is_none(), "twice");
                    complete |= matches!(book.part_in(&key, rows, rows * 2), Step::Complete(_));
                }
                copy = book.copy(&table("t")).expect("there").clone();
                if complete {
                    copy.state = CopyState::Loaded;
                    break;
                }
                trimmed = trimmed.max(book.trimmable());
            }
        }
        prop_assert_eq!(ledger.len(), parts.len());
    }
}
