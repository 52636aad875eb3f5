//! `poison [transactions] [seed] [postgres version] [poisoned per mille]`: a backlog of small
//! transactions is applied without poison and with it under `hold_dependents`, then everything held is
//! replayed; exit 1 when anything is held that should not be, not held that should, out of order, or
//! different at the end.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::time::Duration;

use anyhow::{Context, Result};
use trellara_testkit::poisoning::{PoisoningOptions, poisoning};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize, default: &str| {
        let given = arguments.get(at).cloned();
        given.unwrap_or_else(|| default.to_owned())
    };
    let options = PoisoningOptions {
        transactions: argument(0, "200000").parse().context("transactions")?,
        seed: match argument(1, "random").as_str() {
            "random" => rand::random(),
            text => text.parse().context("seed")?,
        },
        version: argument(2, "18").parse().context("PostgreSQL version")?,
        poisoned_per_mille: argument(3, "10").parse().context("poisoned per mille")?,
        patience: Duration::from_secs(900),
    };
    println!(
        "{} transactions, {} of a thousand poisoned, seed {}",
        options.transactions, options.poisoned_per_mille, options.seed
    );
    let report = poisoning(&options)
        .await
        .with_context(|| format!("seed {}", options.seed))?;
    println!("{report}");
    Ok(())
}
