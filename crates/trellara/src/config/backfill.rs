//! `backfill:`: what becomes of the rows that are there before the flow begins.

use super::file::FileConfig;
use super::model::{BackfillConfig, Existing};
use super::resolve::{Problems, choose, within};
use super::{
    BACKFILL_BYTES, BACKFILL_BYTES_LEAST, BACKFILL_WORKERS, BACKFILL_WORKERS_MOST, quantity,
};

pub(super) fn backfill(file: &FileConfig, problems: &mut Problems) -> BackfillConfig {
    let section = file.backfill.clone().unwrap_or_default();
    let create_tables = problems.parsed("backfill.ddl", section.ddl.as_ref(), false, |text| {
        choose(text, &[("none", false), ("create", true)])
    });
    BackfillConfig {
        copy: problems.parsed("backfill.mode", section.mode.as_ref(), true, |text| {
            choose(text, &[("copy", true), ("none", false)])
        }),
        workers: problems.parsed(
            "backfill.workers",
            section.workers.as_ref(),
            BACKFILL_WORKERS,
            workers,
        ),
        existing: problems.parsed(
            "backfill.existing",
            section.existing.as_ref(),
            Existing::Refuse,
            |text| {
                let choices = [
                    ("refuse", Existing::Refuse),
                    ("truncate", Existing::Truncate),
                    ("keep", Existing::Keep),
                ];
                choose(text, &choices)
            },
        ),
        create_tables,
        // Of tables that were made for the copy nobody misses an index before they have rows.
        defer_indexes: problems.parsed(
            "backfill.indexes",
            section.indexes.as_ref(),
            create_tables,
            |text| choose(text, &[("keep", false), ("defer", true)]),
        ),
        max_bytes: problems.parsed(
            "backfill.max_bytes",
            section.max_bytes.as_ref(),
            BACKFILL_BYTES,
            |text| {
                let bytes = quantity::bytes(text)?;
                within(bytes, BACKFILL_BYTES_LEAST, 1 << 40)
            },
        ),
    }
}

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=BACKFILL_WORKERS_MOST).contains(&count) => Ok(count),
        _ => Err(format!(
            "{text:?} is not a number from 1 to {BACKFILL_WORKERS_MOST}"
        )),
    }
}
