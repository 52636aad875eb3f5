//! The lane beside copies: what it waits for, and what it leaves out. The rows of `trellara.backfill`
//! are written by hand here, as the loader would.

use trellara_applier::quarantine::request::{End, Task};
use trellara_applier::{ApplierState, channel};
use trellara_envelope::{CopyOrder, Lsn, records};

use crate::desk::{self, Kept};
use crate::flow::{Flow, PATIENCE, Running};

/// Transactions of [`Flow`] end at 0x110, 0x120 …, and have their end as their id.
fn seen_to(end: u32) -> String {
    format!("{}:{}:", end + 1, end + 1)
}

/// Writes a table's row, and says so.
async fn copy(flow: &Flow, table: &str, state: &str, snapshot: Option<(&str, u64)>, initial: bool) {
    let (snapshot, converges_at) = snapshot.unzip();
    let converges_at = converges_at.map(tokio_postgres::types::PgLsn::from);
    let client = &flow.target.client;
    client
        .execute(
            "INSERT INTO trellara.backfill AS b \
                 (flow, schema_name, table_name, state, snapshot, converges_at, initial, reason) \
             VALUES ($1, 'public', $2, $3, $4, $5, $6, 'as if') \
             ON CONFLICT (flow, schema_name, table_name) DO UPDATE \
                SET state = excluded.state, snapshot = excluded.snapshot, \
                    converges_at = excluded.converges_at, initial = excluded.initial",
            &[
                &flow.name.as_str(),
                &table,
                &state,
                &snapshot,
                &converges_at,
                &initial,
            ],
        )
        .await
        .unwrap();
    let words = [channel(&flow.name), "backfill".to_owned()];
    client
        .execute("SELECT pg_notify($1, $2)", &[&words[0], &words[1]])
        .await
        .unwrap();
}

async fn state_of(flow: &Flow, table: &str) -> String {
    let sql = "SELECT state FROM trellara.backfill WHERE flow = $1 AND table_name = $2";
    let client = &flow.target.client;
    let row = client.query_one(sql, &[&flow.name.as_str(), &table]).await;
    row.unwrap().get(0)
}

async fn becomes(flow: &Flow, table: &str, state: &str) {
    let wait = async {
        while state_of(flow, table).await != state {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, wait).await;
    waited.unwrap_or_else(|_| panic!("{table} becomes {state}"));
}

async fn copying(applier: &Running, words: &str) {
    let says = |reason: &str| reason.contains(words);
    applier
        .shows(|status| matches!(&status.state, ApplierState::Copying { reason } if says(reason)))
        .await;
}

/// Reports go on, and the lane does not.
async fn unmoved(flow: &mut Flow, at: u64) {
    for _ in 0..2 {
        let report = flow.reported(|_| true).await;
        assert_eq!(report.end_lsn, Lsn(at));
    }
}

/// Ids in `public.t` and `public.u`, in order.
async fn both(flow: &Flow) -> (String, String) {
    let mut rows = Vec::new();
    for table in ["t", "u"] {
        let sql =
            format!("SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM {table}");
        let row = flow.target.client.query_one(&sql, &[]).await.unwrap();
        rows.push(row.get::<_, String>(0));
    }
    let u = rows.pop().unwrap();
    (rows.pop().unwrap(), u)
}

#[derive(Clone, Copy)]
enum Change<'a> {
    T(i32),
    U(i32),
    Truncate(&'a [u32]),
}

const T: u32 = 4711;
const U: u32 = 4712;

/// The records of one transaction over two tables.
fn transaction(changes: &[Change<'_>]) -> (Vec<u8>, u32) {
    let mut out = Vec::new();
    for (oid, name) in [(T, &b"t\0"[..]), (U, b"u\0")] {
        let mut relation = vec![b'R'];
        relation.extend(oid.to_be_bytes());
        relation.extend(b"public\0");
        relation.extend(name);
        relation.push(b'n');
        relation.extend(2u16.to_be_bytes());
        for (name, oid) in [(&b"id\0"[..], 23u32), (b"v\0", 25)] {
            relation.push(0);
            relation.extend(name);
            relation.extend(oid.to_be_bytes());
            relation.extend((-1i32).to_be_bytes());
        }
        records::push(&mut out, &relation);
    }
    for change in changes {
        let mut message = Vec::new();
        match change {
            Change::Truncate(oids) => {
                message.push(b'T');
                message.extend((oids.len() as u32).to_be_bytes());
                message.push(0);
                oids.iter()
                    .for_each(|oid| message.extend(oid.to_be_bytes()));
            }
            Change::T(id) | Change::U(id) => {
                let oid = if matches!(change, Change::T(_)) { T } else { U };
                message.push(b'I');
                message.extend(oid.to_be_bytes());
                message.push(b'N');
                message.extend(2u16.to_be_bytes());
                for value in [id.to_string().as_str(), "x"] {
                    message.push(b't');
                    message.extend((value.len() as u32).to_be_bytes());
                    message.extend(value.as_bytes());
                }
            }
        }
        records::push(&mut out, &message);
    }
    (out, changes.len() as u32)
}

async fn two_tables(version: u32) -> Flow {
    let mut flow = Flow::new(version).await;
    flow.run("CREATE TABLE public.u (id integer, v text)").await;
    flow.marker().await;
    flow
}

#[tokio::test]
async fn c51_the_lane_stands_still_until_the_first_copy_is_in_on_15() {
    stands_still(15).await;
}

#[tokio::test]
async fn c51_the_lane_stands_still_until_the_first_copy_is_in_on_18() {
    stands_still(18).await;
}

async fn stands_still(version: u32) {
    let mut flow = two_tables(version).await;
    copy(&flow, "t", "wanted", None, true).await;
    copy(&flow, "u", "wanted", None, true).await;
    let seen = seen_to(0x120);
    flow.bundle_of(&[
        transaction(&[Change::T(1), Change::U(1)]),
        transaction(&[Change::T(2)]),
        transaction(&[Change::U(3), Change::T(3)]),
    ])
    .await;
    flow.large(&[4, 5], |_| {}).await;
    let applier = flow.start();
    copying(&applier, "0 of 2 tables are in").await;
    unmoved(&mut flow, 0x100).await;
    // What t's snapshot saw; u was read when nothing was there yet.
    copy(&flow, "t", "loaded", Some((&seen, 0x125)), true).await;
    copying(&applier, "1 of 2 tables are in").await;
    unmoved(&mut flow, 0x100).await;
    copy(&flow, "u", "loaded", Some(("1:1:", 0x101)), true).await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("3 4 5".into(), "1 3".into()));
    becomes(&flow, "t", "done").await;
    becomes(&flow, "u", "done").await;
    applier
        .shows(|status| status.state == ApplierState::Running)
        .await;
    // After a restart nobody remembers more than the target does.
    applier.stop().await;
    let applier = flow.start();
    flow.bundle_of(&[transaction(&[Change::T(6)])]).await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("3 4 5 6".into(), "1 3".into()));
    applier.stop().await;
}

#[tokio::test]
async fn b133_a_later_copy_stops_the_lane_where_its_table_is_touched_first() {
    let mut flow = two_tables(18).await;
    copy(&flow, "u", "wanted", None, false).await;
    let applier = flow.start();
    flow.bundle_of(&[
        transaction(&[Change::T(1)]),
        transaction(&[Change::T(2)]),
        transaction(&[Change::T(3), Change::U(3)]),
        transaction(&[Change::T(4)]),
    ])
    .await;
    flow.bundle_of(&[transaction(&[Change::U(5)])]).await;
    copying(&applier, "public.u").await;
    // A source whose commits wait for us must not be waited for by the copy.
    let subject = flow.name.copy_order_subject();
    let mut orders = flow.broker.subscribe_core(&subject).await.unwrap();
    let order = async {
        loop {
            let message = orders.next().await.expect("a connection");
            let order = CopyOrder::decode(&message.payload).unwrap();
            if order.holds_lane {
                return order;
            }
        }
    };
    let order = tokio::time::timeout(PATIENCE, order).await.expect("a word");
    assert_eq!(order.wanted[0].table.name, "u");
    flow.reported(|report| report.end_lsn == Lsn(0x120)).await;
    unmoved(&mut flow, 0x120).await;
    assert_eq!(both(&flow).await, ("1 2".into(), String::new()));
    // It stands there again after a restart, in the middle of the frame.
    applier.stop().await;
    let applier = flow.start();
    copying(&applier, "public.u").await;
    unmoved(&mut flow, 0x120).await;
    // One is seen although it comes later in the log than one that is not.
    let seen = format!("{}:{}:{}", 0x130, 0x151, 0x130);
    copy(&flow, "u", "loaded", Some((&seen, 0x160)), false).await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("1 2 3 4".into(), "3".into()));
    assert_eq!(state_of(&flow, "u").await, "loaded");
    let status = applier
        .shows(|status| matches!(status.state, ApplierState::Converging { .. }))
        .await;
    let at = Lsn(0x160);
    assert_eq!(status.state, ApplierState::Converging { tables: 1, at });
    flow.heartbeat(0x160).await;
    becomes(&flow, "u", "done").await;
    assert_eq!(status.retries, 0);
    applier.stop().await;
}

#[tokio::test]
async fn of_a_truncate_of_several_tables_only_those_in_a_copy_are_left_out() {
    let mut flow = two_tables(18).await;
    let (seen, both_tables) = (seen_to(0x120), [T, U]);
    copy(&flow, "u", "loaded", Some((&seen, 0x200)), true).await;
    flow.run("INSERT INTO public.u VALUES (7, 'of the copy')")
        .await;
    flow.bundle_of(&[
        transaction(&[Change::T(1), Change::U(1)]),
        transaction(&[Change::Truncate(&both_tables), Change::T(2)]),
        transaction(&[Change::Truncate(&[T]), Change::U(3)]),
    ])
    .await;
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(both(&flow).await, (String::new(), "3 7".into()));
    flow.bundle_of(&[transaction(&[Change::Truncate(&both_tables)])])
        .await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, (String::new(), String::new()));
    applier.stop().await;
}

/// Under the replica role TRUNCATE is refused like anywhere else while another table points at one.
#[tokio::test]
async fn what_a_table_in_a_copy_points_at_is_emptied_all_the_same() {
    let mut flow = two_tables(18).await;
    flow.run(
        "ALTER TABLE public.t ADD UNIQUE (id); INSERT INTO public.t VALUES (7, 'before'); \
         ALTER TABLE public.u ADD FOREIGN KEY (id) REFERENCES public.t (id); \
         INSERT INTO public.u VALUES (7, 'of the copy')",
    )
    .await;
    copy(&flow, "u", "loaded", Some((&seen_to(0x120), 0x200)), true).await;
    flow.bundle_of(&[
        transaction(&[Change::T(1), Change::U(1)]),
        transaction(&[Change::Truncate(&[T, U]), Change::T(2)]),
    ])
    .await;
    let applier = flow.start();
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("2".into(), "7".into()));
    applier.stop().await;
}

#[tokio::test]
async fn a_copy_of_what_a_promoted_standby_lacks_is_begun_anew() {
    let mut flow = two_tables(18).await;
    let seen = seen_to(0x120);
    copy(&flow, "u", "loaded", Some((&seen, 0x200)), true).await;
    copy(&flow, "t", "loaded", Some((&seen, 0x118)), true).await;
    let source = "UPDATE trellara.backfill SET source_system = 7412345678901234567, \
                  source_timeline = 1";
    flow.run(source).await;
    let applier = flow.start();
    flow.bundle_of(&[transaction(&[Change::T(1), Change::U(1)])])
        .await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, (String::new(), String::new()));
    flow.promote(0x118).await;
    becomes(&flow, "u", "wanted").await;
    let row = "SELECT generation || ': ' || reason || initial FROM trellara.backfill \
               WHERE table_name = 'u'";
    let row = flow.target.client.query_one(row, &[]).await.unwrap();
    let row: String = row.get(0);
    assert!(
        row.starts_with("2: the source's timeline 2 begins"),
        "{row}"
    );
    assert!(row.ends_with("false"), "the lane went on: {row}");
    // An id that the snapshot saw is given out again.
    flow.bundle_of(&[transaction(&[Change::T(2), Change::U(2)])])
        .await;
    copying(&applier, "public.u").await;
    let noticed = "SELECT noticed_epoch IS NOT NULL FROM trellara.backfill WHERE table_name = 'u'";
    let noticed = flow.target.client.query_one(noticed, &[]).await.unwrap();
    assert!(noticed.get::<_, bool>(0), "it may begin");
    copy(&flow, "u", "loaded", Some(("1:1:", 0x130)), false).await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("2".into(), "2".into()));
    applier.stop().await;
}

#[tokio::test]
async fn a_chunked_transaction_waits_for_a_copy_and_is_left_out_of_it() {
    let mut flow = two_tables(18).await;
    // The id of a chunked one is 900 and where it began.
    let seen = seen_to(900 + 0x110);
    copy(&flow, "t", "copying", Some((&seen, 0x200)), false).await;
    let applier = flow.start();
    flow.bundle_of(&[transaction(&[Change::U(1)])]).await;
    flow.large(&[2, 3], |_| {}).await;
    copying(&applier, "public.t").await;
    flow.reported(|report| report.end_lsn == Lsn(0x110)).await;
    unmoved(&mut flow, 0x110).await;
    copy(&flow, "t", "loaded", Some((&seen, 0x200)), false).await;
    flow.large(&[4, 5], |_| {}).await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("4 5".into(), "1".into()));
    applier.stop().await;
}

#[tokio::test]
async fn an_announced_table_is_noticed_under_the_lanes_epoch() {
    let mut flow = two_tables(18).await;
    let applier = flow.start();
    flow.bundle_of(&[transaction(&[Change::T(1)])]).await;
    flow.caught_up().await;
    copy(&flow, "t", "announced", None, false).await;
    let noticed = async {
        let sql = "SELECT b.noticed_epoch = l.epoch FROM trellara.backfill AS b \
                   JOIN trellara.lane AS l USING (flow) WHERE b.flow = $1";
        let client = &flow.target.client;
        while client
            .query_one(sql, &[&flow.name.as_str()])
            .await
            .unwrap()
            .get::<_, Option<bool>>(0)
            != Some(true)
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, noticed)
        .await
        .expect("it is noticed");
    flow.bundle_of(&[transaction(&[Change::T(2)])]).await;
    copying(&applier, "public.t").await;
    flow.reported(|report| report.end_lsn == Lsn(0x110)).await;
    unmoved(&mut flow, 0x110).await;
    copy(&flow, "t", "removed", None, false).await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await.0, "1 2");
    applier.stop().await;
}

#[tokio::test]
async fn what_is_held_is_replayed_without_what_a_later_copy_brought() {
    let (mut flow, applier) = Flow::applied(18, &[&[1], &[2], &[3]]).await;
    let of = |ids, end| Kept {
        ids,
        end,
        behind: &[],
    };
    let brought = desk::keep(&flow, of(&[21], 0x118)).await;
    let late = desk::keep(&flow, of(&[22], 0x128)).await;
    copy(&flow, "t", "copying", Some(("1:1:", 0x101)), false).await;
    let order = desk::order(Task::Replay, &[brought]);
    let ended = desk::asked(&flow, &order).await;
    let [(_, End::Failed { cause })] = &ended[..] else {
        panic!("{ended:?}");
    };
    assert!(cause.message.contains("copy is not in"), "{cause:?}");
    copy(&flow, "t", "done", Some((&seen_to(0x118), 0x130)), false).await;
    let order = desk::order(Task::Replay, &[brought, late]);
    let ended = desk::asked(&flow, &order).await;
    let changes = |changes| End::Replayed { changes };
    assert_eq!(ended, [(brought, changes(0)), (late, changes(1))]);
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 22:1");
    flow.bundle(&[&[4]]).await;
    flow.caught_up().await;
    applier.stop().await;
}

#[tokio::test]
async fn what_left_the_flow_before_it_was_in_is_left_out_of_what_the_stream_still_has() {
    let mut flow = two_tables(18).await;
    copy(&flow, "t", "failed", None, true).await;
    let applier = flow.start();
    flow.bundle_of(&[
        transaction(&[Change::T(1), Change::U(1)]),
        transaction(&[Change::T(2), Change::Truncate(&[T]), Change::U(2)]),
    ])
    .await;
    copying(&applier, "0 of 1 tables are in").await;
    unmoved(&mut flow, 0x100).await;
    let sql = "UPDATE trellara.backfill SET state = 'removed', initial = false, abandoned = true \
                WHERE table_name = 't'";
    flow.run(sql).await;
    flow.run(&format!("NOTIFY {}, 'backfill'", channel(&flow.name)))
        .await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, (String::new(), "1 2".into()));
    // Transactions that begin from there on come from a publication that it was put back into.
    let limit = format!("UPDATE trellara.backfill SET abandoned_below = {}", 0x140);
    flow.run(&limit).await;
    applier.stop().await;
    let applier = flow.start();
    flow.bundle_of(&[
        transaction(&[Change::T(3), Change::U(3)]),
        transaction(&[Change::T(4)]),
    ])
    .await;
    flow.caught_up().await;
    assert_eq!(both(&flow).await, ("4".into(), "1 2 3".into()));
    let held = flow
        .target
        .client
        .query_one("SELECT count(*) FROM trellara.held", &[]);
    assert_eq!(held.await.unwrap().get::<_, i64>(0), 0);
    applier.stop().await;
}
