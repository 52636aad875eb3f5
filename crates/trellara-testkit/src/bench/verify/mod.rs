//! Comparing two equal tables: `trellara verify` beside what other tools ask of the databases, and
//! beside a copy of both that is thrown away.
//!
//! Everything runs on the same two servers, in turn, and each way is shown both tables at once.

mod report;

use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::{TryStreamExt, try_join};
use tokio_postgres::Client;
use trellara_postgres::{ConnectOptions, Environment};
use trellara_verify::report::{DigestLane, Outcome};
use trellara_verify::{CompareOptions, Frozen, compare};

use super::Machine;
use super::arena::Arena;
use super::cpu;
pub use report::VerifyReport;

/// Rows of the full table, which the bars are about.
pub const FULL_ROWS: u64 = 2_000_000;
const DATABASE: &str = "mixed";
/// Rows of a block that is ordered and put together before it is hashed.
const BLOCK_ROWS: u64 = 100_000;

/// Nine columns as they are found in tables; every value follows from the row's number, so that
/// both servers make the same.
const ROW: &str = "\
    g::bigint AS id, md5('u' || g)::uuid AS u, md5(g::text) || ' some text ' || g AS t, \
    (g * 1.37)::numeric(12,2) AS n, sin(g::float8) * 1000 AS f, \
    timestamptz '2026-01-01 00:00+00' - g * interval '1 s' AS ts, g % 2 = 0 AS b, \
    jsonb_build_object('a', g, 'b', md5(g::text), 'c', ARRAY[g, g + 1]) AS j, \
    CASE WHEN g % 3 = 0 THEN NULL ELSE g END::int AS i";

/// A way of comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `trellara verify`, rows hashed by the databases.
    Row64,
    /// `trellara verify --lane blake3`.
    Blake3,
    /// A sum of the low 60 bits of each row's MD5, as data-diff asks for.
    Md5,
    /// SHA-256 of each block's rows, ordered and put together, as ACE asks for.
    Sha256,
    /// COPY of both tables to a client that throws it away.
    Copy,
}

impl Way {
    /// All, in the order they take turns.
    pub const ALL: [Way; 5] = [Way::Row64, Way::Copy, Way::Md5, Way::Sha256, Way::Blake3];

    /// For tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Way::Row64 => "row64",
            Way::Blake3 => "blake3",
            Way::Md5 => "md5_sum",
            Way::Sha256 => "sha256_ordered",
            Way::Copy => "copy",
        }
    }
}

/// One comparison.
#[derive(Debug, Clone)]
pub struct Turn {
    /// From the first statement to the last answer.
    pub seconds: f64,
    /// CPU seconds of both servers' processes.
    pub servers_cpu: f64,
    /// CPU seconds of this process.
    pub client_cpu: f64,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct VerifyBenchOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Of the table.
    pub rows: u64,
    /// Turns of each way; the median counts.
    pub rounds: u32,
}

/// Runs everything, from fresh servers to the verdicts.
pub async fn bench_verify(options: &VerifyBenchOptions) -> Result<VerifyReport> {
    let arena = Arena::start(options.version).await?;
    let machine = Machine::of(&arena).await?;
    tracing::info!(rows = options.rows, "filling both tables");
    try_join!(
        fill(
            &arena.source,
            || arena.connect_source(DATABASE),
            options.rows
        ),
        fill(
            &arena.target,
            || arena.connect_target(DATABASE),
            options.rows
        )
    )?;
    let source = arena.connect_source(DATABASE).await?;
    let publish = "CREATE PUBLICATION p FOR TABLE public.mixed";
    source.batch_execute(publish).await?;
    let bytes: i64 = source
        .query_one("SELECT pg_relation_size('public.mixed')", &[])
        .await?
        .get(0);
    let mut turns: Vec<(Way, Vec<Turn>)> = Way::ALL.map(|way| (way, Vec::new())).to_vec();
    for round in 1..=options.rounds {
        for (way, taken) in &mut turns {
            let turn = turn(&arena, *way, options.rows).await?;
            tracing::info!(round, way = way.name(), seconds = turn.seconds, "done");
            taken.push(turn);
        }
    }
    Ok(VerifyReport {
        machine,
        rows: options.rows,
        bytes: bytes.unsigned_abs(),
        rounds: options.rounds,
        turns,
    })
}

async fn fill<F>(admin: &Client, connect: impl FnOnce() -> F, rows: u64) -> Result<()>
where
    F: Future<Output = Result<Client>>,
{
    let create = format!("CREATE DATABASE {DATABASE}");
    admin.batch_execute(&create).await?;
    // For every session, so that nobody has an advantage.
    let plain = format!("ALTER DATABASE {DATABASE} SET jit = off");
    admin.batch_execute(&plain).await?;
    let client = connect().await?;
    let make =
        format!("CREATE TABLE public.mixed AS SELECT {ROW} FROM generate_series(1, {rows}) AS g");
    client.batch_execute(&make).await?;
    let key = "ALTER TABLE public.mixed ADD PRIMARY KEY (id)";
    client.batch_execute(key).await?;
    client
        .batch_execute("VACUUM (FREEZE, ANALYZE) public.mixed")
        .await?;
    Ok(())
}

async fn turn(arena: &Arena, way: Way, rows: u64) -> Result<Turn> {
    let [source, target] = arena.servers()?;
    let servers = [source.postmaster, target.postmaster];
    let used = || servers.iter().map(|pid| cpu::used_by_server(*pid)).sum();
    let (before, own_before): (f64, f64) = (used(), cpu::used(std::process::id()));
    let began = Instant::now();
    match way {
        Way::Row64 => judge(arena, DigestLane::Row64, rows).await?,
        Way::Blake3 => judge(arena, DigestLane::Blake3, rows).await?,
        Way::Md5 => both(arena, |client| md5(client, rows)).await?,
        Way::Sha256 => both(arena, |client| sha256(client, rows)).await?,
        Way::Copy => both(arena, |client| copy(client, rows)).await?,
    }
    let seconds = began.elapsed().as_secs_f64();
    let after: f64 = used();
    Ok(Turn {
        seconds,
        servers_cpu: after - before,
        client_cpu: cpu::used(std::process::id()) - own_before,
    })
}

/// The shipped comparison, over snapshots of two databases that stand still.
async fn judge(arena: &Arena, lane: DigestLane, rows: u64) -> Result<()> {
    let source = arena.connect_source(DATABASE).await?;
    let target = arena.connect_target(DATABASE).await?;
    let ground = &arena.ground;
    let (here, there) = try_join!(
        frozen(&source, ground.source.url(DATABASE)),
        frozen(&target, ground.target.url(DATABASE))
    )?;
    let options = CompareOptions {
        lane,
        ..CompareOptions::new("bench", "p", rand::random())
    };
    let compared = Box::pin(compare(&here, &there, &options, &|_| {})).await?;
    let [table] = &compared.tables[..] else {
        anyhow::bail!("one table was published: {compared:?}");
    };
    ensure!(table.outcome == Outcome::Equal, "{table:?}");
    ensure!(
        (table.source_rows, table.target_rows) == (rows, rows),
        "{table:?}"
    );
    Ok(())
}

async fn frozen(session: &Client, url: String) -> Result<Frozen> {
    session
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let exported = session
        .query_one("SELECT pg_export_snapshot()", &[])
        .await?;
    Ok(Frozen {
        connect: ConnectOptions::parse(&url, &Environment::empty())?,
        snapshot: exported.get(0),
    })
}

/// Asks both sides at once, and expects one answer.
async fn both<F, A>(arena: &Arena, ask: impl Fn(Client) -> F) -> Result<()>
where
    F: Future<Output = Result<A>>,
    A: PartialEq,
{
    let source = arena.connect_source(DATABASE).await?;
    let target = arena.connect_target(DATABASE).await?;
    let (here, there) = try_join!(ask(source), ask(target))?;
    ensure!(here == there, "equal tables were called different");
    Ok(())
}

async fn md5(client: Client, rows: u64) -> Result<String> {
    let sql = "SELECT count(*), sum(('x' || substring(md5(concat_ws('|', id, u, t, n, f, ts, b, j, \
               coalesce(i::text, '<null>'))), 18))::bit(60)::bigint)::text FROM public.mixed";
    let row = client.query_one(sql, &[]).await?;
    ensure!(
        row.get::<_, i64>(0).unsigned_abs() == rows,
        "rows are missing"
    );
    Ok(row.get(1))
}

async fn sha256(client: Client, rows: u64) -> Result<Vec<String>> {
    let mut blocks = Vec::new();
    for from in (0..rows).step_by(BLOCK_ROWS as usize) {
        let to = from + BLOCK_ROWS;
        let sql = format!(
            "SELECT encode(sha256(convert_to(string_agg(row::text, '|' ORDER BY id), 'UTF8')), 'hex') \
             FROM (SELECT id, ROW(id, u, t, n, f, ts, b, j, i) AS row FROM public.mixed \
                   WHERE id > {from} AND id <= {to}) AS block"
        );
        blocks.push(client.query_one(&sql, &[]).await?.get(0));
    }
    Ok(blocks)
}

async fn copy(client: Client, rows: u64) -> Result<u64> {
    let stream = client.copy_out("COPY public.mixed TO STDOUT").await?;
    let mut stream = std::pin::pin!(stream);
    let mut lines = 0;
    while stream.try_next().await?.is_some() {
        lines += 1;
    }
    ensure!(lines == rows, "{lines} lines");
    Ok(lines)
}
