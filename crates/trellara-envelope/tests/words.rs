//! Positions, names, identities and histories as text and in comparison.

mod support;

use std::collections::BTreeSet;

use proptest::prelude::*;
use support::{frames, history, source};
use trellara_envelope::{
    CommitTime, DecodeError, FlowName, FrameDigest, FrameKind, FrameOrdinal, HaltCode, Incarnation,
    Lane, Lsn, RunningDigest, SourceHistory, SourceId, StreamSequence, SystemId, Timeline,
    TransactionIdentity, Xid, records,
};

#[test]
fn lsns_print_and_parse_as_postgresql_does() {
    for (number, text) in [
        (0, "0/0"),
        (0x16_B374_D848, "16/B374D848"),
        (0xFFFF_FFFF, "0/FFFFFFFF"),
        (u64::MAX, "FFFFFFFF/FFFFFFFF"),
    ] {
        assert_eq!(Lsn(number).to_string(), text);
        assert_eq!(format!("{:?}", Lsn(number)), text);
        assert_eq!(text.parse(), Ok(Lsn(number)));
    }
    assert_eq!("16/b374d848".parse(), Ok(Lsn(0x16_B374_D848)));
    assert_eq!("00000016/0000000A".parse(), Ok(Lsn(0x16_0000_000A)));
    for bad in [
        "",
        "/",
        "1",
        "1/",
        "/1",
        "1/2/3",
        "+1/2",
        "1/-2",
        "123456789/0",
        "0/123456789",
        "g/0",
        " 0/0",
        "0/0 ",
    ] {
        assert!(bad.parse::<Lsn>().is_err(), "{bad:?}");
    }
    assert_eq!(Lsn(7).bytes_since(Lsn(3)), 4);
    assert_eq!(Lsn(3).bytes_since(Lsn(7)), 0);
    assert!(Lsn::ZERO < Lsn(1) && Lsn(1) < Lsn::MAX);
}

proptest! {
    #[test]
    fn every_lsn_parses_as_it_prints(number: u64) {
        prop_assert_eq!(Lsn(number).to_string().parse(), Ok(Lsn(number)));
    }

    #[test]
    fn every_source_id_parses_as_it_prints(system: u64, timeline: u32) {
        let id = SourceId { system: SystemId(system), timeline: Timeline(timeline) };
        prop_assert_eq!(id.to_string().parse(), Ok(id));
    }
}

#[test]
fn a_source_id_has_one_text() {
    assert_eq!(source().to_string(), "7412345678901234567.2");
    for bad in [
        "",
        ".",
        "1",
        "1.",
        ".1",
        "+1.1",
        "1.+1",
        "01.1",
        "1.01",
        "1.1.1",
        "-1.1",
        "1.4294967296",
        "18446744073709551616.1",
    ] {
        assert!(bad.parse::<SourceId>().is_err(), "{bad:?}");
    }
}

#[test]
fn flow_names_give_everything_its_name() {
    let flow: FlowName = "shop_2".parse().expect("a flow name");
    assert_eq!(flow.as_str(), "shop_2");
    assert_eq!(flow.slot(), "trellara_shop_2");
    assert_eq!(flow.stream(), "TRELLARA_shop_2");
    assert_eq!(flow.all_subjects(), "trellara.shop_2.>");
    assert_eq!(flow.transactions_subject(Lane(4)), "trellara.shop_2.tx.4");
    assert_eq!(flow.mark_subject(), "trellara.shop_2.mark");
    assert_eq!(flow.beat_subject(), "trellara.shop_2.beat");
    assert_eq!(flow.barrier_subject(), "trellara.shop_2.barrier");
    assert_eq!(
        flow.open_subject(Incarnation(3), Xid(746)),
        "trellara.shop_2.open.3.746"
    );
    assert_eq!(flow.open_filter(Incarnation(3)), "trellara.shop_2.open.3.>");
    // Outside the stream's subjects: a stored report would take a sequence (C27).
    assert_eq!(flow.position_subject(), "trellara-position.shop_2");
    assert!(!flow.position_subject().starts_with("trellara.shop_2."));

    let longest = "a".repeat(23);
    assert_eq!(
        longest
            .parse::<FlowName>()
            .expect("23 letters")
            .stream()
            .len(),
        32
    );
    for bad in [
        "",
        "Shop",
        "2shop",
        "_shop",
        "shop-1",
        "shop.1",
        "shop 1",
        "shöp",
        "shop>",
        "shop*",
        &"a".repeat(24),
    ] {
        assert!(bad.parse::<FlowName>().is_err(), "{bad:?}");
    }
}

#[test]
fn frames_of_each_kind_go_to_their_subject() {
    let subjects: Vec<_> = frames()
        .iter()
        .map(trellara_envelope::Frame::subject)
        .collect();
    assert_eq!(
        subjects,
        [
            "trellara.shop.mark",
            "trellara.shop.mark",
            "trellara.shop.beat",
            "trellara.shop.tx.0",
            "trellara.shop.open.3.746",
            "trellara.shop.open.3.746",
            "trellara.shop.tx.0",
        ]
    );
    for (frame, kind) in frames().iter().zip(FrameKind::ALL) {
        assert_eq!(frame.body.kind(), kind);
        // What moves the position is never purged with a transaction's chunks.
        assert_eq!(kind.is_positional(), !frame.subject().contains(".open."));
    }
    let numbers: Vec<_> = FrameKind::ALL.map(|kind| kind as u8).to_vec();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
}

fn identity() -> TransactionIdentity {
    TransactionIdentity {
        source: source(),
        commit_lsn: Lsn(0x16_B374_D800),
        xid: Xid(744),
        commit_time: CommitTime(849_254_400_123_456),
    }
}

#[test]
fn identities_and_record_keys_print_as_promised() {
    assert_eq!(
        identity().to_string(),
        "7412345678901234567.2:16/B374D800:744:849254400123456"
    );
    assert_eq!(
        identity().record_key(12).to_string(),
        "7412345678901234567.2:16/B374D800:744:12"
    );
    // xxh3-128 with seed 0 over the printed form, in big-endian order: the same in SQL.
    assert_eq!(
        identity().hash().0,
        xxhash_rust::xxh3::xxh3_128(identity().to_string().as_bytes()).to_be_bytes()
    );
    assert_eq!(
        identity().hash().to_string(),
        "b68971cecc81c2e464b8d076399950a2"
    );
}

/// C02: a restored storage snapshot repeats transaction id and position, never the time.
#[test]
fn c02_each_part_of_an_identity_makes_another_one() {
    let base = identity();
    let mut others = [base; 5];
    others[0].source.system = SystemId(1);
    others[1].source.timeline = Timeline(3);
    others[2].commit_lsn = Lsn(1);
    others[3].xid = Xid(1);
    others[4].commit_time = CommitTime(1);
    let hashes: BTreeSet<_> = others
        .iter()
        .chain([&base])
        .map(TransactionIdentity::hash)
        .collect();
    assert_eq!(hashes.len(), 6);
}

#[test]
fn numbers_count_and_times_convert() {
    assert_eq!(StreamSequence(1).next(), StreamSequence(2));
    assert_eq!(FrameOrdinal::default().next(), FrameOrdinal(1));
    assert_eq!(CommitTime(0).unix_us(), 946_684_800_000_000);
    assert_eq!(CommitTime::from_unix_us(946_684_800_000_001), CommitTime(1));
    assert_eq!(CommitTime(i64::MAX).unix_us(), i64::MAX);
}

/// C01: the timeline of an identity is the one the commit record was written on.
#[test]
fn c01_a_record_belongs_to_the_timeline_it_was_written_on() {
    let history = SourceHistory {
        system: SystemId(7),
        timeline: Timeline(4),
        switches: vec![(Timeline(1), Lsn(100)), (Timeline(3), Lsn(200))],
    };
    let timeline = |lsn| history.source_at(Lsn(lsn)).timeline.0;
    assert_eq!(
        [0, 99, 100, 199, 200, 300].map(timeline),
        [1, 1, 3, 3, 4, 4]
    );
    assert_eq!(history.source().timeline, Timeline(4));
}

#[test]
fn a_history_continues_what_lies_in_its_past() {
    let history = history();
    let on = |timeline| SourceId {
        system: history.system,
        timeline: Timeline(timeline),
    };
    let switch = Lsn(0x300_7270);
    assert!(
        history.continues(on(1), switch),
        "an end LSN at the switch was written before it"
    );
    assert!(
        !history.continues(on(1), Lsn(switch.0 + 1)),
        "left below the position"
    );
    assert!(history.continues(on(2), Lsn::MAX));
    assert!(
        !history.continues(on(3), Lsn::ZERO),
        "a timeline it never had"
    );
    let foreign = SourceId {
        system: SystemId(1),
        timeline: Timeline(2),
    };
    assert!(!history.continues(foreign, Lsn::ZERO));
}

/// Two standbys promoted one after the other, without knowing of each other, both write timeline
/// 2: only the position at which timeline 1 was left tells them apart.
#[test]
fn c01_histories_compare_up_to_a_position() {
    let promoted = |at, timeline| SourceHistory {
        system: SystemId(7),
        timeline: Timeline(timeline),
        switches: vec![(Timeline(1), Lsn(at))],
    };
    let first = promoted(100, 2);
    let second = promoted(150, 2);
    let before = SourceHistory {
        system: SystemId(7),
        timeline: Timeline(1),
        switches: Vec::new(),
    };
    let both = |position| {
        let one = first.shares_past(&second, Lsn(position));
        assert_eq!(one, second.shares_past(&first, Lsn(position)), "symmetric");
        one
    };
    assert!(both(0) && both(100), "the same up to the first promotion");
    assert!(!both(101) && !both(200), "two histories behind it");
    assert!(before.shares_past(&first, Lsn(100)) && !before.shares_past(&first, Lsn(101)));
    assert!(first.shares_past(&first, Lsn::MAX));
    let later = SourceHistory {
        system: SystemId(7),
        timeline: Timeline(5),
        switches: vec![(Timeline(1), Lsn(100)), (Timeline(2), Lsn(300))],
    };
    assert!(first.shares_past(&later, Lsn(300)) && !first.shares_past(&later, Lsn(301)));
    let foreign = SourceHistory {
        system: SystemId(8),
        ..before.clone()
    };
    assert!(!before.shares_past(&foreign, Lsn::ZERO));
}

#[test]
fn halt_codes_are_stable_words() {
    let words: BTreeSet<_> = HaltCode::ALL.map(HaltCode::as_str).into();
    assert_eq!(words.len(), HaltCode::ALL.len());
    for code in HaltCode::ALL {
        let plain = code
            .as_str()
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        assert!(plain, "{code}");
        assert!([10, 11, 12, 13, 77].contains(&code.exit_code()), "{code}");
    }
}

#[test]
fn running_digests_do_not_depend_on_the_cuts() {
    let bytes: Vec<u8> = (0..10_000u32).map(|at| (at * 7) as u8).collect();
    let mut running = RunningDigest::new();
    assert_eq!(running.current(), FrameDigest::of(b""));
    for piece in bytes.chunks(997) {
        running.update(piece);
    }
    assert_eq!(running.bytes(), 10_000);
    assert_eq!(running.current(), FrameDigest::of(&bytes));
    assert_eq!(
        FrameDigest::from_slice(&running.current().0),
        Some(running.current())
    );
    assert_eq!(FrameDigest::from_slice(&[0; 15]), None);
}

#[test]
fn records_are_walked_whole_or_not_at_all() {
    let mut bytes = Vec::new();
    for message in [&b"one"[..], b"", b"three"] {
        records::push(&mut bytes, message);
    }
    let all: Result<Vec<_>, _> = records::Records::new(&bytes).collect();
    assert_eq!(all, Ok(vec![&b"one"[..], b"", b"three"]));
    for length in 0..bytes.len() {
        let whole = records::Records::new(&bytes[..length]).collect::<Result<Vec<_>, _>>();
        let at_a_border = [0, 7, 11].contains(&length);
        assert_eq!(whole.is_ok(), at_a_border, "{length}");
        if !at_a_border {
            assert_eq!(whole, Err(DecodeError::TruncatedRecord));
        }
        let mut walker = records::Records::new(&bytes[..length]);
        let mut read = 0;
        while let Some(message) = walker.next_complete() {
            read += records::LENGTH_BYTES + message.len();
        }
        assert_eq!(read + walker.rest().len(), length, "nothing is lost");
    }
}
