//! `quarantine:` and `conflicts:`: what becomes of a transaction that the target refuses, and of a
//! change that does not find the target as it should be.

use std::time::Duration;

use trellara_applier::quarantine::{
    ConflictRule, ConflictRules, Conflicts, QuarantineOptions, QuarantinePolicy,
};
use trellara_source::publication::TablePattern;

use super::file::{FileConfig, Written};
use super::resolve::{Problems, choose, within};
use super::rules::WrittenRules;
use super::{QUARANTINE_BYTES_LEAST, quantity};

const TABLES: &str = "conflicts.tables";
const FORM: &str = "the form is: {schema.table: {missing_row: skip, duplicate_key: overwrite}}";

pub(super) fn quarantine(file: &FileConfig, problems: &mut Problems) -> QuarantineOptions {
    let section = file.quarantine.clone().unwrap_or_default();
    let default = QuarantineOptions::default();
    QuarantineOptions {
        policy: problems.parsed(
            "quarantine.policy",
            section.policy.as_ref(),
            default.policy,
            |text| {
                let choices = [
                    ("halt", QuarantinePolicy::Halt),
                    ("hold_dependents", QuarantinePolicy::HoldDependents),
                ];
                choose(text, &choices)
            },
        ),
        max_bytes: problems.parsed(
            "quarantine.max_bytes",
            section.max_bytes.as_ref(),
            default.max_bytes,
            |text| {
                let bytes = quantity::bytes(text)?;
                within(bytes, QUARANTINE_BYTES_LEAST, 1 << 50)
            },
        ),
        max_keys: problems.parsed(
            "quarantine.max_keys",
            section.max_keys.as_ref(),
            default.max_keys,
            |text| count(text, 100_000_000),
        ),
        max_transactions: problems.parsed(
            "quarantine.max_transactions",
            section.max_transactions.as_ref(),
            default.max_transactions,
            |text| count(text, 10_000_000),
        ),
        max_age: problems.parsed(
            "quarantine.max_age",
            section.max_age.as_ref(),
            default.max_age,
            max_age,
        ),
    }
}

/// None at all would refuse the first one, which is what `policy: halt` is for.
fn count(text: &str, most: u64) -> Result<u64, String> {
    let number: u64 = text
        .parse()
        .map_err(|_| format!("not a number: {text:?}"))?;
    match number {
        0 => Err("0 holds nothing: that is `policy: halt`".to_owned()),
        number if number > most => Err(format!("{number} is more than {most}")),
        number => Ok(number),
    }
}

fn max_age(text: &str) -> Result<Option<Duration>, String> {
    const LEAST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(3650 * 86_400);
    if text == "off" {
        return Ok(None);
    }
    let age = quantity::duration(text)?;
    if (LEAST..=MOST).contains(&age) {
        Ok(Some(age))
    } else {
        Err(format!("not within 1s and ten years: {text:?}"))
    }
}

pub(super) fn conflicts(file: &FileConfig, problems: &mut Problems) -> ConflictRules {
    let section = file.conflicts.clone().unwrap_or_default();
    let error = Conflicts::default();
    let all = Conflicts {
        missing_row: rule(
            "conflicts.missing_row",
            section.missing_row.as_ref(),
            error.missing_row,
            problems,
        ),
        duplicate_key: rule(
            "conflicts.duplicate_key",
            section.duplicate_key.as_ref(),
            error.duplicate_key,
            problems,
        ),
    };
    let written = section.tables.unwrap_or_default();
    ConflictRules {
        tables: tables(&written, all, problems),
        all,
    }
}

/// A table's own rules; what it leaves out is the flow's.
fn tables(
    written: &WrittenRules,
    all: Conflicts,
    problems: &mut Problems,
) -> std::collections::BTreeMap<(String, String), Conflicts> {
    let mut tables = std::collections::BTreeMap::new();
    if written.unreadable {
        problems.add(TABLES, "not a map of tables with their rules", FORM);
    }
    for (name, rules) in &written.tables {
        let Some(table) = table(name, problems) else {
            continue;
        };
        if rules.missing_row.is_none() && rules.duplicate_key.is_none() {
            problems.add(TABLES, format!("{name} has no rule"), FORM);
        }
        let own = Conflicts {
            missing_row: rule(
                TABLES,
                rules.missing_row.as_ref(),
                all.missing_row,
                problems,
            ),
            duplicate_key: rule(
                TABLES,
                rules.duplicate_key.as_ref(),
                all.duplicate_key,
                problems,
            ),
        };
        if tables.insert(table, own).is_some() {
            problems.add(TABLES, format!("{name} is there twice"), FORM);
        }
    }
    tables
}

/// One table; all of a schema would hide what they are for.
fn table(name: &str, problems: &mut Problems) -> Option<(String, String)> {
    match name.trim().parse::<TablePattern>() {
        Ok(TablePattern {
            schema,
            table: Some(table),
        }) => Some((schema, table)),
        Ok(TablePattern { table: None, .. }) => {
            let reason = format!("{name} is no single table");
            let hint =
                "name each table; conflicts.missing_row and conflicts.duplicate_key are for all";
            problems.add(TABLES, reason, hint);
            None
        }
        Err(_) => {
            let reason = format!("not a table (write schema.table): {name:?}");
            let hint = "a part with a dot or a space in it stands in double quotes";
            problems.add(TABLES, reason, hint);
            None
        }
    }
}

fn rule(
    key: &str,
    written: Option<&Written>,
    default: ConflictRule,
    problems: &mut Problems,
) -> ConflictRule {
    problems.parsed(key, written, default, |text| {
        let choices = [
            ("error", ConflictRule::Error),
            // The word of the first version.
            ("stop", ConflictRule::Error),
            ("skip", ConflictRule::Skip),
            ("overwrite", ConflictRule::Overwrite),
        ];
        choose(text, &choices)
    })
}
