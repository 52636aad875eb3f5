//! Three brokers with three copies on one machine (F48, F49, B53): a leader that is killed, a
//! minority that is cut off, a majority that is lost and comes back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use trellara_local::{NatsServer, shared};
use trellara_testkit::broker;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{both_run, count, rows};
use crate::restart::KEYLESS;
use crate::scenario::{WITHIN, value};

const STREAM: &str = "TRELLARA_cases";

/// The flow knows all three, and keeps three copies.
async fn flow(ground: &Ground, servers: &[NatsServer]) -> Result<Flow> {
    let mut flow = ground
        .flow("cases", KEYLESS, KEYLESS, "nats.replicas: 3")
        .await?;
    let first = format!("127.0.0.1:{}", ground.nats.port());
    let one = flow.places.nats_url.clone();
    let urls: Vec<String> = servers
        .iter()
        .map(|server| one.replace(&first, &format!("127.0.0.1:{}", server.port())))
        .collect();
    flow.places.nats_url = urls.join(",");
    flow.places.nats_monitor_url = None;
    flow.write_config()?;
    Ok(flow)
}

/// Waits until the cluster has a leader of its own, without which it makes no stream.
async fn elected(servers: &[NatsServer]) -> Result<()> {
    let deadline = std::time::Instant::now() + WITHIN;
    while broker::stream_settings(&servers[0].url(), STREAM)
        .await
        .is_err()
    {
        ensure!(
            std::time::Instant::now() < deadline,
            "no leader of the cluster"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// The server that leads the stream now, asked of one that answers.
async fn leader(servers: &[NatsServer], asked: usize) -> Result<usize> {
    let deadline = std::time::Instant::now() + WITHIN;
    loop {
        if let Ok(Some(name)) = broker::leader(&servers[asked].url(), STREAM).await {
            let found = servers
                .iter()
                .position(|server| name.ends_with(&format!("_{}", server.port())));
            return found.with_context(|| format!("{name} is none of them"));
        }
        ensure!(std::time::Instant::now() < deadline, "no leader");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn f48_f49_b53_three_brokers_lose_a_leader_a_minority_and_the_majority() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(18))?;
    let mut servers = NatsServer::cluster(&shared::nats(), 3)?;
    elected(&servers).await?;
    let mut flow = flow(&ground, &servers).await?;
    flow.start().await?;
    rows(&flow, 0..20).await?;
    flow.caught_up(WITHIN).await?;

    // The leader is killed; another one takes over, and it comes back as a follower.
    let lead = leader(&servers, 0).await?;
    servers[lead].kill()?;
    rows(&flow, 20..40).await?;
    flow.caught_up(Duration::from_secs(60)).await?;
    servers[lead].start_again()?;

    // One of three stands still and is passed over.
    let asked = (lead + 1) % 3;
    let lead = leader(&servers, asked).await?;
    let minority = (lead + 1) % 3;
    servers[minority].pause()?;
    rows(&flow, 40..60).await?;
    flow.caught_up(Duration::from_secs(60)).await?;
    ensure!(count(&flow).await? == 60);

    // Two of three: nothing is acknowledged, so nothing is confirmed.
    let other = (lead + 2) % 3;
    servers[other].pause()?;
    let confirmed =
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'trellara_cases'";
    tokio::time::sleep(Duration::from_secs(2)).await;
    let written = value(&flow.source_admin, "SELECT pg_current_wal_lsn()").await?;
    rows(&flow, 60..80).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let beyond = format!("SELECT ({confirmed}) > '{written}'");
    ensure!(
        value(&flow.source_admin, &beyond).await? == "f",
        "confirmed without a majority"
    );
    ensure!(count(&flow).await? == 60);
    both_run(&mut flow)?;
    for stopped in [minority, other] {
        servers[stopped].resume()?;
    }
    flow.converges(Duration::from_secs(90)).await?;
    ensure!(count(&flow).await? == 80);
    both_run(&mut flow)
}
