//! The schema and the one insert.

use tokio_postgres::error::SqlState;
use trellara_applier::Checkpoint;
use trellara_applier::lane::{self, Claimant};
use trellara_applier::ledger::prune::{self, Bounds};
use trellara_applier::ledger::{self, Ledger, LedgerIdentity, watermark};
use trellara_applier::schema::{self, SchemaError};
use trellara_envelope::{FlowName, Lane, LaneEpoch, Lsn, StreamSequence, TransactionHash};

use crate::flow::{PATIENCE, Target, connect, genesis_checkpoint};

fn shop() -> FlowName {
    "shop".parse().unwrap()
}

fn claimant(flow: &FlowName) -> Claimant<'_> {
    Claimant {
        flow,
        lane: Lane(0),
        instance: "11111111-2222-4333-8444-555555555555",
        name: "a test",
    }
}

async fn set_up(version: u32) -> (Target, Checkpoint, LaneEpoch) {
    let target = Target::new(version).await;
    let genesis = genesis_checkpoint(&shop());
    target.set_up(&shop(), &genesis).await;
    let held = lane::fence(&target.client, claimant(&shop()))
        .await
        .unwrap();
    (target, genesis, held.epoch)
}

fn behind(from: &Checkpoint, end: u64) -> Checkpoint {
    let mut to = from.clone();
    to.end_lsn = Lsn(end);
    to.transaction_end_lsn = Lsn(end);
    to.transport.sequence = StreamSequence(from.transport.sequence.0 + 1);
    to
}

fn identities(count: u64, end: u64) -> Vec<LedgerIdentity> {
    (0..count)
        .map(|n| LedgerIdentity {
            hash: TransactionHash::of(&n.to_be_bytes()),
            end_lsn: Lsn(end - count + 1 + n),
        })
        .collect()
}

async fn installs_once(version: u32) {
    let target = Target::bare(version).await;
    let mut client = connect(&target.url).await;
    assert_eq!(schema::identity(&client).await, Err(SchemaError::Missing));
    let first = schema::install(&mut client).await.unwrap();
    let second = schema::install(&mut client).await.unwrap();
    assert_eq!(first, second);
    client
        .batch_execute("UPDATE trellara.state_version SET version = 99")
        .await
        .unwrap();
    assert_eq!(
        schema::install(&mut client).await,
        Err(SchemaError::Newer { found: 99 })
    );
    client
        .batch_execute("UPDATE trellara.state_version SET version = 2")
        .await
        .unwrap();
    assert!(schema::remove(&mut client, "shop").await.unwrap());
    assert_eq!(schema::identity(&client).await, Err(SchemaError::Missing));
}

#[tokio::test]
async fn the_schema_is_installed_once_and_refuses_a_newer_one_on_15() {
    installs_once(15).await;
}

#[tokio::test]
async fn the_schema_is_installed_once_and_refuses_a_newer_one_on_18() {
    installs_once(18).await;
}

#[tokio::test]
async fn a_row_is_never_larger_than_120_identities_and_the_checkpoint_is_the_newest() {
    let (target, genesis, epoch) = set_up(18).await;
    let client = &target.client;
    let ledger = Ledger::prepare(client, &shop(), Lane(0), epoch)
        .await
        .unwrap();
    let to = behind(&genesis, 0x1000);
    client.batch_execute("BEGIN").await.unwrap();
    let written = ledger
        .record(client, &genesis, &to, &identities(250, 0x1000))
        .await
        .unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(written.ordinal.0, 250);
    assert_eq!(target.checkpoint(&shop()).await, written);
    let row = client
        .query_one(
            "SELECT count(*), max(length(hashes)), sum(length(hashes))::bigint, \
                    max(last_ordinal), count(lowest_end_lsn) FROM trellara.applied",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i64>(0), 4, "genesis and three");
    assert_eq!(row.get::<_, i32>(1), 1920);
    assert_eq!(row.get::<_, i64>(2), 250 * 16);
    assert_eq!(row.get::<_, i64>(3), 250);
    assert_eq!(row.get::<_, i64>(4), 3);

    // Progress without transactions takes one ordinal.
    let beaten = behind(&written, 0x2000);
    let beaten = ledger.record(client, &written, &beaten, &[]).await.unwrap();
    assert_eq!(beaten.ordinal.0, 251);
    assert_eq!(target.checkpoint(&shop()).await, beaten);
}

/// C31: changes, a compare-and-set that misses, and COMMIT in one pipeline: nothing is committed.
async fn missed_compare_and_set(version: u32) {
    let (target, genesis, epoch) = set_up(version).await;
    let client = &target.client;
    let to = behind(&genesis, 0x200);
    let stale_ordinal = Checkpoint {
        ordinal: trellara_envelope::LedgerOrdinal(7),
        ..genesis.clone()
    };
    let stale_end = Checkpoint {
        end_lsn: Lsn(0xff),
        ..genesis.clone()
    };
    let mut other_history = genesis.clone();
    other_history.source.timeline.0 = 2;
    let cases = [
        (epoch, &stale_ordinal),
        (epoch, &stale_end),
        (epoch, &other_history),
        (LaneEpoch(epoch.0 - 1), &genesis),
    ];
    for (epoch, from) in cases {
        let ledger = Ledger::prepare(client, &shop(), Lane(0), epoch)
            .await
            .unwrap();
        let one = identities(1, 0x200);
        let (begun, recorded, committed) = futures_util::future::join3(
            client.batch_execute("BEGIN; INSERT INTO public.t VALUES (1, 'x')"),
            ledger.record(client, from, &to, &one),
            client.batch_execute("COMMIT"),
        )
        .await;
        begun.unwrap();
        assert_eq!(
            recorded.unwrap_err().code(),
            Some(&SqlState::NOT_NULL_VIOLATION)
        );
        let _ = committed;
        assert_eq!(
            target.rows().await,
            "",
            "rows must not outlive their record"
        );
        assert_eq!(target.checkpoint(&shop()).await, genesis);
    }
}

#[tokio::test]
async fn c31_missed_compare_and_set_in_a_pipeline_on_15() {
    missed_compare_and_set(15).await;
}

#[tokio::test]
async fn c31_missed_compare_and_set_in_a_pipeline_on_18() {
    missed_compare_and_set(18).await;
}

/// The rows of one record are sent together; the answers behind a refused one are echoes of it.
#[tokio::test]
async fn c31_of_many_rows_the_one_that_is_refused_is_named() {
    let (target, genesis, epoch) = set_up(18).await;
    let client = &target.client;
    let ledger = Ledger::prepare(client, &shop(), Lane(0), epoch)
        .await
        .unwrap();
    let stale = Checkpoint {
        end_lsn: Lsn(0xff),
        ..genesis.clone()
    };
    let to = behind(&genesis, 0x2000);
    client.batch_execute("BEGIN").await.unwrap();
    let refused = ledger
        .record(client, &stale, &to, &identities(1000, 0x1000))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::NOT_NULL_VIOLATION));
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(target.checkpoint(&shop()).await, genesis);
}

#[tokio::test]
async fn two_writers_behind_one_predecessor_cannot_both_commit() {
    let (target, genesis, epoch) = set_up(18).await;
    let other = connect(&target.url).await;
    let first = Ledger::prepare(&target.client, &shop(), Lane(0), epoch)
        .await
        .unwrap();
    let second = Ledger::prepare(&other, &shop(), Lane(0), epoch)
        .await
        .unwrap();
    let to = behind(&genesis, 0x200);
    target.client.batch_execute("BEGIN").await.unwrap();
    other.batch_execute("BEGIN").await.unwrap();
    first
        .record(&target.client, &genesis, &to, &identities(1, 0x200))
        .await
        .unwrap();
    let one = identities(1, 0x200);
    let (late, committed) = tokio::join!(
        second.record(&other, &genesis, &to, &one),
        target.client.batch_execute("COMMIT")
    );
    committed.unwrap();
    let error = late.unwrap_err();
    let code = error.code().unwrap().code();
    assert!(matches!(code, "23505" | "23502"), "{code}");
    let fault = trellara_postgres::fault(&error);
    assert_eq!(
        fault.class,
        trellara_postgres::sqlstate::ErrorClass::NotMyPredecessor
    );
}

/// C32: the answer to COMMIT was lost while the backend still works on it. Whoever connects next
/// waits for that backend's verdict before it reads its own.
#[tokio::test]
async fn c32_zombie_commit_after_a_lost_answer() {
    let (target, genesis, _) = set_up(18).await;
    let zombie = connect(&target.url).await;
    let flow = shop();
    let held = lane::fence(&zombie, claimant(&flow)).await.unwrap();
    let ledger = Ledger::prepare(&zombie, &flow, Lane(0), held.epoch)
        .await
        .unwrap();
    let to = behind(&genesis, 0x200);
    zombie.batch_execute(&held.begin()).await.unwrap();
    zombie
        .batch_execute("INSERT INTO public.t VALUES (1, 'x')")
        .await
        .unwrap();
    let written = ledger
        .record(&zombie, &genesis, &to, &identities(1, 0x200))
        .await
        .unwrap();
    // Not committed yet: a plain read would say "not applied".
    assert_eq!(target.checkpoint(&flow).await, genesis);

    let successor = connect(&target.url).await;
    let taking = async {
        let held = lane::fence(&successor, claimant(&flow)).await.unwrap();
        let read = ledger::checkpoint(&successor, &flow, Lane(0))
            .await
            .unwrap();
        (held, read.unwrap())
    };
    let committing = async {
        // Only when the successor is seen waiting for the lock does the zombie's commit go on.
        loop {
            let waits: bool = target
                .client
                .query_one(
                    "SELECT EXISTS (SELECT FROM pg_locks \
                      WHERE locktype = 'advisory' AND NOT granted)",
                    &[],
                )
                .await
                .unwrap()
                .get(0);
            if waits {
                break;
            }
            tokio::task::yield_now().await;
        }
        zombie.batch_execute("COMMIT").await.unwrap();
    };
    let ((new, read), ()) = tokio::join!(taking, committing);
    assert_eq!(read, written, "the verdict is the zombie's commit");
    assert_eq!(target.rows().await, "1:1");
    assert!(new.epoch > held.epoch);

    // And from now on the zombie can commit nothing more.
    zombie.batch_execute(&held.begin()).await.unwrap();
    zombie
        .batch_execute("INSERT INTO public.t VALUES (2, 'x')")
        .await
        .unwrap();
    let late = ledger
        .record(&zombie, &written, &behind(&written, 0x300), &[])
        .await
        .unwrap_err();
    assert_eq!(late.code(), Some(&SqlState::NOT_NULL_VIOLATION));
    zombie.batch_execute("COMMIT").await.unwrap();
    assert_eq!(target.rows().await, "1:1");
}

#[tokio::test]
async fn c41_two_flows_in_one_target_have_checkpoints_of_their_own() {
    let (target, genesis, epoch) = set_up(15).await;
    let other: FlowName = "other".parse().unwrap();
    let other_genesis = genesis_checkpoint(&other);
    target.set_up(&other, &other_genesis).await;
    let ledger = Ledger::prepare(&target.client, &shop(), Lane(0), epoch)
        .await
        .unwrap();
    let to = behind(&genesis, 0x400);
    ledger
        .record(&target.client, &genesis, &to, &identities(1, 0x400))
        .await
        .unwrap();
    assert_eq!(target.checkpoint(&other).await, other_genesis);
    assert_eq!(target.checkpoint(&shop()).await.end_lsn, Lsn(0x400));
}

#[tokio::test]
async fn the_granted_role_can_apply_and_nothing_else() {
    for version in [15, 18] {
        let (target, genesis, _) = set_up(version).await;
        let role = format!("{}_role", target.name);
        target
            .client
            .batch_execute(&format!(
                "CREATE ROLE \"{role}\" LOGIN; {}",
                schema::grants(&role)
            ))
            .await
            .unwrap();
        let plain = connect(&target.url).await;
        plain
            .batch_execute(&format!("SET SESSION AUTHORIZATION \"{role}\""))
            .await
            .unwrap();
        schema::identity(&plain).await.unwrap();
        plain
            .batch_execute("SET session_replication_role = replica")
            .await
            .unwrap();
        let flow = shop();
        let held = lane::fence(&plain, claimant(&flow)).await.unwrap();
        let ledger = Ledger::prepare(&plain, &flow, Lane(0), held.epoch)
            .await
            .unwrap();
        plain.batch_execute(&held.begin()).await.unwrap();
        ledger
            .record(&plain, &genesis, &behind(&genesis, 0x200), &[])
            .await
            .unwrap();
        plain.batch_execute("COMMIT").await.unwrap();
        watermark::read(&plain, &flow, Lane(0), genesis.source.system)
            .await
            .unwrap();
        let bounds = Bounds {
            flow: &flow,
            lane: Lane(0),
            epoch: held.epoch,
            window: std::time::Duration::ZERO,
            up_to: Lsn::MAX,
            system: genesis.source.system,
        };
        assert_eq!(prune::prune(&plain, bounds).await.unwrap().rows, 1);
        plain
            .batch_execute(
                "INSERT INTO trellara.fence (flow, lane, run, cap, lease_until) \
                     VALUES ('shop', 0, 'a run', '0/100', clock_timestamp()); \
                 UPDATE trellara.fence SET cap = '0/200', exact = true; \
                 DELETE FROM trellara.fence",
            )
            .await
            .unwrap();
        for forbidden in [
            "DELETE FROM trellara.applied",
            "UPDATE trellara.applied SET end_lsn = '0/1'",
            "DELETE FROM trellara.lane",
            "UPDATE trellara.state_version SET target_id = gen_random_uuid()",
            "DELETE FROM trellara.watermark",
            "UPDATE trellara.watermark SET end_lsn = '0/1'",
        ] {
            let error = plain.batch_execute(forbidden).await.unwrap_err();
            assert_eq!(
                error.code(),
                Some(&SqlState::INSUFFICIENT_PRIVILEGE),
                "{forbidden}"
            );
        }
    }
}

#[tokio::test]
async fn removing_a_flow_waits_for_the_target_transaction_that_is_open() {
    let (target, genesis, _) = set_up(18).await;
    let other: FlowName = "other".parse().unwrap();
    target.set_up(&other, &genesis_checkpoint(&other)).await;
    let client = &target.client;
    let held = lane::fence(client, claimant(&shop())).await.unwrap();
    let ledger = Ledger::prepare(client, &shop(), Lane(0), held.epoch)
        .await
        .unwrap();
    client.batch_execute(&held.begin()).await.unwrap();
    let to = behind(&genesis, 0x1000);
    ledger
        .record(client, &genesis, &to, &identities(1, 0x1000))
        .await
        .unwrap();
    let url = target.url.clone();
    let removing = tokio::spawn(async move {
        let mut client = connect(&url).await;
        schema::remove(&mut client, "shop").await
    });
    let waits = async {
        while !removing.is_finished() {
            let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            let row = client.query_one(waiting, &[]).await.unwrap();
            if row.get::<_, i64>(0) > 0 {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, waits).await.expect("a wait");
    client.batch_execute("COMMIT").await.unwrap();
    assert!(!removing.await.unwrap().unwrap(), "another flow is there");
    let left = "SELECT count(*) FROM trellara.applied WHERE flow = 'shop'";
    let row = client.query_one(left, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}
