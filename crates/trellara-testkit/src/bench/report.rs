//! Medians, ratios, bars and verdicts; as a table and as JSON.

use std::fmt;

use serde_json::{Map, Value, json};

use super::contender::{Contender, Round};
use super::cpu::Role;
use super::machine::Machine;
use super::{Outcome, Workload};

/// Everything a run found.
#[derive(Debug)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// Part of the full workloads.
    pub scale: f64,
    /// Rounds per contender and workload.
    pub rounds: u32,
    /// By workload.
    pub outcomes: Vec<Outcome>,
}

/// A bar and what was measured against it.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Which.
    pub name: String,
    /// Trellara's figure in multiples of native's.
    pub ratio: f64,
    /// Where it has to be.
    pub bar: f64,
    /// Whether more is better.
    pub at_least: bool,
}

impl Bar {
    /// Whether it is met.
    pub fn is_met(&self) -> bool {
        if self.at_least {
            self.ratio >= self.bar
        } else {
            self.ratio <= self.bar
        }
    }
}

impl Report {
    /// All bars of what was measured.
    pub fn bars(&self) -> Vec<Bar> {
        self.outcomes.iter().flat_map(Outcome::bars).collect()
    }

    /// Whether every bar is met.
    pub fn is_met(&self) -> bool {
        self.bars().iter().all(Bar::is_met)
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let bars: Vec<Value> = self
            .bars()
            .iter()
            .map(|bar| {
                json!({
                    "name": bar.name,
                    "ratio": bar.ratio,
                    "bar": bar.bar,
                    "at_least": bar.at_least,
                    "met": bar.is_met(),
                })
            })
            .collect();
        let workloads: Vec<Value> = self.outcomes.iter().map(Outcome::json).collect();
        json!({
            "machine": self.machine.json(),
            "scale": self.scale,
            "rounds": self.rounds,
            "workloads": workloads,
            "bars": bars,
            "met": self.is_met(),
        })
    }
}

impl Outcome {
    fn rounds(&self, contender: Contender) -> &[Round] {
        match contender {
            Contender::Native => &self.native,
            Contender::Trellara => &self.trellara,
        }
    }

    fn bars(&self) -> Vec<Bar> {
        let kind = self.workload.kind;
        let mut bars = vec![Bar {
            name: format!("{} rate", kind.name()),
            ratio: median(&self.native, |round| round.seconds)
                / median(&self.trellara, |round| round.seconds),
            bar: kind.rate_bar(),
            at_least: true,
        }];
        if let Some(bar) = kind.cost_bar() {
            bars.push(Bar {
                name: format!("{} cost", kind.name()),
                ratio: median(&self.trellara, Round::cpu_total)
                    / median(&self.native, Round::cpu_total),
                bar,
                at_least: false,
            });
        }
        bars
    }

    fn json(&self) -> Value {
        let Workload { kind, transactions } = self.workload;
        let mut value = json!({
            "workload": kind.name(),
            "transactions": transactions,
            "work": self.workload.work(),
            "unit": kind.unit(),
        });
        for contender in [Contender::Native, Contender::Trellara] {
            let rounds: Vec<Value> = self.rounds(contender).iter().map(round_json).collect();
            value[contender.name()] = json!({
                "rate": self.workload.work() as f64
                    / median(self.rounds(contender), |round| round.seconds),
                "rounds": rounds,
            });
        }
        value
    }
}

fn round_json(round: &Round) -> Value {
    let cpu: Map<String, Value> = round
        .cpu
        .iter()
        .map(|(role, seconds)| (role.name().to_owned(), json!(seconds)))
        .collect();
    json!({
        "seconds": round.seconds,
        "cpu_seconds": cpu,
        "cpu_seconds_total": round.cpu_total(),
        "foreign_cpu_seconds": round.foreign_cpu,
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(f, "{}, load {}", machine.hardware, machine.load)?;
        writeln!(
            f,
            "8 kB write with fdatasync: {:.0} µs",
            machine.sync_microseconds
        )?;
        writeln!(f, "{}", machine.versions)?;
        writeln!(f, "{}", machine.settings)?;
        writeln!(
            f,
            "{} rounds each, in turn; medians, lowest and highest; CPU seconds of the median round",
            self.rounds
        )?;
        for outcome in &self.outcomes {
            writeln!(f)?;
            write!(f, "{outcome}")?;
        }
        writeln!(f, "\n{:<10} {:>8} {:>8}  verdict", "bar", "needed", "seen")?;
        for bar in self.bars() {
            let sign = if bar.at_least { '≥' } else { '≤' };
            let verdict = if bar.is_met() { "met" } else { "MISSED" };
            let needed = format!("{sign} {:.2}", bar.bar);
            writeln!(
                f,
                "{:<10} {needed:>8} {:>8.2}  {verdict}",
                bar.name, bar.ratio
            )?;
        }
        if self.scale < 1.0 {
            writeln!(
                f,
                "\nThe bars are about the full workloads; this was {:.3} of them, where starting \
                 and connecting weigh more.",
                self.scale
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.workload.kind;
        writeln!(f, "{}: {}", kind.name(), self.workload.describe())?;
        write!(f, "{:<9} {:>24} {:>19}", "", kind.unit(), "seconds")?;
        for role in Role::ALL {
            write!(f, " {:>11}", role.name())?;
        }
        writeln!(f, " {:>7} {:>7}", "CPU", "others")?;
        for contender in [Contender::Native, Contender::Trellara] {
            self.line(f, contender)?;
        }
        Ok(())
    }
}

impl Outcome {
    fn line(&self, f: &mut fmt::Formatter<'_>, contender: Contender) -> fmt::Result {
        let rounds = self.rounds(contender);
        let seconds = Spread::of(rounds.iter().map(|round| round.seconds));
        let work = self.workload.work() as f64;
        let rate = format!(
            "{:.0} ({:.0}..{:.0})",
            work / seconds.median,
            work / seconds.highest,
            work / seconds.lowest
        );
        let took = format!(
            "{:.2} ({:.2}..{:.2})",
            seconds.median, seconds.lowest, seconds.highest
        );
        write!(f, "{:<9} {rate:>24} {took:>19}", contender.name())?;
        let Some(shown) = rounds
            .iter()
            .min_by(|a, b| distance(a, &seconds).total_cmp(&distance(b, &seconds)))
        else {
            return writeln!(f);
        };
        for role in Role::ALL {
            match shown.cpu.get(&role) {
                Some(used) => write!(f, " {used:>11.2}")?,
                None => write!(f, " {:>11}", "-")?,
            }
        }
        writeln!(f, " {:>7.2} {:>7.2}", shown.cpu_total(), shown.foreign_cpu)
    }
}

fn distance(round: &Round, spread: &Spread) -> f64 {
    (round.seconds - spread.median).abs()
}

fn median(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> f64 {
    Spread::of(rounds.iter().map(figure)).median
}

/// Of a few figures.
#[derive(Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) lowest: f64,
    pub(super) median: f64,
    pub(super) highest: f64,
}

impl Spread {
    /// NaN of none.
    pub(super) fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |at: usize| sorted.get(at).copied().unwrap_or(f64::NAN);
        let half = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(at(half.wrapping_sub(1)), at(half))
        } else {
            at(half)
        };
        Self {
            lowest: at(0),
            median,
            highest: at(sorted.len().wrapping_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn round(seconds: f64, cpu: f64) -> Round {
        Round {
            seconds,
            cpu: [(Role::Apply, cpu)].into(),
            foreign_cpu: 0.0,
        }
    }

    fn outcome(native: &[f64], trellara: &[f64]) -> Outcome {
        Outcome {
            workload: Workload {
                kind: Kind::W1,
                transactions: 100,
            },
            native: native.iter().map(|seconds| round(*seconds, 2.0)).collect(),
            trellara: trellara
                .iter()
                .map(|seconds| round(*seconds, 3.0))
                .collect(),
        }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 2.0, 8.0].into_iter());
        let expected = Spread {
            lowest: 1.0,
            median: 3.0,
            highest: 8.0,
        };
        assert_eq!(spread, expected);
    }

    #[test]
    fn a_bar_is_met_exactly_at_it() {
        let bars = outcome(&[3.0, 9.0, 1.0], &[2.0, 2.0, 7.0]).bars();
        assert_eq!(bars[0].ratio, 1.5);
        assert!(bars[0].is_met(), "the rate is at least the bar");
        assert_eq!(bars[1].ratio, 1.5);
        assert!(bars[1].is_met(), "the cost is at most the bar");
        let slower = outcome(&[3.0], &[2.1]).bars();
        assert!(!slower[0].is_met());
    }

    #[test]
    fn nothing_measured_meets_no_bar() {
        assert!(outcome(&[], &[]).bars().iter().all(|bar| !bar.is_met()));
    }
}
