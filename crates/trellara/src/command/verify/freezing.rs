//! Getting both databases frozen, and saying what is being waited for meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use trellara_applier::backfill::{CopyState, TableCopy, store};
use trellara_postgres::Session;
use trellara_verify::freeze::{FreezeError, FreezeOptions, Pair, Step, freeze};

use crate::config::Config;
use crate::daemon::signals::Signals;
use crate::daemon_reports::{self, first_halt};
use crate::exit::{Exit, Failure};
use crate::link;
use crate::output::Output;
use crate::survey::{self, PausedFacts};
use crate::verdict::Events;

/// How long the temporary slot may wait for open transactions while the applier stands still.
const SLOT_PATIENCE: Duration = Duration::from_secs(4);
/// How often the daemons are asked whether they halted.
const LOOK: Duration = Duration::from_secs(1);
/// A step that takes longer is told.
const SILENT_FOR: Duration = Duration::from_secs(2);

/// How to freeze the configured databases.
pub(super) fn options(config: &Config, run: &str, patience: Duration) -> FreezeOptions {
    FreezeOptions {
        flow: config.flow.clone(),
        publication: config.source.publication.clone(),
        // Nothing is written there; should that ever change, its commits must not wait for the very
        // standby that somebody may have made of the relay (C10).
        source: config
            .source
            .connect
            .clone()
            .with_parameter("synchronous_commit", "local"),
        target: config.target.connect.clone(),
        run: run.to_owned(),
        patience,
        slot_patience: SLOT_PATIENCE,
    }
}

/// Both sides frozen; a daemon that halts in the meantime ends the wait at once (C54), and so does
/// the first signal. The second does not even wait until the servers are tidy.
pub(super) async fn frozen(
    config: &Config,
    options: &FreezeOptions,
    signals: &mut Signals,
    (output, events): (Output, &Events),
) -> Result<Pair, Failure> {
    let cancel = CancellationToken::new();
    let waiting = Waiting::new(output);
    let steps = |step| {
        if step != Step::Nothing {
            events.step(named(&step));
        }
        waiting.for_a(step);
    };
    let mut freezing = std::pin::pin!(freeze(options, &steps, &cancel));
    // Beside it, because a daemon that does not answer must not hold up the lease.
    let mut halting = std::pin::pin!(halt(config));
    let mut ended = None;
    let frozen = loop {
        tokio::select! {
            frozen = &mut freezing => break frozen,
            signal = signals.next() => {
                if cancel.is_cancelled() {
                    return Err(interrupted(signal));
                }
                ended = Some(interrupted(signal));
                cancel.cancel();
            }
            halt = &mut halting, if ended.is_none() => {
                ended = Some(Failure { exit: Exit::NotCompared, ..halt });
                cancel.cancel();
            }
            () = waiting.tell() => {}
        }
    };
    match (frozen, ended) {
        (Ok(pair), _) => Ok(pair),
        (Err(FreezeError::Cancelled), Some(ended)) => Err(ended),
        (Err(error), _) => Err(failure(&error)),
    }
}

/// Nothing was compared, for this reason.
pub(super) fn failure(error: &FreezeError) -> Failure {
    let exit = match error {
        FreezeError::Bug(_) => Exit::Bug,
        _ => Exit::NotCompared,
    };
    Failure::from_error(exit, error).hint(error.hint())
}

pub(super) fn interrupted(signal: &str) -> Failure {
    Failure::new(Exit::NotCompared, format!("interrupted by {signal}"), "")
}

/// Resolves when a daemon says that it halted, the flow is paused, or a copy is not in: the applier
/// comes to no position then, or the target shows half a table, and something has to happen first.
pub(super) async fn halt(config: &Config) -> Failure {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut target = None;
    loop {
        look.tick().await;
        if let Some(paused) = paused(config, &mut target).await {
            return Failure::new(
                Exit::NotCompared,
                paused.text(),
                "`trellara resume` lets the target go on; then run verify again",
            );
        }
        if let Some(copying) = copying(config, target.as_ref()).await {
            return copying;
        }
        if let Some(halt) = first_halt(&daemon_reports::reachable(config).await) {
            return halt;
        }
    }
}

/// The pause, if there is one. Whoever cannot be asked is asked again: the run itself says what is
/// wrong with the target.
async fn paused(config: &Config, target: &mut Option<Session>) -> Option<PausedFacts> {
    if target
        .as_ref()
        .is_none_or(|session| session.client.is_closed())
    {
        *target = link::target(config).await.ok();
    }
    survey::paused(target.as_ref()?, config)
        .await
        .ok()
        .flatten()
}

/// Why nothing can be compared while a copy is not in. Tables that are in and ahead of the others
/// need no word: the position compared lies behind what their snapshots saw.
async fn copying(config: &Config, target: Option<&Session>) -> Option<Failure> {
    let rows = store::read(&target?.client, &config.flow).await.ok()?;
    let missing: Vec<&TableCopy> = rows.iter().filter(|copy| !copy.state.is_in()).collect();
    let first = missing.first()?;
    let reason = first.reason.as_deref().unwrap_or_default();
    let why = match (first.state, reason) {
        (CopyState::Failed, reason) if !reason.is_empty() => format!("failed: {reason}"),
        (state, _) => state.as_str().to_owned(),
    };
    let others = match missing.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} more"),
    };
    Some(Failure::new(
        Exit::NotCompared,
        format!("the copy of {} is not in ({why}){others}", first.table),
        "`trellara backfill` shows how far it is; run verify again when it is done",
    ))
}

/// Tells each step that takes long, once.
pub(super) struct Waiting {
    output: Output,
    step: Mutex<Option<(Instant, Step)>>,
}

impl Waiting {
    pub(super) fn new(output: Output) -> Self {
        Self {
            output,
            step: Mutex::new(None),
        }
    }

    /// The step began.
    pub(super) fn for_a(&self, step: Step) {
        let step = (step != Step::Nothing).then(|| (Instant::now(), step));
        *self.lock() = step;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Instant, Step)>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after a while whether there is something to tell; cancel safe.
    pub(super) async fn tell(&self) {
        tokio::time::sleep(SILENT_FOR / 8).await;
        let mut step = self.lock();
        if let Some((_, step)) = step.take_if(|(began, _)| began.elapsed() >= SILENT_FOR) {
            self.output.note(told(&step));
        }
    }
}

/// A step's name for programs.
pub(super) fn named(step: &Step) -> &'static str {
    match step {
        Step::Connecting => "connecting",
        Step::AskingApplier => "asking_applier",
        Step::MakingSlot { .. } => "making_slot",
        Step::Reaching { .. } => "reaching",
        Step::Nothing => "frozen",
    }
}

fn told(step: &Step) -> String {
    match step {
        Step::Connecting => "waiting for a session on each side".to_owned(),
        Step::AskingApplier => "waiting for the applier's answer".to_owned(),
        Step::MakingSlot { this, of, blockers } => {
            let last = match blockers.as_slice() {
                [] => String::new(),
                who => format!("; the last one waited for {}", who.join("; ")),
            };
            format!("waiting for open transactions on the source to end, try {this} of {of}{last}")
        }
        Step::Nothing => String::new(),
        Step::Reaching { point } => format!("waiting for the applier to reach {point}"),
    }
}
