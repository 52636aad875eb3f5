//! Positions, acknowledgement and restarts: the parts are killed, cut and frozen, and nothing is
//! lost or doubled. Each test owns its servers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use trellara_testkit::broker;
use trellara_testkit::compare;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;
use trellara_testkit::fresh::pgbench;
use trellara_testkit::ground::{Ground, GroundOptions};
use trellara_testkit::proxy::{Direction, Proxy, Rules, Side};

use crate::scenario::{WITHIN, run, value};

pub(crate) const KEYLESS: &str =
    "CREATE TABLE log (id bigint, note text); ALTER TABLE log REPLICA IDENTITY FULL";

/// Servers of one's own, and a started flow with that schema on both sides.
pub(crate) async fn ground(
    options: GroundOptions,
    schema: &str,
    extra: &str,
) -> Result<(Ground, Flow)> {
    let ground = Ground::start(&options)?;
    let mut flow = ground.flow("cases", schema, schema, extra).await?;
    flow.start().await?;
    Ok((ground, flow))
}

/// Waits until `sql` on `url` answers `expected`.
pub(crate) async fn until(url: &str, sql: &str, expected: &str, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    loop {
        let seen = value(url, sql).await;
        if seen.as_ref().is_ok_and(|seen| seen == expected) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{sql} still answers {seen:?}, not {expected}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn b01_the_first_transaction_after_a_restart_is_not_taken_for_done() -> Result<()> {
    let (_ground, mut flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    let script = flow.folder().join("one.sql");
    std::fs::write(&script, "INSERT INTO log VALUES (:client_id, 'x');")?;
    let url = flow.source_admin.clone();
    let load = tokio::task::spawn_blocking(move || {
        pgbench(
            15,
            &url,
            &[
                "-n",
                "-c",
                "16",
                "-j",
                "2",
                "-T",
                "10",
                "-R",
                "1500",
                "-f",
                &script.to_string_lossy(),
            ],
        )
    });
    while !load.is_finished() {
        tokio::time::sleep(Duration::from_millis(700)).await;
        flow.relay.as_mut().context("relay")?.kill()?;
        flow.start_relay()?;
        tokio::time::sleep(Duration::from_millis(700)).await;
        flow.applier.as_mut().context("applier")?.kill()?;
        flow.start_applier()?;
    }
    load.await??;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b02_interleaved_transactions_across_a_relay_restart() -> Result<()> {
    let (_ground, mut flow) = ground(
        GroundOptions::version(15),
        "CREATE TABLE o (id int PRIMARY KEY, v text)",
        "",
    )
    .await?;
    let one = compare::connect(&flow.source_admin).await?;
    one.batch_execute("BEGIN; INSERT INTO public.o VALUES (1, 'T1 first')")
        .await?;
    run(&flow.source_admin, &["INSERT INTO o VALUES (2, 'T2')"]).await?;
    until(&flow.target_admin, "SELECT count(*) FROM o", "1", WITHIN).await?;
    flow.relay.as_mut().context("relay")?.kill()?;
    one.batch_execute("INSERT INTO public.o VALUES (3, 'T1 second'); COMMIT")
        .await?;
    flow.start_relay()?;
    flow.converges(WITHIN).await?;
    ensure!(
        value(
            &flow.target_admin,
            "SELECT count(DISTINCT xmin::text) FROM o WHERE id IN (1, 3)"
        )
        .await?
            == "1",
        "T1 was torn"
    );
    Ok(())
}

#[tokio::test]
async fn b04_a_keepalive_never_confirms_what_the_broker_does_not_have() -> Result<()> {
    let options = GroundOptions::version(15).source("wal_sender_timeout", "3s");
    let (ground, mut flow) = ground(options, KEYLESS, "source.acknowledge: published").await?;
    run(
        &flow.source_admin,
        &["INSERT INTO log VALUES (0, 'before')"],
    )
    .await?;
    flow.caught_up(WITHIN).await?;
    ground.nats.pause()?;
    let before = value(&flow.source_admin, "SELECT pg_current_wal_lsn()").await?;
    for id in 1..20 {
        run(
            &flow.source_admin,
            &[&format!("INSERT INTO log VALUES ({id}, 'while frozen')")],
        )
        .await?;
    }
    // Several keepalives come and are answered meanwhile: the walsender would be gone otherwise.
    let walsender =
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'trellara_cases'";
    let pid = value(&flow.source_admin, walsender).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    ensure!(
        value(&flow.source_admin, walsender).await? == pid,
        "the walsender was lost (B15)"
    );
    let passed = format!(
        "SELECT confirmed_flush_lsn <= '{before}' FROM pg_replication_slots WHERE slot_name = 'trellara_cases'"
    );
    ensure!(
        value(&flow.source_admin, &passed).await? == "t",
        "a position was confirmed that nothing stores"
    );
    flow.relay.as_mut().context("relay")?.kill()?;
    ground.nats.resume()?;
    flow.start_relay()?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b06_an_idle_publication_in_a_busy_database_frees_the_wal() -> Result<()> {
    /// PostgreSQL's own receivers confirm every `wal_receiver_status_interval`: ten seconds.
    const STATUS_INTERVAL: Duration = Duration::from_secs(10);
    let schema = "CREATE TABLE pub (id int PRIMARY KEY)";
    // A walsender that has caught up says something every half of this, far too late: the relay
    // has to ask.
    let options = GroundOptions::version(15).source("wal_sender_timeout", "120s");
    let (ground, flow) = ground(options, schema, "").await?;
    run(&flow.source_admin, &["CREATE TABLE noise (id int, t text)"]).await?;
    let elsewhere = ground.source.url("postgres");
    run(&elsewhere, &["CREATE TABLE noise (id int, t text)"]).await?;
    for url in [&flow.source_admin, &elsewhere] {
        run(
            url,
            &["INSERT INTO noise SELECT g, repeat('x', 500) FROM generate_series(1, 50000) g"],
        )
        .await?;
    }
    until(
        &flow.source_admin,
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) < 100000 FROM pg_replication_slots WHERE slot_name = 'trellara_cases'",
        "t",
        STATUS_INTERVAL,
    )
    .await
}

#[tokio::test]
async fn b15_a_busy_broker_does_not_cost_the_walsender() -> Result<()> {
    let options = GroundOptions::version(15).source("wal_sender_timeout", "3s");
    let (ground, flow) = ground(options, KEYLESS, "").await?;
    let walsender =
        "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'trellara_cases'";
    until(
        &flow.source_admin,
        &format!("SELECT ({walsender}) IS NOT NULL"),
        "t",
        WITHIN,
    )
    .await?;
    let pid = value(&flow.source_admin, walsender).await?;
    ground.nats.pause()?;
    run(
        &flow.source_admin,
        &["INSERT INTO log SELECT g, repeat('x', 1000) FROM generate_series(1, 100000) g"],
    )
    .await?;
    tokio::time::sleep(Duration::from_secs(9)).await;
    ensure!(
        value(&flow.source_admin, walsender).await? == pid,
        "the walsender gave up"
    );
    ground.nats.resume()?;
    flow.converges(Duration::from_secs(90)).await?;
    ensure!(
        value(&flow.source_admin, walsender).await? == pid,
        "the transaction was sent twice"
    );
    Ok(())
}

#[tokio::test]
async fn b17_an_active_slot_is_waited_for() -> Result<()> {
    let options = GroundOptions::version(15).source("wal_sender_timeout", "3s");
    let (_ground, mut flow) = ground(options, KEYLESS, "").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'a')"]).await?;
    flow.caught_up(WITHIN).await?;
    let mut frozen = flow.relay.take().context("relay")?;
    frozen.signal(Signal::SIGSTOP)?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'b')"]).await?;
    flow.start_relay()?;
    flow.converges(WITHIN).await?;
    ensure!(
        flow.relay.as_mut().context("relay")?.is_running(),
        "the waiting relay gave up"
    );
    // The old one wakes up and must do no harm.
    frozen.signal(Signal::SIGCONT)?;
    run(
        &flow.source_admin,
        &["INSERT INTO log SELECT g, 'c' FROM generate_series(3, 1000) g"],
    )
    .await?;
    flow.converges(WITHIN).await?;
    frozen.kill()?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b18_every_connection_comes_back_by_itself() -> Result<()> {
    let options = GroundOptions::version(15);
    let (mut ground, flow) = ground(options, KEYLESS, "stall_timeout: 2s").await?;
    let insert = |id: u32| format!("INSERT INTO log VALUES ({id}, 'x')");
    run(&flow.source_admin, &[&insert(1)]).await?;
    flow.caught_up(WITHIN).await?;
    run(
        &flow.source_admin,
        &[
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
            &insert(2),
        ],
    )
    .await?;
    flow.converges(WITHIN).await?;
    run(&flow.target_admin, &["SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'trellara%' AND pid <> pg_backend_pid()"]).await?;
    run(&flow.source_admin, &[&insert(3)]).await?;
    flow.converges(WITHIN).await?;
    // As long as something is away, whoever needs it says that it is not ready.
    ground.source.stop(trellara_local::StopMode::Fast)?;
    readiness(flow.relay.as_ref(), false).await?;
    ground.source.start_again()?;
    run(&flow.source_admin, &[&insert(4)]).await?;
    flow.converges(WITHIN).await?;
    ground.target.stop(trellara_local::StopMode::Fast)?;
    readiness(flow.applier.as_ref(), false).await?;
    ground.target.start_again()?;
    run(&flow.source_admin, &[&insert(5)]).await?;
    flow.converges(WITHIN).await?;
    ground.nats.stop()?;
    run(&flow.source_admin, &[&insert(6)]).await?;
    readiness(flow.relay.as_ref(), false).await?;
    readiness(flow.applier.as_ref(), false).await?;
    ground.nats.start_again()?;
    flow.converges(WITHIN).await?;
    // And that it is, once it has all back.
    for daemon in [&flow.relay, &flow.applier] {
        readiness(daemon.as_ref(), true).await?;
    }
    Ok(())
}

/// Waits until `/readyz` of a daemon is green, or red.
async fn readiness(daemon: Option<&Daemon>, green: bool) -> Result<()> {
    let daemon = daemon.context("it was started")?;
    let deadline = Instant::now() + WITHIN;
    loop {
        let ready = daemon.ready().await;
        if ready == Some(green) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "/readyz says {ready:?}; {:?}\n{}",
            daemon.status().await,
            daemon.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn b31_parts_of_two_attempts_are_never_mixed() -> Result<()> {
    let options = GroundOptions::version(15).source("logical_decoding_work_mem", "64kB");
    let (ground, mut flow) = ground(options, KEYLESS, "").await?;
    let client = compare::connect(&flow.source_admin).await?;
    client.batch_execute("BEGIN").await?;
    let mut attempts = BTreeSet::new();
    for part in 0..4 {
        client
            .batch_execute(&format!(
                "INSERT INTO public.log SELECT g, repeat('x', 100) FROM generate_series({}, {}) g; SAVEPOINT s{part};
                 INSERT INTO public.log SELECT g, 'undone' FROM generate_series(1, 1000) g; ROLLBACK TO s{part}",
                part * 50000 + 1,
                (part + 1) * 50000
            ))
            .await?;
        // The relay dies while part of the transaction is already stored, and starts it over.
        attempts.insert(stored_parts(&ground.nats.url(), &attempts).await?);
        flow.relay.as_mut().context("relay")?.kill()?;
        flow.start_relay()?.logged("took the slot", WITHIN).await?;
    }
    client.batch_execute("COMMIT").await?;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        flow.applier.as_mut().context("applier")?.kill()?;
        flow.start_applier()?;
    }
    ensure!(attempts.len() == 4, "parts of {attempts:?}");
    flow.converges(Duration::from_secs(90)).await
}

/// Waits for parts of an open transaction in the stream that are of none of these incarnations;
/// of which they are.
async fn stored_parts(nats: &str, known: &BTreeSet<String>) -> Result<String> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let filter = "trellara.cases.open.>";
        let subjects = broker::subjects(nats, "TRELLARA_cases", filter).await?;
        let incarnations = subjects.iter().filter_map(|s| s.split('.').nth(3));
        if let Some(new) = incarnations.map(str::to_owned).find(|i| !known.contains(i)) {
            return Ok(new);
        }
        ensure!(
            Instant::now() < deadline,
            "no part was stored: {subjects:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn b44_a_publish_into_a_dead_connection_is_sent_again() -> Result<()> {
    let (mut ground, flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    for round in 0..3 {
        ground.nats.pause()?;
        run(
            &flow.source_admin,
            &[&format!(
                "INSERT INTO log SELECT g, 'round {round}' FROM generate_series(1, 3000) g"
            )],
        )
        .await?;
        ground.nats.kill()?;
        ground.nats.start_again()?;
        run(
            &flow.source_admin,
            &[&format!("INSERT INTO log VALUES (0, 'after {round}')")],
        )
        .await?;
        flow.converges(WITHIN).await?;
    }
    Ok(())
}

#[tokio::test]
async fn b49_order_survives_a_deadlock_on_the_target() -> Result<()> {
    // Who waits looks for a circle once, this long after it began to: long enough for the rival to
    // close it, so that it is the applier who finds it and is the victim.
    let options = GroundOptions::version(15).target("deadlock_timeout", "2s");
    let (_ground, flow) = ground(options, "CREATE TABLE t (id int PRIMARY KEY, v int)", "").await?;
    let applier = flow.applier.as_ref().context("applier")?;
    run(&flow.source_admin, &["INSERT INTO t VALUES (1, 0), (2, 0)"]).await?;
    flow.caught_up(WITHIN).await?;
    let rival = compare::connect(&flow.target_admin).await?;
    rival.batch_execute("SET deadlock_timeout = '1h'").await?;
    for round in 0..5 {
        rival
            .batch_execute("BEGIN; SELECT 1 FROM public.t WHERE id = 2 FOR UPDATE")
            .await?;
        run(&flow.source_admin, &[
            "BEGIN; UPDATE t SET v = v + 1 WHERE id = 1; UPDATE t SET v = v + 1 WHERE id = 2; COMMIT",
            &format!("UPDATE t SET v = {round} * 10 + 2 WHERE id = 1"),
            &format!("UPDATE t SET v = {round} * 10 + 3 WHERE id = 1"),
        ]).await?;
        until(
            &flow.target_admin,
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name LIKE 'trellara%' AND wait_event_type = 'Lock'",
            "t",
            WITHIN,
        )
        .await?;
        // The applier holds row 1 and waits for row 2; asking for row 1 closes the circle.
        rival
            .batch_execute("SELECT 1 FROM public.t WHERE id = 1 FOR UPDATE; COMMIT")
            .await?;
        flow.converges(WITHIN).await?;
        let deadlocks = applier.log().matches("40P01").count();
        ensure!(deadlocks > round, "{deadlocks} deadlocks in round {round}");
    }
    Ok(())
}

#[tokio::test]
async fn b51_a_deleted_consumer_is_made_again_at_the_checkpoint() -> Result<()> {
    let (ground, mut flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'a')"]).await?;
    flow.caught_up(WITHIN).await?;
    broker::delete_consumer(&ground.nats.url(), "TRELLARA_cases", "applier").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'b')"]).await?;
    flow.converges(WITHIN).await?;
    flow.applier.as_mut().context("applier")?.kill()?;
    broker::delete_consumer(&ground.nats.url(), "TRELLARA_cases", "applier").await?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (3, 'c')"]).await?;
    flow.start_applier()?;
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b43_a_smaller_payload_limit_while_running() -> Result<()> {
    let (mut ground, flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    run(&flow.source_admin, &["INSERT INTO log SELECT 1, string_agg(md5(g::text), '') FROM generate_series(1, 33000) g"]).await?;
    flow.converges(WITHIN).await?;
    ground.nats.set_max_payload(65_536)?;
    ground.nats.kill()?;
    ground.nats.start_again()?;
    run(&flow.source_admin, &[
        "INSERT INTO log SELECT 2, string_agg(md5(g::text), '') FROM generate_series(1, 250000) g",
        "INSERT INTO log SELECT g, 'small ' || g FROM generate_series(1, 20000) g",
    ]).await?;
    flow.converges(Duration::from_secs(60)).await
}

/// On the target, COMMIT takes half a second when the row's id can be divided by four.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON log DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.id % 4 = 0) EXECUTE FUNCTION slow();
    ALTER TABLE log ENABLE ALWAYS TRIGGER slow";
const COMMITTING: &str = "SELECT count(*) > 0 FROM pg_stat_activity \
    WHERE usename LIKE 'trellara%' AND wait_event = 'PgSleep' AND query ILIKE 'COMMIT%'";

#[tokio::test]
async fn b21_an_unanswered_commit_is_decided_by_the_ledger() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(15))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    let proxy = Proxy::to_port(ground.target.port()).await?;
    run(&flow.target_admin, &[SLOW_COMMIT]).await?;
    flow.setup().await?;
    flow.places.target_url = proxy.url(&flow.places.target_url);
    flow.write_config()?;
    flow.start_relay()?;
    flow.start_applier()?;
    let (mut happened, mut did_not) = (0, 0);
    for id in 0..40 {
        let before = value(&flow.target_admin, "SELECT count(*) FROM log").await?;
        run(
            &flow.source_admin,
            &[&format!("INSERT INTO log VALUES ({id}, 'x')")],
        )
        .await?;
        if id % 2 == 0 {
            if id % 4 == 0 {
                // The COMMIT is on the server already when the way back is lost.
                until(&flow.target_admin, COMMITTING, "t", WITHIN).await?;
            }
            // Whatever the applier sends still arrives; no answer comes back.
            proxy.hold(Direction::ToClient);
            tokio::time::sleep(Duration::from_millis(30 + id * 5)).await;
            if id % 4 == 0 {
                until(&flow.target_admin, COMMITTING, "f", WITHIN).await?;
            }
            proxy.cut(Side::Both);
            let after = value(&flow.target_admin, "SELECT count(*) FROM log").await?;
            if after == before {
                did_not += 1
            } else {
                happened += 1
            }
            proxy.heal();
        }
        flow.caught_up(WITHIN).await?;
    }
    eprintln!("unanswered commits: {happened} had happened, {did_not} had not");
    ensure!(happened > 0, "no commit was lost on its way back");
    ensure!(did_not > 0, "no commit was cut off before it happened");
    flow.converges(WITHIN).await
}

#[tokio::test]
async fn b45_slow_acknowledgements_bound_the_window() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(15))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    let proxy = Proxy::to_port(ground.nats.port()).await?;
    flow.setup().await?;
    flow.places.nats_url = proxy.url(&flow.places.nats_url);
    flow.write_config()?;
    flow.start_relay()?;
    flow.start_applier()?;
    let slow = Rules {
        delay: Duration::from_millis(500),
        ..Rules::default()
    };
    proxy.set(Direction::ToServer, slow.clone());
    let script = flow.folder().join("one.sql");
    std::fs::write(
        &script,
        "INSERT INTO log VALUES (:client_id, repeat('x', 200));",
    )?;
    let url = flow.source_admin.clone();
    tokio::task::spawn_blocking(move || {
        pgbench(
            15,
            &url,
            &[
                "-n",
                "-c",
                "8",
                "-j",
                "2",
                "-t",
                "5000",
                "-f",
                &script.to_string_lossy(),
            ],
        )
    })
    .await??;
    flow.converges(Duration::from_secs(60)).await?;
    let peak = flow
        .relay
        .as_ref()
        .context("relay")?
        .peak_memory_bytes()
        .context("it runs")?;
    ensure!(peak <= 128 << 20, "the relay took {} MiB", peak >> 20);
    Ok(())
}

#[tokio::test]
async fn half_open_connections_are_noticed() -> Result<()> {
    let options = GroundOptions::version(15).source("wal_sender_timeout", "5s");
    let ground = Ground::start(&options)?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    flow.setup().await?;
    let source = Proxy::to_port(ground.source.port()).await?;
    let broker = Proxy::to_port(ground.nats.port()).await?;
    let target = Proxy::to_port(ground.target.port()).await?;
    flow.places.source_url = source.url(&flow.places.source_url);
    flow.places.target_url = target.url(&flow.places.target_url);
    flow.places.nats_url = broker.url(&flow.places.nats_url);
    flow.write_config()?;
    flow.start_relay()?;
    flow.start_applier()?;
    // Borrowed: a proxy that is dropped takes its port along.
    for (id, proxy) in [&source, &broker, &target].into_iter().enumerate() {
        run(
            &flow.source_admin,
            &[&format!("INSERT INTO log VALUES ({id}, 'before')")],
        )
        .await?;
        flow.caught_up(WITHIN).await?;
        proxy.black_hole();
        run(
            &flow.source_admin,
            &[&format!("INSERT INTO log VALUES ({id}, 'meanwhile')")],
        )
        .await?;
        // The server's end is gone and the client's stays: only new connections work.
        proxy.cut(Side::Server);
        proxy.heal();
        let begun = Instant::now();
        flow.converges(Duration::from_secs(75)).await?;
        eprintln!("connection {id} was replaced after {:?}", begun.elapsed());
    }
    Ok(())
}

/// The backend that holds the lane, and since when.
const HOLDER: &str = "SELECT holder_pid || ' ' || holder_started FROM trellara.lane";

#[tokio::test]
async fn a_silent_target_session_is_replaced_and_its_backend_ended() -> Result<()> {
    let ground = Ground::start(&GroundOptions::version(15))?;
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, "").await?;
    let target = Proxy::to_port(ground.target.port()).await?;
    flow.setup().await?;
    flow.places.target_url = target.url(&flow.places.target_url);
    flow.write_config()?;
    flow.start_relay()?;
    flow.start_applier()?;
    let insert = |id: u32| format!("INSERT INTO log VALUES ({id}, 'x')");
    run(&flow.source_admin, &[&insert(1)]).await?;
    flow.caught_up(WITHIN).await?;

    // A statement that somebody's lock keeps waiting is left alone, however long it takes.
    let holder = value(&flow.target_admin, HOLDER).await?;
    let blocker = compare::connect(&flow.target_admin).await?;
    blocker
        .batch_execute("BEGIN; LOCK TABLE public.log")
        .await?;
    run(&flow.source_admin, &[&insert(2)]).await?;
    let applier = flow.applier.as_mut().context("applier")?;
    applier
        .logged(
            "a statement on the target takes long",
            Duration::from_secs(60),
        )
        .await?;
    blocker.batch_execute("COMMIT").await?;
    flow.converges(WITHIN).await?;
    ensure!(
        value(&flow.target_admin, HOLDER).await? == holder,
        "a session that only waited was given up"
    );

    // Both ends stay open and nothing passes: the backend still holds the lane, in the middle of
    // a transaction or not.
    target.black_hole();
    run(&flow.source_admin, &[&insert(3)]).await?;
    target.cut(Side::Neither);
    target.heal();
    flow.converges(Duration::from_secs(75)).await?;
    ensure!(
        value(&flow.target_admin, HOLDER).await? != holder,
        "the silent session still holds the lane"
    );
    let applier = flow.applier.as_mut().context("applier")?;
    for said in [
        "its backend waits for us while we wait for it",
        "ending our own earlier session on the target",
    ] {
        applier.logged(said, WITHIN).await?;
    }

    // Our end is reset and the server's is not: its backend is in the way of the next session.
    let begun = Instant::now();
    target.cut(Side::Client);
    run(&flow.source_admin, &[&insert(4)]).await?;
    flow.converges(WITHIN).await?;
    ensure!(
        begun.elapsed() < Duration::from_secs(15),
        "{:?}",
        begun.elapsed()
    );
    Ok(())
}

/// Open transactions above their budget are read after their commit (C12), also when the first
/// attempts to begin again come to nothing.
#[tokio::test]
async fn c12_a_failed_attempt_does_not_turn_streaming_on_again() -> Result<()> {
    let options = GroundOptions::version(18).source("logical_decoding_work_mem", "64kB");
    let ground = Ground::start(&options)?;
    let extra = "nats.open_bytes: 4MiB\nsource.acknowledge: published";
    let mut flow = ground.flow("cases", KEYLESS, KEYLESS, extra).await?;
    flow.setup().await?;
    let source = Proxy::to_port(ground.source.port()).await?;
    flow.places.source_url = source.url(&flow.places.source_url);
    flow.write_config()?;
    flow.start_relay()?;
    flow.start_applier()?;
    run(&flow.source_admin, &["INSERT INTO log VALUES (1, 'first')"]).await?;
    flow.caught_up(WITHIN).await?;

    source.listen(false);
    let client = compare::connect(&flow.source_admin).await?;
    client
        .batch_execute(
            "BEGIN; INSERT INTO public.log
                SELECT g, repeat('x', 1000) FROM generate_series(1, 12000) g",
        )
        .await?;
    let relay = flow.relay.as_mut().context("relay")?;
    relay.logged("exceed their budget", WITHIN).await?;
    relay.logged("Connection refused", WITHIN).await?;
    let forget = "SELECT pg_stat_reset_replication_slot('trellara_cases')";
    run(&flow.source_admin, &[forget]).await?;
    source.listen(true);
    run(&flow.source_admin, &["INSERT INTO log VALUES (2, 'other')"]).await?;
    until(&flow.target_admin, "SELECT count(*) FROM log", "2", WITHIN).await?;
    client.batch_execute("COMMIT").await?;
    flow.converges(WITHIN).await?;
    let streamed = "SELECT stream_count FROM pg_stat_replication_slots";
    ensure!(
        value(&flow.source_admin, streamed).await? == "0",
        "it was streamed again:\n{}",
        flow.logs()
    );
    Ok(())
}

/// With nothing to do, nobody touches the connection, and the wait for the next message is given
/// up every second.
#[tokio::test]
async fn idle_daemons_outlive_a_broker_that_was_away_or_frozen() -> Result<()> {
    let (mut ground, flow) = ground(GroundOptions::version(15), KEYLESS, "").await?;
    let insert = |id: u32| format!("INSERT INTO log VALUES ({id}, 'x')");
    run(&flow.source_admin, &[&insert(1)]).await?;
    flow.caught_up(WITHIN).await?;
    // Not a wait for something: the outage itself, longer than the pauses between attempts grow.
    ground.nats.stop()?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    ground.nats.start_again()?;
    run(&flow.source_admin, &[&insert(2)]).await?;
    flow.converges(WITHIN).await?;
    ground.nats.pause()?;
    tokio::time::sleep(Duration::from_secs(25)).await;
    ground.nats.resume()?;
    run(&flow.source_admin, &[&insert(3)]).await?;
    flow.converges(WITHIN).await
}
