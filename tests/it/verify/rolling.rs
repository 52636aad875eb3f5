//! Rolling: no snapshot lives for long, and nothing is called different that is not.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::compare::connect;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::ground::GroundOptions;

use super::{SCHEMA, load, table, verify};
use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run, started, value};

const ROLLING: [&str; 2] = ["--mode", "rolling"];
const FILL: &str = "INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 3000) AS g";

/// Hot rows are suspects in every round; only what was planted is a difference.
#[tokio::test]
async fn rolling_under_load_finds_what_was_planted_and_nothing_else() -> Result<()> {
    let flow = started(18, "rolling", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[FILL]).await?;
    flow.caught_up(WITHIN).await?;
    let writing = load(&flow, 18, 8)?;
    let mut frozen = 0;
    while !writing.is_finished() {
        let (code, document, stderr) = verify(&flow, &ROLLING).await?;
        let document = document.with_context(|| stderr.clone())?;
        ensure!(code == 0, "verify ended with {code}: {document} {stderr}");
        ensure!(document["verdict"] == "equal", "{document}");
        frozen += i32::from(document["applier_held_seconds"].as_f64() > Some(0.0));
    }
    writing.await??;
    ensure!(frozen > 0, "no suspect was confirmed");
    let writing = load(&flow, 18, 5)?;
    run(
        &flow.target_admin,
        &[
            "UPDATE kept SET v = 'other' WHERE id = 17",
            "DELETE FROM kept WHERE id = 1200",
            "INSERT INTO kept VALUES (999999, 'nobody''s', 1)",
        ],
    )
    .await?;
    let (code, document, stderr) = verify(&flow, &ROLLING).await?;
    ensure!(code == 3, "verify ended with {code}: {stderr}");
    let document = document.context("a document")?;
    let kept = table(&document, "public.kept")?;
    let rows = kept["differences"].as_array().context("differences")?;
    let rows: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {}", row["id"].as_str().unwrap_or(""), row["kind"]))
        .collect();
    let expected = [
        "id=17 \"changed\"",
        "id=1200 \"missing\"",
        "id=999999 \"extra\"",
    ];
    ensure!(rows == expected, "{rows:?}");
    let log = table(&document, "public.log")?;
    ensure!(
        log["coverage"]["compared"] == log["coverage"]["of"],
        "{log}"
    );
    ensure!(
        table(&document, "public.log")?["outcome"] == "equal",
        "{document}"
    );
    writing.await??;
    flow.caught_up(WITHIN).await
}

/// Why suspects are not confirmed by reading them again until their row version stays the same: a
/// commit that waits for a synchronous standby is decoded, sent and applied before it is visible,
/// and the source's row version says that nothing happened. It is never called different.
#[tokio::test]
async fn a_commit_that_is_applied_before_it_is_visible_is_no_difference() -> Result<()> {
    const VERSION: &str = "SELECT concat_ws(' ', xmin, ctid, v) FROM kept WHERE id = 7";
    let (_ground, flow) = ground(GroundOptions::version(18), SCHEMA, "").await?;
    run(&flow.source_admin, &[FILL]).await?;
    flow.caught_up(WITHIN).await?;
    let before = value(&flow.source_admin, VERSION).await?;
    let standby = |name: &str| format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    let reload = "SELECT pg_reload_conf()";
    run(&flow.source_admin, &[&standby("nobody"), reload]).await?;
    until(
        &flow.source_admin,
        "SHOW synchronous_standby_names",
        "nobody",
        WITHIN,
    )
    .await?;
    let hanging = connect(&flow.source_admin).await?;
    let commit = tokio::spawn(async move {
        let update = "UPDATE public.kept SET v = 'ahead' WHERE id = 7";
        hanging.batch_execute(update).await
    });
    until(
        &flow.target_admin,
        "SELECT v FROM kept WHERE id = 7",
        "ahead",
        WITHIN,
    )
    .await?;
    let meanwhile = value(&flow.source_admin, VERSION).await?;
    ensure!(meanwhile == before, "{before} became {meanwhile}");
    let (code, document, stderr) = verify(&flow, &ROLLING).await?;
    let document = document.with_context(|| stderr.clone())?;
    ensure!(code == 4, "verify ended with {code}: {document} {stderr}");
    let kept = table(&document, "public.kept")?;
    ensure!(kept["outcome"] == "not comparable", "{kept}");
    let reason = kept["reason"].as_str().context("a reason")?;
    ensure!(reason.contains("temporary slot"), "{reason}");
    ensure!(value(&flow.source_admin, VERSION).await? == before);
    run(&flow.source_admin, &[&standby(""), reload]).await?;
    commit.await??;
    let (code, document, stderr) = verify(&flow, &ROLLING).await?;
    ensure!(code == 0, "verify ended with {code}: {document:?} {stderr}");
    Ok(())
}

/// A run that was interrupted goes on behind what it had verified.
#[tokio::test]
async fn an_interrupted_rolling_run_goes_on_where_it_was() -> Result<()> {
    let schema = "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY);\
                  CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE d (id int PRIMARY KEY)";
    let flow = started(18, "resumed", &[schema], "").await?;
    let fill = "INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1); \
                INSERT INTO d VALUES (1)";
    run(&flow.source_admin, &[fill]).await?;
    flow.caught_up(WITHIN).await?;
    let log = flow.folder().join("verify.log");
    // A page of 8 KiB takes eight seconds; the first slice of ten holds some of the tables.
    let slow = [
        "verify",
        "--mode",
        "rolling",
        "--jobs",
        "1",
        "--max-rate",
        "1KiB",
    ];
    let mut judge = Daemon::start(&flow.config(), &slow, &log)?;
    let done = "SELECT count(*) > 0 FROM trellara.verify_table WHERE done AND table_name = 'a'";
    until(&flow.target_admin, done, "t", WITHIN).await?;
    judge.signal(Signal::SIGTERM)?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(4), "{ended:?} {}", judge.log());
    let name = value(&flow.target_admin, "SELECT run FROM trellara.verify_run").await?;
    ensure!(
        judge.log().contains(&format!("--resume {name}")),
        "{}",
        judge.log()
    );
    let state = "SELECT state || ' ' || reason FROM trellara.verify_run";
    let state = value(&flow.target_admin, state).await?;
    ensure!(state == "failed interrupted by SIGTERM", "{state}");
    // What was looked at before is not looked at again.
    run(&flow.target_admin, &["UPDATE a SET v = 2"]).await?;
    let other = ["--mode", "rolling", "--resume", &name, "--tables", "a"];
    let (code, _, stderr) = verify(&flow, &other).await?;
    ensure!(
        code == 64 && stderr.contains("is another one"),
        "{code}: {stderr}"
    );
    let (code, _, stderr) = verify(&flow, &["--resume", &name]).await?;
    ensure!(
        code == 64 && stderr.contains("--tables"),
        "{code}: {stderr}"
    );
    let resume = ["--mode", "rolling", "--resume", &name];
    let (code, document, stderr) = verify(&flow, &resume).await?;
    ensure!(code == 0, "verify ended with {code}: {document:?} {stderr}");
    let document = document.context("a document")?;
    ensure!(document["id"] == name.as_str(), "{document}");
    ensure!(
        table(&document, "public.a")?["source_rows"] == 1,
        "{document}"
    );
    let (code, _, stderr) = verify(&flow, &resume).await?;
    ensure!(code == 4 && stderr.contains("no run"), "{code}: {stderr}");
    let (code, _, stderr) = verify(&flow, &ROLLING).await?;
    ensure!(code == 3, "verify ended with {code}: {stderr}");
    Ok(())
}

/// A watch tells each table as it is done, goes on through what is in the way, and says at the end
/// what it saw last.
#[tokio::test]
async fn a_watch_goes_on_through_what_is_in_the_way() -> Result<()> {
    let mut flow = started(15, "watched", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[FILL]).await?;
    flow.caught_up(WITHIN).await?;
    let log = flow.folder().join("watch.log");
    let words = [
        "verify",
        "--mode",
        "watch",
        "--every",
        "500ms",
        "--timeout",
        "2s",
    ];
    let mut judge = Daemon::start(&flow.config(), &words, &log)?;
    judge
        .logged("public.kept: equal, 3000 rows, through ", WITHIN)
        .await?;
    run(
        &flow.target_admin,
        &["UPDATE kept SET v = 'x' WHERE id = 9"],
    )
    .await?;
    judge
        .logged("public.kept: DIFFERENT, 1 rows", WITHIN)
        .await?;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE application_name LIKE 'trellara-verify/%' AND datname = current_database()";
    run(&flow.target_admin, &[end]).await?;
    let ended = value(&flow.target_admin, "SELECT clock_timestamp()").await?;
    let later = format!(
        "SELECT count(*) FROM trellara.verify_table WHERE verified_at > timestamptz '{ended}'"
    );
    until(&flow.target_admin, &later, "2", WITHIN).await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (1, 'behind')"],
    )
    .await?;
    judge.logged("the round was ended: ", WITHIN).await?;
    // A look that came to nothing takes nothing from when there was a good one.
    let good = "SELECT count(*) FROM trellara.verify_table \
                 WHERE verified_through IS NOT NULL AND verified_at IS NOT NULL";
    let good = value(&flow.target_admin, good).await?;
    ensure!(good == "2", "{good} tables are verified through something");
    run(
        &flow.target_admin,
        &["UPDATE kept SET v = 'v9' WHERE id = 9"],
    )
    .await?;
    flow.start_applier()?;
    let equal = "SELECT string_agg(outcome, ' ') FROM trellara.verify_table \
                  WHERE verified_at > now() - interval '10 s' AND verified_through IS NOT NULL";
    until(&flow.target_admin, equal, "equal equal", WITHIN).await?;
    judge.signal(Signal::SIGTERM)?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(0), "{ended:?} {}", judge.log());
    let kept = "SELECT concat_ws(' ', state, mode, verdict) FROM trellara.verify_run";
    ensure!(value(&flow.target_admin, kept).await? == "finished watch equal");
    let stands = "SELECT consistent_point = (SELECT min(verified_through) FROM trellara.verify_table) \
                    FROM trellara.verify_run";
    ensure!(value(&flow.target_admin, stands).await? == "t");
    Ok(())
}

/// Nothing is read while the target is further behind than asked for.
#[tokio::test]
async fn nothing_is_read_while_the_target_is_behind() -> Result<()> {
    // A server of its own: what others write is lag too.
    let (_ground, mut flow) = ground(GroundOptions::version(18), SCHEMA, "").await?;
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    run(&flow.source_admin, &[FILL]).await?;
    let log = flow.folder().join("verify.log");
    let words = ["verify", "--mode", "rolling", "--pause-lag", "64KiB"];
    let mut judge = Daemon::start(&flow.config(), &words, &log)?;
    judge
        .logged("waiting for the target, which is ", WITHIN)
        .await?;
    flow.start_applier()?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(0), "{ended:?} {}", judge.log());
    Ok(())
}

/// A round that could not compare a table takes back what an older one had said of it.
#[tokio::test]
async fn a_watch_calls_nothing_equal_that_it_can_no_longer_compare() -> Result<()> {
    let flow = started(18, "watchgone", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[FILL]).await?;
    flow.caught_up(WITHIN).await?;
    let log = flow.folder().join("watch.log");
    let words = ["verify", "--mode", "watch", "--every", "500ms"];
    let mut judge = Daemon::start(&flow.config(), &words, &log)?;
    judge.logged("public.log: equal, ", WITHIN).await?;
    judge.logged("public.kept: equal, ", WITHIN).await?;
    // Another publication is no other watch.
    let more = "CREATE TABLE more (id int PRIMARY KEY); GRANT SELECT ON more TO PUBLIC";
    run(&flow.target_admin, &[more]).await?;
    let publication = value(&flow.source_admin, "SELECT pubname FROM pg_publication").await?;
    let joins = format!("ALTER PUBLICATION {publication} ADD TABLE more");
    run(&flow.source_admin, &[more, &joins]).await?;
    judge.logged("public.more: equal, ", WITHIN).await?;
    run(&flow.target_admin, &["DROP TABLE log"]).await?;
    judge.logged("public.log: not comparable", WITHIN).await?;
    judge.signal(Signal::SIGTERM)?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(4), "{ended:?} {}", judge.log());
    let kept = "SELECT concat_ws(' ', state, verdict) FROM trellara.verify_run";
    let kept = value(&flow.target_admin, kept).await?;
    ensure!(kept == "finished not compared", "{kept}");
    Ok(())
}

/// A page of 8 KiB takes eight seconds.
const SLOW: [&str; 7] = [
    "verify",
    "--mode",
    "rolling",
    "--jobs",
    "1",
    "--max-rate",
    "1KiB",
];
/// Two tables of a page each, of which the first is read at once.
const TWO: &str = "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY)";
/// The first was read on the source, and the second was not yet.
const BETWEEN: &str = "SELECT count(*) > 0 FROM pg_stat_activity \
     WHERE application_name LIKE 'trellara-verify/%' AND query LIKE '%\"public\".\"b\"%' \
       AND datname = current_database()";

/// What the target lost behind a look at the source is in no position that is vouched for.
#[tokio::test]
async fn a_piece_is_verified_through_what_was_there_before_it_was_read() -> Result<()> {
    let flow = started(18, "through", &[TWO], "").await?;
    let fill = "INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1)";
    run(&flow.source_admin, &[fill]).await?;
    flow.caught_up(WITHIN).await?;
    let mut judge = Daemon::start(&flow.config(), &SLOW, &flow.folder().join("verify.log"))?;
    until(&flow.source_admin, BETWEEN, "t", WITHIN).await?;
    let before = value(
        &flow.source_admin,
        "SELECT pg_current_wal_insert_lsn()::text",
    )
    .await?;
    run(&flow.source_admin, &["UPDATE a SET v = 2"]).await?;
    flow.caught_up(WITHIN).await?;
    run(&flow.target_admin, &["UPDATE a SET v = 1"]).await?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(0), "{ended:?} {}", judge.log());
    let through = format!(
        "SELECT concat_ws(' ', v.verified_through, v.verified_through <= '{before}', \
                r.consistent_point <= '{before}') \
           FROM trellara.verify_table AS v JOIN trellara.verify_run AS r USING (run) \
          WHERE v.table_name = 'a'"
    );
    let through = value(&flow.target_admin, &through).await?;
    ensure!(through.ends_with(" t t"), "{through}, and not {before}");
    Ok(())
}

/// A table that joins while the others are looked at was not looked at.
#[tokio::test]
async fn a_table_that_joins_a_rolling_run_is_not_passed_over() -> Result<()> {
    let flow = started(18, "joins", &[TWO], "").await?;
    let publication = format!(
        "ALTER PUBLICATION {} ADD TABLES IN SCHEMA public",
        value(&flow.source_admin, "SELECT pubname FROM pg_publication").await?
    );
    let fill = "INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1)";
    run(&flow.source_admin, &[&publication, fill]).await?;
    flow.caught_up(WITHIN).await?;
    let mut judge = Daemon::start(&flow.config(), &SLOW, &flow.folder().join("verify.log"))?;
    until(&flow.source_admin, BETWEEN, "t", WITHIN).await?;
    run(
        &flow.source_admin,
        &["CREATE TABLE late (id int PRIMARY KEY)"],
    )
    .await?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(4), "{ended:?} {}", judge.log());
    let said = judge.log();
    ensure!(said.contains("public.late"), "{said}");
    Ok(())
}

/// What is another table by now is looked at from the beginning; a run that has nothing left to look
/// at is none to go on with; and one whose judge was killed does not go on for ever.
#[tokio::test]
async fn a_resumed_run_trusts_nothing_that_is_another_table_now() -> Result<()> {
    let schema =
        format!("{TWO}; CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE d (id int PRIMARY KEY)");
    let flow = started(18, "trusts", &[&schema], "").await?;
    let fill = "INSERT INTO a VALUES (1, 1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1); \
                INSERT INTO d VALUES (1)";
    run(&flow.source_admin, &[fill]).await?;
    flow.caught_up(WITHIN).await?;
    let mut judge = Daemon::start(&flow.config(), &SLOW, &flow.folder().join("verify.log"))?;
    let done = "SELECT count(*) > 0 FROM trellara.verify_table WHERE done AND table_name = 'a'";
    until(&flow.target_admin, done, "t", WITHIN).await?;
    judge.signal(Signal::SIGTERM)?;
    let ended = judge.wait(WITHIN)?;
    ensure!(ended.code() == Some(4), "{ended:?} {}", judge.log());
    let name = value(&flow.target_admin, "SELECT run FROM trellara.verify_run").await?;
    let alter = "ALTER TABLE a ADD w int";
    run(&flow.target_admin, &[alter, "UPDATE a SET v = 2"]).await?;
    run(&flow.source_admin, &[alter]).await?;
    let resume = ["--mode", "rolling", "--resume", &name];
    let (code, document, stderr) = verify(&flow, &resume).await?;
    ensure!(code == 3, "verify ended with {code}: {document:?} {stderr}");

    let ended = "UPDATE trellara.verify_run SET state = 'failed', verdict = NULL, reason = 'test'";
    let done = "UPDATE trellara.verify_table SET done = true, changed = 0";
    run(&flow.target_admin, &[ended, done]).await?;
    let (code, _, stderr) = verify(&flow, &resume).await?;
    ensure!(
        code == 4 && stderr.contains("nothing left"),
        "{code}: {stderr}"
    );
    let other = "UPDATE trellara.verify_run SET definition = replace(definition, 'source ', 'x')";
    run(&flow.target_admin, &[other]).await?;
    let (code, _, stderr) = verify(&flow, &resume).await?;
    ensure!(
        code == 4 && stderr.contains("another one"),
        "{code}: {stderr}"
    );

    let killed = "UPDATE trellara.verify_run \
                     SET state = 'running', reason = NULL, finished_at = NULL";
    run(&flow.target_admin, &[killed]).await?;
    verify(&flow, &["--tables", "b"]).await?;
    let state = format!(
        "SELECT concat_ws(' ', state, reason) FROM trellara.verify_run WHERE run = '{name}'"
    );
    let state = value(&flow.target_admin, &state).await?;
    ensure!(state.starts_with("failed its session"), "{state}");
    Ok(())
}
