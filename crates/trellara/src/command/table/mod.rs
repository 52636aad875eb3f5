//! `trellara table`: the tables of a flow that runs.

mod add;
mod join;
mod list;
mod recopy;
mod remove;
mod sequences;

use std::time::Duration;

use serde_json::{Value, json};
use trellara_applier::quarantine::text::storable;
use trellara_postgres::Session;
use trellara_source::publication::{
    self, PublicationFacts, TableName, TablePattern, named_by_changes,
};

use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::operator::Operator;
use crate::{copying, link};

/// Adds tables to a running flow, takes them out, copies them anew, and sets sequences.
///
/// A table that is added is published, and its rows are copied while the others go on; changes of it
/// wait for its copy, and nothing is lost or applied twice. Every step can be repeated: a command
/// that was interrupted goes on where it stopped.
#[derive(Debug, clap::Subcommand)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "\
Reads:  the publication and the tables on the source; trellara.backfill on the target
Writes: add, remove: the publication, a row of trellara.backfill; recopy: that row;
        sequences: sequences of the target

Examples:
  trellara table list
  trellara table add public.invoices
  trellara table recopy public.orders --yes
  trellara table sequences --dry-run")]
pub(crate) enum Command {
    List(list::Args),
    Add(add::Args),
    Remove(remove::Args),
    Recopy(recopy::Args),
    Sequences(sequences::Args),
}

pub(crate) use sequences::{Carried, Margin, carry as carry_sequences, text as sequences_text};

pub(crate) async fn execute(command: &Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::List(args) => list::execute(args, context).await,
        Command::Add(args) => add::execute(args, context).await,
        Command::Remove(args) => remove::execute(args, context).await,
        Command::Recopy(args) => recopy::execute(args, context).await,
        Command::Sequences(args) => sequences::execute(args, context).await,
    }
}

/// Between two looks at something that somebody else has to do.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Both sides of a flow that is set up, and its publication.
struct Place {
    config: Config,
    source: Session,
    target: Session,
    publication: PublicationFacts,
}

impl Place {
    async fn of(context: &Context) -> Result<Self, Failure> {
        let config = context.config()?;
        let target = link::target(&config).await?;
        if link::checkpoint(&config, &target).await?.is_none() {
            return Err(link::not_set_up(&config));
        }
        let source = link::source(&config).await?;
        let name = &config.source.publication;
        let publication = publication::describe(&source, name).await?.ok_or_else(|| {
            let reason = format!("publication {name} is not there");
            Failure::new(
                Exit::Unfit,
                reason,
                "`trellara check` names what is missing",
            )
        })?;
        Ok(Self {
            config,
            source,
            target,
            publication,
        })
    }

    /// The table, or the partitions that its changes are named after.
    async fn named(&self, table: &TableName) -> Result<Vec<TableName>, Failure> {
        let tables = std::slice::from_ref(table);
        Ok(named_by_changes(&self.source, tables, self.publication.partitions()).await?)
    }

    fn publishes(&self, table: &TableName) -> bool {
        let mut members = self.publication.members.iter();
        members.any(|member| member.table == *table)
    }

    /// Tells the applier to look at `trellara.backfill`.
    async fn notify(&self) -> Result<(), Failure> {
        copying::tell(&self.config, &self.target).await
    }

    /// Does something in one transaction of the target, and tells the applier.
    async fn at_once<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        copying::at_once(&self.config, &self.target, work).await
    }

    /// Writes down who did what to these tables.
    async fn record(&self, action: &str, tables: &[TableName]) -> Result<(), Failure> {
        let names: Vec<String> = tables.iter().map(TableName::to_string).collect();
        let arguments = json!({ "tables": names });
        record(&self.target, &self.config, action, &arguments).await
    }
}

/// A row of the audit.
pub(crate) async fn record(
    target: &Session,
    config: &Config,
    action: &str,
    arguments: &Value,
) -> Result<(), Failure> {
    const RECORD: &str = "\
        INSERT INTO trellara.audit (flow, lane, action, operator, host, version, arguments, lsn) \
        SELECT $1, 0, $2, $3, $4, $5, $6::text::jsonb, \
               coalesce((SELECT a.end_lsn FROM trellara.applied AS a \
                          WHERE a.flow = $1 AND a.lane = 0 \
                          ORDER BY a.first_ordinal DESC LIMIT 1), '0/0')";
    let who = Operator::here();
    let arguments = arguments.to_string();
    let texts = [who.name.as_str(), who.host.as_str(), arguments.as_str()];
    let [name, host, arguments] = storable(&target.client, texts).await?;
    let (flow, version) = (config.flow.as_str(), env!("CARGO_PKG_VERSION"));
    target
        .client
        .execute(
            RECORD,
            &[&flow, &action, &name, &host, &version, &arguments],
        )
        .await?;
    Ok(())
}

/// One table by name; a pattern for all of a schema would add what nobody looked at.
fn one_table(text: &str) -> Result<TableName, String> {
    let pattern: TablePattern = text.parse().map_err(|error| format!("{error}"))?;
    match pattern.table {
        Some(name) => Ok(TableName {
            schema: pattern.schema,
            name,
        }),
        None => Err("name one table: schema.table".to_owned()),
    }
}
