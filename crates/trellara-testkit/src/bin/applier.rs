//! `applier FLOW MEMORY [interleaved]`: an applier with options that no configuration file gives, as
//! a process that can be killed. MEMORY are the bytes of its identity cache, 0 for none;
//! `interleaved` takes the lane's lock away. Target and broker come as in the program's environment.
//!
//! What it knows of itself goes to standard output, one line of JSON whenever it has changed.

#![allow(clippy::print_stdout, reason = "a program's report")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use trellara_applier::{ApplierOptions, ApplierStatus};
use trellara_jetstream::{Broker, NatsOptions};
use trellara_postgres::{ConnectOptions, Environment};

/// Between two looks at the status.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter("info")
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (flow, memory, interleaved) = match &arguments[..] {
        [flow, memory] => (flow, memory, false),
        [flow, memory, word] if word == "interleaved" => (flow, memory, true),
        _ => bail!("usage: applier FLOW MEMORY [interleaved]"),
    };
    let given = |name| std::env::var(name).context(name);
    let target = given("TRELLARA__TARGET__URL")?;
    let target = ConnectOptions::parse(&target, &Environment::default())?;
    let mut options = ApplierOptions::new(flow.parse()?, target);
    options.dedup_memory = memory.parse().context("MEMORY")?;
    options.interleaved = interleaved;
    let broker = NatsOptions {
        url: given("TRELLARA__NATS__URL")?,
        client_name: format!("trellara applier {flow}"),
        inbox_prefix: "_INBOX_trellara_applier".to_owned(),
        ..NatsOptions::default()
    };
    let broker = Broker::connect(&broker).await?;
    let status = Arc::new(ApplierStatus::default());
    let telling = tokio::spawn(tell(status.clone()));
    let ended = trellara_applier::run(options, broker, CancellationToken::new(), status).await;
    telling.abort();
    ended.map_err(|halt| anyhow::anyhow!("{halt}"))
}

async fn tell(status: Arc<ApplierStatus>) {
    let mut told = Value::Null;
    loop {
        let seen = status.snapshot();
        let now = json!({
            "cache": seen.dedup.state,
            "transactions": seen.transactions,
            "duplicate_transactions": seen.duplicate_transactions,
            "applied_vouched": seen.dedup.applied_vouched,
            "applied_probed": seen.dedup.applied_probed,
            "probes": seen.dedup.probes,
            "cache_hydrations": seen.dedup.hydrations,
            "retries": seen.retries,
        });
        if now != told {
            println!("{now}");
            told = now;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
