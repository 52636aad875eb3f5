//! `handover [repeats] [seed] [postgres version] [kills of each copy]`: first copies under sixteen
//! writing sessions, in turn of each shape; exit 1 at the first that does not end equal.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use trellara_testkit::handover::{HandoverOptions, KillPlan, SHAPES, Victim, ground, handover};

/// Between two kills of a copy, at most.
const KILLS_APART: u64 = 700;

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
    let most: u32 = argument(3, "0").parse().context("kills")?;
    println!("{repeats} hand-overs on PostgreSQL {version}, seed {seed}");
    let mut ground = ground(version)?;
    let mut kills: BTreeMap<Victim, u32> = BTreeMap::new();
    let (mut transactions, mut begun_anew) = (0, 0);
    for number in 0..repeats {
        let options = HandoverOptions {
            clients: 16,
            rows: 20_000,
            rate_per_client: 40,
            seed: seed.wrapping_add(number),
            kills: (most > 0).then_some(KillPlan {
                most,
                apart: KILLS_APART,
            }),
            burst: 0,
            extra: "backfill: {max_bytes: 8MiB}".to_owned(),
            patience: Duration::from_secs(120),
        };
        let turn = usize::try_from(number)? % SHAPES.len();
        let name = format!("handover_{number}");
        let done = handover(&mut ground, &name, SHAPES[turn], &options).await?;
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
