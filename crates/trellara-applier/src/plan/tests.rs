//! What goes to the server for given messages, as snapshots.

use std::fmt::Write as _;
use std::sync::Arc;

use trellara_pgoutput::{Message, RelationMap, decode};

use super::{Change, Parameter, Planner, Step};
use crate::execute::ApplyErrorKind;
use crate::target::{Mapping, TargetColumn, TargetTable, UniqueIndex};

/// `key` columns come first; the target has one more column of its own.
fn table(columns: &[(&str, &str)], key: usize) -> TargetTable {
    let target = |&(name, base_type): &(&str, &str)| TargetColumn {
        name: name.to_owned(),
        base_type: format!("\"pg_catalog\".\"{base_type}\""),
        not_null: false,
        generated: name.starts_with("generated"),
        identity_always: name.starts_with("always"),
        equality: name
            .ends_with("id")
            .then(|| "OPERATOR(\"pg_catalog\".=)".to_owned()),
        leads_index: name == "id",
        reading: None,
    };
    let primary = UniqueIndex {
        name: "t_pkey".to_owned(),
        primary: true,
        immediate: true,
        finds_rows: true,
        columns: (0..key).map(Some).collect(),
    };
    let mut all: Vec<TargetColumn> = columns.iter().map(target).collect();
    all.push(target(&("own", "text")));
    TargetTable {
        oid: 1,
        root: 1,
        schema: "public".to_owned(),
        name: "t".to_owned(),
        partitioned: false,
        columns: all,
        uniques: if key > 0 { vec![primary] } else { Vec::new() },
        deferrable: Vec::new(),
        fires_as_replica: false,
        fires_as_origin: false,
        row_security: false,
    }
}

fn relation(identity: char, columns: &[(&str, bool)]) -> RelationMap {
    let mut bytes = b"R\0\0\0\x07public\0t\0".to_vec();
    bytes.push(identity as u8);
    bytes.extend_from_slice(&(columns.len() as u16).to_be_bytes());
    for (name, key) in columns {
        bytes.push(u8::from(*key));
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b"\0\0\0\0\x19\xff\xff\xff\xff");
    }
    let mut relations = RelationMap::new();
    relations.observe(&decode(&bytes, false).unwrap());
    relations
}

fn mapping(table: TargetTable, relations: &RelationMap) -> Arc<Mapping> {
    let relation = relations.iter().next().unwrap();
    Arc::new(Mapping::new(Arc::new(table), Arc::clone(relation), relations).unwrap())
}

/// A message from words: `I 1 a`, `U K:1,~ N:2,b`, `D O:1,a`. `~` is NULL, `^` unchanged TOAST,
/// `!` a binary value.
fn message(words: &str) -> Vec<u8> {
    let mut words = words.split(' ');
    let mut bytes = words.next().unwrap().as_bytes().to_vec();
    bytes.extend_from_slice(&7_u32.to_be_bytes());
    for word in words {
        let (kind, values) = word.split_once(':').unwrap();
        bytes.extend_from_slice(kind.as_bytes());
        let values: Vec<&str> = values.split(',').collect();
        bytes.extend_from_slice(&(values.len() as u16).to_be_bytes());
        for value in values {
            match value {
                "~" => bytes.push(b'n'),
                "^" => bytes.push(b'u'),
                text => {
                    bytes.push(if text == "!" { b'b' } else { b't' });
                    bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
                    bytes.extend_from_slice(text.as_bytes());
                }
            }
        }
    }
    bytes
}

fn change<'m>(message: &Message<'m>) -> Change<'m> {
    match message {
        Message::Insert { new, .. } => Change::Insert { new: *new },
        Message::Update { old, new, .. } => Change::Update {
            old: *old,
            new: *new,
        },
        Message::Delete { old, .. } => Change::Delete { old: *old },
        other => panic!("{other:?} is no change of a row"),
    }
}

fn plan(planner: &mut Planner, mapping: &Arc<Mapping>, all: &[&str]) -> String {
    let mut printed = String::new();
    for words in all {
        let bytes = message(words);
        planner.count();
        let alone = planner
            .change(mapping, &change(&decode(&bytes, false).unwrap()))
            .unwrap();
        planner
            .take_ready()
            .iter()
            .for_each(|step| print(&mut printed, step));
        alone.iter().for_each(|step| print(&mut printed, step));
    }
    planner.emit_all();
    planner
        .take_ready()
        .iter()
        .for_each(|step| print(&mut printed, step));
    printed
}

fn print(printed: &mut String, step: &Step<'_>) {
    let _ = writeln!(printed, "{}", step.sql);
    for parameter in &step.parameters {
        let values = match parameter {
            Parameter::Rows(array) | Parameter::Row(array) => array.texts(),
            Parameter::Borrowed(value) => {
                vec![value.map(|text| format!("borrowed, {} bytes", text.len()))]
            }
        };
        let values: Vec<_> = values
            .into_iter()
            .map(|v| v.unwrap_or("NULL".into()))
            .collect();
        let _ = writeln!(printed, "  {} {}", parameter.sql_type(), values.join(" | "));
    }
    let first = step.first.change;
    let _ = writeln!(
        printed,
        "  -> {:?} rows, change {first} and {} in all",
        step.rows, step.changes
    );
}

const PLAIN: &[(&str, &str)] = &[("id", "int4"), ("a", "varchar"), ("b", "_int4")];
const PLAIN_SOURCE: &[(&str, bool)] = &[("b", false), ("id", true), ("a", false)];

#[test]
fn runs_of_inserts_updates_and_deletes() {
    let relations = relation('d', PLAIN_SOURCE);
    let mapping = mapping(table(PLAIN, 1), &relations);
    insta::assert_snapshot!(plan(
        &mut Planner::new(true, true),
        &mapping,
        &[
            "I N:{{1}},1,x",
            "I N:~,2,",
            "I N:{},3,NULL",
            "U N:{},1,y",
            "U N:~,2,y",
            // The same key again, another set of columns, a changed key.
            "U N:{},1,z",
            "U N:^,2,z",
            "U K:~,2,~ N:{},9,z",
            "D K:~,1,~",
            "D K:~,3,~",
            "D K:~,9,~",
        ],
    ));
}

#[test]
fn one_by_one_when_asked() {
    let relations = relation('d', PLAIN_SOURCE);
    let mapping = mapping(table(PLAIN, 1), &relations);
    insta::assert_snapshot!(plan(
        &mut Planner::new(true, false),
        &mapping,
        &[
            "I N:{},1,x",
            "I N:{},2,x",
            "U N:{},1,y",
            "U N:{},2,y",
            "D K:~,1,~",
            "D K:~,2,~"
        ],
    ));
}

#[test]
fn whole_rows_when_there_is_no_key() {
    let source = &[("a", true), ("id", true), ("b", true)];
    let relations = relation('f', source);
    let mapping = mapping(
        table(&[("b", "json"), ("id", "int4"), ("a", "text")], 0),
        &relations,
    );
    insta::assert_snapshot!(plan(
        &mut Planner::new(true, true),
        &mapping,
        &["U O:x,1,{} N:y,1,^", "D O:~,~,~", "D O:~,2,~"],
    ));
}

/// Of an index with two columns both narrow the search, as far as the old row has them; one that
/// leads no index helps only beside one that does.
#[test]
fn whole_rows_are_searched_by_all_that_an_index_holds() {
    let source = &[("id", true), ("second_id", true), ("b", true)];
    let relations = relation('f', source);
    let columns = &[("id", "int4"), ("second_id", "int4"), ("b", "text")];
    let mapping = mapping(table(columns, 0), &relations);
    insta::assert_snapshot!(plan(
        &mut Planner::new(true, true),
        &mapping,
        &["D O:1,2,x", "D O:1,~,x", "D O:~,2,x"],
    ));
}

#[test]
fn an_always_identity_is_replaced_only_when_it_changes() {
    let columns = &[("always_id", "int8"), ("a", "text"), ("generated", "int4")];
    let source = &[("always_id", true), ("a", false), ("generated", false)];
    let relations = relation('d', source);
    let mapping = mapping(table(columns, 1), &relations);
    insta::assert_snapshot!(plan(
        &mut Planner::new(true, true),
        &mapping,
        &[
            "I N:1,x,5",
            "U N:1,y,5",
            "U K:1,~,~ N:1,z,5",
            "U K:1,~,~ N:2,^,5"
        ],
    ));
}

#[test]
fn a_huge_row_is_borrowed() {
    let relations = relation('d', PLAIN_SOURCE);
    let mapping = mapping(table(PLAIN, 1), &relations);
    let huge = format!("I N:~,3,{}", "x".repeat(super::LARGE_ROW + 1));
    insta::assert_snapshot!(plan(
        &mut Planner::new(true, true),
        &mapping,
        &["I N:{},1,x", "I N:{},2,x", &huge, "I N:{},4,x"],
    ));
}

#[test]
fn a_run_is_bounded_by_rows_and_bytes() {
    let relations = relation('d', PLAIN_SOURCE);
    let mapping = mapping(table(PLAIN, 1), &relations);
    let mut planner = Planner::new(true, true);
    let large = "x".repeat(super::RUN_BYTES / 4);
    let (mut most_bytes, mut steps) = (0, Vec::new());
    for id in 0..9 {
        let bytes = message(&format!("I N:{{}},{id},{large}"));
        planner
            .change(&mapping, &change(&decode(&bytes, false).unwrap()))
            .unwrap();
        steps.extend(planner.take_ready());
    }
    for id in 0..3 * super::RUN_ROWS {
        let bytes = message(&format!("I N:{{}},{id},x"));
        planner
            .change(&mapping, &change(&decode(&bytes, false).unwrap()))
            .unwrap();
        steps.extend(planner.take_ready());
    }
    planner.emit_all();
    steps.extend(planner.take_ready());
    let rows: u64 = steps.iter().filter_map(|step| step.rows).sum();
    assert_eq!(rows, 9 + 3 * u64::from(super::RUN_ROWS));
    for step in &steps {
        assert!(step.rows <= Some(super::RUN_ROWS.into()));
        most_bytes = most_bytes.max(step.bytes());
    }
    assert!(
        most_bytes < super::RUN_BYTES + super::RUN_BYTES / 2,
        "{most_bytes}"
    );
}

#[test]
fn tuples_that_do_not_fit_are_refused() {
    let relations = relation('d', PLAIN_SOURCE);
    let mapping = mapping(table(PLAIN, 1), &relations);
    for (words, kind) in [
        ("I N:1,2", ApplyErrorKind::Corrupt),
        ("I N:1,2,3,4", ApplyErrorKind::Corrupt),
        ("I N:1,2,!", ApplyErrorKind::Corrupt),
        ("I N:1,2,^", ApplyErrorKind::Corrupt),
        ("U N:1,^,3", ApplyErrorKind::Corrupt),
        ("U K:~,1 N:1,2,3", ApplyErrorKind::Corrupt),
        ("D K:~,^,~", ApplyErrorKind::Corrupt),
    ] {
        let bytes = message(words);
        let mut planner = Planner::new(true, true);
        let refused = planner.change(&mapping, &change(&decode(&bytes, false).unwrap()));
        let refused = refused.expect_err(words);
        assert_eq!(
            (refused.kind, refused.table.as_str()),
            (kind, "t"),
            "{words}"
        );
    }
}

#[test]
fn without_the_replica_role_an_always_identity_is_not_replaced() {
    let columns = &[("always_id", "int8"), ("a", "text")];
    let relations = relation('d', &[("always_id", true), ("a", false)]);
    let mapping = mapping(table(columns, 1), &relations);
    let bytes = message("U K:1,~ N:2,x");
    let mut planner = Planner::new(false, true);
    let refused = planner
        .change(&mapping, &change(&decode(&bytes, false).unwrap()))
        .unwrap_err();
    assert_eq!(refused.kind, ApplyErrorKind::Schema);
}

#[test]
fn a_missing_column_is_named_with_its_statement() {
    let relations = relation('d', &[("id", true), ("new\"one", false)]);
    let relation = relations.iter().next().unwrap();
    let error = Mapping::new(Arc::new(table(PLAIN, 1)), Arc::clone(relation), &relations);
    let error = error.expect_err("a column is missing");
    assert_eq!(
        error.hint,
        "ALTER TABLE \"public\".\"t\" ADD COLUMN \"new\"\"one\" text;"
    );
}

#[test]
fn parameters_never_print_values() {
    let mut array = super::array::TextArray::default();
    array.push(Some(b"secret"));
    let shown = format!(
        "{:?}",
        [Parameter::Rows(array), Parameter::Borrowed(Some(b"secret"))]
    );
    assert!(
        !shown.contains("secret") && !shown.contains("115"),
        "{shown}"
    );
}
