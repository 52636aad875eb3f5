//! `trellara quarantine show`.

use std::collections::BTreeMap;

use serde::Serialize;
use trellara_applier::quarantine::view::{self, Definitions, Field, FieldValue, Found, WouldRun};
use trellara_applier::quarantine::{Held, HeldId, store};
use trellara_postgres::Session;

use super::list::{Item, ids};
use super::{LANE, at, broker_for, cause_line, counted, desk_failure, ledger_failure, target};
use crate::command::applier;
use crate::command::status::{age, bytes_text};
use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::inspect::{Shown, time};
use crate::telemetry::{self, LogFormat};
use crate::visible;

/// Shows one held transaction: what it changes, which change failed and why, the statement that would
/// run, and both definitions of its tables where they differ.
///
/// Row values, and the server's detail, which may repeat them, are shown only with --values; without
/// it columns show their lengths.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.held, its frames and the catalogues on the target; the stream, for a large one in
        front of which the lane stands
Writes: nothing

Exit codes: 0 shown; 64 no such transaction; 10 its frames are damaged; 11 not set up; 77 a right is
            missing; 78 the file; 1 a server does not answer

Examples:
  trellara quarantine show 7
  trellara quarantine show 7 --values --output json | jq .changes")]
pub(crate) struct Args {
    /// Which one.
    #[arg(value_name = "ID")]
    id: i64,
    /// Show row values and the server's detail.
    #[arg(long)]
    values: bool,
    /// Most changes shown, beside the one that failed; 0 for all.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: u64,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    item: Item,
    committed_at: String,
    commit_lsn: String,
    end_lsn: String,
    stream: String,
    stream_sequence: u64,
    frames: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_tried_at: Option<String>,
    /// The constraint or column that the server named.
    object: String,
    /// The server's own; only with --values.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    has_detail: bool,
    hint: String,
    shown: Vec<Change>,
    changes_left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    statement: Option<Statement>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_statement: Option<String>,
    /// Of tables whose columns are not the same ones on both sides.
    definitions: Vec<Table>,
}

#[derive(Serialize)]
struct Change {
    /// Its place among the transaction's changes, from 1.
    id: u64,
    failed: bool,
    operation: &'static str,
    tables: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    old: BTreeMap<String, Shown>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    new: BTreeMap<String, Shown>,
}

#[derive(Serialize)]
struct Statement {
    sql: String,
    values: Vec<Shown>,
}

#[derive(Serialize)]
struct Table {
    id: String,
    source: Vec<Column>,
    /// Absent when the target has no such table.
    target: Option<Vec<Column>>,
}

#[derive(Serialize)]
struct Column {
    id: String,
    r#type: String,
}

pub(super) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let session = target(&config).await?;
    let held = store::get(&session.client, &config.flow, LANE, HeldId(args.id)).await;
    let Some(held) = held.map_err(ledger_failure)? else {
        return Err(Failure::new(
            Exit::Usage,
            format!("flow {} holds no transaction {}", config.flow, args.id),
            "trellara quarantine list shows what it holds, with --all also what is closed",
        ));
    };
    let document = document(args, &config, &session, &held).await?;
    context.output.data(&document, text);
    Ok(Exit::Done)
}

async fn document(
    args: &Args,
    config: &Config,
    session: &Session,
    held: &Held,
) -> Result<Document, Failure> {
    let waiting = store::waiting(&session.client, &config.flow, LANE).await?;
    let now_us = store::now_us(&session.client).await?;
    let broker = broker_for(config, std::slice::from_ref(held)).await?;
    let options = applier::options(config);
    let limit = match args.limit {
        0 => u64::MAX,
        limit => limit,
    };
    let (mut shown, mut left_out) = (Vec::new(), 0);
    let mut each = |change: view::Shown| {
        let failed = change.number == held.cause.change;
        if change.number > limit && !failed {
            left_out += 1;
            return;
        }
        shown.push(self::change(change, failed, args.values));
    };
    let found = view::read(
        &session.client,
        held,
        (&options, broker.as_ref()),
        &mut each,
    );
    let Found {
        statement,
        no_statement,
        definitions,
    } = found.await.map_err(desk_failure)?;
    let cause = &held.cause;
    Ok(Document {
        item: Item::of(held, &waiting, now_us),
        committed_at: time::text(held.identity.commit_time),
        commit_lsn: held.identity.commit_lsn.to_string(),
        end_lsn: held.end_lsn.to_string(),
        stream: held.after.transport.stream.name.clone(),
        stream_sequence: held.sequence.0,
        frames: held.frames,
        last_tried_at: held.last_tried_at_us.map(at),
        object: cause.object.clone(),
        detail: (args.values && !cause.detail.is_empty()).then(|| cause.detail.clone()),
        has_detail: !cause.detail.is_empty(),
        hint: cause.hint.clone(),
        shown,
        changes_left_out: left_out,
        statement: statement.map(|statement| self::statement(statement, args.values)),
        no_statement,
        definitions: definitions
            .into_iter()
            .filter(Definitions::differ)
            .map(table)
            .collect(),
    })
}

fn change(change: view::Shown, failed: bool, values: bool) -> Change {
    let row = |fields: Vec<Field>| {
        let shown = |field: Field| {
            let value = match field.value {
                FieldValue::Null => Shown::Text(None),
                FieldValue::Unchanged => Shown::Unchanged { unchanged: true },
                FieldValue::Text(text) => value(text, values),
            };
            (field.column, value)
        };
        fields.into_iter().map(shown).collect()
    };
    let name = |(schema, table): &(String, String)| visible::table(schema, table);
    Change {
        id: change.number,
        failed,
        operation: change.verb,
        tables: change.tables.iter().map(name).collect(),
        old: row(change.old),
        new: row(change.new),
    }
}

fn value(text: String, values: bool) -> Shown {
    match values {
        true => Shown::Text(Some(text)),
        false => Shown::Length { bytes: text.len() },
    }
}

fn statement(statement: WouldRun, values: bool) -> Statement {
    let shown = |one: Option<view::Redacted>| match one {
        None => Shown::Text(None),
        Some(text) => value(text.0, values),
    };
    Statement {
        sql: statement.sql,
        values: statement.values.into_iter().map(shown).collect(),
    }
}

fn table(definitions: Definitions) -> Table {
    let columns = |columns: Vec<(String, String)>| {
        let column = |(name, of)| Column {
            id: name,
            r#type: of,
        };
        columns.into_iter().map(column).collect()
    };
    Table {
        id: visible::table(&definitions.schema, &definitions.table),
        source: columns(definitions.source),
        target: definitions.target.map(columns),
    }
}

fn text(document: &Document) -> String {
    let mut lines = head(document);
    lines.push("changes".to_owned());
    let digits = document.item.changes.to_string().len();
    for change in &document.shown {
        lines.push(change_line(change, digits));
    }
    if document.changes_left_out > 0 {
        lines.push(format!(
            "    and {} more: --limit 0 shows all",
            document.changes_left_out
        ));
    }
    lines.extend(statement_lines(document));
    lines.extend(document.definitions.iter().flat_map(definition_lines));
    lines.join("\n")
}

fn head(document: &Document) -> Vec<String> {
    let item = &document.item;
    let mut lines = vec![format!(
        "held transaction {}: {}, {}, since {}",
        item.id,
        item.state,
        item.reason,
        age(item.age_seconds)
    )];
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {name:<12} {value}"));
        }
    };
    line("transaction", item.transaction.clone());
    line(
        "committed",
        format!(
            "{} at {}, ends at {}",
            document.committed_at, document.commit_lsn, document.end_lsn
        ),
    );
    line(
        "kept",
        format!(
            "{} in the {}: {}, {}; came at sequence {} of {}",
            bytes_text(item.bytes),
            item.storage,
            counted(item.changes, "change"),
            counted(document.frames, "frame"),
            document.stream_sequence,
            document.stream
        ),
    );
    if let Some(last) = &document.last_tried_at {
        let times = counted(item.attempts, "time");
        line("tried", format!("{times}, last at {last}"));
    }
    line("error", error_text(document));
    line("named", visible::inline(&document.object).into_owned());
    line(
        "detail",
        match (&document.detail, document.has_detail) {
            (Some(detail), _) => visible::inline(detail).into_owned(),
            (None, true) => "hidden, it may hold values: --values shows it".to_owned(),
            (None, false) => String::new(),
        },
    );
    line("hint", visible::inline(&document.hint).into_owned());
    line("waits behind", ids(&item.waits_behind));
    line(
        "holds back",
        match item.holds_back_lane {
            true => "the lane".to_owned(),
            false => ids(&item.holds_back),
        },
    );
    line(
        "overtaken by",
        item.overtaken_by.clone().unwrap_or_default(),
    );
    if let (Some(closed), reason) = (&item.closed_at, &item.closed_reason) {
        let reason = reason.as_deref().unwrap_or_default();
        line("closed", format!("{closed}: {}", visible::inline(reason)));
    }
    lines
}

fn error_text(document: &Document) -> String {
    let item = &document.item;
    if item.message.is_empty() {
        return "not tried: it waits behind an earlier one".to_owned();
    }
    cause_line(&trellara_applier::quarantine::Cause {
        sqlstate: item.sqlstate.clone(),
        message: item.message.clone(),
        schema: item.schema.clone(),
        table: item.table.clone(),
        change: item.change,
        ..trellara_applier::quarantine::Cause::default()
    })
}

fn change_line(change: &Change, digits: usize) -> String {
    let row = |label: &str, row: &BTreeMap<String, Shown>| {
        if row.is_empty() {
            return String::new();
        }
        let column = |(name, value): (&String, &Shown)| {
            format!("{}={}", visible::quoted(name), value_text(value))
        };
        let columns: Vec<String> = row.iter().map(column).collect();
        format!("  {label} {}", columns.join(" "))
    };
    format!(
        "  {} {:>digits$}  {:<8} {}{}{}",
        if change.failed { ">" } else { " " },
        change.id,
        change.operation,
        change.tables.join(", "),
        row("old", &change.old),
        row("new", &change.new)
    )
}

fn value_text(value: &Shown) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn statement_lines(document: &Document) -> Vec<String> {
    let change = document.item.change;
    if let Some(why) = &document.no_statement {
        let why = visible::inline(why);
        return vec![format!("change {change} has no statement: {why}")];
    }
    let Some(statement) = &document.statement else {
        return Vec::new();
    };
    let mut lines = vec![
        format!("statement of change {change}"),
        format!("    {}", visible::inline(&statement.sql)),
    ];
    for (number, value) in (1..).zip(&statement.values) {
        lines.push(format!("    ${number} = {}", value_text(value)));
    }
    lines
}

/// Both sides, column by column in the source's order, what only the target has behind them.
fn definition_lines(table: &Table) -> Vec<String> {
    let mut lines = vec![format!("{} is not the same on both sides", table.id)];
    let Some(target) = &table.target else {
        lines.push("    the target has no such table".to_owned());
        return lines;
    };
    let shown = |column: Option<&Column>| match column {
        Some(column) => format!(
            "{} {}",
            visible::quoted(&column.id),
            visible::inline(&column.r#type)
        ),
        None => "-".to_owned(),
    };
    let of = |columns: &'_ [Column], name: &str| columns.iter().position(|one| one.id == name);
    let mut rows: Vec<(String, String)> = Vec::new();
    for column in &table.source {
        let other = of(target, &column.id).and_then(|at| target.get(at));
        rows.push((shown(Some(column)), shown(other)));
    }
    for column in target {
        if of(&table.source, &column.id).is_none() {
            rows.push((shown(None), shown(Some(column))));
        }
    }
    let width = rows.iter().map(|(left, _)| left.chars().count()).max();
    let width = width.unwrap_or_default().max("source".len());
    lines.push(format!("      {:<width$}  target", "source"));
    for (left, right) in rows {
        let mark = if left == right { " " } else { ">" };
        lines.push(format!("    {mark} {left:<width$}  {right}"));
    }
    lines
}
