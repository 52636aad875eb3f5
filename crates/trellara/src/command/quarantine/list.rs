//! `trellara quarantine list`.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use trellara_applier::quarantine::{Held, HeldId, HeldReason, store};

use super::{LANE, at, cause_line, ledger_failure, target};
use crate::command::status::{age, bytes_text};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};

/// Lists what is held: why, since when, how large, and what waits behind it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.held on the target
Writes: nothing

Exit codes: 0 listed, also when nothing is held; 11 not set up; 77 a right is missing; 78 the file;
            1 the target does not answer

Examples:
  trellara quarantine list
  trellara quarantine list --all --output json | jq '.[] | select(.state == \"discarded\") | .id'")]
pub(crate) struct Args {
    /// Those that are closed as well: replayed and discarded.
    #[arg(long)]
    all: bool,
}

/// One held transaction.
#[derive(Serialize)]
pub(super) struct Item {
    pub(super) id: i64,
    pub(super) transaction: String,
    pub(super) state: &'static str,
    /// `blocking`: the lane stands in front of it. `poisoned`: it was refused and passed.
    /// `dependent`: it touches what an earlier one touches.
    pub(super) reason: &'static str,
    pub(super) held_at: String,
    pub(super) age_seconds: f64,
    pub(super) attempts: u64,
    /// `target`, or `stream` while the checkpoint in front of it keeps it there.
    pub(super) storage: &'static str,
    pub(super) bytes: u64,
    pub(super) changes: u64,
    /// Of the table that the error names.
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) sqlstate: String,
    /// The last error, without values of rows; empty for one that was never tried.
    pub(super) message: String,
    /// Which change failed, from 1; 0 when it is not known.
    pub(super) change: u64,
    /// Open ones that must be applied first.
    pub(super) waits_behind: Vec<i64>,
    /// Open ones that wait for it.
    pub(super) holds_back: Vec<i64>,
    /// Whether the whole lane waits for it.
    pub(super) holds_back_lane: bool,
    /// A later transaction that touches the same and is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) overtaken_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) closed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) closed_reason: Option<String>,
    #[serde(skip)]
    error: String,
}

impl Item {
    pub(super) fn of(held: &Held, waiting: &[(HeldId, HeldId)], now_us: i64) -> Self {
        let of = |wanted: fn(&(HeldId, HeldId)) -> (HeldId, HeldId)| -> Vec<i64> {
            let pairs = waiting.iter().map(wanted);
            let ours = pairs.filter(|(one, _)| *one == held.id);
            ours.map(|(_, other)| other.0).collect()
        };
        let cause = &held.cause;
        Self {
            id: held.id.0,
            transaction: held.identity.to_string(),
            state: held.state.as_str(),
            reason: held.reason.as_str(),
            held_at: at(held.held_at_us),
            age_seconds: (now_us - held.held_at_us) as f64 / 1e6,
            attempts: held.attempts,
            storage: held.storage.as_str(),
            bytes: held.bytes,
            changes: held.changes,
            schema: cause.schema.clone(),
            table: cause.table.clone(),
            sqlstate: cause.sqlstate.clone(),
            message: cause.message.clone(),
            change: cause.change,
            waits_behind: of(|pair| *pair),
            holds_back: of(|(waits, on)| (*on, *waits)),
            holds_back_lane: held.reason == HeldReason::Blocking && held.state.is_open(),
            overtaken_by: held.overtaken.as_ref().map(|one| one.transaction.clone()),
            closed_at: held.closed_at_us.map(at),
            closed_reason: held.closed_reason.clone(),
            error: match cause.message.as_str() {
                "" => "not tried".to_owned(),
                _ => cause_line(cause),
            },
        }
    }

    fn holds_back_text(&self) -> String {
        if self.holds_back_lane {
            return "the lane".to_owned();
        }
        ids(&self.holds_back)
    }
}

/// The first few of them.
pub(super) fn ids(ids: &[i64]) -> String {
    const NAMED: usize = 4;
    let named: Vec<String> = ids.iter().take(NAMED).map(i64::to_string).collect();
    match ids.len().checked_sub(NAMED) {
        None | Some(0) => named.join(", "),
        Some(more) => format!("{} and {more} more", named.join(", ")),
    }
}

pub(super) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let target = target(&config).await?;
    let which = match args.all {
        true => store::Which::All,
        false => store::Which::Open,
    };
    let held = store::list(&target.client, &config.flow, LANE, which).await;
    let held = held.map_err(ledger_failure)?;
    let waiting = store::waiting(&target.client, &config.flow, LANE).await?;
    let now_us = store::now_us(&target.client).await?;
    let items: Vec<Item> = held
        .iter()
        .map(|held| Item::of(held, &waiting, now_us))
        .collect();
    if items.is_empty() {
        context
            .output
            .note(format!("flow {} holds nothing", config.flow));
    }
    if !items.is_empty() || context.output.format != crate::output::Format::Text {
        context.output.data(&items, |items| text(items));
    }
    Ok(Exit::Done)
}

fn text(items: &[Item]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "id",
        "transaction",
        "state",
        "reason",
        "age",
        "size",
        "changes",
        "holds back",
        "error",
    ]);
    for item in items {
        table.add_row([
            item.id.to_string(),
            item.transaction.clone(),
            item.state.to_owned(),
            item.reason.to_owned(),
            age(item.age_seconds),
            bytes_text(item.bytes),
            item.changes.to_string(),
            item.holds_back_text(),
            item.error.clone(),
        ]);
    }
    for column in [0, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
