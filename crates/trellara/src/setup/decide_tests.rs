//! Every crash window of setup resumes or refuses by name (F09, C52).

use trellara_applier::lane::{FlowIntent, FlowState};
use trellara_applier::{Checkpoint, StreamIdentity, Transport};
use trellara_envelope::*;
use trellara_jetstream::topology::{StreamFacts, TARGET_KEY};
use trellara_relay::genesis_frame;
use trellara_source::publication::PublicationFacts;
use trellara_source::slot::SlotFacts;

use super::*;

const C: Lsn = Lsn(0x100);
const LATER: Lsn = Lsn(0x200);
const US: &str = "target@1";

fn history() -> SourceHistory {
    SourceHistory {
        system: SystemId(7),
        timeline: Timeline(1),
        switches: Vec::new(),
    }
}

/// Nothing is there yet.
fn nothing() -> Found {
    Found {
        sessions: None,
        flow: "shop".to_owned(),
        database: "shop".to_owned(),
        slot_name: "trellara_shop".to_owned(),
        publication: None,
        slot: None,
        stream: None,
        differences: Vec::new(),
        tail: None,
        registration: None,
        outdated: false,
        intent: None,
        checkpoint: None,
        history: history(),
        applied: true,
        copies: true,
    }
}

fn with_publication(mut found: Found) -> Found {
    found.publication = Some(PublicationFacts {
        oid: Oid(1),
        inserts: true,
        updates: true,
        deletes: true,
        truncates: true,
        via_partition_root: true,
        all_tables: false,
        members: Vec::new(),
    });
    found
}

fn with_intent(mut found: Found, state: FlowState, start: Option<Lsn>) -> Found {
    found.registration = Some(US.to_owned());
    found.intent = Some(FlowIntent {
        state,
        slot: "trellara_shop".to_owned(),
        publication: "trellara_shop".to_owned(),
        stream: "TRELLARA_shop".to_owned(),
        start: start.map(|lsn| (history().source(), lsn)),
    });
    found
}

fn with_stream(mut found: Found, target: Option<&str>) -> Found {
    let metadata = target.map(|target| (TARGET_KEY.to_owned(), target.to_owned()));
    found.stream = Some(StreamFacts {
        name: "TRELLARA_shop".to_owned(),
        created: "2026-11-30T00:00:00Z".to_owned(),
        first_sequence: StreamSequence(1),
        last_sequence: StreamSequence(0),
        messages: 0,
        bytes: 0,
        max_bytes: Some(1 << 30),
        max_message_bytes: None,
        replicas: 1,
        subjects: Vec::new(),
        metadata: metadata.into_iter().collect(),
        leader: None,
    });
    found
}

fn with_slot(mut found: Found, at: Lsn) -> Found {
    found.slot = Some(SlotFacts {
        plugin: Some("pgoutput".to_owned()),
        database: Some("shop".to_owned()),
        two_phase: false,
        temporary: false,
        active_pid: None,
        confirmed_flush: Some(at),
        restart_lsn: Some(at),
        wal_status: Some("reserved".to_owned()),
        safe_wal_size: None,
        invalidation_reason: None,
        failover: false,
    });
    found
}

fn with_genesis(mut found: Found, point: Lsn) -> Found {
    let genesis = Genesis {
        history: history(),
        slot: "trellara_shop".to_owned(),
        publication: "trellara_shop".to_owned(),
        consistent_point: point,
        copy_epoch: 0,
        continues_at: point,
    };
    found.tail = Some(genesis_frame("shop".parse().expect("a flow"), genesis));
    found
}

fn with_checkpoint(mut found: Found, at: Lsn) -> Found {
    found.checkpoint = Some(Checkpoint {
        ordinal: LedgerOrdinal(4),
        source: history().source(),
        end_lsn: at,
        transaction_end_lsn: at,
        transport: Transport {
            stream: StreamIdentity {
                name: "TRELLARA_shop".to_owned(),
                created: String::new(),
            },
            sequence: StreamSequence(9),
            incarnation: Incarnation(1),
            ordinal: FrameOrdinal(9),
            digest: FrameDigest::default(),
        },
    });
    found
}

#[track_caller]
fn check(found: &Found, choices: Choices, expected: &[Action]) {
    let actions = decide(found, choices).map_err(|failure| failure.to_string());
    assert_eq!(actions.as_deref(), Ok(expected));
}

#[track_caller]
fn refused(found: &Found, choices: Choices, exit: u8, words: &str) {
    let failure = decide(found, choices).expect_err("must be refused");
    assert_eq!(failure.exit.code(), exit, "{failure}");
    assert!(failure.to_string().contains(words), "{failure}");
    assert!(
        !failure.hints.is_empty(),
        "a refusal says what to do: {failure}"
    );
}

const ADOPT: Choices = Choices {
    adopt: true,
    new_stream: false,
};
const NEW_STREAM: Choices = Choices {
    adopt: false,
    new_stream: true,
};
const PLAIN: Choices = Choices {
    adopt: false,
    new_stream: false,
};

#[test]
fn c52_a_first_setup_goes_in_the_order_that_survives_crashes() {
    check(
        &nothing(),
        PLAIN,
        &[
            Action::CreatePublication,
            Action::InstallSchema,
            Action::RecordIntent,
            Action::CreateStream,
            Action::CreateSlot,
            Action::RecordCopies,
            Action::WriteGenesis(None),
            Action::WriteLedger,
        ],
    );
}

/// A flow that an older build set up keeps its stream, its slot and its place in them.
#[test]
fn an_older_schema_is_brought_up_to_date_and_nothing_else() {
    let found = with_intent(with_publication(nothing()), FlowState::Ready, Some(C));
    let found = with_slot(with_stream(found, Some(US)), LATER);
    let mut found = with_genesis(found, C);
    check(&found, PLAIN, &[]);
    found.outdated = true;
    check(&found, PLAIN, &[Action::UpgradeSchema]);
}

#[test]
fn f09_a_crash_before_the_slot_goes_on() {
    let found = with_intent(with_publication(nothing()), FlowState::Intended, None);
    let rest = [
        Action::CreateSlot,
        Action::RecordCopies,
        Action::WriteGenesis(None),
        Action::WriteLedger,
    ];
    let mut with_missing_stream = vec![Action::CreateStream];
    with_missing_stream.extend(rest);
    check(&found, PLAIN, &with_missing_stream);
    check(&with_stream(found, Some(US)), PLAIN, &rest);
}

#[test]
fn f09_a_crash_between_slot_and_intent_refuses_to_guess() {
    let found = with_intent(with_publication(nothing()), FlowState::Intended, None);
    let found = with_slot(with_stream(found, Some(US)), C);
    refused(&found, PLAIN, 11, "nothing says that this flow made it");
    check(
        &found,
        ADOPT,
        &[
            Action::UseSlot(C),
            Action::RecordCopies,
            Action::WriteGenesis(None),
            Action::WriteLedger,
        ],
    );
}

#[test]
fn f09_a_crash_before_the_genesis_frame_goes_on_when_the_slot_is_untouched() {
    let found = with_intent(with_publication(nothing()), FlowState::Intended, Some(C));
    let found = with_stream(found, Some(US));
    let actions = [
        Action::UseSlot(C),
        Action::RecordCopies,
        Action::WriteGenesis(None),
        Action::WriteLedger,
    ];
    check(&with_slot(found, C), PLAIN, &actions);
    let found = with_intent(with_publication(nothing()), FlowState::Intended, Some(C));
    refused(
        &with_slot(with_stream(found, Some(US)), LATER),
        PLAIN,
        11,
        "exists at 0/200",
    );
}

#[test]
fn f09_a_crash_before_the_ledger_goes_on() {
    let found = with_intent(with_publication(nothing()), FlowState::Intended, Some(C));
    let found = with_genesis(with_slot(with_stream(found, Some(US)), C), C);
    let rest = [
        Action::UseSlot(C),
        Action::RecordCopies,
        Action::WriteLedger,
    ];
    check(&found, PLAIN, &rest);
}

#[test]
fn without_a_copy_nothing_of_it_is_noted() {
    let nothing = Found {
        copies: false,
        ..nothing()
    };
    let actions = decide(&nothing, PLAIN).expect("actions");
    assert!(!actions.contains(&Action::RecordCopies));
    let found = with_intent(with_publication(nothing), FlowState::Intended, Some(C));
    let found = with_genesis(with_slot(with_stream(found, Some(US)), C), C);
    check(&found, PLAIN, &[Action::UseSlot(C), Action::WriteLedger]);
}

#[test]
fn a_flow_that_is_set_up_needs_nothing() {
    let found = with_intent(with_publication(nothing()), FlowState::Ready, Some(C));
    let found = with_genesis(with_slot(with_stream(found, Some(US)), LATER), C);
    check(&found, PLAIN, &[]);
}

#[test]
fn a_lost_slot_is_named() {
    let found = with_intent(with_publication(nothing()), FlowState::Ready, Some(C));
    refused(
        &with_genesis(with_stream(found, Some(US)), C),
        PLAIN,
        10,
        "SLOT_LOST",
    );
}

#[test]
fn c26_a_lost_stream_is_replaced_only_when_nothing_is_lost() {
    let ready = || with_publication(with_intent(nothing(), FlowState::Ready, Some(C)));
    let again = |lsn| {
        [
            Action::CreateStream,
            Action::UseSlot(lsn),
            Action::WriteGenesis(Some(lsn)),
            Action::WriteLedger,
        ]
    };
    let pristine = with_checkpoint(with_slot(ready(), C), C);
    refused(&pristine, PLAIN, 10, "NO_STREAM");
    check(&pristine, ADOPT, &again(C));
    let covered = with_checkpoint(with_slot(ready(), LATER), LATER);
    refused(&covered, ADOPT, 10, "NO_STREAM");
    check(&covered, NEW_STREAM, &again(LATER));
    let behind = with_checkpoint(with_slot(ready(), LATER), C);
    refused(&behind, NEW_STREAM, 10, "transactions may be lost");
    let mut published = covered;
    published.applied = false;
    refused(&published, NEW_STREAM, 10, "NO_STREAM");
    // Not "transactions may be lost": the cure is a setting.
    let failure = decide(&published, NEW_STREAM).expect_err("must be refused");
    let cure = "source.acknowledge: applied";
    assert!(
        failure.hints.iter().any(|hint| hint.contains(cure)),
        "{failure}"
    );
}

#[test]
fn c24_a_stream_of_another_target_is_refused() {
    let found = with_intent(with_publication(nothing()), FlowState::Intended, None);
    refused(
        &with_stream(found, Some("other@2")),
        PLAIN,
        11,
        "registered for another target",
    );
}

#[test]
fn slots_of_another_shape_are_refused_by_name() {
    let with = |change: fn(&mut SlotFacts)| {
        let mut found = with_slot(with_publication(nothing()), C);
        found.slot.as_mut().map(change).expect("a slot");
        found
    };
    refused(
        &with(|slot| slot.plugin = Some("wal2json".to_owned())),
        ADOPT,
        11,
        "wal2json",
    );
    refused(&with(|slot| slot.plugin = None), ADOPT, 11, "physical");
    refused(
        &with(|slot| slot.database = Some("other".to_owned())),
        ADOPT,
        11,
        "database other",
    );
    refused(&with(|slot| slot.two_phase = true), ADOPT, 11, "two_phase");
    refused(&with(|slot| slot.temporary = true), ADOPT, 11, "temporary");
    refused(
        &with(|slot| slot.wal_status = Some("lost".to_owned())),
        ADOPT,
        11,
        "lost",
    );
}
