//! A second relay and a second applier: one works, the other waits and takes over.

use anyhow::{Context, Result, ensure};
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;

use super::{applied, broker_of, flowing};
use crate::bad_input::bare;
use crate::restart::until;
use crate::scenario::{WITHIN, run, value};

fn second_daemon(flow: &Flow, verb: &str) -> Result<Daemon> {
    let log = flow.folder().join("second.log");
    let broker = [("TRELLARA__NATS__URL", bare(&flow.places.nats_url))];
    Daemon::start_with(&flow.config(), &[verb], &log, &broker)
}

#[tokio::test]
async fn f25_a_second_relay_waits_and_never_publishes() -> Result<()> {
    let mut flow = flowing(15, "relays", "").await?;
    let first = flow.relay.take().context("relay")?;
    let mut second = second_daemon(&flow, "relay")?;
    second.logged("is active for PID", WITHIN).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    until(&flow.target_admin, "SELECT count(*) FROM log", "2", WITHIN).await?;
    let markers = |messages: &[trellara_testkit::broker::Stored]| {
        let marks = messages.iter().filter(|m| m.subject.ends_with(".mark"));
        marks.count()
    };
    ensure!(second.is_running() && !second.log().contains("took the slot"));
    let (nats, stream) = broker_of(&flow);
    let before = markers(&trellara_testkit::broker::messages(&nats, &stream).await?);
    ensure!(before >= 2, "genesis and one marker, {before} seen");
    let mut first = first;
    first.kill()?;
    second.logged("took the slot", WITHIN).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'three')"]).await?;
    until(&flow.target_admin, "SELECT count(*) FROM log", "3", WITHIN).await?;
    flow.relay = Some(second);
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn f26_a_second_applier_waits_and_takes_over() -> Result<()> {
    let mut flow = flowing(18, "appliers", "").await?;
    let epoch = "SELECT epoch FROM trellara.lane";
    let before = value(&flow.target_admin, epoch).await?;
    let mut first = flow.applier.take().context("applier")?;
    let mut second = second_daemon(&flow, "applier")?;
    second.logged("waiting as a standby", WITHIN).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'two')"]).await?;
    until(&flow.target_admin, "SELECT count(*) FROM log", "2", WITHIN).await?;
    ensure!(second.is_running() && !second.log().contains("applying"));
    ensure!(value(&flow.target_admin, epoch).await? == before);
    first.kill()?;
    second.logged("applying", WITHIN).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'three')"]).await?;
    until(&flow.target_admin, "SELECT count(*) FROM log", "3", WITHIN).await?;
    ensure!(applied(&flow).await? == "1 2 3");
    ensure!(value(&flow.target_admin, epoch).await? != before);
    flow.applier = Some(second);
    flow.converges(WITHIN).await
}
