//! The two contenders: each is set up before the backlog, and drains it once per round.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio_postgres::Client;

use super::arena::Arena;
use super::cpu::{self, Cpu, Role, Server};
use super::workload::{Kind, MARKER};
use crate::compare;
use crate::flow::{Flow, Places};

/// How often the target is asked for the marker; the error of a measured time.
const POLL: Duration = Duration::from_millis(10);
/// A drain that takes longer than this has stopped.
const PATIENCE: Duration = Duration::from_secs(900);
/// Replication of a database that is about to be dropped ends within this.
const ENDING: Duration = Duration::from_secs(30);

/// Who replicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// PostgreSQL's own logical replication.
    Native,
    /// Relay, broker and applier.
    Trellara,
}

impl Contender {
    /// For tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Native => "native",
            Contender::Trellara => "trellara",
        }
    }
}

/// One drain.
#[derive(Debug, Clone)]
pub struct Round {
    /// From the start of the contender until the marker was visible at the target.
    pub seconds: f64,
    /// CPU seconds by role.
    pub cpu: Cpu,
    /// CPU seconds of everything else on the machine meanwhile, this program apart.
    pub foreign_cpu: f64,
}

impl Round {
    /// CPU seconds of all processes that took part.
    pub fn cpu_total(&self) -> f64 {
        self.cpu.values().sum()
    }
}

/// A contender that stands ready in front of the backlog, with a target database of its own.
#[derive(Debug)]
pub(super) struct Ready {
    source: String,
    target: String,
    kind: Side,
}

#[derive(Debug)]
enum Side {
    Native,
    Trellara(Box<Flow>),
}

/// The publication that native subscriptions read.
pub(super) const PUBLICATION: &str = "native";

impl Ready {
    /// Makes its slot and everything else that must be there before the backlog.
    pub(super) async fn new(
        arena: &Arena,
        kind: Kind,
        contender: Contender,
        number: u32,
    ) -> Result<Self> {
        let source = kind.database();
        let target = format!("{source}_{}_{number}", contender.name());
        arena.clone_target(&source, &target).await?;
        let side = match contender {
            Contender::Native => {
                let subscribe = format!(
                    "CREATE SUBSCRIPTION {target} CONNECTION '{}' PUBLICATION {PUBLICATION}
                     WITH (enabled = false, copy_data = false)",
                    arena.ground.source.url(&source)
                );
                // Without copying the slot is made at once, as the worker will find it.
                arena.in_target(&target, &subscribe).await?;
                Side::Native
            }
            Contender::Trellara => {
                let places = Places {
                    source_url: arena.ground.source.url(&source),
                    target_url: arena.ground.target.url(&target),
                    nats_url: arena.ground.nats.url(),
                    nats_monitor_url: Some(arena.ground.nats.monitor_url()),
                };
                let name = format!("{source}r{number}");
                let flow = Flow::new(&name, places, kind.flow_configuration())?;
                flow.setup().await?;
                Side::Trellara(Box::new(flow))
            }
        };
        Ok(Self {
            source,
            target,
            kind: side,
        })
    }

    /// Drains the backlog, checks that both sides are equal, and clears away what is left.
    pub(super) async fn drain(mut self, arena: &Arena) -> Result<Round> {
        let target = arena.connect_target(&self.target).await?;
        // Every page that is touched costs its full image once after a checkpoint: for both alike.
        arena.target.batch_execute("CHECKPOINT").await?;
        let round = self.timed(arena, &target).await?;
        self.check(arena, &target).await?;
        drop(target);
        self.clear(arena).await?;
        Ok(round)
    }

    async fn timed(&mut self, arena: &Arena, target: &Client) -> Result<Round> {
        let servers = arena.servers()?;
        let before = servers
            .iter()
            .map(Server::before)
            .collect::<Result<Vec<_>>>()?;
        let broker = arena.ground.nats.pid().context("the broker has ended")?;
        let (broker_before, machine) = (cpu::used(broker), cpu::machine()?);
        let own = cpu::used(std::process::id());
        let begun = Instant::now();
        self.start(target).await?;
        self.wait_for_marker(target, begun).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut cpu = Cpu::new();
        for (server, before) in servers.iter().zip(&before) {
            server.add(before, &mut cpu).await?;
        }
        if let Side::Trellara(flow) = &self.kind {
            cpu.insert(Role::Broker, cpu::used(broker) - broker_before);
            let daemon = |daemon: &Option<crate::daemon::Daemon>| {
                daemon
                    .as_ref()
                    .map_or(0.0, |daemon| cpu::used(daemon.pid()))
            };
            cpu.insert(Role::Relay, daemon(&flow.relay));
            cpu.insert(Role::Applier, daemon(&flow.applier));
        }
        let own = cpu::used(std::process::id()) - own;
        let foreign = cpu::machine()? - machine - own - cpu.values().sum::<f64>();
        Ok(Round {
            seconds,
            cpu,
            foreign_cpu: foreign.max(0.0),
        })
    }

    async fn start(&mut self, target: &Client) -> Result<()> {
        match &mut self.kind {
            Side::Native => {
                let enable = format!("ALTER SUBSCRIPTION {} ENABLE", self.target);
                target.batch_execute(&enable).await?;
            }
            Side::Trellara(flow) => {
                flow.start_relay()?;
                flow.start_applier()?;
            }
        }
        Ok(())
    }

    async fn wait_for_marker(&mut self, target: &Client, begun: Instant) -> Result<()> {
        let look = target.prepare(&format!("SELECT FROM {MARKER}")).await?;
        while target.query_opt(&look, &[]).await?.is_none() {
            if let Side::Trellara(flow) = &mut self.kind {
                let ended = [&mut flow.relay, &mut flow.applier]
                    .into_iter()
                    .flatten()
                    .any(|daemon| !daemon.is_running());
                if ended {
                    bail!("a daemon ended:\n{}", flow.logs());
                }
            }
            if begun.elapsed() > PATIENCE {
                let logs = match &self.kind {
                    Side::Native => String::new(),
                    Side::Trellara(flow) => flow.logs(),
                };
                bail!("{} did not drain within {PATIENCE:?}\n{logs}", self.target);
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// A fast contender that loses or garbles rows has not replicated anything.
    async fn check(&self, arena: &Arena, target: &Client) -> Result<()> {
        let source = arena.connect_source(&self.source).await?;
        for table in compare::tables(&source).await? {
            // Columns by name: the text of a row does not depend on where a table came from here.
            let sum = format!(
                "SELECT count(*)::text || ' rows, sum ' ||
                        coalesce(sum(pg_catalog.hashtextextended(t::text, 0)), 0)::text
                   FROM {table} AS t"
            );
            let here: String = source.query_one(&sum, &[]).await?.get(0);
            let there: String = target.query_one(&sum, &[]).await?.get(0);
            ensure!(
                here == there,
                "{}: {table} has {here} on the source and {there} on the target",
                self.target
            );
        }
        Ok(())
    }

    async fn clear(self, arena: &Arena) -> Result<()> {
        let Self {
            source,
            target,
            kind,
        } = self;
        let slot = match kind {
            Side::Native => {
                let disable = format!("ALTER SUBSCRIPTION {target} DISABLE");
                arena.in_target(&target, &disable).await?;
                let forget = format!("ALTER SUBSCRIPTION {target} SET (slot_name = NONE)");
                arena.in_target(&target, &forget).await?;
                let unsubscribe = format!("DROP SUBSCRIPTION {target}");
                arena.in_target(&target, &unsubscribe).await?;
                target.clone()
            }
            Side::Trellara(mut flow) => {
                flow.relay = None;
                flow.applier = None;
                format!("trellara_{}", flow.name)
            }
        };
        let drop_target = format!("DROP DATABASE {target} WITH (FORCE)");
        arena.target.batch_execute(&drop_target).await?;
        let source = arena.connect_source(&source).await?;
        let begun = Instant::now();
        loop {
            // The walsender may still be noticing that its reader has gone.
            let dropped = source
                .query_one("SELECT pg_drop_replication_slot($1)", &[&slot])
                .await;
            match dropped {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > ENDING => {
                    return Err(error).with_context(|| format!("dropping slot {slot}"));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }
}
