//! Whatever dies at whatever step: the flow goes on, and nothing is called equal or different that
//! was not compared.

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use tokio_postgres::Client;
use trellara_local::{PostgresServer, StopMode};
use trellara_testkit::compare::connect;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;
use trellara_testkit::ground::{Ground, GroundOptions};

use super::{SCHEMA, equal};
use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run, value};

const SLOTS: &str =
    "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'trellara\\_verify%'";
const ARMED: &str = "SELECT count(*) FROM trellara.fence WHERE armed_at IS NOT NULL";
/// A lease that is over binds nobody.
const FENCES: &str = "SELECT count(*) FROM trellara.fence WHERE lease_until > clock_timestamp()";

/// On the way to a comparison.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// It has sessions, and has asked for nothing.
    Connecting,
    /// It has asked the applier, which does not answer.
    Asking,
    /// The applier answered; the slot waits for an open transaction.
    MakingSlot,
    /// The position is known; the applier does not come to it.
    Reaching,
    /// The readers read.
    Comparing,
}

/// A judge at a step, and what keeps it there.
struct Held {
    judge: Daemon,
    by: Option<Client>,
}

async fn held_at(step: Step, flow: &Flow) -> Result<Held> {
    let (source, target) = (&flow.source_admin, &flow.target_admin);
    let sessions = |of: &str| {
        format!(
            "SELECT count(*) > 0 FROM pg_stat_activity \
              WHERE application_name LIKE 'trellara-verify%' AND {of}"
        )
    };
    let start = || {
        let log = flow.folder().join("judge.log");
        Daemon::start(&flow.config(), &["verify", "--output", "json"], &log)
    };
    let (judge, by) = match step {
        Step::Connecting => {
            let watching = connect(target).await?;
            let mut judge = start()?;
            let seen = sessions("true");
            while !watching.query_one(&seen, &[]).await?.get::<_, bool>(0) {
                ensure!(judge.is_running(), "it was never seen: {}", judge.log());
            }
            (judge, None)
        }
        Step::Asking => {
            pause(flow, Signal::SIGSTOP)?;
            let judge = start()?;
            until(target, "SELECT count(*) FROM trellara.fence", "1", WITHIN).await?;
            ensure!(value(target, ARMED).await? == "0", "who answered?");
            (judge, None)
        }
        Step::MakingSlot | Step::Reaching => {
            let open = connect(source).await?;
            open.batch_execute("BEGIN; INSERT INTO public.log VALUES (0, 'open')")
                .await?;
            let judge = start()?;
            until(source, SLOTS, "1", WITHIN).await?;
            until(target, ARMED, "1", WITHIN).await?;
            if matches!(step, Step::Reaching) {
                pause(flow, Signal::SIGSTOP)?;
                open.batch_execute("ROLLBACK").await?;
                let known = "SELECT count(*) FROM trellara.fence WHERE exact";
                until(target, known, "1", WITHIN).await?;
            }
            (judge, Some(open))
        }
        Step::Comparing => {
            let lock = connect(target).await?;
            lock.batch_execute("BEGIN; LOCK TABLE public.kept").await?;
            let mut judge = start()?;
            let waiting = sessions("wait_event_type = 'Lock'");
            while value(target, &waiting).await? != "t" {
                ensure!(judge.is_running(), "it never read: {}", judge.log());
            }
            (judge, Some(lock))
        }
    };
    Ok(Held { judge, by })
}

fn pause(flow: &Flow, signal: Signal) -> Result<()> {
    flow.applier.as_ref().context("applier")?.signal(signal)
}

/// Nothing keeps anybody any more.
async fn let_go(held: Held, flow: &Flow) -> Result<Daemon> {
    pause(flow, Signal::SIGCONT)?;
    if let Some(client) = held.by {
        // Its server may have ended it.
        let _ = client.batch_execute("ROLLBACK").await;
    }
    Ok(held.judge)
}

/// Rows enough for several reads; of `kept` nobody writes any more.
async fn filled(version: u32) -> Result<(Ground, Flow)> {
    let (ground, flow) = ground(GroundOptions::version(version), SCHEMA, "").await?;
    let rows = "INSERT INTO kept SELECT g, 'v' || g, g FROM generate_series(1, 3000) AS g";
    run(&flow.source_admin, &[rows]).await?;
    flow.caught_up(WITHIN).await?;
    Ok((ground, flow))
}

#[tokio::test]
async fn a_judge_killed_at_any_step_lets_the_flow_go_on_on_15() -> Result<()> {
    killed_at_any_step(15).await
}

#[tokio::test]
async fn a_judge_killed_at_any_step_lets_the_flow_go_on_on_18() -> Result<()> {
    killed_at_any_step(18).await
}

async fn killed_at_any_step(version: u32) -> Result<()> {
    let (_ground, flow) = filled(version).await?;
    for step in [
        Step::Connecting,
        Step::Asking,
        Step::MakingSlot,
        Step::Reaching,
        Step::Comparing,
    ] {
        let mut held = held_at(step, &flow).await?;
        let target = &flow.target_admin;
        let killed = value(target, "SELECT clock_timestamp()").await?;
        held.judge.kill()?;
        let_go(held, &flow).await?;
        let probe = format!("INSERT INTO log VALUES (1, 'behind {step:?}')");
        run(&flow.source_admin, &[&probe]).await?;
        flow.caught_up(WITHIN).await?;
        // By the target's clock; its lease was renewed before it was killed.
        let waited = format!(
            "SELECT extract(epoch FROM min(applied_at) - '{killed}') FROM trellara.applied \
              WHERE length(hashes) > 0 AND applied_at > '{killed}'"
        );
        let waited: f64 = value(target, &waited).await?.parse()?;
        eprintln!("killed at {step:?} on {version}: the flow went on after {waited:.1} s");
        ensure!(waited < 5.5, "{step:?}: the flow went on after {waited} s");
        until(target, FENCES, "0", WITHIN).await?;
        until(&flow.source_admin, SLOTS, "0", WITHIN).await?;
        equal(&flow).await?;
    }
    flow.converges(WITHIN).await
}

/// Between having reached the position and going on there is only the target's snapshot.
#[tokio::test]
async fn a_judge_killed_while_the_applier_stands_lets_the_flow_go_on() -> Result<()> {
    const TRIES: u32 = 40;
    let (_ground, flow) = filled(18).await?;
    let watching = connect(&flow.target_admin).await?;
    let stands = "SELECT FROM trellara.fence WHERE reached_at IS NOT NULL";
    for _ in 0..TRIES {
        let log = flow.folder().join("judge.log");
        let mut judge = Daemon::start(&flow.config(), &["verify"], &log)?;
        while judge.is_running() && watching.query_opt(stands, &[]).await?.is_none() {}
        judge.kill()?;
        if watching.query_opt(stands, &[]).await?.is_none() {
            // It had gone on already.
            continue;
        }
        run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'held')"]).await?;
        flow.caught_up(WITHIN).await?;
        until(&flow.target_admin, FENCES, "0", WITHIN).await?;
        return equal(&flow).await.map(drop);
    }
    bail!("no judge was killed while the applier stood at its position")
}

#[tokio::test]
async fn an_applier_killed_at_the_fence_makes_nothing_different() -> Result<()> {
    let (_ground, mut flow) = filled(18).await?;
    for step in [Step::Asking, Step::MakingSlot, Step::Reaching] {
        let held = held_at(step, &flow).await?;
        flow.applier.as_mut().context("applier")?.kill()?;
        flow.start_applier()?;
        no_false_verdict(held, &flow, step).await?;
    }
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn a_relay_killed_on_the_way_to_the_position_makes_nothing_different() -> Result<()> {
    let (_ground, mut flow) = filled(15).await?;
    for step in [Step::Asking, Step::MakingSlot, Step::Reaching] {
        let held = held_at(step, &flow).await?;
        flow.relay.as_mut().context("relay")?.kill()?;
        flow.start_relay()?;
        no_false_verdict(held, &flow, step).await?;
    }
    flow.converges(WITHIN).await
}

/// Let go, it says "equal" or nothing.
async fn no_false_verdict(held: Held, flow: &Flow, step: Step) -> Result<()> {
    let mut judge = let_go(held, flow).await?;
    let code = judge.wait(WITHIN * 2)?.code();
    eprintln!("{step:?}: exit {code:?}");
    ensure!(
        matches!(code, Some(0 | 4)),
        "{step:?}: verify ended with {code:?}: {}",
        judge.log()
    );
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'more')"]).await?;
    flow.caught_up(WITHIN).await?;
    equal(flow).await.map(drop)
}

#[tokio::test]
async fn servers_that_restart_under_a_judge_give_no_verdict_on_15() -> Result<()> {
    restarted(15).await
}

#[tokio::test]
async fn servers_that_restart_under_a_judge_give_no_verdict_on_18() -> Result<()> {
    restarted(18).await
}

async fn restarted(version: u32) -> Result<()> {
    type Pick = fn(&mut Ground) -> &mut PostgresServer;
    let source: Pick = |ground| &mut ground.source;
    let target: Pick = |ground| &mut ground.target;
    let (mut ground, flow) = filled(version).await?;
    for (side, pick) in [("source", source), ("target", target)] {
        for step in [Step::MakingSlot, Step::Comparing] {
            for mode in [StopMode::Fast, StopMode::Immediate] {
                let mut held = held_at(step, &flow).await?;
                let server = pick(&mut ground);
                server.stop(mode)?;
                let ended = held.judge.wait(WITHIN);
                server.start_again()?;
                let (code, log) = (ended?.code(), held.judge.log());
                ensure!(
                    code == Some(4) && log.contains(&format!("the {side}")),
                    "{side} at {step:?}: verify ended with {code:?}: {log}"
                );
                ensure!(!log.contains("\"verdict\""), "{log}");
                let_go(held, &flow).await?;
                flow.caught_up(WITHIN).await?;
                equal(&flow).await?;
            }
        }
    }
    flow.converges(WITHIN).await
}
