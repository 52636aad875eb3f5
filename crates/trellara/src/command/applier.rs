//! `trellara applier`: from the stream into the target.

use std::sync::Arc;

use trellara_applier::{ApplierOptions, ApplierStatus, HaltPolicy, RoleReplica, Standby};
use trellara_jetstream::Broker;

use crate::config::{Config, LISTEN_APPLIER, OnHalt};
use crate::context::Context;
use crate::daemon::{self, Component, DaemonArgs};
use crate::exit::{Exit, Failure};
use crate::operator::Operator;
use crate::report::DaemonReport;
use crate::{broker, link, telemetry};

/// Applies the stream's transactions to the target, whole and in order, until stopped.
///
/// Needs what `trellara setup` created, and creates nothing itself. While another applier holds
/// the flow this one waits for it to leave; with --standby it also ends that one's sessions on the
/// target once it has shown no sign of life for five seconds. A server that is down is waited for;
/// a halt keeps the process alive with /readyz red (see `halt` in the file).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the stream; the target's catalogues and its trellara schema
Writes: rows, ledger and checkpoint in one target transaction each; removes applied frames from
        the stream beyond nats.history

Signals: SIGTERM, SIGINT wait for what is in flight (shutdown_timeout), a second one does not

Exit codes: 0 stopped by a signal; 10, 11, 12, 13, 77 halted (only with `halt: exit`); 78 the file

Examples:
  trellara applier
  trellara applier --standby
  trellara applier --config shop.yml --log-format json")]
pub(crate) struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// While another applier holds the flow: take over within seconds when that one is killed,
    /// stopped or cut off.
    #[arg(long)]
    standby: bool,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, true, args.daemon.log_format);
    let config = context.config()?;
    tracing::info!(flow = %config.flow, "applier starting");
    let broker = broker::connect_daemon(&config, broker::Role::Applier).await?;
    let applier = component(&config, broker, args.standby);
    daemon::serve(vec![applier], &config, LISTEN_APPLIER).await
}

/// The applier as a part of a process.
pub(crate) fn component(config: &Config, broker: Broker, standby: bool) -> Component {
    let mut options = options(config);
    if standby {
        options.standby = Standby::TakeOver;
    }
    let status = Arc::new(ApplierStatus::default());
    let flow = config.flow.clone();
    let reported = status.clone();
    Component {
        role: "applier",
        start: Box::new(move |cancel| {
            Box::pin(trellara_applier::run(
                options.clone(),
                broker.clone(),
                cancel,
                status.clone(),
            ))
        }),
        report: Box::new(move || DaemonReport::of_applier(&flow, &reported.snapshot())),
    }
}

/// The applier as the file has it.
pub(crate) fn options(config: &Config) -> ApplierOptions {
    let mut options = ApplierOptions::new(config.flow.clone(), link::target_options(config));
    options.batch_bytes = usize::try_from(config.process.batch_bytes).unwrap_or(usize::MAX);
    options.backfill_workers = config.backfill.workers;
    options.backfill_defer = config.backfill.defer_indexes;
    options.dedup_memory = config.process.dedup.memory;
    options.dedup_window = config.process.dedup.window;
    options.host = Operator::here().host;
    options.quarantine = config.process.quarantine;
    options.conflicts = config.process.conflicts.clone();
    options.host = Operator::here().host;
    options.history_age = config.nats.history.age;
    options.history_bytes = config.nats.history.bytes;
    options.role_replica = match config.process.role_replica {
        None => RoleReplica::Auto,
        Some(true) => RoleReplica::Require,
        Some(false) => RoleReplica::Off,
    };
    options.halt = match config.process.on_halt {
        OnHalt::Stay => HaltPolicy::Stay,
        OnHalt::Exit => HaltPolicy::Exit,
    };
    options.shutdown_timeout = config.process.shutdown_timeout;
    options.stall_timeout = config.process.stall_timeout;
    options
}
