//! The report for people. Everything that comes out of a database is shown through `visible`.

use comfy_table::{CellAlignment, Table, presets};

use super::beside;
use super::document::{Document, Row, TableDocument, columns_text};
use crate::visible;

/// Rows that differ shown of each table to people; `--output json` has all that were listed.
const SHOWN: usize = 20;
/// Tables that the verdict's line names before it counts the others.
const NAMED: usize = 5;

pub(crate) fn text(document: &Document) -> String {
    let mut lines = vec![looked(document), table(&document.tables)];
    for table in &document.tables {
        lines.extend(explained(table, &document.consistent_point));
    }
    let beside = beside::definitions_lines(&document.definitions).into_iter();
    let beside = beside.chain(beside::sequences_line(&document.sequences));
    lines.extend(beside.map(|line| visible::inline(&line).into_owned()));
    lines.push(verdict_line(document));
    lines.join("\n")
}

fn looked(document: &Document) -> String {
    let Document {
        consistent_point, ..
    } = document;
    let (timeline, cluster) = (document.source.timeline, &document.source.system);
    if document.frozen {
        let held_ms = document.applier_held_seconds * 1000.0;
        return format!(
            "frozen at {consistent_point}, timeline {timeline}, cluster {cluster}; the applier stood \
             still for {held_ms:.0} ms"
        );
    }
    format!(
        "looked at piece by piece, none before {consistent_point}, timeline {timeline}, cluster {cluster}"
    )
}

fn name(table: &TableDocument) -> String {
    visible::table(&table.schema, &table.name)
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
        "checksum",
        "result",
    ]);
    for row in tables {
        let by = match (row.method, row.pieces) {
            (Some(method), Some(of)) if row.coverage.compared < of => {
                format!("{method}, {} of {of}", row.coverage.compared)
            }
            (Some(method), Some(pieces)) => format!("{method} × {pieces}"),
            _ => "–".to_owned(),
        };
        let count = |rows: Option<u64>| rows.map_or("–".to_owned(), |rows| rows.to_string());
        table.add_row([
            name(row),
            count(row.source_rows),
            count(row.target_rows),
            by,
            format!("{:.1}", row.seconds),
            checksum(row),
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

/// Of the rows' digests on both sides: the ends of the sums, which whoever wants to can note down.
pub(super) fn checksum(table: &TableDocument) -> String {
    match &table.checksums {
        None => "–".to_owned(),
        Some((source, _)) if table.source_sum == table.target_sum => source.clone(),
        Some((source, target)) => format!("{source} ≠ {target}"),
    }
}

fn result(table: &TableDocument) -> String {
    if table.outcome != "different" {
        return table.outcome.to_owned();
    }
    match kinds(table).as_str() {
        "" => "DIFFERENT: the number of rows; which is not known".to_owned(),
        kinds => format!("DIFFERENT: {kinds}"),
    }
}

/// `2 missing, 1 changed`.
pub(super) fn kinds(table: &TableDocument) -> String {
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
    parts.join(", ")
}

/// What a table's line cannot hold: why it was not compared, which rows differ, what was mapped.
fn explained(table: &TableDocument, point: &str) -> Vec<String> {
    let (mut lines, name) = (Vec::new(), name(table));
    if let Some(reason) = &table.reason {
        let reason = visible::inline(reason);
        lines.push(format!("{name}: not comparable: {reason}"));
        if let Some(hint) = table.hint.as_ref().filter(|hint| !hint.is_empty()) {
            lines.push(format!("  hint: {}", visible::inline(hint)));
        }
    }
    let through = table.verified_through.as_ref();
    if let Some(through) = through.filter(|through| *through != point) {
        lines.push(format!("{name}: verified through {through}"));
    }
    let mapped = table.mapped.iter().map(|mapped| visible::inline(mapped));
    lines.extend(mapped.map(|mapped| format!("{name}: {mapped}")));
    let shown = table.differences.iter().take(SHOWN);
    lines.extend(shown.clone().map(|row| difference_line(&name, row)));
    let shown: u64 = shown.map(|row| row.rows).sum();
    lines.extend(rest(&name, table, shown));
    lines
}

/// How many differing rows are not shown, and how they can be.
fn rest(name: &str, table: &TableDocument, shown: u64) -> Option<String> {
    let rest = table.differing.saturating_sub(shown);
    let cure = match (table.listed > shown, table.truncated) {
        _ if rest == 0 => return None,
        (true, false) => "--output json lists them".to_owned(),
        (true, true) => format!(
            "--output json lists {} of them; raise --max-diffs for all",
            table.listed - shown
        ),
        (false, _) => "raise --max-diffs to have them listed".to_owned(),
    };
    Some(format!("{name}: and {rest} more rows; {cure}"))
}

fn difference_line(table: &str, row: &Row) -> String {
    let mut line = format!("{table} {}: {}", row.id, row.kind);
    if !row.columns.is_empty() {
        let columns = row.columns.iter().map(|column| visible::quoted(column));
        line.push_str(&format!(" ({})", columns.collect::<Vec<_>>().join(", ")));
    }
    if row.kind == "duplicate" {
        line.push_str(&format!(
            ": {} on the source, {} on the target",
            row.source_count, row.target_count
        ));
    } else if row.rows > 1 {
        line.push_str(&format!(": {} rows", row.rows));
    }
    if let Some(explained) = &row.explained_by {
        let explained = visible::inline(explained);
        line.push_str(&format!(", explained by {explained}"));
    }
    for (side, values) in [("source", &row.source_row), ("target", &row.target_row)] {
        if let Some(values) = values {
            line.push_str(&format!("\n    {side}: {}", columns_text(values)));
        }
    }
    line
}

fn verdict_line(document: &Document) -> String {
    let named = |outcome: &str| {
        let tables = document.tables.iter().filter(|t| t.outcome == outcome);
        let names: Vec<String> = tables.clone().take(NAMED).map(name).collect();
        let more = tables.count().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!(" and {more} more"));
        (!names.is_empty()).then(|| names.join(", ") + &more.unwrap_or_default())
    };
    let part = |what: &str, which: Option<String>| {
        which.map_or(String::new(), |which| format!("; {what}: {which}"))
    };
    let left_out = document.left_out.iter();
    let left_out: Vec<_> = left_out.map(|what| visible::inline(what)).collect();
    let not_covered = document.not_covered.iter();
    let not_covered: Vec<_> = not_covered.map(|what| visible::inline(what)).collect();
    let explained = match document.explained {
        0 => String::new(),
        explained => {
            format!(" ({explained} explained by transactions in quarantine or conflict rules)")
        }
    };
    let held = match document.held_transactions {
        0 => String::new(),
        held => format!("; {held} transactions are held in quarantine"),
    };
    format!(
        "verdict: {}; {} of {} tables compared, {} rows, {} of them differ{explained}{held}{}{}{}{}",
        document.verdict.to_uppercase(),
        document.tables_compared,
        document.tables.len(),
        document.source_rows,
        document.differing,
        part("different", named("different")),
        part("not compared", named("not comparable")),
        part(
            "not asked for",
            (!left_out.is_empty()).then(|| left_out.join(", "))
        ),
        part(
            "not covered",
            (!not_covered.is_empty()).then(|| not_covered.join(", "))
        ),
    )
}

#[cfg(test)]
mod tests {
    use trellara_verify::report::{Kind, Mode, Report};

    use super::super::document::of;
    use super::super::sample::{FORGED, circumstances, difference, report};
    use super::*;

    fn shown(report: &Report, values: bool) -> String {
        text(&of(report, &circumstances(values)))
    }

    #[test]
    fn nothing_from_a_database_forges_a_line_or_acts_on_the_terminal() {
        let text = shown(&report(), true);
        let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(acts), "{text:?}");
        let verdicts = text.lines().filter(|line| line.contains("verdict: EQUAL"));
        for line in verdicts {
            assert!(line.contains(r"x\nverdict: EQUAL\u{1b}"), "{line}");
        }
        let ours = text.lines().filter(|line| line.starts_with("verdict:"));
        assert_eq!(ours.count(), 1, "{text}");
    }

    #[test]
    fn what_is_not_shown_is_counted_in_rows_and_has_its_cure() {
        // Five listed changed rows stand for one each, a duplicate for three.
        let text = shown(&report(), false);
        assert!(
            text.contains(": and 3 more rows; raise --max-diffs to have them listed"),
            "{text}"
        );
        let mut many = report();
        let table = &mut many.tables[1];
        table.differences = (0..30)
            .map(|i| difference(Kind::Changed, &i.to_string()))
            .collect();
        (table.changed, table.duplicate) = (30, 0);
        let text = shown(&many, false);
        assert!(
            text.contains(": and 10 more rows; --output json lists them"),
            "{text}"
        );
        many.tables[1].changed = 100;
        let text = shown(&many, false);
        let cure = "and 80 more rows; --output json lists 10 of them; raise --max-diffs for all";
        assert!(text.contains(cure), "{text}");
    }

    #[test]
    fn a_table_that_was_not_compared_has_no_rows_and_is_named() {
        let document = of(&report(), &circumstances(false));
        let json = serde_json::to_value(&document).unwrap();
        assert!(json["tables"][2]["source_rows"].is_null(), "{json}");
        assert_eq!(json["tables"][0]["source_rows"], 1000);
        assert_eq!(json["truncated"], true);
        assert_eq!(json["tables"][1]["listed"], 4);
        assert_eq!(json["started"], "2027-01-15T08:00:00Z");
        assert_eq!(json["finished"], "2027-01-15T08:00:03Z");
        let text = text(&document);
        let line = text.lines().last().unwrap();
        assert!(line.contains("; not compared: public.refused;"), "{line}");
        assert!(line.contains("2 of 3 tables compared"), "{line}");
        let row = text
            .lines()
            .find(|line| line.starts_with("│ public.refused"));
        assert!(row.is_some_and(|row| row.contains('–') && !row.contains(" 0 ")));
    }

    /// With the seed, a key and a digest, a row of few possible values is found by trying.
    #[test]
    fn the_seed_is_told_with_the_values_alone() {
        let (without, with) = (circumstances(false), circumstances(true));
        let json = serde_json::to_value(of(&report(), &without)).unwrap();
        assert!(json["seed"].is_null(), "{json}");
        let json = serde_json::to_value(of(&report(), &with)).unwrap();
        assert_eq!(json["seed"], "-7");
    }

    #[test]
    fn nothing_is_called_frozen_that_was_not() {
        let mut report = report();
        assert!(shown(&report, false).starts_with("frozen at 0/12345678, "));
        report.mode = Mode::Rolling;
        report.tables[0].verified_through = Some(trellara_envelope::Lsn(0x1234_5679));
        report.tables[1].verified_through = Some(report.consistent_point);
        let text = shown(&report, false);
        assert!(
            text.starts_with("looked at piece by piece, none before 0/12345678, ")
                && !text.contains("stood still"),
            "{text}"
        );
        // Only where it is another one.
        assert_eq!(text.matches("verified through").count(), 1, "{text}");
        assert!(text.contains("\npublic.kept: verified through 0/12345679\n"));
    }

    #[test]
    fn the_ends_of_the_sums_are_shown() {
        let text = shown(&report(), false);
        assert!(text.contains("┆ 0000000c ≠ fffffff9 ┆"), "{text}");
        let mut report = report();
        // 2^64 + 1: more than a word.
        report.tables[0].source_sum = "18446744073709551617".into();
        report.tables[0].target_sum = "18446744073709551617".into();
        let text = shown(&report, false);
        assert!(text.contains("┆ 00000001            ┆"), "{text}");
    }

    #[test]
    fn values_are_shown_to_whoever_asked() {
        let (without, with) = (shown(&report(), false), shown(&report(), true));
        assert!(
            !without.contains("here") && with.contains("=here"),
            "{with}"
        );
        let quoted = visible::quoted(FORGED);
        assert!(with.contains(&*quoted), "{with}");
    }
}
