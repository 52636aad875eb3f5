//! Everything that real servers sent: decoded whole, refused when cut; see `vectors/README.md`.

mod support;

use std::collections::BTreeSet;

use support::{VERSIONS, in_stream_flags, scenario, scenario_names};
use trellara_pgoutput::{Kind, Message, decode, peek};

#[test]
fn every_version_has_every_scenario() {
    let names = scenario_names(VERSIONS[0]);
    assert!(names.len() >= 15, "{names:?}");
    for version in VERSIONS {
        assert_eq!(scenario_names(version), names, "PostgreSQL {version}");
    }
}

#[test]
fn peek_agrees_with_decode_on_every_message() {
    let mut kinds = BTreeSet::new();
    for version in VERSIONS {
        for name in scenario_names(version) {
            let messages = scenario(version, &name);
            for (message, in_stream) in messages.iter().zip(in_stream_flags(&messages)) {
                let glance = peek(message, in_stream).expect("peek");
                let decoded = decode(message, in_stream).expect("decode");
                kinds.insert(glance.kind);
                assert_eq!(glance.kind, decoded.kind());
                let (xid, relations) = match decoded {
                    Message::Relation(body) => (body.xid, vec![body.oid]),
                    Message::Insert { xid, relation, .. }
                    | Message::Update { xid, relation, .. }
                    | Message::Delete { xid, relation, .. } => (xid, vec![relation]),
                    Message::Truncate { xid, relations, .. } => (xid, relations.collect()),
                    Message::Type(body) => (body.xid, Vec::new()),
                    Message::Logical(body) => (body.xid, Vec::new()),
                    _ => (None, Vec::new()),
                };
                assert_eq!(glance.xid, xid);
                assert_eq!(glance.relations.collect::<Vec<_>>(), relations);
                assert_eq!(
                    xid.is_some(),
                    in_stream && glance.kind.carries_xid(),
                    "an id exactly where one belongs"
                );
            }
        }
    }
    assert_eq!(
        kinds.len(),
        Kind::ALL.len(),
        "every kind was captured: {kinds:?}"
    );
}

#[test]
fn every_truncation_of_every_message_is_refused() {
    for version in VERSIONS {
        for name in scenario_names(version) {
            let messages = scenario(version, &name);
            for (message, in_stream) in messages.iter().zip(in_stream_flags(&messages)) {
                for length in 0..message.len() {
                    let cut = decode(&message[..length], in_stream);
                    assert!(cut.is_err(), "{version} {name}: {length} bytes of {cut:?}");
                }
                let mut longer = message.clone();
                longer.push(0);
                decode(&longer, in_stream).expect_err("a byte left over");
            }
        }
    }
}

#[test]
fn descriptions_encode_to_the_bytes_they_came_from() {
    let mut seen = 0;
    for version in VERSIONS {
        for name in scenario_names(version) {
            let messages = scenario(version, &name);
            for (message, in_stream) in messages.iter().zip(in_stream_flags(&messages)) {
                match decode(message, in_stream).expect("decode") {
                    Message::Relation(body) => {
                        assert_eq!(body.encode(body.xid), *message);
                        let plain = body.encode(None);
                        let Ok(Message::Relation(again)) = decode(&plain, false) else {
                            panic!("a description outside a stream block")
                        };
                        assert_eq!(again.fingerprint(), body.fingerprint());
                    }
                    Message::Type(body) => assert_eq!(body.encode(body.xid), *message),
                    _ => continue,
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
}
