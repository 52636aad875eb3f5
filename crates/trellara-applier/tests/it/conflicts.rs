//! Conflict rules in a flow: what they let go by is recorded with the rows of its transaction.

use trellara_applier::ApplierOptions;
use trellara_applier::quarantine::{ConflictRule, HeldState};

use crate::desk::{all, ask};
use crate::flow::Flow;

fn skipping(flow: &Flow, mut options: ApplierOptions) -> ApplierOptions {
    options.conflicts.all.duplicate_key = ConflictRule::Skip;
    assert_eq!(options.flow, flow.name);
    options
}

/// What was skipped, as `end: change` with the number of rows that say the same identity as the
/// ledger.
async fn skipped(flow: &Flow) -> Vec<String> {
    let sql = "SELECT s.end_lsn || ': ' || s.change || ' ' || s.verb || ' ' || s.rule || \
               CASE WHEN EXISTS (SELECT FROM trellara.applied a, \
                       generate_series(0, length(a.hashes) / 16 - 1) n \
                     WHERE substr(a.hashes, n * 16 + 1, 16) = s.hash) THEN '' ELSE ' unknown' END \
               FROM trellara.skipped s ORDER BY s.id";
    let rows = flow.target.client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn in_a_flow(version: u32) {
    let mut flow = Flow::new(version).await;
    flow.run("ALTER TABLE public.t ADD PRIMARY KEY (id); INSERT INTO public.t VALUES (2, 'mine')")
        .await;
    flow.marker().await;
    flow.bundle(&[&[1], &[3, 2, 4], &[5]]).await;
    flow.large(&[6, 1, 7, 5], |_| {}).await;
    flow.bundle(&[&[8]]).await;
    let applier = flow.start_with(skipping(&flow, flow.options()));
    flow.caught_up().await;
    let rows = "1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1";
    assert_eq!(flow.target.rows().await, rows);
    let mine = "SELECT count(*) FROM public.t WHERE v = 'mine'";
    assert_eq!(flow.number(mine).await, 1, "nothing was written over");
    assert!(flow.held().await.is_empty());
    let skipped = skipped(&flow).await;
    let ends: Vec<&str> = skipped
        .iter()
        .map(|s| s.split_once(": ").unwrap().1)
        .collect();
    let expected = ["2 insert skip", "2 insert skip", "4 insert skip"];
    assert_eq!(ends, expected, "{skipped:?}");
    let once = "skipped (conflict rule), skipped (conflict rule)";
    assert_eq!(flow.deeds().await, once, "once for each transaction");
    let told = "SELECT sum((arguments ->> 'skipped')::int) FROM trellara.audit";
    assert_eq!(flow.number(told).await, 3);
    applier.stop().await;
}

#[tokio::test]
async fn what_a_rule_skips_is_recorded_with_its_transaction_on_15() {
    in_a_flow(15).await;
}

#[tokio::test]
async fn what_a_rule_skips_is_recorded_with_its_transaction_on_18() {
    in_a_flow(18).await;
}

/// A held transaction that is replayed finds the same rules.
#[tokio::test]
async fn a_replay_is_under_the_rules_too() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "ALTER TABLE public.t ADD PRIMARY KEY (id), ADD CONSTRAINT low CHECK (id < 50); \
              INSERT INTO public.t VALUES (2, 'mine')",
    )
    .await;
    flow.marker().await;
    flow.bundle(&[&[2, 50]]).await;
    let applier = flow.start_with(skipping(&flow, flow.holding()));
    flow.caught_up().await;
    assert!(skipped(&flow).await.is_empty(), "rolled back with the rest");
    assert_eq!(flow.deeds().await, "held");
    flow.run("ALTER TABLE public.t DROP CONSTRAINT low").await;
    ask(&flow, &all()).await;
    assert_eq!(flow.held().await[0].state, HeldState::Replayed);
    assert_eq!(flow.target.rows().await, "2:1 50:1");
    let skipped = skipped(&flow).await;
    assert_eq!(skipped.len(), 1, "{skipped:?}");
    assert!(skipped[0].ends_with("1 insert skip"), "{skipped:?}");
    assert_eq!(
        flow.deeds().await,
        "held, skipped (conflict rule), replayed"
    );
    applier.stop().await;
}
