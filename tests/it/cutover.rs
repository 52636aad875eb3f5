//! `trellara cutover` and what goes with it: sequences, and tables that setup creates.

use anyhow::{Result, ensure};
use serde_json::Value;
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;

use crate::restart::until;
use crate::scenario::{WITHIN, prepared, run, started, value};

const SCHEMA: &str =
    "CREATE TABLE orders (id serial PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY, v text)";
const ROWS: &str = "INSERT INTO orders (v) SELECT 'x' FROM generate_series(1, 100)";

/// A command as somebody who may change the source's database.
async fn as_owner(flow: &mut Flow, arguments: &[&str]) -> Result<(i32, String, String)> {
    let before = flow.environment.clone();
    let url = flow.source_admin.clone();
    flow.environment.push(("TRELLARA__SOURCE__URL", url));
    let done = flow.command(arguments).await;
    flow.environment = before;
    let done = done?;
    Ok((done.code, done.stdout, done.stderr))
}

/// What a session that begins now is told.
async fn read_only(flow: &Flow) -> Result<String> {
    value(&flow.source_admin, "SHOW default_transaction_read_only").await
}

/// B118 to the end: applications go on with the target, and no number is handed out twice.
#[tokio::test]
async fn b118_a_cut_over_leaves_a_target_that_can_be_written_to() -> Result<()> {
    for version in [15, 18] {
        let mut flow = started(version, "cut", &[SCHEMA], "").await?;
        run(&flow.source_admin, &[ROWS]).await?;
        flow.caught_up(WITHIN).await?;
        let rehearsed = flow.command(&["cutover", "--dry-run"]).await?;
        ensure!(rehearsed.code == 0, "{rehearsed:?}");
        let unsaid = flow.command(&["cutover", "--yes"]).await?;
        ensure!(unsaid.code == 64, "{unsaid:?}");
        // An application that is in the middle of something loses its session, and nothing else.
        let application = compare::connect(&flow.source_admin).await?;
        application
            .batch_execute("BEGIN; INSERT INTO public.orders (v) VALUES ('lost')")
            .await?;
        let words = ["cutover", "--set-read-only", "--yes", "--output", "json"];
        let (code, stdout, stderr) = as_owner(&mut flow, &words).await?;
        ensure!(code == 0, "{stdout}{stderr}{}", flow.logs());
        let report: Value = serde_json::from_str(&stdout)?;
        ensure!(report["verify"] == "equal", "{report}");
        ensure!(
            report["sequences"].as_array().map(Vec::len) == Some(2),
            "{report}"
        );
        ensure!(read_only(&flow).await? == "on");
        let write = "INSERT INTO orders (v) VALUES ('new') RETURNING id > 100 AND n > 100";
        ensure!(value(&flow.target_admin, write).await? == "t");
        let audit = "SELECT string_agg(action, ', ' ORDER BY id) FROM trellara.audit";
        let audit = value(&flow.target_admin, audit).await?;
        ensure!(audit == "sequences set, cut over", "{audit}");
    }
    Ok(())
}

/// What fails leaves the source as it was: writable.
#[tokio::test]
async fn a_cut_over_that_fails_gives_the_source_back() -> Result<()> {
    let mut flow = started(18, "uncut", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[ROWS]).await?;
    flow.caught_up(WITHIN).await?;
    run(&flow.target_admin, &["DELETE FROM orders WHERE id = 7"]).await?;
    let words = ["cutover", "--set-read-only", "--yes"];
    let (code, stdout, stderr) = as_owner(&mut flow, &words).await?;
    ensure!(code == 3, "{code}: {stdout}{stderr}");
    ensure!(stderr.contains("takes writes again"), "{stderr}");
    ensure!(read_only(&flow).await? == "off");
    run(
        &flow.source_admin,
        &["INSERT INTO orders (v) VALUES ('more')"],
    )
    .await?;
    // The file's own role may not do that, and nothing is done by halves.
    let refused = flow.command(&words).await?;
    ensure!(refused.code == 77, "{refused:?}");
    ensure!(refused.stderr.contains("--writes-stopped"), "{refused:?}");
    ensure!(read_only(&flow).await? == "off");
    Ok(())
}

/// The operator's word is not taken for what can be seen.
#[tokio::test]
async fn a_session_that_writes_is_named_whatever_was_said() -> Result<()> {
    let flow = started(15, "word", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[ROWS]).await?;
    flow.caught_up(WITHIN).await?;
    let application = compare::connect(&flow.source_admin).await?;
    application
        .batch_execute("BEGIN; INSERT INTO public.orders (v) VALUES ('late')")
        .await?;
    let words = ["cutover", "--writes-stopped", "--yes", "--timeout", "1s"];
    let refused = flow.command(&words).await?;
    ensure!(refused.code == 20, "{refused:?}");
    ensure!(
        refused
            .stderr
            .contains("still writes to the source: backend"),
        "{refused:?}"
    );
    application.batch_execute("COMMIT").await?;
    let words = ["cutover", "--writes-stopped", "--yes", "--timeout", "30s"];
    let done = flow.command(&words).await?;
    ensure!(done.code == 0, "{done:?}{}", flow.logs());
    Ok(())
}

/// What stands in the way is found before anything is stopped for it.
#[tokio::test]
async fn a_flow_that_is_not_ready_is_not_cut_over() -> Result<()> {
    let mut flow = started(18, "unready", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[ROWS]).await?;
    flow.caught_up(WITHIN).await?;
    let paused = flow.command(&["pause", "--reason", "not now"]).await?;
    ensure!(paused.code == 0, "{paused:?}");
    let words = ["cutover", "--set-read-only", "--yes"];
    let (code, _, stderr) = as_owner(&mut flow, &words).await?;
    ensure!(code == 11 && stderr.contains("not now"), "{code}: {stderr}");
    ensure!(read_only(&flow).await? == "off");
    let resumed = flow.command(&["resume"]).await?;
    ensure!(resumed.code == 0, "{resumed:?}");
    let drop = "ALTER TABLE orders ALTER id DROP DEFAULT; DROP SEQUENCE orders_id_seq";
    run(&flow.target_admin, &[drop]).await?;
    let (code, _, stderr) = as_owner(&mut flow, &words).await?;
    ensure!(
        code == 11 && stderr.contains("orders_id_seq"),
        "{code}: {stderr}"
    );
    ensure!(read_only(&flow).await? == "off");
    Ok(())
}

/// `trellara table sequences` while the source is written to: with a margin, and never backwards.
#[tokio::test]
async fn sequences_are_set_ahead_and_never_back() -> Result<()> {
    let flow = started(18, "ahead", &[SCHEMA], "").await?;
    run(&flow.source_admin, &[ROWS]).await?;
    run(&flow.target_admin, &["SELECT setval('orders_n_seq', 5000)"]).await?;
    let of = |carried: &Value, name: &str| {
        let carried = carried.as_array().cloned().unwrap_or_default();
        let found = carried.into_iter().find(|one| one["id"] == name);
        found.unwrap_or_default()
    };
    let words = ["table", "sequences", "--margin", "50", "--output", "json"];
    let done = flow.command(&words).await?;
    ensure!(done.code == 0, "{done:?}");
    let carried: Value = serde_json::from_str(&done.stdout)?;
    ensure!(
        of(&carried, "public.orders_id_seq")["set_to"] == 150,
        "{carried}"
    );
    ensure!(
        of(&carried, "public.orders_n_seq")["outcome"] == "ahead",
        "{carried}"
    );
    let stands = "SELECT (SELECT last_value FROM orders_id_seq) || ' ' || (SELECT last_value FROM orders_n_seq)";
    ensure!(value(&flow.target_admin, stands).await? == "150 5000");
    let back = flow.command(&["table", "sequences", "--force"]).await?;
    ensure!(back.code == 0, "{back:?}");
    ensure!(value(&flow.target_admin, stands).await? == "100 100");
    Ok(())
}

/// A target without tables: setup creates them, and the flow runs.
#[tokio::test]
async fn b134_missing_tables_are_created_as_the_source_defines_them() -> Result<()> {
    let source = &[
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE people (id serial PRIMARY KEY, m mood NOT NULL, \"odd \"\"name\" text DEFAULT 'x')",
        "CREATE TABLE visits (id int, at date, who int REFERENCES people, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
        "CREATE INDEX visits_who ON visits (who)",
    ];
    for version in [15, 18] {
        let mut flow = prepared(version, "made", source, &[], "").await?;
        flow.grant().await?;
        let missing = flow.command(&["setup", "--yes"]).await?;
        ensure!(missing.code == 11, "{missing:?}");
        ensure!(
            missing.stderr.contains("backfill.ddl: create"),
            "{missing:?}"
        );
        let printed = flow.command(&["setup", "--print-sql"]).await?;
        ensure!(
            printed.stdout.contains("CREATE TYPE \"public\".\"mood\""),
            "{printed:?}"
        );
        let create = ("TRELLARA__BACKFILL__DDL", "create".to_owned());
        flow.environment.push(create);
        // Setup's role may not create in that schema yet.
        let closed = flow.command(&["setup", "--yes"]).await?;
        ensure!(closed.code == 77, "{closed:?}");
        ensure!(
            closed.stderr.contains("GRANT CREATE ON SCHEMA"),
            "{closed:?}"
        );
        let grant = format!("GRANT CREATE ON SCHEMA public TO {}", flow.roles.admin());
        run(&flow.target_admin, &[&grant]).await?;
        flow.start().await?;
        run(
            &flow.source_admin,
            &[
                "INSERT INTO people (m) VALUES ('good'), ('bad')",
                "INSERT INTO visits VALUES (1, '2024-05-05', 1)",
            ],
        )
        .await?;
        flow.converges(WITHIN).await?;
        let index = "SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%(who)'";
        ensure!(value(&flow.target_admin, index).await? == "2");
        let again = flow.command(&["setup", "--yes"]).await?;
        ensure!(
            again.code == 0 && again.stdout.contains("set up already"),
            "{again:?}"
        );
    }
    Ok(())
}

/// A table joins when nobody writes to it; who does is named, and everything else goes on.
#[tokio::test]
async fn a_table_is_named_as_long_as_somebody_locks_it() -> Result<()> {
    let mut flow = started(18, "locked", &[SCHEMA], "").await?;
    for url in [&flow.source_admin, &flow.target_admin] {
        run(url, &["CREATE TABLE late (id int PRIMARY KEY)"]).await?;
    }
    flow.grant().await?;
    run(&flow.source_admin, &[ROWS]).await?;
    flow.caught_up(WITHIN).await?;
    let application = compare::connect(&flow.source_admin).await?;
    application
        .batch_execute("BEGIN; INSERT INTO public.late VALUES (1)")
        .await?;
    let words = [
        "table",
        "add",
        "public.late",
        "--timeout",
        "2s",
        "--lock-timeout",
        "200ms",
    ];
    let (code, _, stderr) = as_owner(&mut flow, &words).await?;
    ensure!(
        code == 20 && stderr.contains("locked by backend"),
        "{code}: {stderr}"
    );
    let listed = flow.command(&["table", "list", "--output", "json"]).await?;
    ensure!(listed.stdout.contains("announced"), "{listed:?}");
    // Everything else goes on meanwhile.
    run(&flow.source_admin, &["INSERT INTO orders (v) VALUES ('y')"]).await?;
    let count = "SELECT count(*) FROM orders";
    until(&flow.target_admin, count, "101", WITHIN).await?;
    application.batch_execute("ROLLBACK").await?;
    Ok(())
}
