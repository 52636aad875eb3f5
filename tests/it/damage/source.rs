//! Slot, publication and checkpoint changed behind the flow's back: the rows of rules 0.4.

use anyhow::{Context, Result, ensure};
use trellara_testkit::flow::Flow;

use super::{applied, flowing, halted, last_sequence, slot_of, stop, stored};
use crate::scenario::{WITHIN, run, value};

async fn drop_slot(flow: &Flow) -> Result<()> {
    let sql = format!("SELECT pg_drop_replication_slot('{}')", slot_of(flow));
    run(&flow.source_admin, &[&sql]).await
}

#[tokio::test]
async fn a_dropped_slot_is_named_and_not_made_again() -> Result<()> {
    let mut flow = flowing(15, "noslot", "").await?;
    stop(&mut flow)?;
    drop_slot(&flow).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    halted(flow.start_relay()?, "SLOT_LOST", 10).await?;
    for command in [["setup", "--yes"].as_slice(), &["check"]] {
        let ended = flow.command(command).await?;
        ensure!(ended.code == 10, "{command:?}: {ended:?}");
        let words = format!("{}{}", ended.stdout, ended.stderr);
        ensure!(words.contains("SLOT_LOST"), "{command:?}: {words}");
    }
    let slots = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}'",
        slot_of(&flow)
    );
    ensure!(value(&flow.source_admin, &slots).await? == "0");
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// Made again by hand, or moved on: what lies between is in nobody's hands (B08).
#[tokio::test]
async fn b08_a_slot_that_stands_beyond_the_stream_is_named() -> Result<()> {
    for (name, remade) in [("remade", true), ("moved", false)] {
        let mut flow = flowing(18, name, "source.acknowledge: published").await?;
        stop(&mut flow)?;
        run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
        let slot = slot_of(&flow);
        let change = if remade {
            drop_slot(&flow).await?;
            format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        } else {
            format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())")
        };
        run(&flow.source_admin, &[&change]).await?;
        halted(flow.start_relay()?, "STREAM_LOST_TAIL", 10).await?;
        ensure!(applied(&flow).await? == "1", "{name}");
    }
    Ok(())
}

/// The same with `applied`: the marker says where the stream goes on, and the target, which
/// stands below, does not follow.
#[tokio::test]
async fn c26_an_applier_below_the_place_where_the_stream_goes_on_halts() -> Result<()> {
    let mut flow = flowing(18, "beyond", "source.acknowledge: applied").await?;
    stop(&mut flow)?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    let slot = slot_of(&flow);
    let advance =
        format!("SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())");
    run(&flow.source_admin, &[&advance]).await?;
    let before = last_sequence(&flow).await?;
    flow.start_relay()?;
    stored(&flow, ".mark", before).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'three')"]).await?;
    halted(flow.start_applier()?, "GAP", 10).await?;
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

#[tokio::test]
async fn a_slot_of_another_shape_is_refused_by_the_relay() -> Result<()> {
    let mut flow = flowing(15, "shape", "").await?;
    stop(&mut flow)?;
    let slot = slot_of(&flow);
    for create in [
        format!("SELECT pg_create_physical_replication_slot('{slot}', true)"),
        format!("SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')"),
        format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)"),
    ] {
        drop_slot(&flow).await?;
        run(&flow.source_admin, &[&create]).await?;
        halted(flow.start_relay()?, "CONFIG", 11)
            .await
            .with_context(|| create.clone())?;
    }
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// 15 ends the stream with an error, 18 only gives notice and leaves the rows out (C06).
#[tokio::test]
async fn c06_a_dropped_publication_stops_the_relay_before_it_confirms() -> Result<()> {
    for version in [15, 18] {
        let mut flow = flowing(version, "nopub", "source.acknowledge: published").await?;
        let drop = format!("DROP PUBLICATION trellara_{}", flow.name);
        run(&flow.source_admin, &[&drop]).await?;
        let before = value(&flow.source_admin, "SELECT pg_current_wal_insert_lsn()").await?;
        run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
        let relay = flow.relay.as_mut().context("relay")?;
        halted(relay, "CONFIG", 11)
            .await
            .with_context(|| format!("PostgreSQL {version}"))?;
        let passed = format!(
            "SELECT confirmed_flush_lsn <= '{before}' FROM pg_replication_slots WHERE slot_name = '{}'",
            slot_of(&flow)
        );
        ensure!(
            value(&flow.source_admin, &passed).await? == "t",
            "PostgreSQL {version}: the row was confirmed away"
        );
        halted(flow.start_relay()?, "CONFIG", 11).await?;
    }
    Ok(())
}

/// The set looks the same, and rows are missing (C06).
#[tokio::test]
async fn c06_a_table_that_left_and_came_back_is_named() -> Result<()> {
    let mut flow = flowing(18, "member", "").await?;
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    let publication = format!("trellara_{}", flow.name);
    run(
        &flow.source_admin,
        &[
            &format!("ALTER PUBLICATION {publication} DROP TABLE log"),
            "INSERT INTO log VALUES (2, 'lost')",
            &format!("ALTER PUBLICATION {publication} ADD TABLE log"),
        ],
    )
    .await?;
    let relay = flow.start_relay()?;
    halted(relay, "CONFIG", 11).await?;
    ensure!(relay.log().contains("added again"), "{}", relay.log());
    ensure!(relay.log().contains("log"), "{}", relay.log());
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// The target's checkpoint set back by hand: its frame says otherwise.
#[tokio::test]
async fn a_checkpoint_set_back_by_hand_is_named() -> Result<()> {
    let mut flow = flowing(15, "edited", "").await?;
    stop(&mut flow)?;
    let newest = "SELECT max(first_ordinal) FROM trellara.applied";
    let edit = format!(
        "UPDATE trellara.applied SET end_lsn = '0/10', transaction_end_lsn = '0/10', \
                lowest_end_lsn = CASE WHEN lowest_end_lsn IS NULL THEN NULL ELSE '0/10'::pg_lsn END, \
                highest_end_lsn = CASE WHEN highest_end_lsn IS NULL THEN NULL ELSE '0/10'::pg_lsn END \
          WHERE first_ordinal = ({newest})"
    );
    run(&flow.target_admin, &[&edit]).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    flow.start_relay()?;
    halted(flow.start_applier()?, "STATE", 10).await?;
    ensure!(applied(&flow).await? == "1");
    // A checkpoint that names a frame of other bytes proves nothing either.
    let edit = format!(
        "UPDATE trellara.applied SET frame_digest = decode(repeat('ab', 16), 'hex') \
          WHERE first_ordinal = ({newest})"
    );
    run(&flow.target_admin, &[&edit]).await?;
    halted(flow.start_applier()?, "GAP", 10).await?;
    ensure!(applied(&flow).await? == "1");
    Ok(())
}
