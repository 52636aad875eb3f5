//! `trellara status`: where everything stands.

use std::time::Duration;

use crate::config::duration;
use crate::context::Context;
use crate::daemon_reports::first_halt;
use crate::exit::{Exit, Failure};
use crate::held::HeldFacts;
use crate::report::DaemonReport;
use crate::survey::{self, Part, PausedFacts, Survey, Verified};
use crate::telemetry::{self, LogFormat};
use crate::visible;

/// Shows positions from the source's WAL head to the target, and what blocks.
///
/// Asks source, broker and target themselves, and the daemons that can be reached at ops.listen.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the source's slot; the stream's tail; the target's checkpoint; the daemons' endpoints
Writes: nothing

Exit codes: 0 shown; 10, 11, 12, 13, 77 a daemon halted; 1 something does not answer

Examples:
  trellara status
  trellara status --watch --interval 1s
  trellara status --output json | jq '.ladder[] | {id, behind_bytes}'")]
pub(crate) struct Args {
    /// Again and again, until interrupted.
    #[arg(long)]
    watch: bool,
    /// Time between two looks.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    interval: Duration,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    loop {
        let survey = Box::pin(survey::take(&config)).await;
        context.output.data(&survey, text);
        if !args.watch {
            return verdict(&survey);
        }
        tokio::select! {
            () = tokio::time::sleep(args.interval) => context.output.note(""),
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
        }
    }
}

fn verdict(survey: &Survey) -> Result<Exit, Failure> {
    if let Some(halt) = first_halt(&survey.daemons) {
        return Err(halt);
    }
    let silent = [
        matches!(survey.source, Part::Unknown { .. }),
        matches!(survey.stream, Part::Unknown { .. }),
        matches!(survey.target, Part::Unknown { .. }),
    ];
    Ok(if silent.contains(&true) {
        Exit::Unexpected
    } else {
        Exit::Done
    })
}

fn text(survey: &Survey) -> String {
    let mut lines = vec![format!("flow {}", survey.id), String::new()];
    for rung in &survey.ladder {
        let lsn = rung.lsn.as_deref().unwrap_or("unknown");
        let behind = match rung.behind_bytes {
            Some(0) => "0 bytes behind".to_owned(),
            Some(bytes) => format!("{} behind", bytes_text(bytes)),
            None => String::new(),
        };
        lines.push(format!("  {:<10} {lsn:>18}   {behind}", rung.id));
    }
    if let Some(seconds) = survey.lag_seconds {
        lines.push(format!("  oldest commit not applied: {seconds:.1} s ago"));
    }
    lines.push(String::new());
    lines.extend(slot_line(survey));
    if let Part::Known(stream) = &survey.stream {
        let limit = stream.max_bytes.map_or("no limit".to_owned(), bytes_text);
        let used = bytes_text(stream.bytes);
        lines.push(format!(
            "  stream   {}: {used} of {limit}, {} frames",
            stream.name, stream.messages
        ));
    }
    if let Part::Known(target) = &survey.target {
        let holder = visible::inline(target.holder.as_deref().unwrap_or("nobody"));
        lines.push(format!(
            "  target   lane 0, epoch {}, held by {holder}",
            target.epoch
        ));
        lines.extend(target.verified.as_ref().map(verify_line));
        lines.extend(target.paused.as_ref().map(paused_line));
        lines.extend(target.quarantine.as_ref().and_then(HeldFacts::line));
    }
    if let Some(forecast) = &survey.forecast {
        lines.extend(forecast.lines().iter().map(|line| format!("  {line}")));
    }
    for daemon in &survey.daemons {
        let ready = if daemon.ready { "ready" } else { "not ready" };
        lines.push(format!("  {:<8} {}, {ready}", daemon.role, daemon.state));
        let fence = daemon.details.get("fence");
        lines.extend(fence.map(|fence| format!("  fence    {}", visible::inline(fence))));
        lines.extend(cache_line(daemon));
    }
    if !survey.blocked_by.is_empty() {
        lines.push(String::new());
        lines.extend(
            survey
                .blocked_by
                .iter()
                .map(|block| format!("  ! {}", visible::inline(block))),
        );
    }
    lines.join("\n")
}

/// Who wants the flow to stand still, and whether it does.
fn paused_line(paused: &PausedFacts) -> String {
    let stands = match paused.stands {
        true => "stands still",
        false => "no applier has said that it stands still",
    };
    format!(
        "  paused   for {} by {}@{}, {stands}: {}",
        age(paused.seconds),
        visible::inline(&paused.operator),
        visible::inline(&paused.host),
        visible::inline(&paused.reason)
    )
}

/// What the judge said last, and when.
fn verify_line(verified: &Verified) -> String {
    let at = match &verified.consistent_point {
        Some(lsn) => format!(" at {lsn}"),
        None => String::new(),
    };
    format!(
        "  verify   {}{at}, {} ago ({}, run {})",
        visible::inline(&verified.verdict),
        age(verified.seconds_ago),
        visible::inline(&verified.mode),
        visible::inline(&verified.id)
    )
}

/// Seconds for people.
pub(crate) fn age(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

/// Whether the applier answers "already applied?" from memory, and what that took so far.
fn cache_line(daemon: &DaemonReport) -> Option<String> {
    let state = daemon.details.get("cache")?;
    let detail = |name: &str| daemon.details.get(name)?.parse::<u64>().ok();
    let counter = |name: &str| daemon.counters.get(name).copied().unwrap_or_default();
    Some(format!(
        "  cache    {state}: {} transactions in {}; {} probes for {} applied and {} duplicates",
        detail("cache_identities").unwrap_or_default(),
        bytes_text(detail("cache_bytes").unwrap_or_default()),
        counter("probes"),
        counter("transactions"),
        counter("duplicate_transactions"),
    ))
}

fn slot_line(survey: &Survey) -> Option<String> {
    let slot = survey.source.known()?.slot.as_ref()?;
    let reader = slot
        .active_pid
        .map_or("nobody".to_owned(), |pid| format!("walsender {pid}"));
    let retained = slot.retained_bytes.map_or("unknown".to_owned(), bytes_text);
    let safe = match slot.safe_bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
        Some(bytes) => format!(", lost after {} more", bytes_text(bytes)),
        None => String::new(),
    };
    Some(format!(
        "  slot     {}: read by {reader}, keeps {retained} of WAL{safe}",
        slot.name
    ))
}

/// Bytes for people.
pub(crate) fn bytes_text(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
        None => format!("{bytes} bytes"),
    }
}
