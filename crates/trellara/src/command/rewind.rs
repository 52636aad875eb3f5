//! `trellara rewind`: reads the stream again; the ledger skips what is applied.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use trellara_applier::channel;
use trellara_applier::rewind::{Answer, Place, Report, Request, answer_channel};
use trellara_envelope::FlowName;
use trellara_postgres::{Notification, Session, quote};

use crate::config::{Config, duration};
use crate::context::Context;
use crate::daemon_reports::{self, first_halt};
use crate::exit::{Exit, Failure};
use crate::link;
use crate::telemetry::{self, LogFormat};

/// Moves the running applier back to an earlier place of the stream.
///
/// Everything from there to where it stands is delivered once more, looked up in the target's ledger,
/// and skipped because it was applied. A transaction that is not there, and whose row was not pruned,
/// halts the applier (DIVERGED): the rewind is also a proof that the target has applied what the
/// stream says. Nothing new is applied while it runs, about 7 seconds per million transactions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the stream, through the applier; the target's ledger
Writes: nothing; it sends NOTIFY trellara_<flow> on the target, for which no right is needed

Exit codes: 0 done; 64 no such place; 20 no applier answers, or it takes longer; 10, 11, 12, 13,
            77 the applier halted; 1 it could not do it, or the target does not answer

Examples:
  trellara rewind --to oldest
  trellara rewind --to 16/B374D848
  trellara rewind --to oldest --timeout 1h --output json")]
pub(crate) struct Args {
    /// `oldest`, the sequence of a frame, or an LSN: the first frame that reaches it.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    to: Place,
    /// Give up waiting after this long; what was begun goes on.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

fn place(text: &str) -> Result<Place, String> {
    Place::parse(text)
        .ok_or_else(|| "not `oldest`, a sequence, or an LSN such as 16/B374D848".to_owned())
}

/// How often the request is repeated, and the daemons are asked whether they halted.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Rewound {
    id: String,
    first_sequence: u64,
    last_sequence: u64,
    frames: u64,
    transactions: u64,
    /// Transactions that were applied before: the two below together.
    skipped: u64,
    /// Those that the ledger holds.
    confirmed_in_ledger: u64,
    /// Those whose ledger rows were pruned: only their place says so.
    below_watermark: u64,
    rows_written: u64,
    probes: u64,
    ledger_rows_read: u64,
    seconds: f64,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let mut target = link::target(&config).await?;
    if link::checkpoint(&config, &target).await?.is_none() {
        return Err(link::not_set_up(&config));
    }
    let report = ask(&config, &mut target, args, context).await?;
    if report.frames == 0 {
        context.output.note(
            "the stream holds nothing from before the applied position: all of it was purged",
        );
    }
    context.output.data(&rewound(&config.flow, report), text);
    Ok(Exit::Done)
}

/// Listens first, then asks, then waits for the end.
async fn ask(
    config: &Config,
    target: &mut Session,
    args: &Args,
    context: &Context,
) -> Result<Report, Failure> {
    let mut heard = target
        .take_notifications()
        .ok_or_else(|| Failure::new(Exit::Bug, "the session gave no notifications", ""))?;
    let token = format!("{:016x}{:016x}", rand::random::<u64>(), std::process::id());
    let answers = quote::identifier(&answer_channel(&config.flow));
    target
        .client
        .batch_execute(&format!("LISTEN {answers}"))
        .await?;
    let (to, timeout) = (args.to, args.timeout);
    let request = Request { to, token };
    let asking = Asking {
        config,
        target,
        request,
        deadline: Instant::now() + timeout,
    };
    let mut began = false;
    loop {
        match asking.next(&mut heard, began).await? {
            Some(Answer::Began { first, until }) => {
                began = true;
                let words = format!("reading sequences {first} to {until} again");
                context.output.note(words);
            }
            Some(Answer::Done(report)) => return Ok(report),
            Some(Answer::Refused { reason }) => {
                let hint = "`trellara inspect` shows what the stream holds, `trellara status` where \
                            the target stands";
                return Err(Failure::new(Exit::Usage, reason, hint));
            }
            Some(Answer::Failed { reason }) => return Err(failed(config, &reason).await),
            None => return Err(overdue(&config.flow, began, timeout)),
        }
    }
}

struct Asking<'a> {
    config: &'a Config,
    target: &'a Session,
    request: Request,
    deadline: Instant,
}

impl Asking<'_> {
    /// The next answer to our token; `None` when the time is over. Until the first one the request
    /// is sent again and again: an applier that is just starting does not listen yet, and one that
    /// has heard it knows the token.
    async fn next(
        &self,
        heard: &mut mpsc::Receiver<Notification>,
        began: bool,
    ) -> Result<Option<Answer>, Failure> {
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                notification = heard.recv() => {
                    let Some(notification) = notification else {
                        let reason = "the connection to the target was lost";
                        return Err(Failure::new(Exit::Unexpected, reason, "run it again"));
                    };
                    let token = &self.request.token;
                    if let Some(answer) = Answer::parse(&notification.payload, token) {
                        return Ok(Some(answer));
                    }
                }
                () = tokio::time::sleep_until(self.deadline) => return Ok(None),
                _ = look.tick() => {
                    if !began {
                        self.send().await?;
                    }
                    let reports = daemon_reports::reachable(self.config).await;
                    if let Some(halt) = first_halt(&reports) {
                        return Err(halt);
                    }
                }
            }
        }
    }

    async fn send(&self) -> Result<(), Failure> {
        let (channel, payload) = (channel(&self.config.flow), self.request.payload());
        let client = &self.target.client;
        client
            .execute("SELECT pg_notify($1, $2)", &[&channel, &payload])
            .await?;
        Ok(())
    }
}

/// The applier's own words; the exit code of its halt, when it halted.
async fn failed(config: &Config, reason: &str) -> Failure {
    let halt = trellara_envelope::HaltCode::ALL
        .into_iter()
        .find(|code| reason.starts_with(&format!("{}:", code.as_str())));
    if let Some(halt) = first_halt(&daemon_reports::reachable(config).await) {
        return halt;
    }
    let exit = halt.map_or(Exit::Unexpected, Exit::Halted);
    Failure::new(
        exit,
        format!("the applier did not get to its old place: {reason}"),
        "`trellara status` shows its state",
    )
}

fn overdue(flow: &FlowName, began: bool, timeout: Duration) -> Failure {
    if began {
        let reason =
            format!("the applier of flow {flow} has not come to its old place in {timeout:?}");
        return Failure::new(
            Exit::TimedOut,
            reason,
            "it goes on by itself; its log says when it has passed",
        );
    }
    let reason = format!("no applier of flow {flow} answered within {timeout:?}");
    Failure::new(
        Exit::TimedOut,
        reason,
        "is one running on this target? `trellara status` shows who holds the lane",
    )
}

fn rewound(flow: &FlowName, report: Report) -> Rewound {
    Rewound {
        id: flow.to_string(),
        first_sequence: report.first,
        last_sequence: report.until,
        frames: report.frames,
        transactions: report.transactions,
        skipped: report.confirmed + report.below_watermark,
        confirmed_in_ledger: report.confirmed,
        below_watermark: report.below_watermark,
        rows_written: report.rows_written,
        probes: report.probes,
        ledger_rows_read: report.rows_read,
        seconds: report.milliseconds as f64 / 1000.0,
    }
}

fn text(rewound: &Rewound) -> String {
    let lines = [
        (
            "sequences",
            format!("{} to {}", rewound.first_sequence, rewound.last_sequence),
        ),
        ("frames", rewound.frames.to_string()),
        ("transactions", rewound.transactions.to_string()),
        ("skipped, applied before", rewound.skipped.to_string()),
        (
            "found in the ledger",
            rewound.confirmed_in_ledger.to_string(),
        ),
        ("below the watermark", rewound.below_watermark.to_string()),
        ("rows written", rewound.rows_written.to_string()),
        ("probes of the ledger", rewound.probes.to_string()),
        ("ledger rows read", rewound.ledger_rows_read.to_string()),
        ("seconds", format!("{:.1}", rewound.seconds)),
    ];
    lines
        .map(|(name, value)| format!("  {name:<24} {value:>12}"))
        .join("\n")
}
