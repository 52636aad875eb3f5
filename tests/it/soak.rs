//! Short soaks: everything is killed under load, and the oracle judges every moment of it;
//! `trellara verify` is judged itself, under load and kills of the applier; and of a load with poison
//! in it everything that can go in goes in.

use std::time::Duration;

use anyhow::{Result, ensure};
use trellara_testkit::judging::{JudgingOptions, judging};
use trellara_testkit::poisoning::{PoisoningOptions, poisoning};
use trellara_testkit::soak::{SoakOptions, soak};

#[tokio::test(flavor = "multi_thread")]
async fn a_short_soak_loses_doubles_tears_and_reorders_nothing() -> Result<()> {
    let seed = rand::random();
    eprintln!("seed {seed}");
    let options = SoakOptions {
        version: 18,
        nats_version: "2.15.1".to_owned(),
        duration: Duration::from_secs(15),
        // Fewer than in `make soak`: other tests run beside it.
        clients: 8,
        rate_per_client: 40,
        seed,
        extra: String::new(),
    };
    let report = soak(&options).await?;
    eprintln!("{report}");
    ensure!(report.passed(), "seed {seed}: {report}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_judge_finds_what_was_planted_and_nothing_else_under_load_and_kills() -> Result<()> {
    let seed = rand::random();
    eprintln!("seed {seed}");
    let options = JudgingOptions {
        runs: 10,
        version: 15,
        clients: 16,
        // Less than in `make soak-verify`: other tests run beside it.
        rate: 200,
        seed,
    };
    let report = judging(&options).await?;
    eprintln!("{report}");
    ensure!(report.passed(), "seed {seed}: {report}");
    Ok(())
}

/// `make soak-quarantine` runs the same with more, and on an optimised build.
#[tokio::test(flavor = "multi_thread")]
async fn everything_independent_of_the_poisoned_arrives_and_the_rest_after_the_repair() -> Result<()>
{
    let seed = rand::random();
    eprintln!("seed {seed}");
    let report = poisoning(&PoisoningOptions {
        version: 15,
        transactions: 4000,
        poisoned_per_mille: 10,
        seed,
        patience: Duration::from_secs(90),
    })
    .await?;
    eprintln!("{report}");
    // That there was something to hold is part of the promise.
    ensure!(
        report.poisoned > 0 && report.dependent > 0,
        "seed {seed}: {report}"
    );
    Ok(())
}
