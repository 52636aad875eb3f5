//! What may go from the stream, and what has to stay there.

use trellara_envelope::StreamSequence;
use trellara_jetstream::read::Reader;

use crate::flow::{Flow, PATIENCE, Running};

/// Applies everything and keeps no history; returns when a trim up to the checkpoint is done.
async fn trims_everything(flow: &mut Flow) -> Running {
    let mut options = flow.options();
    options.history_bytes = 0;
    options.idle_checkpoint = std::time::Duration::ZERO;
    let applier = flow.start_with(options);
    let last = StreamSequence(flow.sequence);
    flow.reported(|report| report.sequence == last).await;
    let begun = std::time::Instant::now();
    // Every report comes before a look at the stream.
    while applier.status.snapshot().trimmed_to < last {
        assert!(begun.elapsed() < PATIENCE, "not trimmed");
        flow.reported(|_| true).await;
    }
    applier
}

/// Which sequences are left.
async fn left(flow: &Flow) -> Vec<u64> {
    let reader = Reader::new(&flow.broker, &flow.name.stream());
    let mut left = Vec::new();
    for sequence in 1..=flow.sequence {
        if let Some(stored) = reader.get(StreamSequence(sequence)).await.unwrap() {
            left.push(stored.sequence.0);
        }
    }
    left
}

#[tokio::test]
async fn the_newest_marker_and_the_newest_transaction_are_never_trimmed() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    flow.marker().await;
    flow.bundle(&[&[2]]).await;
    flow.bundle(&[&[3]]).await;
    flow.heartbeat(0x180).await;
    flow.heartbeat(0x190).await;
    let applier = trims_everything(&mut flow).await;
    // The marker of C06, the transaction of C02, and the checkpoint's frame, which is the last.
    assert_eq!(left(&flow).await, [4, 6, 8]);
    applier.stop().await;

    // A marker is the last frame: nothing else changes.
    flow.marker().await;
    let applier = trims_everything(&mut flow).await;
    assert_eq!(left(&flow).await, [6, 9]);
    applier.stop().await;
    let applier = flow.start();
    flow.bundle(&[&[4]]).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1");
    applier.stop().await;
}

#[tokio::test]
async fn c12_an_open_transaction_keeps_its_chunks_and_nothing_else() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.open(700).await;
    for id in 1..=5 {
        flow.bundle(&[&[id]]).await;
    }
    let applier = trims_everything(&mut flow).await;
    assert_eq!(left(&flow).await, [2, 3, 8]);
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 5:1");
}

#[tokio::test]
async fn c13_whoever_applies_the_marker_purges_what_it_closed() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.open(700).await;
    flow.bundle(&[&[1]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    assert!(left(&flow).await.contains(&3));
    // The relay died and its successor's marker closes what it left open. This one's `keep_from`
    // lets nothing below it go, so what takes the chunk away is the marker alone.
    flow.marker().await;
    let marker = StreamSequence(flow.sequence);
    flow.reported(|report| report.sequence == marker).await;
    let begun = std::time::Instant::now();
    while left(&flow).await.contains(&3) {
        assert!(begun.elapsed() < PATIENCE, "the chunk is still there");
        flow.reported(|_| true).await;
    }
    applier.stop().await;
}

#[tokio::test]
async fn c13_a_purge_that_a_crash_cut_off_is_made_up_for() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.open(700).await;
    flow.marker().await;
    let applier = flow.start();
    let marker = StreamSequence(flow.sequence);
    flow.reported(|report| report.sequence == marker).await;
    applier.stop().await;
    // As if that one had died between its commit and the purge.
    let stray = format!("trellara.{}.open.1.700", flow.name);
    let bytes = bytes::Bytes::from_static(b"left behind");
    flow.store(&stray, bytes).await;
    let applier = flow.start();
    let begun = std::time::Instant::now();
    while left(&flow).await.contains(&flow.sequence) {
        assert!(begun.elapsed() < PATIENCE, "the chunk is still there");
        flow.reported(|_| true).await;
    }
    applier.stop().await;
}

#[tokio::test]
async fn c14_a_restart_behind_open_chunks_leaves_them_for_their_manifest() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    flow.open(700).await;
    let chunk = flow.sequence;
    flow.bundle(&[&[2]]).await;
    flow.bundle(&[&[3]]).await;
    let applier = trims_everything(&mut flow).await;
    applier.stop().await;
    // The one that begins behind the chunks has never seen them, and trims up to where it stands.
    flow.bundle(&[&[4]]).await;
    flow.bundle(&[&[5]]).await;
    let applier = trims_everything(&mut flow).await;
    assert_eq!(left(&flow).await, [2, chunk, flow.sequence]);
    flow.commit_open(700, chunk).await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 5:1");
    // And then they go.
    let begun = std::time::Instant::now();
    while left(&flow).await.contains(&chunk) {
        assert!(begun.elapsed() < PATIENCE, "the chunk is still there");
        flow.reported(|_| true).await;
    }
    applier.stop().await;
}
