//! The soak: everything is killed again and again under load, and the oracle judges.

pub mod chaos;
mod duplicates;
mod lines;

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use trellara_local::{NatsOptions, shared};

use crate::compare;
use crate::flow::Flow;
use crate::ground::{Ground, GroundOptions};
use crate::oracle::{Observer, Truth, Verdict, Workload, WorkloadOptions, judge, workload};

use chaos::{Chaos, Fault};
use duplicates::Duplicates;
use lines::Lines;

/// The flow, and its databases.
const FLOW: &str = "soak";
/// After healing everything the target must have caught up within this.
const CONVERGENCE: Duration = Duration::from_secs(90);
/// A soak of this length must have made every kind of fault.
const LONG: Duration = Duration::from_secs(40);
/// What a long soak may take longer until it has: faults are dealt evenly, so on a machine that
/// hardly gets anywhere the last kind comes late.
const OVERTIME: Duration = Duration::from_secs(60);
/// After so many faults the target must catch up once.
const BREATH: u32 = 8;
/// Distinct checkpoints that a photograph must have been taken of, for each second of the soak.
/// Twenty photographs are taken in a second; while something is down they show the same.
const POSITIONS_PER_SECOND: f64 = 4.0;

/// What to soak, and for how long.
#[derive(Debug, Clone)]
pub struct SoakOptions {
    /// Of both PostgreSQL servers.
    pub version: u32,
    /// Of the broker.
    pub nats_version: String,
    /// How long faults are made.
    pub duration: Duration,
    /// Sessions that write.
    pub clients: u32,
    /// Transactions per second and session at most.
    pub rate_per_client: u32,
    /// Seed of workload and faults.
    pub seed: u64,
    /// Extra configuration lines, see [`Flow::new`].
    pub extra: String,
}

/// What a soak saw.
#[derive(Debug)]
pub struct SoakReport {
    /// How long faults were to be made.
    pub duration: Duration,
    /// The oracle's verdict.
    pub verdict: Verdict,
    /// Transactions answered to the clients as committed.
    pub committed: u64,
    /// Connections that clients had to make anew.
    pub reconnects: u64,
    /// Faults made, by kind.
    pub faults: Vec<(Fault, u32)>,
    /// Transactions published a second time on purpose.
    pub repeated: u64,
    /// Transactions that were delivered to the applier although they were applied already.
    pub duplicates: u64,
    /// From the end of the load to convergence.
    pub convergence: Duration,
    /// Largest resident set of any relay, bytes.
    pub relay_peak: u64,
    /// Largest resident set of any applier, bytes.
    pub applier_peak: u64,
}

impl SoakReport {
    /// Whether everything held, and the soak was worth its name.
    pub fn passed(&self) -> bool {
        self.verdict.holds() && self.proves_nothing().is_empty()
    }

    /// Why a verdict without violations would say less than it seems to.
    pub fn proves_nothing(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.duplicates == 0 {
            why.push("no duplicate was delivered".to_owned());
        }
        let due = (self.duration.as_secs_f64() * POSITIONS_PER_SECOND) as usize;
        let seen = self.verdict.distinct_positions;
        if seen < due {
            why.push(format!(
                "{seen} distinct positions were seen, {due} are due"
            ));
        }
        let made = |fault: Fault| {
            self.faults
                .iter()
                .any(|(f, count)| *f == fault && *count > 0)
        };
        if made(Fault::CrashSource) && self.reconnects == 0 {
            why.push("the source crashed and no client noticed".to_owned());
        }
        if self.duration >= LONG {
            let missing = self.faults.iter().filter(|(_, count)| *count == 0);
            why.extend(missing.map(|(fault, _)| format!("{fault:?} was never made")));
        }
        why
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verdict)?;
        writeln!(
            f,
            "committed to clients: {}, reconnects: {}",
            self.committed, self.reconnects
        )?;
        let faults: Vec<String> = self
            .faults
            .iter()
            .map(|(fault, count)| format!("{fault:?} {count}"))
            .collect();
        writeln!(f, "faults: {}", faults.join(", "))?;
        writeln!(
            f,
            "published again: {}, duplicates delivered: {}, converged in {:.1} s",
            self.repeated,
            self.duplicates,
            self.convergence.as_secs_f64()
        )?;
        writeln!(
            f,
            "peak memory: relay {} MiB, applier {} MiB",
            self.relay_peak >> 20,
            self.applier_peak >> 20
        )?;
        let why = self.proves_nothing();
        let verdict = match (self.verdict.holds(), why.is_empty()) {
            (false, _) => "FAILED: the oracle objects".to_owned(),
            (true, false) => format!("FAILED: nothing is proven: {}", why.join("; ")),
            (true, true) => "passed: nothing lost, doubled, torn or reordered".to_owned(),
        };
        writeln!(f, "{verdict}")
    }
}

/// Runs one soak from fresh servers to the verdict.
pub async fn soak(options: &SoakOptions) -> Result<SoakReport> {
    let mut ground = ground(options)?;
    let mut extra = options.extra.clone();
    if applied(options) && !extra.contains("source.acknowledge") {
        extra.push_str("\nsource.acknowledge: applied");
    }
    let mut flow = ground
        .flow(FLOW, workload::SCHEMA, workload::SCHEMA, &extra)
        .await?;
    let result = run(options, &mut ground, &mut flow).await;
    let failed = result.as_ref().map_or(true, |report| !report.passed());
    if failed {
        let kept = keep_logs(&flow, options.seed);
        tracing::error!(folder = %kept.display(), seed = options.seed, "logs of the failed soak");
    }
    result
}

async fn run(options: &SoakOptions, ground: &mut Ground, flow: &mut Flow) -> Result<SoakReport> {
    let source = compare::connect(&flow.source_admin).await?;
    source
        .batch_execute("ALTER TABLE public.keyless REPLICA IDENTITY FULL")
        .await?;
    Truth::create_slot(&source, "oracle").await?;
    flow.setup().await?;
    let lines = Lines::lay(ground, flow).await?;
    flow.start_relay()?;
    flow.start_applier()?;
    let load = load(options);
    source.batch_execute("SET search_path = public").await?;
    Workload::seed_rows(&source, &load).await?;
    drop(source);
    let observer = Observer::start(&flow.target_admin, FLOW, Duration::from_millis(50));
    let writers = Workload::start(&flow.source_admin, &load);
    let mut chaos = Chaos::new(options.seed, lines, applied(options), Duplicates::default());
    let deadline = Instant::now() + options.duration;
    let missing = |chaos: &Chaos| options.duration >= LONG && !chaos.made_all();
    while Instant::now() < deadline || (missing(&chaos) && Instant::now() < deadline + OVERTIME) {
        chaos.pause(flow).await;
        chaos.strike(ground, flow).await?;
        // Without a breath the backlog grows for as long as faults come: after each crash the source
        // decodes once more what was not confirmed at its last checkpoint.
        if chaos.struck().is_multiple_of(BREATH) {
            flow.caught_up(CONVERGENCE)
                .await
                .context("between two faults")?;
        }
    }
    let totals = writers.finish().await;
    let ended = Instant::now();
    // Whatever the seed chose, the soak ends with duplicates of a quiet flow.
    chaos.make(Fault::PublishAgain, ground, flow).await?;
    flow.converges(CONVERGENCE)
        .await
        .context("after healing everything")?;
    let convergence = ended.elapsed();
    chaos.duplicates.settle(flow).await;
    let observations = observer.finish().await?;
    ensure!(!observations.is_empty(), "the observer saw nothing");
    let source = compare::connect(&flow.source_admin).await?;
    let target = compare::connect(&flow.target_admin).await?;
    let truth = Truth::read(&source, "oracle").await?;
    Ok(SoakReport {
        duration: options.duration,
        verdict: judge(&truth, &observations, &target, FLOW).await?,
        committed: totals.committed,
        reconnects: totals.reconnects,
        faults: chaos.tally(),
        repeated: chaos.duplicates.repeated,
        duplicates: chaos.duplicates.delivered(),
        convergence,
        relay_peak: chaos.duplicates.relay_peak,
        applier_peak: chaos.duplicates.applier_peak,
    })
}

/// Every second seed confirms what is applied, the others what is published.
fn applied(options: &SoakOptions) -> bool {
    match options.extra.contains("source.acknowledge") {
        true => options.extra.contains("acknowledge: applied"),
        false => options.seed % 2 == 1,
    }
}

fn ground(options: &SoakOptions) -> Result<Ground> {
    let nats = NatsOptions {
        version: options.nats_version.clone(),
        ..shared::nats()
    };
    Ground::start(&GroundOptions {
        nats,
        ..GroundOptions::version(options.version)
            .source("logical_decoding_work_mem", "64kB")
            .source("wal_sender_timeout", "5s")
            .source("max_connections", "60")
    })
}

fn load(options: &SoakOptions) -> WorkloadOptions {
    WorkloadOptions {
        clients: options.clients,
        keys: 150,
        accounts: 100,
        rate_per_client: options.rate_per_client,
        big_every: 97,
        big_rows: 400,
        seed: options.seed,
    }
}

/// Copies the flow's folder to where it outlives the flow.
fn keep_logs(flow: &Flow, seed: u64) -> PathBuf {
    let kept = std::env::temp_dir().join(format!("trellara-soak-{seed}"));
    _ = std::fs::create_dir_all(&kept);
    for name in ["relay.log", "applier.log"] {
        _ = std::fs::copy(flow.folder().join(name), kept.join(name));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long soak that made every fault but those of `without`.
    fn report(without: &[Fault]) -> SoakReport {
        SoakReport {
            duration: LONG,
            verdict: Verdict {
                distinct_positions: 160,
                ..Verdict::default()
            },
            committed: 1,
            reconnects: 1,
            faults: chaos::ALL
                .map(|fault| (fault, u32::from(!without.contains(&fault))))
                .to_vec(),
            repeated: 1,
            duplicates: 1,
            convergence: Duration::ZERO,
            relay_peak: 0,
            applier_peak: 0,
        }
    }

    #[test]
    fn a_soak_that_met_too_little_has_not_passed() {
        assert!(report(&[]).passed());
        for fault in chaos::ALL {
            let report = report(&[fault]);
            assert!(!report.passed());
            assert!(
                report
                    .to_string()
                    .contains(&format!("{fault:?} was never made"))
            );
        }
        let few = [
            |report: &mut SoakReport| report.duplicates = 0,
            |report: &mut SoakReport| report.reconnects = 0,
            |report: &mut SoakReport| report.verdict.distinct_positions = 159,
            |report: &mut SoakReport| report.verdict.violations.push("H1".to_owned()),
        ];
        for spoil in few {
            let mut report = report(&[]);
            spoil(&mut report);
            assert!(!report.passed(), "{report}");
        }
        // A short one cannot meet every fault.
        let mut short = report(&[Fault::CrashSource, Fault::KillBroker]);
        short.duration = LONG / 2;
        short.reconnects = 0;
        assert!(short.passed(), "{short}");
    }
}
