//! The demo from begin to end.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio_util::task::TaskTracker;
use trellara_envelope::{FlowName, StreamSequence};

use super::chaos::{Kills, kill_in_turn};
use super::copied::Copied;
use super::daemons::{Daemon, run_to_end, verified};
use super::duplicates;
use super::judge::{self, Judgement};
use super::place::{OLD_ROWS, Place};
use super::workload::Workload;
use crate::exit::{Exit, Failure};
use crate::http;
use crate::output::Output;
use crate::report::ProcessReport;

const FLOW: &str = "demo";
const FLOW_OF_RUN: &str = "demo_run";
/// Catching up with everything after the last kill, on a slow machine.
const CATCH_UP: &str = "90s";

/// What to do.
pub(crate) struct Plan {
    /// Length of the workload with kills.
    pub(crate) length: Duration,
    pub(crate) seed: u64,
    pub(crate) output: Output,
}

/// What came of it.
#[derive(Serialize)]
pub(crate) struct Verdict {
    pub(crate) id: &'static str,
    /// Rows that were there before the flow, and that its copy brought.
    pub(crate) rows_copied: u64,
    pub(crate) transactions: u64,
    pub(crate) rows: u64,
    pub(crate) kills_relay: u32,
    pub(crate) kills_applier: u32,
    pub(crate) kills_broker: u32,
    /// Duplicates made by moving the consumer back.
    pub(crate) delivered_again: u64,
    /// Duplicates made by publishing a stored range again.
    pub(crate) published_again: u64,
    pub(crate) applied_twice: u64,
    pub(crate) lost: u64,
    pub(crate) rows_missing: u64,
    pub(crate) rows_surplus: u64,
    pub(crate) verified: bool,
    pub(crate) equal: bool,
}

/// Transactions that the applier got although it had them.
#[derive(Debug, Default, Clone, Copy)]
struct Duplicates {
    delivered_again: u64,
    published_again: u64,
}

/// Plays both acts; the verdict of each. What blocks a thread is registered in `blocking`, so that
/// whoever gives up on the story can wait until nothing of it is left.
pub(crate) async fn play(plan: &Plan, blocking: &TaskTracker) -> Result<Vec<Verdict>, Failure> {
    let output = &plan.output;
    output.note(format_args!(
        "starting two PostgreSQL servers and a nats-server; the source gets {OLD_ROWS} rows"
    ));
    let place = Place::prepare(blocking).await?;
    output.note(
        "act 1: the rows are copied while the shop is written to; relay, applier and broker apart, \
         each killed with kill -9 in turn",
    );
    let first = three_processes(plan, &place).await?;
    output.note("act 2: `trellara run` with its own broker, killed whole and started again");
    let second = one_process(plan, &place).await?;
    Ok(vec![first, second])
}

async fn three_processes(plan: &Plan, place: &Place) -> Result<Verdict, Failure> {
    let (relay_at, applier_at) = (free_address()?, free_address()?);
    let folder = place.folder();
    let broker = Some(place.broker_url.as_str());
    let config = place.write_config(FLOW, broker, &relay_at, "copy")?;
    let workload = Workload::start(&place.source_url, plan.seed, 0);
    run_to_end(&config, &["setup", "--yes"]).await?;
    let mut relay = Daemon::start("relay", &config, folder)?;
    // The same flow with another endpoint: two processes cannot share a port.
    let applier_config = folder.join("applier.yml");
    copy_config(&config, &applier_config, &relay_at, &applier_at)?;
    let mut applier = Daemon::start("applier", &applier_config, folder)?;

    let copied = Copied::of(&place.target_url, FLOW).await?;
    let bar = progress();
    let kills = kill_in_turn(
        place,
        &mut relay,
        &mut applier,
        &workload,
        &copied,
        plan.length,
        &bar,
    )
    .await;
    bar.finish_and_clear();
    let mut kills = kills?;
    workload.stop().await?;
    catch_up(&config, [&mut relay, &mut applier]).await?;

    let delivered = make_duplicates(plan, place, &mut relay, &applier_at).await?;
    kills.relay += 1;
    relay.start_again()?;
    let workload = Workload::start(&place.source_url, plan.seed, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    workload.stop().await?;
    catch_up(&config, [&mut relay, &mut applier]).await?;
    let judgement = judge::compare(&place.source_url, &place.target_url).await?;
    let verified = verified(&config).await?;
    let rows_copied = copied.rows().await?;
    relay.stop().await?;
    applier.stop().await?;
    run_to_end(&config, &["remove", "--yes"]).await?;
    Ok(Verdict {
        rows_copied,
        ..verdict("three processes", (judgement, verified), kills, delivered)
    })
}

/// Duplicates in both ways; the applier's count of them. The relay is dead afterwards.
async fn make_duplicates(
    plan: &Plan,
    place: &Place,
    relay: &mut Daemon,
    applier_at: &str,
) -> Result<Duplicates, Failure> {
    let flow = FlowName::from_str(FLOW).map_err(|error| Failure::from_error(Exit::Bug, &error))?;
    // Those that the kills made are there already.
    let before = duplicates_so_far(applier_at).await.unwrap_or_default();
    let stands_at = report(applier_at)
        .await
        .and_then(|process| Some(StreamSequence(process.daemons.first()?.stream_sequence)))
        .ok_or_else(|| Failure::new(Exit::Unexpected, "the applier does not answer", ""))?;
    let again = duplicates::deliver_again(&place.broker_url, &flow, stands_at).await?;
    let seen = await_duplicates(applier_at, before + again).await?;
    let delivered_again = seen - before;
    plan.output.note(format_args!(
        "the consumer was moved back: {delivered_again} transactions came again"
    ));
    relay.kill().await?;
    let repeated = duplicates::publish_again(&place.broker_url, &flow).await?;
    let expected = seen + repeated.transactions as u64;
    let published_again = await_duplicates(applier_at, expected).await? - seen;
    plan.output.note(format_args!(
        "{} frames were published again: {published_again} transactions came again",
        repeated.frames
    ));
    Ok(Duplicates {
        delivered_again,
        published_again,
    })
}

async fn one_process(plan: &Plan, place: &Place) -> Result<Verdict, Failure> {
    let listen = free_address()?;
    // The first act has brought the rows already.
    let config = place.write_config(FLOW_OF_RUN, None, &listen, "none")?;
    let mut run = Daemon::start("run", &config, place.folder())?;
    ready(&listen, &mut run).await?;
    let mut kills = Kills::default();
    let workload = Workload::start(&place.source_url, plan.seed, 2);
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        run.kill_and_start_again().await?;
        // All three are in that one process and its child.
        kills.relay += 1;
        kills.applier += 1;
        kills.broker += 1;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    workload.stop().await?;
    ready(&listen, &mut run).await?;
    let waited = run_to_end(&config, &["wait", "--timeout", CATCH_UP]).await;
    waited.map_err(|failure| with_log(failure, &run))?;
    let judgement = judge::compare(&place.source_url, &place.target_url).await?;
    let verified = verified(&config).await?;
    run.stop().await?;
    Ok(verdict(
        "one process",
        (judgement, verified),
        kills,
        Duplicates::default(),
    ))
}

fn verdict(
    id: &'static str,
    (judgement, verified): (Judgement, bool),
    kills: Kills,
    duplicates: Duplicates,
) -> Verdict {
    Verdict {
        id,
        rows_copied: 0,
        transactions: judgement.transactions,
        rows: judgement.rows,
        kills_relay: kills.relay,
        kills_applier: kills.applier,
        kills_broker: kills.broker,
        delivered_again: duplicates.delivered_again,
        published_again: duplicates.published_again,
        applied_twice: judgement.twice,
        lost: judgement.lost,
        rows_missing: judgement.missing,
        rows_surplus: judgement.surplus,
        verified,
        equal: judgement.equal(),
    }
}

/// Waits until the target has everything; a daemon that fails on the way shows its log.
async fn catch_up(config: &Path, daemons: [&mut Daemon; 2]) -> Result<(), Failure> {
    let waited = run_to_end(config, &["wait", "--timeout", CATCH_UP]).await;
    for daemon in daemons {
        daemon.check_alive()?;
        if let Err(failure) = &waited {
            let causes = failure.causes.join(": ");
            return Err(daemon.failure(&format!("was waited for: {causes}")));
        }
    }
    waited
}

fn with_log(failure: Failure, daemon: &Daemon) -> Failure {
    daemon.failure(&format!("was waited for: {}", failure.causes.join(": ")))
}

/// Polls the applier's own count until all duplicates have come by.
async fn await_duplicates(applier_at: &str, expected: u64) -> Result<u64, Failure> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let seen = duplicates_so_far(applier_at).await;
        if let Some(seen) = seen.filter(|seen| *seen >= expected) {
            return Ok(seen);
        }
        if tokio::time::Instant::now() >= deadline {
            let seen = seen.unwrap_or_default();
            let reason = format!("only {seen} of {expected} duplicates came by within 30 s");
            return Err(Failure::new(Exit::Unexpected, reason, "please report it"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn duplicates_so_far(applier_at: &str) -> Option<u64> {
    let process = report(applier_at).await?;
    let counters = process
        .daemons
        .iter()
        .filter_map(|daemon| daemon.counters.get("duplicate_transactions"));
    Some(counters.sum())
}

/// Waits until every daemon of the process is ready.
async fn ready(listen: &str, run: &mut Daemon) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        run.check_alive()?;
        let process = report(listen).await;
        if process.is_some_and(|process| process.daemons.iter().all(|daemon| daemon.ready)) {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(run.failure("is not ready after 60 s"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn report(address: &str) -> Option<ProcessReport> {
    let body = http::get(address, "/status").await.ok()?;
    serde_json::from_str(&body).ok()
}

fn copy_config(from: &Path, to: &Path, old: &str, new: &str) -> Result<(), Failure> {
    let unexpected = |error: std::io::Error| Failure::from_error(Exit::Unexpected, &error);
    // Copying keeps the mode, which hides the connection strings from others.
    std::fs::copy(from, to).map_err(unexpected)?;
    let text = std::fs::read_to_string(from).map_err(unexpected)?;
    std::fs::write(to, text.replace(old, new)).map_err(unexpected)
}

/// An address on loopback that is free now.
fn free_address() -> Result<String, Failure> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    address
        .map(|address| address.to_string())
        .map_err(|error| Failure::from_error(Exit::Unexpected, &error))
}

fn progress() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{bar:16} {elapsed}  {wide_msg}") {
        bar.set_style(style);
    }
    bar
}
