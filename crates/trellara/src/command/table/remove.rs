//! `trellara table remove`.

use tokio_postgres::types::ToSql;
use trellara_postgres::{fault, quote};
use trellara_source::publication::TableName;

use super::{Place, one_table};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::telemetry::{self, LogFormat};

/// Takes a table out of the flow: its changes are not carried any more. No row is touched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the publication on the source
Writes: the publication; a row of trellara.backfill and one of trellara.audit on the target

Exit codes: 0 it is out; 11 it is not in the flow; 64 not confirmed; 77 a right is missing

Examples:
  trellara table remove public.invoices
  trellara table remove public.invoices --yes")]
pub(crate) struct Args {
    /// The table, schema.table.
    #[arg(value_name = "TABLE", value_parser = one_table)]
    table: TableName,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// The relay is told by the oid that the table left on purpose. Of one that is not in, nothing that
/// the stream still has is applied: the target holds none of its rows, or some.
const REMOVED: &str = "\
INSERT INTO trellara.backfill AS b (flow, schema_name, table_name, state, initial, relation) \
SELECT $1, t.s, t.n, 'removed', false, t.o \
  FROM unnest($2::text[], $3::text[], $4::bigint[]) AS t(s, n, o) \
ON CONFLICT (flow, schema_name, table_name) DO UPDATE \
   SET state = 'removed', initial = false, relation = excluded.relation, \
       abandoned = b.state IN ('announced', 'wanted', 'copying', 'failed'), \
       generation = b.generation + 1, changed_at = clock_timestamp() \
 WHERE b.state <> 'removed'";
/// Transactions that begin from here on change a table that is not published.
const LIMIT: &str = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
const LEFT: &str = "\
UPDATE trellara.backfill AS b SET abandoned_below = $4, changed_at = clock_timestamp() \
  FROM unnest($2::text[], $3::text[]) AS t(s, n) \
 WHERE b.flow = $1 AND b.schema_name = t.s AND b.table_name = t.n AND b.state = 'removed' \
   AND b.abandoned AND b.abandoned_below IS NULL";

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let place = Place::of(context).await?;
    let table = &args.table;
    let tables = place.named(table).await?;
    let members = place.publication.members.iter();
    let members: Vec<_> = members
        .filter(|member| tables.contains(&member.table))
        .collect();
    // A former run may have been interrupted.
    if members.is_empty() && left(&place, &tables).await? {
        context
            .output
            .note(format!("{table}: it is out of the flow"));
        return Ok(Exit::Done);
    }
    if members.is_empty() {
        let reason = format!("{table} is not in the flow");
        return Err(Failure::new(Exit::Unfit, reason, "`trellara table list`"));
    }
    let question = format!(
        "Take {table} out of flow {}? Its rows stay.",
        place.config.flow
    );
    if !args.yes && !output::confirm(&question) {
        let hint = "give --yes to go on without asking";
        return Err(Failure::new(Exit::Usage, "not confirmed", hint));
    }
    let schemas: Vec<&str> = members
        .iter()
        .map(|one| one.table.schema.as_str())
        .collect();
    let names: Vec<&str> = members.iter().map(|one| one.table.name.as_str()).collect();
    let oids: Vec<i64> = members
        .iter()
        .map(|one| i64::from(one.ids.relation.0))
        .collect();
    let flow = place.config.flow.as_str();
    let target = &place.target.client;
    let order = async {
        let parameters: [&(dyn ToSql + Sync); 4] = [&flow, &schemas, &names, &oids];
        match target.execute(REMOVED, &parameters).await? {
            // A former run did, and was interrupted.
            0 => Ok(()),
            _ => place.record("table removed", &tables).await,
        }
    };
    place.at_once(order).await?;
    let publication = quote::identifier(&place.config.source.publication);
    let sql = format!("ALTER PUBLICATION {publication} DROP TABLE {table}");
    if let Err(error) = place.source.client.batch_execute(&sql).await {
        let rights = fault(&error).sqlstate == "42501";
        let failure = Failure::from(error).doing("cannot take the table out of the publication");
        return Err(match rights {
            true => failure.hint(format!("let their owner run: {sql}")),
            false => failure,
        });
    }
    left(&place, &tables).await?;
    context
        .output
        .note(format!("{table}: it is out of the flow"));
    Ok(Exit::Done)
}

/// Of tables that are out of the publication: from where on nothing of them is left out any more.
/// Whether that was to be said.
async fn left(place: &Place, tables: &[TableName]) -> Result<bool, Failure> {
    let limit: i64 = place.source.client.query_one(LIMIT, &[]).await?.get(0);
    let (schemas, names): (Vec<&str>, Vec<&str>) = tables
        .iter()
        .map(|table| (table.schema.as_str(), table.name.as_str()))
        .unzip();
    let flow = place.config.flow.as_str();
    let target = &place.target.client;
    let say = async {
        let parameters: [&(dyn ToSql + Sync); 4] = [&flow, &schemas, &names, &limit];
        Ok(target.execute(LEFT, &parameters).await?)
    };
    Ok(place.at_once(say).await? > 0)
}
