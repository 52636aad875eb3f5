//! CPU seconds per process, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use tokio_postgres::Client;

/// Ticks per second of `/proc`; 100 on every Linux this runs on, whatever the kernel's own clock.
const TICKS: f64 = 100.0;

/// A part of a contender, or of what it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The source's process that decodes.
    Walsender,
    /// `trellara relay`.
    Relay,
    /// The broker.
    Broker,
    /// `trellara applier`.
    Applier,
    /// The target's process that writes: the apply worker, or the applier's session.
    Apply,
    /// Every other process of the source server.
    Source,
    /// Every other process of the target server.
    Target,
}

impl Role {
    /// All, in the order in which a change passes them.
    pub const ALL: [Role; 7] = [
        Role::Walsender,
        Role::Relay,
        Role::Broker,
        Role::Applier,
        Role::Apply,
        Role::Source,
        Role::Target,
    ];

    /// For tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Walsender => "walsender",
            Role::Relay => "relay",
            Role::Broker => "nats",
            Role::Applier => "applier",
            Role::Apply => "apply",
            Role::Source => "source_rest",
            Role::Target => "target_rest",
        }
    }
}

/// CPU seconds by role.
pub type Cpu = BTreeMap<Role, f64>;

/// A database server whose processes are metered.
#[derive(Debug)]
pub(super) struct Server<'a> {
    /// Process id of the postmaster.
    pub(super) postmaster: u32,
    /// A session of ours, not counted.
    pub(super) admin: &'a Client,
    /// What its rest is called.
    pub(super) rest: Role,
}

/// What a server's processes had used at some moment.
#[derive(Debug)]
pub(super) struct Before {
    own: f64,
    reaped: f64,
    children: BTreeMap<u32, f64>,
}

impl Server<'_> {
    pub(super) fn before(&self) -> Result<Before> {
        let stat = Stat::of(self.postmaster).context("the server has ended")?;
        Ok(Before {
            own: stat.used,
            reaped: stat.reaped,
            children: children(self.postmaster)?,
        })
    }

    /// Adds what was used since `before`; whatever ended meanwhile counts as the rest.
    pub(super) async fn add(&self, before: &Before, cpu: &mut Cpu) -> Result<()> {
        let now = children(self.postmaster)?;
        let stat = Stat::of(self.postmaster).context("the server has ended")?;
        let roles = self.roles().await?;
        let mut rest = stat.used - before.own + stat.reaped - before.reaped;
        for (pid, used) in &before.children {
            if !now.contains_key(pid) {
                rest -= used;
            }
        }
        for (pid, used) in now {
            let since = used - before.children.get(&pid).copied().unwrap_or_default();
            match roles.get(&pid) {
                Some(None) => {}
                Some(Some(role)) => *cpu.entry(*role).or_default() += since,
                None => rest += since,
            }
        }
        *cpu.entry(self.rest).or_default() += rest.max(0.0);
        Ok(())
    }

    /// Processes that are more than the rest; `None` for those that only watch.
    async fn roles(&self) -> Result<BTreeMap<u32, Option<Role>>> {
        let rows = self
            .admin
            .query(
                "SELECT pid, backend_type, application_name FROM pg_catalog.pg_stat_activity",
                &[],
            )
            .await?;
        let mut roles = BTreeMap::new();
        for row in rows {
            let pid: i32 = row.get(0);
            let kind: Option<String> = row.get(1);
            let name: String = row.get::<_, Option<String>>(2).unwrap_or_default();
            let role = match kind.as_deref().unwrap_or_default() {
                "walsender" => Some(Role::Walsender),
                kind if kind.starts_with("logical replication")
                    && kind != "logical replication launcher" =>
                {
                    Some(Role::Apply)
                }
                "client backend" if name.starts_with("trellara applier") => Some(Role::Apply),
                // The relay's questions to the source belong to the rest; what is left is us.
                "client backend" if !name.starts_with("trellara") => None,
                _ => continue,
            };
            roles.insert(pid.unsigned_abs(), role);
        }
        Ok(roles)
    }
}

/// CPU seconds a process has used, with all of its threads; nothing once it has ended.
pub(super) fn used(pid: u32) -> f64 {
    Stat::of(pid).map_or(0.0, |stat| stat.used)
}

/// CPU seconds that children of a process have used, once they have ended.
pub(super) fn reaped(pid: u32) -> f64 {
    Stat::of(pid).map_or(0.0, |stat| stat.reaped)
}

/// CPU seconds that a database server and its processes have used, those that have ended included.
pub(super) fn used_by_server(postmaster: u32) -> f64 {
    let own = Stat::of(postmaster).map_or(0.0, |stat| stat.used + stat.reaped);
    let living = children(postmaster).unwrap_or_default();
    own + living.values().sum::<f64>()
}

/// CPU seconds that all of this machine's processes have used since it was started.
pub(super) fn machine() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let first = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = first
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at));
    Ok(busy.sum::<f64>() / TICKS)
}

fn children(parent: u32) -> Result<BTreeMap<u32, f64>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(stat) = Stat::of(pid)
            && stat.parent == parent
        {
            found.insert(pid, stat.used);
        }
    }
    Ok(found)
}

struct Stat {
    parent: u32,
    used: f64,
    /// Used by children that have ended.
    reaped: f64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name may hold blanks and parentheses; it ends with the last one.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            used: (ticks(11)? + ticks(12)?) / TICKS,
            reaped: (ticks(13)? + ticks(14)?) / TICKS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_stepped_over() {
        let line = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 0 0 150 50 300 25 20 0 1 0 9 8 7";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.parent, stat.used, stat.reaped), (3, 2.0, 3.25));
    }

    #[test]
    fn this_process_has_used_something_of_the_machine() {
        assert!(machine().unwrap() > 0.0);
        assert!(used(std::process::id()) <= machine().unwrap());
    }
}
