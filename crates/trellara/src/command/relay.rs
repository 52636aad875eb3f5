//! `trellara relay`: from the slot into the stream.

use std::sync::Arc;

use trellara_jetstream::Broker;
use trellara_relay::{Acknowledge, RelayOptions, RelayStatus};

use crate::config::{Config, LISTEN_RELAY};
use crate::context::Context;
use crate::daemon::{self, Component, DaemonArgs};
use crate::exit::{Exit, Failure};
use crate::report::DaemonReport;
use crate::{acknowledge, broker, link, telemetry};

/// Carries committed transactions from the source's slot into the stream, until stopped.
///
/// Needs what `trellara setup` created, and creates nothing itself. A server that is down is
/// waited for; a halt keeps the process alive with /readyz red (see `halt` in the file). While
/// another relay has the slot this one waits for it to leave; with --standby it also ends that
/// one's session on the source once nothing has been heard of it for five seconds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the source's slot and publication; the stream's tail
Writes: frames into the stream; confirmed positions to the source; nothing on disk

Signals: SIGTERM, SIGINT wait for what is in flight (shutdown_timeout), a second one does not

Exit codes: 0 stopped by a signal; 10, 11, 13, 77 halted (only with `halt: exit`); 78 the file

Examples:
  trellara relay
  trellara relay --standby
  trellara relay --config shop.yml --log-format json")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// While another relay has the slot: wait as a standby, and take over within seconds when that
    /// one is killed, stopped or cut off.
    #[arg(long)]
    standby: bool,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, true, args.daemon.log_format);
    let config = context.config()?;
    let decision = acknowledge::decide(&config).await;
    tracing::info!(flow = %config.flow, acknowledge = decision.level(), because = decision.because, "relay starting");
    let broker = broker::connect_daemon(&config, broker::Role::Relay).await?;
    let relay = component(&config, broker, decision.acknowledge, args.standby);
    daemon::serve(vec![relay], &config, LISTEN_RELAY).await
}

/// The relay as a part of a process.
pub(crate) fn component(
    config: &Config,
    broker: Broker,
    acknowledge: Acknowledge,
    standby: bool,
) -> Component {
    let mut options = options(config, acknowledge);
    options.standby = standby;
    let status = Arc::new(RelayStatus::new());
    let flow = config.flow.clone();
    let reported = status.clone();
    Component {
        role: "relay",
        start: Box::new(move |cancel| {
            Box::pin(trellara_relay::run(
                options.clone(),
                broker.clone(),
                cancel,
                status.clone(),
            ))
        }),
        report: Box::new(move || DaemonReport::of_relay(&flow, &reported.snapshot())),
    }
}

fn options(config: &Config, acknowledge: Acknowledge) -> RelayOptions {
    let mut options = RelayOptions::new(
        config.flow.clone(),
        link::source_options(config),
        acknowledge,
    );
    options.open_bytes = config.nats.open_bytes;
    options.shutdown_grace = config.source.shutdown_grace;
    options.copy.workers = config.backfill.workers;
    options.copy.max_bytes = config.backfill.max_bytes;
    options
}
