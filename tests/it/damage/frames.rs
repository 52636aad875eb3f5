//! Frames whose bytes are not what was published: named, never applied, and the flow goes on when
//! the right bytes are back.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use trellara_testkit::broker::{self, Stored};
use trellara_testkit::flow::Flow;

use super::{applied, broker_of, flowing, halted, last_sequence, stop, stored};
use crate::scenario::{WITHIN, run};

/// What is done to one frame's bytes.
type Damage = fn(&[u8]) -> Vec<u8>;

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x10;
    bytes
}

const DAMAGES: [(&str, Damage); 7] = [
    ("a bit of the magic", |bytes| flipped(bytes, 0)),
    ("a bit of the checksum", |bytes| flipped(bytes, 16)),
    ("a bit in the middle", |bytes| {
        flipped(bytes, bytes.len() / 2)
    }),
    ("the last bit", |bytes| flipped(bytes, bytes.len() - 1)),
    ("its end", |bytes| bytes[..bytes.len() - 1].to_vec()),
    ("all but its beginning", |bytes| bytes[..4].to_vec()),
    ("everything", |_| Vec::new()),
];

/// Row 2 is in the stream and not in the target; daemons are down. The stream, and where row 2 is.
async fn with_unread_row(flow: &mut Flow) -> Result<(Vec<Stored>, usize)> {
    let before = last_sequence(flow).await?;
    let mut applier = flow.applier.take().context("the applier")?;
    applier.terminate(WITHIN)?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    let sequence = stored(flow, ".tx.", before).await?;
    let mut relay = flow.relay.take().context("the relay")?;
    relay.terminate(WITHIN)?;
    let (nats, stream) = broker_of(flow);
    let messages = broker::messages(&nats, &stream).await?;
    let at = messages.iter().position(|m| m.sequence == sequence);
    Ok((messages, at.context("it is there")?))
}

#[tokio::test]
async fn a_damaged_frame_is_named_and_never_applied() -> Result<()> {
    let mut flow = flowing(18, "damaged", "").await?;
    let (nats, stream) = broker_of(&flow);
    let (good, at) = with_unread_row(&mut flow).await?;
    for (what, damage) in DAMAGES {
        let mut bad = good.clone();
        bad[at].payload = Bytes::from(damage(&good[at].payload));
        broker::rebuild(&nats, &stream, &bad).await?;
        let applier = flow.start_applier()?;
        halted(applier, "CORRUPT", 10)
            .await
            .with_context(|| format!("without {what}"))?;
        let named = format!("sequence {}", good[at].sequence);
        ensure!(applier.log().contains(&named), "{what}: {}", applier.log());
        ensure!(applied(&flow).await? == "1", "without {what}");
    }
    broker::rebuild(&nats, &stream, &good).await?;
    flow.start_relay()?;
    flow.start_applier()?;
    flow.converges(WITHIN).await
}

/// Whole frames in wrong places: the chain tells.
#[tokio::test]
async fn a_frame_in_the_place_of_another_is_named() -> Result<()> {
    let mut flow = flowing(15, "swapped", "").await?;
    let (nats, stream) = broker_of(&flow);
    let (good, at) = with_unread_row(&mut flow).await?;
    // Another flow's frame, whole and sound.
    let mut other = flowing(15, "other", "").await?;
    stop(&mut other)?;
    let (other_nats, other_stream) = broker_of(&other);
    let foreign = broker::messages(&other_nats, &other_stream).await?;
    let foreign = foreign.iter().rfind(|m| m.subject.contains(".tx."));
    let mut bad = good.clone();
    bad[at].payload = foreign.context("a transaction")?.payload.clone();
    broker::rebuild(&nats, &stream, &bad).await?;
    let applier = flow.start_applier()?;
    halted(applier, "CORRUPT", 10).await?;
    ensure!(applied(&flow).await? == "1");
    // The frame is missing, and the next one has its place.
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'three')"]).await?;
    broker::rebuild(&nats, &stream, &good).await?;
    flow.start_relay()?;
    stored(&flow, ".tx.", good[at].sequence).await?;
    flow.relay.take().context("the relay")?.terminate(WITHIN)?;
    let whole = broker::messages(&nats, &stream).await?;
    let mut short = whole.clone();
    short.remove(at);
    for (index, message) in short.iter_mut().enumerate() {
        message.sequence = index as u64 + 1;
    }
    broker::rebuild(&nats, &stream, &short).await?;
    let applier = flow.start_applier()?;
    halted(applier, "GAP", 10).await?;
    ensure!(applied(&flow).await? == "1");
    broker::rebuild(&nats, &stream, &whole).await?;
    flow.start_relay()?;
    flow.start_applier()?;
    flow.converges(WITHIN).await
}

/// A large transaction is committed only when every digest fits (C16): one damaged chunk, one
/// chunk in another's place, one chunk missing.
#[tokio::test]
async fn c16_a_damaged_chunk_is_named_and_nothing_of_its_transaction_stays() -> Result<()> {
    let mut flow = flowing(18, "chunk", "").await?;
    let (nats, stream) = broker_of(&flow);
    let before = last_sequence(&flow).await?;
    let mut applier = flow.applier.take().context("the applier")?;
    applier.terminate(WITHIN)?;
    let rows = "INSERT INTO log SELECT g, repeat(md5(g::text), 20) FROM generate_series(2, 6000) g";
    run(&flow.source_admin, &[rows]).await?;
    stored(&flow, ".tx.", before).await?;
    flow.relay.take().context("the relay")?.terminate(WITHIN)?;
    let good = broker::messages(&nats, &stream).await?;
    let chunks: Vec<usize> = (0..good.len())
        .filter(|at| good[*at].subject.contains(".open."))
        .collect();
    ensure!(chunks.len() > 3, "{} chunks", chunks.len());
    let last = chunks[chunks.len() - 1];
    let mut flipped = good.clone();
    flipped[last].payload = Bytes::from(self::flipped(&good[last].payload, 3000));
    let mut exchanged = good.clone();
    exchanged[chunks[1]].payload = good[chunks[2]].payload.clone();
    exchanged[chunks[2]].payload = good[chunks[1]].payload.clone();
    let mut doubled = good.clone();
    doubled[last].payload = good[chunks[0]].payload.clone();
    for (what, code, bad) in [
        ("flipped", "CORRUPT", flipped),
        // Where chunk 1 should be there is a later one.
        ("exchanged", "GAP", exchanged),
        ("doubled", "CORRUPT", doubled),
    ] {
        broker::rebuild(&nats, &stream, &bad).await?;
        let applier = flow.start_applier()?;
        halted(applier, code, 10)
            .await
            .with_context(|| what.to_owned())?;
        ensure!(applied(&flow).await? == "1", "{what}");
    }
    broker::rebuild(&nats, &stream, &good).await?;
    flow.start_relay()?;
    flow.start_applier()?;
    flow.converges(WITHIN).await
}

/// Somebody with the right to publish writes on the flow's subjects.
#[tokio::test]
async fn a_foreign_writer_is_named_by_both_daemons() -> Result<()> {
    let mut flow = flowing(15, "foreign", "").await?;
    let (nats, _) = broker_of(&flow);
    let subject = format!("trellara.{}.tx.0", flow.name);
    broker::publish(&nats, &subject, Bytes::from_static(b"not a frame")).await?;
    halted(flow.applier.as_mut().context("applier")?, "CORRUPT", 10).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    halted(flow.relay.as_mut().context("relay")?, "CORRUPT", 10).await?;
    ensure!(applied(&flow).await? == "1");
    // Neither goes on by being started again.
    halted(flow.start_relay()?, "CORRUPT", 10).await?;
    halted(flow.start_applier()?, "CORRUPT", 10).await?;
    ensure!(applied(&flow).await? == "1");
    Ok(())
}

/// A copy of a sound frame of this very flow, published by somebody else: nothing is applied
/// twice, and the relay does not take it for its own.
#[tokio::test]
async fn a_frame_published_again_by_somebody_else_is_named() -> Result<()> {
    let mut flow = flowing(18, "again", "").await?;
    let (nats, stream) = broker_of(&flow);
    let messages = broker::messages(&nats, &stream).await?;
    let row = messages.iter().rfind(|m| m.subject.contains(".tx."));
    let row = row.context("a transaction")?;
    broker::publish(&nats, &row.subject, row.payload.clone()).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    halted(flow.relay.as_mut().context("relay")?, "FORK", 10).await?;
    ensure!(applied(&flow).await? == "1");
    Ok(())
}
