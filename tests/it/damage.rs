//! Damage while a flow lives: to the stream, to frames, to slot, publication and checkpoint, and
//! by second daemons. Each is named, nothing of it is applied, and nothing is made anew by itself.

mod doubles;
mod frames;
mod source;
mod space;
mod stream;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;

use crate::bad_input::bare;
use crate::scenario::{WITHIN, prepared, run, value};

/// What the flows carry: each row's text tells whether it came once.
const LOG: &[&str] = &["CREATE TABLE log (id int PRIMARY KEY, v text)"];

/// How long a halt may take: the publication is compared every 30 s.
const HALT: Duration = Duration::from_secs(45);

/// A flow that has carried row 1; its daemons leave with the code of a halt.
async fn flowing(version: u32, name: &str, extra: &str) -> Result<Flow> {
    let extra = format!("halt: exit\n{extra}");
    let mut flow = prepared(version, name, LOG, LOG, &extra).await?;
    flow.start().await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'one')"]).await?;
    flow.caught_up(WITHIN).await?;
    Ok(flow)
}

/// Ends both daemons in order.
fn stop(flow: &mut Flow) -> Result<()> {
    for daemon in [flow.relay.take(), flow.applier.take()] {
        let mut daemon = daemon.context("it was started")?;
        let status = daemon.terminate(WITHIN)?;
        ensure!(status.success(), "{status}: {}", daemon.log());
    }
    Ok(())
}

/// Waits for the end of a halted daemon: its code, and its words with a hint.
async fn halted(daemon: &mut Daemon, code: &str, exit: i32) -> Result<()> {
    let deadline = Instant::now() + HALT;
    while daemon.is_running() {
        ensure!(Instant::now() < deadline, "still runs: {}", daemon.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = daemon.wait(WITHIN)?;
    let log = daemon.log();
    ensure!(
        status.code() == Some(exit) && log.contains(&format!("error: {code}: ")),
        "expected {code} and {exit}, it ended with {status}: {log}"
    );
    ensure!(log.contains("hint: "), "no hint: {log}");
    let page = format!("hint: docs/operating/halts/{code}.md");
    ensure!(log.contains(&page), "no page: {log}");
    Ok(())
}

/// The ids in the target.
async fn applied(flow: &Flow) -> Result<String> {
    let sql = "SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM log";
    value(&flow.target_admin, sql).await
}

/// The broker's URL for what happens behind the flow's back, and the flow's stream.
fn broker_of(flow: &Flow) -> (String, String) {
    (
        bare(&flow.places.nats_url),
        format!("TRELLARA_{}", flow.name),
    )
}

/// The flow's slot.
fn slot_of(flow: &Flow) -> String {
    format!("trellara_{}", flow.name)
}

/// Waits until the stream holds a frame that begins behind sequence `after` with this subject.
async fn stored(flow: &Flow, subject: &str, after: u64) -> Result<u64> {
    let (nats, stream) = broker_of(flow);
    let deadline = Instant::now() + WITHIN;
    loop {
        let messages = trellara_testkit::broker::messages(&nats, &stream).await?;
        let found = messages
            .iter()
            .rev()
            .find(|message| message.sequence > after && message.subject.contains(subject));
        if let Some(found) = found {
            return Ok(found.sequence);
        }
        ensure!(
            Instant::now() < deadline,
            "no message on {subject} behind {after}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sequence of the last message.
async fn last_sequence(flow: &Flow) -> Result<u64> {
    let (nats, stream) = broker_of(flow);
    let messages = trellara_testkit::broker::messages(&nats, &stream).await?;
    Ok(messages.last().context("a message")?.sequence)
}
