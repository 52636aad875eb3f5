//! The desk: held transactions replayed and discarded, by the applier and without it.

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use trellara_applier::quarantine::audit::Operator;
use trellara_applier::quarantine::desk::{self, Direct};
use trellara_applier::quarantine::rehearsal::{self, Would};
use trellara_applier::quarantine::request::{self, Answer, End, Item, Order, Standing, Task};
use trellara_applier::quarantine::{Held, HeldId, HeldState, store};
use trellara_applier::schema;
use trellara_envelope::{
    Body, BundleEntry, CommitTime, Frame, FrameDigest, FrameOrdinal, Header, Incarnation, Lane,
    Lsn, StreamSequence, Xid,
};
use trellara_jetstream::topology;

use crate::dedup::sql;
use crate::flow::{Flow, PATIENCE, history, inserts};

/// How a transaction is held that no stream has.
#[derive(Clone, Copy)]
pub(crate) struct Kept<'a> {
    pub(crate) ids: &'a [i32],
    /// Its end LSN; below where the lane stands.
    pub(crate) end: u64,
    pub(crate) behind: &'a [HeldId],
}

/// A transaction of a bundle as it is kept when the lane has moved past it.
pub(crate) async fn keep(flow: &Flow, kept: Kept<'_>) -> HeldId {
    let records = inserts(kept.ids, None);
    let entry = BundleEntry {
        source: history().source(),
        commit_lsn: Lsn(kept.end - 8),
        end_lsn: Lsn(kept.end),
        xid: Xid(kept.end as u32),
        commit_time: CommitTime(kept.end as i64),
        bytes: records.len() as u32,
        changes: kept.ids.len() as u32,
    };
    let frame = Frame {
        header: Header {
            flow: flow.name.clone(),
            source: history().source(),
            incarnation: Incarnation(1),
            ordinal: FrameOrdinal(7),
            previous: FrameDigest::default(),
            position: Lsn(kept.end),
            keep_from: StreamSequence(1),
            lane: Lane(0),
            follows: Lsn(kept.end - 0x10),
            lanes: Vec::new(),
            mac: Vec::new(),
        },
        body: Body::Bundle(vec![entry]),
        payload: Bytes::from(records),
    };
    let reason = match kept.behind {
        [] => "poisoned",
        _ => "dependent",
    };
    let bytes = frame.encode();
    let digest = FrameDigest::of(&bytes);
    let client = &flow.target.client;
    let row = client
        .query_one(
            "INSERT INTO trellara.held (flow, lane, hash, source_system, source_timeline, \
                 commit_lsn, end_lsn, source_xid, committed_at_us, reason, storage, chunked, \
                 stream, stream_created, stream_sequence, incarnation, frame_digest, after_lsn, \
                 after_timeline, after_sequence, after_incarnation, after_ordinal, after_digest, \
                 frames, bytes, changes, message) \
             VALUES ($1, 0, $2, $3, 1, $4, $5, $6, $7, $8, 'target', false, 'S', 'then', 1, 1, $9, \
                     $5, 1, 1, 1, 1, $9, 1, $10, $11, 'as if') RETURNING id",
            &[
                &flow.name.as_str(),
                &&entry.identity().hash().0[..],
                &entry.source.system.0.cast_signed(),
                &tokio_postgres::types::PgLsn::from(kept.end - 8),
                &tokio_postgres::types::PgLsn::from(kept.end),
                &i64::from(entry.xid.0),
                &entry.commit_time.0,
                &reason,
                &&digest.0[..],
                &(bytes.len() as i64),
                &(kept.ids.len() as i64),
            ],
        )
        .await
        .unwrap();
    let id: i64 = row.get(0);
    client
        .execute(
            "INSERT INTO trellara.held_frame VALUES ($1, 0, 1, $2, $3)",
            &[&id, &&digest.0[..], &&bytes[..]],
        )
        .await
        .unwrap();
    let behind: Vec<i64> = kept.behind.iter().map(|id| id.0).collect();
    client
        .execute(
            "INSERT INTO trellara.held_dependency SELECT $1, d FROM unnest($2::bigint[]) AS d",
            &[&id, &behind],
        )
        .await
        .unwrap();
    HeldId(id)
}

fn of(ids: &[i32], end: u64) -> Kept<'_> {
    Kept {
        ids,
        end,
        behind: &[],
    }
}

pub(crate) fn order(task: Task, ids: &[HeldId]) -> Order {
    Order {
        task,
        ids: Some(ids.to_vec()),
        force: false,
        reason: "because of a test".to_owned(),
        operator: Operator {
            name: "somebody".to_owned(),
            host: "a-host".to_owned(),
            version: "0".to_owned(),
        },
    }
}

pub(crate) fn all() -> Order {
    Order {
        ids: None,
        ..order(Task::Replay, &[])
    }
}

/// Gives the order to the applier that runs.
pub(crate) async fn ask(flow: &Flow, order: &Order) -> Answer {
    let token = request::token();
    let client = &flow.target.client;
    request::ask(client, (&flow.name, Lane(0)), &token, order)
        .await
        .unwrap();
    let wait = async {
        loop {
            match request::renew(client, &token).await.unwrap() {
                Standing::Answered(answer) => return answer,
                Standing::Begun => {}
                Standing::Waiting => request::wake(client, &flow.name).await.unwrap(),
                Standing::Gone => panic!("who took the request away?"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("an answer")
}

pub(crate) async fn asked(flow: &Flow, order: &Order) -> Vec<(HeldId, End)> {
    let Answer::Done(items) = ask(flow, order).await else {
        panic!("not now");
    };
    ends(items)
}

pub(crate) fn ends(items: Vec<Item>) -> Vec<(HeldId, End)> {
    items.into_iter().map(|item| (item.id, item.end)).collect()
}

/// Gives the order to nobody: the lane is taken for it.
pub(crate) async fn direct(flow: &Flow, order: &Order) -> Direct {
    let token = request::token();
    let cancel = CancellationToken::new();
    let options = flow.options();
    let opening = desk::open(&options, Some(&flow.broker), (order, &token), &cancel);
    tokio::time::timeout(PATIENCE, opening)
        .await
        .expect("an end")
        .expect("no error")
}

async fn directly(flow: &Flow, order: &Order) -> Vec<(HeldId, End)> {
    let trying = async {
        loop {
            // A session that ended a moment ago may still have the lock.
            if let Direct::Done(items) = direct(flow, order).await {
                return ends(items);
            }
        }
    };
    tokio::time::timeout(PATIENCE, trying)
        .await
        .expect("the lane")
}

pub(crate) async fn held(flow: &Flow, id: HeldId) -> Held {
    store::get(&flow.target.client, &flow.name, Lane(0), id)
        .await
        .unwrap()
        .unwrap()
}

/// What the audit says of one, oldest first.
pub(crate) async fn audited(flow: &Flow, id: HeldId) -> Vec<String> {
    let rows = flow
        .target
        .client
        .query(
            "SELECT action FROM trellara.audit WHERE held_id = $1 ORDER BY id",
            &[&id.0],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn in_ledger(flow: &Flow, id: HeldId) -> i64 {
    let held = held(flow, id).await;
    let row = flow
        .target
        .client
        .query_one(
            "SELECT count(*) FROM trellara.applied WHERE hashes = $1",
            &[&&held.hash.0[..]],
        )
        .await
        .unwrap();
    row.get(0)
}

#[tokio::test]
async fn a_running_applier_replays_what_is_held_and_goes_on() {
    for version in [15, 18] {
        let (mut flow, applier) = Flow::applied(version, &[&[1], &[2]]).await;
        let id = keep(&flow, of(&[7, 8], 0x118)).await;
        let before = flow.target.checkpoint(&flow.name).await;
        let ends = asked(&flow, &order(Task::Replay, &[id])).await;
        assert_eq!(ends, [(id, End::Replayed { changes: 2 })]);
        let now = held(&flow, id).await;
        assert_eq!((now.state, now.attempts), (HeldState::Replayed, 1));
        assert_eq!(in_ledger(&flow, id).await, 1);
        assert_eq!(audited(&flow, id).await, ["replayed"]);
        // The lane stands where it stood, one ordinal on.
        let after = flow.target.checkpoint(&flow.name).await;
        assert_eq!(after.end_lsn, before.end_lsn);
        assert_eq!(after.ordinal.0, before.ordinal.0 + 1);
        flow.bundle(&[&[3]]).await;
        flow.caught_up().await;
        applier.stop().await;
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 7:1 8:1");
    }
}

#[tokio::test]
async fn a_replay_needs_no_applier_and_the_next_one_goes_on() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    applier.stop().await;
    let id = keep(&flow, of(&[7], 0x108)).await;
    let ends = directly(&flow, &order(Task::Replay, &[id])).await;
    assert_eq!(ends, [(id, End::Replayed { changes: 1 })]);
    flow.bundle(&[&[2]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 7:1");
}

/// F114.
#[tokio::test]
async fn f114_of_many_who_replay_at_once_one_does_it() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    let id = keep(&flow, of(&[7], 0x108)).await;
    let wanted = order(Task::Replay, &[id]);
    let (a, b, c) = tokio::join!(
        asked(&flow, &wanted),
        asked(&flow, &wanted),
        asked(&flow, &wanted)
    );
    let mut words: Vec<&str> = [&a, &b, &c].map(|ends| ends[0].1.as_str()).to_vec();
    words.sort_unstable();
    let once = ["already replayed", "already replayed", "replayed"];
    assert_eq!(words, once);
    // Whoever takes the lane for it does not get it while the applier has it.
    assert!(matches!(direct(&flow, &wanted).await, Direct::Held(_)));
    applier.stop().await;
    let (a, b) = tokio::join!(directly(&flow, &wanted), directly(&flow, &wanted));
    assert_eq!(a, [(id, End::AlreadyReplayed)]);
    assert_eq!(b, a);
    assert_eq!(flow.target.rows().await, "1:1 7:1");
    assert_eq!(in_ledger(&flow, id).await, 1);
}

#[tokio::test]
async fn two_that_take_the_lane_at_once_apply_it_once() {
    let flow = Flow::new(18).await;
    for round in 0..20 {
        let id = keep(
            &flow,
            of(&[round], 0x20 + u64::from(round.cast_unsigned()) * 8),
        )
        .await;
        let wanted = order(Task::Replay, &[id]);
        let (a, b) = tokio::join!(directly(&flow, &wanted), directly(&flow, &wanted));
        let mut words = [a[0].1.as_str(), b[0].1.as_str()];
        words.sort_unstable();
        assert_eq!(words, ["already replayed", "replayed"], "round {round}");
        assert_eq!(in_ledger(&flow, id).await, 1);
    }
    assert_eq!(flow.target.rows().await.matches(":1").count(), 20);
}

#[tokio::test]
async fn what_waits_is_replayed_behind_what_it_waits_for() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    sql(&flow, "CREATE UNIQUE INDEX ON public.t (id)").await;
    // 1 is there already: the first is refused, the second waits behind it, the third is free.
    let poison = keep(&flow, of(&[1], 0x101)).await;
    let waits = keep(
        &flow,
        Kept {
            ids: &[20],
            end: 0x102,
            behind: &[poison],
        },
    )
    .await;
    let free = keep(&flow, of(&[30], 0x103)).await;
    let ends = asked(&flow, &order(Task::Replay, &[waits])).await;
    let [(_, End::Refused { reason, hint })] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert!(
        reason.contains(&format!("waits behind {poison}")),
        "{reason}"
    );
    assert!(hint.contains("--all"), "{hint}");
    let ends = asked(&flow, &all()).await;
    let [
        (a, End::Failed { cause }),
        (b, End::Refused { .. }),
        (c, End::Replayed { .. }),
    ] = &ends[..]
    else {
        panic!("{ends:?}");
    };
    assert_eq!([*a, *b, *c], [poison, waits, free]);
    assert_eq!((cause.sqlstate.as_str(), cause.change), ("23505", 1));
    assert_eq!(flow.target.rows().await, "1:1 30:1");
    // The cause is gone.
    sql(&flow, "DELETE FROM public.t WHERE id = 1").await;
    let ends = asked(&flow, &all()).await;
    let words: Vec<_> = ends.iter().map(|(id, end)| (*id, end.as_str())).collect();
    assert_eq!(words, [(poison, "replayed"), (waits, "replayed")]);
    assert_eq!(audited(&flow, poison).await, ["replay failed", "replayed"]);
    let now = held(&flow, poison).await;
    assert_eq!(now.attempts, 2);
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 20:1 30:1");
}

/// The error that the store shows is the last one, and its detail is there and nowhere else.
#[tokio::test]
async fn a_replay_that_is_refused_leaves_nothing_but_its_reason() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    sql(&flow, "CREATE UNIQUE INDEX t_key ON public.t (id)").await;
    let id = keep(&flow, of(&[5, 6, 1, 7], 0x108)).await;
    let before = flow.target.checkpoint(&flow.name).await;
    let ends = asked(&flow, &order(Task::Replay, &[id])).await;
    let [(_, End::Failed { cause })] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert_eq!((cause.change, cause.object.as_str()), (3, "t_key"));
    assert_eq!(cause.detail, "");
    let now = held(&flow, id).await;
    assert_eq!((now.state, now.attempts), (HeldState::Held, 1));
    assert!(now.cause.detail.contains("(id)=(1)"), "{:?}", now.cause);
    assert_eq!(flow.target.rows().await, "1:1");
    assert_eq!(flow.target.checkpoint(&flow.name).await, before);
    assert_eq!(in_ledger(&flow, id).await, 0);
    assert_eq!(audited(&flow, id).await, ["replay failed"]);
    applier.stop().await;
}

#[tokio::test]
async fn what_was_overtaken_is_replayed_by_force_alone() {
    let flow = Flow::new(18).await;
    let id = keep(&flow, of(&[7], 0x90)).await;
    sql(
        &flow,
        "UPDATE trellara.held SET overtaken_by = '1/1:0/9', overtaken_lsn = '0/9', \
                overtaken_at = now()",
    )
    .await;
    let ends = directly(&flow, &order(Task::Replay, &[id])).await;
    let [(_, End::Refused { reason, .. })] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert!(reason.contains("1/1:0/9"), "{reason}");
    assert_eq!(held(&flow, id).await.state, HeldState::Held);
    assert_eq!(audited(&flow, id).await, [""; 0]);
    let forced = Order {
        force: true,
        ..order(Task::Replay, &[id])
    };
    let ends = directly(&flow, &forced).await;
    assert_eq!(ends, [(id, End::Replayed { changes: 1 })]);
    let row = flow
        .target
        .client
        .query_one(
            "SELECT (arguments ->> 'force')::boolean, reason FROM trellara.audit",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!(row.get::<_, String>(1), "because of a test");
}

/// Somebody was told that nothing is applied any more: a pause, or a verify run.
#[tokio::test]
async fn c53_f116_nothing_is_replayed_while_the_lane_stands_still() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    let id = keep(&flow, of(&[7], 0x108)).await;
    let before = flow.target.checkpoint(&flow.name).await;
    let paused = format!(
        "INSERT INTO trellara.pause (flow, lane, reason, operator, host) \
         VALUES ('{0}', 0, 'an upgrade', 'anna', 'a-host')",
        flow.name
    );
    let fenced = format!(
        "DELETE FROM trellara.pause; \
         INSERT INTO trellara.fence (flow, lane, run, cap, exact, lease_until) \
         VALUES ('{0}', 0, gen_random_uuid(), '0/100', false, clock_timestamp() + interval '1 min')",
        flow.name
    );
    let mut applier = Some(applier);
    for running in [true, false] {
        if !running {
            applier.take().expect("it runs").stop().await;
            sql(&flow, "DELETE FROM trellara.fence").await;
        }
        for (why, still) in [("an upgrade", &paused), ("verify run", &fenced)] {
            // Nobody is told of the row: it counts all the same.
            sql(&flow, still).await;
            for task in [Task::Replay, Task::Discard] {
                let wanted = order(task, &[id]);
                let reason = if running {
                    match ask(&flow, &wanted).await {
                        Answer::NotNow { reason } => reason,
                        Answer::Done(items) => panic!("{items:?}"),
                    }
                } else {
                    loop {
                        match direct(&flow, &wanted).await {
                            Direct::NotNow(reason) => break reason,
                            Direct::Held(_) => {}
                            Direct::Done(items) => panic!("{items:?}"),
                        }
                    }
                };
                assert!(reason.contains(why), "{reason}");
            }
        }
    }
    assert_eq!(held(&flow, id).await.state, HeldState::Held);
    let after = flow.target.checkpoint(&flow.name).await;
    assert_eq!(after.ordinal, before.ordinal);
    sql(&flow, "DELETE FROM trellara.fence").await;
    let ends = directly(&flow, &order(Task::Replay, &[id])).await;
    assert_eq!(ends, [(id, End::Replayed { changes: 1 })]);
    flow.bundle(&[&[2]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 7:1");
}

/// A hand in our tables, or a part of them restored: one that is in is not applied again, and one
/// that was passed does not go in by the way.
#[tokio::test]
async fn what_is_in_is_not_replayed_and_what_is_held_is_not_applied() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    let (applied, next) = (flow.target.checkpoint(&flow.name).await.end_lsn.0, 0x10);
    let id = keep(&flow, of(&[1], applied)).await;
    let identity = crate::flow::identity_of(applied);
    assert_eq!(
        held(&flow, id).await.hash,
        identity.hash(),
        "the test's own"
    );
    let ends = asked(&flow, &order(Task::Replay, &[id])).await;
    let [(_, End::Refused { reason, .. })] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert!(reason.contains("STATE"), "{reason}");
    assert_eq!(held(&flow, id).await.state, HeldState::Held);
    applier.stop().await;
    keep(&flow, of(&[2], applied + next)).await;
    flow.bundle(&[&[2]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, trellara_envelope::HaltCode::State);
    assert!(halt.reason.contains("trellara.held"), "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");
}

/// A dry run says what the replay would say.
#[tokio::test]
async fn a_dry_run_refuses_what_the_lane_stands_in_front_of_no_more() {
    let flow = Flow::new(18).await;
    let id = keep(&flow, of(&[7], 0x90)).await;
    sql(
        &flow,
        "UPDATE trellara.held SET reason = 'blocking', before_ordinal = 77",
    )
    .await;
    let wanted = order(Task::Replay, &[id]);
    let cancel = CancellationToken::new();
    let tried = rehearsal::rehearse(&flow.options(), None, &wanted, &cancel).await;
    let [one] = &tried.unwrap()[..] else {
        panic!("not one");
    };
    let Would::Refuse { reason, hint } = &one.would else {
        panic!("{:?}", one.would);
    };
    let ends = directly(&flow, &wanted).await;
    let refused = End::Refused {
        reason: reason.clone(),
        hint: hint.clone(),
    };
    assert_eq!(ends, [(id, refused)]);
}

/// F115.
#[tokio::test]
async fn f115_what_is_not_held_here_is_neither_replayed_nor_discarded() {
    let flow = Flow::new(18).await;
    let id = keep(&flow, of(&[7], 0x90)).await;
    sql(&flow, "UPDATE trellara.held SET flow = 'another'").await;
    for task in [Task::Replay, Task::Discard] {
        let wrong = [id, HeldId(id.0 + 1000)];
        let ends = directly(&flow, &order(task, &wrong)).await;
        assert_eq!(ends, wrong.map(|id| (id, End::Unknown)));
    }
    assert_eq!(flow.target.rows().await, "");
    assert_eq!(audited(&flow, id).await, [""; 0]);
}

#[tokio::test]
async fn what_is_discarded_is_closed_stays_whole_and_can_still_be_replayed() {
    let flow = Flow::new(18).await;
    let first = keep(&flow, of(&[7], 0x90)).await;
    let second = keep(
        &flow,
        Kept {
            ids: &[8],
            end: 0x98,
            behind: &[first],
        },
    )
    .await;
    let discard = order(Task::Discard, &[first]);
    assert_eq!(directly(&flow, &discard).await, [(first, End::Discarded)]);
    let again = directly(&flow, &discard).await;
    assert_eq!(again, [(first, End::AlreadyDiscarded)]);
    assert_eq!(held(&flow, first).await.state, HeldState::Discarded);
    assert_eq!(in_ledger(&flow, first).await, 0);
    // Nothing holds the second back any more, and it overtakes the first.
    let ends = directly(&flow, &all()).await;
    assert_eq!(ends, [(second, End::Replayed { changes: 1 })]);
    assert!(held(&flow, first).await.overtaken.is_some());
    let ends = directly(&flow, &order(Task::Replay, &[first])).await;
    assert!(matches!(ends[..], [(_, End::Refused { .. })]), "{ends:?}");
    let forced = Order {
        force: true,
        ..order(Task::Replay, &[first])
    };
    let ends = directly(&flow, &forced).await;
    assert_eq!(ends, [(first, End::Replayed { changes: 1 })]);
    let words = audited(&flow, first).await;
    assert_eq!(words, ["discarded", "overtaken", "replayed"]);
    let discard = directly(&flow, &order(Task::Discard, &[first])).await;
    assert_eq!(discard, [(first, End::AlreadyReplayed)]);
    assert_eq!(flow.target.rows().await, "7:1 8:1");
}

/// A discarded one whose replay is refused stays discarded.
#[tokio::test]
async fn a_refused_replay_of_a_discarded_one_leaves_it_discarded() {
    let flow = Flow::new(18).await;
    sql(
        &flow,
        "CREATE UNIQUE INDEX ON public.t (id); INSERT INTO public.t VALUES (7)",
    )
    .await;
    let id = keep(&flow, of(&[7], 0x90)).await;
    directly(&flow, &order(Task::Discard, &[id])).await;
    let ends = directly(&flow, &order(Task::Replay, &[id])).await;
    assert!(matches!(ends[..], [(_, End::Failed { .. })]), "{ends:?}");
    assert_eq!(held(&flow, id).await.state, HeldState::Discarded);
}

#[tokio::test]
async fn nothing_is_applied_of_frames_that_are_not_what_was_kept() {
    let flow = Flow::new(18).await;
    for damage in [
        "UPDATE trellara.held_frame SET bytes = set_byte(bytes, length(bytes) - 1, 0)",
        "UPDATE trellara.held_frame SET digest = decode(repeat('00', 16), 'hex')",
        "DELETE FROM trellara.held_frame",
        "UPDATE trellara.held SET hash = decode(repeat('00', 16), 'hex')",
    ] {
        let id = keep(&flow, of(&[7], 0x90)).await;
        sql(&flow, damage).await;
        let ends = directly(&flow, &order(Task::Replay, &[id])).await;
        let [(_, End::Failed { cause })] = &ends[..] else {
            panic!("{damage}: {ends:?}");
        };
        assert!(cause.message.starts_with("CORRUPT"), "{}", cause.message);
        assert_eq!(held(&flow, id).await.state, HeldState::Held);
        assert_eq!(flow.target.rows().await, "");
        sql(
            &flow,
            "DELETE FROM trellara.audit; DELETE FROM trellara.held_frame; DELETE FROM trellara.held",
        )
        .await;
    }
}

/// Whoever was killed in the middle of a replay leaves a claim; the next epoch lets go of it.
#[tokio::test]
async fn f19_a_claim_of_an_earlier_epoch_is_nobodys() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    applier.stop().await;
    let claimed = "UPDATE trellara.held SET state = 'replaying', claimed_epoch = 0, \
                          claimed_at = now() WHERE state = 'held'";
    let id = keep(&flow, of(&[7], 0x108)).await;
    sql(&flow, claimed).await;
    let ends = directly(&flow, &order(Task::Replay, &[id])).await;
    assert_eq!(ends, [(id, End::Replayed { changes: 1 })]);
    let id = keep(&flow, of(&[8], 0x109)).await;
    sql(&flow, claimed).await;
    let applier = flow.start();
    applier
        .shows(|status| status.state == trellara_applier::ApplierState::Running)
        .await;
    assert_eq!(held(&flow, id).await.state, HeldState::Held);
    applier.stop().await;
}

/// What a lost answer hides is found again: the same order does not call its own deed another's.
#[tokio::test]
async fn an_order_that_is_begun_again_knows_what_it_did() {
    let flow = Flow::new(18).await;
    let id = keep(&flow, of(&[7, 8], 0x90)).await;
    let token = request::token();
    let cancel = CancellationToken::new();
    for task in [Task::Replay, Task::Discard] {
        let wanted = order(task, &[id]);
        let id = match task {
            Task::Replay => id,
            Task::Discard => keep(&flow, of(&[9], 0x98)).await,
        };
        let wanted = Order {
            ids: Some(vec![id]),
            ..wanted
        };
        let mut seen = Vec::new();
        for _ in 0..2 {
            let opened = desk::open(&flow.options(), None, (&wanted, &token), &cancel).await;
            let Direct::Done(items) = opened.unwrap() else {
                panic!("the lane is held");
            };
            seen.push(ends(items));
        }
        assert_eq!(seen[0], seen[1]);
    }
    assert_eq!(flow.target.rows().await, "7:1 8:1");
}

/// A command that is gone asks for nothing any more.
#[tokio::test]
async fn a_request_without_a_lease_is_not_begun() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    applier.stop().await;
    let id = keep(&flow, of(&[7], 0x108)).await;
    let token = request::token();
    let wanted = order(Task::Replay, &[id]);
    let (client, name) = (&flow.target.client, flow.name.clone());
    request::ask(client, (&name, Lane(0)), &token, &wanted)
        .await
        .unwrap();
    sql(
        &flow,
        "UPDATE trellara.request SET lease_until = clock_timestamp() - interval '1 ms'",
    )
    .await;
    let applier = flow.start();
    flow.bundle(&[&[2]]).await;
    flow.caught_up().await;
    request::wake(&flow.target.client, &flow.name)
        .await
        .unwrap();
    // The applier hears its notifications in order.
    let other = keep(&flow, of(&[8], 0x109)).await;
    asked(&flow, &order(Task::Replay, &[other])).await;
    assert_eq!(held(&flow, id).await.state, HeldState::Held);
    // It is renewed: the command is there.
    let standing = request::renew(&flow.target.client, &token).await.unwrap();
    assert_eq!(standing, Standing::Waiting);
    request::wake(&flow.target.client, &flow.name)
        .await
        .unwrap();
    let wait = async {
        while held(&flow, id).await.state != HeldState::Replayed {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("replayed");
    applier.stop().await;
}

#[tokio::test]
async fn the_role_that_applies_can_neither_rewrite_nor_remove_what_was_done() {
    let flow = Flow::new(18).await;
    let id = keep(&flow, of(&[7], 0x90)).await;
    directly(&flow, &order(Task::Replay, &[id])).await;
    let role = format!("{}_role", flow.target.name);
    let grants = schema::grants(&role);
    sql(&flow, &format!("CREATE ROLE {role}; {grants}")).await;
    let client = crate::flow::connect(&flow.target.url).await;
    client
        .batch_execute(&format!("SET ROLE {role}"))
        .await
        .unwrap();
    for refused in [
        "UPDATE trellara.audit SET reason = 'another'",
        "DELETE FROM trellara.audit",
        "TRUNCATE trellara.audit CASCADE",
        "DELETE FROM trellara.held",
        "TRUNCATE trellara.held CASCADE",
        "UPDATE trellara.held_frame SET bytes = ''",
        "DELETE FROM trellara.held_frame",
        "DELETE FROM trellara.applied",
    ] {
        let error = client.batch_execute(refused).await.unwrap_err();
        let code = error.as_db_error().unwrap().code().code().to_owned();
        assert_eq!(code, "42501", "{refused}");
    }
    // A held row stays as long as the audit speaks of it, also for its owner.
    let error = flow
        .target
        .client
        .batch_execute("DELETE FROM trellara.held_frame; DELETE FROM trellara.held")
        .await
        .unwrap_err();
    assert_eq!(error.as_db_error().unwrap().code().code(), "23503");
    let audit = "SELECT operator, host, version, role = session_user, length(digest), \
                        lsn = '0/100' FROM trellara.audit";
    let row = flow.target.client.query_one(audit, &[]).await.unwrap();
    let who: [String; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!(who, ["somebody", "a-host", "0"]);
    assert!(row.get::<_, bool>(3));
    assert_eq!(row.get::<_, i32>(4), 16);
    assert!(row.get::<_, bool>(5));
    sql(&flow, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// What was kept is whole: neither the stream nor the broker is there any more.
#[tokio::test]
async fn what_is_held_is_replayed_without_its_stream() {
    for version in [15, 18] {
        let mut flow = Flow::new(version).await;
        sql(
            &flow,
            "ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)",
        )
        .await;
        flow.marker().await;
        flow.bundle(&[&[1], &[2, 51]]).await;
        flow.large(&[4, 52, 5, 6], |_| {}).await;
        let applier = flow.start_with(flow.holding());
        flow.caught_up().await;
        applier.stop().await;
        let ids: Vec<HeldId> = flow.held().await.iter().map(|held| held.id).collect();
        assert_eq!(ids.len(), 2);
        assert!(held(&flow, ids[1]).await.frames > 3, "in chunks");
        let stream = flow.name.stream();
        assert!(topology::delete(&flow.broker, &stream).await.unwrap());
        let all = all();
        let without_broker = async || {
            let (token, cancel) = (request::token(), CancellationToken::new());
            let opened = desk::open(&flow.options(), None, (&all, &token), &cancel).await;
            match opened.unwrap() {
                Direct::Done(items) => ends(items),
                Direct::Held(who) | Direct::NotNow(who) => panic!("{who}"),
            }
        };
        let ends = without_broker().await;
        let [(_, End::Failed { cause }), (_, End::Refused { .. })] = &ends[..] else {
            panic!("{ends:?}");
        };
        assert_eq!(cause.change, 2);
        assert_eq!(flow.target.rows().await, "1:1");
        sql(
            &flow,
            "ALTER TABLE public.t DROP CONSTRAINT low; \
             ALTER TABLE public.t ADD CONSTRAINT other CHECK (id <> 52)",
        )
        .await;
        let ends = without_broker().await;
        let [
            (_, End::Replayed { changes: 2 }),
            (_, End::Failed { cause }),
        ] = &ends[..]
        else {
            panic!("{ends:?}");
        };
        // Counted over all chunks.
        assert_eq!(cause.change, 2);
        // Nothing of a chunked one goes in when its last chunk is not what was kept.
        sql(
            &flow,
            "ALTER TABLE public.t DROP CONSTRAINT other; \
             CREATE TABLE kept AS SELECT * FROM trellara.held_frame \
              ORDER BY held_id DESC, number DESC LIMIT 1; \
             UPDATE trellara.held_frame AS f SET bytes = '' FROM kept AS k \
              WHERE (f.held_id, f.number) = (k.held_id, k.number)",
        )
        .await;
        let ends = without_broker().await;
        let [(_, End::Failed { cause })] = &ends[..] else {
            panic!("{ends:?}");
        };
        assert!(cause.message.starts_with("CORRUPT"), "{}", cause.message);
        assert_eq!(flow.target.rows().await, "1:1 2:1 51:1");
        sql(
            &flow,
            "UPDATE trellara.held_frame AS f SET bytes = k.bytes FROM kept AS k \
              WHERE (f.held_id, f.number) = (k.held_id, k.number)",
        )
        .await;
        let ends = without_broker().await;
        assert_eq!(ends, [(ids[1], End::Replayed { changes: 4 })]);
        let rows = flow.target.rows().await;
        assert_eq!(rows, "1:1 2:1 4:1 5:1 6:1 51:1 52:1");
    }
}

/// C46: a held one that is replayed overtakes what was discarded before it and touches the same,
/// whether it waited behind it or not.
#[tokio::test]
async fn c46_a_replay_overtakes_what_was_discarded_before_it() {
    let mut flow = Flow::new(18).await;
    sql(
        &flow,
        "ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)",
    )
    .await;
    flow.marker().await;
    // Without a key everything in the table touches everything.
    flow.bundle(&[&[50], &[1], &[2]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    let ids: Vec<HeldId> = flow.held().await.iter().map(|held| held.id).collect();
    assert_eq!(ids.len(), 3);
    let discard = order(Task::Discard, &ids[..1]);
    assert_eq!(asked(&flow, &discard).await, [(ids[0], End::Discarded)]);
    // It no longer knows that it waited behind the first.
    sql(&flow, "DELETE FROM trellara.held_dependency").await;
    let replay = order(Task::Replay, &ids[1..2]);
    let ends = asked(&flow, &replay).await;
    assert_eq!(ends, [(ids[1], End::Replayed { changes: 1 })]);
    let overtaken = held(&flow, ids[0]).await.overtaken.expect("overtaken");
    assert_eq!(
        overtaken.transaction,
        held(&flow, ids[1]).await.identity.to_string()
    );
    // What is later was overtaken by nobody.
    assert_eq!(held(&flow, ids[2]).await.overtaken, None);
    applier.stop().await;
}
