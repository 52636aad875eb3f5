//! What is kept of a run in the target. It takes nothing from the verdict: what cannot be written
//! down is told, and the run goes on.

use std::sync::atomic::{AtomicBool, Ordering};

use trellara_verify::report::{DigestLane, Report};
use trellara_verify::store::{NewRun, OldRun, Store};
use trellara_verify::{CompareOptions, VerifyError};

use super::Args;
use crate::config::Config;
use crate::output::Output;
use crate::verdict::{self, Circumstances};

/// The record of a run, where there is one.
pub(super) struct Record {
    store: Option<Store>,
    output: Output,
    /// That it could not be written down.
    told: AtomicBool,
}

impl Record {
    fn new(store: Option<Store>, output: Output) -> Self {
        let told = AtomicBool::new(false);
        Self {
            store,
            output,
            told,
        }
    }

    /// The run begins.
    pub(super) async fn begin(
        config: &Config,
        args: &Args,
        options: &CompareOptions,
        output: Output,
    ) -> Self {
        let new = NewRun {
            run: &options.run,
            mode: args.mode.word(),
            lane: lane(options.lane),
            seed: options.seed,
            options: &asked_for(options),
            version: env!("CARGO_PKG_VERSION"),
        };
        let begun = Store::begin(&config.target.connect, &config.flow, &new).await;
        let store = match begun {
            Ok(store) => Some(store),
            Err(error) => {
                warn(output, &error);
                None
            }
        };
        Self::new(store, output)
    }

    /// Takes over the record of a run that ended before it was through, and what that had seen.
    pub(super) async fn resume(
        config: &Config,
        run: &str,
        output: Output,
    ) -> Result<(Self, OldRun), VerifyError> {
        let (store, old) = Store::resume(&config.target.connect, &config.flow, run).await?;
        Ok((Self::new(Some(store), output), old))
    }

    /// Where it is written down, if it is.
    pub(super) fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Something could not be written down; told once, because most of what follows is not either.
    pub(super) fn unwritten(&self, error: &VerifyError) {
        if !self.told.swap(true, Ordering::Relaxed) {
            warn(self.output, error);
        }
    }

    /// It has a result; values of rows are never kept.
    pub(super) async fn finish(&self, report: &Report, circumstances: &Circumstances) {
        let Some(store) = &self.store else {
            return;
        };
        let redacted = Circumstances {
            values: false,
            ..circumstances.clone()
        };
        let document = verdict::of(report, &redacted);
        let json = serde_json::to_string(&document).unwrap_or_default();
        let found = (report.consistent_point, report.tables.as_slice());
        if let Err(error) = store.finish(report.verdict(), found, &json).await {
            warn(self.output, &error);
        }
    }

    /// It has none.
    pub(super) async fn fail(&self, reason: &str) {
        if let Some(store) = &self.store
            && let Err(error) = store.fail(reason).await
        {
            warn(self.output, &error);
        }
    }
}

/// What a run that goes on must ask for as well: the rest is no matter of what is said.
pub(super) fn asked_for(options: &CompareOptions) -> String {
    let tables: Vec<String> = options.tables.iter().map(ToString::to_string).collect();
    let share = options.sample.map_or(100.0, |share| share * 100.0);
    format!(
        "publication {}; lane {}; tables {}; sample {share} %",
        options.publication,
        lane(options.lane),
        if tables.is_empty() {
            "all".to_owned()
        } else {
            tables.join(" ")
        },
    )
}

fn lane(lane: DigestLane) -> &'static str {
    match lane {
        DigestLane::Row64 => "row64",
        DigestLane::Blake3 => "blake3",
    }
}

fn warn(output: Output, error: &VerifyError) {
    output.note(format!("warning: {error}"));
    if !error.hint.is_empty() {
        output.note(format!("hint: {}", error.hint));
    }
}
