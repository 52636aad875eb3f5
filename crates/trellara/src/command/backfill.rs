//! `trellara backfill`: how far the copy is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trellara_applier::backfill::restore;
use trellara_postgres::Session;
use trellara_source::publication::TableName;

use crate::command::status::{age, bytes_text};
use crate::config::{Config, duration};
use crate::context::Context;
use crate::copying::{self, CopyFacts};
use crate::daemon_reports::{self, first_halt};
use crate::exit::{Exit, Failure};
use crate::link;
use crate::output::{Format, Output};
use crate::telemetry::{self, LogFormat};

/// Shows how far the copy of the rows is that the source held before.
///
/// The copy itself needs no command: setup says what is to be copied, relay and applier do it. A
/// table goes from wanted to copying, loaded (all rows are in), and done (and so is everything that
/// the source had committed when they were read).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.backfill on the target; the source's slot; the daemons' endpoints
Writes: nothing; with --rebuild, trellara.backfill_definition

Exit codes: 0 shown, or with --watch: all is in; 11 a table cannot be copied, or an index not be
            made again, as things are; 10, 11, 12, 13, 77 a daemon halted; 1 the target does not
            answer

Examples:
  trellara backfill
  trellara backfill --watch
  trellara backfill --watch --output ndjson | jq '{state, rows, eta_seconds}'")]
pub(crate) struct Args {
    /// Again and again, until all is in: a bar on a terminal, a look after the other elsewhere.
    #[arg(long)]
    watch: bool,
    /// Have what was put off and refused by the target (indexes, foreign keys) tried again.
    #[arg(long)]
    rebuild: bool,
    /// Time between two looks.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    interval: Duration,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let target = link::target(&config).await?;
    if args.rebuild {
        rebuild(&config, &target, context.output).await?;
    }
    if !args.watch {
        let broker = copying::broker(&config).await;
        let facts = copying::take(&config, &target, broker.as_ref()).await?;
        context.output.data(&facts, CopyFacts::text);
        let failure = facts.failed().or_else(|| facts.refused());
        return failure.map_or(Ok(Exit::Done), Err);
    }
    follow(&config, &target, None, args.interval, context.output).await
}

/// Has the applier try again what the target refused to make.
async fn rebuild(config: &Config, target: &Session, output: Output) -> Result<(), Failure> {
    let forgive = async { Ok(restore::forgive(&target.client, &config.flow).await?) };
    let count = copying::at_once(config, target, forgive).await?;
    output.note(format!(
        "{count} definition(s) are tried again by the applier"
    ));
    Ok(())
}

/// Shows the copy until these tables are in, or all of them; fails when one of them cannot be
/// copied, or a daemon halts.
pub(crate) async fn follow(
    config: &Config,
    target: &Session,
    tables: Option<&[TableName]>,
    interval: Duration,
    output: Output,
) -> Result<Exit, Failure> {
    let watched = Watched::new(output);
    let broker = copying::broker(config).await;
    loop {
        let mut facts = copying::take(config, target, broker.as_ref()).await?;
        if let Some(tables) = tables {
            facts.tables.retain(|table| tables.contains(&table.name));
        }
        watched.show(&facts);
        if let Some(failure) = facts.failed() {
            watched.end();
            return Err(failure);
        }
        let over = facts.tables.iter().all(copying::TableFacts::is_over);
        // Of tables alone it was asked whether their rows are in.
        let waits = tables.is_none() && facts.put_off.iter().any(|one| one.reason.is_none());
        if over && !waits {
            watched.end();
            output.data(&facts, CopyFacts::text);
            return facts.refused().map_or(Ok(Exit::Done), Err);
        }
        if let Some(halt) = first_halt(&daemon_reports::reachable(config).await) {
            watched.end();
            return Err(halt);
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = tokio::signal::ctrl_c() => {
                watched.end();
                return Ok(Exit::Done);
            }
        }
    }
}

/// A bar where somebody looks; else one look after the other.
struct Watched {
    output: Output,
    bar: ProgressBar,
}

impl Watched {
    fn new(output: Output) -> Self {
        let target = match output.quiet || output.format != Format::Text {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{bar:30} {pos:>12} of {len} rows {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { output, bar }
    }

    fn show(&self, facts: &CopyFacts) {
        if self.output.format != Format::Text {
            self.output.event(facts);
            return;
        }
        let rate = facts.bytes_per_second.unwrap_or_default() as u64;
        let eta = facts.eta_seconds.map_or(String::new(), |seconds| {
            format!(", about {} to go", age(seconds))
        });
        let message = format!(
            "{}: {} of {} tables, {} a second{eta}",
            facts.state,
            facts.tables_in,
            facts.tables.len(),
            bytes_text(rate)
        );
        if self.bar.is_hidden() {
            let rows = facts.estimated_rows.max(facts.rows);
            self.output
                .note(format!("{} of {rows} rows, {message}", facts.rows));
            return;
        }
        self.bar.set_length(facts.estimated_rows.max(facts.rows));
        self.bar.set_position(facts.rows);
        self.bar.set_message(message);
    }

    /// Takes the bar away, so that what follows stands alone.
    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
