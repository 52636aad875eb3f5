//! What real servers sent for each scenario of `vectors/`, value by value.

mod support;

use std::collections::BTreeSet;

use support::{VERSIONS, decode_all, outline, scenario, text};
use trellara_envelope::{CommitTime, Lsn, Oid};
use trellara_pgoutput::{Message, OldTuple, Relation, ReplicaIdentity, TruncateOptions, Value};

/// Runs `check` on the decoded messages of a scenario, for each version.
fn check(name: &str, check: impl Fn(u32, &[Message<'_>])) {
    for version in VERSIONS {
        let messages = scenario(version, name);
        check(version, &decode_all(&messages));
    }
}

fn relation(messages: &[Message<'_>], name: &str) -> Relation {
    let body = messages
        .iter()
        .find_map(|message| match message {
            Message::Relation(body) if body.name == name => Some(body),
            _ => None,
        })
        .unwrap_or_else(|| panic!("{name} must be described"));
    Relation::from(body)
}

#[test]
fn identity_default_sends_the_key_only_when_it_changed() {
    check("identity_default", |_, messages| {
        assert_eq!(outline(messages), "BRIIC BUC BUC BDC");
        let item = relation(messages, "item");
        assert_eq!(item.namespace, "public");
        assert_eq!(item.replica_identity, ReplicaIdentity::Default);
        let shape: Vec<_> = item
            .columns
            .iter()
            .map(|c| (c.name.as_str(), c.key))
            .collect();
        assert_eq!(shape, [("id", true), ("name", false), ("price", false)]);
        assert_eq!(item.columns[2].type_oid, Oid(1700));
        assert_eq!(item.columns[2].type_modifier, ((10 << 16) | 2) + 4);
        assert_eq!(item.columns[0].type_modifier, -1);

        let Message::Begin {
            final_lsn,
            xid,
            commit_time,
        } = messages[0]
        else {
            panic!()
        };
        let Message::Commit {
            flags,
            commit_lsn,
            end_lsn,
            commit_time: again,
        } = messages[4]
        else {
            panic!()
        };
        assert_eq!((flags, commit_lsn, again), (0, final_lsn, commit_time));
        assert!(end_lsn > commit_lsn && xid.0 > 0);
        assert!(commit_time.unix_us() > 1_700_000_000_000_000);

        let Message::Insert {
            new,
            relation,
            xid: None,
        } = messages[2]
        else {
            panic!()
        };
        assert_eq!(relation, item.oid);
        assert_eq!(text(new), ["1", "one", "1.50"]);
        let Message::Insert { new, .. } = messages[3] else {
            panic!()
        };
        assert_eq!(text(new), ["2", "NULL", "NULL"]);
        let Message::Update { old: None, new, .. } = messages[6] else {
            panic!()
        };
        assert_eq!(text(new), ["1", "uno", "1.50"]);
        let Message::Update {
            old: Some(OldTuple::Key(old)),
            new,
            ..
        } = messages[9]
        else {
            panic!()
        };
        assert_eq!(text(old), ["1", "NULL", "NULL"]);
        assert_eq!(text(new), ["3", "uno", "1.50"]);
        let Message::Delete {
            old: OldTuple::Key(old),
            ..
        } = messages[12]
        else {
            panic!()
        };
        assert_eq!(text(old), ["3", "NULL", "NULL"]);
    });
}

#[test]
fn identity_full_sends_whole_old_rows() {
    check("identity_full", |_, messages| {
        assert_eq!(outline(messages), "BRIIIC BUC BDDC");
        let line = relation(messages, "line");
        assert_eq!(line.replica_identity, ReplicaIdentity::Full);
        assert!(line.columns.iter().all(|column| column.key));
        let Message::Update {
            old: Some(OldTuple::Full(old)),
            new,
            ..
        } = messages[7]
        else {
            panic!()
        };
        assert_eq!(text(old), ["NULL", "NULL"]);
        assert_eq!(text(new), ["NULL", "2"]);
        for at in [10, 11] {
            let Message::Delete {
                old: OldTuple::Full(old),
                ..
            } = messages[at]
            else {
                panic!()
            };
            assert_eq!(text(old), ["pen", "1"]);
        }
    });
}

#[test]
fn identity_index_marks_the_columns_of_the_index() {
    check("identity_index", |_, messages| {
        assert_eq!(outline(messages), "BRIC BUC BUC BDC");
        let person = relation(messages, "person");
        assert_eq!(person.replica_identity, ReplicaIdentity::Index);
        let keys: Vec<_> = person.columns.iter().map(|column| column.key).collect();
        assert_eq!(keys, [false, true, false]);
        let Message::Update { old: None, .. } = messages[5] else {
            panic!()
        };
        let Message::Update {
            old: Some(OldTuple::Key(old)),
            ..
        } = messages[8]
        else {
            panic!()
        };
        assert_eq!(text(old), ["NULL", "a@example.org", "NULL"]);
        let Message::Delete {
            old: OldTuple::Key(old),
            ..
        } = messages[11]
        else {
            panic!()
        };
        assert_eq!(text(old), ["NULL", "b@example.org", "NULL"]);
    });
}

#[test]
fn identity_nothing_and_tables_without_columns() {
    check("identity_nothing", |_, messages| {
        assert_eq!(outline(messages), "BRIC BRIC BRIC");
        assert_eq!(
            relation(messages, "event").replica_identity,
            ReplicaIdentity::Nothing
        );
        let keyless = relation(messages, "keyless");
        assert_eq!(keyless.replica_identity, ReplicaIdentity::Default);
        assert!(!keyless.columns[0].key);
        let Message::Insert { new, .. } = messages[2] else {
            panic!()
        };
        assert_eq!(text(new)[1], "start");
        assert!(relation(messages, "no Columns").columns.is_empty());
        let Message::Insert { new, .. } = messages[10] else {
            panic!()
        };
        assert!(new.is_empty());
    });
}

#[test]
fn unchanged_toast_travels_as_itself() {
    check("toast_unchanged", |_, messages| {
        let updates: Vec<_> = messages
            .iter()
            .filter_map(|message| match message {
                Message::Update { old, new, .. } => Some((*old, *new)),
                _ => None,
            })
            .collect();
        assert_eq!(updates.len(), 4);
        let (None, new) = updates[0] else {
            panic!("{:?}", updates[0].0)
        };
        assert_eq!(text(new), ["1", "UNCHANGED", "1"]);
        let (Some(OldTuple::Key(_)), new) = updates[1] else {
            panic!()
        };
        assert_eq!(text(new), ["2", "UNCHANGED", "1"]);
        let (None, new) = updates[2] else { panic!() };
        assert_eq!(text(new), ["2", "short", "1"]);
        let (Some(OldTuple::Full(old)), new) = updates[3] else {
            panic!()
        };
        assert_eq!(text(old), ["1", &"y".repeat(2100), "0"]);
        // With FULL the value is in the old row, yet the new row may still leave it out.
        assert_eq!(new.iter().nth(1), Some(Value::Unchanged));
        assert_eq!(text(new)[2], "1");
    });
}

#[test]
fn truncate_names_all_tables_of_the_statement() {
    check("truncate_several", |_, messages| {
        assert_eq!(outline(messages), "BRTC BRRRTC");
        let oid = |name| relation(messages, name).oid;
        let Message::Truncate {
            relations,
            options,
            xid: None,
        } = messages[2]
        else {
            panic!()
        };
        assert_eq!(relations.collect::<Vec<_>>(), [oid("alone")]);
        assert_eq!(options, TruncateOptions::default());
        let Message::Truncate {
            relations, options, ..
        } = messages[8]
        else {
            panic!()
        };
        assert_eq!(relations.len(), 3);
        let named: BTreeSet<_> = relations.collect();
        assert_eq!(named, BTreeSet::from(["parent", "alone", "child"].map(oid)));
        assert_eq!(
            options,
            TruncateOptions {
                cascade: true,
                restart_identity: true
            }
        );
    });
}

#[test]
fn types_that_are_not_built_in_are_named() {
    check("types", |_, messages| {
        assert_eq!(outline(messages), "BYYYYRIC BIC");
        let types: Vec<_> = messages
            .iter()
            .filter_map(|message| match message {
                Message::Type(body) => Some((body.namespace, body.name, body.oid)),
                _ => None,
            })
            .collect();
        let names: Vec<_> = types
            .iter()
            .map(|(schema, name, _)| (*schema, *name))
            .collect();
        // A domain is sent under its own oid, its name under that of its base type.
        assert_eq!(
            names,
            [
                ("Shop", "colour"),
                ("Shop", "_colour"),
                ("", "numeric"),
                ("public", "address")
            ]
        );
        let order = relation(messages, "Order");
        assert_eq!(order.namespace, "Shop");
        assert_eq!(order.columns[1].type_oid, types[0].2);
        assert_eq!(order.columns[2].type_oid, types[1].2);
        assert_eq!(order.columns[4].type_oid, types[3].2);
        let Message::Insert { new, .. } = messages[6] else {
            panic!()
        };
        assert_eq!(
            text(new),
            [
                "00000000-0000-0000-0000-000000000001",
                "red",
                "{red,green}",
                "12.500",
                "(\"Main \"\"St\"\"\",7)",
                "\\x00ff",
                "{\"a\": [1, null]}",
                "2026-11-30",
                "2026-11-30 08:00:00+00",
                "1 day 02:00:00",
                "t",
                "0.1",
                "Grüße",
                "[1,5)",
                "{{1,2},{3,NULL}}",
            ]
        );
        let Message::Insert { new, .. } = messages[9] else {
            panic!()
        };
        assert_eq!(text(new)[1..], ["NULL"; 14]);
    });
}

#[test]
fn ddl_inside_a_transaction_describes_the_table_again() {
    check("ddl_inside", |_, messages| {
        assert_eq!(outline(messages), "BRIRIRUC");
        let columns: Vec<Vec<_>> = messages
            .iter()
            .filter_map(|message| match message {
                Message::Relation(body) => Some(body.columns.map(|c| c.name).collect()),
                _ => None,
            })
            .collect();
        assert_eq!(columns[0], ["id", "owner"]);
        assert_eq!(columns[1], ["id", "owner", "balance"]);
        assert_eq!(columns[2], ["id", "holder", "balance"]);
        let Message::Update { new, .. } = messages[6] else {
            panic!()
        };
        assert_eq!(text(new), ["1", "ann", "30"]);
    });
}

#[test]
fn logical_messages_transactional_or_not() {
    check("logical_messages", |_, messages| {
        assert_eq!(outline(messages), "M BMC");
        let Message::Logical(at_once) = messages[0] else {
            panic!()
        };
        assert!(!at_once.transactional && at_once.xid.is_none() && at_once.lsn > Lsn::ZERO);
        assert_eq!(
            (at_once.prefix, at_once.content),
            ("at once", &b"no transaction"[..])
        );
        let Message::Logical(in_order) = messages[2] else {
            panic!()
        };
        assert!(in_order.transactional);
        assert_eq!(
            (in_order.prefix, in_order.content),
            ("in order", &[0, 1, 0xff][..])
        );
    });
}

#[test]
fn origins_are_named_with_their_position() {
    check("origin", |_, messages| {
        assert_eq!(outline(messages), "BORIC");
        let Message::Origin { commit_lsn, name } = messages[1] else {
            panic!()
        };
        assert_eq!((commit_lsn, name), (Lsn(0xAB_0000_00CD), "elsewhere"));
        // The commit time is the origin's as well: it was set by hand.
        let Message::Begin { commit_time, .. } = messages[0] else {
            panic!()
        };
        assert_eq!(commit_time, CommitTime(820_540_800_000_000));
    });
}

#[test]
fn partitions_are_published_as_their_root() {
    check("partition_root", |_, messages| {
        let reading = relation(messages, "reading");
        // PostgreSQL describes the partition too, although no change names it: a reader must not
        // take a description for a promise of changes.
        relation(messages, "reading_low");
        for message in messages {
            match message {
                Message::Insert { relation, .. }
                | Message::Update { relation, .. }
                | Message::Delete { relation, .. } => assert_eq!(*relation, reading.oid),
                Message::Truncate { relations, .. } => {
                    assert_eq!(relations.collect::<Vec<_>>(), [reading.oid]);
                }
                _ => {}
            }
        }
        let rows: Vec<_> = messages
            .iter()
            .filter_map(|message| match message {
                Message::Insert { new, .. } => Some(text(*new)),
                _ => None,
            })
            .collect();
        // The partition with another column order is printed in the root's; a row that moves
        // between partitions comes as a delete and an insert.
        assert_eq!(rows, [["1", "100"], ["11", "110"], ["12", "100"]]);
    });
}

#[test]
fn generated_and_dropped_columns_are_left_out() {
    check("generated_columns", |_, messages| {
        let columns = relation(messages, "box").columns;
        let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["id", "w"]);
        let Message::Update { new, .. } = messages[5] else {
            panic!()
        };
        assert_eq!(text(new), ["1", "4"]);
    });
}
