//! `trellara inspect`: what is in the stream.

use serde::Serialize;
use trellara_envelope::{Lane, StreamSequence};

use crate::broker;
use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::inspect::{Record, Shown, Walk, find, read_transaction};
use crate::output::List;
use crate::telemetry::{self, LogFormat};
use crate::visible;

/// Lists transactions or frames of the stream, or one transaction with its record keys.
///
/// Row values are shown only with --values; without it columns show their lengths.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the stream, from its leader
Writes: nothing; the applier's position is not touched

Exit codes: 0 shown; 1 no such transaction, or no answer; 10 a frame is damaged

Examples:
  trellara inspect --limit 20
  trellara inspect --frames --from 4000
  trellara inspect --transaction 4711
  trellara inspect --transaction 16/B374D848 --values --output json")]
pub(crate) struct Args {
    /// List frames instead of transactions.
    #[arg(long, conflicts_with = "transaction")]
    frames: bool,
    /// One transaction in full: its identity, commit LSN or xid.
    #[arg(long, value_name = "ID")]
    transaction: Option<String>,
    /// Show row values.
    #[arg(long, requires = "transaction")]
    values: bool,
    /// First stream sequence to look at.
    #[arg(long, value_name = "SEQUENCE", default_value_t = 1)]
    from: u64,
    /// Most lines of a list; 0 for all.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: usize,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let broker = broker::connect(&config, broker::Role::Inspect).await?;
    let filter = match args.frames {
        true => config.flow.all_subjects(),
        false => config.flow.transactions_subject(Lane(0)),
    };
    let from = StreamSequence(args.from.max(1));
    let mut walk = Walk::new(&broker, &config.flow.stream(), filter, from);
    match &args.transaction {
        Some(wanted) => one(args, context, &config, &broker, &mut walk, wanted).await,
        None => list(args, context, &mut walk).await,
    }
}

async fn list(args: &Args, context: &Context, walk: &mut Walk) -> Result<Exit, Failure> {
    let mut out = context.output.list();
    let mut left = if args.limit == 0 {
        usize::MAX
    } else {
        args.limit
    };
    while left > 0 {
        let Some(stored) = walk.next().await? else {
            break;
        };
        if args.frames {
            out.item(&stored.item(), |item| item.text());
            left -= 1;
            continue;
        }
        for item in stored.transactions().iter().take(left) {
            out.item(item, |item| item.text());
            left -= 1;
        }
    }
    out.end();
    if left == 0 {
        context.output.note(format_args!(
            "(the first {}; --limit 0 shows all)",
            args.limit
        ));
    }
    Ok(Exit::Done)
}

async fn one(
    args: &Args,
    context: &Context,
    config: &Config,
    broker: &trellara_jetstream::Broker,
    walk: &mut Walk,
    wanted: &str,
) -> Result<Exit, Failure> {
    let Some(place) = find(walk, wanted).await? else {
        let hint = "it may be applied and removed already; `trellara inspect` lists what is there";
        return Err(Failure::new(
            Exit::Unexpected,
            format!("no transaction {wanted} in the stream"),
            hint,
        ));
    };
    context
        .output
        .note(format_args!("transaction {}", place.identity));
    let mut out: List = context.output.list();
    let count = read_transaction(broker, &config.flow, &place, args.values, |record| {
        out.item(record, text);
    })
    .await?;
    out.end();
    context.output.note(format_args!("{count} changes"));
    Ok(Exit::Done)
}

fn text(record: &Record) -> String {
    let row = |label: &str, row: &Option<std::collections::BTreeMap<String, Shown>>| {
        let Some(row) = row else { return String::new() };
        let column = |(name, value): (&String, &Shown)| {
            format!("{}={}", visible::quoted(name), value_text(value))
        };
        format!(
            "  {label} {}",
            row.iter().map(column).collect::<Vec<_>>().join(" ")
        )
    };
    let (old, new) = (row("old", &record.old), row("new", &record.new));
    format!(
        "{}  {} {}{old}{new}",
        record.id,
        record.operation,
        visible::inline(&record.table)
    )
}

fn value_text(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
