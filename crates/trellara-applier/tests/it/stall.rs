//! What is in hand and does not move: said, named, and where the broker is to blame, given up.

use std::time::Duration;

use trellara_applier::ApplierState;
use trellara_local::{NatsServer, shared};

use crate::flow::{Flow, connect};

/// Ids `1..=n`.
fn ids(n: i32) -> Vec<i32> {
    (1..=n).collect()
}

#[tokio::test]
async fn a_batch_behind_a_lock_is_pending_and_its_blocker_is_named() {
    let mut flow = Flow::new(18).await;
    flow.marker().await;
    let mut options = flow.options();
    options.stall_timeout = Duration::from_secs(2);
    let applier = flow.start_with(options);
    flow.reported(|_| true).await;
    let locker = connect(&flow.target.url).await;
    locker
        .batch_execute("SET application_name = 'nightly'; BEGIN; LOCK TABLE public.t")
        .await
        .unwrap();
    let pid: i32 = locker
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    for large in [false, true] {
        if large {
            flow.large(&[2, 3], |_| {}).await;
        } else {
            flow.bundle(&[&[1]]).await;
        }
        let named = format!("held by pid {pid} (");
        let status = applier
            .shows(|status| {
                let pending = status.pending.as_ref();
                pending.is_some_and(|pending| pending.what.contains(&named))
            })
            .await;
        let pending = status.pending.expect("seen");
        assert!(pending.what.contains(", nightly)"), "{pending:?}");
        assert_eq!(pending.what.contains("large"), large, "{pending:?}");
        applier
            .shows(|status| {
                let pending = status.pending.as_ref();
                pending.is_some_and(|pending| pending.still >= Duration::from_secs(2))
            })
            .await;
        assert_eq!(applier.status.snapshot().state, ApplierState::Running);
        locker.batch_execute("COMMIT").await.unwrap();
        flow.caught_up().await;
        applier.shows(|status| status.pending.is_none()).await;
        locker
            .batch_execute("BEGIN; LOCK TABLE public.t")
            .await
            .unwrap();
    }
    locker.batch_execute("COMMIT").await.unwrap();
    applier.stop().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
}

/// A transaction of many times `stall_timeout` whose every piece is answered is at work, not stuck.
#[tokio::test]
async fn a_long_transaction_that_moves_is_never_still_for_long() {
    let mut flow = Flow::new(18).await;
    flow.target
        .client
        .batch_execute(
            "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql \
               AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END $$; \
             CREATE TRIGGER slow AFTER INSERT ON public.t FOR EACH STATEMENT \
               EXECUTE FUNCTION public.slow(); \
             ALTER TABLE public.t ENABLE ALWAYS TRIGGER slow",
        )
        .await
        .unwrap();
    flow.marker().await;
    // Each row is a statement of its own.
    let wide = "x".repeat(1_100_000);
    flow.large_of(&wide, &ids(40), 500_000, |_| {}).await;
    let applier = flow.start();
    applier.shows(|status| status.pending.is_some()).await;
    let began = std::time::Instant::now();
    let longest = std::cell::Cell::new(Duration::ZERO);
    applier
        .shows(|status| {
            let still = status.pending.as_ref().map_or(Duration::ZERO, |p| p.still);
            longest.set(longest.get().max(still));
            status.transactions == 1
        })
        .await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "it took only {took:?}");
    let longest = longest.get();
    assert!(longest < took / 2, "still for {longest:?} of {took:?}");
    applier.stop().await;
}

/// The broker falls silent in the middle of a large transaction: what is open on the target is
/// rolled back instead of holding its locks until the broker is back, and is then done again.
#[tokio::test]
async fn a_large_transaction_whose_chunks_do_not_come_is_rolled_back_and_begun_again() {
    let broker = NatsServer::start(&shared::nats()).unwrap();
    let mut flow = Flow::with_broker(18, broker.url()).await;
    flow.marker().await;
    let mut options = flow.options();
    options.stall_timeout = Duration::from_secs(2);
    let applier = flow.start_with(options);
    flow.reported(|_| true).await;
    let client = &flow.target.client;
    client
        .batch_execute("BEGIN; LOCK TABLE public.t")
        .await
        .unwrap();
    // Twice what is read ahead.
    let wide = "x".repeat(100_000);
    flow.large_of(&wide, &ids(80), 500_000, |_| {}).await;
    flow.target.blocked().await;
    broker.pause().unwrap();
    flow.target.client.batch_execute("COMMIT").await.unwrap();
    let status = applier
        .shows(|status| matches!(status.state, ApplierState::Retrying { .. }))
        .await;
    let reason = status.last_error.expect("a reason");
    assert!(reason.contains("no further chunk"), "{reason}");
    let open: i64 = flow
        .target
        .client
        .query_one(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND pid <> pg_backend_pid() AND xact_start IS NOT NULL",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(open, 0, "nothing is left open on the target");
    broker.resume().unwrap();
    flow.caught_up().await;
    applier.stop().await;
    let rows: i64 = flow
        .target
        .client
        .query_one("SELECT count(*) FROM public.t", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(rows, 80);
}
