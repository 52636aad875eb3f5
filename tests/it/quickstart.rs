//! A real load arrives equal.

use std::process::Command;

use anyhow::{Result, ensure};
use trellara_testkit::fresh::pgbench;

use crate::scenario::{WITHIN, carried, prepared, run};

async fn pgbench_arrives_equal(version: u32, name: &str) -> Result<()> {
    let mut flow = prepared(version, name, &[], &[], "").await?;
    // The tables are created empty on both sides and filled through the flow.
    for url in [&flow.source_admin, &flow.target_admin] {
        pgbench(version, url, &["-i", "-I", "dtp", "-s", "1"])?;
    }
    run(
        &flow.source_admin,
        &["CREATE TABLE keyless (a int, b text); ALTER TABLE pgbench_history REPLICA IDENTITY FULL;
           ALTER TABLE keyless REPLICA IDENTITY FULL"],
    )
    .await?;
    run(
        &flow.target_admin,
        &["CREATE TABLE keyless (a int, b text)"],
    )
    .await?;
    flow.start().await?;
    pgbench(version, &flow.source_admin, &["-i", "-I", "g", "-s", "1"])?;
    pgbench(
        version,
        &flow.source_admin,
        &["-n", "-c", "4", "-j", "2", "-t", "500"],
    )?;
    run(
        &flow.source_admin,
        &[
            "INSERT INTO keyless SELECT g % 10, 'row' FROM generate_series(1, 100) g",
            "DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless WHERE a = 1)",
            "UPDATE keyless SET b = 'other' WHERE ctid = (SELECT min(ctid) FROM keyless WHERE a = 2)",
        ],
    )
    .await?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn pgbench_and_a_keyless_table_arrive_equal_on_15() -> Result<()> {
    pgbench_arrives_equal(15, "bench15").await
}

#[tokio::test]
async fn pgbench_and_a_keyless_table_arrive_equal_on_18() -> Result<()> {
    pgbench_arrives_equal(18, "bench18").await
}

#[tokio::test]
async fn a_rolled_back_transaction_leaves_no_trace() -> Result<()> {
    carried(
        15,
        "rollback",
        &["CREATE TABLE t (id int PRIMARY KEY)"],
        &[
            "BEGIN; INSERT INTO t VALUES (1); ROLLBACK",
            "INSERT INTO t VALUES (2)",
        ],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn nothing_is_left_running_when_a_daemon_is_terminated() -> Result<()> {
    let mut flow =
        crate::scenario::started(15, "term", &["CREATE TABLE t (id int PRIMARY KEY)"], "").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO t SELECT generate_series(1, 1000)"],
    )
    .await?;
    flow.converges(WITHIN).await?;
    for daemon in [flow.relay.as_mut(), flow.applier.as_mut()] {
        let daemon = daemon.expect("it was started");
        let status = daemon.terminate(std::time::Duration::from_secs(20))?;
        ensure!(
            status.success(),
            "it ended with {status}; its log:\n{}",
            daemon.log()
        );
    }
    let left = Command::new("pgrep")
        .args(["-f", &flow.config().to_string_lossy()])
        .output()?;
    ensure!(
        left.stdout.is_empty(),
        "left running: {}",
        String::from_utf8_lossy(&left.stdout)
    );
    Ok(())
}
