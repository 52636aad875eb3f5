//! A first copy beside `psql COPY OUT | psql COPY IN`, with one stream and with as many as the copy
//! has workers: the same tables on the same two servers, in turn.
//!
//! The pipes have no broker in between, resume nothing and hand over to nobody, so they are a floor
//! and not a rival.

mod pipe;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Machine;
use super::arena::Arena;
use super::cpu;
use crate::compare;
use crate::copying::Copying;
use crate::daemon::Daemon;
use crate::flow::{Flow, Places};
pub use report::BackfillReport;

/// Rows of all tables together, which the bars are about.
pub const FULL_ROWS: u64 = 10_000_000;
/// The first has one half of all rows.
pub const TABLES: u64 = 30;
const DATABASE: &str = "copied";
const POLL: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(1800);

/// About 130 bytes as text; every value follows from the row's number.
const ROW: &str = "\
    g::bigint AS id, md5('u' || g)::uuid AS u, md5(g::text) || ' some text ' || g AS t, \
    (g * 1.37)::numeric(12,2) AS n, \
    timestamptz '2026-01-01 00:00+00' - g * interval '1 s' AS ts, g % 2 = 0 AS b, \
    CASE WHEN g % 3 = 0 THEN NULL ELSE g END::int AS i";

/// A way of copying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One pipe, table after table.
    OnePipe,
    /// As many pipes as Trellara has workers; each takes the largest table that is left.
    Pipes,
    /// `trellara relay` and `trellara applier`.
    Trellara,
}

impl Way {
    /// All, in the order they take turns.
    pub const ALL: [Way; 3] = [Way::OnePipe, Way::Pipes, Way::Trellara];

    /// For tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Way::OnePipe => "one pipe",
            Way::Pipes => "pipes",
            Way::Trellara => "trellara",
        }
    }
}

/// One copy of everything.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    /// From the first process to the last row; of Trellara `setup` is not counted, since the pipes
    /// have nothing like it.
    pub seconds: f64,
    /// CPU seconds by process.
    pub cpu: Vec<(&'static str, f64)>,
    /// Largest resident sets of processes of ours and of the broker, bytes.
    pub peaks: Vec<(&'static str, u64)>,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct BackfillBenchOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Of all tables together.
    pub rows: u64,
    /// Turns of each way; the median counts.
    pub rounds: u32,
    /// `backfill.workers`, and pipes.
    pub workers: usize,
}

/// Runs everything, from fresh servers to the verdicts.
pub async fn bench_backfill(options: &BackfillBenchOptions) -> Result<BackfillReport> {
    let arena = Arena::start(options.version).await?;
    let machine = Machine::of(&arena).await?;
    tracing::info!(rows = options.rows, "filling the tables");
    let bytes = fill(&arena, options.rows).await?;
    let mut turns: Vec<(Way, Vec<Turn>)> = Way::ALL.map(|way| (way, Vec::new())).to_vec();
    for round in 1..=options.rounds {
        for (way, taken) in &mut turns {
            let turn = turn(&arena, *way, round, options).await?;
            tracing::info!(round, way = way.name(), seconds = turn.seconds, "done");
            taken.push(turn);
        }
    }
    Ok(BackfillReport {
        machine,
        rows: options.rows,
        bytes,
        workers: options.workers,
        rounds: options.rounds,
        turns,
    })
}

/// Rows of that table, which are numbered from one.
fn rows_of(table: u64, all: u64) -> u64 {
    let half = all / 2;
    match table {
        0 => half,
        _ => (all - half) / (TABLES - 1),
    }
}

/// Makes the tables on both sides, with rows on the source alone; the bytes of their text.
async fn fill(arena: &Arena, rows: u64) -> Result<u64> {
    let create = format!("CREATE DATABASE {DATABASE}");
    arena.source.batch_execute(&create).await?;
    arena.target.batch_execute(&create).await?;
    let source = arena.connect_source(DATABASE).await?;
    let target = arena.connect_target(DATABASE).await?;
    for table in 0..TABLES {
        let rows = rows_of(table, rows);
        let make = format!(
            "CREATE TABLE public.t{table} AS SELECT {ROW} FROM generate_series(1, {rows}) AS g"
        );
        let key = format!("ALTER TABLE public.t{table} ADD PRIMARY KEY (id)");
        source.batch_execute(&make).await?;
        source.batch_execute(&key).await?;
        let empty = format!("{make} WITH NO DATA");
        target.batch_execute(&empty).await?;
        target.batch_execute(&key).await?;
    }
    source.batch_execute("VACUUM (FREEZE, ANALYZE)").await?;
    let sample = "SELECT avg(length(sample::text) + 1)::float8 FROM \
                  (SELECT * FROM public.t0 LIMIT 10000) AS sample";
    let width: f64 = source.query_one(sample, &[]).await?.get(0);
    Ok((width * rows as f64) as u64)
}

/// One copy into a target database of its own.
async fn turn(arena: &Arena, way: Way, round: u32, options: &BackfillBenchOptions) -> Result<Turn> {
    let into = format!("{DATABASE}_{}_{round}", way as u8);
    arena.clone_target(DATABASE, &into).await?;
    let from_url = arena.ground.source.url(DATABASE);
    let into_url = arena.ground.target.url(&into);
    let mut flow = match way {
        Way::OnePipe | Way::Pipes => None,
        Way::Trellara => Some(flow(arena, &from_url, &into_url, round, options).await?),
    };
    arena.source.batch_execute("CHECKPOINT").await?;
    arena.target.batch_execute("CHECKPOINT").await?;
    let [source, target] = arena.servers()?;
    let broker = arena.ground.nats.pid().context("the broker has ended")?;
    let used = || {
        [
            cpu::used_by_server(source.postmaster),
            cpu::used_by_server(target.postmaster),
            cpu::used(broker),
            cpu::reaped(std::process::id()),
        ]
    };
    let before = used();
    let began = Instant::now();
    match (&mut flow, way) {
        (Some(flow), _) => copy(flow).await?,
        (None, Way::OnePipe) => pipe::copy(options.version, &from_url, &into_url, 1).await?,
        (None, _) => pipe::copy(options.version, &from_url, &into_url, options.workers).await?,
    }
    let seconds = began.elapsed().as_secs_f64();
    let after = used();
    let since = |at: usize| after[at] - before[at];
    let mut turn = Turn {
        seconds,
        cpu: vec![("source", since(0)), ("target", since(1))],
        peaks: Vec::new(),
    };
    match &flow {
        Some(flow) => {
            for (name, daemon) in [("relay", &flow.relay), ("applier", &flow.applier)] {
                let daemon = daemon.as_ref().context("a daemon")?;
                turn.cpu.push((name, cpu::used(daemon.pid())));
                let peak = daemon.peak_memory_bytes().unwrap_or_default();
                turn.peaks.push((name, peak));
            }
            turn.cpu.push(("nats", since(2)));
        }
        None => turn.cpu.push(("psql", since(3))),
    }
    check(arena, &into, options.rows).await?;
    if let Some(mut flow) = flow {
        flow.relay = None;
        flow.applier = None;
        let removed = flow.command(&["remove", "--yes"]).await?;
        ensure!(removed.code == 0, "remove: {}", removed.stderr);
    }
    let drop = format!("DROP DATABASE {into} WITH (FORCE)");
    arena.target.batch_execute(&drop).await?;
    Ok(turn)
}

/// A flow that is set up; nothing of it runs yet.
async fn flow(
    arena: &Arena,
    source_url: &str,
    target_url: &str,
    round: u32,
    options: &BackfillBenchOptions,
) -> Result<Flow> {
    let places = Places {
        source_url: source_url.to_owned(),
        target_url: target_url.to_owned(),
        nats_url: arena.ground.nats.url(),
        nats_monitor_url: Some(arena.ground.nats.monitor_url()),
    };
    let extra = format!("backfill: {{workers: {}}}", options.workers);
    let flow = Flow::new(&format!("copied{round}"), places, &extra)?;
    flow.setup().await?;
    Ok(flow)
}

/// From starting the daemons until every table is in.
async fn copy(flow: &mut Flow) -> Result<()> {
    let target = compare::connect(&flow.target_admin).await?;
    let deadline = Instant::now() + PATIENCE;
    flow.start_relay()?;
    flow.start_applier()?;
    while !Copying::read(&target, &flow.name).await?.is_in() {
        let daemons = [&mut flow.relay, &mut flow.applier];
        let all_run = daemons.into_iter().flatten().all(Daemon::is_running);
        ensure!(all_run, "a daemon ended:\n{}", flow.logs());
        ensure!(
            Instant::now() < deadline,
            "no copy within {PATIENCE:?}\n{}",
            flow.logs()
        );
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// A fast way that loses or garbles rows has not copied anything.
async fn check(arena: &Arena, into: &str, rows: u64) -> Result<()> {
    let source = arena.connect_source(DATABASE).await?;
    let target = arena.connect_target(into).await?;
    for table in 0..TABLES {
        let sum = format!(
            "SELECT count(*), coalesce(sum(pg_catalog.hashtextextended(whole::text, 0)), 0)::text \
               FROM public.t{table} AS whole"
        );
        let answer = |row: tokio_postgres::Row| -> (i64, String) { (row.get(0), row.get(1)) };
        let here = answer(source.query_one(&sum, &[]).await?);
        let there = answer(target.query_one(&sum, &[]).await?);
        ensure!(here == there, "t{table}: {here:?} and {there:?} in {into}");
        ensure!(here.0.unsigned_abs() == rows_of(table, rows));
    }
    Ok(())
}
