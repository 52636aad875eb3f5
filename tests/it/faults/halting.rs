//! What does not fit stops the lane exactly in front of the transaction that it does not fit, under
//! its own code; nothing is held, and the lane goes on by itself when the cause is gone.

use anyhow::{Result, ensure};
use trellara_testkit::flow::Flow;

use super::{disconnect, halted, held, went_on};
use crate::scenario::{WITHIN, prepared, run, started, value};

const TABLES: &[&str] = &["CREATE TABLE t (id int PRIMARY KEY, v text)"];
const EXTRA: &str = "quarantine: {policy: hold_dependents}";

/// One row before what is in the way and one that it is in the way of; then the cause is gone.
async fn stands(flow: &Flow, code: &str, broken: &str, mended: &str) -> Result<()> {
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 'before')"]).await?;
    flow.caught_up(WITHIN).await?;
    run(&flow.target_admin, &[broken]).await?;
    if code == "CONFIG" {
        // Such as a database's defaults: for new sessions.
        disconnect(flow).await?;
    }
    run(&flow.source_admin, &["INSERT INTO t VALUES (2, 'behind')"]).await?;
    let halt = halted(flow, code).await?;
    ensure!(
        !halt["hint"].as_str().unwrap_or_default().is_empty(),
        "{halt}"
    );
    ensure!(held(flow).await? == "0", "{}", flow.logs());
    let rows = value(&flow.target_admin, "SELECT count(*) FROM t WHERE id = 2").await?;
    ensure!(rows == "0", "{rows} rows");
    run(&flow.target_admin, &[mended]).await?;
    went_on(flow).await
}

#[tokio::test]
async fn f104_a_target_that_turns_read_only_is_waited_for() -> Result<()> {
    let flow = started(18, "readonly", TABLES, EXTRA).await?;
    let database = &flow.name;
    let read_only = "SET default_transaction_read_only";
    stands(
        &flow,
        "CONFIG",
        &format!("ALTER DATABASE {database} {read_only} = on"),
        &format!("SET transaction_read_only = off; ALTER DATABASE {database} {read_only} = off"),
    )
    .await
}

#[tokio::test]
async fn f105_a_right_that_was_revoked_stops_the_lane_until_it_is_back() -> Result<()> {
    let flow = started(15, "revoked", TABLES, EXTRA).await?;
    let role = flow.roles.apply();
    stands(
        &flow,
        "RIGHTS",
        &format!("REVOKE INSERT ON t FROM {role}"),
        &format!("GRANT INSERT ON t TO {role}"),
    )
    .await
}

#[tokio::test]
async fn f106_a_column_that_is_missing_stops_the_lane_until_it_is_there() -> Result<()> {
    let flow = started(18, "column", TABLES, EXTRA).await?;
    let gone = "ALTER TABLE t DROP COLUMN v";
    run(&flow.source_admin, &["INSERT INTO t VALUES (0, 'x')"]).await?;
    stands(
        &flow,
        "SCHEMA",
        gone,
        "ALTER TABLE t ADD COLUMN v text; UPDATE t SET v = CASE id WHEN 0 THEN 'x' ELSE 'before' END",
    )
    .await
}

/// What the target's tables were a while ago refuses nothing: a verdict is about what they are.
#[tokio::test]
async fn f96_a_column_that_was_widened_meanwhile_takes_its_rows() -> Result<()> {
    let source = &["CREATE TABLE t (id int PRIMARY KEY, v bigint)"];
    let target = &["CREATE TABLE t (id int PRIMARY KEY, v smallint)"];
    let mut flow = prepared(15, "widened", source, target, EXTRA).await?;
    flow.start().await?;
    run(
        &flow.source_admin,
        &["INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 2)"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    run(
        &flow.target_admin,
        &["ALTER TABLE t ALTER COLUMN v TYPE bigint"],
    )
    .await?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (3, 40000)"]).await?;
    went_on(&flow).await
}
