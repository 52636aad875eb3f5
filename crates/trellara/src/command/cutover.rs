//! `trellara cutover`: from the source to the target, as one guarded command.
//!
//! Writes stop → everything is applied → sequences → every row is compared → report. Whatever fails
//! leaves the source writable again, as it was.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use trellara_applier::backfill::CopyState;
use trellara_applier::quarantine::store;
use trellara_postgres::writers::{self, Who, Writer};
use trellara_postgres::{Session, insert_position, quote};

use super::table::{self, Margin};
use super::wait::{Goal, until};
use crate::config::{Config, duration};
use crate::context::Context;
use crate::daemon_reports::{self, first_halt};
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};
use crate::{copying, link, output, survey, visible};

/// Brings everything over and proves it, so that applications can go on with the target.
///
/// The source's writes have to have stopped: by your own doing (--writes-stopped), or by this
/// command (--set-read-only: the database's default becomes read-only and its sessions are ended;
/// undone when anything below fails). Then: wait until the target has everything, set its sequences,
/// compare every row. Only when all of that went well it ends with 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  both databases, every row of the published tables; the daemons' endpoints
Writes: with --set-read-only a setting of the source database, whose other sessions are ended;
        sequences on the target; what `verify` writes; a row of trellara.audit on the target

Exit codes: 0 the target has everything, and every row is equal; 3 the databases differ; 4 they
            could not be compared; 5 they differ, explained by quarantine; 11 something is not ready
            (a copy, a pause, held transactions, a sequence); 20 the target did not come to the
            source's position in time, or somebody still writes; 64 not confirmed; 77 a right is
            missing; 10, 11, 12, 13 a daemon halted

Examples:
  trellara cutover --dry-run
  trellara cutover --set-read-only
  trellara cutover --writes-stopped --yes --output json
  psql \"$SOURCE\" -c 'ALTER DATABASE shop RESET default_transaction_read_only'   (back again)")]
pub(crate) struct Args {
    /// Your word that nothing writes to the source any more; sessions that do are looked for.
    #[arg(long)]
    writes_stopped: bool,
    /// Make the source database read-only and end its sessions.
    #[arg(long, conflicts_with = "writes_stopped")]
    set_read_only: bool,
    /// Set sequences so many numbers further than the source's.
    #[arg(long, value_name = "NUMBERS", default_value_t = 0)]
    margin: u32,
    /// How long the target may take to have everything, and verify to begin.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Only look whether everything is ready for it.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for the flow's name to be typed.
    #[arg(long)]
    yes: bool,
}

/// What was done, and what came of it.
#[derive(Debug, Serialize)]
struct Report {
    id: String,
    /// Everything that the source committed before it is in the target.
    lsn: String,
    sequences: Vec<table::Carried>,
    /// `equal`, or what verify said instead.
    verify: String,
    read_only: bool,
    seconds: f64,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let (source, target) = (link::source(&config).await?, link::target(&config).await?);
    let ready = ready(&config, &source, &target).await;
    if args.dry_run {
        ready?;
        let sides = (&source, &target);
        let carried = table::carry_sequences(&config, sides, margin(args), true).await?;
        context.output.data(&carried, |carried| {
            format!(
                "ready for a cut-over; sequences:\n{}",
                table::sequences_text(carried)
            )
        });
        return Ok(Exit::Done);
    }
    ready?;
    confirm(args, &config)?;
    let cut = Cut {
        args,
        context,
        config: &config,
        source: &source,
        target: &target,
    };
    if args.set_read_only {
        cut.read_only(true).await?;
    }
    match Box::pin(cut.over()).await {
        Ok(exit) if exit == Exit::Done => Ok(exit),
        failed if args.set_read_only => {
            let undone = cut.read_only(false).await;
            let note = "the source takes writes again, as before";
            match undone {
                Ok(()) => context.output.note(note),
                Err(failure) => output::alarm(format_args!(
                    "the source is still read-only: {}",
                    failure.causes.join(": ")
                )),
            }
            failed
        }
        failed => failed,
    }
}

fn margin(args: &Args) -> Margin {
    Margin {
        numbers: args.margin,
        backwards: false,
    }
}

fn confirm(args: &Args, config: &Config) -> Result<(), Failure> {
    let usage = |reason: &str, hint: &str| Err(Failure::new(Exit::Usage, reason, hint));
    if !args.writes_stopped && !args.set_read_only {
        let hint = "stop them and give --writes-stopped, or let --set-read-only do it";
        return usage(
            "nobody has said that the source's writes have stopped",
            hint,
        );
    }
    let what = match args.set_read_only {
        true => "makes the source read-only and ends its sessions",
        false => "takes your word that nothing writes to the source",
    };
    let flow = config.flow.as_str();
    let question = format!("This {what}. Type the flow's name, {flow}, to go on:");
    match args.yes || output::typed(&question, flow) {
        true => Ok(()),
        false => usage("not confirmed", "type the flow's name, or give --yes"),
    }
}

/// Everything that would make a cut-over fail later, before anything is stopped for it.
async fn ready(config: &Config, source: &Session, target: &Session) -> Result<(), Failure> {
    let unfit = |reason: String, hint: &str| Failure::new(Exit::Unfit, reason, hint);
    if link::checkpoint(config, target).await?.is_none() {
        return Err(link::not_set_up(config));
    }
    if let Some(halt) = first_halt(&daemon_reports::reachable(config).await) {
        return Err(halt);
    }
    if let Some(paused) = survey::paused(target, config).await? {
        return Err(unfit(paused.text(), "`trellara resume`"));
    }
    let held = store::count_open(&target.client, &config.flow).await?;
    if held > 0 {
        let reason = format!("{held} transaction(s) are held that the target lacks");
        return Err(unfit(reason, "`trellara quarantine list`"));
    }
    let copies = copying::tables(config, target).await?;
    let open = copies
        .iter()
        .find(|copy| !copy.is_over() && !copy.is(CopyState::Loaded));
    if let Some(copy) = open {
        let reason = format!("the copy of {} is {}", copy.id, copy.state);
        return Err(unfit(reason, "`trellara backfill --watch`"));
    }
    let carried = table::carry_sequences(config, (source, target), Margin::NONE, true).await?;
    let stuck = carried
        .iter()
        .find(|one| !one.is_ready() && one.outcome != "would be set");
    if let Some(stuck) = stuck {
        let reason = format!("sequence {} of the target: {}", stuck.id, stuck.outcome);
        return Err(unfit(reason, "`trellara table sequences --dry-run`"));
    }
    Ok(())
}

struct Cut<'a> {
    args: &'a Args,
    context: &'a Context,
    config: &'a Config,
    source: &'a Session,
    target: &'a Session,
}

impl Cut<'_> {
    /// The default of the source's database, for sessions to come, and an end to those that are
    /// there. The relay's walsender and our own stay.
    async fn read_only(&self, on: bool) -> Result<(), Failure> {
        let database = quote::identifier(self.config.source.connect.database());
        let what = match on {
            true => "SET default_transaction_read_only = on",
            false => "RESET default_transaction_read_only",
        };
        // Our own session may have the setting as well.
        let sql = format!("BEGIN READ WRITE; ALTER DATABASE {database} {what}; COMMIT");
        let client = &self.source.client;
        if let Err(error) = client.batch_execute(&sql).await {
            let _ = client.batch_execute("ROLLBACK").await;
            let hint =
                "only the database's owner may: stop the writes yourself and give --writes-stopped";
            return Err(Failure::from(error)
                .doing("cannot change whether the source takes writes")
                .hint(hint));
        }
        let end = "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE datname = current_database() AND backend_type = 'client backend' \
                      AND pid <> pg_backend_pid() AND application_name <> $1) AS ended";
        let ours = format!("trellara-{}", self.config.flow);
        let ended = client.query_one(end, &[&ours]).await;
        let ended = match ended {
            Ok(row) => row.get::<_, i64>(0),
            Err(error) if on => {
                let undone = Box::pin(self.read_only(false)).await;
                let failure = Failure::from(error).doing("cannot end the source's sessions");
                return Err(match undone {
                    Ok(()) => failure.hint("GRANT pg_signal_backend, or stop the writes yourself"),
                    Err(_) => failure.hint("the source is still read-only by default"),
                });
            }
            Err(_) => 0,
        };
        if on {
            let note = format!("source: read-only by default; {ended} session(s) ended");
            self.context.output.note(note);
        }
        Ok(())
    }

    async fn over(&self) -> Result<Exit, Failure> {
        let began = Instant::now();
        let deadline = began + self.args.timeout;
        self.silence(deadline).await?;
        let lsn = self.caught_up(deadline).await?;
        self.context
            .output
            .note(format!("target: has everything up to {lsn}"));
        let sides = (self.source, self.target);
        let margin = margin(self.args);
        let sequences = table::carry_sequences(self.config, sides, margin, false).await?;
        if let Some(stuck) = sequences.iter().find(|one| !one.is_ready()) {
            let reason = format!("sequence {} of the target: {}", stuck.id, stuck.outcome);
            let hint = stuck.reason.clone().unwrap_or_default();
            return Err(Failure::new(Exit::Unfit, reason, visible::inline(&hint)));
        }
        self.context
            .output
            .note(format!("sequences: {} stand right", sequences.len()));
        let (exit, verify) = self.verify().await?;
        if exit == Exit::Done {
            // Whoever wrote after all is found out: it has to be in the target as well.
            self.silence(deadline.max(Instant::now() + Duration::from_secs(1)))
                .await?;
        }
        let report = Report {
            id: self.config.flow.to_string(),
            lsn: lsn.clone(),
            sequences,
            verify,
            read_only: self.args.set_read_only,
            seconds: began.elapsed().as_secs_f64(),
        };
        let arguments =
            json!({ "verify": report.verify, "read_only": report.read_only, "upto": lsn });
        table::record(self.target, self.config, "cut over", &arguments).await?;
        self.context.output.data(&report, text);
        Ok(exit)
    }

    /// Waits until no session has a transaction that writes.
    async fn silence(&self, deadline: Instant) -> Result<(), Failure> {
        loop {
            let writers = writers::writers(self.source).await?;
            let applications = |writer: &&Writer| {
                let writes = match writer.who {
                    Who::Backend { client, .. } => client,
                    Who::Prepared { .. } => true,
                };
                writer.here && writes
            };
            let who = writers::named(writers.iter().filter(applications));
            if who.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let reason = format!(
                    "somebody still writes to the source: {}",
                    visible::inline(&who)
                );
                return Err(Failure::new(
                    Exit::TimedOut,
                    reason,
                    "end them, and run this again",
                ));
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Until the target has what the source had when it fell silent.
    async fn caught_up(&self, deadline: Instant) -> Result<String, Failure> {
        let lsn = insert_position(self.source).await?;
        let history = link::history(self.config).await?;
        let goal = Goal { lsn, history };
        let newest = until(self.config, self.target, &goal, deadline).await?;
        match goal.reached_by(&newest) {
            true => Ok(lsn.to_string()),
            false => {
                let reason = format!(
                    "the target has not reached {lsn} within {:?}",
                    self.args.timeout
                );
                let hint = "`trellara status` shows where it stands";
                Err(Failure::new(Exit::TimedOut, reason, hint))
            }
        }
    }

    /// As `trellara verify` says it, run with the same file and environment; its report goes to
    /// stderr, so that stdout has ours alone.
    async fn verify(&self) -> Result<(Exit, String), Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::from_error(Exit::Unexpected, &error))?;
        let seconds = format!("{}s", self.args.timeout.as_secs().max(1));
        let mut command = tokio::process::Command::new(program);
        command
            .arg("--config")
            .arg(&self.context.config_path)
            .args(["--quiet", "verify", "--timeout", &seconds])
            .kill_on_drop(true);
        let ran = command.output().await.map_err(|error| {
            Failure::from_error(Exit::Unexpected, &error).doing("cannot verify")
        })?;
        for said in [ran.stdout, ran.stderr] {
            let said = String::from_utf8_lossy(&said).into_owned();
            if !said.trim().is_empty() {
                self.context.output.note(said.trim_end());
            }
        }
        Ok(match ran.status.code() {
            Some(0) => (Exit::Done, "equal".to_owned()),
            Some(3) => (Exit::Different, "different".to_owned()),
            Some(5) => (Exit::Explained, "explained by quarantine".to_owned()),
            _ => (Exit::NotCompared, "could not compare".to_owned()),
        })
    }
}

fn text(report: &Report) -> String {
    let mut lines = vec![
        format!("flow {}: cut over at {}", report.id, report.lsn),
        format!("  verify     {}", report.verify),
        format!("  sequences  {} stand right", report.sequences.len()),
    ];
    lines.push(match (report.verify.as_str(), report.read_only) {
        ("equal", true) => "  source     read-only by default".to_owned(),
        ("equal", false) => "  source     as it was".to_owned(),
        _ => "  the target is not fit to go on with".to_owned(),
    });
    if report.verify == "equal" {
        lines.push(
            "next: point applications at the target; then stop the daemons and `trellara remove`"
                .to_owned(),
        );
    }
    lines.join("\n")
}
