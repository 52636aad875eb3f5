//! What happens to the source while a flow lives: slots that are given up, prepared transactions,
//! rights that go, room that runs out.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{begun, both_run, count, replicating, rows};
use crate::restart::{KEYLESS, ground, until};
use crate::scenario::{WITHIN, run, value};

/// WAL beyond the limit: the slot is lost, by name, and nobody jumps to the present.
async fn slot_invalidated(version: u32) -> Result<()> {
    let options = GroundOptions::version(version)
        .source("max_slot_wal_keep_size", "32MB")
        .source("min_wal_size", "32MB")
        .source("max_wal_size", "32MB");
    let (ground, mut flow) = ground(options, KEYLESS, "").await?;
    rows(&flow, 0..2).await?;
    flow.caught_up(WITHIN).await?;
    flow.relay.take().context("relay")?.kill()?;
    let fill =
        "CREATE TABLE fill AS SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, 60000) g";
    run(
        &ground.source.url("postgres"),
        &[fill, "SELECT pg_switch_wal()", "CHECKPOINT"],
    )
    .await?;
    rows(&flow, 2..4).await?;
    let lost = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'trellara_cases'";
    for _ in 0..20 {
        if value(&flow.source_admin, lost).await? == "lost" {
            break;
        }
        run(
            &ground.source.url("postgres"),
            &["SELECT pg_switch_wal()", "CHECKPOINT"],
        )
        .await?;
    }
    ensure!(value(&flow.source_admin, lost).await? == "lost");
    let relay = flow.start_relay()?;
    relay.logged("code=SLOT_LOST", WITHIN).await?;
    ensure!(relay.ready().await == Some(false));
    let checked = flow.command(&["check"]).await?;
    ensure!(checked.code == 10, "{checked:?}");
    ensure!(count(&flow).await? == 2);
    Ok(())
}

#[tokio::test]
async fn f71_b13_a_slot_beyond_its_limit_is_lost_by_name_on_15() -> Result<()> {
    slot_invalidated(15).await
}

#[tokio::test]
async fn f71_b13_a_slot_beyond_its_limit_is_lost_by_name_on_18() -> Result<()> {
    slot_invalidated(18).await
}

/// Prepared transactions count when they are committed, however long they were prepared and whoever
/// was restarted meanwhile (B25).
#[tokio::test]
async fn f85_b25_a_prepared_transaction_arrives_when_it_is_committed() -> Result<()> {
    for version in [15, 18] {
        let options = GroundOptions::version(version).source("max_prepared_transactions", "5");
        let (mut ground, mut flow) = ground(options, KEYLESS, "").await?;
        run(
            &flow.source_admin,
            &[
                "BEGIN; INSERT INTO log VALUES (1, 'prepared'); PREPARE TRANSACTION 'g1'",
                "INSERT INTO log VALUES (2, 'between')",
                "BEGIN; INSERT INTO log VALUES (3, 'never'); PREPARE TRANSACTION 'g2'",
            ],
        )
        .await?;
        until(
            &flow.target_admin,
            "SELECT string_agg(id::text, ' ') FROM log",
            "2",
            WITHIN,
        )
        .await?;
        flow.relay.as_mut().context("relay")?.kill()?;
        flow.applier.as_mut().context("applier")?.kill()?;
        ground.source.kill()?;
        ground.source.start_again()?;
        flow.start_relay()?;
        flow.start_applier()?;
        run(
            &flow.source_admin,
            &["COMMIT PREPARED 'g1'", "ROLLBACK PREPARED 'g2'"],
        )
        .await?;
        flow.converges(WITHIN).await?;
        let ids = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM log";
        ensure!(value(&flow.target_admin, ids).await? == "1 2");
    }
    Ok(())
}

/// A password that is changed, and a role that may not replicate any more, stop the relay by name
/// until it is as before.
#[tokio::test]
async fn f87_rights_that_go_are_named_and_waited_for() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    begun(&mut flow).await?;
    let role = flow.roles.capture();
    let role = role.split(':').next().context("a name")?.to_owned();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'trellara%' AND pid <> pg_backend_pid()";
    run(
        &flow.source_admin,
        &[&format!("ALTER ROLE {role} NOREPLICATION NOLOGIN"), end],
    )
    .await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("code=RIGHTS", WITHIN).await?;
    ensure!(relay.ready().await == Some(false));
    rows(&flow, 1..3).await?;
    run(
        &flow.source_admin,
        &[&format!("ALTER ROLE {role} REPLICATION LOGIN")],
    )
    .await?;
    flow.converges(Duration::from_secs(80)).await?;
    both_run(&mut flow)
}

/// Every walsender is taken: said, waited for, and taken when one is free.
#[tokio::test]
async fn f88_without_a_free_walsender_it_is_said_and_waited_for() -> Result<()> {
    let mut options = GroundOptions::version(18).source("max_wal_senders", "2");
    options.hba = replicating();
    let (ground, mut flow) = ground(options, KEYLESS, "").await?;
    rows(&flow, 0..1).await?;
    flow.caught_up(WITHIN).await?;
    flow.relay.as_mut().context("relay")?.terminate(WITHIN)?;
    let mut takers = Vec::new();
    for number in 0..2 {
        let taker = std::process::Command::new(ground.source.bin_dir().join("pg_receivewal"))
            .args(["-d", &ground.source.url("postgres"), "-D"])
            .arg({
                let folder = flow.folder().join(format!("wal{number}"));
                std::fs::create_dir(&folder)?;
                folder
            })
            .stderr(std::process::Stdio::null())
            .spawn()?;
        takers.push(taker);
    }
    let taken = "SELECT count(*) FROM pg_stat_replication";
    until(&ground.source.url("postgres"), taken, "2", WITHIN).await?;
    let relay = flow.start_relay()?;
    relay.logged("max_wal_senders", WITHIN).await?;
    ensure!(relay.ready().await == Some(false) && relay.is_running());
    for mut taker in takers {
        taker.kill()?;
        taker.wait()?;
    }
    rows(&flow, 1..3).await?;
    flow.converges(WITHIN).await
}

/// The replica identity of a table changes under way; what the source lets through is applied.
#[tokio::test]
async fn f81_the_replica_identity_may_change_under_way() -> Result<()> {
    let schema = "CREATE TABLE k (id int PRIMARY KEY, other int NOT NULL, v text); \
                  CREATE UNIQUE INDEX k_other ON k (other)";
    let (_ground, flow) = ground(GroundOptions::version(18), schema, "").await?;
    let change =
        "UPDATE k SET v = v || 'x', other = other + 100 WHERE id = 1; DELETE FROM k WHERE id = 2";
    let refill = "INSERT INTO k VALUES (1, 1, 'a'), (2, 2, 'b') ON CONFLICT (id) DO UPDATE SET other = excluded.other";
    for identity in ["FULL", "USING INDEX k_other", "DEFAULT"] {
        run(
            &flow.source_admin,
            &[
                refill,
                &format!("ALTER TABLE k REPLICA IDENTITY {identity}"),
                change,
            ],
        )
        .await?;
    }
    run(
        &flow.source_admin,
        &["ALTER TABLE k REPLICA IDENTITY NOTHING"],
    )
    .await?;
    let refused = run(&flow.source_admin, &["DELETE FROM k WHERE id = 1"]).await;
    ensure!(
        refused.is_err(),
        "the source lets a change without identity through"
    );
    run(&flow.source_admin, &["INSERT INTO k VALUES (7, 7, 'new')"]).await?;
    flow.converges(WITHIN).await
}

/// Sub-transactions that fail by the thousand, beyond the memory for decoding: PostgreSQL 18 sends
/// STREAM ABORT for what it never began to stream (B24).
#[tokio::test]
async fn b24_an_abort_that_nobody_waits_for_is_passed_over() -> Result<()> {
    let options = GroundOptions::version(18).source("logical_decoding_work_mem", "64kB");
    let (_ground, flow) = ground(options, KEYLESS, "").await?;
    let failing = "DO $$ BEGIN FOR i IN 1..3000 LOOP BEGIN \
                     INSERT INTO public.log VALUES (i, repeat('x', 100)); \
                     IF i % 2 = 0 THEN RAISE EXCEPTION 'no'; END IF; \
                   EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$";
    let all_failing = "DO $$ BEGIN FOR i IN 1..3000 LOOP BEGIN \
                     INSERT INTO public.log VALUES (i, repeat('y', 100)); RAISE EXCEPTION 'no'; \
                   EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$";
    run(
        &flow.source_admin,
        &[
            failing,
            all_failing,
            "INSERT INTO log VALUES (9999, 'last')",
        ],
    )
    .await?;
    flow.converges(WITHIN).await?;
    ensure!(count(&flow).await? == 1501);
    Ok(())
}

/// The target's server goes at once, again and again, while it applies.
#[tokio::test]
async fn f91_a_target_that_stops_at_once_loses_and_doubles_nothing() -> Result<()> {
    let (mut ground, flow) = ground(GroundOptions::version(18), KEYLESS, "").await?;
    let writer = compare::connect(&flow.source_admin).await?;
    let mut id = 0;
    for _ in 0..4 {
        for _ in 0..200 {
            id += 1;
            let sql = format!("INSERT INTO public.log VALUES ({id}, 'x')");
            writer.batch_execute(&sql).await?;
        }
        ground.target.stop(trellara_local::StopMode::Immediate)?;
        ground.target.start_again()?;
    }
    flow.converges(WITHIN).await?;
    ensure!(count(&flow).await? == 800);
    Ok(())
}

/// A source crashes and its slot falls back: what comes again is known (F65).
#[tokio::test]
async fn f65_f66_a_source_that_stops_at_once_or_in_order_loses_and_doubles_nothing() -> Result<()> {
    let (mut ground, mut flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    for (round, mode) in [
        trellara_local::StopMode::Immediate,
        trellara_local::StopMode::Fast,
        trellara_local::StopMode::Immediate,
    ]
    .into_iter()
    .enumerate()
    {
        let first = u32::try_from(round)? * 100;
        rows(&flow, first..first + 100).await?;
        ground.source.stop(mode)?;
        ground.source.start_again()?;
    }
    flow.converges(WITHIN).await?;
    ensure!(count(&flow).await? == 300);
    both_run(&mut flow)
}
