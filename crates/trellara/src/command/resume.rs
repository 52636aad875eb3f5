//! `trellara resume`: ends a pause.

use serde::Serialize;
use trellara_applier::pause::LOOK;
use trellara_applier::quarantine::text::storable;
use trellara_applier::{channel, lane};
use trellara_envelope::Lane;
use trellara_postgres::Session;

use super::pause::lanes;
use super::status::age;
use crate::config::Config;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::operator::Operator;
use crate::telemetry::{self, LogFormat};
use crate::{link, visible};

/// Ends a pause: the applier goes on where it stood.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.pause on the target
Writes: deletes the row there, adds one to trellara.audit; NOTIFY trellara_<flow>

Exit codes: 0 no lane is paused any more; 11 not set up; 64 no such lane; 77 a right is missing;
            78 the file; 1 the target does not answer

Examples:
  trellara resume && trellara wait --timeout 10m
  trellara resume --output json")]
pub(crate) struct Args {
    /// One lane alone; all of them without it.
    #[arg(long, value_name = "NUMBER")]
    lane: Option<u32>,
}

#[derive(Serialize)]
struct Resumed {
    id: String,
    lanes: Vec<ResumedLane>,
}

/// A lane that may go on.
#[derive(Serialize)]
struct ResumedLane {
    id: u32,
    was_paused: bool,
    /// Who had wanted it.
    operator: Option<String>,
    reason: Option<String>,
    /// For how long.
    paused_seconds: Option<f64>,
    /// Who holds the lane; absent when nobody applies.
    applier: Option<String>,
}

pub(crate) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let target = link::target(&config).await?;
    let mut resumed = Resumed {
        id: config.flow.to_string(),
        lanes: Vec::new(),
    };
    for lane in lanes(&config, &target, args.lane).await? {
        resumed.lanes.push(resume(&config, &target, lane).await?);
    }
    context.output.data(&resumed, text);
    Ok(Exit::Done)
}

/// Takes the row away and records who did.
async fn resume(config: &Config, target: &Session, lane: Lane) -> Result<ResumedLane, Failure> {
    const RESUME: &str = "\
        WITH resumed AS ( \
            DELETE FROM trellara.pause WHERE flow = $1 AND lane = $2 \
            RETURNING flow, lane, operator || '@' || host AS operator, reason, \
                      extract(epoch FROM clock_timestamp() - paused_at)::float8 AS seconds \
        ), recorded AS ( \
            INSERT INTO trellara.audit \
                   (flow, lane, action, operator, host, version, arguments, lsn) \
            SELECT r.flow, r.lane, 'resumed', $3, $4, $5, \
                   jsonb_build_object('paused_by', r.operator, 'paused_for', r.reason, \
                                      'paused_seconds', round(r.seconds::numeric, 3)), \
                   coalesce((SELECT a.end_lsn FROM trellara.applied AS a \
                              WHERE a.flow = r.flow AND a.lane = r.lane \
                              ORDER BY a.first_ordinal DESC LIMIT 1), '0/0') \
              FROM resumed AS r \
        ) SELECT pg_notify($6, $7), r.operator, r.reason, r.seconds FROM resumed AS r";
    let who = Operator::here();
    let [name, host] = storable(&target.client, [&who.name, &who.host]).await?;
    let (flow, number) = (config.flow.as_str(), lane.0.cast_signed());
    let version = env!("CARGO_PKG_VERSION");
    let row = target
        .client
        .query_opt(
            RESUME,
            &[
                &flow,
                &number,
                &name,
                &host,
                &version,
                &channel(&config.flow),
                &LOOK,
            ],
        )
        .await?;
    Ok(ResumedLane {
        id: lane.0,
        was_paused: row.is_some(),
        operator: row.as_ref().map(|row| row.get(1)),
        reason: row.as_ref().map(|row| row.get(2)),
        paused_seconds: row.as_ref().map(|row| row.get(3)),
        applier: lane::holder(&target.client, &config.flow, lane).await?,
    })
}

fn text(resumed: &Resumed) -> String {
    let mut lines = Vec::new();
    for lane in &resumed.lanes {
        let flow = &resumed.id;
        lines.push(match (&lane.operator, &lane.reason, lane.paused_seconds) {
            (Some(operator), Some(reason), Some(seconds)) => format!(
                "flow {flow}, lane {}, goes on after {}; {} had paused it: {}",
                lane.id,
                age(seconds),
                visible::inline(operator),
                visible::inline(reason)
            ),
            _ => format!("flow {flow}, lane {}, was not paused", lane.id),
        });
        if lane.applier.is_none() {
            lines.push("  no applier holds the lane; `trellara status` shows why".to_owned());
        }
    }
    lines.join("\n")
}
