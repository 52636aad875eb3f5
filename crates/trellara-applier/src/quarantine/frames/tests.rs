use std::sync::Arc;

use trellara_envelope::{Body, CommitTime, Lsn, Oid, Xid};
use trellara_pgoutput::{ChangeReader, Message};

use super::*;
use crate::batch::Origin;
use crate::machine::testing::{self, Writer, checkpoint_at};

fn table(records: &mut Vec<u8>, oid: u32, columns: &[&str]) {
    let mut message = vec![b'R'];
    message.extend(oid.to_be_bytes());
    message.extend(b"public\0t\0n");
    message.extend((columns.len() as u16).to_be_bytes());
    for name in columns {
        message.push(0);
        message.extend(name.as_bytes());
        message.push(0);
        message.extend(23u32.to_be_bytes());
        message.extend((-1i32).to_be_bytes());
    }
    records::push(records, &message);
}

fn named_type(records: &mut Vec<u8>, oid: u32) {
    let mut message = vec![b'Y'];
    message.extend(oid.to_be_bytes());
    message.extend(b"public\0mood\0");
    records::push(records, &message);
}

fn insert(records: &mut Vec<u8>, oid: u32, values: &[&str]) {
    let mut message = vec![b'I'];
    message.extend(oid.to_be_bytes());
    message.push(b'N');
    message.extend((values.len() as u16).to_be_bytes());
    for value in values {
        message.push(b't');
        message.extend((value.len() as u32).to_be_bytes());
        message.extend(value.as_bytes());
    }
    records::push(records, &message);
}

fn unit(earlier: Vec<u8>, records: Vec<u8>) -> Unit {
    let (mut writer, _, _) = Writer::genesis(0x100);
    let bundle = writer.frame(Body::Bundle(Vec::new()), 0x300, Vec::new());
    let entry = BundleEntry {
        source: testing::on(1),
        commit_lsn: Lsn(0x1f8),
        end_lsn: Lsn(0x200),
        xid: Xid(7),
        commit_time: CommitTime(9),
        bytes: records.len() as u32,
        changes: 1,
    };
    Unit {
        origin: Arc::new(Origin {
            header: bundle.frame.header.clone(),
            sequence: bundle.sequence,
            digest: bundle.digest,
        }),
        entry,
        identity: entry.identity(),
        hash: entry.identity().hash(),
        end_lsn: entry.end_lsn,
        records: records.into(),
        earlier: earlier.into(),
        begins: true,
        after: checkpoint_at(3, 0x200),
    }
}

/// Relation and values of each insert that a reader of the frame finds.
fn read(recut: &Recut) -> Vec<(String, Vec<String>)> {
    let frame = Frame::decode(&recut.bytes).unwrap();
    let none_aborted = AbortedSet::EMPTY;
    let mut reader = ChangeReader::new(false, &none_aborted);
    reader.feed(frame.payload.clone());
    let mut found = Vec::new();
    while let Some(change) = reader.next_change().unwrap() {
        if let Message::Insert { relation, new, .. } = change.message {
            let relation = change.relations.get(relation).unwrap();
            let names: Vec<&str> = relation.columns.iter().map(|c| c.name.as_str()).collect();
            found.push((names.join(","), vec![format!("{}", new.len())]));
        }
    }
    reader.finish().unwrap();
    found
}

#[test]
fn a_kept_transaction_describes_its_tables_as_they_were_when_it_came() {
    let (mut earlier, mut records) = (Vec::new(), Vec::new());
    table(&mut earlier, 1, &["a"]);
    insert(&mut earlier, 1, &["1"]);
    named_type(&mut earlier, 90_000);
    table(&mut earlier, 2, &["other"]);
    insert(&mut earlier, 2, &["1"]);
    table(&mut earlier, 1, &["a", "b"]);
    insert(&mut earlier, 1, &["2", "2"]);
    insert(&mut records, 1, &["3", "3"]);
    let of = records.len();
    let unit = unit(earlier, records);
    let recut = Recut::of(&unit).unwrap();
    assert_eq!(read(&recut), [("a,b".to_owned(), vec!["2".to_owned()])]);
    let frame = Frame::decode(&recut.bytes).unwrap();
    assert_eq!(frame.header, unit.origin.header);
    let Body::Bundle(entries) = &frame.body else {
        panic!("{:?}", frame.body);
    };
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].identity(), unit.identity);
    assert_eq!(entries[0].bytes as usize, frame.payload.len());
    // The last description of its own table, the type, and nothing of the other table.
    let none_aborted = AbortedSet::EMPTY;
    let mut described = ChangeReader::new(false, &none_aborted);
    described.describe(&frame.payload).unwrap();
    assert!(described.relations().get(Oid(1)).is_some());
    assert!(described.relations().get(Oid(2)).is_none());
    assert!(described.relations().type_name(Oid(90_000)).is_some());
    assert!(frame.payload.len() > of);
    assert_eq!(recut.digest, FrameDigest::of(&recut.bytes));
}

#[test]
fn what_cannot_be_read_is_not_kept_as_if_it_could() {
    let mut records = Vec::new();
    insert(&mut records, 1, &["3"]);
    records.truncate(records.len() - 1);
    let halt = Recut::of(&unit(Vec::new(), records)).unwrap_err();
    assert_eq!(halt.code, HaltCode::Corrupt);
}
