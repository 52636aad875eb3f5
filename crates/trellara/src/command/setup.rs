//! `trellara setup`: creates what a flow needs.

use trellara_applier::schema;
use trellara_postgres::Session;
use trellara_source::publication::{self, TableName};

use crate::config::{Config, Existing};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::setup::{self, Choices, Step};
use crate::telemetry::{self, LogFormat};
use crate::{broker, link, preflight, target_ddl, visible};

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
        row; with backfill.ddl: create the tables that the target lacks. No row of a user table is
        touched: what --truncate is about is deleted when the table's copy begins.

Exit codes: 0 the flow is set up; 11 a server or table does not fit; 10 stream or slot of a flow
            that was set up are gone; 20 the slot could not be created in time; 77 a right is
            missing; 78 the file

Examples:
  trellara setup --dry-run
  trellara setup --truncate --yes
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
    /// Take what is there: rows of the target for those of the source (backfill.existing: keep), and
    /// a slot although nothing proves where it began.
    #[arg(long)]
    adopt: bool,
    /// Delete the rows that the target has before their tables are copied (backfill.existing:
    /// truncate).
    #[arg(long, conflicts_with = "adopt")]
    truncate: bool,
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
    let mut config = context.config()?;
    match (args.adopt, args.truncate) {
        (true, _) => config.backfill.existing = Existing::Keep,
        (_, true) => config.backfill.existing = Existing::Truncate,
        _ => {}
    }
    let config = config;
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
        let planned = creations(&config).await?.map(|count| Step {
            id: "would",
            what: format!("run {count} statement(s) that create what the target lacks"),
        });
        let actions = actions.iter().map(|action| Step {
            id: "would",
            what: action.text(),
        });
        let planned: Vec<Step> = planned.into_iter().chain(actions).collect();
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
    if config.backfill.create_tables {
        let source = link::source(&config).await?;
        let tables = published(&config, &source).await?;
        target_ddl::create_missing(&config, &source, &tables, context.output).await?;
    }
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

/// What there is to create of the target's tables, when setup is to create them.
async fn creations(config: &Config) -> Result<Option<usize>, Failure> {
    if !config.backfill.create_tables {
        return Ok(None);
    }
    let (source, target) = (link::source(config).await?, link::target(config).await?);
    let tables = published(config, &source).await?;
    let missing = target_ddl::missing(config, &source, &target, &tables).await?;
    let count = missing.statements.len();
    Ok((count > 0).then_some(count))
}

/// The tables that are or would be published, by the names that their changes carry.
async fn published(config: &Config, source: &Session) -> Result<Vec<TableName>, Failure> {
    if let Some(facts) = publication::describe(source, &config.source.publication).await? {
        return Ok(facts
            .members
            .into_iter()
            .map(|member| member.table)
            .collect());
    }
    let tables = publication::expand(source, &config.source.tables)
        .await
        .map_err(|error| Failure::from_error(Exit::Unfit, &error).hint("see source.tables"))?;
    Ok(publication::named_by_changes(source, &tables, config.source.partitions).await?)
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
    let tables = published(config, &source).await?;
    let creates = match link::target(config).await {
        Ok(target) => {
            let missing = target_ddl::missing(config, &source, &target, &tables).await?;
            for name in &missing.types {
                out.push(format!(
                    "-- type {} has to be created first",
                    visible::inline(&name.to_string())
                ));
            }
            missing.statements
        }
        Err(_) => {
            out.push(
                "-- the target does not answer: these are all tables, as if it had none".to_owned(),
            );
            target_ddl::everything(config, &source, &tables).await?
        }
    };
    if !creates.is_empty() {
        out.push("-- tables that the target lacks, as the source defines them".to_owned());
        out.push(target_ddl::script(&creates));
    }
    out.push(schema::sql());
    out.push(schema::grants(&config.target.role));
    Ok(out.join("\n"))
}
