//! How a comparison is shown: as a table for people, as one document for programs.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use trellara_verify::report::{
    Difference, Kind, Method, Mode, Outcome, Report, ServerReport, TableReport, Verdict,
};

mod beside;
pub(crate) mod progress;

/// Rows that differ shown of each table to people; `--output json` has them all.
const SHOWN: usize = 20;

#[derive(Serialize)]
pub(crate) struct Document {
    schema_version: u32,
    id: String,
    mode: &'static str,
    verdict: &'static str,
    seed: String,
    consistent_point: String,
    applier_held_seconds: f64,
    source: Server,
    target: Server,
    tables: Vec<TableDocument>,
    not_covered: Vec<String>,
    sequences: beside::Looked<beside::SequenceDocument>,
    definitions: beside::Looked<beside::DefinitionDocument>,
    seconds: f64,
}

#[derive(Serialize)]
struct Server {
    system: String,
    timeline: u32,
    version: String,
}

#[derive(Serialize)]
struct TableDocument {
    id: String,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    method: Option<&'static str>,
    pieces: Option<u32>,
    source_rows: u64,
    target_rows: u64,
    source_sum: String,
    target_sum: String,
    missing: u64,
    extra: u64,
    changed: u64,
    duplicate: u64,
    mapped: Vec<String>,
    differences: Vec<Row>,
    seconds: f64,
}

#[derive(Serialize)]
struct Row {
    id: String,
    kind: &'static str,
    key: Option<Vec<Column>>,
    columns: Vec<String>,
    source_count: u64,
    target_count: u64,
    source_digest: Option<String>,
    target_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_row: Option<Vec<Column>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_row: Option<Vec<Column>>,
}

#[derive(Serialize)]
struct Column {
    id: String,
    value: Option<String>,
}

/// The document. Without `values` a row without a key is named by its digest alone, because then
/// every column of it would be the key.
pub(crate) fn of(report: &Report, values: bool) -> Document {
    Document {
        schema_version: 1,
        id: report.run.clone(),
        mode: match report.mode {
            Mode::Exact => "exact",
            Mode::Rolling => "rolling",
            Mode::Quick => "quick",
        },
        verdict: word(report.verdict()),
        seed: report.seed.to_string(),
        consistent_point: report.consistent_point.to_string(),
        applier_held_seconds: report.held.as_secs_f64(),
        source: server(&report.source),
        target: server(&report.target),
        tables: report
            .tables
            .iter()
            .map(|table| table_document(table, values))
            .collect(),
        not_covered: report.not_covered.clone(),
        sequences: beside::sequences(&report.sequences),
        definitions: beside::definitions(&report.definitions),
        seconds: report.took.as_secs_f64(),
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "equal",
        Verdict::Different => "different",
        Verdict::CouldNotCompare => "not compared",
    }
}

fn server(server: &ServerReport) -> Server {
    Server {
        system: server.system.to_string(),
        timeline: server.timeline.0,
        version: server.version.clone(),
    }
}

fn table_document(table: &TableReport, values: bool) -> TableDocument {
    let (outcome, reason, hint) = match &table.outcome {
        Outcome::Equal => ("equal", None, None),
        Outcome::Different => ("different", None, None),
        Outcome::NotComparable { reason, hint } => {
            ("not comparable", Some(reason.clone()), Some(hint.clone()))
        }
    };
    let (method, pieces) = match table.method {
        Some(Method::Range(pieces)) => (Some("range"), Some(pieces)),
        Some(Method::Bucket(pieces)) => (Some("bucket"), Some(pieces)),
        None => (None, None),
    };
    let by_key = table.by_key;
    TableDocument {
        id: table.table.to_string(),
        outcome,
        reason,
        hint,
        method,
        pieces,
        source_rows: table.source_rows,
        target_rows: table.target_rows,
        source_sum: table.source_sum.clone(),
        target_sum: table.target_sum.clone(),
        missing: table.missing,
        extra: table.extra,
        changed: table.changed,
        duplicate: table.duplicate,
        mapped: table.mapped.clone(),
        differences: table
            .differences
            .iter()
            .map(|difference| row(difference, by_key, values))
            .collect(),
        seconds: table.took.as_secs_f64(),
    }
}

fn row(difference: &Difference, by_key: bool, values: bool) -> Row {
    let digest =
        |digest: Option<i64>| digest.map(|digest| format!("{:016x}", digest.cast_unsigned()));
    let columns = |row: &[(String, Option<String>)]| {
        row.iter()
            .map(|(id, value)| Column {
                id: id.clone(),
                value: value.clone(),
            })
            .collect::<Vec<_>>()
    };
    let shown = |row: &Option<Vec<(String, Option<String>)>>| {
        row.as_deref().filter(|_| values).map(columns)
    };
    let (source_digest, target_digest) = (
        digest(difference.source_digest),
        digest(difference.target_digest),
    );
    let key = (by_key || values).then(|| columns(&difference.key));
    let named = key.as_deref().filter(|_| by_key).map(|key| {
        let parts: Vec<String> = key.iter().map(key_part).collect();
        parts.join(" ")
    });
    let id = named
        .or_else(|| {
            let digest = source_digest.as_ref().or(target_digest.as_ref());
            digest.map(|digest| format!("row {digest}"))
        })
        .unwrap_or_default();
    Row {
        id,
        kind: kind(difference.kind),
        key,
        columns: difference.columns.clone(),
        source_count: difference.source_count,
        target_count: difference.target_count,
        source_digest,
        target_digest,
        source_row: shown(&difference.source_row),
        target_row: shown(&difference.target_row),
    }
}

fn key_part(column: &Column) -> String {
    match &column.value {
        Some(value) => format!("{}={value}", column.id),
        None => format!("{} is null", column.id),
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Missing => "missing",
        Kind::Extra => "extra",
        Kind::Changed => "changed",
        Kind::Duplicate => "duplicate",
    }
}

/// For people.
pub(crate) fn text(document: &Document) -> String {
    let mut lines = vec![
        format!(
            "frozen at {}, timeline {}, cluster {}; the applier stood still for {:.0} ms",
            document.consistent_point,
            document.source.timeline,
            document.source.system,
            document.applier_held_seconds * 1000.0
        ),
        table(&document.tables),
    ];
    for table in &document.tables {
        lines.extend(explained(table));
    }
    lines.extend(beside::definitions_lines(&document.definitions));
    lines.extend(beside::sequences_line(&document.sequences));
    lines.push(verdict_line(document));
    lines.join("\n")
}

fn table(tables: &[TableDocument]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "table",
        "source rows",
        "target rows",
        "compared by",
        "seconds",
        "result",
    ]);
    for row in tables {
        let by = match (row.method, row.pieces) {
            (Some(method), Some(pieces)) => format!("{method} × {pieces}"),
            _ => "–".to_owned(),
        };
        table.add_row([
            row.id.clone(),
            row.source_rows.to_string(),
            row.target_rows.to_string(),
            by,
            format!("{:.1}", row.seconds),
            result(row),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if matches!(index, 1 | 2 | 4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

fn result(table: &TableDocument) -> String {
    if table.outcome != "different" {
        return table.outcome.to_owned();
    }
    let counts = [
        (table.missing, "missing"),
        (table.extra, "extra"),
        (table.changed, "changed"),
        (table.duplicate, "duplicate"),
    ];
    let parts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    format!("DIFFERENT: {}", parts.join(", "))
}

/// What a table's line cannot hold: why it was not compared, which rows differ, what was mapped.
fn explained(table: &TableDocument) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(reason) = &table.reason {
        lines.push(format!("{}: not comparable: {reason}", table.id));
        if let Some(hint) = table.hint.as_ref().filter(|hint| !hint.is_empty()) {
            lines.push(format!("  hint: {hint}"));
        }
    }
    lines.extend(
        table
            .mapped
            .iter()
            .map(|mapped| format!("{}: {mapped}", table.id)),
    );
    let shown = table.differences.iter().take(SHOWN);
    lines.extend(shown.map(|row| difference_line(&table.id, row)));
    let differing = table.missing + table.extra + table.changed + table.duplicate;
    let rest = differing.saturating_sub(table.differences.len().min(SHOWN) as u64);
    if rest > 0 {
        lines.push(format!(
            "{}: and {rest} more; --output json lists up to --max-diffs of them",
            table.id
        ));
    }
    lines
}

fn difference_line(table: &str, row: &Row) -> String {
    let mut line = format!("{table} {}: {}", row.id, row.kind);
    if !row.columns.is_empty() {
        line.push_str(&format!(" ({})", row.columns.join(", ")));
    }
    if row.kind == "duplicate" {
        line.push_str(&format!(
            ": {} on the source, {} on the target",
            row.source_count, row.target_count
        ));
    }
    for (side, values) in [("source", &row.source_row), ("target", &row.target_row)] {
        if let Some(values) = values {
            let parts: Vec<String> = values.iter().map(key_part).collect();
            line.push_str(&format!("\n    {side}: {}", parts.join(" ")));
        }
    }
    line
}

fn verdict_line(document: &Document) -> String {
    let compared = document
        .tables
        .iter()
        .filter(|table| table.outcome != "not comparable")
        .count();
    let rows: u64 = document.tables.iter().map(|table| table.source_rows).sum();
    let differing: u64 = document
        .tables
        .iter()
        .map(|table| table.missing + table.extra + table.changed + table.duplicate)
        .sum();
    let covered = if document.not_covered.is_empty() {
        String::new()
    } else {
        format!("; not covered: {}", document.not_covered.join(", "))
    };
    format!(
        "verdict: {}; {compared} of {} tables compared, {rows} rows, {differing} of them differ{covered}",
        document.verdict.to_uppercase(),
        document.tables.len(),
    )
}
