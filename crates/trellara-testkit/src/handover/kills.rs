//! SIGKILL of the parts of a flow while it copies, dealt by a seed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::flow::Flow;
use crate::ground::Ground;

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

/// How many, and how far apart.
#[derive(Debug, Clone, Copy)]
pub struct KillPlan {
    /// In one copy, at most.
    pub most: u32,
    /// Milliseconds between two, at most.
    pub apart: u64,
}

/// Deals them.
pub(super) struct Kills {
    plan: KillPlan,
    random: StdRng,
    made: BTreeMap<Victim, u32>,
}

impl Kills {
    pub(super) fn new(plan: KillPlan, seed: u64) -> Self {
        Self {
            plan,
            random: StdRng::seed_from_u64(seed),
            made: BTreeMap::new(),
        }
    }

    pub(super) fn made(&self) -> &BTreeMap<Victim, u32> {
        &self.made
    }

    /// How long to the next; `None` when there were enough.
    pub(super) fn next(&mut self) -> Option<Duration> {
        let made: u32 = self.made.values().sum();
        let apart = self.random.random_range(1..=self.plan.apart.max(1));
        (made < self.plan.most).then(|| Duration::from_millis(apart))
    }

    /// Kills one of them, and starts it again.
    pub(super) fn strike(&mut self, ground: &mut Ground, flow: &mut Flow) -> Result<()> {
        let victim = VICTIMS[self.random.random_range(0..VICTIMS.len())];
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
