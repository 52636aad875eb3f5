//! `trellara wait`: until the target has it.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use trellara_applier::{CHECKPOINT_NOW, Checkpoint, channel};
use trellara_envelope::{Lsn, SourceHistory};
use trellara_postgres::{Session, insert_position, quote};

use crate::config::{Config, duration};
use crate::context::Context;
use crate::copying::{self, Standing};
use crate::daemon_reports::{self, first_halt};
use crate::exit::{Exit, Failure};
use crate::link;
use crate::survey;
use crate::telemetry::{self, LogFormat};

/// Waits until the target has durably applied the source's present position.
///
/// Everything committed on the source before this command began is then in the target, what is
/// copied included.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the source's timelines and WAL position (not with --lsn); the target's checkpoint; the
        daemons' endpoints
Writes: nothing; it sends NOTIFY trellara_<flow> on the target, so that an idle applier writes its
        checkpoint at once

Exit codes: 0 applied; 20 timed out; 11 a table cannot be copied; 10, 11, 12, 13, 77 a daemon
            halted; 1 a server does not answer

Examples:
  trellara wait
  trellara wait --timeout 10m
  trellara wait --lsn 16/B374D848 --output json")]
pub(crate) struct Args {
    /// Wait for this position instead of the source's present one.
    #[arg(long, value_name = "LSN")]
    lsn: Option<Lsn>,
    /// Give up after this long.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,
}

/// How often the checkpoint is read: an index lookup, and a person notices no less.
const POLL: Duration = Duration::from_millis(50);
/// How often the applier is reminded and the daemons are asked whether they halted.
const REMIND: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Waited {
    id: String,
    lsn: String,
    lsn_applied: Option<String>,
    reached: bool,
    seconds: f64,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let began = Instant::now();
    let target = link::target(&config).await?;
    let lsn = match args.lsn {
        Some(lsn) => lsn,
        None => insert_position(&link::source(&config).await?).await?,
    };
    if let Some(paused) = survey::paused(&target, &config).await? {
        // Somebody may resume it in time.
        let paused = paused.text();
        context
            .output
            .note(format!("{paused}\nhint: `trellara resume`"));
    }
    // Behind the position: what is promoted in between is then noticed.
    let history = link::history(&config).await?;
    let goal = Goal { lsn, history };
    let newest = until(&config, &target, &goal, began + args.timeout).await?;
    let standing = copying::standing(&config, &target).await?;
    let reached = goal.reached_by(&newest) && matches!(standing, Standing::In);
    let waited = Waited {
        id: config.flow.to_string(),
        lsn: lsn.to_string(),
        lsn_applied: Some(newest.end_lsn.to_string()),
        reached,
        seconds: began.elapsed().as_secs_f64(),
    };
    context.output.data(&waited, |waited| {
        let applied = waited.lsn_applied.as_deref().unwrap_or("nothing");
        format!(
            "waited for {}: applied {applied} after {:.1} s",
            waited.lsn, waited.seconds
        )
    });
    if reached {
        return Ok(Exit::Done);
    }
    let reason = format!("the target has not reached {lsn} within {:?}", args.timeout);
    let hint = "`trellara status` shows where it stands";
    let failure = Failure::new(Exit::TimedOut, reason, hint);
    match standing {
        Standing::In => Err(failure),
        Standing::Coming(what) => {
            Err(failure.hint(format!("{what}: `trellara backfill` shows how far it is")))
        }
        Standing::Stuck(stuck) => Err(stuck),
    }
}

/// A position on the source's present course: the same number names another place on a timeline
/// that was left before it, and in another cluster.
pub(super) struct Goal {
    pub(super) lsn: Lsn,
    pub(super) history: SourceHistory,
}

impl Goal {
    pub(super) fn reached_by(&self, checkpoint: &Checkpoint) -> bool {
        checkpoint.end_lsn >= self.lsn
            && self
                .history
                .continues(checkpoint.source, checkpoint.end_lsn)
    }
}

/// Waits for the goal until `deadline`; the checkpoint seen last.
pub(super) async fn until(
    config: &Config,
    target: &Session,
    goal: &Goal,
    deadline: Instant,
) -> Result<Checkpoint, Failure> {
    let notify = format!(
        "NOTIFY {}, {}",
        quote::identifier(&channel(&config.flow)),
        quote::literal(CHECKPOINT_NOW)
    );
    let mut remind = tokio::time::interval(REMIND);
    let mut poll = tokio::time::interval(POLL);
    loop {
        tokio::select! {
            // The daemons are asked before the first look: one that halted has the last word.
            biased;
            _ = remind.tick() => {
                target.client.batch_execute(&notify).await?;
                if let Some(halt) = first_halt(&daemon_reports::reachable(config).await) {
                    return Err(halt);
                }
            }
            _ = poll.tick() => {
                let newest = link::checkpoint(config, target).await?;
                let newest = newest.ok_or_else(|| link::not_set_up(config))?;
                // The lane may stand there already while rows from before are still to come.
                let is_in = match copying::standing(config, target).await? {
                    Standing::In => true,
                    Standing::Coming(_) => false,
                    Standing::Stuck(stuck) => return Err(stuck),
                };
                if (is_in && goal.reached_by(&newest)) || Instant::now() >= deadline {
                    return Ok(newest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trellara_applier::{StreamIdentity, Transport};
    use trellara_envelope::{
        FrameDigest, FrameOrdinal, Incarnation, LedgerOrdinal, SourceId, StreamSequence, SystemId,
        Timeline,
    };

    use super::*;

    fn at(system: u64, timeline: u32, end: u64) -> Checkpoint {
        Checkpoint {
            ordinal: LedgerOrdinal(1),
            source: SourceId {
                system: SystemId(system),
                timeline: Timeline(timeline),
            },
            end_lsn: Lsn(end),
            transaction_end_lsn: Lsn(end),
            transport: Transport {
                stream: StreamIdentity {
                    name: "s".to_owned(),
                    created: "then".to_owned(),
                },
                sequence: StreamSequence(1),
                incarnation: Incarnation(1),
                ordinal: FrameOrdinal(1),
                digest: FrameDigest([7; 16]),
            },
        }
    }

    #[test]
    fn a_position_counts_only_on_the_sources_own_course() {
        let goal = Goal {
            lsn: Lsn(0x500),
            history: SourceHistory {
                system: SystemId(1),
                timeline: Timeline(2),
                switches: vec![(Timeline(1), Lsn(0x550))],
            },
        };
        assert!(!goal.reached_by(&at(1, 2, 0x4ff)));
        assert!(goal.reached_by(&at(1, 2, 0x500)));
        assert!(goal.reached_by(&at(1, 1, 0x550)), "before the switch");
        assert!(!goal.reached_by(&at(1, 1, 0x600)), "beyond the switch");
        assert!(!goal.reached_by(&at(7, 2, 0x600)), "another cluster");
    }
}
