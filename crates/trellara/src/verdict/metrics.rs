//! A run as metrics in Prometheus' text form, for a collector that reads files.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use trellara_verify::report::{Outcome, Report, TableReport, Verdict};

use crate::exit::Failure;
use crate::file::Reserved;

/// When a table was last found equal, whole; what an alarm looks at.
const LAST_SUCCESS: &str = "trellara_verify_last_success_timestamp_seconds";
const LAST_RUN: &str = "trellara_verify_last_run_timestamp_seconds";
const LAST_VERDICT: &str = "trellara_verify_last_verdict";
const DIFFERENCES: &str = "trellara_verify_differences";
const EXPLAINED: &str = "trellara_verify_explained";
const ROWS: &str = "trellara_verify_rows";
const COVERAGE: &str = "trellara_verify_coverage_ratio";
const VERIFIED_LSN: &str = "trellara_verify_verified_lsn";
const DURATION: &str = "trellara_verify_duration_seconds";

const VERDICTS: [Verdict; 5] = [
    Verdict::Equal,
    Verdict::Different,
    Verdict::Explained,
    Verdict::NoneFound,
    Verdict::CouldNotCompare,
];

/// Writes the file, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(path: &Path, report: &Report, flow: &str) -> Result<(), Failure> {
    let earlier = std::fs::read_to_string(path).unwrap_or_default();
    Reserved::at(path, false)?.write(after(&earlier, report, flow).as_bytes())
}

/// The text that comes after an earlier one. A table that was not found equal this time keeps the
/// time at which it last was.
pub(crate) fn after(earlier: &str, report: &Report, flow: &str) -> String {
    with_earlier(&render(report, flow), earlier)
}

fn render(report: &Report, flow: &str) -> String {
    // Of this report alone: the process's own recorder belongs to the daemons.
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        describe();
        record(report, flow);
    });
    recorder.handle().render()
}

fn describe() {
    describe_gauge!(
        LAST_SUCCESS,
        "when the table was last found equal as a whole"
    );
    describe_gauge!(LAST_RUN, "when the last run with a report ended");
    describe_gauge!(
        LAST_VERDICT,
        "1 for the last run's verdict, 0 for the others"
    );
    describe_gauge!(DIFFERENCES, "rows of the table that differ, by kind");
    describe_gauge!(EXPLAINED, "those of them that quarantine explains");
    describe_gauge!(ROWS, "rows of the table, by side");
    describe_gauge!(COVERAGE, "the part of what is published that was compared");
    describe_gauge!(
        VERIFIED_LSN,
        "the source's position that the table was compared at"
    );
    describe_gauge!(DURATION, "how long the run took");
}

fn record(report: &Report, flow: &str) {
    let flow = flow.to_owned();
    let ended = seconds(report.started + report.took);
    gauge!(LAST_RUN, "flow" => flow.clone()).set(ended);
    gauge!(DURATION, "flow" => flow.clone()).set(report.took.as_secs_f64());
    gauge!(COVERAGE, "flow" => flow.clone()).set(report.coverage());
    let verdict = report.verdict();
    for word in VERDICTS {
        gauge!(LAST_VERDICT, "flow" => flow.clone(), "verdict" => word.word())
            .set(f64::from(u8::from(word == verdict)));
    }
    for table in report.tables.iter().filter(|table| table.is_compared()) {
        record_table(table, &flow, ended);
    }
}

fn record_table(table: &TableReport, flow: &str, ended: f64) {
    let labels = [
        ("flow", flow.to_owned()),
        ("table", table.table.to_string()),
    ];
    let with = |label: &'static str, value: &str| {
        let [flow, table] = labels.clone();
        [flow, table, (label, value.to_owned())]
    };
    for (kind, rows) in [
        ("missing", table.missing),
        ("extra", table.extra),
        ("changed", table.changed),
        ("duplicate", table.duplicate),
    ] {
        gauge!(DIFFERENCES, &with("kind", kind)).set(rows as f64);
    }
    gauge!(EXPLAINED, &labels).set(table.explained as f64);
    gauge!(ROWS, &with("side", "source")).set(table.source_rows as f64);
    gauge!(ROWS, &with("side", "target")).set(table.target_rows as f64);
    if let Some(lsn) = table.verified_through {
        // A float holds whole numbers up to 2^53: eight petabytes of WAL.
        gauge!(VERIFIED_LSN, &labels).set(lsn.0 as f64);
    }
    if table.outcome == Outcome::Equal {
        gauge!(LAST_SUCCESS, &labels).set(ended);
    }
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_secs_f64().floor()
}

/// Adds the earlier times of tables that have none now, to their own family: the format allows a
/// family in one place only.
fn with_earlier(text: &str, earlier: &str) -> String {
    let series = |line: &str| line.rsplit_once(' ').map(|(series, _)| series.to_owned());
    let of_family = |line: &&str| line.starts_with(&format!("{LAST_SUCCESS}{{"));
    let now: Vec<String> = text.lines().filter(of_family).filter_map(series).collect();
    let kept: Vec<&str> = earlier
        .lines()
        .filter(of_family)
        .filter(|line| series(line).is_some_and(|series| !now.contains(&series)))
        .collect();
    if kept.is_empty() {
        return text.to_owned();
    }
    let kept = kept.join("\n");
    let heading = format!("# TYPE {LAST_SUCCESS} gauge\n");
    match text.split_once(&heading) {
        Some((before, after)) => format!("{before}{heading}{kept}\n{after}"),
        None => format!("{text}{heading}{kept}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::report;
    use super::*;

    #[test]
    fn each_number_has_its_name() {
        let text = render(&report(), "shop");
        for line in [
            r#"trellara_verify_last_success_timestamp_seconds{flow="shop",table="public.kept"} 1800000003"#,
            r#"trellara_verify_last_verdict{flow="shop",verdict="different"} 1"#,
            r#"trellara_verify_last_verdict{flow="shop",verdict="equal"} 0"#,
            r#"trellara_verify_rows{flow="shop",table="public.kept",side="target"} 990"#,
            r#"trellara_verify_differences{flow="shop",table="public.kept",kind="missing"} 0"#,
            r#"trellara_verify_duration_seconds{flow="shop"} 3"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        // A table that was not compared has no numbers, and a hostile name no line of its own.
        assert!(!text.contains("public.refused"), "{text}");
        let lines = text.lines().filter(|line| !line.is_empty());
        for line in lines {
            assert!(
                line.starts_with("trellara_verify_") || line.starts_with("# "),
                "{line}"
            );
        }
    }

    #[test]
    fn a_table_keeps_the_time_at_which_it_was_last_equal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("verify.prom");
        let mut report = report();
        write(&path, &report, "shop").unwrap();
        report.tables[0].outcome = Outcome::Different;
        report.started += Duration::from_secs(60);
        for _ in 0..2 {
            write(&path, &report, "shop").unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let times: Vec<&str> = text
                .lines()
                .filter(|l| l.starts_with(LAST_SUCCESS))
                .collect();
            assert_eq!(times.len(), 1, "{text}");
            assert!(times[0].ends_with(" 1800000003"), "{text}");
        }
        report.tables[0].outcome = Outcome::Equal;
        write(&path, &report, "shop").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let times: Vec<&str> = text
            .lines()
            .filter(|l| l.starts_with(LAST_SUCCESS))
            .collect();
        assert!(
            times.len() == 1 && times[0].ends_with(" 1800000063"),
            "{text}"
        );
    }
}
