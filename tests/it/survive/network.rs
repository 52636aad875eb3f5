//! Bad lines between the parts: proxies that lose one direction, slow down, flap and slice (F54,
//! F57–F61). Every connection of both daemons goes through one.

use std::time::Duration;

use anyhow::Result;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::proxy::{Direction, Proxy, Rules, Side};

use super::{both_run, count, rows};
use crate::restart::KEYLESS;
use crate::scenario::{WITHIN, run};

/// How long a daemon may take to notice that a line is dead, and to come back.
const NOTICED: Duration = Duration::from_secs(90);

/// A flow whose daemons reach source, broker and target through proxies, in this order.
async fn through_proxies() -> Result<(Ground, Flow, [Proxy; 3])> {
    let options = GroundOptions::version(18).source("wal_sender_timeout", "5s");
    let ground = Ground::start(&options)?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    flow.setup().await?;
    let proxies = [
        Proxy::to_port(ground.source.port()).await?,
        Proxy::to_port(ground.nats.port()).await?,
        Proxy::to_port(ground.target.port()).await?,
    ];
    let [source, broker, target] = &proxies;
    flow.places.source_url = source.url(&flow.places.source_url);
    flow.places.target_url = target.url(&flow.places.target_url);
    flow.places.nats_url = broker.url(&flow.places.nats_url);
    flow.write_config()?;
    flow.start_relay()?;
    flow.start_applier()?;
    rows(&flow, 0..1).await?;
    flow.caught_up(WITHIN).await?;
    Ok((ground, flow, proxies))
}

fn set_both(proxy: &Proxy, rules: &Rules) {
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.set(direction, rules.clone());
    }
}

#[tokio::test]
async fn f54_connections_that_are_reset_come_back() -> Result<()> {
    let (_ground, mut flow, proxies) = through_proxies().await?;
    for (round, proxy) in proxies.iter().enumerate() {
        let first = 10 + 10 * u32::try_from(round)?;
        rows(&flow, first..first + 5).await?;
        proxy.cut(Side::Both);
        rows(&flow, first + 5..first + 10).await?;
        flow.converges(WITHIN).await?;
    }
    both_run(&mut flow)
}

/// What one side says arrives, what the other says does not, and nobody is told.
#[tokio::test]
async fn f57_a_line_that_loses_one_direction_is_noticed() -> Result<()> {
    let (_ground, mut flow, proxies) = through_proxies().await?;
    let directions = [
        Direction::ToServer,
        Direction::ToClient,
        Direction::ToServer,
    ];
    for (round, (proxy, direction)) in proxies.iter().zip(directions).enumerate() {
        let first = 10 + 5 * u32::try_from(round)?;
        proxy.hold(direction);
        rows(&flow, first..first + 5).await?;
        // What was held back is lost, and our end of the connection stays.
        tokio::time::sleep(Duration::from_secs(3)).await;
        proxy.cut(Side::Server);
        proxy.heal();
        flow.caught_up(NOTICED).await?;
    }
    flow.converges(WITHIN).await?;
    both_run(&mut flow)
}

/// A tenth of a second each way on all three lines: pipelining carries a backlog all the same.
#[tokio::test]
async fn f58_a_long_way_costs_no_round_trip_per_transaction() -> Result<()> {
    let (_ground, mut flow, proxies) = through_proxies().await?;
    let far = Rules {
        delay: Duration::from_millis(100),
        ..Rules::default()
    };
    for proxy in &proxies {
        set_both(proxy, &far);
    }
    // A round trip for each of 1,000 transactions would be 200 seconds.
    rows(&flow, 10..1010).await?;
    flow.caught_up(Duration::from_secs(30)).await?;
    for proxy in &proxies {
        proxy.heal();
    }
    flow.converges(WITHIN).await?;
    both_run(&mut flow)
}

/// A megabit a second: large chunks take seconds each, and nobody gives up on them.
#[tokio::test]
async fn f59_a_narrow_line_runs_into_no_time_limit() -> Result<()> {
    let (_ground, mut flow, proxies) = through_proxies().await?;
    let narrow = Rules {
        bytes_per_second: Some(125_000),
        slice: Some(4096),
        ..Rules::default()
    };
    for proxy in &proxies {
        set_both(proxy, &narrow);
    }
    let big = "INSERT INTO log SELECT g, repeat(md5(g::text), 300) FROM generate_series(10, 80) g";
    run(&flow.source_admin, &[big]).await?;
    flow.caught_up(Duration::from_secs(120)).await?;
    for proxy in &proxies {
        proxy.heal();
    }
    flow.converges(WITHIN).await?;
    both_run(&mut flow)
}

/// Two seconds there, two seconds away.
#[tokio::test]
async fn f60_flapping_lines_starve_nobody() -> Result<()> {
    let (_ground, mut flow, proxies) = through_proxies().await?;
    for round in 0..3 {
        rows(&flow, 10 + round * 20..20 + round * 20).await?;
        for proxy in &proxies {
            proxy.listen(false);
            proxy.cut(Side::Both);
        }
        rows(&flow, 20 + round * 20..30 + round * 20).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        for proxy in &proxies {
            proxy.listen(true);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    flow.converges(WITHIN).await?;
    // No storm in the logs: some lines for each of the nine losses, not thousands.
    for daemon in [&flow.relay, &flow.applier].into_iter().flatten() {
        let lines = daemon.log().lines().count();
        anyhow::ensure!(lines < 600, "{lines} lines: {}", daemon.log());
    }
    both_run(&mut flow)
}

/// Every message in pieces of one byte.
#[tokio::test]
async fn f61_messages_cut_into_single_bytes_are_read_all_the_same() -> Result<()> {
    let (_ground, mut flow, proxies) = through_proxies().await?;
    let sliced = Rules {
        slice: Some(1),
        ..Rules::default()
    };
    for proxy in &proxies {
        set_both(proxy, &sliced);
    }
    rows(&flow, 10..60).await?;
    flow.converges(Duration::from_secs(90)).await?;
    anyhow::ensure!(count(&flow).await? == 51);
    both_run(&mut flow)
}
