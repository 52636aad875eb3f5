//! What killed appliers said of themselves until their end.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::Value;
use trellara_testkit::daemon::Daemon;
use trellara_testkit::flow::Flow;

use super::TWICE;
use crate::scenario::value;

/// What an applier logs when somebody else wrote to its lane.
const GAP: &str = "another applier's row was first on this lane";

/// Which applier is killed.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// The shipped one.
    Shipped,
    /// One with so many bytes for its cache.
    Memory(u64),
}

/// What the killed appliers said of themselves, all together.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) kills: u32,
    /// Of them with a target transaction open that had written.
    pub(super) in_apply: u32,
    /// Published a second time.
    pub(super) repeated: u64,
    /// By the cache's state: how often an applier was seen in it.
    states: BTreeMap<String, u32>,
    /// Of bare appliers: rows of others met where their own were to stand.
    pub(super) gaps: usize,
    /// Appliers that filled their cache more than once.
    pub(super) reborn: u32,
    counters: BTreeMap<&'static str, u64>,
}

/// The counters that are added up.
const COUNTERS: [&str; 6] = [
    "transactions",
    "duplicate_transactions",
    "applied_vouched",
    "applied_probed",
    "probes",
    "retries",
];

impl Told {
    pub(super) fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    pub(super) fn saw(&self, state: &str) -> u32 {
        self.states.get(state).copied().unwrap_or_default()
    }

    /// Takes over the last words of one applier.
    fn last_words(&mut self, said: &Value, hydrations: u64) {
        for name in COUNTERS {
            *self.counters.entry(name).or_default() += said[name].as_u64().unwrap_or_default();
        }
        self.reborn += u32::from(hydrations > 1);
    }

    /// What the shipped applier says on its endpoint, shortly before its end.
    pub(super) async fn ask(&mut self, applier: &Daemon) {
        let Some(status) = applier.status().await else {
            return;
        };
        let said = &status["daemons"][0];
        let cache = |name: &str| said["details"][name].as_str();
        if let Some(state) = cache("cache") {
            *self.states.entry(state.to_owned()).or_default() += 1;
        }
        let hydrations = cache("cache_hydrations").and_then(|text| text.parse().ok());
        self.last_words(&said["counters"], hydrations.unwrap_or_default());
    }

    /// What a bare applier wrote down of itself until its end.
    pub(super) fn read(&mut self, applier: &Daemon) {
        let log = applier.log();
        let gap = |line: &&str| line.contains(GAP) && line.contains("retrying");
        self.gaps += log.lines().filter(gap).count();
        let lines = log.lines().filter(|line| line.starts_with('{'));
        // The last line may have been cut off by the kill.
        let said: Vec<Value> = lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        for state in said.iter().filter_map(|said| said["cache"].as_str()) {
            *self.states.entry(state.to_owned()).or_default() += 1;
        }
        if let Some(last) = said.last() {
            let hydrations = last["cache_hydrations"].as_u64();
            self.last_words(last, hydrations.unwrap_or_default());
        }
    }

    pub(super) async fn hear(&mut self, kind: Kind, applier: &Daemon) {
        match kind {
            Kind::Shipped => self.ask(applier).await,
            Kind::Memory(_) => self.read(applier),
        }
    }

    /// Everything that no state may lack, and the effect.
    pub(super) async fn one_effect(&self, flow: &Flow) -> Result<()> {
        eprintln!("{}: {self:?}", flow.name);
        ensure!(self.kills >= 5, "too few kills: {self:?}");
        ensure!(self.in_apply > 0, "none in the midst of applying: {self:?}");
        ensure!(
            self.count("duplicate_transactions") > 0,
            "no duplicate was met: {self:?}"
        );
        let twice = value(&flow.target_admin, TWICE).await?;
        ensure!(
            twice == "0",
            "{twice} identities stand in the ledger twice: {self:?}"
        );
        Ok(())
    }
}
