//! One test for each row of the table.

use trellara_envelope::{
    FrameDigest, FrameOrdinal, Incarnation, StreamSequence, SystemId, Timeline,
};
use trellara_source::publication::{Member, TableName};

use super::*;

/// P, S and F where everything is well.
const P: Lsn = Lsn(500);
const S: Lsn = Lsn(400);
const F: Lsn = Lsn(600);

fn facts() -> Facts {
    let member = PublicationMember {
        member: Oid(16_395),
        relation: Oid(16_384),
        definition: FrameDigest::of(b"all columns"),
    };
    let publication = PublicationFacts {
        oid: Oid(16_390),
        inserts: true,
        updates: true,
        deletes: true,
        truncates: true,
        via_partition_root: true,
        all_tables: false,
        members: vec![Member {
            table: TableName {
                schema: "public".into(),
                name: "t".into(),
            },
            ids: member.clone(),
        }],
    };
    let history = SourceHistory {
        system: SystemId(7),
        timeline: Timeline(2),
        switches: vec![(Timeline(1), Lsn(300))],
    };
    Facts {
        slot: Some(SlotFacts {
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            two_phase: false,
            temporary: false,
            active_pid: Some(1),
            confirmed_flush: Some(S),
            restart_lsn: Some(S),
            wal_status: Some("reserved".into()),
            safe_wal_size: None,
            invalidation_reason: None,
            failover: true,
        }),
        database: "shop".into(),
        flush: Some(F),
        stream: StreamEnd::At(
            Tail {
                sequence: StreamSequence(9),
                ordinal: FrameOrdinal(8),
                digest: FrameDigest::of(b"tail"),
                position: P,
                incarnation: Incarnation(3),
            },
            history.source(),
        ),
        marker: Some(Marker {
            history: history.clone(),
            continues_at: Lsn(0),
            publication: publication.oid,
            publication_flags: publication.flags(),
            members_digest: publication.members_digest(),
            members: vec![member],
        }),
        publication: Some(publication),
        existing: BTreeSet::new(),
        history,
    }
}

#[track_caller]
fn refused(code: HaltCode, change: impl FnOnce(&mut Facts)) -> Halt {
    let mut facts = facts();
    change(&mut facts);
    match decide(&facts) {
        Outcome::Refuse(halt) => {
            assert_eq!(halt.code, code, "{halt}");
            assert!(!halt.reason.is_empty() && !halt.hint.is_empty());
            halt
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn at(timeline: u32, position: Lsn) -> impl FnOnce(&mut Facts) {
    move |facts| {
        let StreamEnd::At(tail, source) = &mut facts.stream else {
            unreachable!("set above")
        };
        tail.position = position;
        source.timeline = Timeline(timeline);
    }
}

#[test]
fn no_slot_and_no_stream_is_a_first_start() {
    let mut facts = facts();
    facts.slot = None;
    facts.stream = StreamEnd::Missing;
    assert_eq!(decide(&facts), Outcome::FirstStart);
}

#[test]
fn a_slot_without_stream_is_refused() {
    let halt = refused(HaltCode::NoStream, |facts| {
        facts.stream = StreamEnd::Missing
    });
    assert!(halt.reason.contains(&S.to_string()), "{halt}");
}

#[test]
fn a_stream_without_genesis_is_refused() {
    refused(HaltCode::NoStream, |facts| facts.stream = StreamEnd::Empty);
}

#[test]
fn a_foreign_message_at_the_tail_is_named() {
    refused(HaltCode::Corrupt, |facts| {
        facts.stream = StreamEnd::Foreign("no magic number".into());
    });
}

#[test]
fn a_missing_slot_is_lost() {
    refused(HaltCode::SlotLost, |facts| facts.slot = None);
}

#[test]
fn an_invalidated_slot_is_lost() {
    let halt = refused(HaltCode::SlotLost, |facts| {
        facts.slot.as_mut().unwrap().invalidation_reason = Some("wal_removed".into());
    });
    assert!(halt.reason.contains("wal_removed"), "{halt}");
    refused(HaltCode::SlotLost, |facts| {
        facts.slot.as_mut().unwrap().wal_status = Some("lost".into());
    });
}

#[test]
fn a_slot_of_another_shape_is_refused_by_name() {
    let halt = refused(HaltCode::Config, |facts| {
        facts.slot.as_mut().unwrap().plugin = Some("test_decoding".into());
    });
    assert!(halt.reason.contains("test_decoding"), "{halt}");
    let halt = refused(HaltCode::Config, |facts| {
        facts.slot.as_mut().unwrap().database = Some("other".into());
    });
    assert!(halt.reason.contains("other"), "{halt}");
    let halt = refused(HaltCode::Config, |facts| {
        facts.slot.as_mut().unwrap().two_phase = true;
    });
    assert!(halt.reason.contains("two_phase"), "{halt}");
}

#[test]
fn a_standby_is_not_a_source() {
    let mut facts = facts();
    facts.flush = None;
    assert_eq!(decide(&facts), Outcome::NotASource);
}

#[test]
fn another_cluster_is_another_source() {
    refused(HaltCode::DifferentSource, |facts| {
        facts.history.system = SystemId(8);
    });
}

#[test]
fn a_timeline_the_server_does_not_know_is_newer_than_it() {
    refused(HaltCode::StalePrimary, at(3, P));
}

#[test]
fn a_failover_above_the_position_goes_on() {
    let mut facts = facts();
    at(1, Lsn(300))(&mut facts);
    assert!(matches!(decide(&facts), Outcome::GoOn(..)));
}

#[test]
fn a_failover_below_the_position_diverged() {
    let halt = refused(HaltCode::Diverged, at(1, Lsn(301)));
    assert!(halt.reason.contains(&Lsn(300).to_string()), "{halt}");
}

#[test]
fn c01_another_server_with_the_same_timeline_number_diverged() {
    let halt = refused(HaltCode::Diverged, |facts| {
        facts.history.switches = vec![(Timeline(1), Lsn(310))];
    });
    assert!(halt.reason.contains("timeline 2"), "{halt}");
    let mut facts = facts();
    facts.history.timeline = Timeline(3);
    facts.history.switches.push((Timeline(2), P));
    assert!(
        matches!(decide(&facts), Outcome::GoOn(..)),
        "a later failover at P or above shares the past"
    );
}

#[test]
fn a_source_behind_the_stream_was_set_back() {
    refused(HaltCode::SourceRewound, |facts| {
        facts.flush = Some(Lsn(499))
    });
}

#[test]
fn a_slot_behind_the_stream_is_normal() {
    let Outcome::GoOn(tail, confirmed) = decide(&facts()) else {
        panic!("it must go on");
    };
    assert_eq!((tail.position, confirmed), (P, S));
    assert_eq!(after_marker(Acknowledge::Published, P, S), Ok(()));
    assert_eq!(after_marker(Acknowledge::Published, P, P), Ok(()));
}

#[test]
fn c03_a_slot_ahead_is_judged_after_the_marker_and_by_the_mode() {
    let ahead = Lsn(501);
    let mut facts = facts();
    facts.slot.as_mut().unwrap().confirmed_flush = Some(ahead);
    assert!(
        matches!(decide(&facts), Outcome::GoOn(..)),
        "a stale tail must not look like loss"
    );
    let halt = after_marker(Acknowledge::Published, P, ahead).expect_err("lost");
    assert_eq!(halt.code, HaltCode::StreamLostTail);
    assert_eq!(after_marker(Acknowledge::Applied, P, ahead), Ok(()));
}

#[test]
fn a_missing_publication_is_refused() {
    refused(HaltCode::Config, |facts| facts.publication = None);
}

#[test]
fn c06_a_member_that_left_and_came_back_needs_another_copy() {
    let halt = refused(HaltCode::Config, |facts| {
        facts.publication.as_mut().unwrap().members[0].ids.member = Oid(16_396);
    });
    assert!(halt.reason.contains("public"), "{halt}");
}

#[test]
fn c06_a_changed_filter_or_publication_is_refused() {
    refused(HaltCode::Config, |facts| {
        let ids = &mut facts.publication.as_mut().unwrap().members[0].ids;
        ids.definition = FrameDigest::of(b"two columns");
    });
    refused(HaltCode::Config, |facts| {
        facts.publication.as_mut().unwrap().oid = Oid(1);
    });
    refused(HaltCode::Config, |facts| {
        facts.publication.as_mut().unwrap().deletes = false;
    });
}

#[test]
fn c06_a_member_that_left_is_refused_unless_its_table_is_gone() {
    let leave = |facts: &mut Facts| facts.publication.as_mut().unwrap().members.clear();
    refused(HaltCode::Config, |facts| {
        leave(facts);
        facts.existing.insert(Oid(16_384));
    });
    let mut facts = facts();
    leave(&mut facts);
    assert!(matches!(decide(&facts), Outcome::GoOn(..)));
}

#[test]
fn c06_a_new_member_is_welcome() {
    let mut facts = facts();
    let members = &mut facts.publication.as_mut().unwrap().members;
    let mut new = members[0].clone();
    new.ids.relation = Oid(20_000);
    new.ids.member = Oid(20_001);
    members.push(new);
    assert!(matches!(decide(&facts), Outcome::GoOn(..)));
}

#[test]
fn c06_a_member_by_schema_or_of_all_tables_is_watched_as_well() {
    for by in [Oid(16_392), Oid(0)] {
        let by_it = |facts: &mut Facts| {
            let marker = facts.marker.as_mut().unwrap();
            marker.members[0].member = by;
            marker.members_digest = members_digest(&marker.members);
            facts.publication.as_mut().unwrap().members[0].ids.member = by;
        };
        let mut facts = facts();
        by_it(&mut facts);
        assert!(matches!(decide(&facts), Outcome::GoOn(..)));
        let halt = refused(HaltCode::Config, |facts| {
            by_it(facts);
            facts.publication.as_mut().unwrap().members.clear();
            facts.existing.insert(Oid(16_384));
        });
        assert!(halt.reason.contains("left the publication"), "{halt}");
    }
    refused(HaltCode::Config, |facts| {
        let marker = facts.marker.as_mut().unwrap();
        marker.members[0].member = Oid(16_392);
        marker.members_digest = members_digest(&marker.members);
        facts.publication.as_mut().unwrap().members[0].ids.member = Oid(16_393);
    });
}

#[test]
fn c06_without_the_newest_marker_nobody_knows_the_members() {
    let without = |incarnation| {
        move |facts: &mut Facts| {
            facts.marker = None;
            let StreamEnd::At(tail, _) = &mut facts.stream else {
                unreachable!("set above")
            };
            tail.incarnation = incarnation;
        }
    };
    let halt = refused(HaltCode::Config, without(Incarnation(3)));
    assert!(halt.reason.contains("incarnation 3"), "{halt}");
    let mut first = facts();
    without(Incarnation(0))(&mut first);
    assert!(
        matches!(decide(&first), Outcome::GoOn(..)),
        "a relay's first start finds genesis only"
    );
}

#[test]
fn c06_members_that_a_marker_has_no_room_for_are_watched_by_their_digest() {
    let crowded = |facts: &mut Facts| {
        let members = &mut facts.publication.as_mut().unwrap().members;
        let mut more = members[0].clone();
        more.ids.relation = Oid(20_000);
        more.ids.member = Oid(20_001);
        members.push(more);
        let digest = facts.publication.as_ref().unwrap().members_digest();
        facts.marker.as_mut().unwrap().members_digest = digest;
    };
    let mut same = facts();
    crowded(&mut same);
    assert!(matches!(decide(&same), Outcome::GoOn(..)));
    let halt = refused(HaltCode::Config, |facts| {
        crowded(facts);
        facts.publication.as_mut().unwrap().members[1].ids.member = Oid(20_002);
    });
    assert!(halt.reason.contains("more than"), "{halt}");
}
