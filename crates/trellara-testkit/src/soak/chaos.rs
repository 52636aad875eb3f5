//! The faults of a soak, dealt by its seed.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use trellara_envelope::{FlowName, StreamSequence};
use trellara_jetstream::consume::move_back;
use trellara_jetstream::{Broker, NatsOptions};
use trellara_relay::rehearsal::{self, RehearsalError};

use super::duplicates::Duplicates;
use super::lines::Lines;
use crate::daemon::Daemon;
use crate::flow::Flow;
use crate::ground::Ground;
use crate::kept::KeptStore;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL of the relay, started again at once.
    KillRelay,
    /// SIGKILL of the applier, started again at once.
    KillApplier,
    /// SIGKILL of nats-server, started again on its store.
    KillBroker,
    /// A line of the daemons is reset.
    CutLine,
    /// A line falls silent for up to four seconds, and what was on its way is lost.
    SilenceLine,
    /// All lines are up to a fifth of a second long each way, for a while.
    SlowLines,
    /// All lines come and go.
    FlapLines,
    /// The broker comes back with an earlier copy of its store. Only with `applied`, which heals it.
    RollBackBroker,
    /// SIGSTOP of the relay for up to three seconds.
    StopRelay,
    /// SIGSTOP of the applier for up to three seconds.
    StopApplier,
    /// SIGSTOP of nats-server for up to three seconds: connections stay, and nothing answers.
    StopBroker,
    /// SIGSTOP of the source server for up to three seconds.
    StopSource,
    /// SIGSTOP of the target server for up to three seconds.
    StopTarget,
    /// `pg_terminate_backend` of the walsender.
    TerminateWalsender,
    /// `pg_terminate_backend` of the applier's sessions.
    TerminateTarget,
    /// The applier's consumer is moved back, or deleted where the server cannot move it.
    MoveConsumerBack,
    /// SIGKILL of the relay; a stored range is published again before it is started.
    PublishAgain,
    /// SIGKILL of the source server, started again.
    CrashSource,
    /// SIGKILL of the target server, started again.
    CrashTarget,
}

/// Ordinary faults; each is dealt once before any comes again.
const FAULTS: [Fault; 17] = [
    Fault::CutLine,
    Fault::SilenceLine,
    Fault::SlowLines,
    Fault::FlapLines,
    Fault::RollBackBroker,
    Fault::KillRelay,
    Fault::KillApplier,
    Fault::KillBroker,
    Fault::StopRelay,
    Fault::StopApplier,
    Fault::StopBroker,
    Fault::StopSource,
    Fault::StopTarget,
    Fault::TerminateWalsender,
    Fault::TerminateTarget,
    Fault::MoveConsumerBack,
    Fault::PublishAgain,
];

/// Every kind of fault.
pub const ALL: [Fault; 19] = [
    Fault::CutLine,
    Fault::SilenceLine,
    Fault::SlowLines,
    Fault::FlapLines,
    Fault::RollBackBroker,
    Fault::KillRelay,
    Fault::KillApplier,
    Fault::KillBroker,
    Fault::StopRelay,
    Fault::StopApplier,
    Fault::StopBroker,
    Fault::StopSource,
    Fault::StopTarget,
    Fault::TerminateWalsender,
    Fault::TerminateTarget,
    Fault::MoveConsumerBack,
    Fault::PublishAgain,
    Fault::CrashSource,
    Fault::CrashTarget,
];

/// Every fifth fault is one of these.
const CRASHES: [Fault; 2] = [Fault::CrashSource, Fault::CrashTarget];

/// The broker's users of the daemons.
const RELAY: &str = "trellara_relay";
const APPLIER: &str = "trellara_applier";

/// Bundles published again, at most.
const MOST_BUNDLES: usize = 25;

/// Deals faults, and remembers them.
pub(super) struct Chaos {
    random: StdRng,
    deck: Vec<Fault>,
    crashes: Vec<Fault>,
    number: u32,
    made: Vec<Fault>,
    lines: Lines,
    /// What this soak does not do.
    without: &'static [Fault],
    pub(super) duplicates: Duplicates,
}

impl Chaos {
    /// `applied` says that the flow confirms what is applied, and so may lose a stream's end.
    pub(super) fn new(seed: u64, lines: Lines, applied: bool, duplicates: Duplicates) -> Self {
        Self {
            lines,
            without: match applied {
                true => &[],
                false => &[Fault::RollBackBroker],
            },
            random: StdRng::seed_from_u64(seed),
            deck: Vec::new(),
            crashes: Vec::new(),
            number: 0,
            made: Vec::new(),
            duplicates,
        }
    }

    /// Two to three seconds between faults: the system must get somewhere in between.
    pub(super) async fn pause(&mut self, flow: &Flow) {
        let length = Duration::from_millis(self.random.random_range(2000..3000));
        let deadline = Instant::now() + length;
        while Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            self.duplicates.look(flow).await;
        }
    }

    /// The next fault.
    pub(super) async fn strike(&mut self, ground: &mut Ground, flow: &mut Flow) -> Result<()> {
        self.number += 1;
        let crash = self.number.is_multiple_of(5);
        let fault = if crash {
            deal(&mut self.crashes, &CRASHES, &mut self.random)
        } else {
            deal(&mut self.deck, &FAULTS, &mut self.random)
        };
        if self.without.contains(&fault) {
            return Ok(());
        }
        let happened = self.make(fault, ground, flow).await?;
        if !happened && !crash {
            // There was nobody to hit: it is the next again.
            self.deck.push(fault);
        }
        Ok(())
    }

    /// How often a fault was dealt.
    pub(super) fn struck(&self) -> u32 {
        self.number
    }

    /// Whether each kind of fault was made at least once.
    pub(super) fn made_all(&self) -> bool {
        self.tally().iter().all(|(_, count)| *count > 0)
    }

    /// This fault; whether it happened.
    pub(super) async fn make(
        &mut self,
        fault: Fault,
        ground: &mut Ground,
        flow: &mut Flow,
    ) -> Result<bool> {
        self.duplicates.look(flow).await;
        for daemon in [&mut flow.relay, &mut flow.applier].into_iter().flatten() {
            ensure!(
                daemon.is_running(),
                "a daemon ended by itself; its log:\n{}",
                daemon.log()
            );
        }
        let happened = self
            .happen(fault, ground, flow)
            .await
            .with_context(|| format!("making fault {} ({fault:?})", self.number))?;
        tracing::info!(?fault, number = self.number, happened, "fault");
        if happened {
            self.made.push(fault);
        }
        Ok(happened)
    }

    async fn happen(&mut self, fault: Fault, ground: &mut Ground, flow: &mut Flow) -> Result<bool> {
        match fault {
            Fault::KillRelay => {
                kill_relay(flow)?;
                flow.start_relay()?;
            }
            Fault::KillApplier => {
                if let Some(applier) = flow.applier.as_mut() {
                    applier.kill()?;
                }
                flow.start_applier()?;
            }
            Fault::KillBroker => {
                ground.nats.kill()?;
                ground.nats.start_again()?;
            }
            Fault::CutLine => self.lines.cut(&mut self.random),
            Fault::SilenceLine => self.lines.silence(&mut self.random).await,
            Fault::SlowLines => self.lines.slow_down(&mut self.random).await,
            Fault::FlapLines => self.lines.flap(&mut self.random).await,
            Fault::RollBackBroker => self.roll_back(ground).await?,
            Fault::StopRelay => return self.stop_daemon(flow.relay.as_ref()).await,
            Fault::StopApplier => return self.stop_daemon(flow.applier.as_ref()).await,
            Fault::StopBroker => {
                ground.nats.pause()?;
                self.stand_still().await;
                ground.nats.resume()?;
            }
            Fault::StopSource => {
                ground.source.pause()?;
                self.stand_still().await;
                ground.source.resume()?;
            }
            Fault::StopTarget => {
                ground.target.pause()?;
                self.stand_still().await;
                ground.target.resume()?;
            }
            Fault::TerminateWalsender => {
                return terminated(ground.source.psql(
                    &flow.name,
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
                ));
            }
            Fault::TerminateTarget => {
                return terminated(ground.target.psql(
                    &flow.name,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'trellara%'",
                ));
            }
            Fault::MoveConsumerBack => return self.move_consumer_back(flow).await,
            Fault::PublishAgain => {
                kill_relay(flow)?;
                self.duplicates.repeated += publish_again(flow).await?;
                flow.start_relay()?;
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
        Ok(true)
    }

    async fn roll_back(&mut self, ground: &mut Ground) -> Result<()> {
        let kept = KeptStore::of(&ground.nats)?;
        self.stand_still().await;
        kept.put_back(&mut ground.nats, Path::new(""))
    }

    async fn stand_still(&mut self) {
        let length = Duration::from_millis(self.random.random_range(300..3000));
        tokio::time::sleep(length).await;
    }

    /// Stops a daemon for a while, if it is there.
    async fn stop_daemon(&mut self, daemon: Option<&Daemon>) -> Result<bool> {
        let Some(daemon) = daemon else {
            return Ok(false);
        };
        daemon.signal(Signal::SIGSTOP)?;
        self.stand_still().await;
        daemon.signal(Signal::SIGCONT)?;
        Ok(true)
    }

    /// Back from where the applier says it is; an applier that does not answer is left alone.
    async fn move_consumer_back(&mut self, flow: &Flow) -> Result<bool> {
        let back: u64 = self.random.random_range(10..200);
        let status = match &flow.applier {
            Some(applier) => applier.status().await,
            None => None,
        };
        let Some(at) = status
            .as_ref()
            .and_then(|status| status["daemons"][0]["stream_sequence"].as_u64())
            .filter(|at| *at > 0)
        else {
            return Ok(false);
        };
        let broker = connect(flow, APPLIER).await?;
        let stream = FlowName::from_str(&flow.name)?.stream();
        let to = StreamSequence(at.saturating_sub(back).max(1));
        let moved = move_back(&broker, &stream, "applier", to).await;
        broker.close().await;
        match moved {
            Ok(()) => Ok(true),
            // The applier is just making it anew.
            Err(error) if error.is_missing() || error.is_passing() => Ok(false),
            Err(_) => Ok(delete_consumer(flow, &stream).await.is_ok()),
        }
    }

    pub(super) fn tally(&self) -> Vec<(Fault, u32)> {
        ALL.into_iter()
            .filter(|fault| !self.without.contains(fault))
            .map(|fault| {
                let count = self.made.iter().filter(|made| **made == fault).count();
                (fault, count as u32)
            })
            .collect()
    }
}

/// Publishes the last bundles of a flow again, whose relay must be down; how many transactions
/// are in them. The dead relay's last words may still be on their way to the broker.
pub async fn publish_again(flow: &Flow) -> Result<u64> {
    const TRIES: u32 = 20;
    let broker = connect(flow, RELAY).await?;
    let name = FlowName::from_str(&flow.name)?;
    let mut tries = 0;
    let repeated = loop {
        tries += 1;
        match rehearsal::publish_again(&broker, &name, MOST_BUNDLES).await {
            Err(RehearsalError::NotStored(outcome)) if tries < TRIES => {
                tracing::debug!(?outcome, "publishing again is tried again");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => break other?,
        }
    };
    broker.close().await;
    Ok(repeated.transactions as u64)
}

/// The top of a deck that is shuffled anew whenever it is empty.
fn deal(deck: &mut Vec<Fault>, all: &[Fault], random: &mut StdRng) -> Fault {
    if deck.is_empty() {
        deck.extend_from_slice(all);
        deck.shuffle(random);
    }
    deck.pop().expect("just filled")
}

fn kill_relay(flow: &mut Flow) -> Result<()> {
    match flow.relay.as_mut() {
        Some(relay) => relay.kill(),
        None => Ok(()),
    }
}

/// The server may itself be starting, or nobody be connected; then the fault did not happen.
fn terminated<E>(answer: Result<String, E>) -> Result<bool> {
    Ok(answer.is_ok_and(|text| text.lines().any(|line| line.trim() == "t")))
}

fn as_user(flow: &Flow, user: &str) -> String {
    flow.places.nats_url.replacen("trellara_admin", user, 1)
}

/// With the rights of that daemon, inbox included.
async fn connect(flow: &Flow, user: &str) -> Result<Broker> {
    let options = NatsOptions {
        url: as_user(flow, user),
        client_name: "trellara soak".to_owned(),
        inbox_prefix: format!("_INBOX_{user}"),
        ..NatsOptions::default()
    };
    Ok(Broker::connect(&options).await?)
}

/// What is left to do to a consumer on servers that cannot move it.
async fn delete_consumer(flow: &Flow, stream: &str) -> Result<()> {
    let client = async_nats::ConnectOptions::new()
        .custom_inbox_prefix(format!("_INBOX_{APPLIER}"))
        .connect(as_user(flow, APPLIER))
        .await?;
    async_nats::jetstream::new(client)
        .get_stream(stream)
        .await?
        .delete_consumer("applier")
        .await?;
    Ok(())
}
