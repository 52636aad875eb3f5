//! `trellara table recopy`.

use std::time::Duration;

use trellara_source::publication::TableName;

use super::{Place, one_table};
use crate::command::backfill::follow;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::telemetry::{self, LogFormat};

/// Copies a table of the flow anew: the target's rows of it are deleted and come again.
///
/// For a table that a verify run found different, that somebody wrote to, or whose copy failed.
/// Everything else goes on; changes of the table wait for its copy.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the publication on the source; trellara.backfill on the target
Writes: a row of trellara.backfill and one of trellara.audit on the target; the applier deletes and
        writes the table's rows there

Exit codes: 0 its rows are in the target; 11 it is not in the flow, or cannot be copied; 64 not
            confirmed

Examples:
  trellara table recopy public.orders
  trellara table recopy public.orders --yes --no-wait")]
pub(crate) struct Args {
    /// The table, schema.table.
    #[arg(value_name = "TABLE", value_parser = one_table)]
    table: TableName,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Do not wait until the rows are in.
    #[arg(long)]
    no_wait: bool,
}

const AGAIN: &str = "\
INSERT INTO trellara.backfill AS b (flow, schema_name, table_name, state, initial) \
SELECT $1, t.s, t.n, 'wanted', false FROM unnest($2::text[], $3::text[]) AS t(s, n) \
ON CONFLICT (flow, schema_name, table_name) DO UPDATE \
   SET state = 'wanted', generation = b.generation + 1, noticed_epoch = NULL, \
       initial = b.initial AND b.state IN ('wanted', 'copying', 'failed'), \
       reason = NULL, hint = NULL, writer = NULL, parts = NULL, rows = 0, bytes = 0, \
       in_vain = 0, abandoned = false, abandoned_below = NULL, asked_at = clock_timestamp(), started_at = NULL, loaded_at = NULL, \
       changed_at = clock_timestamp() \
 WHERE b.state <> 'announced'";

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let place = Place::of(context).await?;
    let table = &args.table;
    let mut tables = place.named(table).await?;
    tables.retain(|one| place.publishes(one));
    if tables.is_empty() {
        let reason = format!("{table} is not in the flow");
        let hint = format!("`trellara table add {table}` brings it in");
        return Err(Failure::new(Exit::Unfit, reason, hint));
    }
    let question = format!("Delete the target's rows of {table} and copy them anew?");
    if !args.yes && !output::confirm(&question) {
        let hint = "give --yes to go on without asking";
        return Err(Failure::new(Exit::Usage, "not confirmed", hint));
    }
    let schemas: Vec<&str> = tables.iter().map(|one| one.schema.as_str()).collect();
    let names: Vec<&str> = tables.iter().map(|one| one.name.as_str()).collect();
    let flow = place.config.flow.as_str();
    let target = &place.target.client;
    let order = async {
        let asked = target.execute(AGAIN, &[&flow, &schemas, &names]).await?;
        if asked == 0 {
            let reason = format!("{table} is on its way into the flow");
            let hint = format!("`trellara table add {table}` goes on with it");
            return Err(Failure::new(Exit::Unfit, reason, hint));
        }
        place.record("table copied anew", &tables).await
    };
    place.at_once(order).await?;
    if args.no_wait {
        context
            .output
            .note("`trellara backfill --watch` shows how far its copy is");
        return Ok(Exit::Done);
    }
    let interval = Duration::from_secs(1);
    let (config, target) = (&place.config, &place.target);
    follow(config, target, Some(&tables), interval, context.output).await
}
