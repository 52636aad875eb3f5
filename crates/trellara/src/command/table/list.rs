//! `trellara table list`.

use serde::Serialize;
use trellara_source::publication::{self, TableName};

use super::Place;
use crate::context::Context;
use crate::copying;
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};
use crate::visible;

/// Lists the tables of the flow, with how far the copy of each is.
///
/// streaming: its changes are carried, and no copy was asked for. not published: source.tables names
/// it and the flow does not carry it. The other words are those of `trellara backfill`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the publication on the source; trellara.backfill on the target
Writes: nothing

Exit codes: 0 listed; 11 not set up; 1 a server does not answer

Examples:
  trellara table list
  trellara table list --output json | jq '.[] | select(.state != \"done\")'")]
pub(crate) struct Args {}

#[derive(Serialize)]
struct Listed {
    id: String,
    state: String,
    rows: Option<u64>,
    generation: Option<i32>,
}

pub(crate) async fn execute(_args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let place = Place::of(context).await?;
    let copies = copying::tables(&place.config, &place.target).await?;
    let members = place.publication.members.iter();
    let mut names: Vec<TableName> = members.map(|member| member.table.clone()).collect();
    names.extend(copies.iter().map(|copy| copy.name.clone()));
    let wanted = publication::expand(&place.source, &place.config.source.tables).await;
    let partitions = place.publication.partitions();
    if let Ok(wanted) = wanted {
        let wanted = publication::named_by_changes(&place.source, &wanted, partitions).await?;
        names.extend(wanted);
    }
    names.sort();
    names.dedup();
    let listed: Vec<Listed> = names
        .iter()
        .map(|name| {
            let copy = copies.iter().find(|copy| copy.name == *name);
            let state = match (copy, place.publishes(name)) {
                (Some(copy), _) => copy.state.as_str(),
                (None, true) => "streaming",
                (None, false) => "not published",
            };
            Listed {
                id: visible::table(&name.schema, &name.name),
                state: state.to_owned(),
                rows: copy.map(|copy| copy.rows),
                generation: copy.map(|copy| copy.generation),
            }
        })
        .collect();
    context.output.data(&listed, |listed| {
        let line = |one: &Listed| {
            let rows = one.rows.map(|rows| format!("  {rows} rows copied"));
            format!("{:<14} {}{}", one.state, one.id, rows.unwrap_or_default())
        };
        listed.iter().map(line).collect::<Vec<_>>().join("\n")
    });
    Ok(Exit::Done)
}
