//! What becomes of a transaction that the target refuses for cause: under `halt` the lane stands in
//! front of it, under `hold_dependents` it is set aside and the lane goes on.

use std::time::Duration;

use trellara_applier::quarantine::request::{Answer, End, Task};
use trellara_applier::quarantine::store::{self, Which};
use trellara_applier::quarantine::{ConflictRule, Conflicts, HeldId};
use trellara_applier::quarantine::{Held, HeldReason, HeldState, HeldStorage, QuarantinePolicy};
use trellara_applier::{ApplierOptions, ApplierState, HaltPolicy};
use trellara_envelope::{Halt, HaltCode, Lane, Lsn, StreamSequence, records};

use crate::desk::{all, ask, asked, order};
use crate::flow::{Flow, PATIENCE, Running, identity_of};

/// A change of `public.k (id integer PRIMARY KEY, v text)`, or an insert into the keyless table.
#[derive(Debug, Clone, Copy)]
enum Change {
    Insert(i32, &'static str),
    Update(i32, &'static str),
    Delete(i32),
    Elsewhere(i32),
}

const KEYED: u32 = 4712;

/// The records of a transaction; the first of a bundle describes the keyed table for all.
fn transaction(changes: &[Change], first: bool) -> (Vec<u8>, u32) {
    let mut out = Vec::new();
    let mut relation = vec![b'R'];
    relation.extend(KEYED.to_be_bytes());
    relation.extend(b"public\0k\0d");
    relation.extend(2u16.to_be_bytes());
    for (flags, name, oid) in [(1, &b"id\0"[..], 23u32), (0, b"v\0", 25)] {
        relation.push(flags);
        relation.extend(name);
        relation.extend(oid.to_be_bytes());
        relation.extend((-1i32).to_be_bytes());
    }
    if first {
        records::push(&mut out, &relation);
    }
    for change in changes {
        let (kind, tuple, id, v) = match *change {
            Change::Insert(id, v) => (b'I', b'N', id, Some(v)),
            Change::Update(id, v) => (b'U', b'N', id, Some(v)),
            Change::Delete(id) => (b'D', b'K', id, None),
            Change::Elsewhere(id) => {
                out.extend(crate::flow::inserts(&[id], None));
                continue;
            }
        };
        let mut message = vec![kind];
        message.extend(KEYED.to_be_bytes());
        message.push(tuple);
        message.extend(2u16.to_be_bytes());
        for value in [Some(id.to_string().as_str()), v] {
            let Some(value) = value else {
                message.push(b'n');
                continue;
            };
            message.push(b't');
            message.extend((value.len() as u32).to_be_bytes());
            message.extend(value.as_bytes());
        }
        records::push(&mut out, &message);
    }
    (out, changes.len() as u32)
}

impl Flow {
    /// A bundle of transactions.
    async fn bundle_in(&mut self, transactions: &[&[Change]]) {
        let numbered = transactions.iter().enumerate();
        let all: Vec<(Vec<u8>, u32)> = numbered
            .map(|(place, one)| transaction(one, place == 0))
            .collect();
        self.bundle_of(&all).await;
    }

    /// The keyed table, as `id=v` in order.
    async fn keyed(&self) -> String {
        let sql = "SELECT coalesce(string_agg(id || '=' || v, ' ' ORDER BY id), '') FROM public.k";
        self.target.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Options that go on behind what is refused.
    pub(crate) fn holding(&self) -> ApplierOptions {
        let mut options = self.options();
        options.quarantine.policy = QuarantinePolicy::HoldDependents;
        options
    }

    /// Options of a process that stays alive when it halts.
    pub(crate) fn staying(&self) -> ApplierOptions {
        ApplierOptions {
            halt: HaltPolicy::Stay,
            ..self.options()
        }
    }

    /// Everything that is or was held, oldest first.
    pub(crate) async fn held(&self) -> Vec<Held> {
        let client = &self.target.client;
        store::list(client, &self.name, Lane(0), Which::All)
            .await
            .unwrap()
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.target.client.batch_execute(sql).await.unwrap();
    }

    /// One number of the target.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.target.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Actions of the audit, in order.
    pub(crate) async fn deeds(&self) -> String {
        let sql = "SELECT coalesce(string_agg(action, ', ' ORDER BY id), '') FROM trellara.audit";
        self.target.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// Waits until the lane stands still, and says why.
async fn halted(applier: &Running) -> Halt {
    let shown = applier
        .shows(|status| matches!(status.state, ApplierState::Halted { .. }))
        .await;
    match shown.state {
        ApplierState::Halted { halt, probing } => {
            assert!(!probing, "nothing is tried again by itself");
            halt
        }
        state => panic!("{state:?}"),
    }
}

/// B113: the third of five rows breaks a rule of the target.
async fn b113(version: u32) {
    let mut flow = Flow::new(version).await;
    flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
        .await;
    flow.marker().await;
    flow.bundle(&[&[1], &[2, 3, 50, 4, 5], &[6]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    assert_eq!(halt.code.exit_code(), 12);
    assert_eq!(flow.target.rows().await, "1:1", "all of it or nothing");
    assert_eq!(flow.target.checkpoint(&flow.name).await.end_lsn, Lsn(0x110));

    let held = flow.held().await;
    let [held] = &held[..] else {
        panic!("{held:?}")
    };
    assert_eq!(held.identity, identity_of(0x120));
    assert_eq!(
        (held.reason, held.state),
        (HeldReason::Blocking, HeldState::Held)
    );
    assert_eq!((held.storage, held.chunked), (HeldStorage::Target, false));
    assert_eq!((held.changes, held.frames, held.attempts), (5, 1, 1));
    assert_eq!((held.after.end_lsn, held.end_lsn), (Lsn(0x120), Lsn(0x120)));
    let cause = &held.cause;
    assert_eq!((&*cause.sqlstate, cause.change), ("23514", 3));
    assert_eq!((&*cause.schema, &*cause.table), ("public", "t"));
    assert_eq!(cause.object, "low");
    // The row's values are in the store alone.
    assert!(cause.detail.contains("(50, x)"), "{cause:?}");
    for said in [&halt.reason, &halt.hint, &cause.message] {
        assert!(!said.contains("(50, x)"), "{said}");
    }
    let id = held.id;
    assert!(halt.reason.contains(&format!("is held ({id})")), "{halt}");
    let desk = format!("trellara quarantine show {id}");
    assert!(halt.hint.contains(&desk), "{halt}");
    assert_eq!(flow.deeds().await, "held");

    // Another process tries once by itself, and finds it as it was.
    flow.start().halt().await;
    let again = flow.held().await;
    assert_eq!(again.len(), 1, "one row, however often it is refused");
    assert_eq!((again[0].id, again[0].attempts), (id, 2));

    // Cured, the next process gets by it.
    flow.run("ALTER TABLE public.t DROP CONSTRAINT low").await;
    let applier = flow.start();
    flow.caught_up().await;
    let rows = "1:1 2:1 3:1 4:1 5:1 6:1 50:1";
    assert_eq!(flow.target.rows().await, rows);
    let closed = flow.held().await;
    assert_eq!(closed[0].state, HeldState::Replayed);
    assert_eq!(flow.deeds().await, "held, held, retried at start");
    let shown = applier
        .shows(|status| status.quarantine.is_some_and(|held| held.open == 0))
        .await;
    assert!(!shown.quarantine.expect("it was read").loosens());
    applier.stop().await;
}

#[tokio::test]
async fn b113_under_halt_nothing_of_a_refused_transaction_is_in_and_all_of_it_is_kept_on_15() {
    b113(15).await;
}

#[tokio::test]
async fn b113_under_halt_nothing_of_a_refused_transaction_is_in_and_all_of_it_is_kept_on_18() {
    b113(18).await;
}

/// The process that was refused stands still: it holds the lane, reports, and tries nothing.
#[tokio::test]
async fn a_lane_that_stands_in_front_of_a_held_transaction_tries_nothing_by_itself() {
    let mut flow = Flow::new(18).await;
    flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
        .await;
    flow.marker().await;
    flow.bundle(&[&[1], &[50], &[2]]).await;
    let applier = flow.start_with(flow.staying());
    let halt = halted(&applier).await;
    let stands = |status: &trellara_applier::ApplierSnapshot| {
        let held = status.quarantine.and_then(|held| held.stands_in_front_of);
        held.is_some()
    };
    applier.shows(stands).await;
    flow.run("ALTER TABLE public.t DROP CONSTRAINT low").await;
    // It stays so when its session is taken from it, and while it ticks.
    flow.run(
        "SELECT pg_terminate_backend(holder_pid) FROM trellara.lane WHERE flow = current_database()",
    )
    .await;
    let retries = |status: &trellara_applier::ApplierSnapshot| status.retries > 0;
    applier.shows(retries).await;
    assert_eq!(halted(&applier).await, halt);
    let epoch = applier.status.snapshot().epoch;
    for _ in 0..2 {
        let report = flow.reported(|report| report.epoch == epoch).await;
        assert_eq!(report.end_lsn, Lsn(0x110), "it stays in front of it");
    }
    assert!(!applier.status.is_ready());
    assert_eq!(halted(&applier).await, halt);
    assert_eq!(flow.held().await[0].attempts, 1);
    assert_eq!(flow.target.rows().await, "1:1");
    let shown = applier.status.snapshot().quarantine.expect("it was read");
    assert_eq!(shown.stands_in_front_of, Some(flow.held().await[0].id));
    applier.stop().await;
}

/// Healthy ones go in, by batches, and each poison is set aside; nothing of an error is left for
/// the next transaction.
async fn five_of_five_hundred(version: u32) {
    let mut flow = Flow::new(version).await;
    flow.run("CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id % 100 <> 0), v text)")
        .await;
    flow.marker().await;
    let changes: Vec<[Change; 1]> = (1..=500).map(|id| [Change::Insert(id, "x")]).collect();
    let transactions: Vec<&[Change]> = changes.iter().map(|one| &one[..]).collect();
    flow.bundle_in(&transactions).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    let distinct = "SELECT count(DISTINCT id) FROM public.k";
    assert_eq!(flow.number(distinct).await, 495);
    assert_eq!(flow.number("SELECT count(*) FROM public.k").await, 495);
    let held = flow.held().await;
    let ends: Vec<Lsn> = held.iter().map(|held| held.end_lsn).collect();
    let expected: Vec<Lsn> = (1..=5).map(|n| Lsn(0x100 + n * 0x10 * 100)).collect();
    assert_eq!(ends, expected, "in the order of their commits");
    assert!(held.iter().all(|held| held.reason == HeldReason::Poisoned));
    assert!(held.iter().all(|held| held.cause.sqlstate == "23514"));
    let status = applier
        .shows(|status| status.quarantine.is_some_and(|held| held.open == 5))
        .await;
    assert_eq!(status.transactions, 495);
    assert!(
        status.batches < 100,
        "{} target transactions",
        status.batches
    );
    let shown = status.quarantine.expect("it was read");
    assert_eq!((shown.open, shown.passed), (5, 5));
    assert!(shown.loosens() && applier.status.is_ready());
    assert_eq!(flow.deeds().await, ["held"; 5].join(", "));

    // What comes again is known, applied or held (C42).
    flow.go_back_to(0x100);
    flow.marker().await;
    flow.bundle_in(&transactions).await;
    let again = StreamSequence(flow.sequence);
    flow.bundle_in(&[&[Change::Insert(1001, "x")]]).await;
    flow.caught_up().await;
    let status = applier.status.snapshot();
    assert_eq!(status.duplicate_transactions, 500, "up to {again}");
    assert_eq!(status.dedup.below_watermark, 0);
    assert_eq!(flow.held().await.len(), 5);
    assert_eq!(flow.number(distinct).await, 496);
    applier.stop().await;
}

#[tokio::test]
async fn exactly_the_poisoned_ones_of_a_batch_are_held_on_15() {
    five_of_five_hundred(15).await;
}

#[tokio::test]
async fn exactly_the_poisoned_ones_of_a_batch_are_held_on_18() {
    five_of_five_hundred(18).await;
}

/// Every kind of error that is about a transaction, in a batch with healthy ones before and behind.
#[tokio::test]
async fn each_kind_of_data_fault_is_held_whole_and_the_others_are_in() {
    let trigger = |what: &str| {
        format!(
            "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN IF new.id = 50 THEN {what}; END IF; RETURN new; END'; \
             CREATE TRIGGER f BEFORE INSERT ON public.k FOR EACH ROW EXECUTE FUNCTION public.f(); \
             ALTER TABLE public.k ENABLE ALWAYS TRIGGER f"
        )
    };
    let kinds = [
        ("23514", "ALTER TABLE public.k ADD CHECK (id <> 50)".to_owned()),
        ("23505", "INSERT INTO public.k VALUES (50, 'mine')".to_owned()),
        ("23502", "ALTER TABLE public.k ADD w integer NOT NULL".to_owned()),
        ("22001", "ALTER TABLE public.k ALTER v TYPE varchar(3)".to_owned()),
        ("22003", "ALTER TABLE public.k ALTER v TYPE text; ".to_owned() + &trigger("new.v := 40000::smallint")),
        ("22P02", "CREATE TYPE public.e AS ENUM ('x'); ALTER TABLE public.k ALTER v TYPE public.e USING v::public.e".to_owned()),
        ("P0001", trigger("RAISE ''secret''")),
        // A count that is not what it must be: nothing was stored, and nobody says so (B111).
        ("", trigger("RETURN NULL")),
        // Deferred constraints speak up at COMMIT.
        ("23505", "CREATE UNIQUE INDEX u ON public.k (v); INSERT INTO public.k VALUES (1, 'refused'); \
            ALTER TABLE public.k ADD CONSTRAINT u UNIQUE USING INDEX u DEFERRABLE INITIALLY DEFERRED".to_owned()),
    ];
    for (sqlstate, sql) in kinds {
        let mut flow = Flow::new(18).await;
        flow.run("CREATE TABLE public.k (id integer PRIMARY KEY, v text)")
            .await;
        flow.run(&sql).await;
        flow.marker().await;
        let insert = |id| Change::Insert(id, "refused");
        flow.bundle_in(&[
            &[Change::Elsewhere(1)],
            &[Change::Elsewhere(2), insert(50), Change::Elsewhere(3)],
            &[Change::Elsewhere(4)],
        ])
        .await;
        let applier = flow.start_with(flow.holding());
        flow.caught_up().await;
        let held = flow.held().await;
        assert!(!held.is_empty(), "{sqlstate}: {sql}");
        let poisoned = &held[0];
        assert_eq!(poisoned.cause.sqlstate, sqlstate, "{held:?}");
        assert_eq!(poisoned.identity, identity_of(0x120), "{sqlstate}");
        assert_eq!(poisoned.changes, 3);
        assert!(!poisoned.cause.message.contains("secret"), "{held:?}");
        let mine = "SELECT count(*) FROM public.k WHERE id = 50 AND v::text = 'refused'";
        assert_eq!(flow.number(mine).await, 0, "{sqlstate}");
        // The table without a key is touched as a whole, so the last one waits.
        assert_eq!(flow.target.rows().await, "1:1", "{sqlstate}");
        assert_eq!(held.len(), 2);
        assert_eq!(held[1].reason, HeldReason::Dependent);
        applier.stop().await;
    }
}

/// A transaction that came in chunks: under `halt` a reference to the stream, copied when the lane
/// moves past it (C47).
#[tokio::test]
async fn c47_a_chunked_transaction_is_kept_by_reference_and_copied_when_the_lane_moves_past_it() {
    let mut flow = Flow::new(18).await;
    flow.run("ALTER TABLE public.t ADD CHECK (id <> 50)").await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    flow.large(&[2, 3, 50, 4], |_| {}).await;
    let manifest = StreamSequence(flow.sequence);
    flow.bundle(&[&[5]]).await;
    let halt = flow.start().halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    let held = flow.held().await;
    let [held] = &held[..] else {
        panic!("{held:?}")
    };
    assert_eq!((held.storage, held.chunked), (HeldStorage::Stream, true));
    assert_eq!((held.sequence, held.changes), (manifest, 4));
    assert_eq!(held.cause.change, 3);
    let frames = "SELECT count(*) FROM trellara.held_frame";
    assert_eq!(flow.number(frames).await, 0);

    // The policy is another one now: the same row, and the lane goes on.
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    let moved = flow.held().await;
    assert_eq!(moved[0].id, held.id);
    assert_eq!(moved[0].reason, HeldReason::Poisoned);
    assert_eq!(
        (moved[0].storage, moved[0].attempts),
        (HeldStorage::Target, 2)
    );
    assert!(moved[0].frames > 1, "manifest and chunks: {moved:?}");
    assert_eq!(flow.number(frames).await as u64, moved[0].frames + 1);
    // Its table has no key, so what comes later waits behind it.
    assert_eq!(flow.target.rows().await, "1:1");
    assert_eq!((moved.len(), moved[1].reason), (2, HeldReason::Dependent));
    applier.stop().await;
}

/// F18: killed while the held row is written, nothing of it is there, and the checkpoint has not
/// moved; then it is held once.
#[tokio::test]
async fn f18_a_held_row_and_the_checkpoint_behind_it_are_one_transaction() {
    for table in ["held", "held_key", "held_frame", "audit", "applied"] {
        let mut flow = Flow::new(18).await;
        flow.run("CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id <> 50), v text)")
            .await;
        flow.marker().await;
        flow.bundle_in(&[&[Change::Insert(50, "x")], &[Change::Elsewhere(2)]])
            .await;
        // Whoever writes there waits for us.
        let mut locker = crate::flow::connect(&flow.target.url).await;
        let lock = locker.transaction().await.unwrap();
        lock.batch_execute(&format!("LOCK TABLE trellara.{table} IN SHARE MODE"))
            .await
            .unwrap();
        let applier = flow.start_with(flow.holding());
        flow.target.blocked().await;
        flow.run(
            "SELECT pg_terminate_backend(holder_pid) FROM trellara.lane \
              WHERE flow = current_database()",
        )
        .await;
        applier.shows(|status| status.retries > 0).await;
        assert_eq!(flow.held().await.len(), 0, "{table}");
        assert_eq!(
            flow.number("SELECT count(*) FROM trellara.held_frame")
                .await,
            0
        );
        assert_eq!(flow.deeds().await, "", "{table}");
        assert_eq!(flow.target.checkpoint(&flow.name).await.end_lsn, Lsn(0x100));
        lock.rollback().await.unwrap();
        flow.caught_up().await;
        assert_eq!(flow.held().await.len(), 1, "{table}");
        assert_eq!(flow.target.rows().await, "2:1", "{table}");
        applier.stop().await;
    }
}

/// What nobody knows stops the lane, whatever the policy.
#[tokio::test]
async fn an_unknown_error_stops_the_lane_under_every_policy() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN IF new.id = 50 THEN RAISE SQLSTATE ''XX001''; END IF; RETURN new; END'; \
         CREATE TRIGGER f BEFORE INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.f(); \
         ALTER TABLE public.t ENABLE ALWAYS TRIGGER f",
    )
    .await;
    flow.marker().await;
    flow.bundle(&[&[1], &[50], &[2]]).await;
    let halt = flow.start_with(flow.holding()).halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    assert!(halt.reason.contains("XX001"), "{halt}");
    assert_eq!(flow.held().await[0].reason, HeldReason::Blocking);
    assert_eq!(flow.target.rows().await, "1:1");
}

/// Limits: the one beyond them is not set aside, the lane stops in front of it and names the limit.
#[tokio::test]
async fn beyond_a_limit_the_lane_stops_and_names_it() {
    type Set = fn(&mut ApplierOptions);
    let limits: [(&str, Set); 2] = [
        ("quarantine.max_transactions (1)", |options| {
            options.quarantine.max_transactions = 1;
        }),
        ("quarantine.max_bytes (300)", |options| {
            options.quarantine.max_bytes = 300;
        }),
    ];
    for (name, set) in limits {
        let mut flow = Flow::new(18).await;
        flow.run("CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id < 50), v text)")
            .await;
        flow.marker().await;
        flow.bundle_in(&[
            &[Change::Insert(50, "x")],
            &[Change::Elsewhere(1)],
            &[Change::Insert(51, "x")],
            &[Change::Elsewhere(2)],
        ])
        .await;
        let mut options = flow.holding();
        set(&mut options);
        let halt = flow.start_with(options).halt().await;
        assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
        assert!(halt.reason.contains(name), "{halt}");
        let held = flow.held().await;
        let reasons: Vec<HeldReason> = held.iter().map(|held| held.reason).collect();
        assert_eq!(reasons, [HeldReason::Poisoned, HeldReason::Blocking]);
        assert_eq!(flow.target.rows().await, "1:1");
    }
}

/// Where a part of a batch is in and the lane stops behind it, a passing fault at that stop does not
/// bring the part again.
#[tokio::test]
async fn what_went_in_before_the_lane_stopped_is_not_applied_again() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id < 50), v text); \
         CREATE SEQUENCE public.stops; \
         CREATE FUNCTION public.disturb() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN \
             IF NEW.reason = 'blocking' AND nextval('public.stops') = 1 THEN \
                 RAISE EXCEPTION 'cancelled' USING ERRCODE = '57014'; \
             END IF; \
             RETURN NEW; \
         END $$; \
         CREATE TRIGGER disturb BEFORE INSERT ON trellara.held \
             FOR EACH ROW EXECUTE FUNCTION public.disturb(); \
         ALTER TABLE trellara.held ENABLE ALWAYS TRIGGER disturb",
    )
    .await;
    flow.marker().await;
    let others: Vec<[Change; 1]> = (1..=21).map(|n| [Change::Elsewhere(n)]).collect();
    let mut batch: Vec<&[Change]> = vec![
        &[Change::Insert(50, "x")],
        &others[0],
        &[Change::Insert(51, "x")],
    ];
    batch.extend(others[1..].iter().map(|one| &one[..]));
    batch.push(&[Change::Update(50, "y")]);
    flow.bundle_in(&batch).await;
    let mut options = flow.holding();
    options.quarantine.max_transactions = 2;
    let halt = flow.start_with(options).halt().await;
    assert!(halt.reason.contains("max_transactions (2)"), "{halt}");
    assert!(flow.number("SELECT last_value FROM public.stops").await > 1);
    assert_eq!(flow.number("SELECT count(*) FROM public.t").await, 21);
    let twice = "SELECT count(*) FROM (SELECT id FROM public.t GROUP BY id HAVING count(*) > 1) d";
    assert_eq!(flow.number(twice).await, 0);
    // In the order of its rows the ledger never goes back.
    let back = "SELECT count(*) FROM (SELECT end_lsn < lag(end_lsn) OVER (ORDER BY first_ordinal) \
                FROM trellara.applied) AS a (back) WHERE back";
    assert_eq!(flow.number(back).await, 0);
}

#[tokio::test]
async fn a_lane_whose_oldest_held_transaction_is_too_old_stands_still() {
    let mut flow = Flow::new(18).await;
    flow.run("ALTER TABLE public.t ADD CHECK (id < 50)").await;
    flow.marker().await;
    flow.bundle(&[&[1], &[50]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    applier.stop().await;
    let mut options = flow.holding();
    options.halt = HaltPolicy::Stay;
    options.quarantine.max_age = Some(Duration::from_millis(1));
    let applier = flow.start_with(options);
    let halt = tokio::time::timeout(PATIENCE, halted(&applier))
        .await
        .unwrap();
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    assert!(halt.reason.contains("quarantine.max_age"), "{halt}");
    flow.bundle(&[&[2]]).await;
    flow.reported(|_| true).await;
    flow.reported(|_| true).await;
    assert_eq!(flow.target.rows().await, "1:1", "nothing is read");
    applier.stop().await;
}

/// What stands still is let go at the desk, by the applier that stands there: replayed once the
/// cause is gone, or discarded; and the lane reads on behind it, in the middle of its frame.
#[tokio::test]
async fn a_lane_that_stands_still_goes_on_when_the_desk_has_decided() {
    for task in [Task::Replay, Task::Discard] {
        let mut flow = Flow::new(18).await;
        flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
            .await;
        flow.marker().await;
        flow.bundle(&[&[1], &[50], &[2]]).await;
        flow.bundle(&[&[3]]).await;
        let applier = flow.start_with(flow.staying());
        halted(&applier).await;
        let id = flow.held().await[0].id;
        if task == Task::Replay {
            // Refused again it stays where it is.
            let refused = ask(&flow, &order(task, &[id])).await;
            assert!(matches!(ended(refused), End::Failed { .. }));
            assert!(!applier.status.is_ready());
            assert_eq!(flow.held().await[0].attempts, 2);
            flow.run("ALTER TABLE public.t DROP CONSTRAINT low").await;
        }
        ended(ask(&flow, &order(task, &[id])).await);
        flow.caught_up().await;
        let (rows, state) = match task {
            Task::Replay => ("1:1 2:1 3:1 50:1", HeldState::Replayed),
            Task::Discard => ("1:1 2:1 3:1", HeldState::Discarded),
        };
        assert_eq!(flow.target.rows().await, rows);
        assert_eq!(flow.held().await[0].state, state);
        let status = applier
            .shows(|status| status.state == ApplierState::Running)
            .await;
        assert_eq!(status.retries, 0, "it never began anew");
        let held = status.quarantine.expect("it was read");
        assert_eq!((held.open, held.stands_in_front_of), (0, None));
        assert_eq!(held.loosens(), task == Task::Discard);
        applier.stop().await;
    }
}

/// What found no room to wait is not applied before what it waits for, and goes on by itself once
/// there is room.
#[tokio::test]
async fn what_finds_no_room_waits_in_its_order_and_goes_on_by_itself() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (id < 50))",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[
        &[Change::Insert(50, "x")],
        &[Change::Elsewhere(1)],
        &[Change::Update(50, "y")],
        &[Change::Elsewhere(2)],
    ])
    .await;
    let mut options = flow.holding();
    options.halt = HaltPolicy::Stay;
    options.quarantine.max_transactions = 1;
    let applier = flow.start_with(options);
    let halt = halted(&applier).await;
    assert!(halt.reason.contains("max_transactions (1)"), "{halt}");
    let held = flow.held().await;
    let reasons: Vec<HeldReason> = held.iter().map(|held| held.reason).collect();
    assert_eq!(reasons, [HeldReason::Poisoned, HeldReason::Blocking]);
    assert_eq!(held[1].attempts, 0, "it was never tried");
    flow.run("ALTER TABLE public.k DROP CONSTRAINT low").await;
    let refused = ended(ask(&flow, &order(Task::Replay, &[held[1].id])).await);
    assert!(matches!(&refused, End::Refused { reason, .. } if reason.contains("waits behind")));
    ended(ask(&flow, &order(Task::Replay, &[held[0].id])).await);
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "50=y");
    assert_eq!(flow.target.rows().await, "1:1 2:1");
    assert!(
        flow.held()
            .await
            .iter()
            .all(|held| held.state == HeldState::Replayed)
    );
    applier.stop().await;
}

/// A transaction that touches more than may be kept blocks; where more may be kept later it is set
/// aside with all that it touches, also for whoever reads that anew.
#[tokio::test]
async fn what_is_known_of_a_blocking_ones_keys_is_written_down_when_it_is_set_aside() {
    let mut flow = Flow::new(18).await;
    flow.run("CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id < 50), v text)")
        .await;
    flow.marker().await;
    flow.bundle_in(&[&[
        Change::Insert(1, "a"),
        Change::Insert(2, "a"),
        Change::Insert(50, "a"),
    ]])
    .await;
    let mut options = flow.holding();
    options.quarantine.max_keys = 2;
    let halt = flow.start_with(options).halt().await;
    assert!(halt.reason.contains("max_keys (2)"), "{halt}");
    let keys = "SELECT string_agg(touch || coalesce(key ->> 'id', ''), ' ' ORDER BY touch, key) \
                FROM trellara.held_key";
    let known = async |flow: &Flow| -> String {
        flow.target
            .client
            .query_one(keys, &[])
            .await
            .unwrap()
            .get(0)
    };
    assert_eq!(known(&flow).await, "table");
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    applier.stop().await;
    assert_eq!(flow.held().await[0].reason, HeldReason::Poisoned);
    assert!(
        known(&flow).await.starts_with("row1 row2 row50"),
        "{}",
        known(&flow).await
    );
    // Another process knows whom to hold.
    flow.bundle_in(&[&[Change::Update(2, "b")], &[Change::Elsewhere(7)]])
        .await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.held().await[1].reason, HeldReason::Dependent);
    assert_eq!(flow.target.rows().await, "7:1");
    applier.stop().await;
}

/// What the lane stands in front of takes no room from itself when it may be set aside.
#[tokio::test]
async fn a_blocking_one_finds_the_room_that_it_takes() {
    let mut flow = Flow::new(18).await;
    flow.run("CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id < 50), v text)")
        .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(50, "x")], &[Change::Elsewhere(1)]])
        .await;
    let halt = flow.start_with(flow.options()).halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    let mut options = flow.holding();
    options.quarantine.max_transactions = 1;
    let applier = flow.start_with(options);
    flow.caught_up().await;
    assert_eq!(flow.held().await[0].reason, HeldReason::Poisoned);
    assert_eq!(flow.target.rows().await, "1:1");
    applier.stop().await;
}

/// The same of a chunked one, whose frames are in the stream alone.
#[tokio::test]
async fn c47_what_the_lane_stands_in_front_of_is_replayed_from_the_stream_or_copied() {
    for task in [Task::Replay, Task::Discard] {
        let mut flow = Flow::new(15).await;
        flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
            .await;
        flow.marker().await;
        flow.large(&[2, 3, 50, 4], |_| {}).await;
        flow.bundle(&[&[5]]).await;
        let applier = flow.start_with(flow.staying());
        halted(&applier).await;
        let id = flow.held().await[0].id;
        flow.run("ALTER TABLE public.t DROP CONSTRAINT low").await;
        ended(ask(&flow, &order(task, &[id])).await);
        flow.caught_up().await;
        let frames = flow
            .number("SELECT count(*) FROM trellara.held_frame")
            .await;
        match task {
            Task::Replay => {
                assert_eq!(flow.target.rows().await, "2:1 3:1 4:1 5:1 50:1");
                assert_eq!(frames, 0);
            }
            Task::Discard => {
                assert_eq!(flow.target.rows().await, "5:1");
                assert!(frames > 1, "kept whole before the stream may lose it");
            }
        }
        applier.stop().await;
    }
}

/// What another held one's replay writes into the ledger does not make the lane forget what it
/// stands in front of.
#[tokio::test]
async fn a_replay_of_another_leaves_the_lane_in_front_of_what_it_stands_before() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (id < 50))",
    )
    .await;
    flow.marker().await;
    let insert = |id| [Change::Insert(id, "x")];
    flow.bundle_in(&[&insert(50), &insert(1), &insert(51), &insert(2)])
        .await;
    let mut options = flow.holding();
    options.halt = HaltPolicy::Stay;
    options.quarantine.max_transactions = 1;
    let applier = flow.start_with(options);
    halted(&applier).await;
    flow.run("ALTER TABLE public.k DROP CONSTRAINT low").await;
    let ids: Vec<HeldId> = flow.held().await.iter().map(|held| held.id).collect();
    ended(ask(&flow, &order(Task::Replay, &ids[..1])).await);
    assert!(!applier.status.is_ready());
    assert_eq!(flow.keyed().await, "1=x 50=x");
    ended(ask(&flow, &order(Task::Replay, &ids[1..])).await);
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "1=x 2=x 50=x 51=x");
    applier.stop().await;
}

/// B116: what touches a held row waits behind it, in order, and everything else flows on; replayed
/// in order, nothing is missing. A discarded one is overtaken, which is written down.
async fn b116(version: u32) {
    let mut flow = Flow::new(version).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (v <> 'bad'))",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[
        &[Change::Insert(1, "bad")],
        &[Change::Insert(2, "a")],
        &[Change::Update(1, "b"), Change::Insert(3, "b")],
        &[Change::Delete(1)],
        &[Change::Update(2, "c")],
        // Behind the third alone, whose row it touches.
        &[Change::Update(3, "d")],
        &[Change::Insert(1, "e")],
    ])
    .await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "2=c");
    // What comes in a later batch, and after a restart, is tested as well.
    flow.bundle_in(&[&[Change::Update(1, "f")], &[Change::Insert(4, "x")]])
        .await;
    flow.caught_up().await;
    applier.stop().await;
    flow.bundle_in(&[&[Change::Update(1, "g")], &[Change::Insert(5, "x")]])
        .await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "2=c 4=x 5=x");
    let held = flow.held().await;
    let ends: Vec<u64> = held.iter().map(|held| held.end_lsn.0).collect();
    assert_eq!(ends, [0x110, 0x130, 0x140, 0x160, 0x170, 0x180, 0x1a0]);
    assert_eq!(held[0].reason, HeldReason::Poisoned);
    assert!(
        held[1..]
            .iter()
            .all(|held| held.reason == HeldReason::Dependent)
    );
    assert!(
        held[1..]
            .iter()
            .all(|held| held.attempts == 0 && held.frames == 1)
    );
    let behind = format!(
        "SELECT string_agg(held_id - {0} || '<' || on_id - {0}, ' ' ORDER BY held_id, on_id) \
           FROM trellara.held_dependency WHERE held_id - {0} IN (1, 2, 3)",
        held[0].id
    );
    let row = flow.target.client.query_one(&behind, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "1<0 2<1 3<1");
    let status = applier.status.snapshot().quarantine.expect("it was read");
    assert_eq!((status.open, status.passed), (7, 7));

    // The row's own later states make up for it: only the first was ever refused.
    flow.run("ALTER TABLE public.k DROP CONSTRAINT low").await;
    let items = match ask(&flow, &all()).await {
        Answer::Done(items) => items,
        Answer::NotNow { reason } => panic!("{reason}"),
    };
    assert_eq!(items.len(), 7);
    assert!(
        items
            .iter()
            .all(|item| matches!(item.end, End::Replayed { .. })),
        "{items:?}"
    );
    assert_eq!(flow.keyed().await, "1=g 2=c 3=d 4=x 5=x");
    // Nothing waits any more.
    flow.bundle_in(&[&[Change::Update(1, "h")]]).await;
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "1=h 2=c 3=d 4=x 5=x");
    applier.stop().await;
}

#[tokio::test]
async fn b116_c45_what_touches_a_held_row_waits_behind_it_in_order_on_15() {
    b116(15).await;
}

#[tokio::test]
async fn b116_c45_what_touches_a_held_row_waits_behind_it_in_order_on_18() {
    b116(18).await;
}

/// C46: the first that touches what a discarded one touched goes in, and is written down on it in
/// the same target transaction; small or chunked, under every policy.
#[tokio::test]
async fn c46_the_first_overtaker_of_a_discarded_one_is_recorded() {
    for chunked in [false, true] {
        let mut flow = Flow::new(18).await;
        flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
            .await;
        flow.marker().await;
        flow.bundle(&[&[1], &[50]]).await;
        let applier = flow.start_with(flow.staying());
        halted(&applier).await;
        let id = flow.held().await[0].id;
        ended(ask(&flow, &order(Task::Discard, &[id])).await);
        flow.caught_up().await;
        if chunked {
            flow.large(&[2, 3], |_| {}).await;
        } else {
            flow.bundle(&[&[2], &[3]]).await;
        }
        flow.caught_up().await;
        let held = flow.held().await;
        let overtaken = held[0].overtaken.as_ref().expect("an overtaker");
        assert_eq!(overtaken.end_lsn, Lsn(0x130), "the first of them");
        assert_eq!(flow.target.rows().await, "1:1 2:1 3:1");
        assert_eq!(flow.deeds().await, "held, discarded, overtaken");
        applier.stop().await;
    }
}

/// A chunked transaction that touches the same waits as well, whole.
#[tokio::test]
async fn a_chunked_transaction_waits_behind_a_held_one() {
    let mut flow = Flow::new(18).await;
    flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
        .await;
    flow.marker().await;
    flow.bundle(&[&[1], &[50]]).await;
    flow.large(&[2, 3, 4], |_| {}).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1");
    let held = flow.held().await;
    assert_eq!((held.len(), held[1].reason), (2, HeldReason::Dependent));
    assert!(held[1].chunked && held[1].frames > 1);
    flow.run("ALTER TABLE public.t DROP CONSTRAINT low").await;
    ask(&flow, &all()).await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 3:1 4:1 50:1");
    applier.stop().await;
}

/// The target is restored, or the lane moved, while it stands still: what is not the next one any
/// more is read again on the ordinary way, and closed there.
#[tokio::test]
async fn what_is_not_the_next_one_any_more_is_closed_by_the_way_it_goes() {
    let mut flow = Flow::new(18).await;
    flow.run("ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)")
        .await;
    flow.marker().await;
    flow.bundle(&[&[1]]).await;
    let applier = flow.start();
    flow.caught_up().await;
    applier.stop().await;
    flow.bundle(&[&[2], &[50]]).await;
    let applier = flow.start_with(flow.staying());
    halted(&applier).await;
    // As if the rest had been restored from before: row and ledger row of transaction 2 are gone.
    flow.run(
        "DELETE FROM public.t WHERE id = 2; \
         ALTER TABLE public.t DROP CONSTRAINT low; \
         DELETE FROM trellara.applied WHERE end_lsn = '0/120'; \
         SELECT pg_terminate_backend(holder_pid) FROM trellara.lane WHERE flow = current_database()",
    )
    .await;
    flow.caught_up().await;
    assert_eq!(flow.target.rows().await, "1:1 2:1 50:1");
    assert_eq!(flow.held().await[0].state, HeldState::Replayed);
    assert_eq!(flow.deeds().await, "held, retried at start");
    applier.stop().await;
}

/// The end of the only one that was asked for.
fn ended(answer: Answer) -> End {
    match answer {
        Answer::Done(items) => items.into_iter().next().expect("one").end,
        Answer::NotNow { reason } => panic!("not now: {reason}"),
    }
}

/// A rule acts on one change of a transaction that is refused for another: the other is named, and
/// nothing is left of what the rule did.
#[tokio::test]
async fn a_transaction_that_a_rule_helps_is_refused_for_what_no_rule_is_about() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY CHECK (id < 50), v text); \
         INSERT INTO public.k VALUES (1, 'mine')",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "x"), Change::Insert(50, "x")]])
        .await;
    let mut options = flow.options();
    options.conflicts.all.duplicate_key = ConflictRule::Skip;
    let elsewhere = Conflicts::default();
    let table = ("public".to_owned(), "t".to_owned());
    options.conflicts.tables.insert(table, elsewhere);
    let halt = flow.start_with(options).halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    let cause = &flow.held().await[0].cause;
    assert_eq!((&*cause.sqlstate, cause.change), ("23514", 2));
    assert_eq!(
        flow.number("SELECT count(*) FROM trellara.skipped").await,
        0
    );
    assert_eq!(flow.deeds().await, "held");
}

/// The same where what fails is sent without waiting: the table of the second change has no rules.
#[tokio::test]
async fn a_rule_that_acted_is_recorded_behind_the_answers_of_what_was_sent() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text); \
         INSERT INTO public.k VALUES (1, 'mine'); \
         ALTER TABLE public.t ADD CHECK (id < 50)",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "x"), Change::Elsewhere(50)]])
        .await;
    let mut options = flow.options();
    let skip = Conflicts {
        duplicate_key: ConflictRule::Skip,
        ..Conflicts::default()
    };
    let table = ("public".to_owned(), "k".to_owned());
    options.conflicts.tables.insert(table, skip);
    let halt = flow.start_with(options).halt().await;
    assert_eq!(halt.code, HaltCode::ApplyFailed, "{halt}");
    assert!(halt.reason.contains("23514"), "{halt}");
    assert_eq!(
        flow.number("SELECT count(*) FROM trellara.skipped").await,
        0
    );
}

/// A trigger may write to any table: what comes waits behind it, and it waits behind what is held.
#[tokio::test]
async fn c45_a_table_with_a_trigger_that_fires_is_tied_to_every_other() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (v <> 'bad')); \
         CREATE FUNCTION public.count_it() RETURNS trigger LANGUAGE plpgsql AS \
         $$BEGIN RETURN NULL; END$$; \
         CREATE TRIGGER counts AFTER INSERT ON public.k FOR EACH ROW \
         EXECUTE FUNCTION public.count_it(); \
         ALTER TABLE public.k ENABLE ALWAYS TRIGGER counts; \
         ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "bad")], &[Change::Elsewhere(1)]])
        .await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.held().await.len(), 2, "behind the trigger");
    flow.run("ALTER TABLE public.k DROP CONSTRAINT low").await;
    ask(&flow, &all()).await;
    assert_eq!(flow.keyed().await, "1=bad");
    flow.bundle_in(&[&[Change::Elsewhere(99)], &[Change::Insert(2, "a")]])
        .await;
    flow.caught_up().await;
    assert_eq!(
        flow.held().await.len(),
        4,
        "the trigger behind what is held"
    );
    assert_eq!(flow.keyed().await, "1=bad");
    applier.stop().await;
}

/// Known to who tests as soon as to who remembers: a verdict has the tables read again, and what is
/// held with them.
#[tokio::test]
async fn c45_what_ties_tables_while_something_is_held_is_known_of_what_is_held() {
    let attach = "CREATE TABLE public.tree (id integer NOT NULL, v text) PARTITION BY RANGE (id); \
                  ALTER TABLE public.tree ATTACH PARTITION public.k FOR VALUES FROM (0) TO (100)";
    let unique = "CREATE UNIQUE INDEX ON public.k (v)";
    // Whose values by a new index are not known is held whole.
    for (tie, dependent, others) in [
        (attach, Change::Update(1, "b"), "3=c"),
        (unique, Change::Insert(2, "a"), ""),
    ] {
        let mut flow = Flow::new(18).await;
        flow.run(
            "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (id <> 1)); \
             ALTER TABLE public.t ADD CONSTRAINT low CHECK (id < 50)",
        )
        .await;
        flow.marker().await;
        flow.bundle_in(&[&[Change::Insert(1, "a")]]).await;
        let applier = flow.start_with(flow.holding());
        flow.caught_up().await;
        flow.run(tie).await;
        flow.bundle(&[&[50]]).await;
        flow.caught_up().await;
        flow.bundle_in(&[&[dependent], &[Change::Insert(3, "c")]])
            .await;
        flow.caught_up().await;
        assert_eq!(flow.keyed().await, others);
        let held = flow.held().await;
        let reasons: Vec<HeldReason> = held.iter().map(|held| held.reason).collect();
        let (poisoned, waits) = (HeldReason::Poisoned, HeldReason::Dependent);
        assert_eq!(reasons[..3], [poisoned, poisoned, waits], "{tie}");
        applier.stop().await;
    }
}

/// Its keys say nothing of whom a later change of the table under its new name touches.
#[tokio::test]
async fn c45_what_is_held_of_a_table_that_is_gone_holds_everything() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (v <> 'bad'))",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "bad")]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    applier.stop().await;
    flow.run("ALTER TABLE public.k RENAME TO renamed").await;
    flow.bundle_in(&[&[Change::Elsewhere(7)]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.held().await.len(), 2);
    assert_eq!(flow.number("SELECT count(*) FROM public.t").await, 0);
    applier.stop().await;
}

/// A bundle describes each table once, perhaps in a transaction that has to wait: those behind it in
/// the same target transaction are read all the same.
#[tokio::test]
async fn what_waits_describes_the_tables_of_those_behind_it() {
    // Two deliveries go as one batch when the second is there before the first is taken, which is
    // most of the time.
    for _ in 0..20 {
        if batches_of_what_waits().await == 1 {
            return;
        }
    }
    panic!("they never go as one batch");
}

async fn batches_of_what_waits() -> u64 {
    let mut flow = Flow::new(18).await;
    flow.run("CREATE TABLE public.k (id integer PRIMARY KEY, v text CHECK (v <> 'bad'))")
        .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "bad")]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    applier.stop().await;
    flow.bundle(&[&[7]]).await;
    flow.bundle_in(&[&[Change::Update(1, "b")], &[Change::Insert(2, "c")]])
        .await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "2=c");
    assert_eq!(flow.held().await.len(), 2);
    let batches = applier.status.snapshot().batches;
    applier.stop().await;
    batches
}

/// Each waits behind the one before it, and so behind all: what is written down does not grow with
/// the square of them. Discarding one in between lets nothing go past those before it.
#[tokio::test]
async fn c45_on_a_row_that_all_touch_each_waits_behind_its_neighbour() {
    const MANY: usize = 2000;
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (v <> 'bad'))",
    )
    .await;
    flow.marker().await;
    let update = [Change::Update(1, "a")];
    let mut all: Vec<&[Change]> = vec![&[Change::Insert(1, "bad")]];
    all.extend(std::iter::repeat_n(&update[..], MANY));
    flow.bundle_in(&all).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    applier.stop().await;
    // After a restart as well.
    flow.bundle_in(&[&update]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    let rows = "SELECT count(*) FROM trellara.held_dependency";
    assert_eq!(flow.number(rows).await, MANY as i64 + 1);
    let held = flow.held().await;
    assert_eq!(held.len(), MANY + 2);
    let answer = ask(&flow, &order(Task::Discard, &[held[1].id])).await;
    assert!(matches!(ended(answer), End::Discarded));
    let answer = ask(&flow, &order(Task::Replay, &[held[2].id])).await;
    match ended(answer) {
        End::Refused { reason, .. } => {
            assert!(
                reason.contains(&format!("behind {}", held[0].id)),
                "{reason}"
            );
        }
        end => panic!("{end:?}"),
    }
    applier.stop().await;
}

/// Keys of discarded ones are remembered up to a number; beyond it the table is.
#[tokio::test]
async fn c46_a_discarded_one_of_very_many_keys_is_overtaken_by_any_change_of_its_tables() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text, CONSTRAINT low CHECK (v <> 'bad'))",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "bad")]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    let id = flow.held().await[0].id;
    ended(ask(&flow, &order(Task::Discard, &[id])).await);
    flow.bundle_in(&[&[Change::Insert(2, "a")]]).await;
    flow.caught_up().await;
    assert!(flow.held().await[0].overtaken.is_none(), "another row");
    applier.stop().await;
    flow.run("UPDATE trellara.held SET keys = 100001").await;
    flow.bundle_in(&[&[Change::Elsewhere(1)]]).await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert!(flow.held().await[0].overtaken.is_none(), "another table");
    flow.bundle_in(&[&[Change::Insert(3, "a")]]).await;
    flow.caught_up().await;
    assert!(flow.held().await[0].overtaken.is_some());
    applier.stop().await;
}

/// The first lets go of a value that the second takes, and a batch that is reordered would refuse
/// it: one by one, in order, both go in, and nobody is found guilty.
#[tokio::test]
async fn c36_a_verdict_falls_on_a_transaction_alone_and_in_order() {
    let mut flow = Flow::new(18).await;
    flow.run(
        "CREATE TABLE public.k (id integer PRIMARY KEY, v text UNIQUE); \
         INSERT INTO public.k VALUES (1, 'a')",
    )
    .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Update(1, "b")], &[Change::Insert(2, "a")]])
        .await;
    let applier = flow.start_with(flow.holding());
    flow.caught_up().await;
    assert_eq!(flow.keyed().await, "1=b 2=a");
    assert!(flow.held().await.is_empty());
    applier.stop().await;
}

/// What says why a transaction is held, and who did what with it, is stored whatever the target's
/// encoding: a refused value, a reason and a name that it lacks characters of.
async fn kept_in_latin1(options: fn(&Flow) -> ApplierOptions) {
    let mut flow = Flow::into_latin1(18).await;
    flow.run("CREATE TABLE public.k (id integer PRIMARY KEY, v integer)")
        .await;
    flow.marker().await;
    flow.bundle_in(&[&[Change::Insert(1, "1")], &[Change::Insert(2, "zwei")]])
        .await;
    let applier = flow.start_with(options(&flow));
    let held = |status: &trellara_applier::ApplierSnapshot| {
        status.quarantine.is_some_and(|held| held.open == 1)
    };
    applier.shows(held).await;
    let before = flow.held().await.remove(0);
    assert_eq!(before.cause.sqlstate, "22P02", "{:?}", before.cause.message);
    assert!(before.cause.message.contains("\"...\""), "{before:?}");

    let mut order = order(Task::Replay, &[before.id]);
    "größer als 漢…".clone_into(&mut order.reason);
    "Łukasz".clone_into(&mut order.operator.name);
    let failed = asked(&flow, &order).await;
    assert!(
        matches!(failed[..], [(_, End::Failed { .. })]),
        "{failed:?}"
    );
    flow.run("ALTER TABLE public.k ALTER COLUMN v TYPE text")
        .await;
    let done = asked(&flow, &order).await;
    assert!(matches!(done[..], [(_, End::Replayed { .. })]), "{done:?}");
    assert_eq!(flow.keyed().await, "1=1 2=zwei");
    let said = "SELECT string_agg(DISTINCT operator || ': ' || reason, ' ') FROM trellara.audit \
                 WHERE action LIKE 'replay%'";
    let row = flow.target.client.query_one(said, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "?ukasz: größer als ??");
    applier.stop().await;
}

#[tokio::test]
async fn what_a_latin1_target_refuses_is_held_in_its_encoding() {
    kept_in_latin1(Flow::holding).await;
}

#[tokio::test]
async fn what_a_latin1_target_refuses_blocks_in_its_encoding() {
    kept_in_latin1(Flow::staying).await;
}
