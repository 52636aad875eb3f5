//! SIGKILL of the parts of a flow while it copies: at moments that a seed deals, or at each boundary
//! between two parts of the copy.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::gate::Gate;
use crate::flow::Flow;
use crate::ground::Ground;

/// Once all is in nobody comes to the gate any more.
const COMES_WITHIN: Duration = Duration::from_secs(5);

/// A part of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    /// The relay, which holds the snapshot.
    Relay,
    /// The applier, in the middle of a part or between two.
    Applier,
    /// nats-server, started again on its store.
    Broker,
}

/// Every part.
pub const VICTIMS: [Victim; 3] = [Victim::Relay, Victim::Applier, Victim::Broker];

/// Where in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillPlan {
    /// Of any victim at any moment.
    Random {
        /// In one copy, at most.
        most: u32,
        /// Milliseconds between two, at most.
        apart: u64,
    },
    /// Before the first part is in, behind each that is, and behind the last.
    Boundaries {
        /// Whom each time; without one, each victim in turn.
        victim: Option<Victim>,
        /// One boundary of so many.
        every: u32,
    },
}

/// Deals them.
pub(super) struct Kills {
    random: StdRng,
    made: BTreeMap<Victim, u32>,
}

impl Kills {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            made: BTreeMap::new(),
        }
    }

    /// As planned, for as long as the copy is not in; how many of each victim were killed.
    pub(super) async fn deal(
        mut self,
        plan: KillPlan,
        (ground, flow): (&mut Ground, &mut Flow),
        gate: Option<Gate>,
        patience: Duration,
    ) -> Result<BTreeMap<Victim, u32>> {
        match (plan, gate) {
            (KillPlan::Random { most, apart }, _) => {
                self.at_random(ground, flow, most, apart).await?;
            }
            (KillPlan::Boundaries { victim, every }, Some(gate)) => {
                self.at_boundaries(ground, flow, (victim, every), &gate, patience)
                    .await?;
                gate.open().await?;
            }
            (KillPlan::Boundaries { .. }, None) => anyhow::bail!("boundaries need a gate"),
        }
        Ok(self.made)
    }

    async fn at_random(
        &mut self,
        ground: &mut Ground,
        flow: &mut Flow,
        most: u32,
        apart: u64,
    ) -> Result<()> {
        for _ in 0..most {
            let pause = self.random.random_range(1..=apart.max(1));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if flow.copying().await?.is_in() {
                break;
            }
            let victim = VICTIMS[self.random.random_range(0..VICTIMS.len())];
            self.strike(victim, ground, flow)?;
        }
        Ok(())
    }

    /// The seed says whether the next part stands in front of the gate already, its rows written and
    /// its transaction open, or whoever dies has just heard of the last one's commit.
    async fn at_boundaries(
        &mut self,
        ground: &mut Ground,
        flow: &mut Flow,
        (victim, every): (Option<Victim>, u32),
        gate: &Gate,
        patience: Duration,
    ) -> Result<()> {
        let mut turn = self.random.random_range(0..VICTIMS.len());
        for parts in 0.. {
            gate.allow(parts).await?;
            let reached = |copying: &crate::copying::Copying| {
                copying.parts >= parts || copying.is_in() || copying.failed > 0
            };
            let copying = flow.copying_until(reached, patience).await?;
            let is_in = copying.is_in() || copying.failed > 0;
            if is_in || parts % i64::from(every.max(1)) == 0 {
                if !is_in && self.random.random() {
                    gate.waited_at(COMES_WITHIN).await?;
                }
                turn += 1;
                let victim = victim.unwrap_or(VICTIMS[turn % VICTIMS.len()]);
                self.strike(victim, ground, flow)?;
            }
            if is_in {
                break;
            }
        }
        Ok(())
    }

    /// Kills one of them, and starts it again.
    fn strike(&mut self, victim: Victim, ground: &mut Ground, flow: &mut Flow) -> Result<()> {
        kill(victim, ground, flow)?;
        *self.made.entry(victim).or_default() += 1;
        Ok(())
    }
}

/// SIGKILL, and started again at once.
pub fn kill(victim: Victim, ground: &mut Ground, flow: &mut Flow) -> Result<()> {
    match victim {
        Victim::Relay => {
            flow.relay.as_mut().context("relay")?.kill()?;
            flow.start_relay()?;
        }
        Victim::Applier => {
            flow.applier.as_mut().context("applier")?.kill()?;
            flow.start_applier()?;
        }
        Victim::Broker => {
            ground.nats.kill()?;
            ground.nats.start_again()?;
        }
    }
    Ok(())
}
