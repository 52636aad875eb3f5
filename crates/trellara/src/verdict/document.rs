//! The report as programs read it; `--output json` writes it whole.
//!
//! Texts are in it as they are: whoever shows them to people escapes them.

use std::time::SystemTime;

use serde::Serialize;
use trellara_verify::CompareOptions;
use trellara_verify::freeze::Pair;
use trellara_verify::report::{
    Coverage, Difference, DigestLane, Kind, Method, Mode, Outcome, Report, ServerReport,
    TableReport, Verdict,
};

use super::beside;
use crate::inspect::time;
use crate::operator::Operator;
use crate::visible;

/// Raised when a field changes its meaning or goes; fields may come without.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// What the report does not know of itself.
#[derive(Debug, Clone)]
pub(crate) struct Circumstances {
    /// The flow.
    pub(crate) flow: String,
    /// Who ran it, and where.
    pub(crate) operator: String,
    /// Whether rows' values are shown.
    pub(crate) values: bool,
}

/// How a verdict or an outcome is taken by whoever only looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Equal,
    Different,
    /// It differs, and by what is known why.
    Explained,
    /// Not everything was looked at.
    Unsure,
}

impl Tone {
    fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Equal => Self::Equal,
            Verdict::Different => Self::Different,
            Verdict::Explained => Self::Explained,
            Verdict::NoneFound | Verdict::CouldNotCompare => Self::Unsure,
        }
    }

    fn of_table(table: &TableReport) -> Self {
        match table.outcome {
            Outcome::Equal => Self::Equal,
            Outcome::Different if table.explained > 0 && table.explained >= table.differing() => {
                Self::Explained
            }
            Outcome::Different => Self::Different,
            Outcome::NoneFound | Outcome::NotComparable { .. } => Self::Unsure,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Document {
    #[serde(skip)]
    pub(super) judged: Verdict,
    #[serde(skip)]
    pub(super) tone: Tone,
    /// Whether both sides were compared at one position.
    #[serde(skip)]
    pub(super) frozen: bool,
    pub(super) schema_version: u32,
    pub(super) id: String,
    pub(super) flow: String,
    pub(super) tool_version: &'static str,
    pub(super) operator: String,
    pub(super) mode: &'static str,
    pub(super) lane: &'static str,
    pub(super) verdict: &'static str,
    pub(super) started: String,
    pub(super) finished: String,
    /// Only with values: a key and a digest of a few possible rows tell the row to whoever has it.
    pub(super) seed: Option<String>,
    pub(super) consistent_point: String,
    /// The oldest position that any table was compared at; null when one was not.
    pub(super) verified_through: Option<String>,
    pub(super) applier_held_seconds: f64,
    pub(super) source: Server,
    pub(super) target: Server,
    pub(super) tables_compared: usize,
    /// Between 0 and 1: the mean of the tables' own.
    pub(super) coverage: f64,
    pub(super) source_rows: u64,
    pub(super) target_rows: u64,
    pub(super) differing: u64,
    pub(super) explained: u64,
    /// Transactions in quarantine that the target is still to get.
    pub(super) held_transactions: u64,
    /// Whether a table has more differences than are listed.
    pub(super) truncated: bool,
    pub(super) tables: Vec<TableDocument>,
    /// Tables that are published and nobody asked for.
    pub(super) left_out: Vec<String>,
    pub(super) not_covered: Vec<String>,
    pub(super) sequences: beside::Looked<beside::SequenceDocument>,
    pub(super) definitions: beside::Looked<beside::DefinitionDocument>,
    pub(super) seconds: f64,
}

#[derive(Serialize)]
pub(super) struct Server {
    pub(super) system: String,
    pub(super) timeline: u32,
    pub(super) version: String,
}

#[derive(Serialize)]
pub(crate) struct TableDocument {
    #[serde(skip)]
    pub(super) tone: Tone,
    /// The last digits of the sums.
    #[serde(skip)]
    pub(super) checksums: Option<(String, String)>,
    pub(super) id: String,
    pub(super) schema: String,
    pub(super) name: String,
    pub(super) outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
    pub(super) method: Option<&'static str>,
    pub(super) pieces: Option<u32>,
    pub(super) coverage: CoverageDocument,
    pub(super) verified_through: Option<String>,
    /// Null, as the sums are, when the table was not compared.
    pub(super) source_rows: Option<u64>,
    pub(super) target_rows: Option<u64>,
    /// Rows of the source whose contents were compared: fewer where a sample was.
    pub(super) rows_compared: Option<u64>,
    pub(super) source_sum: Option<String>,
    pub(super) target_sum: Option<String>,
    pub(super) missing: u64,
    pub(super) extra: u64,
    pub(super) changed: u64,
    pub(super) duplicate: u64,
    pub(super) differing: u64,
    pub(super) explained: u64,
    /// How many of the differing rows the list stands for.
    pub(super) listed: u64,
    pub(super) truncated: bool,
    pub(super) mapped: Vec<String>,
    pub(super) differences: Vec<Row>,
    pub(super) seconds: f64,
}

#[derive(Serialize)]
pub(super) struct CoverageDocument {
    pub(super) compared: u32,
    pub(super) of: u32,
    pub(super) ratio: f64,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) kind: &'static str,
    pub(super) key: Option<Vec<Column>>,
    pub(super) columns: Vec<String>,
    pub(super) source_count: u64,
    pub(super) target_count: u64,
    /// How many of the table's differing rows it stands for.
    pub(super) rows: u64,
    pub(super) source_digest: Option<String>,
    pub(super) target_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source_row: Option<Vec<Column>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target_row: Option<Vec<Column>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explained_by: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Column {
    pub(super) id: String,
    pub(super) value: Option<String>,
}

/// The document. Without values a row without a key is named by its digest alone, because then
/// every column of it would be the key.
pub(crate) fn of(report: &Report, circumstances: &Circumstances) -> Document {
    let values = circumstances.values;
    let tables: Vec<TableDocument> = report
        .tables
        .iter()
        .map(|table| table_document(table, values))
        .collect();
    let through = report.tables.iter().map(|table| table.verified_through);
    let through = through.collect::<Option<Vec<_>>>();
    let total = |count: fn(&TableDocument) -> u64| tables.iter().map(count).sum::<u64>();
    let verdict = report.verdict();
    Document {
        judged: verdict,
        tone: Tone::of(verdict),
        frozen: match report.mode {
            Mode::Exact | Mode::Quick => true,
            Mode::Rolling | Mode::Watch => false,
        },
        schema_version: SCHEMA_VERSION,
        id: report.run.clone(),
        flow: circumstances.flow.clone(),
        tool_version: env!("CARGO_PKG_VERSION"),
        operator: circumstances.operator.clone(),
        mode: mode(report.mode),
        lane: lane(report.lane),
        verdict: verdict.word(),
        started: time::moment(report.started),
        finished: time::moment(report.started + report.took),
        seed: values.then(|| report.seed.to_string()),
        consistent_point: report.consistent_point.to_string(),
        verified_through: through
            .and_then(|all| all.into_iter().min())
            .map(|lsn| lsn.to_string()),
        applier_held_seconds: report.held.as_secs_f64(),
        source: server(&report.source),
        target: server(&report.target),
        tables_compared: report.tables.iter().filter(|t| t.is_compared()).count(),
        coverage: report.coverage(),
        source_rows: total(|table| table.source_rows.unwrap_or(0)),
        target_rows: total(|table| table.target_rows.unwrap_or(0)),
        differing: total(|table| table.differing),
        explained: total(|table| table.explained),
        held_transactions: report.held_transactions,
        truncated: tables.iter().any(|table| table.truncated),
        tables,
        left_out: report.left_out.iter().map(ToString::to_string).collect(),
        not_covered: report.not_covered.clone(),
        sequences: beside::sequences(&report.sequences),
        definitions: beside::definitions(&report.definitions),
        seconds: report.took.as_secs_f64(),
    }
}

pub(super) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exact => "exact",
        Mode::Rolling => "rolling",
        Mode::Watch => "watch",
        Mode::Quick => "quick",
    }
}

fn lane(lane: DigestLane) -> &'static str {
    match lane {
        DigestLane::Row64 => "row64",
        DigestLane::Blake3 => "blake3",
    }
}

/// What is known once both sides are frozen.
#[derive(Serialize)]
pub(crate) struct Begun {
    schema_version: u32,
    flow: String,
    tool_version: &'static str,
    operator: String,
    mode: &'static str,
    started: String,
    seed: Option<String>,
    consistent_point: String,
    applier_held_seconds: f64,
    source: Server,
    target: Server,
}

/// The first event of a run.
pub(crate) fn begun(
    pair: &Pair,
    (mode, options): (Mode, &CompareOptions),
    circumstances: &Circumstances,
    started: SystemTime,
) -> Begun {
    Begun {
        schema_version: SCHEMA_VERSION,
        flow: circumstances.flow.clone(),
        tool_version: env!("CARGO_PKG_VERSION"),
        operator: circumstances.operator.clone(),
        mode: self::mode(mode),
        started: time::moment(started),
        seed: circumstances.values.then(|| options.seed.to_string()),
        consistent_point: pair.consistent_point.to_string(),
        applier_held_seconds: pair.held.as_secs_f64(),
        source: server(&pair.source_server),
        target: server(&pair.target_server),
    }
}

fn server(server: &ServerReport) -> Server {
    Server {
        system: server.system.to_string(),
        timeline: server.timeline.0,
        version: server.version.clone(),
    }
}

pub(super) fn table_document(table: &TableReport, values: bool) -> TableDocument {
    let (reason, hint) = match &table.outcome {
        Outcome::Equal | Outcome::NoneFound | Outcome::Different => (None, None),
        Outcome::NotComparable { reason, hint } => (Some(reason.clone()), Some(hint.clone())),
    };
    let (method, pieces) = match table.method {
        Some(Method::Range(pieces)) => (Some("range"), Some(pieces)),
        Some(Method::Bucket(pieces)) => (Some("bucket"), Some(pieces)),
        None => (None, None),
    };
    let compared = table.is_compared();
    let Coverage {
        compared: of_it,
        of,
    } = table.coverage;
    let checksums = (
        last_digits(&table.source_sum),
        last_digits(&table.target_sum),
    );
    TableDocument {
        tone: Tone::of_table(table),
        checksums: compared.then_some(checksums),
        id: table.table.to_string(),
        schema: table.table.schema.clone(),
        name: table.table.name.clone(),
        outcome: table.outcome.word(),
        reason,
        hint,
        method,
        pieces,
        coverage: CoverageDocument {
            compared: of_it,
            of,
            ratio: table.covered(),
        },
        verified_through: table.verified_through.map(|lsn| lsn.to_string()),
        source_rows: compared.then_some(table.source_rows),
        target_rows: compared.then_some(table.target_rows),
        rows_compared: compared.then_some(table.rows_compared),
        source_sum: compared.then(|| table.source_sum.clone()),
        target_sum: compared.then(|| table.target_sum.clone()),
        missing: table.missing,
        extra: table.extra,
        changed: table.changed,
        duplicate: table.duplicate,
        differing: table.differing(),
        explained: table.explained,
        listed: table.listed(),
        truncated: table.listed() < table.differing(),
        mapped: table.mapped.clone(),
        differences: table
            .differences
            .iter()
            .map(|difference| row(difference, table.by_key, values))
            .collect(),
        seconds: table.took.as_secs_f64(),
    }
}

/// The lowest 32 bits of a whole number of any size, in two's complement.
fn last_digits(sum: &str) -> String {
    let digits = sum.chars().filter_map(|digit| digit.to_digit(10));
    let low = digits.fold(0u32, |low, digit| low.wrapping_mul(10).wrapping_add(digit));
    let low = match sum.starts_with('-') {
        true => low.wrapping_neg(),
        false => low,
    };
    format!("{low:08x}")
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
    let named = key.as_deref().filter(|_| by_key).map(columns_text);
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
        rows: difference.rows(),
        source_digest,
        target_digest,
        source_row: shown(&difference.source_row),
        target_row: shown(&difference.target_row),
        explained_by: difference.explained_by.as_ref().map(ToString::to_string),
    }
}

/// `id=17 note="two words" gone is null`.
pub(super) fn columns_text(columns: &[Column]) -> String {
    let part = |column: &Column| match &column.value {
        Some(value) => format!("{}={}", visible::quoted(&column.id), visible::quoted(value)),
        None => format!("{} is null", visible::quoted(&column.id)),
    };
    columns.iter().map(part).collect::<Vec<_>>().join(" ")
}

pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Missing => "missing",
        Kind::Extra => "extra",
        Kind::Changed => "changed",
        Kind::Duplicate => "duplicate",
    }
}

impl Circumstances {
    /// Those of this process.
    pub(crate) fn here(flow: &str, values: bool) -> Self {
        let Operator { name, host } = Operator::here();
        Self {
            flow: flow.to_owned(),
            operator: format!("{name}@{host}"),
            values,
        }
    }
}
