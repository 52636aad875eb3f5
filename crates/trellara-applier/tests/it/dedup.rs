//! Whether a transaction was applied: the whole applier against a ledger that says so, or does not.

use std::time::Duration;

use trellara_applier::ledger::{Ledger, LedgerIdentity};
use trellara_applier::{CHECKPOINT_NOW, DedupSnapshot, HaltPolicy, channel};
use trellara_envelope::{FlowName, HaltCode, Lane, LaneEpoch, Lsn, StreamSequence};

use crate::flow::{Flow, PATIENCE, Running, genesis_checkpoint, identity_of};

/// Asks for everything to be written down until the checkpoint names the stream's last frame.
pub(crate) async fn written_down(flow: &mut Flow) {
    let last = StreamSequence(flow.sequence);
    let client = crate::flow::connect(&flow.target.url).await;
    let (channel, payload) = (channel(&flow.name), CHECKPOINT_NOW);
    loop {
        client
            .execute("SELECT pg_notify($1, $2)", &[&channel, &payload])
            .await
            .unwrap();
        if flow.reported(|_| true).await.sequence >= last {
            return;
        }
    }
}

pub(crate) fn dedup(applier: &Running) -> DedupSnapshot {
    applier.status.snapshot().dedup
}

/// Waits until somebody waits for another's transaction to end.
async fn waits_for_another_row(flow: &Flow) {
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity \
                  WHERE datname = current_database() AND wait_event = 'transactionid')";
    let wait = async {
        let client = &flow.target.client;
        while !client
            .query_one(waits, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("a wait");
}

pub(crate) async fn sql(flow: &Flow, sql: &str) {
    flow.target.client.batch_execute(sql).await.unwrap();
}

/// Issue: warm path = the ledger insert alone.
#[tokio::test]
async fn a_warm_cache_asks_the_ledger_nothing() {
    for version in [15, 18] {
        let mut flow = Flow::new(version).await;
        flow.marker().await;
        let applier = flow.start();
        for id in 0..20 {
            flow.bundle(&[&[id], &[id]]).await;
        }
        flow.large(&[100, 101], |_| {}).await;
        flow.caught_up().await;
        let seen = dedup(&applier);
        assert_eq!((seen.probes, seen.applied_probed), (0, 0), "{seen:?}");
        assert_eq!((seen.applied_vouched, seen.state), (41, "vouching"));
        applier.stop().await;
        // After a restart it is born from the ledger, and vouches again.
        let applier = flow.start();
        flow.bundle(&[&[200]]).await;
        flow.caught_up().await;
        let seen = dedup(&applier);
        assert_eq!((seen.probes, seen.applied_vouched), (0, 1), "{seen:?}");
        assert_eq!(seen.hydrations, 1, "{seen:?}");
        // Its size is looked at now and then.
        flow.reported(|_| dedup(&applier).identities == 42).await;
        applier.stop().await;
    }
}

/// Without a cache everything is probed, and nothing else is different.
#[tokio::test]
async fn c44_a_cold_lane_probes_and_reads_next_to_nothing() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    let mut options = flow.options();
    options.dedup_memory = 0;
    let applier = flow.start_with(options);
    for id in 0..50 {
        flow.bundle(&[&[id], &[id]]).await;
    }
    flow.caught_up().await;
    let seen = dedup(&applier);
    assert_eq!((seen.applied_probed, seen.applied_vouched), (100, 0));
    assert!(seen.probes >= 1 && seen.rows_read == 0, "{seen:?}");
    assert_eq!(seen.state, "off");
    applier.stop().await;
    assert_eq!(flow.target.rows().await.split(' ').count(), 50);
}

/// C41: another flow of the same source into the same target has applied the same transactions.
#[tokio::test]
async fn c41_what_another_flow_applied_is_new_to_this_one() {
    let mut flow = Flow::new(18).await;
    let other: FlowName = "other".parse().unwrap();
    let genesis = genesis_checkpoint(&other);
    flow.target.set_up(&other, &genesis).await;
    let client = &flow.target.client;
    let ledger = Ledger::prepare(client, &other, Lane(0), LaneEpoch(0));
    let ledger = ledger.await.unwrap();
    let mut to = genesis.clone();
    to.end_lsn = Lsn(0x120);
    to.transaction_end_lsn = Lsn(0x120);
    let identities = [0x110, 0x120].map(|end| LedgerIdentity {
        hash: identity_of(end).hash(),
        end_lsn: Lsn(end),
    });
    let recorded = ledger.record(client, &genesis, &to, &identities).await;
    recorded.unwrap();
    flow.marker().await;
    flow.bundle(&[&[1], &[2]]).await;
    let mut options = flow.options();
    options.dedup_memory = 0;
    let applier = flow.start_with(options);
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    assert!(dedup(&applier).probes >= 1);
    applier.stop().await;
}

/// C33, the storage-snapshot story: source and broker were set back together, the target was not;
/// what the source did then stands at the same places, but is something else (C02).
#[tokio::test]
async fn c33_another_course_of_events_at_the_same_places_has_diverged() {
    for memory in [0, 1 << 20] {
        let (mut flow, applier) = Flow::applied(18, &[&[1], &[2]]).await;
        applier.stop().await;
        let before = flow.target.checkpoint(&flow.name).await;

        flow.replace_stream(0x100).await;
        flow.other_course = 1;
        flow.marker().await;
        flow.bundle(&[&[8], &[9]]).await;
        let mut options = flow.options();
        options.dedup_memory = memory;
        let halt = flow.start_with(options).halt().await;
        assert_eq!(halt.code, HaltCode::Diverged, "{halt}");
        assert!(
            halt.reason.contains(":0/108:"),
            "names the transaction: {halt}"
        );
        assert_eq!(flow.target.rows().await, "1:1 2:1");
        let after = flow.target.checkpoint(&flow.name).await;
        assert_eq!(after.end_lsn, before.end_lsn);
        assert_ne!(
            after.transport.sequence,
            StreamSequence(flow.sequence),
            "nothing moves past it"
        );
    }
}

/// The same inside a bundle of which the target has the first part.
#[tokio::test]
async fn c33_the_skipped_part_of_a_bundle_is_confirmed_too() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    applier.stop().await;

    flow.go_back_to(0x100);
    flow.marker().await;
    flow.other_course = 1;
    flow.bundle(&[&[1], &[2]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::Diverged, "{halt}");
    assert_eq!(flow.target.rows().await, "1:1", "nothing behind it either");
}

/// C33: beyond the checkpoint and yet in the ledger: the checkpoint was set back by hand.
#[tokio::test]
async fn c33_a_checkpoint_set_back_by_hand_is_named() {
    let mut flow = Flow::new(18).await;
    let marker = flow.marker().await;
    flow.bundle(&[&[1], &[2]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    applier.stop().await;
    // As if only the first had been applied, and the marker been the last frame.
    let edit = format!(
        "UPDATE trellara.applied SET end_lsn = '0/110', transaction_end_lsn = '0/110', \
                lowest_end_lsn = '0/110', highest_end_lsn = '0/110', stream_sequence = 2, \
                frame_ordinal = 1, frame_digest = '\\x{}' WHERE length(hashes) > 0",
        marker.0.map(|byte| format!("{byte:02x}")).concat()
    );
    sql(&flow, &edit).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::State, "{halt}");
    assert!(
        halt.reason.contains(":0/118:"),
        "names the transaction: {halt}"
    );
    assert_eq!(flow.target.rows().await, "1:1 2:1");
}

/// The same where the edit leaves the row's ends alone: the index finds it, without any cache.
#[tokio::test]
async fn c33_a_transaction_that_the_ledger_already_has_is_not_applied() {
    let (mut flow, applier) = Flow::applied(15, &[&[1]]).await;
    applier.stop().await;
    // The next transaction's identity comes into the ledger by hand.
    let from = flow.target.checkpoint(&flow.name).await;
    let mut to = from.clone();
    to.end_lsn = Lsn(0x111);
    sql(
        &flow,
        "ALTER TABLE trellara.applied DROP CONSTRAINT applied_check4",
    )
    .await;
    let client = &flow.target.client;
    let epoch = LaneEpoch(1);
    let ledger = Ledger::prepare(client, &flow.name, Lane(0), epoch)
        .await
        .unwrap();
    let next = LedgerIdentity {
        hash: identity_of(0x120).hash(),
        end_lsn: Lsn(0x120),
    };
    ledger.record(client, &from, &to, &[next]).await.unwrap();
    flow.go_back_to(0x111);
    flow.position = 0x110;
    flow.heartbeat(0x111).await;
    flow.position = 0x110;
    let mut options = flow.options();
    options.dedup_memory = 0;
    flow.bundle(&[&[2]]).await;
    let halt = flow.start_with(options).halt().await;
    assert_eq!(halt.code, HaltCode::State, "{halt}");
    assert_eq!(flow.target.rows().await, "1:1");
}

/// In flight: the later one follows the first's outcome, and is acknowledged only with it.
#[tokio::test]
async fn a_transaction_twice_in_one_run_waits_for_the_commit_of_the_first() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    let applier = flow.start();
    flow.reported(|report| report.sequence.0 >= 2).await;
    let before = flow.target.checkpoint(&flow.name).await;
    sql(&flow, "BEGIN; LOCK TABLE public.t").await;
    flow.bundle(&[&[1], &[2]]).await;
    flow.go_back_to(0x100);
    let again = flow.bundle(&[&[1], &[2]]).await;
    flow.target.blocked().await;
    for _ in 0..2 {
        let report = flow.reported(|_| true).await;
        assert_eq!(
            report.end_lsn, before.end_lsn,
            "not before the commit is durable"
        );
    }
    sql(&flow, "COMMIT").await;
    flow.caught_up().await;
    written_down(&mut flow).await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    let snapshot = applier.status.snapshot();
    assert_eq!(snapshot.duplicate_transactions, 2);
    assert_eq!(snapshot.transactions, 2);
    assert_eq!(
        flow.target.checkpoint(&flow.name).await.transport.digest,
        again
    );
    applier.stop().await;
}

/// C43: a vouch does not outlive the session, whatever the target did meanwhile.
#[tokio::test]
async fn c43_after_a_reconnect_the_cache_is_born_anew() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    assert_eq!(dedup(&applier).hydrations, 1);
    let behind = flow.target.checkpoint(&flow.name).await;
    flow.bundle(&[&[2], &[3]]).await;
    flow.caught_up().await;
    // The target comes back from a copy that has the first transaction only.
    let restore = format!(
        "DELETE FROM trellara.applied WHERE first_ordinal > {}; \
         DELETE FROM public.t WHERE id > 1; \
         SELECT pg_terminate_backend(holder_pid) FROM trellara.lane",
        behind.ordinal
    );
    sql(&flow, &restore).await;
    flow.bundle(&[&[4]]).await;
    // What it knew of the transactions that are gone must not hold them up, nor vouch for others.
    flow.reported(|report| report.epoch > LaneEpoch(1)).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
    let seen = dedup(&applier);
    assert_eq!(seen.hydrations, 2, "{seen:?}");
    assert_eq!(seen.hits, 0, "nothing of the old course is left: {seen:?}");
    applier.stop().await;
}

#[tokio::test]
async fn an_unreadable_row_stops_the_lane_by_name() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1], &[2]]).await;
    flow.bundle(&[&[3]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    applier.stop().await;
    sql(
        &flow,
        "ALTER TABLE trellara.applied DROP CONSTRAINT applied_check; \
         UPDATE trellara.applied SET hashes = hashes || substr(hashes, 1, 16) \
          WHERE length(hashes) > 0",
    )
    .await;
    flow.bundle(&[&[4]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::State, "{halt}");
    assert!(flow.target.rows().await.ends_with("3:1"));
}

/// A second applier that the lock does not keep away: whoever comes second loses its transaction,
/// its vouch, and reads the verdict anew.
#[tokio::test]
async fn an_interleaved_applier_is_noticed_and_the_effect_is_one() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let mut options = flow.options();
    options.interleaved = true;
    let applier = flow.start_with(options);
    flow.caught_up().await;
    assert_eq!(dedup(&applier).hydrations, 1);
    // The other one has read the next transaction, too, and commits it first.
    let from = flow.target.checkpoint(&flow.name).await;
    let other = crate::flow::connect(&flow.target.url).await;
    let ledger = Ledger::prepare(&other, &flow.name, Lane(0), LaneEpoch(0));
    let ledger = ledger.await.unwrap();
    let next = LedgerIdentity {
        hash: identity_of(0x120).hash(),
        end_lsn: Lsn(0x120),
    };
    let mut to = from.clone();
    to.end_lsn = Lsn(0x120);
    to.transaction_end_lsn = Lsn(0x120);
    other
        .batch_execute("BEGIN; INSERT INTO public.t VALUES (2, 'x')")
        .await
        .unwrap();
    ledger.record(&other, &from, &to, &[next]).await.unwrap();
    flow.bundle(&[&[2]]).await;
    waits_for_another_row(&flow).await;
    assert_eq!(dedup(&applier).state, "vouching");
    // It cannot come back before we have looked.
    sql(&flow, "BEGIN; LOCK TABLE trellara.state_version").await;
    other.batch_execute("COMMIT").await.unwrap();
    flow.target.blocked().await;
    let between = dedup(&applier);
    assert_eq!(between.state, "rebuild wanted", "it vouches for nothing");
    assert_eq!(between.hydrations, 1, "{between:?}");
    sql(&flow, "COMMIT").await;
    flow.bundle(&[&[3]]).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    let snapshot = applier.status.snapshot();
    assert_eq!(snapshot.dedup.hydrations, 2, "{:?}", snapshot.dedup);
    assert_eq!(snapshot.duplicate_transactions, 1);
    assert!(snapshot.retries >= 1);
    applier.stop().await;
}

/// Two whole appliers over one stream, neither kept away by the lock.
#[tokio::test]
async fn two_appliers_without_a_lock_apply_everything_once() {
    let mut flow = Flow::new(15).await;
    flow.marker().await;
    let start = || {
        let mut options = flow.options();
        options.interleaved = true;
        options.halt = HaltPolicy::Stay;
        flow.start_with(options)
    };
    let appliers = [start(), start()];
    for id in 0..40 {
        flow.bundle(&[&[id], &[1000 + id]]).await;
    }
    flow.caught_up().await;
    let rows = flow.target.rows().await;
    assert_eq!(rows.split(' ').count(), 80);
    assert!(rows.split(' ').all(|row| row.ends_with(":1")), "{rows}");
    let applied: u64 = appliers
        .iter()
        .map(|one| one.status.snapshot().transactions)
        .sum();
    assert_eq!(applied, 80);
    for applier in appliers {
        applier.stop().await;
    }
}

/// Filling the cache may take a while: the relay hears of us meanwhile, and a shutdown ends it.
#[tokio::test]
async fn while_the_cache_is_filled_the_position_is_reported_and_a_shutdown_ends_it() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    applier.stop().await;
    // The first lock holds up the statement that writes the ledger, the second, behind it, the one
    // that reads it.
    sql(&flow, "BEGIN; LOCK TABLE trellara.applied IN SHARE MODE").await;
    let mut options = flow.options();
    options.shutdown_timeout = Duration::from_secs(3600);
    let applier = flow.start_with(options);
    flow.target.blocked().await;
    let other = crate::flow::connect(&flow.target.url).await;
    let locked = other.batch_execute("BEGIN; LOCK TABLE trellara.applied");
    let unlocked = async {
        let waits = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database \
                      WHERE NOT granted AND datname = current_database()";
        let client = &flow.target.client;
        while client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) < 2 {
            tokio::task::yield_now().await;
        }
        sql(&flow, "COMMIT").await;
    };
    let both = async { tokio::join!(locked, unlocked) };
    let (locked, ()) = tokio::time::timeout(PATIENCE, both).await.expect("a lock");
    locked.unwrap();
    flow.target.blocked().await;
    for _ in 0..3 {
        let report = flow.reported(|report| report.epoch == LaneEpoch(2)).await;
        assert_eq!(report.end_lsn, Lsn(0x110));
    }
    applier.stop().await;
    other.batch_execute("ROLLBACK").await.unwrap();
}
