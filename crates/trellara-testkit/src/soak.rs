//! The soak: everything is killed again and again under load, and the oracle judges.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use trellara_local::NatsOptions;

use crate::compare;
use crate::flow::Flow;
use crate::ground::{Ground, GroundOptions};
use crate::oracle::{Observer, Truth, Verdict, Workload, WorkloadOptions, judge, workload};

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
    /// Seed of workload and faults.
    pub seed: u64,
    /// Extra configuration lines, see [`Flow::new`].
    pub extra: String,
}

/// What a soak saw.
#[derive(Debug)]
pub struct SoakReport {
    /// The oracle's verdict.
    pub verdict: Verdict,
    /// Transactions answered to the clients.
    pub committed: u64,
    /// Faults made, by kind.
    pub faults: Vec<(Fault, u32)>,
    /// Duplicate transactions that were delivered to the applier and skipped.
    pub duplicates: u64,
    /// Seconds from the last heal to convergence.
    pub convergence: Duration,
}

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL of the relay, started again at once.
    KillRelay,
    /// SIGKILL of the applier, started again at once.
    KillApplier,
    /// SIGKILL of nats-server, started again on its store.
    KillBroker,
    /// `pg_terminate_backend` of the walsender.
    TerminateWalsender,
    /// `pg_terminate_backend` of the applier's sessions.
    TerminateTarget,
    /// SIGKILL of the source server, started again.
    CrashSource,
    /// SIGKILL of the target server, started again.
    CrashTarget,
}

const FAULTS: [Fault; 7] = [
    Fault::KillRelay,
    Fault::KillApplier,
    Fault::KillBroker,
    Fault::TerminateWalsender,
    Fault::TerminateTarget,
    Fault::CrashSource,
    Fault::CrashTarget,
];

/// Runs one soak from fresh servers to the verdict.
pub async fn soak(options: &SoakOptions) -> Result<SoakReport> {
    let nats = NatsOptions {
        version: options.nats_version.clone(),
        sync_always: true,
        ..NatsOptions::default()
    };
    let mut ground = Ground::start(&GroundOptions {
        nats,
        ..GroundOptions::version(options.version)
            .source("logical_decoding_work_mem", "64kB")
            .source("wal_sender_timeout", "5s")
            .source("max_connections", "60")
    })?;
    let mut flow = ground
        .flow("soak", workload::SCHEMA, workload::SCHEMA, &options.extra)
        .await?;
    let source = compare::connect(&flow.source_admin).await?;
    source
        .batch_execute("ALTER TABLE public.keyless REPLICA IDENTITY FULL")
        .await?;
    Truth::create_slot(&source, "oracle").await?;
    flow.start().await?;
    let load = WorkloadOptions {
        clients: options.clients,
        keys: 150,
        accounts: 100,
        rate_per_client: 40,
        big_every: 97,
        big_rows: 400,
        seed: options.seed,
    };
    source.batch_execute("SET search_path = public").await?;
    Workload::seed_rows(&source, &load).await?;
    drop(source);
    let observer = Observer::start(&flow.target_admin, "soak", Duration::from_millis(50));
    let writers = Workload::start(&flow.source_admin, &load);
    let mut chaos = Chaos::new(options.seed);
    let deadline = Instant::now() + options.duration;
    while Instant::now() < deadline {
        chaos.pause().await;
        chaos.strike(&mut ground, &mut flow).await?;
    }
    let totals = writers.finish().await;
    let healed = Instant::now();
    flow.converges(Duration::from_secs(90))
        .await
        .context("after healing everything")?;
    let convergence = healed.elapsed();
    let observations = observer.finish().await?;
    let source = compare::connect(&flow.source_admin).await?;
    let target = compare::connect(&flow.target_admin).await?;
    let truth = Truth::read(&source, "oracle").await?;
    let deposit = i64::from(load.accounts) * 1000;
    let verdict = judge(&truth, &observations, &target, "soak", deposit).await?;
    ensure!(verdict.observations > 0, "the observer saw nothing");
    if !verdict.holds() {
        let kept = std::env::temp_dir().join("trellara-soak-failed.log");
        _ = std::fs::write(&kept, format!("{verdict}\n{}", flow.logs()));
    }
    Ok(SoakReport {
        verdict,
        committed: totals.committed,
        faults: chaos.tally(),
        duplicates: chaos.duplicates + duplicates(&flow),
        convergence,
    })
}

/// What the applier's present run counted as delivered twice.
fn duplicates(flow: &Flow) -> u64 {
    let Some(applier) = &flow.applier else {
        return 0;
    };
    applier
        .log()
        .lines()
        .filter_map(|line| {
            line.split_once("duplicates=")?
                .1
                .split_whitespace()
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum()
}

struct Chaos {
    random: StdRng,
    number: u32,
    made: Vec<Fault>,
    duplicates: u64,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            number: 0,
            made: Vec::new(),
            duplicates: 0,
        }
    }

    /// Two to three seconds between faults: the system must get somewhere in between.
    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.random.random_range(2000..3000))).await;
    }

    async fn strike(&mut self, ground: &mut Ground, flow: &mut Flow) -> Result<()> {
        self.number += 1;
        let fault = if self.number.is_multiple_of(5) {
            FAULTS[5 + self.random.random_range(0..2)]
        } else {
            FAULTS[self.random.random_range(0..5)]
        };
        tracing::info!(?fault, number = self.number, "fault");
        match fault {
            Fault::KillRelay => {
                if let Some(relay) = flow.relay.as_mut() {
                    relay.kill()?;
                }
                flow.start_relay()?;
            }
            Fault::KillApplier => {
                self.duplicates += duplicates(flow);
                if let Some(applier) = flow.applier.as_mut() {
                    applier.kill()?;
                }
                flow.start_applier()?;
            }
            Fault::KillBroker => {
                ground.nats.kill()?;
                ground.nats.start_again()?;
            }
            Fault::TerminateWalsender => {
                // The server may itself be starting; then this fault simply does not happen.
                _ = ground.source.psql(
                    "soak",
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
                );
            }
            Fault::TerminateTarget => {
                _ = ground.target.psql(
                    "soak",
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'trellara%'",
                );
            }
            Fault::CrashSource => {
                ground.source.kill()?;
                ground.source.start_again()?;
            }
            Fault::CrashTarget => {
                ground.target.kill()?;
                ground.target.start_again()?;
            }
        }
        self.made.push(fault);
        Ok(())
    }

    fn tally(&self) -> Vec<(Fault, u32)> {
        FAULTS
            .into_iter()
            .map(|fault| {
                (
                    fault,
                    self.made.iter().filter(|made| **made == fault).count() as u32,
                )
            })
            .collect()
    }
}
