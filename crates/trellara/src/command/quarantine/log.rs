//! `trellara quarantine log`.

use serde::Serialize;
use trellara_applier::quarantine::HeldId;
use trellara_applier::quarantine::audit::{self, Entry};

use super::{at, target};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::telemetry::{self, LogFormat};
use crate::visible;

/// Shows who did what, oldest first.
///
/// Each deed stands in the target since the very transaction that did it; the role that applies can
/// neither change nor remove it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads:  trellara.audit on the target
Writes: nothing

Exit codes: 0 shown; 11 not set up; 77 a right is missing; 78 the file; 1 the target does not answer

Examples:
  trellara quarantine log
  trellara quarantine log 7 --output json | jq '.[].action'")]
pub(crate) struct Args {
    /// Of one held transaction alone.
    #[arg(value_name = "ID")]
    id: Option<i64>,
    /// The newest of them, at most this many; 0 for all.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: u32,
}

#[derive(Serialize)]
struct Deed {
    id: i64,
    at: String,
    action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<i64>,
    operator: String,
    host: String,
    version: String,
    role: String,
    arguments: serde_json::Value,
    reason: String,
    lsn: String,
    /// Of the held row before, as 32 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest_before: Option<String>,
}

impl Deed {
    fn of(entry: Entry) -> Self {
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            id: entry.id,
            at: at(entry.at_us),
            action: entry.action,
            held: entry.held.map(|id| id.0),
            operator: entry.operator.name,
            host: entry.operator.host,
            version: entry.operator.version,
            role: entry.role,
            arguments: serde_json::from_str(&entry.arguments).unwrap_or_default(),
            reason: entry.reason,
            lsn: entry.lsn.to_string(),
            digest_before: entry.digest.map(hex),
        }
    }
}

pub(super) async fn execute(args: &Args, context: &Context) -> Result<Exit, Failure> {
    telemetry::start_logs(context, false, LogFormat::Text);
    let config = context.config()?;
    let target = target(&config).await?;
    let limit = match args.limit {
        0 => i64::MAX,
        limit => i64::from(limit),
    };
    let entries = audit::read(&target.client, &config.flow, args.id.map(HeldId), limit).await?;
    let mut list = context.output.list();
    for entry in entries {
        list.item(&Deed::of(entry), text);
    }
    list.end();
    Ok(Exit::Done)
}

fn text(deed: &Deed) -> String {
    let held = deed.held.map_or("-".to_owned(), |held| held.to_string());
    let mut line = format!(
        "{}  {:<8} {:<24} {}@{} as {}, at {}",
        deed.at,
        held,
        deed.action,
        visible::quoted(&deed.operator),
        visible::quoted(&deed.host),
        visible::quoted(&deed.role),
        deed.lsn,
    );
    if !deed.reason.is_empty() {
        line.push_str(&format!(": {}", visible::inline(&deed.reason)));
    }
    line
}
