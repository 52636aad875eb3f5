//! `trellara quarantine`: the desk of whoever looks after what the target refused.

mod desk;
mod list;
mod log;
mod show;

use trellara_applier::ledger::LedgerError;
use trellara_applier::quarantine::desk::DeskError;
use trellara_applier::quarantine::{Cause, Held, HeldStorage, store};
use trellara_envelope::{CommitTime, Lane};
use trellara_jetstream::Broker;
use trellara_postgres::Session;

use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::inspect::time;
use crate::{broker, link, visible};

/// The only lane there is in strict mode.
const LANE: Lane = Lane(0);

/// Looks at transactions that the target refused, replays them or discards them.
///
/// A transaction that cannot be applied for a lasting cause is kept whole in the target. Mend the
/// cause, try it with `replay --dry-run`, then replay it: in order, once in effect, and also when the
/// stream has long been trimmed. Every deed is recorded and can be neither changed nor removed.
#[derive(Debug, clap::Subcommand)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "\
Reads:  trellara.held and what belongs to it on the target
Writes: replay and discard alone: rows, ledger and audit on the target, through the applier that
        holds the lane, or directly when none does

Examples:
  trellara quarantine list
  trellara quarantine show 7 --values
  trellara quarantine replay 7 --dry-run
  trellara quarantine replay --all")]
pub(crate) enum Command {
    List(list::Args),
    Show(show::Args),
    Replay(desk::ReplayArgs),
    Discard(desk::DiscardArgs),
    Log(log::Args),
}

pub(crate) async fn execute(command: &Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::List(args) => list::execute(args, context).await,
        Command::Show(args) => show::execute(args, context).await,
        Command::Replay(args) => desk::replay(args, context).await,
        Command::Discard(args) => desk::discard(args, context).await,
        Command::Log(args) => log::execute(args, context).await,
    }
}

/// A session on a target in which the flow is set up.
async fn target(config: &Config) -> Result<Session, Failure> {
    let target = link::target(config).await?;
    match link::checkpoint(config, &target).await? {
        Some(_) => Ok(target),
        None => Err(link::not_set_up(config)),
    }
}

/// The broker, when any of these is in the stream alone.
async fn broker_for(config: &Config, held: &[Held]) -> Result<Option<Broker>, Failure> {
    let wanted = held.iter().any(|held| held.storage == HeldStorage::Stream);
    match wanted {
        true => broker::connect(config, broker::Role::Quarantine)
            .await
            .map(Some),
        false => Ok(None),
    }
}

/// What is open on the lane.
async fn open_ones(config: &Config, target: &Session) -> Result<Vec<Held>, Failure> {
    let listed = store::list(&target.client, &config.flow, LANE, store::Which::Open).await;
    listed.map_err(ledger_failure)
}

fn ledger_failure(error: LedgerError) -> Failure {
    match error {
        LedgerError::Server(error) => error.into(),
        LedgerError::Inconsistent(halt) => halt.into(),
    }
}

fn desk_failure(error: DeskError) -> Failure {
    match error {
        DeskError::Halted(halt) => halt.into(),
        DeskError::Passing(reason) => Failure::new(
            Exit::Unexpected,
            reason,
            "run it again: what is done already is not done twice",
        ),
    }
}

/// Microseconds since the Unix epoch as text.
fn at(us: i64) -> String {
    time::text(CommitTime(us - CommitTime::UNIX_OFFSET_US))
}

/// `1 change`, `2 changes`.
fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The error in one line: SQLSTATE, message, place.
fn cause_line(cause: &Cause) -> String {
    let mut line = String::new();
    if !cause.sqlstate.is_empty() {
        line.push_str(&cause.sqlstate);
        line.push(' ');
    }
    line.push_str(&visible::inline(&cause.message));
    if !cause.table.is_empty() {
        line.push_str(&format!(
            " ({}",
            visible::table(&cause.schema, &cause.table)
        ));
        if cause.change > 0 {
            line.push_str(&format!(", change {}", cause.change));
        }
        line.push(')');
    }
    line
}
