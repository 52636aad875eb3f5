//! `trellara quarantine`: what was refused is looked at, tried, replayed and discarded.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;
use trellara_testkit::daemon::{Finished, binary};
use trellara_testkit::flow::Flow;

use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, value};

mod still;

const SOURCE: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v text)";
const TARGET: &str = "CREATE TABLE t (id bigint PRIMARY KEY, v varchar(6))";
const PASSED: &str = "quarantine:\n  policy: hold_dependents\n";
const OPEN: &str = "SELECT count(*) FROM trellara.held WHERE state IN ('held', 'replaying')";
const ROWS: &str = "SELECT coalesce(string_agg(id || v, ' ' ORDER BY id), '') FROM t";

/// A flow whose target refuses values of more than six characters, with one that was refused: it
/// inserts 2, 3 (too long) and 4.
async fn refused(version: u32, name: &str, extra: &str) -> Result<Flow> {
    let mut flow = prepared(version, name, &[SOURCE], &[TARGET], extra).await?;
    flow.start().await?;
    let poison = "INSERT INTO t VALUES (2, 'x'), (3, 'a secret'), (4, 'x')";
    run(
        &flow.source_admin,
        &["INSERT INTO t VALUES (1, 'x')", poison],
    )
    .await?;
    until(&flow.target_admin, OPEN, "1", WITHIN).await?;
    if extra.is_empty() {
        // It has taken the lane anew to stand there.
        until(
            &flow.target_admin,
            "SELECT epoch FROM trellara.lane",
            "2",
            WITHIN,
        )
        .await?;
    }
    Ok(flow)
}

/// The target takes what it refused.
async fn mend(flow: &Flow) -> Result<()> {
    run(&flow.target_admin, &["ALTER TABLE t ALTER v TYPE text"]).await
}

async fn quarantine(flow: &Flow, words: &[&str]) -> Result<Finished> {
    let words: Vec<&str> = ["quarantine"].iter().chain(words).copied().collect();
    flow.command(&words).await
}

async fn said(flow: &Flow, words: &[&str], code: i32) -> Result<Value> {
    let words: Vec<&str> = words.iter().copied().chain(["--output", "json"]).collect();
    let done = quarantine(flow, &words).await?;
    ensure!(done.code == code, "{words:?}: {done:?}\n{}", flow.logs());
    Ok(serde_json::from_str(&done.stdout)?)
}

/// Shows what there is to see of a refused one, in one go: the values where they are asked for and
/// nowhere else.
#[tokio::test]
async fn what_was_refused_is_seen_tried_and_replayed() -> Result<()> {
    for version in [15, 18] {
        let flow = refused(version, "desk", PASSED).await?;
        run(&flow.source_admin, &["INSERT INTO t VALUES (5, 'x')"]).await?;
        until(&flow.target_admin, ROWS, "1x 5x", WITHIN).await?;

        let listed = said(&flow, &["list"], 0).await?;
        let item = &listed[0];
        let id = item["id"].to_string();
        let id = id.as_str();
        ensure!(
            item["state"] == "held" && item["reason"] == "poisoned",
            "{listed}"
        );
        ensure!(
            item["sqlstate"] == "22001" && item["change"] == 2,
            "{listed}"
        );
        ensure!(item["changes"] == 3 && item["table"] == "t", "{listed}");
        let text = quarantine(&flow, &["list"]).await?;
        ensure!(text.code == 0 && text.stdout.contains("22001"), "{text:?}");

        let shown = quarantine(&flow, &["show", id]).await?;
        ensure!(shown.code == 0, "{shown:?}");
        for part in [
            "  > 2  insert   public.t  new id={\"bytes\":1} v={\"bytes\":8}",
            "    3  insert",
            "INSERT INTO \"public\".\"t\"",
            "public.t is not the same on both sides",
            "    > v text     v character varying(6)",
            "      id bigint  id bigint",
        ] {
            ensure!(shown.stdout.contains(part), "{part}\n{}", shown.stdout);
        }
        let values = said(&flow, &["show", id, "--values"], 0).await?;
        ensure!(values["shown"][1]["new"]["v"] == "a secret", "{values}");
        ensure!(values["shown"][1]["failed"] == true, "{values}");
        ensure!(values["statement"]["values"][1] == "a secret", "{values}");

        let tried = said(&flow, &["replay", id, "--dry-run"], 12).await?;
        ensure!(tried[0]["result"] == "would fail", "{tried}");
        ensure!(tried[0]["error"]["sqlstate"] == "22001", "{tried}");
        let failed = said(&flow, &["replay", id], 12).await?;
        ensure!(failed[0]["result"] == "failed", "{failed}");
        ensure!(failed[0]["error"]["change"] == 2, "{failed}");

        mend(&flow).await?;
        let before = value(&flow.target_admin, "SELECT h::text FROM trellara.held AS h").await?;
        let tried = said(&flow, &["replay", id, "--dry-run"], 0).await?;
        ensure!(tried[0]["effects"][0]["inserted"] == 3, "{tried}");
        let after = value(&flow.target_admin, "SELECT h::text FROM trellara.held AS h").await?;
        ensure!(before == after, "{before}\n{after}");
        ensure!(
            value(&flow.target_admin, ROWS).await? == "1x 5x",
            "it was not rolled back"
        );

        let replayed = said(&flow, &["replay", "--all"], 0).await?;
        ensure!(
            replayed[0]["result"] == "replayed" && replayed[0]["changes"] == 3,
            "{replayed}"
        );
        let again = said(&flow, &["replay", id], 0).await?;
        ensure!(again[0]["result"] == "already replayed", "{again}");
        ensure!(
            said(&flow, &["list"], 0)
                .await?
                .as_array()
                .is_some_and(Vec::is_empty)
        );
        let log = said(&flow, &["log", id], 0).await?;
        let deeds: Vec<&str> = log
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|deed| deed["action"].as_str())
            .collect();
        ensure!(deeds == ["held", "replay failed", "replayed"], "{log}");
        let text = quarantine(&flow, &["log"]).await?;
        ensure!(
            text.code == 0 && text.stdout.contains("replay failed"),
            "{text:?}"
        );

        flow.converges(WITHIN).await?;
        // What was replayed is in the ledger: everything that comes again is skipped.
        let rewound = flow.command(&["rewind", "--to", "oldest"]).await?;
        ensure!(rewound.code == 0, "{rewound:?}\n{}", flow.logs());
        for text in [
            &shown.stdout,
            &flow.logs(),
            &tried.to_string(),
            &failed.to_string(),
        ] {
            ensure!(!text.contains("secret"), "{text}");
        }
    }
    Ok(())
}

/// The lane stands in front of it, and goes on when it is replayed or discarded: by the applier, or
/// without one.
#[tokio::test]
async fn a_lane_that_stands_still_goes_on_behind_what_the_desk_decides() -> Result<()> {
    for (running, discard) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut flow = refused(18, "still", "").await?;
        let listed = said(&flow, &["list"], 0).await?;
        let id = listed[0]["id"].to_string();
        ensure!(listed[0]["holds_back_lane"] == true, "{listed}");
        if !running {
            flow.applier.as_mut().context("applier")?.kill()?;
        }
        if discard {
            let asked = ["discard", &id, "--reason", "a test"];
            let unconfirmed = quarantine(&flow, &asked).await?;
            ensure!(unconfirmed.code == 64, "{unconfirmed:?}");
            ensure!(
                value(&flow.target_admin, OPEN).await? == "1",
                "it was discarded"
            );
            let discarded =
                said(&flow, &["discard", &id, "--reason", "a test", "--yes"], 0).await?;
            ensure!(discarded[0]["result"] == "discarded", "{discarded}");
        } else {
            mend(&flow).await?;
            let replayed = said(&flow, &["replay", &id], 0).await?;
            ensure!(replayed[0]["result"] == "replayed", "{replayed}");
        }
        if !running {
            flow.start_applier()?;
        }
        run(&flow.source_admin, &["INSERT INTO t VALUES (5, 'x')"]).await?;
        let rows = if discard {
            "1x 5x"
        } else {
            "1x 2x 3a secret 4x 5x"
        };
        until(&flow.target_admin, ROWS, rows, WITHIN).await?;
        if !discard {
            flow.converges(WITHIN).await?;
        }
        let rewound = flow.command(&["rewind", "--to", "oldest"]).await?;
        ensure!(rewound.code == 0, "{rewound:?}\n{}", flow.logs());
    }
    Ok(())
}

/// F115, and what else the command line refuses.
#[tokio::test]
async fn f115_the_desk_refuses_what_is_not_there_or_not_meant() -> Result<()> {
    let flow = refused(18, "refuses", PASSED).await?;
    let id = said(&flow, &["list"], 0).await?[0]["id"].to_string();
    for words in [
        &["replay", "999"][..],
        &["show", "999"],
        &["discard", "999", "--reason", "x", "--yes"],
        &["discard", &id, "--yes"],
        &["discard", &id, "--reason", " ", "--yes"],
        &["replay"],
        &["replay", &id, "--all"],
        &["replay", &id, "--force"],
    ] {
        let done = quarantine(&flow, words).await?;
        ensure!(done.code == 64, "{words:?}: {done:?}");
    }
    let held = value(
        &flow.target_admin,
        "SELECT state || attempts FROM trellara.held",
    )
    .await?;
    ensure!(held == "held1", "{held}");
    Ok(())
}

/// A session that holds a lock until it is dropped.
struct Lock(#[allow(dead_code, reason = "its end releases the lock")] tokio_postgres::Client);

async fn lock(flow: &Flow, sql: &str) -> Result<Lock> {
    let client = compare::connect(&flow.target_admin).await?;
    client.batch_execute(&format!("BEGIN; {sql}")).await?;
    Ok(Lock(client))
}

/// Waits until somebody waits for a lock on this table.
async fn waits_for(flow: &Flow, table: &str) -> Result<()> {
    let waiting = format!(
        "SELECT count(*) > 0 FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
          WHERE NOT l.granted AND a.query LIKE '%{table}%' AND a.datname = current_database()"
    );
    until(&flow.target_admin, &waiting, "t", WITHIN).await
}

/// Starts `trellara quarantine …`.
fn begun(flow: &Flow, words: &[&str]) -> Result<tokio::process::Child> {
    let child = tokio::process::Command::new(binary())
        .arg("--config")
        .arg(flow.config())
        .args(["quarantine", "--output", "json"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    Ok(child?)
}

async fn finished(child: tokio::process::Child) -> Result<Value> {
    let output = tokio::time::timeout(WITHIN, child.wait_with_output()).await??;
    ensure!(output.status.success(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What is written down of a held transaction, in its five tables.
const WRITTEN: &str = "SELECT (SELECT count(*) FROM trellara.held) || ' ' \
    || (SELECT count(*) FROM trellara.held_frame) || ' ' \
    || (SELECT count(*) > 0 FROM trellara.held_key) || ' ' \
    || (SELECT count(*) FROM trellara.audit WHERE action = 'held')";

/// F18: the applier is killed while each table of a hold is written, and behind its commit: what is
/// held is there whole or not at all, and the next applier has it once.
#[tokio::test]
async fn f18_an_applier_killed_while_it_holds_leaves_all_of_it_or_nothing() -> Result<()> {
    for policy in [PASSED, ""] {
        for table in ["held", "held_key", "held_frame", "audit", ""] {
            let mut flow = prepared(18, "holding", &[SOURCE], &[TARGET], policy).await?;
            flow.start().await?;
            run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'x')"]).await?;
            flow.caught_up(WITHIN).await?;
            let poison = "INSERT INTO t VALUES (2, 'x'), (3, 'a secret'), (4, 'x')";
            if table.is_empty() {
                run(&flow.source_admin, &[poison]).await?;
                until(&flow.target_admin, OPEN, "1", WITHIN).await?;
                flow.applier.as_mut().context("applier")?.kill()?;
            } else {
                let sql = format!("LOCK TABLE trellara.{table} IN SHARE MODE");
                let locked = lock(&flow, &sql).await?;
                run(&flow.source_admin, &[poison]).await?;
                waits_for(&flow, &format!("INSERT INTO trellara.{table}")).await?;
                flow.applier.as_mut().context("applier")?.kill()?;
                drop(locked);
                let gone = "SELECT count(*) FROM pg_stat_activity \
                            WHERE datname = current_database() \
                              AND application_name LIKE 'trellara applier%'";
                until(&flow.target_admin, gone, "0", WITHIN).await?;
                let left = value(&flow.target_admin, WRITTEN).await?;
                ensure!(left == "0 0 false 0", "{policy:?} {table}: {left}");
            }
            flow.start_applier()?;
            until(&flow.target_admin, OPEN, "1", WITHIN).await?;
            if policy.is_empty() && table.is_empty() {
                // A new process tries what the lane stands in front of once by itself. Mended
                // before that, it would go in, and leave the desk nothing to do.
                let tried = "SELECT count(*) FROM trellara.held WHERE attempts > 1";
                until(&flow.target_admin, tried, "1", WITHIN).await?;
            }
            let whole = value(&flow.target_admin, WRITTEN).await?;
            ensure!(
                whole.starts_with("1 1 true "),
                "{policy:?} {table}: {whole}"
            );
            mend(&flow).await?;
            let replayed = said(&flow, &["replay", "--all"], 0).await?;
            ensure!(replayed[0]["result"] == "replayed", "{replayed}");
            flow.converges(WITHIN).await?;
        }
    }
    Ok(())
}

/// In front of each durable step of a replay or a discard, and behind it.
const STEPS: [(&str, &str); 3] = [
    ("the claim", "SELECT FROM trellara.held FOR UPDATE"),
    ("the commit", "LOCK TABLE trellara.audit IN EXCLUSIVE MODE"),
    ("the answer", "LOCK TABLE trellara.audit IN EXCLUSIVE MODE"),
];

/// F19: the applier is killed in front of and behind each durable step; the order is still there, the
/// next applier ends it, and it was done once.
#[tokio::test]
async fn f19_an_applier_killed_at_any_step_of_the_desk_leaves_one_deed() -> Result<()> {
    for (verb, policy) in [
        ("replay", PASSED),
        ("discard", PASSED),
        ("replay", ""),
        ("discard", ""),
    ] {
        for (step, sql) in STEPS {
            let mut flow = refused(18, "killed", policy).await?;
            mend(&flow).await?;
            let id = said(&flow, &["list"], 0).await?[0]["id"].to_string();
            let words: Vec<&str> = match verb {
                "replay" => vec!["replay", &id],
                _ => vec!["discard", &id, "--reason", "a test", "--yes"],
            };
            let first = lock(&flow, sql).await?;
            let command = begun(&flow, &words)?;
            waits_for(&flow, "trellara.").await?;
            let mut second = None;
            let mut first = Some(first);
            if step == "the answer" {
                second = Some(lock(&flow, "LOCK TABLE trellara.request IN EXCLUSIVE MODE").await?);
                first = None;
                until(&flow.target_admin, OPEN, "0", WITHIN).await?;
                let answers = waits_for(&flow, "SET answered_at").await;
                answers.with_context(|| format!("{verb} under {policy:?}\n{}", flow.logs()))?;
            }
            flow.applier.as_mut().context("applier")?.kill()?;
            drop((first.take(), second.take()));
            flow.start_applier()?;
            let done = finished(command).await.with_context(|| {
                format!("{verb} under {policy:?}, killed at {step}\n{}", flow.logs())
            })?;
            let wanted = if verb == "replay" {
                "replayed"
            } else {
                "discarded"
            };
            ensure!(done[0]["result"] == wanted, "{verb} {step}: {done}");
            let audit = format!("SELECT count(*) FROM trellara.audit WHERE action = '{wanted}'");
            ensure!(
                value(&flow.target_admin, &audit).await? == "1",
                "{verb} {step}"
            );
            let rows = if verb == "replay" {
                "1x 2x 3a secret 4x"
            } else {
                "1x"
            };
            ensure!(
                value(&flow.target_admin, ROWS).await? == rows,
                "{verb} {step}"
            );
            run(&flow.source_admin, &["INSERT INTO t VALUES (5, 'x')"]).await?;
            until(&flow.target_admin, ROWS, &format!("{rows} 5x"), WITHIN).await?;
        }
    }
    Ok(())
}

/// F114, F19: the command itself takes the lane and is killed; another one ends it, once.
#[tokio::test]
async fn f114_a_command_killed_at_any_step_leaves_one_deed() -> Result<()> {
    for (step, sql) in &STEPS[..2] {
        let mut flow = refused(18, "command", PASSED).await?;
        mend(&flow).await?;
        flow.applier.as_mut().context("applier")?.kill()?;
        let first = lock(&flow, sql).await?;
        let mut killed = begun(&flow, &["replay", "--all"])?;
        waits_for(&flow, "trellara.").await?;
        killed.kill().await?;
        let both = (
            begun(&flow, &["replay", "--all"])?,
            begun(&flow, &["replay", "--all"])?,
        );
        drop(first);
        let (a, b) = (finished(both.0).await?, finished(both.1).await?);
        let results = format!("{} {}", a[0]["result"], b[0]["result"]);
        // The later of the two may find nothing open any more.
        ensure!(
            results.matches("\"replayed\"").count() == 1,
            "{step}: {results}"
        );
        ensure!(
            value(&flow.target_admin, ROWS).await? == "1x 2x 3a secret 4x",
            "{step}"
        );
        flow.start_applier()?;
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

/// A dry run that is killed in the middle has changed nothing, whatever it was at.
#[tokio::test]
async fn a_dry_run_that_is_killed_changes_nothing() -> Result<()> {
    let flow = refused(18, "dry", PASSED).await?;
    mend(&flow).await?;
    let state = "SELECT h::text || (SELECT count(*) FROM trellara.audit) FROM trellara.held AS h";
    let before = value(&flow.target_admin, state).await?;
    // It has inserted row 2 and waits for 3.
    let lock = lock(&flow, "INSERT INTO public.t VALUES (3, 'mine')").await?;
    let mut tried = begun(&flow, &["replay", "--all", "--dry-run"])?;
    waits_for(&flow, "INSERT INTO").await?;
    tried.kill().await?;
    drop(lock);
    ensure!(
        value(&flow.target_admin, state).await? == before,
        "something was written down"
    );
    ensure!(
        value(&flow.target_admin, ROWS).await? == "1x",
        "something was applied"
    );
    let replayed = said(&flow, &["replay", "--all"], 0).await?;
    ensure!(replayed[0]["result"] == "replayed", "{replayed}");
    flow.converges(WITHIN).await
}

/// What a rollback does not undo is not done either: a role without the sequences can only set them.
#[tokio::test]
async fn a_dry_run_of_a_truncate_leaves_the_sequences_as_they_are() -> Result<()> {
    let source = "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v text)";
    let target = "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, \
                                  v varchar(6))";
    let mut flow = prepared(18, "restart", &[source], &[target], PASSED).await?;
    let grant = "DO $$ DECLARE r text; BEGIN FOR r IN SELECT DISTINCT grantee::regrole::text \
                   FROM pg_class, aclexplode(relacl) WHERE oid = 'public.t'::regclass AND grantee <> 0 \
                 LOOP EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE public.t_id_seq TO %s', r); \
                 END LOOP; END $$";
    run(&flow.target_admin, &[grant]).await?;
    flow.start().await?;
    let poison = "INSERT INTO t VALUES (1, 'x'); TRUNCATE t RESTART IDENTITY; \
                  INSERT INTO t VALUES (3, 'a secret')";
    run(&flow.source_admin, &[poison]).await?;
    until(&flow.target_admin, OPEN, "1", WITHIN).await?;
    let set = "SELECT setval('public.t_id_seq', 50)";
    let stands = "SELECT last_value FROM public.t_id_seq";
    run(&flow.target_admin, &[set]).await?;
    let tried = said(&flow, &["replay", "--all", "--dry-run"], 12).await?;
    ensure!(tried[0]["error"]["sqlstate"] == "22001", "{tried}");
    ensure!(value(&flow.target_admin, stands).await? == "50", "{tried}");
    mend(&flow).await?;
    let tried = said(&flow, &["replay", "--all", "--dry-run"], 0).await?;
    ensure!(tried[0]["effects"][0]["truncated"] == 1, "{tried}");
    ensure!(value(&flow.target_admin, stands).await? == "50", "{tried}");
    let replayed = said(&flow, &["replay", "--all"], 0).await?;
    ensure!(replayed[0]["result"] == "replayed", "{replayed}");
    ensure!(
        value(&flow.target_admin, stands).await? == "1",
        "{replayed}"
    );
    flow.converges(WITHIN).await
}

/// What is held is nowhere else any more: removing the flow loses it on your word alone, and who did
/// what to it stays as long as another flow keeps the schema.
#[tokio::test]
async fn a_flow_that_holds_something_is_removed_on_your_word_alone() -> Result<()> {
    let flow = refused(18, "remove", PASSED).await?;
    let another = "INSERT INTO trellara.lane \
                   SELECT (jsonb_populate_record(l, '{\"flow\": \"another\"}')).* \
                     FROM trellara.lane AS l";
    run(&flow.target_admin, &[another]).await?;
    let refused = flow.command(&["remove", "--yes"]).await?;
    ensure!(refused.code == 64, "{refused:?}");
    ensure!(
        refused.stderr.contains("holds 1 transaction "),
        "{refused:?}"
    );
    ensure!(value(&flow.target_admin, OPEN).await? == "1", "it is gone");
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    ensure!(
        value(&flow.source_admin, slots).await? == "1",
        "the slot is gone"
    );
    let removed = flow.command(&["remove", "--yes", "--discard-held"]).await?;
    ensure!(removed.code == 0, "{removed:?}");
    ensure!(value(&flow.target_admin, OPEN).await? == "0", "it is there");
    let deeds = "SELECT string_agg(action || (held_id IS NULL) || (arguments ? 'held'), ' ') \
                   FROM trellara.audit";
    ensure!(
        value(&flow.target_admin, deeds).await? == "heldtruetrue",
        "the audit"
    );
    Ok(())
}

/// Replays go between the batches of an applier that works.
#[tokio::test]
async fn what_is_replayed_under_load_goes_in_once_and_stops_nobody() -> Result<()> {
    let flow = refused(18, "load", PASSED).await?;
    mend(&flow).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let (url, stopped) = (flow.source_admin.clone(), stop.clone());
    let writer = tokio::spawn(async move {
        let client = compare::connect(&url).await?;
        let mut id = 100;
        while !stopped.load(Relaxed) {
            let sql = format!("INSERT INTO public.t VALUES ({id}, 'x')");
            client.batch_execute(&sql).await?;
            id += 1;
        }
        Ok::<_, anyhow::Error>(id)
    });
    until(
        &flow.target_admin,
        "SELECT count(*) > 100 FROM t",
        "t",
        WITHIN,
    )
    .await?;
    let both = (
        begun(&flow, &["replay", "--all"])?,
        begun(&flow, &["replay", "--all"])?,
    );
    let (a, b) = (finished(both.0).await?, finished(both.1).await?);
    let results = format!("{} {}", a[0]["result"], b[0]["result"]);
    ensure!(results.matches("\"replayed\"").count() == 1, "{results}");
    let seen = value(&flow.target_admin, "SELECT count(*) FROM t").await?;
    let further = format!("SELECT count(*) > {seen} + 100 FROM t");
    until(&flow.target_admin, &further, "t", WITHIN).await?;
    stop.store(true, Relaxed);
    writer.await??;
    flow.converges(WITHIN).await
}

/// B116: what touches the refused one waits behind it, in order; what does not goes on.
#[tokio::test]
async fn b116_what_waits_behind_a_refused_one_goes_in_behind_it() -> Result<()> {
    for version in [15, 18] {
        let flow = refused(version, "order", PASSED).await?;
        run(
            &flow.source_admin,
            &[
                "UPDATE t SET v = 'two' WHERE id = 3",
                "INSERT INTO t VALUES (6, 'free')",
                "BEGIN; UPDATE t SET v = 'three' WHERE id = 3; INSERT INTO t VALUES (7, 'x'); COMMIT",
                "UPDATE t SET v = 'seven' WHERE id = 7",
                "DELETE FROM t WHERE id = 4",
                "UPDATE t SET v = 'freer' WHERE id = 6",
            ],
        )
        .await?;
        until(&flow.target_admin, ROWS, "1x 6freer", WITHIN).await?;
        let listed = said(&flow, &["list"], 0).await?;
        let items = listed.as_array().context("an array")?;
        ensure!(items.len() == 5, "{listed}");
        let id = |at: usize| items[at]["id"].to_string();
        // Each names its neighbours in the order; those behind them wait all the same.
        let holds_back = |at: usize| items[at]["holds_back"].to_string();
        ensure!(
            holds_back(0) == format!("[{},{}]", id(1), id(4)),
            "{listed}"
        );
        ensure!(holds_back(1) == format!("[{}]", id(2)), "{listed}");
        ensure!(
            items[1]["reason"] == "dependent" && items[1]["message"] == "",
            "{listed}"
        );
        let waits = items[3]["waits_behind"].to_string();
        ensure!(waits.contains(&id(2)), "{listed}");
        let text = quarantine(&flow, &["list"]).await?;
        ensure!(text.stdout.contains("not tried"), "{text:?}");
        // The judge knows what explains the difference.
        let judged = flow.judged(&[]).await?;
        ensure!(judged.code == 5, "{judged:?}");

        let refused = said(&flow, &["replay", &id(3)], 12).await?;
        ensure!(refused[0]["result"] == "refused", "{refused}");
        let tried = said(&flow, &["replay", "--all", "--dry-run"], 12).await?;
        let results: Vec<&str> = tried
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["result"].as_str())
            .collect();
        ensure!(
            results[0] == "would fail" && results[1..] == ["would be refused"; 4],
            "{tried}"
        );

        mend(&flow).await?;
        let tried = said(&flow, &["replay", "--all", "--dry-run"], 0).await?;
        ensure!(
            tried.to_string().matches("would be replayed").count() == 5,
            "{tried}"
        );
        let replayed = said(&flow, &["replay", "--all"], 0).await?;
        ensure!(
            replayed.to_string().matches("\"replayed\"").count() == 5,
            "{replayed}"
        );
        flow.converges(WITHIN).await?;
        let rewound = flow.command(&["rewind", "--to", "oldest"]).await?;
        ensure!(rewound.code == 0, "{rewound:?}\n{}", flow.logs());
    }
    Ok(())
}
