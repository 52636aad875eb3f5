//! A lane stands still because somebody wants it to, and goes on where it stood.

use trellara_applier::pause::{self, LOOK, Pause};
use trellara_applier::{ApplierState, channel};
use trellara_envelope::{Lane, Lsn};

use crate::fence::run::{LONG, Run};
use crate::flow::{Flow, PATIENCE, Running, connect};
use crate::rewind::{Answer, rewind};

/// What `trellara pause` and `trellara resume` write, without the audit.
async fn change(flow: &Flow, sql: &str) {
    let client = &flow.target.client;
    let name = flow.name.as_str();
    client.execute(sql, &[&name]).await.unwrap();
    let words = [channel(&flow.name), LOOK.to_owned()];
    client
        .execute("SELECT pg_notify($1, $2)", &[&words[0], &words[1]])
        .await
        .unwrap();
}

async fn ask(flow: &Flow) {
    let insert = "INSERT INTO trellara.pause (flow, lane, reason, operator, host) \
                  VALUES ($1, 0, 'an upgrade', 'anna', 'desk')";
    change(flow, insert).await;
}

async fn resume(flow: &Flow) {
    change(flow, "DELETE FROM trellara.pause WHERE flow = $1").await;
}

async fn read(flow: &Flow) -> Pause {
    let row = pause::read(&flow.target.client, &flow.name, Lane(0)).await;
    row.unwrap().expect("a pause")
}

/// Asks for a pause, and waits until the lane stands still; where.
async fn pause(flow: &Flow) -> Lsn {
    ask(flow).await;
    stands(flow).await
}

async fn stands(flow: &Flow) -> Lsn {
    let wait = async {
        loop {
            if let Some(lsn) = read(flow).await.stands {
                return lsn;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .expect("the applier says that it stands still")
}

/// Reports go on, and nothing else does.
async fn unmoved(flow: &mut Flow, at: Lsn, rows: &str) {
    for _ in 0..3 {
        let report = flow.reported(|_| true).await;
        assert_eq!(report.end_lsn, at);
    }
    assert_eq!(flow.target.rows().await, rows);
    assert_eq!(flow.target.checkpoint(&flow.name).await.end_lsn, at);
}

async fn shows_paused(applier: &Running) {
    let status = applier
        .shows(|status| matches!(status.state, ApplierState::Paused { .. }))
        .await;
    let ApplierState::Paused {
        reason, operator, ..
    } = status.state
    else {
        unreachable!("it was waited for");
    };
    assert_eq!((&reason[..], &operator[..]), ("an upgrade", "anna@desk"));
}

#[tokio::test]
async fn f116_a_paused_lane_applies_nothing_and_goes_on_where_it_stood() {
    for version in [15, 18] {
        let (mut flow, applier) = Flow::applied(version, &[&[1]]).await;
        let at = pause(&flow).await;
        assert_eq!(at, Lsn(0x110));
        shows_paused(&applier).await;
        flow.bundle(&[&[2], &[3]]).await;
        flow.large(&[4, 5], |_| {}).await;
        unmoved(&mut flow, at, "1:1").await;
        resume(&flow).await;
        flow.caught_up().await;
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 5:1");
        let status = applier
            .shows(|status| status.state == ApplierState::Running)
            .await;
        assert_eq!((status.retries, status.duplicate_transactions), (0, 0));
        applier.stop().await;
    }
}

/// A notification may be lost on its way: the row alone is what counts.
#[tokio::test]
async fn f116_a_pause_holds_without_its_notification() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    flow.run(
        "INSERT INTO trellara.pause (flow, lane, reason, operator, host) \
         VALUES (current_database(), 0, 'an upgrade', 'anna', 'desk')",
    )
    .await;
    let at = stands(&flow).await;
    shows_paused(&applier).await;
    flow.bundle(&[&[2]]).await;
    unmoved(&mut flow, at, "1:1").await;
    flow.run("DELETE FROM trellara.pause").await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    applier.stop().await;
}

#[tokio::test]
async fn f116_a_pause_outlives_the_applier() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    let at = pause(&flow).await;
    applier.stop().await;
    flow.bundle(&[&[2]]).await;
    let applier = flow.start();
    shows_paused(&applier).await;
    assert_eq!(stands(&flow).await, at, "the new applier has said so too");
    unmoved(&mut flow, at, "1:1").await;
    resume(&flow).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    applier.stop().await;
}

/// The word of an applier that is gone binds nobody: until its successor says so too, nobody may
/// rely on the lane standing still.
#[tokio::test]
async fn an_answer_counts_only_for_the_epoch_that_gave_it() {
    let (flow, applier) = Flow::applied(18, &[&[1]]).await;
    pause(&flow).await;
    applier.stop().await;
    let raise = "UPDATE trellara.lane SET epoch = epoch + 1 WHERE flow = $1";
    let name = flow.name.as_str();
    flow.target.client.execute(raise, &[&name]).await.unwrap();
    assert_eq!(read(&flow).await.stands, None);
}

#[tokio::test]
async fn what_was_accepted_goes_in_before_the_lane_says_that_it_stands() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    let locker = connect(&flow.target.url).await;
    locker
        .batch_execute("BEGIN; LOCK TABLE public.t")
        .await
        .unwrap();
    flow.bundle(&[&[2], &[3]]).await;
    flow.target.blocked().await;
    ask(&flow).await;
    assert_eq!(read(&flow).await.stands, None);
    locker.batch_execute("COMMIT").await.unwrap();
    assert_eq!(stands(&flow).await, Lsn(0x130));
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    applier.stop().await;
}

/// A frame was read already when the pause came: it waits, and neither the end of the fence nor a
/// rewind brings it past the pause.
#[tokio::test]
async fn a_frame_that_a_fence_lets_go_waits_for_the_end_of_the_pause() {
    let (mut flow, applier) = Flow::applied(18, &[&[1]]).await;
    let mut run = Run::new(&flow, "one").await;
    run.arm(0x110, LONG).await;
    flow.bundle(&[&[2], &[3]]).await;
    // Behind the end of the first and in front of the second's commit record.
    run.stand(0x124).await;
    let at = pause(&flow).await;
    assert_eq!(at, Lsn(0x124));
    run.release().await;
    applier.shows(|status| status.fence.is_none()).await;
    unmoved(&mut flow, at, "1:1 2:1").await;
    let Answer::Failed { reason } = rewind(&flow).await else {
        panic!("it was not refused");
    };
    assert!(reason.contains("resume it first"), "{reason}");
    resume(&flow).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    let status = applier.status.snapshot();
    assert_eq!((status.retries, status.duplicate_transactions), (0, 0));
    applier.stop().await;
}

#[tokio::test]
async fn a_rewind_during_a_pause_reads_again_and_applies_nothing() {
    let (mut flow, applier) = Flow::applied(18, &[&[1], &[2]]).await;
    let at = pause(&flow).await;
    flow.bundle(&[&[3]]).await;
    let Answer::Done(report) = rewind(&flow).await else {
        panic!("not done");
    };
    assert_eq!((report.transactions, report.rows_written), (2, 0));
    unmoved(&mut flow, at, "1:1 2:1").await;
    resume(&flow).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    applier.stop().await;
}
