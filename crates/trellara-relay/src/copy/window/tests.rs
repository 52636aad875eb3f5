use proptest::collection::vec;
use proptest::prelude::*;
use trellara_envelope::{CopyTable, SystemId, Timeline};
use trellara_jetstream::publish::UnknownReason;

use super::*;

fn window(writer: u64) -> Window {
    let source = SourceId {
        system: SystemId(1),
        timeline: Timeline(1),
    };
    Window::new("shop".parse().expect("a name"), source, Incarnation(writer))
}

fn wanted() -> CopyWanted {
    CopyWanted {
        table: CopyTable {
            schema: "public".to_owned(),
            name: "t".to_owned(),
        },
        generation: 1,
    }
}

fn end(window: &mut Window) -> Sent {
    let event = CopyEvent::End {
        parts: 0,
        rows: 0,
        bytes: 0,
    };
    window.put(&wanted(), event, Bytes::new())
}

fn tail(bytes: &Bytes) -> Tail {
    let writer = CopyFrame::decode(bytes)
        .ok()
        .map(|frame| frame.header.writer);
    Tail {
        writer,
        digest: FrameDigest::of(bytes),
    }
}

fn unknown() -> Outcome {
    Outcome::Unknown {
        reason: UnknownReason::Timeout,
    }
}

proptest! {
    /// A broker that stores, refuses and forgets to answer as it likes, and that an older
    /// writer slips a frame into: every frame of ours is there once, in order, whatever comes.
    #[test]
    fn every_frame_is_stored_once(fates in vec((0u8..6, 1usize..6), 1..60)) {
        let mut stream: Vec<Bytes> = Vec::new();
        let (mut window, mut old) = (window(5), window(4));
        let mut written = 0;
        for (fate, count) in fates {
            let mut doubt = false;
            // Each names the one before by its id: behind another writer's none is stored.
            let mut slipped = false;
            let batch: Vec<Sent> = (0..count).map(|_| end(&mut window)).collect();
            written += count as u64;
            for (at, sent) in batch.into_iter().enumerate() {
                if fate == 1 && at == count / 2 {
                    old.stand_at(StreamSequence(stream.len() as u64));
                    stream.push(end(&mut old).payload);
                    slipped = true;
                }
                let fits = !slipped && sent.sequence.0 == stream.len() as u64 + 1;
                let outcome = match (fate, fits) {
                    (2, true) if at >= count / 2 => Outcome::Full,
                    (3, true) => { stream.push(sent.payload); unknown() }
                    (4, _) => unknown(),
                    (_, true) => {
                        stream.push(sent.payload);
                        Outcome::Stored { sequence: sent.sequence }
                    }
                    (_, false) => Outcome::WrongSequence { actual: None },
                };
                if !doubt {
                    doubt = window.took(sent.sequence, outcome) != Took::Stored;
                }
            }
            if doubt {
                settle(&mut window, &mut stream);
            }
            prop_assert!(window.is_empty());
        }
        let frames: Vec<CopyFrame> = stream
            .iter()
            .map(|bytes| CopyFrame::decode(bytes).expect("a frame"))
            .filter(|frame| frame.header.writer == Incarnation(5))
            .collect();
        prop_assert_eq!(frames.len() as u64, written);
        let mut previous = FrameDigest::default();
        for (ordinal, frame) in (0..).zip(frames) {
            prop_assert_eq!((frame.header.ordinal, frame.header.previous), (ordinal, previous));
            previous = FrameDigest::of(&frame.encode());
        }
    }
}

/// What the loop does after a doubt, on a broker that answers.
fn settle(window: &mut Window, stream: &mut Vec<Bytes>) {
    let at = StreamSequence(stream.len() as u64);
    match window.judge(at, stream.last().map(tail)) {
        Judged::GoOn => {}
        Judged::Older => {
            let mut stored = window.stored();
            while let Some(bytes) = stream.get(stored.0 as usize)
                && window.is_ours(StreamSequence(stored.0 + 1), FrameDigest::of(bytes))
            {
                stored.0 += 1;
            }
            window.pass_over(stored, at);
        }
        other => panic!("{other:?}"),
    }
    for sent in window.unstored().cloned().collect::<Vec<_>>() {
        assert_eq!(sent.sequence.0, stream.len() as u64 + 1);
        stream.push(sent.payload);
        let sequence = sent.sequence;
        let took = window.took(sequence, Outcome::Stored { sequence });
        assert_eq!(took, Took::Stored);
    }
}

#[test]
fn a_newer_writer_fences() {
    let (mut window, mut newer) = (window(5), window(6));
    let sent = end(&mut window);
    let theirs = end(&mut newer);
    assert!(matches!(
        window.took(sent.sequence, unknown()),
        Took::Doubt(_)
    ));
    let judged = window.judge(theirs.sequence, Some(tail(&theirs.payload)));
    assert_eq!(judged, Judged::Fenced(Incarnation(6)));
}

#[test]
fn a_stream_that_lost_what_it_had_is_noticed() {
    let mut window = window(5);
    window.stand_at(StreamSequence(9));
    let sent = end(&mut window);
    let sequence = sent.sequence;
    assert_eq!(
        window.took(sequence, Outcome::Stored { sequence }),
        Took::Stored
    );
    assert!(matches!(
        window.judge(StreamSequence(9), None),
        Judged::Lost(_)
    ));
    let foreign = Tail {
        writer: None,
        digest: FrameDigest::default(),
    };
    let judged = window.judge(StreamSequence(11), Some(foreign));
    assert!(matches!(judged, Judged::Foreign(_)), "{judged:?}");
}

/// A writer whose frames up to 9 are stored.
fn stored_up_to_9() -> Window {
    let mut window = window(5);
    window.stand_at(StreamSequence(8));
    let sequence = end(&mut window).sequence;
    let took = window.took(sequence, Outcome::Stored { sequence });
    assert_eq!((took, window.stored().0), (Took::Stored, 9));
    window
}

fn of(writer: u64) -> Option<Tail> {
    Some(Tail {
        writer: Some(Incarnation(writer)),
        digest: FrameDigest::default(),
    })
}

#[test]
fn what_a_stream_lost_while_nobody_wrote_is_noticed_once() {
    let mut window = stored_up_to_9();
    let judged = window.judge(StreamSequence(7), None);
    assert!(matches!(judged, Judged::Lost(_)), "{judged:?}");
    end(&mut window);
    window.cast_off();
    assert_eq!(window.judge(StreamSequence(7), of(5)), Judged::GoOn);
    assert_eq!(window.stored(), StreamSequence(7));
    assert_eq!(window.judge(StreamSequence(7), None), Judged::GoOn);
    assert_eq!(end(&mut window).sequence, StreamSequence(8));
    // Whatever ends the stream then, also nothing, it is no reason to wait for ever.
    for (at, tail) in [(0, None), (12, None), (12, of(4))] {
        window.cast_off();
        assert_eq!(window.judge(StreamSequence(at), tail), Judged::GoOn);
    }
    window.cast_off();
    let judged = window.judge(StreamSequence(12), of(6));
    assert_eq!(judged, Judged::Fenced(Incarnation(6)));
}

#[test]
fn frames_that_are_never_taken_leave_no_hole_in_the_chain() {
    let mut window = stored_up_to_9();
    let stored = end(&mut window);
    let sequence = stored.sequence;
    let refused = [end(&mut window), end(&mut window)];
    window.took(sequence, Outcome::Stored { sequence });
    let took = window.took(refused[0].sequence, Outcome::TooLarge { limit: None });
    assert!(matches!(took, Took::TooLarge(_)), "{took:?}");
    assert_eq!(window.take_back(), [wanted()]);
    assert!(window.is_empty() && window.stored() == sequence);
    let next = end(&mut window);
    assert_eq!(next.sequence, refused[0].sequence);
    let header = CopyFrame::decode(&next.payload).expect("a frame").header;
    let expected = (stored.ordinal + 1, stored.digest);
    assert_eq!((header.ordinal, header.previous), expected);
}

#[test]
fn whatever_came_while_nobody_wrote_is_somebody_elses() {
    let at = StreamSequence(11);
    for tail in [None, of(5)] {
        let judged = stored_up_to_9().judge(at, tail);
        assert!(matches!(judged, Judged::Foreign(_)), "{judged:?}");
    }
    let judged = stored_up_to_9().judge(at, of(6));
    assert_eq!(judged, Judged::Fenced(Incarnation(6)));
    assert_eq!(stored_up_to_9().judge(at, of(4)), Judged::Older);
}

#[test]
fn what_is_on_its_way_takes_room() {
    let mut window = window(5);
    window.measured(0, Some(10_000));
    assert!(window.has_room(7_000) && !window.has_room(8_000));
    let sent = end(&mut window);
    assert!(!window.has_room(7_000));
    let sequence = sent.sequence;
    window.took(sequence, Outcome::Stored { sequence });
    window.measured(0, Some(10_000));
    assert!(window.has_room(7_000));
}
