//! Side by side with native logical replication: both drain the same backlog on the same servers
//! in one run, in turn, and ratios are judged.
//!
//! The backlog of a workload is written once. Every round of every contender has a slot that was
//! made before it and a target database that equals the source as it was then, so no round sees
//! what another did.

mod arena;
pub mod backfill;
mod contender;
mod cpu;
mod machine;
mod report;
pub mod verify;
mod workload;

use anyhow::Result;

use self::arena::Arena;
pub use self::arena::SETTINGS;
use self::contender::Ready;
pub use self::contender::{Contender, Round};
pub use self::cpu::{Cpu, Role};
pub use self::machine::Machine;
pub use self::report::{Bar, Report};
pub use self::workload::{Kind, Workload};

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Workloads, in this order.
    pub kinds: Vec<Kind>,
    /// Part of the full workloads; 1 is what the bars are about.
    pub scale: f64,
    /// Drains per contender and workload; the median counts.
    pub rounds: u32,
}

/// All rounds of a workload.
#[derive(Debug)]
pub struct Outcome {
    /// What was replicated.
    pub workload: Workload,
    /// Native's rounds, in the order in which they ran.
    pub native: Vec<Round>,
    /// Trellara's.
    pub trellara: Vec<Round>,
}

/// Runs everything, from fresh servers to the verdicts.
pub async fn bench(options: &BenchOptions) -> Result<Report> {
    let arena = Arena::start(options.version).await?;
    let machine = Machine::of(&arena).await?;
    let mut outcomes = Vec::new();
    for kind in &options.kinds {
        let workload = Workload::scaled(*kind, options.scale);
        outcomes.push(measure(&arena, workload, options.rounds).await?);
    }
    Ok(Report {
        machine,
        scale: options.scale,
        rounds: options.rounds,
        outcomes,
    })
}

async fn measure(arena: &Arena, workload: Workload, rounds: u32) -> Result<Outcome> {
    let name = workload.kind.name();
    tracing::info!("{name}: preparing {}", workload.describe());
    arena.lay_out(&workload).await?;
    let mut ready = Vec::new();
    for number in 0..rounds {
        let mut pair = [Contender::Native, Contender::Trellara];
        // Whoever goes first finds the caches as the other left them: take turns.
        if number % 2 == 1 {
            pair.reverse();
        }
        for contender in pair {
            let stands = Ready::new(arena, workload.kind, contender, number).await?;
            ready.push((contender, stands));
        }
    }
    let source = arena.ground.source.url(&workload.kind.database());
    workload.generate(arena.version, &source).await?;
    let mut outcome = Outcome {
        workload,
        native: Vec::new(),
        trellara: Vec::new(),
    };
    for (contender, stands) in ready {
        arena.source.batch_execute("CHECKPOINT").await?;
        let round = stands.drain(arena).await?;
        tracing::info!(
            "{name}: {} {:.2} s, {:.2} CPU s, {:.2} CPU s of others, load {}",
            contender.name(),
            round.seconds,
            round.cpu_total(),
            round.foreign_cpu,
            machine::load()
        );
        match contender {
            Contender::Native => outcome.native.push(round),
            Contender::Trellara => outcome.trellara.push(round),
        }
    }
    arena.drop_layout(&workload).await?;
    Ok(outcome)
}
