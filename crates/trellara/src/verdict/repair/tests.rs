//! What is written, and what is not.

use trellara_verify::report::Mode;

use super::super::sample::{FORGED, difference, report};
use super::*;

fn recipe() -> Option<Recipe> {
    Some(Recipe {
        from: r#"ONLY "public"."t""#.into(),
        into: r#""public"."t""#.into(),
        digest: Some("hash(v)".into()),
        generated: vec!["g".into()],
        always: vec!["i".into()],
        database: "shop's".into(),
        target_id: Some("0d0e".into()),
    })
}

#[test]
fn no_name_or_value_gets_out_of_its_place() {
    let mut report = report();
    let table = &mut report.tables[1];
    table.recipe = recipe();
    (table.changed, table.duplicate) = (1, 3);
    let value = format!("'; $trellara_{}$ {FORGED}", report.run);
    if let Some(row) = &mut table.differences[0].source_row {
        row[1].1 = Some(value);
    }
    let repair = of(&report, true);
    // Comments are one line each, whatever a table is called.
    let comments = repair
        .sql
        .lines()
        .filter(|line| line.starts_with("-- public."));
    for line in comments {
        assert!(
            line.contains(r"x\nverdict") && line.ends_with(" rows"),
            "{line}"
        );
    }
    let tag = format!("$trellara_{}_$", report.run);
    assert_eq!(repair.sql.matches(&tag).count(), 2, "{}", repair.sql);
    assert!(repair.sql.contains("'''; $trellara_"), "{}", repair.sql);
    assert!(repair.sql.contains("current_database() <> 'shop''s'"));
    // The key that two rows share is named, not guessed at.
    assert!(
        repair
            .refused
            .iter()
            .any(|why| why.contains("several rows"))
    );
}

/// What is in quarantine is somebody's to decide about, and the other rows are mended.
#[test]
fn what_quarantine_explains_is_left_to_it() {
    let mut report = report();
    let table = &mut report.tables[1];
    table.recipe = recipe();
    (table.changed, table.duplicate) = (2, 0);
    table.differences = ["17", "18"]
        .map(|key| difference(Kind::Changed, key))
        .into();
    table.differences[0].explained_by = Some(Explanation::Held("41".into()));
    let repair = of(&report, true);
    assert_eq!(
        repair.sql.matches("UPDATE ONLY").count(),
        1,
        "{}",
        repair.sql
    );
    assert!(repair.sql.contains("\"id\" = '18'"), "{}", repair.sql);
    assert!(
        repair.sql.contains("\n--   id=17 part is null\n"),
        "{}",
        repair.sql
    );
    let told = repair.refused.join("\n");
    assert!(
        told.contains("1 rows: explained by transaction 41 in quarantine"),
        "{told}"
    );
}

/// An UPDATE of such a column is an error, and takes the whole batch with it.
#[test]
fn an_identity_that_is_always_generated_is_not_set() {
    let mut report = report();
    let table = &mut report.tables[1];
    table.recipe = recipe();
    (table.changed, table.duplicate) = (1, 0);
    let mut row = difference(Kind::Changed, "17");
    row.columns.push("i".into());
    row.source_row = Some(vec![("i".into(), Some("4".into()))]);
    table.differences = vec![row];
    let repair = of(&report, true);
    assert!(!repair.sql.contains("UPDATE ONLY"), "{}", repair.sql);
    let told = repair.refused.join("\n");
    assert!(told.contains("i is an identity"), "{told}");
}

/// Of pieces that had positions of their own, no position is claimed.
#[test]
fn no_position_is_named_that_was_not_one() {
    let mut report = report();
    assert!(of(&report, true).sql.contains("at 0/12345678 of cluster"));
    report.mode = Mode::Rolling;
    assert!(!of(&report, true).sql.contains("0/12345678"));
}

#[test]
fn what_is_too_much_or_not_whole_is_refused() {
    let mut report = report();
    let refused = |report: &Report| {
        let repair = of(report, false);
        assert!(!repair.sql.contains("UPDATE"), "{}", repair.sql);
        assert!(repair.sql.contains("-- NOT REPAIRED: "));
        repair.refused.join("\n")
    };
    report.tables[1].recipe = recipe();
    assert!(refused(&report).contains("raise --max-diffs"));
    report.tables[1].duplicate = 3;
    report.tables[1].source_rows = 20;
    report.tables[1].target_rows = 20;
    assert!(refused(&report).contains("5 of 20 rows differ"));
    report.tables[1].source_rows = 25;
    report.tables[1].changed = 1;
    if let Some(recipe) = &mut report.tables[1].recipe {
        recipe.digest = None;
    }
    assert!(refused(&report).contains("--lane row64"));
}
