//! Copies: frames written by hand in a real copy stream, rows in a real target.

mod hand;
mod putoff;

use trellara_envelope::{CopyEvent, FrameDigest, SystemId};

use self::hand::{Copy, PART};
use crate::flow::Flow;

#[tokio::test]
async fn a_table_comes_in_whole_on_15() {
    comes_in(15).await;
}

#[tokio::test]
async fn a_table_comes_in_whole_on_18() {
    comes_in(18).await;
}

async fn comes_in(version: u32) {
    let mut copy = Copy::of(
        Flow::new(version).await,
        "CREATE TABLE u (id integer PRIMARY KEY, v text)",
    )
    .await;
    copy.wants("u").await;
    let applier = copy.flow.start();
    let order = copy.ordered(|order| !order.wanted.is_empty()).await;
    assert!(order.holds_lane);
    assert_eq!(order.wanted[0].table.name, "u");
    copy.make_stream().await;
    copy.begin("u", &["v", "id"]).await;
    // Two parts mixed, in chunks that end within rows.
    copy.chunk("u", 0, 0, b"a\\tb\\\\c\\nd\t1\nzw").await;
    copy.chunk("u", 1, 0, b"x\t3\n").await;
    copy.chunk("u", 0, 1, b"ei\t2\n").await;
    copy.part("u", 0, 2, 2).await;
    copy.part("u", 1, 1, 1).await;
    copy.end("u", 2, 3).await;
    let row = copy.loaded("u").await;
    assert_eq!((row.rows, row.parts), (3, Some(2)));
    assert_eq!(copy.values("u").await, "1=a\tb\\c\nd 2=zwei 3=x");
    let order = copy.ordered(|order| order.wanted.is_empty()).await;
    assert!(!order.holds_lane);
    copy.trimmed(copy.sequence).await;
    let shown = applier
        .shows(|status| status.copy.as_ref().is_some_and(|copy| copy.tables_in == 1))
        .await;
    assert_eq!(shown.copy.expect("a copy").rows, 3);
    applier.stop().await;
}

#[tokio::test]
async fn a_part_is_in_or_it_is_not_wherever_the_applier_is_killed() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE TABLE u (id integer PRIMARY KEY, v text)",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    let applier = copy.flow.start();
    copy.parts_in("u", 1).await;
    applier.kill().await;

    // Killed behind COMMIT of part 0, and now in front of that of part 1.
    let blocker = copy
        .lock("LOCK TABLE trellara.backfill_part IN SHARE MODE")
        .await;
    copy.whole_part("u", 1, b"2\tb\n", 1).await;
    let applier = copy.flow.start();
    copy.flow.target.blocked().await;
    applier.kill().await;
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(copy.values("u").await, "1=a");

    // Killed while a part is on its way.
    copy.chunk("u", 2, 0, b"3\tc\n").await;
    let applier = copy.flow.start();
    copy.parts_in("u", 2).await;
    copy.copying("u").await;
    applier.kill().await;
    assert_eq!(copy.values("u").await, "1=a 2=b");

    copy.part("u", 2, 1, 1).await;
    copy.end("u", 3, 3).await;
    let applier = copy.flow.start();
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "1=a 2=b 3=c");
    applier.stop().await;
}

#[tokio::test]
async fn nothing_beyond_an_open_part_is_trimmed() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    let open = copy.sequence + 1;
    copy.chunk("u", 1, 0, b"2\tb\n").await;
    copy.whole_part("u", 2, b"3\tc\n", 1).await;
    copy.parts_in("u", 2).await;
    let order = copy
        .ordered(|order| order.trimmed_to > 0 && order.trimmed_to + 1 >= open)
        .await;
    assert_eq!(order.trimmed_to + 1, open);
    assert_eq!(copy.first_sequence().await, open);
    copy.part("u", 1, 1, 1).await;
    copy.trimmed(copy.sequence).await;
    applier.stop().await;
}

#[tokio::test]
async fn what_differs_from_what_was_sent_is_begun_anew() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    // A wrong digest, a hole.
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.chunk("u", 1, 0, b"2\tb\n").await;
    let damaged = CopyEvent::Part {
        part: 1,
        chunks: 1,
        rows: 1,
        bytes: 4,
        digest: FrameDigest([1; 16]),
    };
    copy.event("u", damaged).await;
    let row = copy.generation("u", 2).await;
    assert!(row.reason.contains("digest"), "{}", row.reason);

    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.parts_in("u", 1).await;
    copy.lose_a_frame();
    copy.whole_part("u", 1, b"2\tb\n", 1).await;
    let row = copy.generation("u", 3).await;
    assert!(row.reason.contains("missing"), "{}", row.reason);

    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"7\tg\n", 1).await;
    copy.end("u", 1, 1).await;
    copy.loaded("u").await;
    assert_eq!(
        copy.values("u").await,
        "7=g",
        "what came of the others is gone"
    );
    applier.stop().await;
}

#[tokio::test]
async fn a_new_writer_empties_what_an_older_one_brought() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE TABLE u (id integer PRIMARY KEY, v text); \
         CREATE TABLE child (id integer REFERENCES u)",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.chunk("u", 1, 0, b"2\tb\n").await;
    copy.parts_in("u", 1).await;
    // TRUNCATE is refused: a foreign key points at the table.
    copy.new_writer();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"5\te\n", 1).await;
    copy.end("u", 1, 1).await;
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "5=e");
    applier.stop().await;
}

#[tokio::test]
async fn rows_that_the_target_does_not_take_are_named_without_their_values() {
    let refusals = [
        (
            "CREATE TABLE u (id integer, v integer)",
            "22P02",
            "column v",
        ),
        (
            "CREATE TABLE u (id integer, v text CONSTRAINT short CHECK (length(v) < 3))",
            "23514",
            "short",
        ),
        ("CREATE TABLE u (id integer)", "42703", "v"),
        ("CREATE TABLE other (id integer)", "42P01", "u"),
    ];
    for (ddl, sqlstate, named) in refusals {
        let mut copy = Copy::of(Flow::new(18).await, ddl).await;
        copy.wants("u").await;
        copy.make_stream().await;
        let applier = copy.flow.start();
        copy.begin("u", &["id", "v"]).await;
        copy.whole_part("u", 0, b"1\tsecret\n", 1).await;
        let row = copy.failed("u").await;
        assert!(row.reason.contains(sqlstate), "{}", row.reason);
        assert!(row.reason.contains(named), "{}", row.reason);
        assert!(!row.reason.contains("secret"), "{}", row.reason);
        let shown = applier
            .shows(|status| {
                status
                    .copy
                    .as_ref()
                    .is_some_and(|copy| !copy.failed.is_empty())
            })
            .await;
        assert!(shown.copy.expect("a copy").holds_lane);
        applier.stop().await;
    }
}

#[tokio::test]
async fn columns_that_the_target_writes_by_itself() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE DOMAIN short AS text CHECK (length(VALUE) < 9); \
         CREATE TYPE mood AS ENUM ('sad', 'ok'); \
         CREATE TABLE u (id integer GENERATED ALWAYS AS IDENTITY, m mood, \
             twice integer GENERATED ALWAYS AS (id * 2) STORED, v short, \
             own text DEFAULT 'mine')",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    // The source may send what the target computes.
    copy.begin("u", &["id", "twice", "v", "m"]).await;
    copy.chunk("u", 0, 0, b"7\t1").await;
    copy.chunk("u", 0, 1, b"0\t\\N\tok\n").await;
    copy.part("u", 0, 2, 1).await;
    copy.end("u", 1, 1).await;
    copy.loaded("u").await;
    assert_eq!(
        copy.text("SELECT concat_ws(',', id, coalesce(v, 'null'), m, twice, own) FROM u")
            .await,
        "7,null,ok,14,mine"
    );
    applier.stop().await;
}

#[tokio::test]
async fn rows_without_columns_are_rows() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u ()").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &[]).await;
    copy.whole_part("u", 0, b"\n\n\n", 3).await;
    copy.end("u", 1, 3).await;
    copy.loaded("u").await;
    assert_eq!(copy.text("SELECT count(*)::text FROM u").await, "3");
    applier.stop().await;
}

#[tokio::test]
async fn more_parts_mixed_than_workers_all_come_in() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    let parts = 6;
    for chunk in 0..2 {
        for part in 0..parts {
            let row = format!("{}\tx\n", part * 2 + chunk);
            copy.chunk("u", part, chunk, row.as_bytes()).await;
        }
    }
    for part in 0..parts {
        copy.part("u", part, 2, 2).await;
    }
    copy.end("u", parts, 12).await;
    assert_eq!(copy.loaded("u").await.rows, 12);
    applier.stop().await;
}

#[tokio::test]
async fn a_wide_row_passes_in_many_chunks() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.chunk("u", 0, 0, b"1\t").await;
    let piece = vec![b'x'; PART];
    for number in 1..=20 {
        copy.chunk("u", 0, number, &piece).await;
    }
    copy.chunk("u", 0, 21, b"\n").await;
    copy.part("u", 0, 22, 1).await;
    copy.end("u", 1, 1).await;
    copy.loaded("u").await;
    let length = (20 * PART).to_string();
    assert_eq!(copy.text("SELECT length(v)::text FROM u").await, length);
    applier.stop().await;
}

#[tokio::test]
async fn the_stream_may_vanish_and_come_again() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE TABLE u (id integer, v text); CREATE TABLE w (id integer, v text)",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.end("u", 1, 1).await;
    copy.loaded("u").await;
    copy.trimmed(copy.sequence).await;
    copy.delete_stream().await;
    copy.wants("w").await;
    copy.notify().await;
    copy.ordered(|order| !order.wanted.is_empty()).await;
    copy.make_stream().await;
    copy.new_writer();
    copy.begin("w", &["id", "v"]).await;
    copy.whole_part("w", 0, b"2\tb\n", 1).await;
    copy.end("w", 1, 1).await;
    copy.loaded("w").await;
    assert_eq!(copy.values("w").await, "2=b");
    applier.stop().await;
}

#[tokio::test]
async fn a_part_of_an_applier_that_lost_the_lane_is_refused() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let mut options = copy.flow.options();
    options.interleaved = true;
    let applier = copy.flow.start_with(options);
    copy.begin("u", &["id", "v"]).await;
    copy.chunk("u", 0, 0, b"1\ta\n").await;
    copy.copying("u").await;
    // The lane's lock is shared by the part under way; the epoch is raised beside it, as by hand.
    let client = &copy.flow.target.client;
    client
        .execute("UPDATE trellara.lane SET epoch = epoch + 1", &[])
        .await
        .unwrap();
    copy.part("u", 0, 1, 1).await;
    let retried = applier.shows(|status| status.retries > 0).await;
    let error = retried.last_error.expect("why");
    assert!(error.contains("another applier took the lane"), "{error}");
    // Under the epoch that the lane has now, it goes in.
    copy.parts_in("u", 1).await;
    assert_eq!(copy.values("u").await, "1=a");
    applier.stop().await;
}

#[tokio::test]
async fn an_older_writer_is_not_heard() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.new_writer();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"5\te\n", 1).await;
    copy.as_older_writer(async |older| {
        older.begin("u", &["id", "v"]).await;
        older.whole_part("u", 0, b"1\ta\n", 1).await;
        older.whole_part("u", 1, b"2\tb\n", 1).await;
    })
    .await;
    copy.whole_part("u", 1, b"6\tf\n", 1).await;
    copy.end("u", 2, 2).await;
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "5=e 6=f");
    applier.stop().await;
}

#[tokio::test]
async fn rows_that_stand_in_the_way_of_truncate_are_deleted() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE TABLE u (id integer, v text); INSERT INTO u VALUES (1, 'old')",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    // Somebody reads the table, for longer than anybody waits.
    let reader = copy.lock("LOCK TABLE public.u IN ACCESS SHARE MODE").await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.end("u", 0, 0).await;
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "");
    drop(reader);
    applier.stop().await;
}

#[tokio::test]
async fn a_partitioned_table_is_copied_through_its_root() {
    let mut copy = Copy::of(
        Flow::new(15).await,
        "CREATE TABLE u (id integer, v text) PARTITION BY RANGE (id); \
         CREATE TABLE u1 PARTITION OF u FOR VALUES FROM (0) TO (10); \
         CREATE TABLE u2 PARTITION OF u FOR VALUES FROM (10) TO (20); \
         INSERT INTO u VALUES (3, 'old'), (13, 'old')",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n11\tb\n", 2).await;
    copy.end("u", 1, 2).await;
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "1=a 11=b");
    applier.stop().await;
}

#[tokio::test]
async fn an_operator_is_needed_when_nothing_ever_comes_of_it() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let mut applier = copy.flow.start();
    let failed = || CopyEvent::Failed {
        reason: "rewritten".into(),
        hint: String::new(),
        lasting: false,
    };
    // A table that is truncated again and again: some of it comes in each time.
    for generation in 2..=10 {
        copy.begin("u", &["id", "v"]).await;
        copy.whole_part("u", 0, b"1\ta\n", 1).await;
        copy.parts_in("u", 1).await;
        copy.event("u", failed()).await;
        copy.generation("u", generation).await;
        if generation == 6 {
            // Nobody forgets how often it was.
            applier.kill().await;
            applier = copy.flow.start();
        }
    }
    copy.event("u", failed()).await;
    let row = copy.failed("u").await;
    assert!(row.reason.starts_with("10 copies came"), "{}", row.reason);
    assert!(row.reason.contains("rewritten"), "{}", row.reason);
    applier.stop().await;
}

#[tokio::test]
async fn what_was_read_before_a_promotion_is_read_again() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    let applier = copy.flow.start();
    copy.flow.marker().await;
    copy.flow.promote(0x200).await;
    copy.flow.heartbeat(0x110).await;
    copy.flow.caught_up().await;
    copy.wants_later("u").await;
    copy.notify().await;
    copy.ordered(|order| !order.wanted.is_empty()).await;
    copy.make_stream().await;
    copy.begin("u", &["id", "v"]).await;
    let row = copy.generation("u", 2).await;
    assert!(row.reason.contains("promoted"), "{}", row.reason);
    copy.source = copy.flow.history.source();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.end("u", 1, 1).await;
    copy.loaded("u").await;
    applier.stop().await;
}

#[tokio::test]
async fn rows_of_another_cluster_are_named() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    copy.source.system = SystemId(8);
    copy.begin("u", &["id", "v"]).await;
    let applier = copy.flow.start();
    let row = copy.failed("u").await;
    assert!(row.reason.contains("cluster 8"), "{}", row.reason);
    applier.stop().await;
}

#[tokio::test]
async fn a_target_with_fewer_characters_takes_what_it_has_and_names_the_rest() {
    let ddl = "CREATE TABLE u (id integer, v text)";
    let mut copy = Copy::of(Flow::into_latin1(18).await, ddl).await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, "1\t\u{e9}\n".as_bytes(), 1).await;
    copy.parts_in("u", 1).await;
    let stored = "SELECT octet_length(v)::text FROM public.u";
    assert_eq!(copy.text(stored).await, "1");
    assert_eq!(copy.values("u").await, "1=\u{e9}");
    copy.whole_part("u", 1, "2\t\u{20ac}\n".as_bytes(), 1).await;
    let row = copy.failed("u").await;
    assert!(row.reason.contains("22P05"), "{}", row.reason);
    assert!(!row.reason.contains('\u{20ac}'), "{}", row.reason);
    applier.stop().await;
}

/// The replica role does not enforce it (C37).
#[tokio::test]
async fn rows_against_a_deferrable_constraint_do_not_pass_for_a_copy() {
    let ddl = "CREATE TABLE u (id integer, v text, UNIQUE (id) DEFERRABLE)";
    let mut copy = Copy::of(Flow::new(18).await, ddl).await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n\\N\tb\n\\N\tc\n", 3).await;
    copy.whole_part("u", 1, b"1\td\n", 1).await;
    copy.end("u", 2, 4).await;
    let row = copy.failed("u").await;
    assert!(row.reason.contains("23505"), "{}", row.reason);
    assert!(row.reason.contains("u_id_key"), "{}", row.reason);
    applier.stop().await;
}

/// The relay is gone in the middle of a part: nothing stays open for it, and it goes on when there is
/// more.
#[tokio::test]
async fn a_part_that_does_not_go_on_keeps_nobody_from_the_table() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE u (id integer, v text)").await;
    copy.wants("u").await;
    copy.make_stream().await;
    let mut options = copy.flow.options();
    options.stall_timeout = std::time::Duration::from_secs(3);
    let applier = copy.flow.start_with(options);
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.chunk("u", 1, 0, b"2\tb\n").await;
    copy.parts_in("u", 1).await;
    copy.copying("u").await;
    // Waits for the part's transaction, and for nothing else.
    copy.lock("LOCK TABLE public.u IN ACCESS EXCLUSIVE MODE")
        .await
        .batch_execute("ROLLBACK")
        .await
        .unwrap();
    copy.chunk("u", 1, 1, b"3\tc\n").await;
    copy.part("u", 1, 2, 2).await;
    copy.end("u", 2, 3).await;
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "1=a 2=b 3=c");
    assert_eq!(applier.status.snapshot().retries, 0);
    applier.stop().await;
}

/// The last part of one table ends while the loader waits for a part of another one, whose copy was
/// replaced: nothing else would ever say that the first is complete.
#[tokio::test]
async fn a_part_that_ends_while_another_table_is_waited_for_completes_its_own() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE TABLE u (id integer, v text); CREATE TABLE w (id integer, v text)",
    )
    .await;
    copy.wants("u").await;
    copy.wants("w").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("w", &["id", "v"]).await;
    copy.begin("u", &["id", "v"]).await;
    copy.begun("w").await;
    copy.begun("u").await;
    let of_u = copy.lock("LOCK TABLE public.u IN SHARE MODE").await;
    let of_w = copy.lock("LOCK TABLE public.w IN SHARE MODE").await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.end("u", 1, 1).await;
    copy.whole_part("w", 0, b"2\tb\n", 1).await;
    copy.waiting_for("u").await;
    copy.waiting_for("w").await;
    copy.replaced("w").await;
    of_u.batch_execute("ROLLBACK").await.unwrap();
    copy.parts_in("u", 1).await;
    of_w.batch_execute("ROLLBACK").await.unwrap();
    copy.loaded("u").await;
    assert_eq!(copy.values("u").await, "1=a");
    applier.stop().await;
}

/// What the lane has under way was judged without the copy: the table is neither read nor emptied
/// before that is in and the lane has said so.
#[tokio::test]
async fn a_later_copy_begins_when_the_lane_has_noticed_it() {
    let mut copy = Copy::of(Flow::new(18).await, "CREATE TABLE w (id integer, v text)").await;
    copy.wants_later("w").await;
    let applier = copy.flow.start();
    copy.ordered(|order| !order.wanted.is_empty()).await;
    copy.make_stream().await;
    copy.begin("w", &["id", "v"]).await;
    copy.begun("w").await;
    let blocker = copy.lock("LOCK TABLE public.t IN SHARE MODE").await;
    copy.flow.bundle(&[&[1]]).await;
    copy.waiting_for("t").await;
    let now = copy.now().await;
    copy.wants_later("t").await;
    copy.reread_since(&now).await;
    copy.orders_from_now_on().await;
    for _ in 0..2 {
        let order = copy.ordered(|_| true).await;
        assert_eq!(order.wanted.len(), 1, "{:?}", order.wanted);
    }
    blocker.batch_execute("ROLLBACK").await.unwrap();
    copy.ordered(|order| order.wanted.len() == 2).await;
    applier.stop().await;
}

/// It would do so with every copy: what came was what was sent.
#[tokio::test]
async fn a_target_that_drops_a_row_of_a_later_part_needs_an_operator() {
    let mut copy = Copy::of(
        Flow::new(18).await,
        "CREATE TABLE u (id integer, v text); \
         CREATE FUNCTION dropped() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
         CREATE TRIGGER dropped BEFORE INSERT ON u FOR EACH ROW WHEN (NEW.id = 2) \
             EXECUTE FUNCTION dropped(); \
         ALTER TABLE u ENABLE ALWAYS TRIGGER dropped",
    )
    .await;
    copy.wants("u").await;
    copy.make_stream().await;
    let applier = copy.flow.start();
    copy.begin("u", &["id", "v"]).await;
    copy.whole_part("u", 0, b"1\ta\n", 1).await;
    copy.parts_in("u", 1).await;
    copy.whole_part("u", 1, b"2\tb\n3\tc\n", 2).await;
    let row = copy.failed("u").await;
    assert!(
        row.reason
            .contains("part 1: the target counts 1 rows, and 2 were sent"),
        "{}",
        row.reason
    );
    assert_eq!(row.generation, 1);
    applier.stop().await;
}
