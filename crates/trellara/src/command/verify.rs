//! `trellara verify`: the independent judge.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use trellara_verify::report::{self, DigestLane, Report, Verdict};
use trellara_verify::store::OldRun;
use trellara_verify::{
    CompareOptions, PauseLag, Quarantine, TablePattern, VerifyError, VerifyErrorKind, compare,
};

use crate::config::{Config, bytes, duration};
use crate::context::Context;
use crate::daemon::endpoint::Text;
use crate::daemon::signals::Signals;
use crate::exit::{Exit, Failure};
use crate::file::Reserved;
use crate::output::{self, Format, Output};
use crate::telemetry::{self, LogFormat};
use crate::verdict::progress::Bars;
use crate::verdict::{self, Circumstances, Events};
use crate::visible;

use record::Record;

mod freezing;
mod record;
mod rolling;

/// Compares every row of both databases at one and the same position of the source.
///
/// The flow goes on meanwhile: the applier stands still for some milliseconds, until both databases
/// are frozen in snapshots of the same position. What is said is about that position: equal,
/// different, or not compared. Nothing is ever repaired by this command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Modes:  exact  every row, in snapshots that are held until the end
        rolling  piece by piece, as the databases are; a piece that differs is compared again in
               snapshots that live for a moment, so nothing is called different that is not
        watch  rolling again and again, until SIGTERM or SIGINT; what is in the way is told and
               tried again; at most 16 MiB a second unless --max-rate says otherwise
        quick  in such snapshots too: the number of rows of every table, and the contents of 1 % of
               its pieces (or --sample); it never says \"equal\"

Reads:  every row of every published table, on both sides (or what --tables and --sample leave)
Writes: trellara.fence on the target, for as long as the applier stands still; a temporary slot on
        the source, for as long; the result in trellara.verify_run and verify_table on the target

Exit codes: 0 equal; 1 an error that belongs to none of the others; 3 different; 4 could not compare, all or in part, or no difference in what was
            looked at, which was not everything; 5 what differs is explained by transactions in
            quarantine; 64, 78 wrong arguments or file; 70 a fault of Trellara

Examples:
  trellara verify
  trellara verify --output json | jq '.tables[] | {id, outcome}'
  trellara verify --html report.html
  trellara verify --mode rolling --pause-lag 64MiB
  trellara verify --mode watch --every 1h --output ndjson
  trellara verify --mode quick --tables 'public.order*'
  trellara verify --max-rate 32MiB --pause-lag 64MiB --statement-timeout 10s
  trellara verify --values --max-diffs 20")]
pub(crate) struct Args {
    /// How much is looked at, and how.
    #[arg(long, value_enum, default_value_t = Mode::Exact)]
    mode: Mode,
    /// Compare only these tables; the others are named in the verdict. A pattern is schema.table,
    /// or a table in any schema; * stands for any characters, ? for one. Can be given repeatedly.
    #[arg(long, value_name = "PATTERN")]
    tables: Vec<TablePattern>,
    /// Compare only this share of each table's pieces, another one in each run; at least one piece.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    sample: Option<f64>,
    /// Go on with a rolling run that ended before it was through, with the same options.
    #[arg(long, value_name = "RUN")]
    resume: Option<String>,
    /// Time from the start of a round of --mode watch to that of the next.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    every: Duration,
    /// Print the values of rows that differ. They are data: mind where the output goes.
    #[arg(long)]
    values: bool,
    /// List at most this many rows of each table that differ; all of them are counted.
    #[arg(long, value_name = "ROWS", default_value_t = 10_000)]
    max_diffs: usize,
    /// Readers on each side. A run takes up to twice as many sessions there, and five more.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// What rows are digested by.
    #[arg(long, value_enum, value_name = "LANE", default_value_t = Lane::Row64)]
    lane: Lane,
    /// Read at most so many bytes a second on each side, such as 32MiB; guessed from the sizes of
    /// the tables on the source. Snapshots are held for as much longer.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    max_rate: Option<u64>,
    /// Read nothing while the target is more bytes of WAL behind the source than this.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pause_lag: Option<u64>,
    /// End a statement that takes longer. A range of keys is then halved, down to 1000 rows.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    statement_timeout: Option<Duration>,
    /// How long the applier may take to come to the source's position.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    timeout: Duration,
    /// Write the report as one self-contained page, too.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write metrics in Prometheus' text form, for a collector that reads files; of a watch, after
    /// each round.
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// Serve the same at http://ADDR/metrics for as long as a watch goes on.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Write SQL that would make the target equal, for somebody to read and run. It holds rows.
    #[arg(long, value_name = "FILE")]
    repair_sql: Option<PathBuf>,
    /// Let that SQL delete rows that the target alone has, instead of only naming them.
    #[arg(long, requires = "repair_sql")]
    delete_extra: bool,
}

/// The way a row's digest is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Lane {
    /// A 64-bit hash that the databases compute: finds faults, and little travels.
    Row64,
    /// BLAKE3 of the row's text, computed here: a proof. Every row travels, from both sides.
    Blake3,
}

impl From<Lane> for DigestLane {
    fn from(lane: Lane) -> Self {
        match lane {
            Lane::Row64 => Self::Row64,
            Lane::Blake3 => Self::Blake3,
        }
    }
}

/// How much is looked at, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Mode {
    /// Every row, at one position.
    Exact,
    /// Every row, piece by piece, each at a position of its own.
    Rolling,
    /// The same again and again.
    Watch,
    /// The numbers of rows and a sample of their contents, at one position.
    Quick,
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::Exact => "exact",
            Mode::Rolling => "rolling",
            Mode::Watch => "watch",
            Mode::Quick => "quick",
        }
    }

    fn reported(self) -> report::Mode {
        match self {
            Mode::Exact => report::Mode::Exact,
            Mode::Rolling => report::Mode::Rolling,
            Mode::Watch => report::Mode::Watch,
            Mode::Quick => report::Mode::Quick,
        }
    }
}

impl Args {
    fn watches(&self) -> bool {
        self.mode == Mode::Watch
    }
}

/// What `--mode watch` reads a second when nobody says otherwise.
const WATCH_RATE_BYTES: u64 = 16 << 20;

/// What `--mode quick` compares of each table.
const QUICK_SAMPLE: f64 = 0.01;

/// A share from a number of per cent.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>();
    match number {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("not a number above 0 and up to 100".to_owned()),
    }
}

/// How to compare.
fn options(args: &Args, config: &Config, run: &str) -> CompareOptions {
    let quick = args.mode == Mode::Quick;
    CompareOptions {
        values: args.values || args.repair_sql.is_some(),
        recipes: args.repair_sql.is_some(),
        max_diffs: args.max_diffs,
        jobs: usize::from(args.jobs),
        tables: args.tables.clone(),
        sample: args.sample.or(quick.then_some(QUICK_SAMPLE)),
        count: quick,
        rate_bytes_per_second: args.max_rate.or(args.watches().then_some(WATCH_RATE_BYTES)),
        pause: args.pause_lag.map(|bytes| PauseLag {
            flow: config.flow.clone(),
            bytes,
        }),
        statement_timeout: args.statement_timeout,
        lane: args.lane.into(),
        ..CompareOptions::new(run, &config.source.publication, rand::random())
    }
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    if args.listen.is_some() && !args.watches() {
        return Err(Failure::new(
            Exit::Usage,
            "--listen is for --mode watch: nothing else goes on long enough to be asked",
            "--metrics-file writes the same numbers after a run",
        ));
    }
    let config = context.config()?;
    let started = std::time::SystemTime::now();
    let run = format!("{:016x}", rand::random::<u64>());
    let html = args.html.as_deref();
    let html = html
        .map(|path| Reserved::at(path, args.values))
        .transpose()?;
    if let Some(metrics) = &args.metrics_file {
        // That it can be written is known before anything is compared.
        drop(Reserved::at(metrics, false)?);
    }
    let repair = args.repair_sql.as_deref();
    let repair = repair.map(|path| Reserved::at(path, true)).transpose()?;
    let mut signals = Signals::new()?;
    let mut options = options(args, &config, &run);
    let (record, old) = record(args, &config, &mut options, context.output).await?;
    let run = options.run.clone();
    let circumstances = Circumstances::here(config.flow.as_str(), args.values);
    let events = Events::new(context.output, &run, args.values);
    let look = Look {
        config: &config,
        options: &options,
        circumstances: &circumstances,
        events: &events,
        output: context.output,
        started,
    };
    let looked = look.at(args, &mut signals, (&record, old.as_ref())).await;
    let (report, exit, stopped) = match looked {
        Ok(looked) => looked,
        Err(failure) => {
            record.fail(&failure.causes.join(": ")).await;
            return Err(failure);
        }
    };
    match &stopped {
        Some(reason) => {
            record.fail(reason).await;
            let how = format!("trellara verify --mode rolling --resume {run} goes on with it");
            context.output.note(how);
        }
        None => record.finish(&report, &circumstances).await,
    }
    let document = verdict::of(&report, &circumstances);
    match context.output.format {
        Format::Ndjson => events.verdict(&document),
        Format::Text | Format::Json => context.output.data(&document, verdict::text),
    }
    if let Some(metrics) = &args.metrics_file {
        verdict::metrics::write(metrics, &report, config.flow.as_str())?;
    }
    if let Some(html) = html {
        html.write(verdict::page(&document).as_bytes())?;
    }
    if let Some(file) = repair {
        let repair = verdict::repair::of(&report, args.delete_extra);
        file.write(repair.sql.as_bytes())?;
        for refused in &repair.refused {
            output::alarm(format_args!(
                "warning: not repaired: {}",
                visible::inline(refused)
            ));
        }
    }
    Ok(exit)
}

fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Equal => Exit::Done,
        Verdict::Different => Exit::Different,
        Verdict::Explained => Exit::Explained,
        Verdict::NoneFound | Verdict::CouldNotCompare => Exit::NotCompared,
    }
}

/// A look at both databases, and who hears of it.
struct Look<'a> {
    config: &'a Config,
    options: &'a CompareOptions,
    circumstances: &'a Circumstances,
    events: &'a Events,
    output: Output,
    started: std::time::SystemTime,
}

/// The run's record: a new one, or that of a run to go on with, and what that had seen.
async fn record(
    args: &Args,
    config: &Config,
    options: &mut CompareOptions,
    output: Output,
) -> Result<(Record, Option<OldRun>), Failure> {
    let Some(run) = &args.resume else {
        let record = Record::begin(config, args, options, output).await;
        return Ok((record, None));
    };
    let usage = |reason: String, hint: &str| Failure::new(Exit::Usage, reason, hint);
    if args.mode != Mode::Rolling {
        return Err(usage(
            format!(
                "a run of --mode {} cannot be gone on with",
                args.mode.word()
            ),
            "its snapshots are gone; --tables restricts a new run to what was not finished",
        ));
    }
    let resumed = Record::resume(config, run, output).await;
    let (record, old) = resumed.map_err(not_compared)?;
    (options.run, options.seed) = (run.clone(), old.seed);
    let asked = record::asked_for(options);
    if old.mode != args.mode.word() || old.options != asked {
        let reason = format!(
            "run {run} is another one: --mode {}, {}; not --mode {}, {asked}",
            old.mode,
            old.options,
            args.mode.word()
        );
        record.fail(&reason).await;
        return Err(usage(
            reason,
            "give it the same options, or begin a new run",
        ));
    }
    Ok((record, Some(old)))
}

impl Look<'_> {
    /// In the mode asked for: the report, how to exit, and why it ended before it was through.
    async fn at(
        &self,
        args: &Args,
        signals: &mut Signals,
        (record, old): (&Record, Option<&OldRun>),
    ) -> Result<(Report, Exit, Option<String>), Failure> {
        match args.mode {
            Mode::Exact | Mode::Quick => {
                let report = Box::pin(self.exact(args, signals)).await?;
                let exit = exit(report.verdict());
                Ok((report, exit, None))
            }
            Mode::Rolling => {
                let what = (args, self.options);
                let round = Box::pin(self.rolling(what, signals, (record, old))).await?;
                let exit = exit(round.report.verdict());
                Ok((round.report, exit, round.stopped))
            }
            Mode::Watch => {
                let served = self.serve(args).await?;
                let measure = |round: &Report| self.measure((args, &served), round);
                let watched = self.watch(args, signals, record, &measure);
                let (report, exit) = Box::pin(watched).await?;
                Ok((report, exit, None))
            }
        }
    }

    /// Where a watch's metrics are read from, whether or not anybody does.
    async fn serve(&self, args: &Args) -> Result<Text, Failure> {
        let text = Text::default();
        if let Some(address) = args.listen {
            let serving = text.serve(address).await;
            let address = serving.map_err(|error| {
                Failure::new(
                    Exit::Unexpected,
                    format!("{address} cannot be listened on: {error}"),
                    "give --listen an address of this machine and a free port",
                )
            })?;
            self.output
                .note(format!("serving /metrics address={address}"));
        }
        Ok(text)
    }

    /// A round as metrics; a watch goes on when they cannot be written.
    fn measure(&self, (args, served): (&Args, &Text), round: &Report) {
        let flow = self.config.flow.as_str();
        served.set(|earlier| verdict::metrics::after(earlier, round, flow));
        let Some(metrics) = &args.metrics_file else {
            return;
        };
        let written = verdict::metrics::write(metrics, round, self.config.flow.as_str());
        if let Err(failure) = written {
            output::alarm(failure);
        }
    }

    /// Both sides frozen and compared.
    async fn exact(&self, args: &Args, signals: &mut Signals) -> Result<Report, Failure> {
        let freeze = freezing::options(self.config, &self.options.run, args.timeout);
        let told = (self.output, self.events);
        let pair = freezing::frozen(self.config, &freeze, signals, told).await?;
        let bars = Bars::new(self.output);
        let begun = verdict::begun(
            &pair,
            (args.mode.reported(), self.options),
            self.circumstances,
            self.started,
        );
        self.events.run(&begun);
        let progress = |progress| {
            self.events.show(&progress);
            bars.show(progress);
        };
        let options = CompareOptions {
            quarantine: Some(Quarantine {
                flow: self.config.flow.clone(),
                before: pair.consistent_point,
            }),
            ..self.options.clone()
        };
        let comparing = compare(&pair.source, &pair.target, &options, &progress);
        let compared = tokio::select! {
            compared = comparing => compared.map_err(not_compared),
            side = pair.thawed() => Err(Failure::new(
                Exit::NotCompared,
                format!("the {side} ended the session that held its snapshot"),
                "did it restart? Run verify again",
            )),
            signal = signals.next() => Err(freezing::interrupted(signal)),
        };
        bars.end();
        let mut report = Report::exact(&pair, self.options, compared?, self.started);
        report.mode = args.mode.reported();
        Ok(report)
    }
}

fn not_compared(error: VerifyError) -> Failure {
    let exit = match error.kind {
        VerifyErrorKind::Connect { .. } | VerifyErrorKind::Server | VerifyErrorKind::Unusable => {
            Exit::NotCompared
        }
        VerifyErrorKind::Bug => Exit::Bug,
    };
    Failure::new(exit, error.reason, error.hint)
}
