//! The hand-over of a first copy to the stream, while sessions write before, during and after it:
//! what the snapshot saw and what the stream brings are together everything, and nothing twice.
//!
//! The judge shares nothing with the program: both databases are read table by table, and the
//! source itself must have every row whose commit was answered.

mod gate;
mod kills;
mod load;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::compare;
use crate::copying::Copying;
use crate::flow::Flow;
use crate::ground::{Ground, GroundOptions};

pub use self::gate::Gate;
use self::kills::Kills;
pub use self::kills::{KillPlan, VICTIMS, Victim, kill};
pub use self::load::Totals;
use self::load::{Load, NARROWED, PARTS, SCHEMA, Writers};

/// Every session must have written this often before the flow is set up, and all of them together
/// this often between the copy's end and theirs.
const WARM_UP: u64 = 2;
const AFTERWARDS: u64 = 100;

/// Who made the publication, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `setup` does; partitions carry their own names.
    Leaf,
    /// `setup` does; partitions carry the root's name, and the target is partitioned otherwise.
    Root,
    /// A DBA did, with a list of columns and a filter of rows.
    Given,
}

/// Every shape.
pub const SHAPES: [Shape; 3] = [Shape::Leaf, Shape::Root, Shape::Given];

/// What to hand over.
#[derive(Debug, Clone)]
pub struct HandoverOptions {
    /// Sessions that write.
    pub clients: u32,
    /// Rows of each large table before anything begins.
    pub rows: u64,
    /// Transactions of a session in a second, at most.
    pub rate_per_client: u32,
    /// Of everything that is chosen.
    pub seed: u64,
    /// Kills during the copy.
    pub kills: Option<KillPlan>,
    /// Transactions of about a megabyte that are written while the copy runs.
    pub burst: u32,
    /// Further lines of the flow's configuration.
    pub extra: String,
    /// Limit of each wait.
    pub patience: Duration,
}

/// What one hand-over was like.
#[derive(Debug, Clone)]
pub struct Handover {
    /// Who published what.
    pub shape: Shape,
    /// What the writers saw.
    pub totals: Totals,
    /// How far the copy was when it was in.
    pub copying: Copying,
    /// From the start of the daemons until every table was in.
    pub copied: Duration,
    /// From then until the writers' last transaction was in.
    pub caught_up: Duration,
    /// Parts that were killed.
    pub kills: BTreeMap<Victim, u32>,
    /// Largest resident sets of relay and applier, those that were killed left out, bytes.
    pub peaks: [u64; 2],
}

impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Copying {
            tables,
            parts,
            rows,
            begun_anew,
            ..
        } = self.copying;
        write!(
            f,
            "{:?}: {tables} tables, {rows} rows in {parts} parts in {:.1} s, begun anew {begun_anew} times; \
             {} transactions beside it, caught up {:.1} s later; killed {:?}; \
             peak memory: relay {} MiB, applier {} MiB",
            self.shape,
            self.copied.as_secs_f64(),
            self.totals.committed,
            self.caught_up.as_secs_f64(),
            self.kills,
            self.peaks[0] >> 20,
            self.peaks[1] >> 20,
        )
    }
}

/// Servers on which hand-overs can be tried.
pub fn ground(version: u32) -> Result<Ground> {
    // A small decoding memory makes the large transactions stream before they commit.
    Ground::start(
        &GroundOptions::version(version)
            .source("max_prepared_transactions", "40")
            .source("logical_decoding_work_mem", "64kB")
            // Of several hand-overs at once.
            .source("max_connections", "200")
            .source("max_replication_slots", "20")
            .source("max_wal_senders", "20"),
    )
}

/// One hand-over from an empty target to equality; `name` is the flow's, and its databases'.
pub async fn handover(
    ground: &mut Ground,
    name: &str,
    shape: Shape,
    options: &HandoverOptions,
) -> Result<Handover> {
    let mut flow = prepare(ground, name, shape, options).await?;
    let run = run(Some(ground), &mut flow, shape, options).await;
    let run = run.with_context(|| format!("{name}, {shape:?}, seed {}", options.seed))?;
    leave(ground, flow).await?;
    Ok(run)
}

/// The same without kills, on servers on which other hand-overs go on.
pub async fn handover_beside(
    ground: &Ground,
    name: &str,
    shape: Shape,
    options: &HandoverOptions,
) -> Result<Handover> {
    let mut flow = prepare(ground, name, shape, options).await?;
    let run = run(None, &mut flow, shape, options).await;
    let run = run.with_context(|| format!("{name}, {shape:?}, seed {}", options.seed))?;
    leave(ground, flow).await?;
    Ok(run)
}

async fn prepare(
    ground: &Ground,
    name: &str,
    shape: Shape,
    options: &HandoverOptions,
) -> Result<Flow> {
    let elsewhere = "
        CREATE TABLE parts (id bigint, k int, v text) PARTITION BY HASH (id);
        CREATE TABLE parts_even PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE parts_odd PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        CREATE INDEX ON parts (id, k);";
    let fewer = "
        CREATE TABLE listed (id bigint PRIMARY KEY, a bigint);
        CREATE TABLE filtered (id bigint PRIMARY KEY, v bigint NOT NULL);
        ALTER TABLE filtered REPLICA IDENTITY FULL;";
    let (source, target, partitions) = match shape {
        Shape::Leaf => (
            format!("{SCHEMA} {PARTS}"),
            format!("{SCHEMA} {PARTS}"),
            "source.partitions: leaf",
        ),
        Shape::Root => (
            format!("{SCHEMA} {PARTS}"),
            format!("{SCHEMA} {elsewhere}"),
            "source.partitions: root",
        ),
        Shape::Given => (
            format!("{SCHEMA} {PARTS} {NARROWED}"),
            format!("{SCHEMA} {elsewhere} {fewer}"),
            "source.publication: given",
        ),
    };
    let extra = format!("{partitions}\n{}", options.extra);
    let flow = ground.flow(name, &source, &target, &extra).await?;
    let admin = compare::connect(&flow.source_admin).await?;
    if shape == Shape::Given {
        let publish = "SET search_path = public; CREATE PUBLICATION given FOR TABLE \
             keyed, keyless, parent, child, wide, late, journal, parts, listed (id, a), \
             filtered WHERE (v % 3 <> 0) WITH (publish_via_partition_root = true)";
        admin.batch_execute(publish).await?;
    }
    load(shape, options).seed_rows(&admin).await?;
    Ok(flow)
}

fn load(shape: Shape, options: &HandoverOptions) -> Load {
    Load {
        clients: options.clients,
        rows: options.rows,
        rate_per_client: options.rate_per_client,
        narrowed: shape == Shape::Given,
        seed: options.seed,
    }
}

async fn run(
    killable: Option<&mut Ground>,
    flow: &mut Flow,
    shape: Shape,
    options: &HandoverOptions,
) -> Result<Handover> {
    let within = options.patience;
    let writers = Writers::start(&flow.source_admin, &load(shape, options));
    let warm = WARM_UP * u64::from(options.clients);
    writers.commit(warm, within).await?;
    flow.setup().await?;
    let gate = match options.kills {
        Some(KillPlan::Boundaries { .. }) => Some(Gate::shut(&flow.target_admin).await?),
        Some(KillPlan::Random { .. }) | None => None,
    };
    flow.start_relay()?;
    flow.start_applier()?;
    let began = Instant::now();
    let burst = tokio::spawn(burst(flow.source_admin.clone(), options.burst));
    let kills = match (options.kills, killable) {
        (Some(plan), Some(ground)) => {
            let kills = Kills::new(options.seed);
            kills.deal(plan, (ground, flow), gate, within).await?
        }
        _ => BTreeMap::new(),
    };
    let copying = flow.copied(within).await?;
    let copied = began.elapsed();
    burst.await??;
    writers.commit(AFTERWARDS, within).await?;
    let totals = writers.finish().await?;
    let ended = Instant::now();
    flow.caught_up(within).await?;
    let caught_up = ended.elapsed();
    source_has_all(flow, totals).await?;
    equal(flow, shape).await?;
    flow.tells_no_secret()?;
    flow.verified().await?;
    let peak = |daemon: &Option<crate::daemon::Daemon>| {
        daemon
            .as_ref()
            .and_then(crate::daemon::Daemon::peak_memory_bytes)
            .unwrap_or_default()
    };
    Ok(Handover {
        shape,
        totals,
        copying,
        copied,
        caught_up,
        kills,
        peaks: [peak(&flow.relay), peak(&flow.applier)],
    })
}

/// More than the stream of transactions holds, if it is small: it has to wait, and the copy must not.
async fn burst(url: String, megabytes: u32) -> Result<()> {
    let client = compare::connect(&url).await?;
    for number in 0..megabytes {
        let insert = format!(
            "INSERT INTO public.keyless SELECT -2, {number}, repeat(md5(g::text), 32) \
               FROM generate_series(1, 1000) g"
        );
        client.batch_execute(&insert).await?;
    }
    Ok(())
}

/// Reading a snapshot too early loses rows on the source itself, where no comparison would see it.
async fn source_has_all(flow: &Flow, totals: Totals) -> Result<()> {
    let source = compare::connect(&flow.source_admin).await?;
    let count = "SELECT count(*) FROM public.journal";
    let there: i64 = source.query_one(count, &[]).await?.get(0);
    let there = there.unsigned_abs();
    let expected = totals.committed..=totals.committed + totals.unknown;
    ensure!(
        expected.contains(&there),
        "{there} transactions are on the source, {totals:?} were answered"
    );
    Ok(())
}

/// What is published of each table is on the target, and nothing else.
async fn equal(flow: &Flow, shape: Shape) -> Result<()> {
    let source = compare::connect(&flow.source_admin).await?;
    let target = compare::connect(&flow.target_admin).await?;
    let mut differences = Vec::new();
    for (table, columns, published) in published(shape) {
        let all = format!("SELECT ROW({columns})::text FROM public.{table}");
        let ours = compare::answers(&source, &format!("{all} WHERE {published}")).await?;
        let theirs = compare::answers(&target, &all).await?;
        differences.extend(compare::difference(table, &ours, &theirs));
    }
    ensure!(
        differences.is_empty(),
        "the databases differ:\n{}\n{}",
        differences.join("\n"),
        flow.logs()
    );
    Ok(())
}

/// Each table with its published columns and rows.
fn published(shape: Shape) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut tables = vec![
        ("keyed", "id, client, body", "true"),
        ("keyless", "client, n, note", "true"),
        ("parent", "id, v", "true"),
        ("child", "id, parent, v", "true"),
        ("parts", "id, k, v", "true"),
        ("wide", "id, body, touched", "true"),
        ("late", "id", "true"),
        ("journal", "client, n", "true"),
    ];
    if shape == Shape::Given {
        tables.push(("listed", "id, a", "true"));
        tables.push(("filtered", "id, v", "v % 3 <> 0"));
    }
    tables
}

/// Leaves the servers as they were.
async fn leave(ground: &Ground, mut flow: Flow) -> Result<()> {
    flow.relay = None;
    flow.applier = None;
    let removed = flow.command(&["remove", "--yes"]).await?;
    ensure!(removed.code == 0, "remove: {}", removed.stderr);
    for server in [&ground.source, &ground.target] {
        let admin = compare::connect(&server.url("postgres")).await?;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", flow.name);
        admin.batch_execute(&drop).await?;
    }
    Ok(())
}
