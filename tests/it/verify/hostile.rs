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

use super::{SCHEMA, SLOTS, equal, verify};
use crate::restart::{ground, until};
use crate::scenario::{WITHIN, run, value};

const ARMED: &str = "SELECT count(*) FROM trellara.fence WHERE armed_at IS NOT NULL";
/// A lease that is over binds nobody.
const FENCES: &str = "SELECT count(*) FROM trellara.fence WHERE lease_until > clock_timestamp()";

/// How long a judge that was killed may hold the flow up: the five seconds of its lease, and a
/// second for a machine that does other things beside it. Measured on two busy cores, after kills
/// at a fence: 4.93 to 5.00 s.
const GOES_ON_SECONDS: f64 = 6.0;
const STEPS: [Step; 5] = [
    Step::Connecting,
    Step::Asking,
    Step::MakingSlot,
    Step::Reaching,
    Step::Comparing,
];

/// On the way to a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

impl Held {
    /// Keeps the judge itself from going on, so that nobody else has to be kept.
    async fn stand(&mut self) -> Result<()> {
        self.judge.signal(Signal::SIGSTOP)?;
        match self.by.take() {
            Some(client) => Ok(client.batch_execute("ROLLBACK").await?),
            None => Ok(()),
        }
    }
}

async fn held_at(step: Step, flow: &Flow) -> Result<Held> {
    held_with(&[], step, flow).await
}

/// At a step of a run with these options.
async fn held_with(options: &[&str], step: Step, flow: &Flow) -> Result<Held> {
    let (source, target) = (&flow.source_admin, &flow.target_admin);
    let sessions = |of: &str| {
        format!(
            "SELECT count(*) > 0 FROM pg_stat_activity \
              WHERE application_name LIKE 'trellara-verify%' AND {of}"
        )
    };
    let start = || {
        let log = flow.folder().join("judge.log");
        let words = ["verify", "--output", "json"].iter().chain(options);
        Daemon::start(&flow.config(), &words.copied().collect::<Vec<_>>(), &log)
    };
    let (judge, by) = match step {
        Step::Connecting => {
            let watching = connect(target).await?;
            let mut judge = start()?;
            let seen = sessions("true");
            while !watching.query_one(&seen, &[]).await?.get::<_, bool>(0) {
                ensure!(judge.is_running(), "it was never seen: {}", judge.log());
            }
            judge.signal(Signal::SIGSTOP)?;
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
            // The slot keeps no WAL for as long as it takes to compare (C50).
            until(source, SLOTS, "0", WITHIN).await?;
            ensure!(
                value(target, &waiting).await? == "t",
                "only its end took the slot away: {}",
                judge.log()
            );
            (judge, Some(lock))
        }
    };
    Ok(Held { judge, by })
}

fn pause(flow: &Flow, signal: Signal) -> Result<()> {
    flow.applier.as_ref().context("applier")?.signal(signal)
}

/// Nothing keeps anybody any more.
async fn let_go(mut held: Held, flow: &Flow) -> Result<Daemon> {
    pause(flow, Signal::SIGCONT)?;
    if held.judge.is_running() {
        held.judge.signal(Signal::SIGCONT)?;
    }
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
    for step in STEPS {
        let mut held = held_at(step, &flow).await?;
        let target = &flow.target_admin;
        let killed = value(target, "SELECT clock_timestamp()").await?;
        held.judge.kill()?;
        let_go(held, &flow).await?;
        let waited = goes_on(&flow, &killed).await?;
        eprintln!("killed at {step:?} on {version}: the flow went on after {waited:.2} s");
        until(target, FENCES, "0", WITHIN).await?;
        until(&flow.source_admin, SLOTS, "0", WITHIN).await?;
        equal(&flow).await?;
    }
    flow.converges(WITHIN).await
}

/// The row that a judge asks by may be there when he is not any more: whoever is asked hears of it
/// all the same, and takes it away when its lease is over.
#[tokio::test]
async fn a_judge_killed_while_his_request_is_written_leaves_none_behind() -> Result<()> {
    let (_ground, flow) = filled(18).await?;
    let target = &flow.target_admin;
    let other = connect(target).await?;
    // Whether its row is there decides what becomes of the judge's.
    other
        .batch_execute(
            "BEGIN; INSERT INTO trellara.fence (flow, lane, run, cap, lease_until) \
             SELECT flow, lane, 'other', '0/0', clock_timestamp() FROM trellara.lane",
        )
        .await?;
    let log = flow.folder().join("judge.log");
    let mut judge = Daemon::start(&flow.config(), &["verify"], &log)?;
    let asking = "SELECT count(*) FROM pg_stat_activity \
         WHERE wait_event_type = 'Lock' AND query LIKE '%INSERT INTO trellara.fence%' \
           AND pid <> pg_backend_pid()";
    until(target, asking, "1", WITHIN).await?;
    judge.kill()?;
    other.batch_execute("ROLLBACK").await?;
    // The server writes it down for nobody.
    let rows = "SELECT count(*) FROM trellara.fence";
    until(target, rows, "1", WITHIN).await?;
    until(target, rows, "0", WITHIN).await?;
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (1, 'behind')"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    equal(&flow).await.map(drop)
}

/// How many seconds after that moment of the target's clock the flow went on; fails when that was
/// too long. A lease is renewed for the last time before its judge is killed.
async fn goes_on(flow: &Flow, killed: &str) -> Result<f64> {
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (1, 'behind')"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    let waited = format!(
        "SELECT extract(epoch FROM min(applied_at) - '{killed}') FROM trellara.applied \
          WHERE length(hashes) > 0 AND applied_at > '{killed}'"
    );
    let waited: f64 = value(&flow.target_admin, &waited).await?.parse()?;
    ensure!(
        waited < GOES_ON_SECONDS,
        "the flow went on after {waited} s"
    );
    Ok(waited)
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
        // Over the session that is there: the judge is about to go on.
        let now = "SELECT clock_timestamp()::text";
        let killed: String = watching.query_one(now, &[]).await?.get(0);
        judge.kill()?;
        if watching.query_opt(stands, &[]).await?.is_none() {
            // It had gone on already.
            continue;
        }
        let waited = goes_on(&flow, &killed).await?;
        eprintln!("killed while the applier stood: the flow went on after {waited:.2} s");
        until(&flow.target_admin, FENCES, "0", WITHIN).await?;
        return equal(&flow).await.map(drop);
    }
    bail!("no judge was killed while the applier stood at its position")
}

#[tokio::test]
async fn an_applier_killed_at_the_fence_makes_nothing_different() -> Result<()> {
    let (_ground, mut flow) = filled(18).await?;
    let mut equal = 0;
    for step in STEPS {
        let mut held = held_at(step, &flow).await?;
        if step == Step::Comparing {
            held.stand().await?;
        }
        flow.applier.as_mut().context("applier")?.kill()?;
        flow.start_applier()?;
        equal += no_false_verdict(held, &flow, step).await?;
    }
    ensure!(equal > 1, "no judge whose applier was killed had a verdict");
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn a_relay_killed_on_the_way_to_the_position_makes_nothing_different() -> Result<()> {
    let (_ground, mut flow) = filled(15).await?;
    let mut equal = 0;
    for step in STEPS {
        let mut held = held_at(step, &flow).await?;
        if step == Step::Comparing {
            held.stand().await?;
        }
        flow.relay.as_mut().context("relay")?.kill()?;
        flow.start_relay()?;
        equal += no_false_verdict(held, &flow, step).await?;
    }
    ensure!(equal > 1, "no judge whose relay was killed had a verdict");
    flow.converges(WITHIN).await
}

/// Let go, it says "equal" or nothing; 1 where it said "equal". Frozen views need neither relay nor
/// applier.
async fn no_false_verdict(held: Held, flow: &Flow, step: Step) -> Result<u32> {
    let mut judge = let_go(held, flow).await?;
    let code = judge.wait(WITHIN * 2)?.code();
    eprintln!("{step:?}: exit {code:?}");
    let right = match step {
        Step::Comparing => code == Some(0),
        _ => matches!(code, Some(0 | 4)),
    };
    ensure!(
        right,
        "{step:?}: verify ended with {code:?}: {}",
        judge.log()
    );
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'more')"]).await?;
    flow.caught_up(WITHIN).await?;
    equal(flow).await?;
    Ok(u32::from(code == Some(0)))
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
        for step in STEPS {
            // A fast stop lets sessions say goodbye: where the judge waits for that server, both.
            let modes: &[StopMode] = match step {
                Step::MakingSlot | Step::Comparing => &[StopMode::Fast, StopMode::Immediate],
                _ => &[StopMode::Immediate],
            };
            for mode in modes.iter().copied() {
                // What a relay without its source never brings is not waited for for long.
                let held = held_with(&["--timeout", "5s"], step, &flow).await?;
                let server = pick(&mut ground);
                server.stop(mode)?;
                let mut judge = let_go(held, &flow).await?;
                let ended = judge.wait(WITHIN * 2);
                server.start_again()?;
                let (code, log) = (ended?.code(), judge.log());
                ensure!(
                    code == Some(4) && log.contains(&format!("the {side}")),
                    "{side} at {step:?}: verify ended with {code:?}: {log}"
                );
                ensure!(!log.contains("\"verdict\""), "{log}");
                flow.caught_up(WITHIN).await?;
                // That of a judge that could not take it back lasts as long as its lease.
                until(&flow.target_admin, FENCES, "0", WITHIN).await?;
                equal(&flow).await?;
            }
        }
    }
    flow.converges(WITHIN).await
}

const ROLLING: [&str; 2] = ["--mode", "rolling"];

/// It holds no snapshot and no fence while it reads: nobody waits for it, dead or alive.
#[tokio::test]
async fn a_rolling_judge_killed_while_it_reads_changes_nothing() -> Result<()> {
    let (_ground, flow) = filled(15).await?;
    let mut held = held_with(&ROLLING, Step::Comparing, &flow).await?;
    held.judge.kill()?;
    let_go(held, &flow).await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'more')"]).await?;
    flow.caught_up(WITHIN).await?;
    let (code, document, stderr) = verify(&flow, &ROLLING).await?;
    ensure!(code == 0, "verify ended with {code}: {document:?} {stderr}");
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn a_target_that_restarts_under_a_rolling_judge_gives_no_verdict() -> Result<()> {
    let (mut ground, flow) = filled(18).await?;
    let held = held_with(&ROLLING, Step::Comparing, &flow).await?;
    ground.target.stop(StopMode::Immediate)?;
    let mut judge = let_go(held, &flow).await?;
    let ended = judge.wait(WITHIN);
    ground.target.start_again()?;
    let (code, log) = (ended?.code(), judge.log());
    ensure!(
        code == Some(4) && log.contains("the target") && !log.contains("\"verdict\""),
        "verify ended with {code:?}: {log}"
    );
    flow.caught_up(WITHIN).await?;
    let (code, document, stderr) = verify(&flow, &ROLLING).await?;
    ensure!(code == 0, "verify ended with {code}: {document:?} {stderr}");
    flow.converges(WITHIN).await
}

/// A commit that waits for a synchronous standby keeps its transaction open for every slot; its
/// session is named with what it waits for, and nothing else stands still (C10).
#[tokio::test]
async fn a_commit_that_waits_for_a_standby_is_named() -> Result<()> {
    let (_ground, flow) = filled(18).await?;
    let source = &flow.source_admin;
    let standby = |name: &str| format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    let reload = "SELECT pg_reload_conf()";
    run(source, &[&standby("nobody"), reload]).await?;
    until(source, "SHOW synchronous_standby_names", "nobody", WITHIN).await?;
    let hanging = connect(source).await?;
    let commit = tokio::spawn(async move {
        let insert = "INSERT INTO public.log VALUES (0, 'hangs')";
        hanging.batch_execute(insert).await
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until(source, waits, "1", WITHIN).await?;
    let (code, document, stderr) = verify(&flow, &[]).await?;
    ensure!(
        code == 4 && document.is_none() && stderr.contains("waits for IPC/SyncRep"),
        "verify ended with {code}: {document:?} {stderr}"
    );
    let local = "SET synchronous_commit = local; INSERT INTO log VALUES (1, 'goes on')";
    run(source, &[local]).await?;
    let arrived = "SELECT count(*) FROM log WHERE note IN ('hangs', 'goes on')";
    until(&flow.target_admin, arrived, "2", WITHIN).await?;
    run(source, &[&standby(""), reload]).await?;
    commit.await??;
    flow.converges(WITHIN).await
}
