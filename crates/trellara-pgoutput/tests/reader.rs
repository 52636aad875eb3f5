//! Reading the records of whole transactions, as bundles and as chunks cut anywhere.

mod support;

use bytes::Bytes;
use proptest::prelude::*;
use support::{VERSIONS, decode_all, in_stream_flags, scenario, text};
use trellara_envelope::{AbortedSet, Oid, Xid, records};
use trellara_pgoutput::{ChangeReader, Error, Kind, MAX_RECORD_BYTES, Message, decode, peek};

/// The first streamed transaction of a scenario as the relay stores it: its records, and what was
/// rolled back of it.
fn streamed(version: u32, name: &str) -> (Vec<u8>, AbortedSet) {
    let messages = scenario(version, name);
    let mut bytes = Vec::new();
    let mut aborted = AbortedSet::new();
    for (message, in_stream) in messages.iter().zip(in_stream_flags(&messages)) {
        match decode(message, in_stream).expect("a real message") {
            Message::StreamAbort { subxid, .. } => aborted.insert(subxid),
            Message::StreamCommit { .. } => return (bytes, aborted),
            decoded if in_stream && decoded.kind().is_record() => {
                records::push(&mut bytes, message);
            }
            _ => {}
        }
    }
    panic!("{name} must hold a streamed commit")
}

/// What a reader saw: kind, total order, and the first column of new rows.
type Seen = Vec<(Kind, Option<u64>, Option<String>)>;

fn read(
    streamed: bool,
    aborted: &AbortedSet,
    pieces: impl IntoIterator<Item = Bytes>,
) -> Result<(Seen, u64), Error> {
    let mut reader = ChangeReader::new(streamed, aborted);
    let mut seen = Vec::new();
    for piece in pieces {
        reader.feed(piece);
        while let Some(change) = reader.next_change()? {
            let first = match change.message {
                Message::Insert { new, .. } | Message::Update { new, .. } => {
                    text(new).into_iter().next()
                }
                _ => None,
            };
            seen.push((change.message.kind(), change.total_order, first));
        }
    }
    reader.finish().map(|changes| (seen, changes))
}

fn whole(bytes: &[u8]) -> [Bytes; 1] {
    [Bytes::copy_from_slice(bytes)]
}

#[test]
fn what_was_rolled_back_is_neither_read_nor_counted() {
    for version in VERSIONS {
        let (bytes, aborted) = streamed(version, "streamed_savepoints");
        assert_eq!(aborted.ranges().len(), 2, "two savepoints were rolled back");
        let (seen, changes) = read(true, &aborted, whole(&bytes)).expect("real records");
        let order: Vec<_> = seen.iter().filter_map(|(_, order, _)| *order).collect();
        assert_eq!(order, (1..=changes).collect::<Vec<_>>());
        let rows: Vec<_> = seen
            .iter()
            .filter(|(kind, ..)| *kind == Kind::Insert)
            .map(|(_, _, first)| first.as_deref().expect("a row").parse().expect("a number"))
            .collect::<Vec<u32>>();
        let expected: Vec<u32> = (1..=70).chain([5000, 5001, 9000]).collect();
        assert_eq!(rows, expected, "PostgreSQL {version}");
        // 73 inserts, two key changes, a delete and a truncate.
        assert_eq!(changes, 77);
        let changes = seen.iter().filter(|(_, order, _)| order.is_some());
        let last: Vec<_> = changes.rev().take(3).map(|(kind, ..)| *kind).collect();
        assert_eq!(last, [Kind::Insert, Kind::Truncate, Kind::Delete]);
    }
}

#[test]
fn descriptions_under_an_aborted_id_are_kept() {
    let (bytes, _) = streamed(18, "streamed_savepoints");
    let everything = AbortedSet::from_iter([trellara_envelope::AbortedRange {
        first: Xid(0),
        last: Xid(u32::MAX),
    }]);
    let (seen, changes) = read(true, &everything, whole(&bytes)).expect("real records");
    assert_eq!(changes, 0);
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|(kind, ..)| *kind == Kind::Relation));
}

#[test]
fn tables_change_their_shape_inside_a_streamed_transaction() {
    for version in VERSIONS {
        let (bytes, aborted) = streamed(version, "ddl_inside_stream");
        let mut reader = ChangeReader::new(true, &aborted);
        reader.feed(Bytes::from(bytes));
        let mut widths = Vec::new();
        let mut message_seen = false;
        while let Some(change) = reader.next_change().expect("real records") {
            match change.message {
                Message::Insert { relation, new, .. } => {
                    let known = change.relations.get(relation).expect("described");
                    assert_eq!(new.len(), known.columns.len());
                    if widths.last() != Some(&new.len()) {
                        widths.push(new.len());
                    }
                    if let Some(state) = known.columns.get(1) {
                        let mood = change.relations.type_name(state.type_oid).expect("named");
                        assert_eq!((&*mood.namespace, &*mood.name), ("public", "mood"));
                    }
                }
                Message::Logical(message) => {
                    assert_eq!(message.prefix, "inside");
                    assert_eq!(change.total_order, None);
                    message_seen = true;
                }
                _ => {}
            }
        }
        assert_eq!(widths, [1, 2]);
        assert!(message_seen);
        assert_eq!(reader.finish(), Ok(140));
    }
}

#[test]
fn the_same_transaction_has_the_same_order_streamed_or_not() {
    let (bytes, aborted) = streamed(18, "streamed_savepoints");
    let (seen, changes) = read(true, &aborted, whole(&bytes)).expect("streamed");
    // The same without ids and without what was rolled back: what a source with much memory sends.
    let mut plain = Vec::new();
    for record in records::Records::new(&bytes) {
        let record = record.expect("whole records");
        let glance = peek(record, true).expect("peek");
        let xid = glance.xid.expect("an id in every record");
        if glance.kind == Kind::Relation || !aborted.contains(xid) {
            let message = [&record[..1], &record[5..]].concat();
            records::push(&mut plain, &message);
        }
    }
    let plain = read(false, &AbortedSet::EMPTY, whole(&plain)).expect("not streamed");
    assert_eq!(plain, (seen, changes));
}

/// In pieces this small, copying what was gathered again for each would take hours.
#[test]
fn a_row_far_larger_than_a_chunk_is_gathered_once() {
    let value = vec![b'v'; 16 << 20];
    let mut bytes = Vec::new();
    let description = b"R\0\0\0\x07public\0t\0d\0\x01\0a\0\0\0\0\x19\xff\xff\xff\xff";
    records::push(&mut bytes, description);
    let mut row = b"I\0\0\0\x07N\0\x01t".to_vec();
    row.extend_from_slice(&(value.len() as u32).to_be_bytes());
    row.extend_from_slice(&value);
    records::push(&mut bytes, &row);
    records::push(&mut bytes, b"I\0\0\0\x07N\0\x01n");
    let bytes = Bytes::from(bytes);
    let chunks = (0..bytes.len())
        .step_by(1 << 10)
        .map(|at| bytes.slice(at..bytes.len().min(at + (1 << 10))));
    let (seen, changes) = read(false, &AbortedSet::EMPTY, chunks).expect("chunks");
    assert_eq!(changes, 2);
    assert_eq!(seen[1].2.as_ref().map(String::len), Some(value.len()));
    assert_eq!(seen[2].2.as_deref(), Some("NULL"));
}

#[test]
fn damaged_records_are_named() {
    let described = {
        let mut bytes = Vec::new();
        records::push(
            &mut bytes,
            b"R\0\0\0\x07public\0t\0d\0\x01\0a\0\0\0\0\x19\xff\xff\xff\xff",
        );
        bytes
    };
    let with = |record: &[u8]| {
        let mut bytes = described.clone();
        records::push(&mut bytes, record);
        read(false, &AbortedSet::EMPTY, whole(&bytes)).expect_err("damaged")
    };
    assert_eq!(with(b"I\0\0\0\x08N\0\x01n"), Error::UnknownRelation(Oid(8)));
    assert_eq!(
        with(b"I\0\0\0\x07N\0\x02nn"),
        Error::ColumnCount {
            relation: Oid(7),
            have: 2,
            need: 1
        }
    );
    assert_eq!(
        with(b"D\0\0\0\x07K\0\0"),
        Error::ColumnCount {
            relation: Oid(7),
            have: 0,
            need: 1
        }
    );
    assert_eq!(
        with(b"T\0\0\0\x02\0\0\0\0\x07\0\0\0\x09"),
        Error::UnknownRelation(Oid(9))
    );
    assert_eq!(with(b"S\0\0\0\x07\x01"), Error::OutOfPlace("stream start"));
    assert_eq!(with(b""), Error::Truncated { what: "kind" });

    let cut = &described[..described.len() - 1];
    assert_eq!(
        read(false, &AbortedSet::EMPTY, whole(cut)),
        Err(Error::TruncatedRecord)
    );
    let huge = u32::MAX.to_be_bytes();
    assert_eq!(
        read(false, &AbortedSet::EMPTY, whole(&huge)),
        Err(Error::RecordTooLarge(u32::MAX as usize))
    );
    assert!(MAX_RECORD_BYTES < u32::MAX as usize);
}

/// A bundle describes a table once. Its transactions are read in order, or one of them after the
/// descriptions of those before it.
#[test]
fn transactions_of_a_bundle_share_their_descriptions() {
    let mut first = Vec::new();
    records::push(&mut first, b"Y\0\0\0\x63public\0mood\0");
    records::push(
        &mut first,
        b"R\0\0\0\x07public\0t\0d\0\x01\0a\0\0\0\0\x63\xff\xff\xff\xff",
    );
    records::push(&mut first, b"I\0\0\0\x07N\0\x01n");
    let mut second = Vec::new();
    records::push(&mut second, b"I\0\0\0\x07N\0\x01n");
    records::push(&mut second, b"T\0\0\0\x01\0\0\0\0\x07");
    assert_eq!(
        read(false, &AbortedSet::EMPTY, whole(&second)),
        Err(Error::UnknownRelation(Oid(7)))
    );

    let none = AbortedSet::EMPTY;
    let mut reader = ChangeReader::new(false, &none);
    let mut orders = Vec::new();
    for transaction in [&first, &second] {
        reader.feed(Bytes::copy_from_slice(transaction));
        while let Some(change) = reader.next_change().expect("described") {
            orders.extend(change.total_order);
        }
        reader.next_transaction().expect("whole");
    }
    assert_eq!(orders, [1, 1, 2], "each transaction counts from 1");

    let mut alone = ChangeReader::new(false, &none);
    alone.describe(&first).expect("whole records");
    alone.feed(Bytes::from(second));
    let change = alone.next_change().expect("described").expect("an insert");
    assert_eq!(change.total_order, Some(1));
    assert_eq!(
        change
            .relations
            .type_name(Oid(0x63))
            .map(|known| known.name.as_str()),
        Some("mood")
    );
    let cut = &first[..first.len() - 1];
    assert_eq!(
        ChangeReader::new(false, &none).describe(cut),
        Err(Error::TruncatedRecord)
    );
}

proptest! {
    /// However the chunks are cut, even byte by byte, the same changes come out.
    #[test]
    fn chunks_may_be_cut_anywhere(cuts in prop::collection::vec(0usize..4000, 0..40)) {
        let (bytes, aborted) = streamed(15, "streamed_savepoints");
        let expected = read(true, &aborted, whole(&bytes)).expect("whole");
        let bytes = Bytes::from(bytes);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| bytes.slice(pair[0]..pair[1]));
        prop_assert_eq!(read(true, &aborted, pieces).expect("cut"), expected);
    }
}

#[test]
fn single_bytes_are_pieces_too() {
    let (bytes, aborted) = streamed(17, "ddl_inside_stream");
    let expected = read(true, &aborted, whole(&bytes)).expect("whole");
    let pieces = bytes.iter().map(|byte| Bytes::copy_from_slice(&[*byte]));
    assert_eq!(
        read(true, &aborted, pieces).expect("byte by byte"),
        expected
    );
}

#[test]
fn blocks_of_real_streams_decode_whole() {
    let messages = scenario(16, "streamed_rollback");
    let decoded = decode_all(&messages);
    let Message::StreamStart { xid, first: true } = decoded[0] else {
        panic!("{:?}", decoded[0])
    };
    assert!(decoded.contains(&Message::StreamAbort { xid, subxid: xid }));
}
