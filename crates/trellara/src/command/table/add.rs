//! `trellara table add`.

use std::time::Duration;

use tokio::time::Instant;
use trellara_applier::backfill::CopyState;
use trellara_source::publication::TableName;

use super::join::Joining;
use super::{Place, one_table};
use crate::command::backfill::follow;
use crate::config::{Existing, duration};
use crate::context::Context;
use crate::copying::{self, TableFacts};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::telemetry::{self, LogFormat};
use crate::{preflight, target_ddl};

/// Adds a table to the flow: publishes it and copies its rows, while everything else goes on.
///
/// First everything is checked as by setup. The table is locked against writes for the moment in
/// which it is published (never longer than --lock-timeout; tried again until --timeout), and its
/// copy begins when every transaction that was open at that moment is over.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the table on both sides
Writes: the publication on the source; a row of trellara.backfill and one of trellara.audit on the
        target; with backfill.ddl: create, the table on the target

Exit codes: 0 it is in the flow, and its rows are in the target; 11 it does not fit, or cannot be
            copied; 20 a lock or open transactions were in the way for too long; 77 a right is
            missing. After 20, or an interruption, the same command goes on where it stopped.

Examples:
  trellara table add public.invoices
  trellara table add public.invoices --truncate --no-wait
  trellara table add '\"Odd Schema\".\"t.1\"' --timeout 1h")]
pub(crate) struct Args {
    /// The table, schema.table.
    #[arg(value_name = "TABLE", value_parser = one_table)]
    table: TableName,
    /// Delete the rows that the target's table has before the copy.
    #[arg(long)]
    truncate: bool,
    /// Take the rows that the target's table has for those of the source: nothing is copied.
    #[arg(long, conflicts_with = "truncate")]
    adopt: bool,
    /// How long other sessions may be made to wait for the lock of one attempt.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    lock_timeout: Duration,
    /// Give up after this long before the copy began.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Do not wait until the rows are in.
    #[arg(long)]
    no_wait: bool,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let mut place = Place::of(context).await?;
    match (args.adopt, args.truncate) {
        (true, _) => place.config.backfill.existing = Existing::Keep,
        (_, true) => place.config.backfill.existing = Existing::Truncate,
        _ => {}
    }
    let tables = place.named(&args.table).await?;
    if tables.is_empty() {
        let reason = format!(
            "the source has no table {} that can be published",
            args.table
        );
        return Err(Failure::new(Exit::Unfit, reason, "check its name"));
    }
    let copies = copying::tables(&place.config, &place.target).await?;
    let state = Standing::of(&place, &tables, &copies);
    if state == Standing::InFlow {
        context
            .output
            .note(format!("{} is in the flow already", args.table));
        return Ok(Exit::Done);
    }
    if state == Standing::Outside {
        fits(&place, &tables, context.output).await?;
    }
    let joining = Joining {
        place: &place,
        table: &args.table,
        tables: &tables,
        lock_timeout: args.lock_timeout,
        deadline: Instant::now() + args.timeout,
        output: context.output,
    };
    if state != Standing::Ordered {
        joining.join(args.adopt).await?;
    }
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

/// How far a table is on its way into the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nothing was done yet.
    Outside,
    /// It was announced; the command was interrupted, or gave up.
    Announced,
    /// Its copy is ordered.
    Ordered,
    /// Its changes are carried, and nothing of it is to be copied.
    InFlow,
}

impl Standing {
    /// Of several partitions, what the least advanced one needs.
    fn of(place: &Place, tables: &[TableName], copies: &[TableFacts]) -> Self {
        let one = |table: &TableName| {
            let copy = copies.iter().find(|copy| copy.name == *table);
            let is = |state: CopyState| copy.is_some_and(|copy| copy.is(state));
            let published = place.publishes(table);
            match copy {
                Some(_) if is(CopyState::Removed) => Standing::Outside,
                Some(_) if is(CopyState::Announced) => Standing::Announced,
                Some(copy) if published && copy.is_over() => Standing::InFlow,
                Some(_) if published => Standing::Ordered,
                // What left the publication behind our back comes in anew.
                Some(_) => Standing::Outside,
                None if published => Standing::InFlow,
                None => Standing::Outside,
            }
        };
        let rank = |standing: &Standing| *standing as u8;
        let least = tables.iter().map(one).min_by_key(rank);
        least.unwrap_or(Standing::Outside)
    }
}

/// Refuses what setup would refuse, and creates the table where setup would.
async fn fits(place: &Place, tables: &[TableName], output: Output) -> Result<(), Failure> {
    let findings = preflight::tables(&place.config, (&place.source, &place.target), tables).await;
    preflight::refuse(&findings, output)?;
    if !place.config.backfill.create_tables {
        return Ok(());
    }
    target_ddl::create_missing(&place.config, &place.source, tables, output).await
}
