//! What goes from the ledger, and what is known of it afterwards.

use std::time::Duration;

use trellara_envelope::{HaltCode, Lane, StreamSequence};
use trellara_jetstream::trim;

use crate::dedup::{dedup, written_down};
use crate::flow::{Flow, PATIENCE, Running};

/// Ledger rows that hold transactions.
async fn recorded(flow: &Flow) -> i64 {
    let rows = "SELECT count(*) FROM trellara.applied WHERE length(hashes) > 0";
    let client = &flow.target.client;
    client.query_one(rows, &[]).await.unwrap().get(0)
}

/// Takes the frames on a subject below a sequence out of the stream.
async fn purge(flow: &Flow, subject: &str, below: u64) {
    let stream = flow.name.stream();
    let purged = trim::purge_to(&flow.broker, &stream, subject, StreamSequence(below)).await;
    purged.unwrap();
}

/// An applier that keeps no row for its age.
fn prunes(flow: &Flow) -> Running {
    let mut options = flow.options();
    options.dedup_window = Duration::ZERO;
    flow.start_with(options)
}

async fn pruned_to(flow: &Flow, rows: i64) {
    let wait = async {
        while recorded(flow).await > rows {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("pruned");
}

/// Pruned rows answer through the watermark; what the stream may deliver again is not pruned.
#[tokio::test]
async fn pruning_follows_the_stream_and_duplicates_below_stay_duplicates() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    for id in 1..=4 {
        flow.bundle(&[&[id]]).await;
        let applier = prunes(&flow);
        flow.caught_up().await;
        // Each start prunes once, at its first tick.
        flow.reported(|_| true).await;
        flow.reported(|_| true).await;
        applier.stop().await;
    }
    assert_eq!(recorded(&flow).await, 4, "the stream still has them all");
    // It loses the first two.
    let subject = flow.name.transactions_subject(Lane(0));
    purge(&flow, &subject, 5).await;
    let applier = prunes(&flow);
    pruned_to(&flow, 2).await;
    // A relay without memory sends all four again.
    flow.go_back_to(0x100);
    flow.marker().await;
    flow.bundle(&[&[1], &[2], &[3], &[4]]).await;
    flow.bundle(&[&[5]]).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 5:1");
    assert_eq!(applier.status.snapshot().duplicate_transactions, 4);
    // Its place alone answers for the first two.
    assert_eq!(dedup(&applier).below_watermark, 2);
    applier.stop().await;
}

/// Two transactions applied, gone from the stream, and a heartbeat behind them as its last frame.
async fn applied_and_gone() -> Flow {
    let (mut flow, applier) = Flow::applied(18, &[&[1], &[2]]).await;
    // In a row of its own.
    flow.heartbeat(0x130).await;
    written_down(&mut flow).await;
    applier.stop().await;
    let subject = flow.name.transactions_subject(Lane(0));
    purge(&flow, &subject, flow.sequence).await;
    flow
}

/// C33: what the window bounds. Source and broker are set back behind what was pruned, the target is
/// not: what the source did then stands at places that the target has passed, without a row to
/// compare it with. It is counted apart, and beyond the watermark it is noticed.
#[tokio::test]
async fn c33_below_the_watermark_another_course_of_events_is_counted_and_not_noticed() {
    let mut flow = applied_and_gone().await;
    let applier = prunes(&flow);
    pruned_to(&flow, 0).await;
    applier.stop().await;

    flow.replace_stream(0x100).await;
    flow.other_course = 1;
    flow.marker().await;
    flow.bundle(&[&[8], &[9]]).await;
    let applier = flow.start();
    let seen = applier.shows(|seen| seen.duplicate_transactions == 2).await;
    assert_eq!(seen.dedup.below_watermark, 2, "{seen:?}");
    assert_eq!(flow.target.rows().await, "1:1 2:1", "nobody has noticed");
    flow.bundle(&[&[10]]).await;
    let halt = applier.halt().await;
    assert_eq!(halt.code, HaltCode::Diverged, "{halt}");
}

/// Whoever emptied the stream may put it back: what it holds now says nothing of what it will.
#[tokio::test]
async fn nothing_is_pruned_while_the_stream_lacks_the_checkpoints_frame() {
    let mut flow = applied_and_gone().await;
    // It has found its place and waits for the ledger.
    let client = &flow.target.client;
    let lock = "BEGIN; LOCK TABLE trellara.applied IN SHARE MODE";
    client.batch_execute(lock).await.unwrap();
    let applier = prunes(&flow);
    flow.target.blocked().await;
    for subject in [flow.name.mark_subject(), flow.name.beat_subject()] {
        purge(&flow, &subject, flow.sequence + 1).await;
    }
    flow.target.client.batch_execute("COMMIT").await.unwrap();
    // It prunes at its first tick, before which it reports.
    flow.reported(|report| report.epoch.0 >= 2).await;
    flow.reported(|_| true).await;
    flow.reported(|_| true).await;
    assert_eq!(recorded(&flow).await, 1);
    applier.stop().await;
}
