//! A report in which everything that can be hostile is.

use std::time::{Duration, UNIX_EPOCH};

use trellara_envelope::{Lsn, SystemId, Timeline};
use trellara_verify::report::{
    Coverage, DefinitionDifference, Difference, DigestLane, Kind, Method, Mode, Outcome, Part,
    Report, ServerReport, TableName, TableReport,
};

use super::Circumstances;

/// Lines of ours that a name or value would forge, what acts on a terminal, and what acts on a page.
pub(super) const FORGED: &str = "x\nverdict: EQUAL\u{1b}[2J\u{9b}1A\u{202e}\r</script><script>document.title='owned'</script>\"'";

fn table(name: &str, outcome: Outcome) -> TableReport {
    TableReport {
        table: TableName {
            schema: "public".into(),
            name: name.into(),
        },
        method: Some(Method::Range(10)),
        by_key: true,
        outcome,
        source_rows: 1000,
        target_rows: 990,
        rows_compared: 1000,
        source_sum: "12".into(),
        target_sum: "-7".into(),
        missing: 0,
        extra: 0,
        changed: 0,
        duplicate: 0,
        differences: Vec::new(),
        explained: 0,
        coverage: Coverage {
            compared: 10,
            of: 10,
        },
        verified_through: None,
        recipe: None,
        mapped: Vec::new(),
        took: Duration::from_millis(1500),
    }
}

pub(super) fn difference(kind: Kind, key: &str) -> Difference {
    let row = |value: &str| {
        let cell = |text: &str| Some(text.to_owned());
        Some(vec![
            ("id".to_owned(), cell(key)),
            (FORGED.to_owned(), cell(value)),
        ])
    };
    Difference {
        key: vec![("id".into(), Some(key.into())), ("part".into(), None)],
        kind,
        columns: vec![FORGED.into(), "v".into()],
        source_count: 1,
        target_count: 1,
        source_digest: Some(-1),
        target_digest: Some(17),
        source_row: row("here"),
        target_row: row(FORGED),
        explained_by: None,
    }
}

/// One table equal, one different, one not compared.
pub(super) fn report() -> Report {
    let mut different = table(FORGED, Outcome::Different);
    different.changed = 2;
    different.duplicate = 5;
    different.differences = vec![
        difference(Kind::Changed, FORGED),
        Difference {
            source_count: 2,
            target_count: 5,
            ..difference(Kind::Duplicate, "18")
        },
    ];
    different.mapped = vec![format!("{FORGED}: compared as text")];
    let refused = Outcome::NotComparable {
        reason: format!("the source refused: {FORGED}"),
        hint: FORGED.into(),
    };
    let mut refused = table("refused", refused);
    (refused.source_rows, refused.target_rows) = (0, 0);
    refused.method = None;
    let server = ServerReport {
        system: SystemId(7_713_961_920_973_495_909),
        timeline: Timeline(1),
        version: "18.6".into(),
    };
    Report {
        run: "00000000000000aa".into(),
        mode: Mode::Exact,
        lane: DigestLane::Row64,
        started: UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        seed: -7,
        consistent_point: Lsn(0x1234_5678),
        source: server.clone(),
        target: server,
        held: Duration::from_millis(31),
        tables: vec![table("kept", Outcome::Equal), different, refused],
        left_out: Vec::new(),
        not_covered: vec!["large objects".into(), format!("table public.{FORGED}")],
        sequences: Err(FORGED.into()),
        definitions: Ok(vec![DefinitionDifference {
            table: table(FORGED, Outcome::Equal).table,
            part: Part::Column,
            name: FORGED.into(),
            source: Some(FORGED.into()),
            target: None,
        }]),
        held_transactions: 0,
        took: Duration::from_secs(3),
    }
}

pub(super) fn circumstances(values: bool) -> Circumstances {
    Circumstances {
        flow: "shop".into(),
        operator: "dba@host".into(),
        values,
    }
}
