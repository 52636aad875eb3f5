//! What no server in the captures sends: refusals, flags, and the walsender's envelope.

use trellara_envelope::{CommitTime, Lsn, Xid};
use trellara_pgoutput::{
    Error, Kind, Message, TruncateOptions, Value, Walsender, decode, peek, status_update, walsender,
};

fn refused(message: &[u8]) -> Error {
    decode(message, false).expect_err("refused")
}

#[test]
fn two_phase_messages_are_refused_by_name() {
    let kinds = [
        (b'b', "begin prepare"),
        (b'P', "prepare"),
        (b'K', "commit prepared"),
        (b'r', "rollback prepared"),
        (b'p', "stream prepare"),
    ];
    for (kind, name) in kinds {
        assert_eq!(refused(&[kind]), Error::TwoPhase(name));
        assert_eq!(peek(&[kind, 0, 0], true), Err(Error::TwoPhase(name)));
        assert!(refused(&[kind]).to_string().contains(name));
    }
}

#[test]
fn every_other_byte_is_a_kind_or_unknown() {
    for byte in 0..=u8::MAX {
        match Kind::of(byte) {
            Ok(kind) => assert!(Kind::ALL.contains(&kind) && kind as u8 == byte),
            Err(Error::UnknownKind(named)) => assert_eq!(named, byte),
            Err(Error::TwoPhase(_)) => assert!(b"bPKrp".contains(&byte)),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(refused(b""), Error::Truncated { what: "kind" });
}

/// PostgreSQL 18 sends an abort for a transaction of which it never sent a block (B24): it reads
/// like every other, whether or not a stream is open.
#[test]
fn b24_a_stray_stream_abort_is_read() {
    for in_stream in [false, true] {
        assert_eq!(
            decode(b"A\0\0\x03\x2a\0\0\x03\x2b", in_stream),
            Ok(Message::StreamAbort {
                xid: Xid(0x32a),
                subxid: Xid(0x32b)
            })
        );
    }
    // Version 4 of the protocol appends a position and a time; we never ask for it.
    let version_4 = [&b"A\0\0\x03\x2a\0\0\x03\x2b"[..], &[0; 16]].concat();
    assert!(matches!(
        refused(&version_4),
        Error::TrailingBytes { bytes: 16, .. }
    ));
}

#[test]
fn undefined_values_are_refused() {
    let undefined = |message: &[u8], expected: &str, number: u32| match refused(message) {
        Error::Undefined { what, value } => assert_eq!((what, value), (expected, number)),
        other => panic!("{other}"),
    };
    undefined(&[&b"C\x01"[..], &[0; 24]].concat(), "commit flags", 1);
    undefined(b"S\0\0\0\x01\x02", "first-segment flag", 2);
    undefined(b"T\0\0\0\0\x04", "truncate options", 4);
    undefined(b"T\xff\xff\xff\xff\0", "number of relations", u32::MAX);
    undefined(b"I\0\0\0\x01K\0\0", "tuple kind", u32::from(b'K'));
    undefined(b"D\0\0\0\x01N\0\0", "tuple kind", u32::from(b'N'));
    undefined(b"U\0\0\0\x01K\0\0K\0\0", "tuple kind", u32::from(b'K'));
    undefined(b"I\0\0\0\x01N\0\x01x", "column kind", u32::from(b'x'));
    undefined(
        b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xff",
        "column length",
        u32::MAX,
    );
    undefined(
        b"R\0\0\0\x01s\0t\0x\0\0",
        "replica identity",
        u32::from(b'x'),
    );
    undefined(
        b"R\0\0\0\x01s\0t\0d\0\x01\x02a\0\0\0\0\0\0\0\0\0",
        "column flags",
        2,
    );
    undefined(b"M\x02\0\0\0\0\0\0\0\0p\0\0\0\0\0", "message flags", 2);
    assert_eq!(
        refused(b"R\0\0\0\x01s\xff\0t\0d\0\0"),
        Error::NotUtf8 {
            what: "relation schema"
        }
    );
}

/// A length beyond the message must be refused without allocating for it.
#[test]
fn lengths_are_checked_before_they_are_used() {
    for message in [
        &b"I\0\0\0\x01N\0\x01t\x7f\xff\xff\xff"[..],
        b"I\0\0\0\x01N\xff\xff",
        b"T\x7f\xff\xff\xff\0\0\0\0\x01",
        b"R\0\0\0\x01s\0t\0d\xff\xff",
        b"M\0\0\0\0\0\0\0\0\0p\0\x7f\xff\xff\xffx",
        b"O\0\0\0\0\0\0\0\0no zero byte",
    ] {
        assert!(
            matches!(refused(message), Error::Truncated { .. }),
            "{message:?}"
        );
    }
    assert!(matches!(
        peek(b"T\x7f\xff\xff\xff\0\0\0\0\x01", false),
        Err(Error::Truncated { .. })
    ));
}

#[test]
fn truncate_options_and_binary_columns_are_read() {
    let Ok(Message::Truncate { options, .. }) = decode(b"T\0\0\0\0\x02", false) else {
        panic!()
    };
    assert_eq!(
        options,
        TruncateOptions {
            cascade: false,
            restart_identity: true
        }
    );
    let Ok(Message::Insert { new, .. }) = decode(b"I\0\0\0\x01N\0\x01b\0\0\0\x02\0\xff", false)
    else {
        panic!()
    };
    assert_eq!(new.iter().next(), Some(Value::Binary(&[0, 0xff])));
    assert_eq!(new.wire_bytes(), 7);
}

#[test]
fn nothing_printed_for_debugging_shows_a_value() {
    let insert = decode(b"I\0\0\0\x01N\0\x01t\0\0\0\x06secret", false).expect("an insert");
    let printed = format!("{insert:?}");
    assert!(
        printed.contains("Text(6 bytes)") && !printed.contains("secret"),
        "{printed}"
    );
    let message = decode(b"M\0\0\0\0\0\0\0\0\0p\0\0\0\0\x06secret", false).expect("a message");
    assert!(!format!("{message:?}").contains("secret"));
    let data = [&b"w"[..], &[0; 24], b"secret"].concat();
    assert!(!format!("{:?}", walsender(&data)).contains("secret"));
}

#[test]
fn the_walsender_envelope_is_read() {
    let mut data = vec![b'w'];
    for field in [0x1_0000_0002u64, 0x1_0000_0003, 4] {
        data.extend_from_slice(&field.to_be_bytes());
    }
    data.extend_from_slice(b"E");
    assert_eq!(
        walsender(&data),
        Ok(Walsender::XLogData {
            start: Lsn(0x1_0000_0002),
            end: Lsn(0x1_0000_0003),
            send_time: CommitTime(4),
            payload: b"E",
        })
    );
    let mut keepalive = vec![b'k'];
    for field in [7u64, 8] {
        keepalive.extend_from_slice(&field.to_be_bytes());
    }
    keepalive.push(1);
    assert_eq!(
        walsender(&keepalive),
        Ok(Walsender::Keepalive {
            wal_end: Lsn(7),
            send_time: CommitTime(8),
            reply_requested: true,
        })
    );
    for length in 0..keepalive.len() {
        walsender(&keepalive[..length]).expect_err("cut");
        walsender(&data[..length]).expect_err("cut");
    }
    keepalive.push(0);
    walsender(&keepalive).expect_err("a byte left over");
    assert_eq!(walsender(b"x"), Err(Error::UnknownKind(b'x')));
}

#[test]
fn status_updates_have_the_bytes_of_the_protocol() {
    let update = status_update(Lsn(1), Lsn(0x0203), Lsn(4), CommitTime(-1), true);
    let mut expected = vec![b'r'];
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 2, 3]);
    expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 4]);
    expected.extend_from_slice(&[0xff; 8]);
    expected.push(1);
    assert_eq!(update.as_slice(), expected);
    let quiet = status_update(Lsn(1), Lsn(1), Lsn(1), CommitTime(0), false);
    assert_eq!(quiet.last(), Some(&0));
}
