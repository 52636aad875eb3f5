//! The shipped machines against a simulated source, broker and target, by seed.
//!
//! One seed is one life of a flow: a history of transactions, a way of acknowledging, and faults
//! dealt by a generator that is a function of the seed alone. First come faults, in which nothing
//! but safety counts: after every commit the target holds a prefix of the source's commit order,
//! each transaction once and whole. Then everything heals, and within a bounded number of steps the
//! target must hold all of it, or the flow must stand still with a halt that is promised for what
//! happened.
//!
//! What decides is the program's: the relay's machine and resume table, the applier's chain rule,
//! its table of verdicts, its table of what follows from an error, and where it may begin. What
//! acts is the simulation's, without time and without servers; what it knows of a broker is held
//! against the same contract as the real one (`tests/simulation.rs`).

mod applier;
pub mod broker;
mod counters;
mod dice;
mod relay;
mod source;
mod target;
mod world;

pub use counters::{Counters, Sometimes};

use trellara_relay::Acknowledge;

/// What to simulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// Faults of the first phase are dealt for this many steps: shrinking a failing seed shortens
    /// it.
    pub faulty_steps: u32,
    /// Transactions of the source.
    pub transactions: u32,
}

impl Plan {
    /// The usual size.
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            faulty_steps: 300 + (seed % 400) as u32,
            transactions: 6 + (seed % 23) as u32,
        }
    }

    /// When a position is confirmed, in this seed.
    pub fn acknowledge(&self) -> Acknowledge {
        match self.seed % 3 {
            0 => Acknowledge::Published,
            _ => Acknowledge::Applied,
        }
    }
}

/// Runs one seed.
///
/// # Errors
/// What was broken, in words; the seed says the rest.
pub fn run(plan: Plan, counters: &mut Counters) -> Result<(), String> {
    world::World::new(plan).live(counters)
}

/// The smallest plan with the same seed that still fails, by halves; `plan` itself fails.
pub fn shrink(plan: Plan) -> Plan {
    let fails = |plan: Plan| {
        let quiet = std::panic::catch_unwind(|| run(plan, &mut Counters::default()));
        !matches!(quiet, Ok(Ok(())))
    };
    let mut least = plan;
    for field in 0..2 {
        let mut step = 1 << 9;
        while step > 0 {
            let mut smaller = least;
            let value = match field {
                0 => &mut smaller.faulty_steps,
                _ => &mut smaller.transactions,
            };
            *value = value.saturating_sub(step).max(1);
            if smaller != least && fails(smaller) {
                least = smaller;
            } else {
                step /= 2;
            }
        }
    }
    least
}
