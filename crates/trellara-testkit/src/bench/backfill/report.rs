//! Medians, bars and verdicts; as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::super::report::{Bar, Spread};
use super::{FULL_ROWS, Machine, TABLES, Turn, Way};

/// Trellara's rate in multiples of one pipe's, and of as many pipes' as it has workers.
const ONE_PIPE_BAR: f64 = 0.85;
const PIPES_BAR: f64 = 0.65;
/// Of relay and applier, bytes.
const MEMORY_BAR: u64 = 256 << 20;

/// Everything a run found.
#[derive(Debug)]
pub struct BackfillReport {
    /// What it ran on.
    pub machine: Machine,
    /// Of all tables together.
    pub rows: u64,
    /// Of their text, estimated from a sample.
    pub bytes: u64,
    /// Workers of the copy, and pipes.
    pub workers: usize,
    /// Turns of each way.
    pub rounds: u32,
    /// By way.
    pub turns: Vec<(Way, Vec<Turn>)>,
}

impl BackfillReport {
    fn turns(&self, way: Way) -> impl Iterator<Item = &Turn> {
        let turns = self.turns.iter().filter(move |(w, _)| *w == way);
        turns.flat_map(|(_, turns)| turns)
    }

    fn seconds(&self, way: Way) -> Spread {
        Spread::of(self.turns(way).map(|turn| turn.seconds))
    }

    fn ratio(&self, to: Way) -> f64 {
        self.seconds(to).median / self.seconds(Way::Trellara).median
    }

    /// The largest that any turn saw of a process.
    fn peak(&self, name: &str) -> u64 {
        let peaks = self.turns(Way::Trellara).flat_map(|turn| &turn.peaks);
        let of_it = peaks.filter(|(process, _)| *process == name);
        of_it.map(|(_, bytes)| *bytes).max().unwrap_or_default()
    }

    /// What is asked.
    pub fn bars(&self) -> Vec<Bar> {
        let rate = |name: &str, to: Way, bar: f64| Bar {
            name: name.to_owned(),
            ratio: self.ratio(to),
            bar,
            at_least: true,
        };
        let memory = |name: &str| Bar {
            name: format!("{name} peak MiB"),
            ratio: (self.peak(name) >> 20) as f64,
            bar: (MEMORY_BAR >> 20) as f64,
            at_least: false,
        };
        vec![
            rate("rate to one pipe's", Way::OnePipe, ONE_PIPE_BAR),
            rate("rate to the pipes'", Way::Pipes, PIPES_BAR),
            memory("relay"),
            memory("applier"),
        ]
    }

    /// Whether every bar is met.
    pub fn is_met(&self) -> bool {
        self.bars().iter().all(Bar::is_met)
    }

    /// Median CPU seconds of each process.
    fn cpu(&self, way: Way) -> Vec<(&'static str, f64)> {
        let first = self.turns(way).next();
        let names = first.map_or(&[][..], |turn| &turn.cpu);
        let median = |at: usize| Spread::of(self.turns(way).map(|turn| turn.cpu[at].1)).median;
        let each = names.iter().enumerate();
        each.map(|(at, (name, _))| (*name, median(at))).collect()
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let ways = self.turns.iter().map(|(way, turns)| {
            let turns = turns.iter().map(|turn| {
                let cpu = turn.cpu.iter().map(|(name, used)| (*name, json!(used)));
                let peaks = turn.peaks.iter().map(|(name, peak)| (*name, json!(peak)));
                json!({
                    "seconds": turn.seconds,
                    "cpu_seconds": cpu.collect::<std::collections::BTreeMap<_, _>>(),
                    "peak_bytes": peaks.collect::<std::collections::BTreeMap<_, _>>(),
                })
            });
            json!({
                "way": way.name(),
                "rows_per_second": self.rows as f64 / self.seconds(*way).median,
                "bytes_per_second": self.bytes as f64 / self.seconds(*way).median,
                "turns": turns.collect::<Vec<_>>(),
            })
        });
        let bars = self.bars();
        let bars = bars.iter().map(|bar| {
            json!({
                "name": bar.name,
                "seen": bar.ratio,
                "bar": bar.bar,
                "at_least": bar.at_least,
                "met": bar.is_met(),
            })
        });
        json!({
            "machine": self.machine.json(),
            "rows": self.rows,
            "bytes": self.bytes,
            "workers": self.workers,
            "rounds": self.rounds,
            "ways": ways.collect::<Vec<_>>(),
            "bars": bars.collect::<Vec<_>>(),
            "met": self.is_met(),
        })
    }
}

impl fmt::Display for BackfillReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(f, "{}, load {}", machine.hardware, machine.load)?;
        writeln!(f, "{}", machine.versions)?;
        writeln!(f, "{}", machine.settings)?;
        writeln!(
            f,
            "{} rows in {TABLES} tables, one half of them in one, {} MB of text; {} workers; \
             {} turns each; medians, lowest and highest",
            self.rows,
            self.bytes / 1_000_000,
            self.workers,
            self.rounds
        )?;
        writeln!(
            f,
            "\n{:<9} {:>24} {:>10} {:>7}  CPU seconds",
            "", "seconds", "rows/s", "MB/s"
        )?;
        for (way, _) in &self.turns {
            let seconds = self.seconds(*way);
            let took = format!(
                "{:.2} ({:.2}..{:.2})",
                seconds.median, seconds.lowest, seconds.highest
            );
            let cpu: Vec<String> = self
                .cpu(*way)
                .iter()
                .map(|(name, used)| format!("{name} {used:.1}"))
                .collect();
            writeln!(
                f,
                "{:<9} {took:>24} {:>10.0} {:>7.1}  {}",
                way.name(),
                self.rows as f64 / seconds.median,
                self.bytes as f64 / 1e6 / seconds.median,
                cpu.join(", ")
            )?;
        }
        writeln!(f, "\n{:<20} {:>8} {:>8}  verdict", "", "needed", "seen")?;
        for bar in self.bars() {
            let sign = if bar.at_least { '≥' } else { '≤' };
            let verdict = if bar.is_met() { "met" } else { "MISSED" };
            let needed = format!("{sign} {:.2}", bar.bar);
            writeln!(
                f,
                "{:<20} {needed:>8} {:>8.2}  {verdict}",
                bar.name, bar.ratio
            )?;
        }
        if self.rows < FULL_ROWS {
            writeln!(
                f,
                "\nThe bars are about {FULL_ROWS} rows; with fewer, starting and connecting weigh more."
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(one: f64, pipes: f64, ours: f64, peak: u64) -> BackfillReport {
        let turn = |seconds| Turn {
            seconds,
            cpu: vec![("source", 1.0)],
            peaks: vec![("relay", peak), ("applier", 1)],
        };
        BackfillReport {
            machine: Machine {
                hardware: String::new(),
                load: String::new(),
                sync_microseconds: 0.0,
                versions: String::new(),
                settings: String::new(),
            },
            rows: 1000,
            bytes: 0,
            workers: 2,
            rounds: 1,
            turns: vec![
                (Way::OnePipe, vec![turn(one)]),
                (Way::Pipes, vec![turn(pipes)]),
                (Way::Trellara, vec![turn(ours)]),
            ],
        }
    }

    #[test]
    fn each_bar_is_missed_by_itself() {
        assert!(report(9.0, 7.0, 10.0, MEMORY_BAR).is_met());
        for missed in [
            report(8.0, 7.0, 10.0, 1),
            report(9.0, 6.0, 10.0, 1),
            report(9.0, 7.0, 10.0, MEMORY_BAR + (1 << 20)),
        ] {
            assert!(!missed.is_met(), "{missed}");
            assert!(missed.to_string().contains("MISSED"));
            assert_eq!(missed.json()["met"], false);
        }
    }
}
