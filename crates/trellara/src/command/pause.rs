//! `trellara pause`: the target stands still until `trellara resume`.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use trellara_applier::pause::{self, LOOK, Pause, answer_channel};
use trellara_applier::quarantine::text::storable;
use trellara_applier::{channel, lane};
use trellara_envelope::{FlowName, Lane};
use trellara_postgres::{Session, quote};

use crate::config::{Config, duration};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::forecast::{self, Forecast};
use crate::operator::Operator;
use crate::telemetry::{self, LogFormat};
use crate::{link, visible};

/// Lets the target stand still: the applier finishes what it has in hand and applies nothing more.
///
/// It keeps its place, its lane and its session; the relay goes on and fills the stream. The pause
/// outlives restarts of everybody and ends with `trellara resume`. Waits until the applier says that
/// it stands still, and tells how long that can last: how fast the source writes, when the stream is
/// full, and when the source may take the slot's WAL away.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  the lane's applier; the source's WAL position and slot and the stream's size, twice
Writes: a row of trellara.pause and one of trellara.audit on the target; NOTIFY trellara_<flow>

Exit codes: 0 it stands still, or no applier holds the lane; 20 the applier has not said so in time,
            and will when it can; 11 not set up; 64 no such lane; 77 a right is missing; 78 the
            file; 1 the target does not answer

Examples:
  trellara pause --reason \"index build on orders, until 22:00\"
  trellara pause --reason upgrade --timeout 10m --output json | jq .forecast")]
pub(crate) struct Args {
    /// Why, for whoever looks at `trellara status`.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,
    /// One lane alone; all of them without it.
    #[arg(long, value_name = "NUMBER")]
    lane: Option<u32>,
    /// Give up waiting for the applier's word after this long; the pause is in force all the same.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
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

/// How often the row is read without a notification.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// An applier that takes everything up anew holds no lane for a moment.
const NOBODY_FOR: Duration = Duration::from_secs(3);

#[derive(Serialize)]
struct Paused {
    id: String,
    lanes: Vec<PausedLane>,
    /// Absent when source or stream do not answer.
    forecast: Option<Forecast>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_forecast: Option<String>,
}

/// A lane that was told to stand still.
#[derive(Serialize)]
struct PausedLane {
    id: u32,
    reason: String,
    operator: String,
    host: String,
    since: String,
    /// Whether it was paused before.
    already: bool,
    /// Where its applier stands; absent when there is none, or it has not said so.
    lsn: Option<String>,
    /// Who holds the lane.
    applier: Option<String>,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let deadline = Instant::now() + args.timeout;
    let mut target = link::target(&config).await?;
    let lanes = lanes(&config, &target, args.lane).await?;
    let mut heard = target
        .take_notifications()
        .ok_or_else(|| Failure::new(Exit::Bug, "the session gave no notifications", ""))?;
    let answers = quote::identifier(&answer_channel(&config.flow));
    let listen = format!("LISTEN {answers}");
    target.client.batch_execute(&listen).await?;
    let mut told = Vec::new();
    for lane in lanes {
        told.push((lane, tell(&config, &target, lane, &args.reason).await?));
    }
    let mut paused = Paused {
        id: config.flow.to_string(),
        lanes: Vec::new(),
        forecast: None,
        no_forecast: None,
    };
    for (lane, new) in told {
        let mut held_at = Instant::now();
        let lane = loop {
            let (row, applier) = look(&config.flow, &target, lane).await?;
            if applier.is_some() {
                held_at = Instant::now();
            }
            let settled = row.stands.is_some() || held_at.elapsed() >= NOBODY_FOR;
            if settled || Instant::now() >= deadline {
                break PausedLane::of(lane, row, !new, applier);
            }
            // Whatever wakes us, the row decides.
            tokio::select! {
                _ = heard.recv() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        };
        paused.lanes.push(lane);
    }
    match forecast::take(&config).await {
        Ok(forecast) => paused.forecast = Some(forecast),
        Err(reason) => paused.no_forecast = Some(reason),
    }
    let owing = paused.lanes.iter().find(|lane| lane.owes());
    let owing = owing.map(|lane| overdue(&config.flow, lane, args.timeout));
    context.output.data(&paused, text);
    owing.map_or(Ok(Exit::Done), Err)
}

/// Writes the row and the audit's; whether it is new. Nobody's earlier reason is written over.
async fn tell(
    config: &Config,
    target: &Session,
    lane: Lane,
    reason: &str,
) -> Result<bool, Failure> {
    // One statement is one transaction: the row never stands there without its record.
    const PAUSE: &str = "\
        WITH paused AS ( \
            INSERT INTO trellara.pause (flow, lane, reason, operator, host) \
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (flow, lane) DO NOTHING RETURNING flow, lane \
        ), recorded AS ( \
            INSERT INTO trellara.audit (flow, lane, action, operator, host, version, reason, lsn) \
            SELECT p.flow, p.lane, 'paused', $4, $5, $6, $3, \
                   coalesce((SELECT a.end_lsn FROM trellara.applied AS a \
                              WHERE a.flow = p.flow AND a.lane = p.lane \
                              ORDER BY a.first_ordinal DESC LIMIT 1), '0/0') \
              FROM paused AS p \
        ) SELECT pg_notify($7, $8) FROM paused";
    let who = Operator::here();
    let lane = lane.0.cast_signed();
    let version = env!("CARGO_PKG_VERSION");
    let flow = config.flow.as_str();
    let texts = [reason, &who.name, &who.host];
    let [reason, name, host] = storable(&target.client, texts).await?;
    let new = target
        .client
        .execute(
            PAUSE,
            &[
                &flow,
                &lane,
                &reason,
                &name,
                &host,
                &version,
                &channel(&config.flow),
                &LOOK,
            ],
        )
        .await?;
    Ok(new > 0)
}

/// The row, and who holds the lane.
async fn look(
    flow: &FlowName,
    target: &Session,
    lane: Lane,
) -> Result<(Pause, Option<String>), Failure> {
    let holder = lane::holder(&target.client, flow, lane).await?;
    let row = pause::read(&target.client, flow, lane).await?;
    let row = row.ok_or_else(|| {
        let reason = format!("somebody resumed lane {lane} meanwhile");
        Failure::new(Exit::Unexpected, reason, "`trellara status` shows who")
    })?;
    Ok((row, holder))
}

/// The lanes meant: those that the flow has, or the one that was named.
pub(super) async fn lanes(
    config: &Config,
    target: &Session,
    wanted: Option<u32>,
) -> Result<Vec<Lane>, Failure> {
    if link::checkpoint(config, target).await?.is_none() {
        return Err(link::not_set_up(config));
    }
    const KNOWN: &str = "SELECT to_regclass('trellara.pause') IS NOT NULL";
    let known: bool = target.client.query_one(KNOWN, &[]).await?.get(0);
    if !known {
        let reason = "schema trellara of this target is older than pauses";
        return Err(Failure::new(Exit::Unfit, reason, "run trellara setup"));
    }
    const LANES: &str = "SELECT lane FROM trellara.lane WHERE flow = $1 ORDER BY lane";
    let rows = target.client.query(LANES, &[&config.flow.as_str()]).await?;
    let all = rows
        .iter()
        .filter_map(|row| u32::try_from(row.get::<_, i32>(0)).ok())
        .map(Lane);
    let lanes: Vec<Lane> = all
        .filter(|lane| wanted.is_none_or(|wanted| lane.0 == wanted))
        .collect();
    match (lanes.is_empty(), wanted) {
        (true, Some(wanted)) => {
            let reason = format!("flow {} has no lane {wanted}", config.flow);
            Err(Failure::new(Exit::Usage, reason, ""))
        }
        _ => Ok(lanes),
    }
}

impl PausedLane {
    fn of(lane: Lane, row: Pause, already: bool, applier: Option<String>) -> Self {
        Self {
            id: lane.0,
            reason: row.reason,
            operator: row.operator,
            host: row.host,
            since: row.since,
            already,
            lsn: row.stands.map(|lsn| lsn.to_string()),
            applier,
        }
    }

    /// Whether its applier has yet to say that it stands still.
    fn owes(&self) -> bool {
        self.lsn.is_none() && self.applier.is_some()
    }
}

fn overdue(flow: &FlowName, lane: &PausedLane, timeout: Duration) -> Failure {
    let reason = format!(
        "the applier of flow {flow}, lane {}, has not said within {timeout:?} that it stands still",
        lane.id
    );
    let hint = "the pause is in force and holds as soon as the applier is through with what it has \
                in hand; `trellara status` shows what that is";
    Failure::new(Exit::TimedOut, reason, hint)
}

fn text(paused: &Paused) -> String {
    let mut lines = Vec::new();
    for lane in &paused.lanes {
        let already = if lane.already { "was already" } else { "is" };
        lines.push(format!(
            "flow {}, lane {}, {already} paused",
            paused.id, lane.id
        ));
        lines.push(format!(
            "  since    {} by {}@{}: {}",
            lane.since,
            visible::inline(&lane.operator),
            visible::inline(&lane.host),
            visible::inline(&lane.reason)
        ));
        lines.push(match (&lane.lsn, &lane.applier) {
            (Some(lsn), _) => format!("  stands   at {lsn}: everything before it is in the target"),
            (None, None) => {
                "  stands   no applier holds the lane; one that comes will not apply".to_owned()
            }
            (None, Some(applier)) => format!("  stands   not yet: {}", visible::inline(applier)),
        });
    }
    match (&paused.forecast, &paused.no_forecast) {
        (Some(forecast), _) => {
            lines.extend(forecast.lines().iter().map(|line| format!("  {line}")));
        }
        (None, why) => {
            let why = visible::inline(why.as_deref().unwrap_or_default());
            lines.push(format!("  forecast none: {why}"));
        }
    }
    lines.join("\n")
}
