//! Medians, bars and verdicts; as a table and as JSON.

use std::fmt;

use serde_json::{Value, json};

use super::super::report::{Bar, Spread};
use super::{FULL_ROWS, Machine, Turn, Way};

/// Millions of rows that one core has to hash in a second, both sides counted.
const RATE_BAR: f64 = 0.6;
/// In multiples of the time that copying both tables out takes.
const COPY_BAR: f64 = 1.3;

/// Everything a run found.
#[derive(Debug)]
pub struct VerifyReport {
    /// What it ran on.
    pub machine: Machine,
    /// Of each table.
    pub rows: u64,
    /// Of each table.
    pub bytes: u64,
    /// Turns of each way.
    pub rounds: u32,
    /// By way.
    pub turns: Vec<(Way, Vec<Turn>)>,
}

impl VerifyReport {
    fn of(&self, way: Way, figure: impl Fn(&Turn) -> f64) -> Spread {
        let turns = self.turns.iter().filter(|(w, _)| *w == way);
        Spread::of(turns.flat_map(|(_, turns)| turns).map(figure))
    }

    /// Millions of rows of both sides for a second of one core, the client's included.
    fn rate_per_core(&self, way: Way) -> f64 {
        let cpu = self.of(way, |turn| turn.servers_cpu + turn.client_cpu);
        2.0 * self.rows as f64 / 1e6 / cpu.median
    }

    fn to_copy(&self, way: Way) -> f64 {
        let seconds = |way| self.of(way, |turn| turn.seconds).median;
        seconds(way) / seconds(Way::Copy)
    }

    /// What is asked of the default lane.
    pub fn bars(&self) -> [Bar; 2] {
        [
            Bar {
                name: "million rows/s/core".to_owned(),
                ratio: self.rate_per_core(Way::Row64),
                bar: RATE_BAR,
                at_least: true,
            },
            Bar {
                name: "seconds to COPY's".to_owned(),
                ratio: self.to_copy(Way::Row64),
                bar: COPY_BAR,
                at_least: false,
            },
        ]
    }

    /// Whether every bar is met.
    pub fn is_met(&self) -> bool {
        self.bars().iter().all(Bar::is_met)
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let ways = self.turns.iter().map(|(way, turns)| {
            let turns = turns.iter().map(|turn| {
                json!({
                    "seconds": turn.seconds,
                    "servers_cpu_seconds": turn.servers_cpu,
                    "client_cpu_seconds": turn.client_cpu,
                })
            });
            json!({
                "way": way.name(),
                "million_rows_per_second_and_core": self.rate_per_core(*way),
                "seconds_to_copy": self.to_copy(*way),
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
            "rounds": self.rounds,
            "ways": ways.collect::<Vec<_>>(),
            "bars": bars.collect::<Vec<_>>(),
            "met": self.is_met(),
        })
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(f, "{}, load {}", machine.hardware, machine.load)?;
        writeln!(f, "{}, jit off", machine.versions)?;
        writeln!(f, "{}", machine.settings)?;
        writeln!(
            f,
            "{} rows and {} MB on each side; {} turns each; medians, lowest and highest",
            self.rows,
            self.bytes / 1_000_000,
            self.rounds
        )?;
        writeln!(
            f,
            "\n{:<15} {:>22} {:>12} {:>11} {:>14} {:>8}",
            "", "seconds", "servers' CPU", "client CPU", "M rows/s/core", "× COPY"
        )?;
        for (way, _) in &self.turns {
            let seconds = self.of(*way, |turn| turn.seconds);
            let took = format!(
                "{:.2} ({:.2}..{:.2})",
                seconds.median, seconds.lowest, seconds.highest
            );
            writeln!(
                f,
                "{:<15} {took:>22} {:>12.2} {:>11.2} {:>14.2} {:>8.2}",
                way.name(),
                self.of(*way, |turn| turn.servers_cpu).median,
                self.of(*way, |turn| turn.client_cpu).median,
                self.rate_per_core(*way),
                self.to_copy(*way)
            )?;
        }
        writeln!(
            f,
            "\n{:<20} {:>8} {:>8}  verdict",
            "row64", "needed", "seen"
        )?;
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
                "\nThe bars are about {FULL_ROWS} rows; with fewer, connecting and the catalogues \
                 weigh more."
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(row64: (f64, f64), copy: f64) -> VerifyReport {
        let turn = |seconds, cpu| Turn {
            seconds,
            servers_cpu: cpu,
            client_cpu: 1.0,
        };
        VerifyReport {
            machine: Machine {
                hardware: String::new(),
                load: String::new(),
                sync_microseconds: 0.0,
                versions: String::new(),
                settings: String::new(),
            },
            rows: 3_000_000,
            bytes: 0,
            rounds: 1,
            turns: vec![
                (Way::Row64, vec![turn(row64.0, row64.1)]),
                (Way::Copy, vec![turn(copy, 1.0)]),
            ],
        }
    }

    #[test]
    fn both_sides_and_the_client_count() {
        let met = report((13.0, 9.0), 10.0);
        assert_eq!(met.bars().map(|bar| bar.ratio), [0.6, 1.3]);
        assert!(met.is_met());
        assert!(!report((13.1, 9.0), 10.0).is_met(), "slower than a copy");
        assert!(!report((13.0, 9.1), 10.0).is_met(), "dearer");
    }
}
