//! A stream without room (C12): named, and it goes on by itself.

use anyhow::{Context, Result, ensure};
use trellara_testkit::broker;
use trellara_testkit::compare;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{LOG, broker_of, flowing};
use crate::restart::until;
use crate::scenario::{WITHIN, run, value};

const MIB: i64 = 1 << 20;

/// About 1 KiB each.
fn rows(from: u32, to: u32) -> String {
    format!(
        "INSERT INTO public.log SELECT g, repeat(md5(g::text), 32) FROM generate_series({from}, {to}) g"
    )
}

#[tokio::test]
async fn c12_a_transaction_larger_than_the_stream_is_named_and_goes_on_when_it_grows() -> Result<()>
{
    let mut flow = flowing(18, "small", "nats.max_bytes: 16MiB\nnats.history: 1s").await?;
    let (nats, stream) = broker_of(&flow);
    // 24 MiB, and the target must be empty of all of it meanwhile.
    run(&flow.source_admin, &[&rows(2, 24_000)]).await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("STREAM_TOO_SMALL", WITHIN).await?;
    relay.logged("nats.max_bytes", WITHIN).await?;
    ensure!(relay.is_running(), "{}", relay.log());
    ensure!(value(&flow.target_admin, "SELECT count(*) FROM log").await? == "1");
    broker::set_max_bytes(&nats, &stream, 64 * MIB).await?;
    until(
        &flow.target_admin,
        "SELECT count(*) FROM log",
        "24000",
        WITHIN,
    )
    .await?;
    flow.converges(WITHIN).await
}

/// A transaction streams in and stays open while others commit behind it: its chunks keep to
/// their budget, the others go through, and it arrives when it commits.
#[tokio::test]
async fn c12_one_open_transaction_does_not_fill_the_stream() -> Result<()> {
    let options = GroundOptions::version(15).source("logical_decoding_work_mem", "64kB");
    let ground = Ground::start(&options)?;
    let extra = "nats.max_bytes: 64MiB\nnats.history: 1s";
    let mut flow = ground.flow("opened", LOG[0], LOG[0], extra).await?;
    flow.start().await?;
    let open = compare::connect(&flow.source_admin).await?;
    open.batch_execute("BEGIN").await?;
    let mut next = 1_000_000;
    for round in 0..12 {
        open.batch_execute(&rows(next, next + 3999)).await?;
        next += 4000;
        run(
            &flow.source_admin,
            &[&format!("INSERT INTO log VALUES ({round}, 'x')")],
        )
        .await?;
        let sql = format!("SELECT count(*) FROM log WHERE id = {round}");
        until(&flow.target_admin, &sql, "1", WITHIN).await?;
    }
    let (nats, stream) = broker_of(&flow);
    let bytes: usize = broker::messages(&nats, &stream)
        .await?
        .iter()
        .map(|message| message.payload.len())
        .sum();
    ensure!(bytes < 60 << 20, "{bytes} bytes in a stream of 64 MiB");
    open.batch_execute("COMMIT").await?;
    flow.converges(WITHIN).await
}
