//! What passes by itself is repeated for ever and is never anybody's verdict (A5), even where the
//! policy would set a transaction aside.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trellara_testkit::compare;
use trellara_testkit::flow::Flow;

use super::{PATIENCE, disconnect, logged, waits_for_a_lock, went_on};
use crate::scenario::{run, started, value};

const TABLES: &[&str] = &[
    "CREATE TABLE a (id int PRIMARY KEY, v text)",
    "CREATE TABLE b (id int PRIMARY KEY, v text)",
];
/// Whatever is held at all would be set aside.
const EXTRA: &str = "quarantine: {policy: hold_dependents}";

/// The statement that the applier is at.
const WAITING: &str = "SELECT coalesce(max(a.pid::text || a.query_start), '') FROM trellara.lane \
                       JOIN pg_stat_activity a ON a.pid = holder_pid";

/// So often a transaction would have to fail before it could be anybody's verdict, and more.
const VERDICT: usize = 5;

/// Waits until the applier has logged it more often than a verdict takes.
async fn times_logged(flow: &Flow, needle: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let applier = flow.applier.as_ref().context("an applier")?;
        if applier.log().matches(needle).count() >= VERDICT {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{}", flow.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the applier does not wait for a lock any more, or in another session.
async fn waits_for_none(flow: &Flow, session: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while value(&flow.target_admin, WAITING).await? == session {
        ensure!(Instant::now() < deadline, "{}", flow.logs());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A flow with a row in each table.
async fn flowing(version: u32, name: &str) -> Result<Flow> {
    let flow = started(version, name, TABLES, EXTRA).await?;
    let rows = "INSERT INTO a VALUES (1, 'one'); INSERT INTO b VALUES (1, 'one')";
    run(&flow.source_admin, &[rows]).await?;
    went_on(&flow).await?;
    Ok(flow)
}

/// Gives the applier's role a setting, and a new session to have it in.
async fn with_setting(flow: &Flow, setting: &str) -> Result<()> {
    let role = flow.roles.apply();
    let sql = format!("ALTER ROLE {role} IN DATABASE {} SET {setting}", flow.name);
    run(&flow.target_admin, &[&sql]).await?;
    disconnect(flow).await
}

#[tokio::test]
async fn f98_a_deadlock_with_a_user_is_tried_again() -> Result<()> {
    let mut flow = flowing(15, "deadlock").await?;
    // The user never gives way, and the applier looks late enough for us to make the deadlock.
    with_setting(&flow, "deadlock_timeout = '3s'").await?;
    let user = compare::connect(&flow.target_admin).await?;
    user.batch_execute(
        "SET deadlock_timeout = '1h'; BEGIN; UPDATE public.b SET v = v WHERE id = 1",
    )
    .await?;
    let both = "BEGIN; UPDATE a SET v = 'two'; UPDATE b SET v = 'two'; COMMIT";
    run(&flow.source_admin, &[both]).await?;
    waits_for_a_lock(&flow).await?;
    user.batch_execute("UPDATE public.a SET v = v WHERE id = 1")
        .await?;
    logged(&mut flow, "deadlock detected").await?;
    user.batch_execute("COMMIT").await?;
    went_on(&flow).await
}

#[tokio::test]
async fn f99_a_lock_is_waited_for_whatever_the_roles_lock_timeout() -> Result<()> {
    let flow = flowing(18, "locked").await?;
    with_setting(&flow, "lock_timeout = '10ms'").await?;
    let user = compare::connect(&flow.target_admin).await?;
    user.batch_execute("BEGIN; LOCK TABLE public.a IN SHARE MODE")
        .await?;
    run(&flow.source_admin, &["UPDATE a SET v = 'two'"]).await?;
    waits_for_a_lock(&flow).await?;
    // It stays in the queue: ten times its role's limit later it is still the same statement.
    let began = value(&flow.target_admin, WAITING).await?;
    run(&flow.target_admin, &["SELECT pg_sleep(0.1)"]).await?;
    waits_for_a_lock(&flow).await?;
    ensure!(value(&flow.target_admin, WAITING).await? == began);
    user.batch_execute("COMMIT").await?;
    went_on(&flow).await
}

/// A trigger that sets a lock timeout is in our way all the same.
#[tokio::test]
async fn f99_a_lock_timeout_that_a_trigger_sets_is_tried_again() -> Result<()> {
    let flow = flowing(15, "impatient").await?;
    let trigger = "CREATE FUNCTION hurry() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = '50ms' AS \
                     'BEGIN LOCK TABLE public.a IN SHARE ROW EXCLUSIVE MODE; RETURN NEW; END'; \
                   CREATE TRIGGER hurry BEFORE UPDATE ON b FOR EACH ROW EXECUTE FUNCTION hurry(); \
                   ALTER TABLE b ENABLE ALWAYS TRIGGER hurry; \
                   GRANT ALL ON TABLE a TO PUBLIC";
    run(&flow.target_admin, &[trigger]).await?;
    let user = compare::connect(&flow.target_admin).await?;
    user.batch_execute("BEGIN; LOCK TABLE public.a IN SHARE MODE")
        .await?;
    run(&flow.source_admin, &["UPDATE b SET v = 'two'"]).await?;
    times_logged(&flow, "55P03").await?;
    user.batch_execute("COMMIT").await?;
    went_on(&flow).await
}

#[tokio::test]
async fn f100_a_role_that_is_serializable_by_default_is_no_fault_of_a_row() -> Result<()> {
    let flow = flowing(15, "serializable").await?;
    with_setting(&flow, "default_transaction_isolation = 'serializable'").await?;
    let user = compare::connect(&flow.target_admin).await?;
    user.batch_execute("BEGIN; UPDATE public.a SET v = v WHERE id = 1")
        .await?;
    run(&flow.source_admin, &["UPDATE a SET v = 'two'"]).await?;
    waits_for_a_lock(&flow).await?;
    user.batch_execute("COMMIT").await?;
    went_on(&flow).await
}

#[tokio::test]
async fn f100_a_serialization_failure_is_tried_again() -> Result<()> {
    let mut flow = flowing(18, "serialize").await?;
    // Three times: a sequence does not go back when the transaction does.
    let trigger = "CREATE SEQUENCE try; GRANT ALL ON SEQUENCE try TO PUBLIC; \
                   CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
                     'BEGIN IF nextval(''public.try'') <= 3 THEN RAISE SQLSTATE ''40001''; END IF; RETURN NEW; END'; \
                   CREATE TRIGGER fail BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION fail(); \
                   ALTER TABLE a ENABLE ALWAYS TRIGGER fail";
    run(&flow.target_admin, &[trigger]).await?;
    run(&flow.source_admin, &["UPDATE a SET v = 'two'"]).await?;
    logged(&mut flow, "40001").await?;
    went_on(&flow).await
}

#[tokio::test]
async fn f101_time_limits_of_the_role_do_not_end_our_statements() -> Result<()> {
    let flow = flowing(18, "limits").await?;
    for limit in [
        "statement_timeout = '50ms'",
        "transaction_timeout = '50ms'",
        "idle_in_transaction_session_timeout = '50ms'",
        "idle_session_timeout = '50ms'",
    ] {
        with_setting(&flow, limit).await?;
    }
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                  'BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END'; \
                CREATE TRIGGER slow BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION slow(); \
                ALTER TABLE a ENABLE ALWAYS TRIGGER slow";
    run(&flow.target_admin, &[slow]).await?;
    run(&flow.source_admin, &["UPDATE a SET v = 'two'"]).await?;
    went_on(&flow).await
}

/// An administrator who ends our statement: repeated, under an alarm that names it.
#[tokio::test]
async fn f101_a_statement_that_somebody_cancels_is_tried_again_and_named() -> Result<()> {
    let mut flow = flowing(15, "cancelled").await?;
    let user = compare::connect(&flow.target_admin).await?;
    user.batch_execute("BEGIN; LOCK TABLE public.a IN SHARE MODE")
        .await?;
    run(&flow.source_admin, &["UPDATE a SET v = 'two'"]).await?;
    for _ in 0..VERDICT {
        waits_for_a_lock(&flow).await?;
        let session = value(&flow.target_admin, WAITING).await?;
        user.batch_execute("SELECT pg_cancel_backend(holder_pid) FROM trellara.lane")
            .await?;
        waits_for_none(&flow, &session).await?;
    }
    logged(&mut flow, "57014").await?;
    user.batch_execute("COMMIT").await?;
    went_on(&flow).await
}

#[tokio::test]
async fn f102_a_role_without_connections_left_is_waited_for() -> Result<()> {
    let mut flow = flowing(18, "connections").await?;
    let role = flow.roles.apply();
    run(
        &flow.target_admin,
        &[&format!("ALTER ROLE {role} CONNECTION LIMIT 0")],
    )
    .await?;
    disconnect(&flow).await?;
    run(&flow.source_admin, &["UPDATE a SET v = 'two'"]).await?;
    logged(&mut flow, "too many connections for role").await?;
    run(
        &flow.target_admin,
        &[&format!("ALTER ROLE {role} CONNECTION LIMIT -1")],
    )
    .await?;
    went_on(&flow).await
}
