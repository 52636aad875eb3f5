//! The fault matrix: every fault, what it must end in, and the tests that inject it. The page
//! `docs/reference/faults.md` is made from it; a row without a test, a test that is not there, or a
//! page that says something else fails here.
//!
//! `TRELLARA_WRITE_PAGES=1 cargo test -p trellara-e2e matrix` writes the page; `make matrix` runs the
//! tests of every row first, and notes down what it saw.

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use rows::{How, ROWS, Row, SECTIONS};

/// What the last run saw: a first line about it, then a line for each test.
const RUN: &str = include_str!("matrix/run.txt");

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the workspace").to_owned()
}

/// Every test of the workspace by name.
fn tests() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root().join("crates"), root().join("tests")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path)?;
                found.extend(names(&text));
            }
        }
    }
    Ok(found)
}

/// The functions below a test's attribute, and those that a macro makes tests of.
fn names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut is_test, mut in_macro) = (false, false);
    for whole in text.lines() {
        match whole {
            "on_each_version! {" => in_macro = true,
            "}" => (is_test, in_macro) = (false, false),
            _ => {}
        }
        let line = whole.trim();
        is_test |= in_macro;
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, behind)) = line.split_once("fn ")
            && is_test
        {
            let name = behind.split(['(', '<']).next().unwrap_or_default();
            found.push(name.to_owned());
            is_test = false;
        }
    }
    found
}

/// What the last run saw of each test: whether it passed.
fn seen() -> BTreeMap<&'static str, bool> {
    let lines = RUN.lines().skip(1);
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(outcome, test)| (test.trim(), outcome == "PASS"))
        .collect()
}

fn observed(row: &Row, seen: &BTreeMap<&str, bool>) -> String {
    match row.how {
        How::Not(why) => format!("not run: {why}"),
        How::Tested(tests) => {
            let outcomes: Vec<Option<bool>> =
                tests.iter().map(|test| seen.get(test).copied()).collect();
            if outcomes.contains(&Some(false)) {
                "**not as promised**".to_owned()
            } else if outcomes.contains(&None) {
                "not noted down yet".to_owned()
            } else {
                "as promised".to_owned()
            }
        }
    }
}

fn page() -> String {
    let seen = seen();
    let count = |fits: fn(&How) -> bool| ROWS.iter().filter(|row| fits(&row.how)).count();
    let tested = count(|how| matches!(how, How::Tested(_)));
    let soaked = ROWS.iter().filter(|row| row.soak).count();
    let not = count(|how| matches!(how, How::Not(_)));
    let about = RUN.lines().next().unwrap_or_default();
    let mut page = format!(
        "# Faults\n\n\
         What goes wrong, what it must end in, and the test that makes it go wrong with real servers.\n\
         This page is made from `tests/it/matrix/rows.rs`; the tests fail when it says something else, \
         when a row has no test, and when a test is not there.\n\n\
         Of {} faults {tested} are injected by `make test`, {soaked} of these also at random by \
         `make soak`, and {not} are not run, each with its reason.\n\
         *Auto*: it passes by itself, both sides are equal afterwards, and nobody has to do anything. \
         *Halt*: it stops with that code (see [the runbook](../operating/README.md#halts)), nothing is \
         applied out of order, and nothing is lost.\n\n\
         Last run noted down (`make matrix`): {about}.\n",
        ROWS.len()
    );
    for (title, from, to) in SECTIONS {
        page.push_str(&format!(
            "\n## {title}\n\n| | fault | must end in | ended | test |\n|---|---|---|---|---|\n"
        ));
        for row in ROWS.iter().filter(|row| (*from..=*to).contains(&row.id)) {
            let tests = match row.how {
                How::Not(_) => String::new(),
                How::Tested(tests) => {
                    let quoted: Vec<String> = tests.iter().map(|t| format!("`{t}`")).collect();
                    quoted.join(", ")
                }
            };
            let soak = if row.soak {
                "; also by `make soak`"
            } else {
                ""
            };
            page.push_str(&format!(
                "| F{:02} | {} | {} | {} | {tests}{soak} |\n",
                row.id,
                row.fault,
                row.ends,
                observed(row, &seen)
            ));
        }
    }
    page
}

#[test]
fn matrix_every_fault_has_a_row_and_every_row_a_test_or_a_reason() -> Result<()> {
    let ids: Vec<u32> = ROWS.iter().map(|row| row.id).collect();
    ensure!(ids == (1..=118).collect::<Vec<u32>>(), "{ids:?}");
    let known = tests()?;
    ensure!(known.len() > 1000, "only {} tests were found", known.len());
    for row in ROWS {
        match row.how {
            How::Not(why) => ensure!(!why.is_empty(), "F{:02} says not why", row.id),
            How::Tested(tests) => {
                ensure!(!tests.is_empty(), "F{:02} has no test", row.id);
                for test in tests {
                    ensure!(
                        known.contains(*test),
                        "F{:02}: there is no test {test}",
                        row.id
                    );
                }
            }
        }
    }
    Ok(())
}

#[test]
fn matrix_the_page_says_what_the_rows_say() -> Result<()> {
    let path = root().join("docs/reference/faults.md");
    let page = page();
    if std::env::var_os("TRELLARA_WRITE_PAGES").is_some() {
        std::fs::write(&path, &page)?;
    }
    let written = std::fs::read_to_string(&path).context("docs/reference/faults.md")?;
    ensure!(
        written == page,
        "it is not what the rows say: TRELLARA_WRITE_PAGES=1 cargo test -p trellara-e2e matrix"
    );
    Ok(())
}

/// Names as the sources have them, whatever stands between attribute and function.
#[test]
fn matrix_tests_are_found_by_their_attribute() {
    let text = "#[test]\nfn one() {}\nfn two() {}\n#[tokio::test(start_paused = true)]\n#[ignore]\n\
                pub async fn three<T>() {}";
    assert_eq!(names(text), ["one", "three"]);
    let made = "on_each_version! {\n    async fn four(version) {\n    }\n}\nasync fn five() {}";
    assert_eq!(names(made), ["four"]);
}
