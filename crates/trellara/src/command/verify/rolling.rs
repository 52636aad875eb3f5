//! One slice of ranges after the other: once, or again and again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use trellara_verify::report::{Mode, Outcome, Report, TableName, TableReport, Verdict};
use trellara_verify::rolling::{Listeners, RollingOptions, Stop, roll};
use trellara_verify::store::OldRun;
use trellara_verify::{CompareOptions, Progress};

use super::record::Record;
use super::{Args, Look, freezing, not_compared};
use crate::daemon::signals::Signals;
use crate::exit::{Exit, Failure};
use crate::output::Format;
use crate::verdict::progress::Bars;
use crate::visible;

/// After a round that could not be made.
const PAUSE: Duration = Duration::from_secs(5);

/// A round's result, and whether a signal ended it.
pub(super) struct Round {
    pub(super) report: Report,
    /// Why it ended before it was through.
    pub(super) stopped: Option<String>,
    signalled: bool,
}

impl Look<'_> {
    /// Everything once.
    pub(super) async fn rolling(
        &self,
        (args, options): (&Args, &CompareOptions),
        signals: &mut Signals,
        (record, old): (&Record, Option<&OldRun>),
    ) -> Result<Round, Failure> {
        let stop = Stop::default();
        let options = RollingOptions {
            compare: options.clone(),
            freeze: freezing::options(self.config, &options.run, args.timeout),
        };
        let watched = args.watches();
        let bars = Bars::new(self.output);
        let progress = |progress| {
            self.events.show(&progress);
            match (&progress, watched) {
                (Progress::Finished { report }, true) => self.line(report),
                _ => bars.show(progress),
            }
        };
        let waiting = freezing::Waiting::new(self.output);
        let steps = |step| waiting.for_a(step);
        let listeners = Listeners {
            progress: &progress,
            steps: &steps,
            store: record.store(),
            unwritten: &|error| record.unwritten(error),
        };
        let mut rolling = std::pin::pin!(roll(&options, old, &listeners, &stop));
        let mut halting = std::pin::pin!(freezing::halt(self.config));
        let (mut signalled, mut halted) = (false, false);
        let report = loop {
            tokio::select! {
                report = &mut rolling => break report,
                signal = signals.next() => {
                    if signalled {
                        return Err(freezing::interrupted(signal));
                    }
                    signalled = true;
                    stop.now(format!("interrupted by {signal}"), "");
                }
                halt = &mut halting, if !halted => {
                    halted = true;
                    stop.now(halt.causes.join(": "), halt.hints.join("; "));
                }
                () = waiting.tell() => {}
            }
        };
        bars.end();
        let stopped = stop.is_stopped().then(|| stop.reason().0);
        let report = report.map_err(not_compared)?;
        Ok(Round {
            report,
            stopped,
            signalled,
        })
    }

    /// A line for a table that was looked at.
    fn line(&self, report: &TableReport) {
        if self.output.format != Format::Text {
            return;
        }
        let table = visible::table(&report.table.schema, &report.table.name);
        let through = report.verified_through;
        let through = through.map_or(String::new(), |lsn| format!(", through {lsn}"));
        self.output.raw(&match &report.outcome {
            Outcome::NotComparable { reason, .. } => {
                format!("{table}: not comparable: {}", visible::inline(reason))
            }
            Outcome::Different => {
                format!("{table}: DIFFERENT, {} rows{through}", report.differing())
            }
            Outcome::Equal | Outcome::NoneFound => format!(
                "{table}: {}, {} rows{through}",
                report.outcome.word(),
                report.rows_compared
            ),
        });
    }

    /// Again and again, until a signal comes. What is in the way is told, and tried again.
    pub(super) async fn watch(
        &self,
        args: &Args,
        signals: &mut Signals,
        record: &Record,
        on_round: &(dyn Fn(&Report) + Send + Sync),
    ) -> Result<(Report, Exit), Failure> {
        let mut seen = Seen::default();
        for number in 1u64.. {
            let began = Instant::now();
            // Another sample and other names on the servers each time.
            let options = CompareOptions {
                run: format!("{}r{number}", self.options.run),
                seed: rand::random(),
                ..self.options.clone()
            };
            let round = self
                .rolling((args, &options), signals, (record, None))
                .await;
            let mut pause = args.every;
            match round {
                Ok(round) => {
                    if let Some(why) = &round.stopped
                        && !round.signalled
                    {
                        self.output.note(format!("the round was ended: {why}"));
                        pause = pause.max(PAUSE);
                    }
                    let ended = round.signalled;
                    on_round(&round.report);
                    seen.take_in(round);
                    if ended {
                        break;
                    }
                }
                Err(failure) if failure.exit == Exit::NotCompared => {
                    let why = failure.causes.join(": ");
                    self.output.note(format!("no round could be made: {why}"));
                    pause = pause.max(PAUSE);
                }
                Err(failure) => return Err(failure),
            }
            tokio::select! {
                _ = signals.next() => break,
                () = tokio::time::sleep(pause.saturating_sub(began.elapsed())) => {}
            }
        }
        seen.result(&self.options.run)
    }
}

/// What the last whole round found, and what a round that was ended early adds to it.
#[derive(Default)]
struct Seen {
    last: Option<Report>,
    tables: BTreeMap<TableName, TableReport>,
}

impl Seen {
    fn take_in(&mut self, round: Round) {
        let mut report = round.report;
        // A signal behind the last table ends nothing early.
        let whole = report.verdict() == Verdict::Equal;
        let tables = report.tables.drain(..).map(|t| (t.table.clone(), t));
        let tables: BTreeMap<TableName, TableReport> = tables.collect();
        match round.stopped {
            Some(why) if !whole => {
                // What left the publication is nobody's business any more.
                self.tables.retain(|name, _| tables.contains_key(name));
                for (name, table) in tables {
                    match self.tables.entry(name) {
                        Entry::Vacant(new) => _ = new.insert(table),
                        Entry::Occupied(mut old) if adds(old.get(), &table, &why) => {
                            old.insert(table);
                        }
                        Entry::Occupied(_) => {}
                    }
                }
            }
            Some(_) | None => self.tables = tables,
        }
        self.last = Some(report);
    }

    fn result(self, run: &str) -> Result<(Report, Exit), Failure> {
        let Some(mut report) = self.last else {
            let reason = "ended before a round was made";
            return Err(Failure::new(Exit::NotCompared, reason, ""));
        };
        report.tables = self.tables.into_values().collect();
        // Of what is said, not of the last round, which may have come to nothing.
        let through = report.tables.iter().filter_map(|t| t.verified_through);
        report.consistent_point = through.min().unwrap_or(report.consistent_point);
        report.mode = Mode::Watch;
        run.clone_into(&mut report.run);
        let exit = super::exit(report.verdict());
        Ok((report, exit))
    }
}

/// Whether a look in a round that was ended for this reason says more than the one before: it makes
/// nothing equal that was not, and what it did not come to takes back nothing that was seen.
fn adds(old: &TableReport, new: &TableReport, ended: &str) -> bool {
    match (&old.outcome, &new.outcome) {
        (_, Outcome::NotComparable { reason, .. }) => reason != ended,
        (_, Outcome::Different) => true,
        (Outcome::Equal | Outcome::NoneFound, Outcome::Equal | Outcome::NoneFound) => true,
        (
            Outcome::Different | Outcome::NotComparable { .. },
            Outcome::Equal | Outcome::NoneFound,
        ) => false,
    }
}
