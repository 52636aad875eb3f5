//! `trellara quarantine replay` and `discard`: by the applier that holds the lane, or directly.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trellara_applier::lane;
use trellara_applier::quarantine::audit;
use trellara_applier::quarantine::desk::{self, Direct};
use trellara_applier::quarantine::effects::Effect;
use trellara_applier::quarantine::rehearsal::{self, Rehearsed, Would};
use trellara_applier::quarantine::request::{self, Answer, End, Item, Order, Standing, Task};
use trellara_applier::quarantine::{Cause, Held, HeldId, store};
use trellara_applier::rewind::answer_channel;
use trellara_envelope::HaltCode;
use trellara_postgres::{Notification, Session, quote};

use super::{
    LANE, broker_for, cause_line, counted, desk_failure, ledger_failure, open_ones, target,
};
use crate::command::applier;
use crate::config::{Config, duration};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::operator::Operator;
use crate::telemetry::{self, LogFormat};
use crate::{output, visible};

/// Applies held transactions: in order of commit, each as a target transaction of its own.
///
/// Each goes in whole, with its record in the ledger, or not at all; one that waits behind another is
/// taken behind it. The applier does it between two batches; when none holds the lane this command
/// takes the lane for it. Twice, or by two people at once: it is applied once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.held and its frames on the target; the stream, for a large one in front of which
        the lane stands
Writes: rows, ledger, trellara.held and trellara.audit in one target transaction each; with
        --dry-run nothing: it takes the rows' locks for as long as it runs, and is rolled back

Exit codes: 0 all of them are in, or were before; 12 one was refused by the target, or waits behind
            one that was; 13 the flow is paused, or a verify run holds the lane; 20 the applier has
            not taken the order in time; 64 no such transaction; 11 not set up; 77 a right is missing; 78 the file; 1 a
            server does not answer

Examples:
  trellara quarantine replay 7 --dry-run
  trellara quarantine replay 7 9
  trellara quarantine replay --all
  trellara quarantine replay 7 --force --reason \"the later change is repeated by hand\"")]
pub(crate) struct ReplayArgs {
    /// Which ones.
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<i64>,
    /// Everything that is open.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Try it, say what it would do and what still stands in its way, and roll it back.
    #[arg(long)]
    dry_run: bool,
    /// Although a later transaction that touches the same rows is in: older values may come to
    /// stand over newer ones.
    #[arg(long, requires = "reason")]
    force: bool,
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,
    /// Give up waiting for the applier after this long; what it has begun goes on.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

/// Closes a held transaction without applying it.
///
/// The target then lacks what it did: `trellara verify` shows the difference. What waits behind it
/// can be replayed afterwards, and the lane goes on when it stood in front of it. It stays in the
/// target, and can still be replayed while nothing later that touches the same is in.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.held on the target; the stream, for a large one in front of which the lane stands
Writes: trellara.held and trellara.audit in one target transaction; the checkpoint, when the lane
        stood in front of it

Exit codes: 0 it is discarded, or was before; 12 it cannot be; 13 the flow is paused, or a verify
            run holds the lane; 20 the applier has not taken the order in time; 64 no such
            transaction, or not confirmed; 11 not set up; 77 a right is missing; 78 the file; 1 a server does not answer

Examples:
  trellara quarantine discard 7 --reason \"test data, agreed with the owners\"
  trellara quarantine discard 7 --reason \"repeated by hand\" --yes")]
pub(crate) struct DiscardArgs {
    /// Which one.
    #[arg(value_name = "ID")]
    id: i64,
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    /// Without typing its number at the terminal.
    #[arg(long)]
    yes: bool,
    /// Give up waiting for the applier after this long; what it has begun goes on.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

/// A reason that says nothing helps nobody.
fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why".to_owned()),
        text if text.len() > 2000 => Err("more than 2000 bytes".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// How often the lease is renewed, and the lane looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What became of one of them, or would.
#[derive(Serialize)]
struct Outcome {
    id: i64,
    transaction: String,
    /// `replayed`, `already replayed`, `discarded`, `already discarded`, `unknown`, `refused`,
    /// `failed`; of a dry run `would be replayed`, `would be refused`, `would fail`.
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    effects: Vec<TableEffect>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    hint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Refusal>,
}

#[derive(Serialize)]
struct TableEffect {
    id: String,
    inserted: u64,
    updated: u64,
    deleted: u64,
    truncated: u64,
}

#[derive(Serialize)]
struct Refusal {
    sqlstate: String,
    message: String,
    schema: String,
    table: String,
    object: String,
    change: u64,
    #[serde(skip)]
    line: String,
}

pub(super) async fn replay(args: &ReplayArgs, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let ids = (!args.all).then(|| args.ids.iter().map(|id| HeldId(*id)).collect());
    let order = Order {
        task: Task::Replay,
        ids,
        force: args.force,
        reason: args.reason.clone().unwrap_or_default(),
        operator: operator(),
    };
    let mut session = target(&config).await?;
    let about = about(&config, &session, &order).await?;
    if about.is_empty() && order.ids.is_none() {
        context
            .output
            .note(format!("flow {} holds nothing", config.flow));
    }
    let outcomes = if args.dry_run {
        let broker = broker_for(&config, &about).await?;
        let options = applier::options(&config);
        let cancel = CancellationToken::new();
        let tried = rehearsal::rehearse(&options, broker.as_ref(), &order, &cancel).await;
        let tried = tried.map_err(desk_failure)?;
        tried.into_iter().map(Outcome::rehearsed).collect()
    } else {
        give(&config, &mut session, &order, args.timeout, context).await?
    };
    end(&outcomes, context)
}

pub(super) async fn discard(args: &DiscardArgs, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let order = Order {
        task: Task::Discard,
        ids: Some(vec![HeldId(args.id)]),
        force: false,
        reason: args.reason.clone(),
        operator: operator(),
    };
    let mut session = target(&config).await?;
    let about = about(&config, &session, &order).await?;
    if let Some(held) = about
        .first()
        .filter(|held| held.state.is_open() && !args.yes)
    {
        let question = format!(
            "transaction {} with {}, committed at {}, will not be applied to this target.\n\
             Type its number ({}) to discard it:",
            held.identity,
            counted(held.changes, "change"),
            held.identity.commit_lsn,
            held.id
        );
        if !output::typed(&question, &held.id.to_string()) {
            return Err(Failure::new(
                Exit::Usage,
                "not confirmed: nothing was discarded",
                "type its number at the terminal, or give --yes",
            ));
        }
    }
    let outcomes = give(&config, &mut session, &order, args.timeout, context).await?;
    end(&outcomes, context)
}

fn operator() -> audit::Operator {
    let here = Operator::here();
    audit::Operator {
        name: here.name,
        host: here.host,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// What the order is about, as far as it is there.
async fn about(config: &Config, session: &Session, order: &Order) -> Result<Vec<Held>, Failure> {
    let Some(ids) = &order.ids else {
        return open_ones(config, session).await;
    };
    let mut about = Vec::new();
    for id in ids {
        let held = store::get(&session.client, &config.flow, LANE, *id).await;
        match held.map_err(ledger_failure)? {
            Some(held) => about.push(held),
            None => return Err(unknown(config, *id)),
        }
    }
    Ok(about)
}

fn unknown(config: &Config, id: HeldId) -> Failure {
    Failure::new(
        Exit::Usage,
        format!("flow {} holds no transaction {id}", config.flow),
        "trellara quarantine list shows what it holds, with --all also what is closed",
    )
}

/// Gives the order to whoever holds the lane, or works it off when nobody does.
async fn give(
    config: &Config,
    session: &mut Session,
    order: &Order,
    timeout: Duration,
    context: &Context,
) -> Result<Vec<Outcome>, Failure> {
    let token = request::token();
    let mut heard = session
        .take_notifications()
        .ok_or_else(|| Failure::new(Exit::Bug, "the session gave no notifications", ""))?;
    let answers = quote::identifier(&answer_channel(&config.flow));
    let listen = format!("LISTEN {answers}");
    session.client.batch_execute(&listen).await?;
    let giving = Giving {
        config,
        session,
        order,
        token: &token,
        deadline: Instant::now() + timeout,
    };
    let answer = giving.work(&mut heard, context).await;
    // Nobody waits for it any more; an applier that has begun ends what it has begun.
    let _ = request::withdraw(&session.client, &token).await;
    match answer? {
        Answer::Done(items) => Ok(items.into_iter().map(Outcome::of).collect()),
        Answer::NotNow { reason } => Err(Failure::new(Exit::StandsStill, reason, "")),
    }
}

struct Giving<'a> {
    config: &'a Config,
    session: &'a Session,
    order: &'a Order,
    token: &'a str,
    deadline: Instant,
}

impl Giving<'_> {
    async fn work(
        &self,
        heard: &mut mpsc::Receiver<Notification>,
        context: &Context,
    ) -> Result<Answer, Failure> {
        let client = &self.session.client;
        let mut asked = false;
        loop {
            let Some(holder) = lane::holder(client, &self.config.flow, LANE).await? else {
                // Whoever takes the lane is the only one who works the order off, begun or not.
                match self.directly().await? {
                    Direct::Done(items) => return Ok(Answer::Done(items)),
                    Direct::NotNow(reason) => return Ok(Answer::NotNow { reason }),
                    Direct::Held(_) => continue,
                }
            };
            if !asked {
                asked = true;
                let holder = visible::inline(&holder).into_owned();
                context.output.note(format!("asking {holder}"));
                let lane = (&self.config.flow, LANE);
                request::ask(client, lane, self.token, self.order).await?;
            }
            match request::renew(client, self.token).await? {
                Standing::Answered(answer) => return Ok(answer),
                Standing::Begun => {}
                Standing::Waiting => request::wake(client, &self.config.flow).await?,
                Standing::Gone => {
                    let reason = "somebody took the request away";
                    return Err(Failure::new(Exit::Unexpected, reason, "run it again"));
                }
            }
            if Instant::now() >= self.deadline {
                return Err(self.overdue(&holder));
            }
            self.pause(heard).await?;
        }
    }

    async fn directly(&self) -> Result<Direct, Failure> {
        let about = about(self.config, self.session, self.order).await?;
        let broker = broker_for(self.config, &about).await?;
        let options = applier::options(self.config);
        let cancel = CancellationToken::new();
        desk::open(&options, broker.as_ref(), (self.order, self.token), &cancel)
            .await
            .map_err(desk_failure)
    }

    /// Until the answer is there, or it is time to look.
    async fn pause(&self, heard: &mut mpsc::Receiver<Notification>) -> Result<(), Failure> {
        let until = Instant::now() + LOOK_EVERY;
        loop {
            tokio::select! {
                notification = heard.recv() => match notification {
                    Some(one) if request::is_answer(&one.payload, self.token) => return Ok(()),
                    Some(_) => {}
                    None => {
                        let reason = "the connection to the target was lost";
                        let hint = "run it again: what is done already is not done twice";
                        return Err(Failure::new(Exit::Unexpected, reason, hint));
                    }
                },
                () = tokio::time::sleep_until(until) => return Ok(()),
            }
        }
    }

    fn overdue(&self, holder: &str) -> Failure {
        Failure::new(
            Exit::TimedOut,
            format!(
                "{} has not answered in time",
                visible::inline(holder).into_owned()
            ),
            "what it has begun it ends; trellara quarantine list shows what is still open, and \
             trellara status what it does",
        )
    }
}

impl Outcome {
    fn new(id: HeldId, transaction: String, result: &'static str) -> Self {
        Self {
            id: id.0,
            transaction,
            result,
            changes: None,
            effects: Vec::new(),
            reason: String::new(),
            hint: String::new(),
            error: None,
        }
    }

    fn of(item: Item) -> Self {
        let mut outcome = Self::new(item.id, item.transaction, item.end.as_str());
        match item.end {
            End::Replayed { changes } => outcome.changes = Some(changes),
            End::Refused { reason, hint } => (outcome.reason, outcome.hint) = (reason, hint),
            End::Failed { cause } => outcome.failed(cause),
            End::AlreadyReplayed | End::Discarded | End::AlreadyDiscarded | End::Unknown => {}
        }
        outcome
    }

    fn rehearsed(rehearsed: Rehearsed) -> Self {
        let result = match &rehearsed.would {
            Would::Apply(_) => "would be replayed",
            Would::Refuse { .. } => "would be refused",
            Would::Fail(_) => "would fail",
            Would::BeReplayedAlready => "already replayed",
            Would::BeUnknown => "unknown",
        };
        let mut outcome = Self::new(rehearsed.id, rehearsed.transaction, result);
        match rehearsed.would {
            Would::Apply(effects) => outcome.effects = effects.into_iter().map(effect).collect(),
            Would::Refuse { reason, hint } => (outcome.reason, outcome.hint) = (reason, hint),
            Would::Fail(cause) => outcome.failed(*cause),
            Would::BeReplayedAlready | Would::BeUnknown => {}
        }
        outcome
    }

    fn failed(&mut self, cause: Cause) {
        let line = cause_line(&cause);
        self.hint = cause.hint;
        self.error = Some(Refusal {
            sqlstate: cause.sqlstate,
            message: cause.message,
            schema: cause.schema,
            table: cause.table,
            object: cause.object,
            change: cause.change,
            line,
        });
    }

    fn is_well(&self) -> bool {
        self.error.is_none() && self.reason.is_empty() && self.result != "unknown"
    }

    fn lines(&self) -> Vec<String> {
        let mut what = match (self.changes, &self.error) {
            (Some(changes), _) => counted(changes, "change"),
            (None, Some(error)) => error.line.clone(),
            (None, None) => visible::inline(&self.reason).into_owned(),
        };
        if what.is_empty() {
            what.clone_from(&self.transaction);
        }
        let mut lines = vec![format!("{:>6}  {:<18} {what}", self.id, self.result)];
        for effect in &self.effects {
            lines.push(format!("{:>26} {}", "", effect.line()));
        }
        if !self.hint.is_empty() {
            lines.push(format!("{:>26} hint: {}", "", visible::inline(&self.hint)));
        }
        lines
    }
}

fn effect(effect: Effect) -> TableEffect {
    TableEffect {
        id: visible::table(&effect.schema, &effect.table),
        inserted: effect.inserted,
        updated: effect.updated,
        deleted: effect.deleted,
        truncated: effect.truncated,
    }
}

impl TableEffect {
    fn line(&self) -> String {
        let counts = [
            ("inserted", self.inserted),
            ("updated", self.updated),
            ("deleted", self.deleted),
            ("truncated", self.truncated),
        ];
        let said: Vec<String> = counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        format!("{}: {}", self.id, said.join(", "))
    }
}

fn end(outcomes: &[Outcome], context: &Context) -> Result<Exit, Failure> {
    let text = |outcomes: &&[Outcome]| {
        let lines: Vec<String> = outcomes.iter().flat_map(Outcome::lines).collect();
        lines.join("\n")
    };
    if !outcomes.is_empty() || context.output.format != output::Format::Text {
        context.output.data(&outcomes, text);
    }
    let ill = outcomes.iter().filter(|one| !one.is_well()).count();
    match ill {
        0 => Ok(Exit::Done),
        _ => Ok(Exit::Halted(HaltCode::ApplyFailed)),
    }
}
