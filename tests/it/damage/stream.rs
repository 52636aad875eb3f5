//! The stream lost messages, or is another one: refused by name, never made anew.

use anyhow::{Context, Result, ensure};
use trellara_testkit::broker;

use super::{applied, broker_of, flowing, halted, last_sequence, slot_of, stop, stored};
use crate::scenario::{WITHIN, run, value};

/// Frames that the target had not applied are purged away (F36): a gap, whoever starts first.
#[tokio::test]
async fn a_stream_purged_beyond_the_checkpoint_is_a_gap() -> Result<()> {
    let mut flow = flowing(18, "purged", "").await?;
    let (nats, stream) = broker_of(&flow);
    flow.applier.take().context("applier")?.terminate(WITHIN)?;
    let before = last_sequence(&flow).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    let sequence = stored(&flow, ".tx.", before).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'three')"]).await?;
    stored(&flow, ".tx.", sequence).await?;
    // Not the relay's marker: without it the relay would not go on at all.
    let transactions = format!("trellara.{}.tx.>", flow.name);
    broker::purge_below(&nats, &stream, &transactions, sequence + 1).await?;
    halted(flow.start_applier()?, "GAP", 10).await?;
    // A restarted relay, whose marker goes on behind the hole, makes it no better.
    flow.relay.take().context("relay")?.terminate(WITHIN)?;
    flow.start_relay()?;
    stored(&flow, ".mark", sequence + 1).await?;
    halted(flow.start_applier()?, "GAP", 10).await?;
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// Deleted, and made again with the same settings and nothing in it (F36).
#[tokio::test]
async fn a_stream_made_anew_is_refused_and_left_alone() -> Result<()> {
    let mut flow = flowing(15, "anew", "source.acknowledge: published").await?;
    let (nats, stream) = broker_of(&flow);
    stop(&mut flow)?;
    let settings = broker::stream_settings(&nats, &stream).await?;
    let settings = settings.context("it is there")?;
    broker::delete_stream(&nats, &stream).await?;
    let slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = ";
    let slot = format!("{slot}'{}'", slot_of(&flow));
    let confirmed = value(&flow.source_admin, &slot).await?;
    for recreated in [false, true] {
        if recreated {
            broker::create_stream(&nats, settings.clone()).await?;
        }
        halted(flow.start_relay()?, "NO_STREAM", 10).await?;
        let code = if recreated {
            "STREAM_REPLACED"
        } else {
            "NO_STREAM"
        };
        halted(flow.start_applier()?, code, 10).await?;
        for command in [["setup", "--yes"].as_slice(), &["check"]] {
            let ended = flow.command(command).await?;
            ensure!(ended.code == 10, "{command:?}: {ended:?}");
            let words = format!("{}{}", ended.stdout, ended.stderr);
            ensure!(words.contains("NO_STREAM"), "{command:?}: {words}");
        }
        let there = broker::stream_settings(&nats, &stream).await?.is_some();
        ensure!(there == recreated, "somebody made the stream");
        if recreated {
            ensure!(broker::messages(&nats, &stream).await?.is_empty());
        }
    }
    ensure!(value(&flow.source_admin, &slot).await? == confirmed);
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// The stream ends earlier than what the slot gave away: with `published` that is loss, by name.
#[tokio::test]
async fn a_lost_tail_is_named_where_the_slot_has_moved_on() -> Result<()> {
    let mut flow = flowing(18, "tail", "source.acknowledge: published").await?;
    let (nats, stream) = broker_of(&flow);
    let before = last_sequence(&flow).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    let row = stored(&flow, ".tx.", before).await?;
    flow.caught_up(WITHIN).await?;
    stop(&mut flow)?;
    let mut messages = broker::messages(&nats, &stream).await?;
    messages.retain(|message| message.sequence < row);
    broker::rebuild(&nats, &stream, &messages).await?;
    halted(flow.start_relay()?, "STREAM_LOST_TAIL", 10).await?;
    ensure!(applied(&flow).await? == "1 2");
    Ok(())
}

/// A second target, restored from the first one's backup or set up by mistake, never reads on the
/// first one's account (C24).
#[tokio::test]
async fn c24_another_target_is_refused() -> Result<()> {
    let mut flow = flowing(18, "second", "").await?;
    stop(&mut flow)?;
    // The id that the stream is registered for is another one's.
    let other = "UPDATE trellara.state_version SET target_id = gen_random_uuid()";
    run(&flow.target_admin, &[other]).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    halted(flow.start_applier()?, "CONFIG", 11).await?;
    let checked = flow.command(&["check"]).await?;
    ensure!(checked.code == 11, "{checked:?}");
    ensure!(
        checked.stdout.contains("STREAM_OTHER_TARGET"),
        "{checked:?}"
    );
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// What docs/operating says of most damage: as long as the source has everything that the target has
/// not applied, the stream can be replaced, and what comes again is skipped.
#[tokio::test]
async fn a_damaged_stream_is_replaced_where_the_source_still_has_what_is_missing() -> Result<()> {
    for code in ["CORRUPT", "FORK", "GAP"] {
        let name = code.to_ascii_lowercase();
        let mut flow = flowing(18, &name, "source.acknowledge: applied").await?;
        let (nats, stream) = broker_of(&flow);
        let row = "INSERT INTO log VALUES (2, 'two')";
        if code == "GAP" {
            flow.applier.take().context("applier")?.terminate(WITHIN)?;
            let before = last_sequence(&flow).await?;
            run(&flow.source_admin, &[row]).await?;
            let sequence = stored(&flow, ".tx.", before).await?;
            run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'three')"]).await?;
            stored(&flow, ".tx.", sequence).await?;
            let transactions = format!("trellara.{}.tx.>", flow.name);
            broker::purge_below(&nats, &stream, &transactions, sequence + 1).await?;
            flow.start_applier()?;
        } else {
            let messages = broker::messages(&nats, &stream).await?;
            let known = messages.iter().rfind(|m| m.subject.contains(".tx."));
            let known = known.context("a transaction")?;
            let foreign = match code {
                "CORRUPT" => bytes::Bytes::from_static(b"not a frame"),
                _ => known.payload.clone(),
            };
            broker::publish(&nats, &known.subject, foreign).await?;
            run(&flow.source_admin, &[row]).await?;
        }
        halted(flow.applier.as_mut().context("applier")?, code, 10).await?;
        flow.relay = None;
        broker::delete_stream(&nats, &stream).await?;
        let done = flow.command(&["setup", "--new-stream", "--yes"]).await?;
        ensure!(done.code == 0, "{code}: {done:?}");
        flow.start_relay()?;
        flow.start_applier()?;
        flow.converges(WITHIN)
            .await
            .with_context(|| code.to_owned())?;
    }
    Ok(())
}
