//! `trellara setup`: creates what a flow needs.

use trellara_applier::schema;
use trellara_source::publication;

use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::setup::{self, Choices, Step};
use crate::telemetry::{self, LogFormat};
use crate::{broker, link, preflight, visible};

/// Creates publication, stream, slot and the target's trellara schema; safe to repeat.
///
/// First everything is checked as by `trellara check`; when anything is wrong nothing is created.
/// An interrupted setup goes on where it stopped, or says what it found and refuses to guess.
/// Without nats.url the embedded broker is started for as long as setup lasts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  source, broker and target
Writes: a publication (unless it is there), the schema trellara in the target, the stream with the
        target's name in its metadata, the replication slot, the genesis frame, the ledger's first
        row. No user table is touched.

Exit codes: 0 the flow is set up; 11 a server or table does not fit; 10 stream or slot of a flow
            that was set up are gone; 20 the slot could not be created in time; 77 a right is
            missing; 78 the file

Examples:
  trellara setup --dry-run
  trellara setup --print-sql | psql \"$ADMIN_URL\"
  TRELLARA__TARGET__URL=\"$ADMIN_URL\" trellara setup --yes   (the file names the daemons' roles)
  trellara setup --yes")]
pub(crate) struct Args {
    /// Only say what would be created.
    #[arg(long)]
    dry_run: bool,
    /// Print the SQL that a DBA may run instead of us, for source and target, and stop.
    #[arg(long, conflicts_with = "dry_run")]
    print_sql: bool,
    /// Take a slot that is there although nothing proves where it began.
    #[arg(long)]
    adopt: bool,
    /// Put a new stream in the place of a lost one; only when the target has everything that the
    /// slot gave away.
    #[arg(long)]
    new_stream: bool,
    /// Do not ask. Setup asks nothing today; scripts may give it already.
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    if args.print_sql {
        context.output.raw(&sql(&config).await?);
        return Ok(Exit::Done);
    }
    let choices = Choices {
        adopt: args.adopt,
        new_stream: args.new_stream,
    };
    let reached = broker::reach(&config, broker::Role::Setup, &context.environment).await;
    let (broker, _embedded) = match reached {
        Ok((broker, embedded)) => (Ok(broker), embedded),
        Err(failure) => (Err(failure), None),
    };
    let findings = preflight::examine(&config, &broker, choices).await;
    preflight::refuse(&findings, context.output)?;
    let broker = broker?;
    if args.dry_run {
        let actions = setup::plan(&config, &broker, choices).await?;
        let planned: Vec<Step> = actions
            .iter()
            .map(|action| Step {
                id: "would",
                what: action.text(),
            })
            .collect();
        context
            .output
            .data(&planned, |steps| text(steps, "nothing to do: all is there"));
        return Ok(Exit::Done);
    }
    let note = |step: &Step| {
        context
            .output
            .note(format_args!("{}: {}", step.id, step.what))
    };
    let steps = setup::perform(&config, &broker, choices, note).await?;
    context.output.data(&steps, |steps| match steps.is_empty() {
        true => format!("flow {} is set up already", config.flow),
        false => format!("flow {} is set up", config.flow),
    });
    Ok(Exit::Done)
}

fn text(steps: &[Step], empty: &str) -> String {
    if steps.is_empty() {
        return empty.to_owned();
    }
    steps
        .iter()
        .map(|step| format!("{}: {}", step.id, visible::inline(&step.what)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// What a DBA would run; the slot stays ours, because its position must reach the stream.
async fn sql(config: &Config) -> Result<String, Failure> {
    let name = &config.source.publication;
    let mut out = vec![format!("-- source: {}", config.source.connect.redacted())];
    let source = link::source(config).await?;
    if publication::describe(&source, name).await?.is_some() {
        out.push(format!(
            "-- publication {name} is there and is used as it is"
        ));
    } else {
        let tables = publication::expand(&source, &config.source.tables)
            .await
            .map_err(|error| Failure::from_error(Exit::Unfit, &error).hint("see source.tables"))?;
        let create = publication::create_sql(name, &tables, config.source.partitions);
        out.push(format!("{create};"));
        out.push(format!("{};", setup::comment_sql(name, &config.flow)));
    }
    out.push(format!(
        "-- slot {} is created by `trellara setup`: the role needs REPLICATION",
        config.source.slot
    ));
    out.push(String::new());
    out.push(format!("-- target: {}", config.target.connect.redacted()));
    out.push(schema::sql());
    out.push(schema::grants(&config.target.role));
    Ok(out.join("\n"))
}
