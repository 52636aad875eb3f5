//! The report as one page that needs nothing else: no script, no network, no font.
//!
//! Every text goes through `visible` and then through the template's escaping; and should both
//! fail, the page's own policy forbids whatever could act.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};
use trellara_verify::report::Verdict;

use super::document::{Column, Document, Row, TableDocument, Tone};
use super::{beside, text};
use crate::visible;

const STYLE: &str = include_str!("html.css");
/// Rows of each table on the page: a browser shows so many without labour. JSON has them all.
const SHOWN: usize = 500;
/// Of a value on the page, so many characters.
const VALUE: usize = 2000;
/// A bar's units from end to end.
const BAR: f64 = 400.0;
/// What differs is seen, however little it is; and so is a table, however small.
const LEAST: f64 = 8.0;

/// The page.
pub(crate) fn page(document: &Document) -> String {
    let style = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    );
    let title = format!("{}: trellara verify, {}", headline(document), document.flow);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { (shown(&title)) }
                style { (maud::PreEscaped(STYLE)) }
            }
            body {
                (hatching())
                (verdict(document))
                (facts(document))
                (tables(document))
                (differences(document))
                (besides(document))
                (not_covered(document))
                (reading(document.frozen))
                footer {
                    "Run " code { (document.id) } " of flow " (shown(&document.flow))
                    ", written by Trellara " (document.tool_version) "."
                }
            }
        }
    }
    .into_string()
}

/// Text from elsewhere, cut where a page would drown in it.
fn shown(text: &str) -> String {
    let text = visible::inline(text);
    match text.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.into_owned(),
    }
}

fn name(table: &TableDocument) -> String {
    shown(&visible::table(&table.schema, &table.name))
}

/// The class that colours a verdict or an outcome; the word always stands beside it.
fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Equal => "equal",
        Tone::Different => "different",
        Tone::Explained => "explained",
        Tone::Unsure => "unsure",
    }
}

fn sign(tone: Tone) -> &'static str {
    match tone {
        Tone::Equal => "=",
        Tone::Different => "≠",
        Tone::Explained => "≈",
        Tone::Unsure => "?",
    }
}

fn headline(document: &Document) -> String {
    let mut letters = document.verdict.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn verdict(document: &Document) -> Markup {
    let (compared, all) = (document.tables_compared, document.tables.len());
    let rows = grouped(document.source_rows);
    let differing = grouped(document.differing);
    let sentence = match document.judged {
        Verdict::Equal => {
            format!("All {rows} rows of all {all} tables are the same on both sides.")
        }
        Verdict::Explained => format!(
            "{differing} rows differ, and transactions in quarantine explain it; {} are held.",
            grouped(document.held_transactions)
        ),
        Verdict::Different => format!(
            "{differing} rows differ; {compared} of {all} tables were compared, {rows} rows."
        ),
        Verdict::NoneFound | Verdict::CouldNotCompare => format!(
            "{differing} rows differ, but this cannot vouch for everything: {compared} of {all} \
             tables were compared, {rows} rows."
        ),
    };
    let explained = match document.explained {
        0 => None,
        rows => Some(format!(
            "{} of them are explained by transactions in quarantine or conflict rules.",
            grouped(rows)
        )),
    };
    html! {
        header class={ "verdict " (class(document.tone)) } {
            p class="soft" { "trellara verify" }
            h1 { span aria-hidden="true" { (sign(document.tone)) " " } (headline(document)) }
            p { (sentence) }
            @if let Some(explained) = explained { p { (explained) } }
        }
    }
}

fn facts(document: &Document) -> Markup {
    let server = |server: &super::document::Server| {
        format!(
            "PostgreSQL {}, cluster {}, timeline {}",
            server.version, server.system, server.timeline
        )
    };
    let coverage = format!("{:.1} %", document.coverage * 100.0);
    let held = format!("{:.0} ms", document.applier_held_seconds * 1000.0);
    let began = format!("{}, {:.1} s", document.started, document.seconds);
    let lane = match document.lane {
        "blake3" => "BLAKE3 of each row, computed here",
        _ => "64-bit hashes, computed in both databases",
    };
    let (position, held) = match document.frozen {
        true => (
            "Position of the source",
            Some(("The applier stood still for", held)),
        ),
        false => ("Oldest position of the source", None),
    };
    let seed = document.seed.as_deref();
    let seed = seed.unwrap_or("kept with the run; printed with --values");
    let facts = [
        ("Flow", document.flow.clone()),
        (position, document.consistent_point.clone()),
        ("Began, took", began),
        ("Source", server(&document.source)),
        ("Target", server(&document.target)),
        ("Way of looking", document.mode.to_owned()),
        ("Rows digested by", lane.to_owned()),
        ("Seed of the digests", seed.to_owned()),
        ("Compared of what is published", coverage),
        ("Run by", document.operator.clone()),
        ("Run", document.id.clone()),
    ];
    html! {
        dl class="facts" {
            @for (what, value) in facts.iter().chain(&held) {
                div { dt { (what) } dd { (shown(value)) } }
            }
        }
    }
}

/// The one pattern that every bar of a table not compared refers to.
fn hatching() -> Markup {
    html! {
        svg class="hidden" aria-hidden="true" {
            defs {
                pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect class="fill-card" width="8" height="8" {}
                    line class="hatch" x1="0" y1="0" x2="0" y2="8" {}
                }
            }
        }
    }
}

fn tables(document: &Document) -> Markup {
    let rows = |table: &TableDocument| table.source_rows.max(table.target_rows).unwrap_or(0);
    let most = document.tables.iter().map(rows).max().unwrap_or(0);
    html! {
        h2 { "Tables" }
        table class="cards" {
            thead { tr {
                th scope="col" { "Table" }
                th scope="col" { "Rows, and what differs" }
                th scope="col" class="number" { "Source" }
                th scope="col" class="number" { "Target" }
                th scope="col" { "Compared by" }
                th scope="col" { "Result" }
            } }
            tbody {
                @for table in &document.tables { (table_row(table, (rows(table), most), &document.consistent_point)) }
            }
        }
        ul class="legend" aria-label="Legend" {
            li { svg viewBox="0 0 24 12" aria-hidden="true" { rect class="fill-equal" width="24" height="12" {} } "equal rows" }
            li { svg viewBox="0 0 24 12" aria-hidden="true" { rect class="fill-different" width="24" height="12" {} } "rows that differ" }
            @if document.explained > 0 {
                li { svg viewBox="0 0 24 12" aria-hidden="true" { rect class="fill-explained" width="24" height="12" {} } "rows that differ, explained by quarantine" }
            }
            li { svg viewBox="0 0 24 12" aria-hidden="true" { rect fill="url(#hatch)" width="24" height="12" {} } "not compared" }
        }
    }
}

fn table_row(table: &TableDocument, (rows, most): (u64, u64), point: &str) -> Markup {
    let count = |rows: Option<u64>| rows.map_or("–".to_owned(), grouped);
    let by = match (table.method, table.pieces) {
        (Some(method), Some(pieces)) => format!("{method} × {}", grouped(u64::from(pieces))),
        _ => "–".to_owned(),
    };
    let through = table.verified_through.as_ref();
    let through = through.filter(|through| *through != point);
    html! {
        tr {
            th scope="row" {
                (name(table))
                @for mapped in &table.mapped { span class="note soft" { (shown(mapped)) } }
            }
            td class="bar" { (bar(table, rows, most)) }
            td class="number" data-label="Source rows" { (count(table.source_rows)) }
            td class="number" data-label="Target rows" { (count(table.target_rows)) }
            td class="plain" data-label="Compared by" {
                (by)
                @if table.checksums.is_some() {
                    span class="note soft" { "checksum " span class="mono" { (text::checksum(table)) } }
                }
                @if let Some(through) = through { span class="note soft" { "through " (through) } }
            }
            td class="result" {
                span class=(class(table.tone)) {
                    span aria-hidden="true" { (sign(table.tone)) " " } (table.outcome)
                }
                @if table.differing > 0 { span class="soft" { (text::kinds(table)) } }
                @if table.explained > 0 {
                    span class="soft" { (grouped(table.explained)) " explained by quarantine" }
                }
                @if table.coverage.ratio < 1.0 && table.reason.is_none() {
                    span class="soft" { (format!("{:.1} % of it compared", table.coverage.ratio * 100.0)) }
                }
                @if let Some(reason) = &table.reason { span class="soft" { (shown(reason)) } }
                @if let Some(hint) = table.hint.as_ref().filter(|hint| !hint.is_empty()) {
                    span class="soft" { "Hint: " (shown(hint)) }
                }
            }
        }
    }
}

fn bar(table: &TableDocument, rows: u64, most: u64) -> Markup {
    let share = |part: u64, of: u64| match of {
        0 => 0.0,
        of => part as f64 / of as f64,
    };
    if table.reason.is_some() {
        return html! {
            svg class="bar" viewBox="0 0 400 14" preserveAspectRatio="none" role="img" aria-label="not compared" {
                rect x="0.5" y="0.5" width="399" height="13" fill="url(#hatch)" {}
                rect class="frame" x="0.5" y="0.5" width="399" height="13" {}
            }
        };
    }
    let whole = (share(rows, most) * BAR).max(LEAST);
    let compared = whole * table.coverage.ratio;
    let differing = match table.differing {
        0 => 0.0,
        differing => (share(differing, rows.max(differing)) * compared).max(LEAST),
    };
    let equal = (compared - differing).max(0.0);
    let fill = match table.tone {
        Tone::Explained => "fill-explained",
        Tone::Equal | Tone::Different | Tone::Unsure => "fill-different",
    };
    let label = format!(
        "{} rows, {} of them differ",
        grouped(rows),
        grouped(table.differing)
    );
    html! {
        svg class="bar" viewBox="0 0 400 14" preserveAspectRatio="none" role="img" aria-label=(label) {
            rect x="0" y="0" width=(unit(whole)) height="14" fill="url(#hatch)" {}
            rect class="fill-equal" x="0" y="0" width=(unit(equal)) height="14" {}
            rect class=(fill) x=(unit(equal)) y="0" width=(unit(differing)) height="14" {}
        }
    }
}

fn unit(units: f64) -> String {
    format!("{units:.2}")
}

fn differences(document: &Document) -> Markup {
    let with = document.tables.iter().filter(|table| table.differing > 0);
    html! {
        @if document.differing > 0 { h2 { "Rows that differ" } }
        @for table in with { (differences_of(table)) }
    }
}

fn differences_of(table: &TableDocument) -> Markup {
    let shown_rows = &table.differences[..table.differences.len().min(SHOWN)];
    let stand_for: u64 = shown_rows.iter().map(|row| row.rows).sum();
    let rest = table.differing.saturating_sub(stand_for);
    html! {
        h3 { (name(table)) ": " (text::kinds(table)) }
        @if !shown_rows.is_empty() {
            table class="cards" {
                thead { tr {
                    th scope="col" { "Row" }
                    th scope="col" { "How" }
                    th scope="col" { "Columns" }
                    th scope="col" { "Digest on the source" }
                    th scope="col" { "Digest on the target" }
                } }
                tbody { @for row in shown_rows { (difference(row)) } }
            }
        }
        @if rest > 0 {
            p class="soft" {
                "And " (grouped(rest)) " more rows"
                @if table.truncated { "; --max-diffs says how many are listed" }
                "; --output json has all that are listed."
            }
        }
    }
}

fn difference(row: &Row) -> Markup {
    let digest = |digest: &Option<String>, count: u64| match (digest, count) {
        (Some(digest), 2..) => format!("{digest} × {count}"),
        (Some(digest), _) => digest.clone(),
        (None, _) => "–".to_owned(),
    };
    let columns: Vec<_> = row.columns.iter().map(|c| visible::quoted(c)).collect();
    let columns = match columns.is_empty() {
        true => "–".to_owned(),
        false => columns.join(", "),
    };
    html! {
        tr {
            th scope="row" class="mono" {
                (shown(&row.id))
                (values("source", &row.source_row))
                (values("target", &row.target_row))
            }
            td data-label="How" {
                (row.kind)
                @if let Some(explained) = &row.explained_by {
                    span class="note soft" { "explained by " (shown(explained)) }
                }
            }
            td data-label="Columns" class="mono" { (shown(&columns)) }
            td data-label="Digest on the source" class="mono plain" { (digest(&row.source_digest, row.source_count)) }
            td data-label="Digest on the target" class="mono plain" { (digest(&row.target_digest, row.target_count)) }
        }
    }
}

fn values(side: &str, row: &Option<Vec<Column>>) -> Markup {
    html! {
        @if let Some(row) = row {
            span class="note" {
                span class="soft" { (side) ": " }
                (shown(&super::document::columns_text(row)))
            }
        }
    }
}

fn besides(document: &Document) -> Markup {
    let definitions = beside::definitions_lines(&document.definitions);
    let sequences = beside::sequences_line(&document.sequences);
    html! {
        h2 { "Definitions and sequences" }
        @if definitions.is_empty() && sequences.is_none() {
            p { "No definition of a compared table differs, and no column has a sequence." }
        }
        ul {
            @for line in definitions.iter().chain(&sequences) { li { (shown(line.trim())) } }
        }
        p class="soft" { "They do not change the verdict, which is about rows." }
    }
}

fn not_covered(document: &Document) -> Markup {
    html! {
        h2 { "What was not looked at" }
        @if document.not_covered.is_empty() && document.left_out.is_empty() {
            p { "Nothing that the source has was left out." }
        } @else {
            ul {
                @for what in &document.left_out { li { (shown(what)) ": published, and not asked for" } }
                @for what in &document.not_covered { li { (shown(what)) } }
            }
        }
    }
}

fn reading(frozen: bool) -> Markup {
    let position = match frozen {
        false => {
            "Both databases were compared piece by piece, each piece as it was at one position of the \
             source's log; what seemed to differ was compared again with both frozen. So what was \
             written meanwhile is no difference. "
        }
        true => {
            "Both databases were compared as they were at one position of the source's log, so that \
             what was written meanwhile is no difference. "
        }
    };
    html! {
        h2 { "How to read this" }
        p {
            (position)
            b { "Equal" } " is said only when every row of every published table was compared. "
            b { "Different" } " means that at least one row differs. "
            b { "Explained" } " means that what differs is what transactions in quarantine touch. "
            b { "No difference found" } " means that only a part was asked for, and is equal. "
            b { "Not compared" } " means that nothing was found to differ, but something could not be looked at."
        }
        ul {
            li { b { "missing" } ": the source has the row, the target has not." }
            li { b { "extra" } ": the target has a row that the source has not." }
            li { b { "changed" } ": both have the key, with other values in the columns named." }
            li { b { "duplicate" } ": both have the row, but not as often." }
        }
        p class="soft" {
            "A digest stands for a row's values and says nothing about them; it can be compared with "
            "others of this run only. A bar's length is the table's number of rows beside the largest table's."
        }
    }
}

/// Digits in groups of three, by spaces that do not break.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == first {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests;
