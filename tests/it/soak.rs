//! A short soak: everything is killed under load, and the oracle judges every moment of it.

use std::time::Duration;

use anyhow::{Result, ensure};
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
