//! Who ends a fence, and who begins anew while it is there.

use trellara_envelope::Lsn;

use super::run::{LONG, Run};
use super::{fenced, flow, recorded, undisturbed};
use crate::dedup::{sql, written_down};

/// F118: a run that dies holds nobody for longer than its lease.
#[tokio::test]
async fn c53_a_lease_that_is_over_lets_the_lane_go_on_by_itself() {
    for exact in [false, true] {
        let (mut flow, applier) = flow(18).await;
        let mut run = Run::new(&flow, "dead").await;
        run.arm(0x110, LONG).await;
        flow.bundle(&[&[2], &[3]]).await;
        if exact {
            run.stand(0x124).await;
        }
        // The applier need not be told of a lease that was renewed, nor of one that was cut short
        // as long as it looks.
        sql(
            &flow,
            "UPDATE trellara.fence SET lease_until = clock_timestamp() + interval '1 s'",
        )
        .await;
        run.notify().await;
        let renewed: std::time::SystemTime = flow
            .target
            .client
            .query_one(
                "UPDATE trellara.fence SET lease_until = lease_until + interval '1 s' \
                 RETURNING lease_until",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        flow.caught_up().await;
        run.gone().await;
        let applied: std::time::SystemTime = flow
            .target
            .client
            .query_one("SELECT max(applied_at) FROM trellara.applied", &[])
            .await
            .unwrap()
            .get(0);
        let late = applied.duration_since(renewed).expect("not before its end");
        assert!(late.as_secs_f64() < 1.0, "{late:?} late");
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
        undisturbed(&flow, &applier, 3).await;
        // The run, when it wakes, finds that it is lost.
        assert!(!run.want(0x140).await);
        applier.stop().await;
    }
}

/// A row of a run that was over before anybody looked is nobody's, and does not stay.
#[tokio::test]
async fn c53_a_lease_that_was_over_before_we_looked_leaves_no_row() {
    let (mut flow, applier) = flow(18).await;
    let run = Run::new(&flow, "dead").await;
    assert!(run.claim(0x110, 0.0).await);
    run.notify().await;
    run.gone().await;
    flow.bundle(&[&[2], &[3]]).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    undisturbed(&flow, &applier, 3).await;
    applier.stop().await;
}

#[tokio::test]
async fn c53_an_applier_that_begins_anew_arms_again_before_it_applies() {
    let (mut flow, applier) = flow(18).await;
    let mut run = Run::new(&flow, "one").await;
    run.arm(0x110, LONG).await;
    flow.bundle(&[&[2], &[3], &[4]]).await;
    let first = run.row().await.expect("its row");
    // Stopped while it holds a frame: nothing of that is applied.
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1");
    let applier = flow.start();
    let status = fenced(&applier, "one").await;
    assert_eq!(Some(status.epoch.0), first.epoch.map(|epoch| epoch + 1));
    run.stand(0x124).await;
    // It loses the target where it stands; whoever comes finds the place and says so again.
    let stands = flow.target.checkpoint(&flow.name).await;
    sql(
        &flow,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
          WHERE datname = current_database() AND application_name LIKE 'trellara applier%'",
    )
    .await;
    applier
        .shows(|now| now.epoch.0 == status.epoch.0 + 1 && now.fence.is_some())
        .await;
    run.reached(0x124).await;
    applier
        .shows(|now| now.fence.as_ref().is_some_and(|fence| fence.reached))
        .await;
    let row = run.row().await.expect("its row");
    assert_eq!(row.epoch, first.epoch.map(|epoch| epoch + 2));
    assert_eq!(flow.target.checkpoint(&flow.name).await, stands);
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    // And once more, with the run gone meanwhile.
    applier.stop().await;
    run.release().await;
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
    assert_eq!(recorded(&flow).await, 4);
    assert_eq!(applier.status.snapshot().duplicate_transactions, 1);
    applier.stop().await;
}

/// A run takes over from one whose lease is over while the lane still stands; the frame that is
/// held waits for the new one.
#[tokio::test]
async fn c53_a_second_run_takes_over_from_one_that_died() {
    let (mut flow, applier) = flow(18).await;
    let mut dead = Run::new(&flow, "dead").await;
    let mut next = Run::new(&flow, "next").await;
    dead.arm(0x110, LONG).await;
    flow.bundle(&[&[2], &[3], &[4]]).await;
    dead.stand(0x124).await;
    assert!(!next.claim(0x150, LONG).await, "the first one lives");
    // In one transaction, so that the applier does not see the end of the first lease.
    let client = &next.client;
    client
        .batch_execute("BEGIN; UPDATE trellara.fence SET lease_until = clock_timestamp()")
        .await
        .unwrap();
    assert!(next.claim(0x124, LONG).await);
    client.batch_execute("COMMIT").await.unwrap();
    next.notify().await;
    assert_eq!(next.armed().await, Lsn(0x124));
    fenced(&applier, "next").await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    assert!(!dead.want(0x140).await);
    next.stand(0x138).await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    next.release().await;
    flow.caught_up().await;
    undisturbed(&flow, &applier, 4).await;
    applier.stop().await;
}

/// Reading again what was applied and standing still exclude each other: whoever comes second
/// waits, or is told.
#[tokio::test]
async fn c53_a_rewind_and_a_fence_exclude_each_other() {
    let (mut flow, applier) = flow(18).await;
    for id in 2..60 {
        flow.bundle(&[&[id]]).await;
    }
    flow.caught_up().await;
    written_down(&mut flow).await;
    let mut run = Run::new(&flow, "one").await;
    assert!(run.claim(flow.position, LONG).await);
    // The rewind is asked for before the applier hears of the fence.
    let answer = crate::rewind::rewind_and(&flow, async || run.notify().await).await;
    assert!(
        matches!(answer, crate::rewind::Answer::Done(_)),
        "{answer:?}"
    );
    run.armed().await;
    assert_eq!(applier.status.snapshot().duplicate_transactions, 59);
    flow.bundle(&[&[60], &[61]]).await;
    let middle = flow.position - 12;
    run.stand(middle).await;
    match crate::rewind::rewind(&flow).await {
        crate::rewind::Answer::Failed { reason } => {
            assert!(reason.contains("verify run one"), "{reason}");
        }
        answer => panic!("{answer:?}"),
    }
    assert_eq!(
        flow.target.checkpoint(&flow.name).await.end_lsn,
        Lsn(middle)
    );
    run.release().await;
    flow.caught_up().await;
    assert_eq!(recorded(&flow).await, 61);
    applier.stop().await;
}
