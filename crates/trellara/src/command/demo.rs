//! `trellara demo`: the whole thing on this machine.

use std::time::Duration;

use tokio_util::task::TaskTracker;

use comfy_table::{CellAlignment, Table, presets};

use crate::config::duration;
use crate::context::Context;
use crate::daemon::Signals;
use crate::demo::{Plan, Verdict, play};
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};

/// Shows the whole thing on this machine: real servers, a live workload, kill -9, a comparison.
///
/// Two PostgreSQL servers and a nats-server are started in temporary folders, the source with a
/// million rows of a shop, the target empty. The rows are copied while the shop is written to and
/// relay, applier and broker are killed in turn; the consumer is moved back and a stored
/// range is published a second time; then both databases are compared row by row. A second act does
/// the same to `trellara run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  nothing of yours; needs the servers that `make servers` brings, or installed ones
Writes: temporary folders, removed at the end; nothing is left running

Exit codes: 0 equal; 3 the databases differ; 69 a server's program is not here; 1 it broke
down or was interrupted

Examples:
  trellara demo
  trellara demo --length 2m --seed 7")]
pub(crate) struct Args {
    /// How long parts are killed while the workload runs.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    length: Duration,
    /// Makes the workload's choices repeatable.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let plan = Plan {
        length: args.length,
        seed: args.seed,
        output: context.output,
    };
    let mut signals = Signals::new()?;
    let blocking = TaskTracker::new();
    // Leaving by a signal drops the story, and with it every server and process.
    let interrupted = tokio::select! {
        played = play(&plan, &blocking) => Ok(played?),
        signal = signals.next() => Err(signal),
    };
    let verdicts = match interrupted {
        Ok(verdicts) => verdicts,
        Err(signal) => {
            // A server that is just starting is ended as soon as it is up; a second signal leaves
            // that to its watchdog.
            blocking.close();
            tokio::select! {
                () = blocking.wait() => {}
                _ = signals.next() => {}
            }
            let reason = format!("{signal}: the demo ended early; its servers and files are gone");
            return Err(Failure::new(Exit::Unexpected, reason, ""));
        }
    };
    context.output.data(&verdicts, |verdicts| table(verdicts));
    if let Some(act) = verdicts.first()
        && (act.delivered_again == 0 || act.published_again == 0)
    {
        let reason = "no duplicate was delivered, so the demo shows less than it says";
        return Err(Failure::new(Exit::Unexpected, reason, "please report it"));
    }
    if verdicts.first().is_some_and(|act| act.rows_copied == 0) {
        let reason = "no row was copied, so the demo shows less than it says";
        return Err(Failure::new(Exit::Unexpected, reason, "please report it"));
    }
    let equal = verdicts
        .iter()
        .all(|verdict| verdict.equal && verdict.verified);
    Ok(if equal { Exit::Done } else { Exit::Different })
}

fn table(verdicts: &[Verdict]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let mut header = vec![String::new()];
    header.extend(verdicts.iter().map(|verdict| verdict.id.to_owned()));
    table.set_header(header);
    let mut line = |name: &str, value: &dyn Fn(&Verdict) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(verdicts.iter().map(value));
        table.add_row(cells);
    };
    line("rows copied first", &|act| made(act.rows_copied));
    line("transactions", &|act| act.transactions.to_string());
    line("rows compared", &|act| act.rows.to_string());
    line("kill -9: relay", &|act| act.kills_relay.to_string());
    line("kill -9: applier", &|act| act.kills_applier.to_string());
    line("kill -9: broker", &|act| act.kills_broker.to_string());
    line("delivered again", &|act| made(act.delivered_again));
    line("published again", &|act| made(act.published_again));
    line("applied twice", &|act| act.applied_twice.to_string());
    line("lost", &|act| act.lost.to_string());
    line("rows missing / surplus", &|act| {
        format!("{} / {}", act.rows_missing, act.rows_surplus)
    });
    line("trellara verify", &|act| {
        if act.verified { "equal" } else { "DIFFERENT" }.to_owned()
    });
    line("databases", &|act| {
        if act.equal { "equal" } else { "DIFFERENT" }.to_owned()
    });
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Only the first act copies, and makes duplicates.
fn made(many: u64) -> String {
    match many {
        0 => "-".to_owned(),
        many => many.to_string(),
    }
}
