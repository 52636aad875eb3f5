//! A bar for each table that is being read; nothing where nobody looks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use trellara_verify::Progress;
use trellara_verify::report::{Outcome, TableName};

use crate::output::Output;
use crate::visible;

pub(crate) struct Bars {
    output: Output,
    all: MultiProgress,
    tables: Mutex<BTreeMap<TableName, ProgressBar>>,
}

impl Bars {
    /// Draws to stderr, and only to a terminal.
    pub(crate) fn new(output: Output) -> Self {
        let target = if output.quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        Self {
            output,
            all: MultiProgress::with_draw_target(target),
            tables: Mutex::default(),
        }
    }

    pub(crate) fn show(&self, progress: Progress) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        match progress {
            Progress::Planned { tables: planned } => {
                for (table, rows) in planned {
                    let bar = self.all.add(ProgressBar::new(rows));
                    bar.set_style(style());
                    bar.set_prefix(visible::table(&table.schema, &table.name));
                    tables.insert(table, bar);
                }
            }
            Progress::Started { table } => {
                if let Some(bar) = tables.get(&table) {
                    bar.tick();
                }
            }
            Progress::Compared {
                table, source_rows, ..
            } => {
                if let Some(bar) = tables.get(&table) {
                    bar.inc(source_rows);
                    // The plan's number of rows was a guess.
                    if bar.length().is_some_and(|length| bar.position() > length) {
                        bar.set_length(bar.position());
                    }
                }
            }
            Progress::Paused { lag_bytes } => self.all.suspend(|| {
                self.output.note(format!(
                    "waiting for the target, which is {lag_bytes} bytes behind"
                ));
            }),
            Progress::Finished { report } => {
                if let Some(bar) = tables.remove(&report.table) {
                    bar.set_length(bar.position());
                    bar.finish_with_message(match report.outcome {
                        Outcome::Equal => "equal",
                        Outcome::NoneFound => "no difference found",
                        Outcome::Different => "DIFFERENT",
                        Outcome::NotComparable { .. } => "not comparable",
                    });
                }
            }
        }
    }

    /// Takes the bars away, so that the report stands alone.
    pub(crate) fn end(&self) {
        let _ = self.all.clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{prefix:30!} {bar:30} {pos:>12} rows {per_sec:>14} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
