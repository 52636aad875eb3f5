//! `trellara run`: the whole flow in one process.

use std::time::Duration;

use trellara_jetstream::{Broker, read::Reader};

use crate::config::{Config, LISTEN_RELAY};
use crate::context::Context;
use crate::daemon::{self, DaemonArgs};
use crate::exit::{Exit, Failure};
use crate::setup::{self, Choices};
use crate::{acknowledge, broker, command, preflight, telemetry};

/// Runs relay and applier in one process, with a broker of its own unless nats.url is set.
///
/// The first start does what `trellara setup` does, where the file's roles may. The embedded broker
/// keeps its store in nats.store_dir, listens on loopback with a password of its own, and is
/// restarted when it dies.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  as `trellara relay` and `trellara applier`
Writes: as `trellara setup` on the first start, then as `trellara relay` and `trellara applier`;
        the embedded broker's store

Signals: SIGTERM, SIGINT wait for what is in flight (shutdown_timeout), a second one does not

Exit codes: 0 stopped by a signal; 13 another process runs this store; 69 no nats-server is here;
            11, 77 a server does not fit (first start); 10, 11, 12, 13, 77 halted (only with
            `halt: exit`); 78 the file

Examples:
  trellara run
  trellara run --config shop.yml --log-format json")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, true, args.daemon.log_format);
    let config = context.config()?;
    let embedded = broker::start_embedded(&config, &context.environment).await?;
    if let Some(embedded) = &embedded {
        let access = embedded.access();
        tracing::info!(
            url = access.url(),
            starts = access.starts(),
            "embedded broker started"
        );
    }
    let relay_broker = broker::connect_daemon(&config, broker::Role::Relay).await?;
    let applier_broker = broker::connect_daemon(&config, broker::Role::Applier).await?;
    ensure_set_up(&config, &relay_broker, context).await?;
    let decision = acknowledge::decide(&config).await;
    tracing::info!(flow = %config.flow, acknowledge = decision.level(), because = decision.because, "starting");
    let components = vec![
        command::relay::component(&config, relay_broker, decision.acknowledge, false),
        command::applier::component(&config, applier_broker, false),
    ];
    let outcome = daemon::serve(components, &config, LISTEN_RELAY).await;
    if let Some(embedded) = embedded {
        let stopped = tokio::task::spawn_blocking(move || embedded.stop()).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(%error, "the embedded broker did not stop in an orderly way");
        }
    }
    outcome
}

/// Does what `setup` does, unless the stream says that relays have written already. A server that
/// is down is waited for; anything that does not fit ends the command before something is created.
async fn ensure_set_up(config: &Config, broker: &Broker, context: &Context) -> Result<(), Failure> {
    const PAUSE_FIRST: Duration = Duration::from_millis(500);
    const PAUSE_MOST: Duration = Duration::from_secs(15);
    let mut pause = PAUSE_FIRST;
    loop {
        let failure = match attempt(config, broker, context).await {
            Ok(()) => return Ok(()),
            Err(failure) if failure.exit != Exit::Unexpected => return Err(failure),
            Err(failure) => failure,
        };
        tracing::warn!(
            error = failure.causes.join(": "),
            "not set up yet: trying again"
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MOST),
            _ = tokio::signal::ctrl_c() => return Err(failure),
        }
    }
}

async fn attempt(config: &Config, broker: &Broker, context: &Context) -> Result<(), Failure> {
    let marks = config.flow.mark_subject();
    if let Ok(Some(last)) = Reader::new(broker, &config.flow.stream())
        .last_on(&marks)
        .await
    {
        // Sequence 1 is the genesis frame: behind it setup still has the ledger to write.
        if last.sequence.0 > 1 {
            return Ok(());
        }
    }
    let choices = Choices::default();
    let findings = preflight::examine(config, &Ok(broker.clone()), choices).await;
    preflight::refuse(&findings, context.output)?;
    setup::perform(config, broker, choices, |step| {
        tracing::info!(step = step.id, "{}", step.what);
    })
    .await
    .map(drop)
}
