//! `handover [repeats] [seed] [postgres version] [kills of each copy | boundaries | narrow]`: first
//! copies under sixteen writing sessions, in turn of each shape; exit 1 at the first that does not end
//! equal. With `boundaries`, relay, applier or broker, in turn, is killed behind every part of a copy.
//! With `narrow`, a copy of about 2 GB goes through streams of 64 MiB, 128 MB written beside it.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use trellara_testkit::handover::{
    HandoverOptions, KillPlan, SHAPES, VICTIMS, Victim, ground, handover,
};

/// Between two kills of a copy, at most.
const KILLS_APART: u64 = 700;

#[derive(Debug, Clone, Copy)]
enum Killing {
    Random(u32),
    Boundaries,
    Narrow,
}

/// At boundaries less than half of the copy fits into its stream: the relay that dies has to read
/// what it had not read.
fn options(killing: Killing, turn: usize, seed: u64) -> HandoverOptions {
    let (rows, kills) = match killing {
        // A row of each table has about 900 bytes together.
        Killing::Narrow => (2_400_000, None),
        Killing::Random(0) => (20_000, None),
        Killing::Random(most) => {
            let apart = KILLS_APART;
            (20_000, Some(KillPlan::Random { most, apart }))
        }
        Killing::Boundaries => {
            // Another victim each time, and each with another shape every third time.
            let victim = VICTIMS[(turn + turn / SHAPES.len()) % VICTIMS.len()];
            let victim = Some(victim);
            let plan = KillPlan::Boundaries { victim, every: 1 };
            (12_000, Some(plan))
        }
    };
    let narrow = matches!(killing, Killing::Narrow);
    let extra = match killing {
        Killing::Narrow => "nats.max_bytes: 64MiB\nbackfill: {max_bytes: 64MiB}",
        Killing::Boundaries => "backfill: {max_bytes: 4MiB}",
        Killing::Random(_) => "backfill: {max_bytes: 8MiB}",
    };
    HandoverOptions {
        clients: 16,
        rows,
        rate_per_client: 40,
        seed,
        kills,
        burst: if narrow { 128 } else { 0 },
        extra: extra.to_owned(),
        // Eight megabytes a second are the slowest that is called alive.
        patience: Duration::from_secs(if narrow { 400 } else { 120 }),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| {
        arguments
            .get(at)
            .cloned()
            .unwrap_or_else(|| default.to_owned())
    };
    let repeats: u64 = argument(0, "50").parse().context("repeats")?;
    let seed: u64 = match argument(1, "random").as_str() {
        "random" => rand::random(),
        text => text.parse().context("seed")?,
    };
    let version = argument(2, "18").parse().context("PostgreSQL version")?;
    let killing = match argument(3, "0").as_str() {
        "boundaries" => Killing::Boundaries,
        "narrow" => Killing::Narrow,
        most => Killing::Random(most.parse().context("kills")?),
    };
    println!("{repeats} hand-overs on PostgreSQL {version}, seed {seed}");
    let mut ground = ground(version)?;
    let mut kills: BTreeMap<Victim, u32> = BTreeMap::new();
    let (mut transactions, mut begun_anew) = (0, 0);
    for number in 0..repeats {
        let turn = usize::try_from(number)?;
        let options = options(killing, turn, seed.wrapping_add(number));
        let name = format!("handover_{number}");
        let shape = SHAPES[turn % SHAPES.len()];
        let done = handover(&mut ground, &name, shape, &options).await?;
        println!("{number}: {done}");
        transactions += done.totals.committed;
        begun_anew += done.copying.begun_anew;
        for (victim, count) in done.kills {
            *kills.entry(victim).or_default() += count;
        }
    }
    println!(
        "passed: {repeats} hand-overs, {transactions} transactions beside them, killed {kills:?}, \
         {begun_anew} tables begun anew; nothing lost or doubled, on either side"
    );
    Ok(())
}
