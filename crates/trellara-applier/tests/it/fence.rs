//! C53: a verify run fences the lane, and finds it at one exact position.

use trellara_applier::ApplierSnapshot;
use trellara_envelope::{Lsn, StreamSequence};

use crate::dedup::{sql, written_down};
use crate::flow::{Flow, Running, connect};

mod ends;
mod random;
pub(crate) mod run;

use run::{LONG, Run};

/// A flow with one transaction applied, and its applier.
async fn flow(version: u32) -> (Flow, Running) {
    Flow::applied(version, &[&[1]]).await
}

/// Identities in the lane's ledger.
async fn recorded(flow: &Flow) -> i64 {
    let sum = "SELECT coalesce(sum(length(hashes) / 16), 0)::bigint FROM trellara.applied";
    flow.target.client.query_one(sum, &[]).await.unwrap().get(0)
}

async fn fenced(applier: &Running, by: &str) -> ApplierSnapshot {
    let by = format!("fenced by verify run {by} until ");
    applier
        .shows(|status| {
            let shown = status.fence.as_ref().map(ToString::to_string);
            shown.is_some_and(|shown| shown.starts_with(&by))
        })
        .await
}

/// Everything went through once, and nothing was taken up anew.
async fn undisturbed(flow: &Flow, applier: &Running, transactions: i64) {
    let status = applier.status.snapshot();
    assert_eq!((status.retries, status.duplicate_transactions), (0, 0));
    assert_eq!(status.dedup.probes, 0, "the cache goes on vouching");
    assert_eq!(status.fence, None);
    assert_eq!(recorded(flow).await, transactions);
}

#[tokio::test]
async fn c53_a_bundle_that_straddles_the_position_is_cut_there_and_continued() {
    for version in [15, 18] {
        let (mut flow, applier) = flow(version).await;
        let before = flow.target.checkpoint(&flow.name).await;
        let mut run = Run::new(&flow, "one").await;
        assert_eq!(run.arm(0x110, LONG).await, Lsn(0x110));
        let status = fenced(&applier, "one").await;
        assert!(!status.fence.expect("fenced").reached);
        flow.bundle(&[&[2], &[3], &[4]]).await;
        flow.heartbeat(0x1a0).await;
        flow.bundle(&[&[5]]).await;
        // Between the end of the second and the commit record of the third.
        run.stand(0x134).await;
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
        let stands = flow.target.checkpoint(&flow.name).await;
        assert_eq!(stands.end_lsn, Lsn(0x134));
        assert_eq!(stands.transaction_end_lsn, Lsn(0x130));
        assert_eq!(stands.transport, before.transport, "C21");
        // It stays there, and says so.
        for _ in 0..3 {
            let report = flow.reported(|_| true).await;
            assert!(report.end_lsn <= Lsn(0x134));
        }
        assert_eq!(flow.target.checkpoint(&flow.name).await, stands);
        applier
            .shows(|status| status.fence.as_ref().is_some_and(|fence| fence.reached))
            .await;
        run.release().await;
        flow.caught_up().await;
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 5:1");
        undisturbed(&flow, &applier, 5).await;
        applier.stop().await;
    }
}

#[tokio::test]
async fn c53_an_idle_flow_reaches_the_position_by_a_heartbeat_beyond_it() {
    let (mut flow, applier) = flow(18).await;
    let mut run = Run::new(&flow, "one").await;
    run.arm(0x118, LONG).await;
    flow.heartbeat(0x200).await;
    run.stand(0x180).await;
    let stands = flow.target.checkpoint(&flow.name).await;
    assert_eq!(stands.transaction_end_lsn, Lsn(0x110));
    run.release().await;
    // A heartbeat at the position itself. What the one before said is written down with the arming.
    let mut run = Run::new(&flow, "two").await;
    assert_eq!(run.arm(0x200, LONG).await, Lsn(0x200));
    assert!(run.want(0x240).await);
    flow.heartbeat(0x240).await;
    run.reached(0x240).await;
    // What comes behind it waits.
    flow.bundle(&[&[2]]).await;
    flow.reported(|_| true).await;
    assert_eq!(flow.target.rows().await, "1:1");
    run.release().await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    undisturbed(&flow, &applier, 2).await;
    applier.stop().await;
}

#[tokio::test]
async fn c53_a_large_transaction_at_or_beyond_the_position_is_held() {
    let (mut flow, applier) = flow(18).await;
    let mut run = Run::new(&flow, "one").await;
    for (at, ids) in [(0x110, [2, 3]), (0x128, [4, 5])] {
        // First where the lane stands, then where the commit record begins.
        run.arm(flow.position, LONG).await;
        flow.large(&ids, |_| {}).await;
        run.stand(at).await;
        let rows = flow.target.rows().await;
        assert!(!rows.contains(&format!("{}:", ids[0])), "{rows}");
        run.release().await;
        flow.caught_up().await;
    }
    run.arm(flow.position, LONG).await;
    flow.large(&[6, 7], |_| {}).await;
    // Where it ends.
    run.stand(flow.position).await;
    run.release().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 5:1 6:1 7:1");
    flow.bundle(&[&[8]]).await;
    flow.caught_up().await;
    undisturbed(&flow, &applier, 5).await;
    applier.stop().await;
}

/// Before it says that nothing more comes, the applier writes down what it has.
#[tokio::test]
async fn c53_what_was_accepted_before_the_fence_is_written_before_it_is_armed() {
    let (mut flow, applier) = flow(18).await;
    let locker = connect(&flow.target.url).await;
    locker
        .batch_execute("BEGIN; LOCK TABLE public.t")
        .await
        .unwrap();
    flow.bundle(&[&[2], &[3]]).await;
    flow.target.blocked().await;
    let mut run = Run::new(&flow, "one").await;
    assert!(run.claim(0x118, LONG).await);
    run.notify().await;
    let row = run.row().await.expect("its row");
    assert_eq!((row.armed_lsn, row.epoch), (None, None));
    locker.batch_execute("COMMIT").await.unwrap();
    assert_eq!(run.armed().await, Lsn(0x130));
    flow.bundle(&[&[4]]).await;
    run.stand(0x134).await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    run.release().await;
    flow.caught_up().await;
    undisturbed(&flow, &applier, 4).await;
    applier.stop().await;
}

/// A batch that fails inside a fence is repeated transaction by transaction, and no further.
#[tokio::test]
async fn c53_transactions_tried_one_by_one_end_at_the_position() {
    let (mut flow, applier) = flow(18).await;
    let mut run = Run::new(&flow, "one").await;
    run.arm(0x110, LONG).await;
    sql(
        &flow,
        "CREATE SEQUENCE public.times;
         CREATE FUNCTION public.fail_once() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN IF nextval(''public.times'') = 1 THEN RAISE ''once''; END IF; RETURN NEW; END';
         CREATE TRIGGER fail_once BEFORE INSERT ON public.t
             FOR EACH ROW EXECUTE FUNCTION public.fail_once();
         ALTER TABLE public.t ENABLE ALWAYS TRIGGER fail_once",
    )
    .await;
    flow.bundle(&[&[2], &[3], &[4]]).await;
    run.stand(0x138).await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    assert_eq!(applier.status.snapshot().batches, 3, "one by one");
    run.release().await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
    undisturbed(&flow, &applier, 4).await;
    applier.stop().await;
}

/// A position that the lane has passed, or that lies inside a transaction's commit record, is never
/// stood at; the lease ends it, and nothing is lost.
#[tokio::test]
async fn c53_a_position_that_cannot_be_stood_at_is_not_reached() {
    for wrong in [0x104, 0x11c] {
        let (mut flow, applier) = flow(18).await;
        let mut run = Run::new(&flow, "wrong").await;
        run.arm(0x110, LONG).await;
        flow.bundle(&[&[2], &[3]]).await;
        assert!(run.want(wrong).await);
        applier
            .shows(|status| {
                let fence = status.fence.as_ref();
                fence.is_some_and(|fence| fence.cap == Lsn(wrong))
            })
            .await;
        for _ in 0..2 {
            flow.reported(|_| true).await;
        }
        assert!(!run.row().await.expect("its row").reached);
        assert_eq!(flow.target.rows().await, "1:1");
        run.release().await;
        flow.caught_up().await;
        undisturbed(&flow, &applier, 3).await;
        applier.stop().await;
    }
}

/// The fence holds what is new. What comes a second time, below where the lane stands, is none of
/// its business.
#[tokio::test]
async fn c53_duplicates_pass_a_fence() {
    let (mut flow, applier) = flow(18).await;
    flow.bundle(&[&[2], &[3]]).await;
    flow.caught_up().await;
    let mut run = Run::new(&flow, "one").await;
    run.arm(0x130, LONG).await;
    run.stand(0x130).await;
    flow.go_back_to(0x110);
    flow.marker().await;
    flow.bundle(&[&[2], &[3]]).await;
    let passed = StreamSequence(flow.sequence);
    flow.bundle(&[&[4]]).await;
    written_down_at_least(&mut flow, passed).await;
    run.reached(0x130).await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
    run.release().await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
    assert_eq!(recorded(&flow).await, 4);
    assert_eq!(applier.status.snapshot().duplicate_transactions, 2);
    applier.stop().await;
}

async fn written_down_at_least(flow: &mut Flow, sequence: StreamSequence) {
    let (behind, at) = (flow.sequence, sequence.0);
    flow.sequence = at;
    written_down(flow).await;
    flow.sequence = behind;
}

#[tokio::test]
async fn c53_removing_a_flow_takes_its_fence_away() {
    let (flow, applier) = flow(18).await;
    let mut run = Run::new(&flow, "one").await;
    run.arm(0x110, LONG).await;
    applier.stop().await;
    // Another flow keeps the schema.
    let other = "other".parse().unwrap();
    let genesis = crate::flow::genesis_checkpoint(&other);
    flow.target.set_up(&other, &genesis).await;
    let mut client = connect(&flow.target.url).await;
    let name = flow.name.as_str();
    let last = trellara_applier::schema::remove(&mut client, name).await;
    assert!(!last.unwrap());
    assert_eq!(run.row().await, None);
}
