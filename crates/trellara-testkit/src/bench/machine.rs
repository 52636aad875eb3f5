//! What the figures were taken on.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::arena::{Arena, SETTINGS};

/// Writes of the disk's probe.
const PROBE_WRITES: usize = 200;

/// The machine, the versions and the settings.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Processor, cores, memory, kernel.
    pub hardware: String,
    /// Load of the last minute when the run began.
    pub load: String,
    /// Median microseconds of an 8 kB write with fdatasync where the servers keep their data.
    pub sync_microseconds: f64,
    /// PostgreSQL and nats-server.
    pub versions: String,
    /// Settings that differ from the servers' defaults.
    pub settings: String,
}

impl Machine {
    pub(super) async fn of(arena: &Arena) -> Result<Self> {
        let version: String = arena
            .target
            .query_one("SHOW server_version", &[])
            .await?
            .get(0);
        let settings: Vec<String> = SETTINGS
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        Ok(Self {
            hardware: hardware(),
            load: load(),
            sync_microseconds: sync_microseconds()?,
            versions: format!(
                "PostgreSQL {version} on both sides, nats-server {} with sync_interval always",
                trellara_local::NatsOptions::default().version
            ),
            settings: settings.join(", "),
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "hardware": self.hardware,
            "load": self.load,
            "sync_microseconds": self.sync_microseconds,
            "versions": self.versions,
            "settings": self.settings,
        })
    }
}

/// The load of the last minute.
pub(super) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

fn hardware() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after_colon = |text: &str, name: &str| {
        text.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(':'))
            .map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = after_colon(&read("/proc/meminfo"), "MemTotal");
    let gib = memory
        .split_whitespace()
        .next()
        .and_then(|kib| kib.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / f64::from(1 << 20));
    format!(
        "{}, {cores} cores, {gib:.0} GiB, Linux {}",
        after_colon(&read("/proc/cpuinfo"), "model name"),
        read("/proc/sys/kernel/osrelease").trim()
    )
}

fn sync_microseconds() -> Result<f64> {
    let mut file: File = tempfile::tempfile()?;
    let block = [0x5a_u8; 8192];
    let mut took = Vec::with_capacity(PROBE_WRITES);
    for _ in 0..PROBE_WRITES {
        file.seek(SeekFrom::Start(0))?;
        let begun = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        took.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    took.sort_by(f64::total_cmp);
    Ok(took[PROBE_WRITES / 2])
}
