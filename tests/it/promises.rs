//! `docs/architecture.md` names the test of each promise and rule, `docs/guarantees.md` those that
//! fail when a promise breaks, and `docs/verify.md` those of the judge; a renamed or deleted test must
//! not leave its promise without one.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The name of every function in the sources.
fn functions(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            functions(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let after_fn = text.split("fn ").skip(1);
            found.extend(after_fn.map(|rest| {
                let name = rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
                name.take(1).collect::<String>()
            }));
        }
    }
    Ok(())
}

/// The names in the last column of every table whose last column is headed "test" or "tests".
fn named(document: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut in_table = false;
    for line in document.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        if !line.starts_with('|') {
            in_table = false;
        } else if cells
            .last()
            .is_some_and(|cell| matches!(cell.trim(), "test" | "tests"))
        {
            in_table = true;
        } else if in_table && let Some(last) = cells.last() {
            names.extend(last.split('`').skip(1).step_by(2));
        }
    }
    names
}

/// The cases and rules that a text names anywhere, as `b44_…` and `c33_…`.
fn cases(document: &str) -> impl Iterator<Item = &str> {
    let quoted = document.split('`').skip(1).step_by(2);
    quoted.filter(|name| {
        let number = name.strip_prefix(['b', 'c']);
        number.is_some_and(|rest| {
            rest.starts_with(|c: char| c.is_ascii_digit()) && rest.contains('_')
        })
    })
}

#[test]
fn promises_name_tests_that_exist() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the root")?;
    let document = std::fs::read_to_string(root.join("docs/architecture.md"))?;
    let mut known = BTreeSet::new();
    functions(&root.join("crates"), &mut known)?;
    functions(&root.join("tests"), &mut known)?;
    let judge = std::fs::read_to_string(root.join("docs/verify.md"))?;
    let judged = named(&judge);
    ensure!(judged.len() > 30, "only {} names were found", judged.len());
    let mut names = named(&document);
    ensure!(names.len() > 80, "only {} names were found", names.len());
    names.extend(judged);
    let guarantees = std::fs::read_to_string(root.join("docs/guarantees.md"))?;
    let promised = named(&guarantees);
    ensure!(
        promised.len() > 40,
        "only {} names were found",
        promised.len()
    );
    names.extend(promised);
    names.extend(cases(&guarantees));
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !known.contains(**name))
        .collect();
    ensure!(missing.is_empty(), "not in the tree: {missing:?}");
    for promise in [
        "R1", "R2", "R3", "R4", "R5", "R6", "A1", "A2", "A3", "A4", "A5", "A6", "A7", "V1", "E1",
        "E2", "E3",
    ] {
        let row = document
            .lines()
            .find(|line| line.starts_with(&format!("| {promise} |")));
        ensure!(
            row.is_some_and(|row| !named(&format!("| test |\n{row}")).is_empty()),
            "promise {promise} has no test"
        );
    }
    Ok(())
}
